"""Gymnasium's environments, where TorchRL has them."""

from typing import Any

from windrow.envs._gym import GymEnv, GymWrapper
from windrow.envs._torchrl_compat import of_torchrl

__all__ = ["GymEnv", "GymWrapper"]


def __getattr__(name: str) -> Any:
    return of_torchrl(name, __name__, "torchrl.envs.libs.gym")
