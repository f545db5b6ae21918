"""Environments, native ones and those of Gymnasium and TorchRL.

``GymEnv("CartPole-v1")`` is an environment by its id; collectors also take an environment of Gymnasium or TorchRL, or a
function that returns any of these. Choices are one-hot as in TorchRL, unless ``categorical_action_encoding=True``; where a
collector is given a bare id, they are indices, as they are for the same id in Rust.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windrow.envs._base import EnvBase
from windrow.envs._batched import EnvCreator, ParallelEnv, SerialEnv, env_creator
from windrow.envs._check import check_env, check_env_specs
from windrow.envs._gym import GymEnv, GymWrapper
from windrow.envs.transforms import (
    Compose,
    DoubleToFloat,
    InitTracker,
    ObservationNorm,
    RewardSum,
    StepCounter,
    Transform,
    TransformedEnv,
)

if TYPE_CHECKING:
    from windrow.envs.utils import ExplorationType, exploration_type, set_exploration_type

__all__ = [
    "Compose",
    "DoubleToFloat",
    "EnvBase",
    "EnvCreator",
    "ExplorationType",
    "GymEnv",
    "GymWrapper",
    "InitTracker",
    "ObservationNorm",
    "ParallelEnv",
    "RewardSum",
    "SerialEnv",
    "StepCounter",
    "Transform",
    "TransformedEnv",
    "check_env",
    "check_env_specs",
    "env_creator",
    "exploration_type",
    "set_exploration_type",
]


def __getattr__(name: str) -> Any:
    # These come from tensordict, which brings torch.
    if name not in ("ExplorationType", "exploration_type", "set_exploration_type"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from windrow.envs import utils

    return getattr(utils, name)
