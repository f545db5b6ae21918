"""Names of exploration types, as TorchRL and tensordict spell them."""

from __future__ import annotations

import warnings
from typing import Any

from windrow._arguments import outside

NAMES = ("random", "mode", "mean", "deterministic")


def name_of(exploration_type: Any, exploration_mode: Any = None) -> str:
    """The engine's name for ``exploration_type``: a member of ``ExplorationType``, its name, or None for random.

    ``exploration_mode`` is the former name of the argument.

    Raises:
        ValueError: the type is unknown.
    """
    if exploration_mode is not None:
        warnings.warn("exploration_mode is called exploration_type now", DeprecationWarning, stacklevel=outside())
        exploration_type = exploration_mode if exploration_type is None else exploration_type
    if exploration_type is None:
        return "random"
    name = str(getattr(exploration_type, "name", exploration_type)).lower()
    if name not in NAMES:
        raise ValueError(f"exploration_type must be RANDOM, MODE, MEAN or DETERMINISTIC, got {exploration_type!r}")
    return name


def interaction_type(name: str) -> Any:
    """The member of tensordict's ``InteractionType`` with this name."""
    from tensordict.nn import InteractionType

    return InteractionType(name)
