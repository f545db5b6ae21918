"""Functions that make environments, where TorchRL has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from windrow import envs
from windrow._lazy import names_of

if TYPE_CHECKING:
    from windrow.envs._creator import EnvCreator

__all__ = ["EnvCreator", "env_creator"]


def env_creator(create_env_fn: Callable[..., Any]) -> envs.EnvCreator:
    """The function ``create_env_fn`` as an :class:`EnvCreator`."""
    return envs.EnvCreator(create_env_fn)


if not TYPE_CHECKING:
    __getattr__ = names_of("windrow.envs", {"EnvCreator": "_creator"})
