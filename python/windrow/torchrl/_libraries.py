"""Environments of other libraries behind TorchRL's wrappers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchrl.envs import EnvBase

    from windrow._types import Environment


def of_pettingzoo(env: object) -> EnvBase | None:
    """An environment of PettingZoo in TorchRL's form; None for another object."""
    from pettingzoo import AECEnv, ParallelEnv

    if isinstance(env, ParallelEnv):
        return _wrapped("pettingzoo", "PettingZooWrapper", env)
    return (
        _wrapped("pettingzoo", "PettingZooWrapper", env, use_mask=True)
        if isinstance(env, AECEnv)
        else None
    )


def of_vmas(env: object) -> EnvBase | None:
    """An environment of VMAS in TorchRL's form; None for another object."""
    from vmas.simulator.environment import Environment

    return _wrapped("vmas", "VmasWrapper", env) if isinstance(env, Environment) else None


def _wrapped(library: str, name: str, env: Environment, **kwargs: Any) -> EnvBase:
    try:
        import torchrl.envs
    except ImportError as error:
        raise TypeError(
            f"environments of {library} are taken by way of torchrl.envs.{name}, and torchrl is not installed"
        ) from error
    return getattr(torchrl.envs, name)(env, **kwargs)
