"""Helpers around environments, where TorchRL has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windrow import _needs
from windrow._lazy import tensordict
from windrow.envs._check import check_env, check_env_specs
from windrow.modules import RandomPolicy

if TYPE_CHECKING:
    from tensordict.nn import InteractionType as ExplorationType
    from tensordict.nn.probabilistic import (
        interaction_type as exploration_type,
        set_interaction_type as set_exploration_type,
    )

__all__ = [
    "ExplorationType",
    "RandomPolicy",
    "check_env",
    "check_env_specs",
    "exploration_type",
    "set_exploration_type",
]

OF_TENSORDICT = {
    "ExplorationType": "InteractionType",
    "exploration_type": "interaction_type",
    "set_exploration_type": "set_interaction_type",
}


def __getattr__(name: str) -> Any:
    # tensordict brings torch, which is imported only by those who use it.
    if name not in OF_TENSORDICT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _needs.torch(f"{__name__}.{name}")
    return getattr(tensordict.nn.probabilistic, OF_TENSORDICT[name])
