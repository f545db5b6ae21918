"""Choices in actions and observations: indices in what is Gymnasium's, one-hot vectors in what has
a name of TorchRL's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import pytest
import torchrl.envs
from gymnasium.vector import SyncVectorEnv

import windrow.torchrl.envs
from windrow.collectors import Collector
from windrow.envs import (
    AsyncEnvPool,
    EnvCreator,
    GymEnv,
    GymWrapper,
    ParallelEnv,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)

ID = "FrozenLake-v1"
made = partial(gymnasium.make, ID)
vector = partial(SyncVectorEnv, [made] * 2)


class Own(gymnasium.Wrapper):
    def __init__(self) -> None:
        super().__init__(made())


#: Ways to give environments of Gymnasium, and of windrow's classes that have names of TorchRL's.
GYMNASIUMS: dict[str, Callable[[], Any]] = {
    "an id": lambda: ID,
    "gymnasium.make": made,
    "a function": lambda: made,
    "a class": lambda: Own,
    "a vector": vector,
    "a function of a vector": lambda: vector,
    "EnvCreator": lambda: EnvCreator(made),
    "TransformedEnv": lambda: TransformedEnv(made(), StepCounter()),
    "TransformedEnv of an id": lambda: TransformedEnv(ID, StepCounter()),
    "a function of TransformedEnv": lambda: lambda: TransformedEnv(made(), StepCounter()),
    "SerialEnv": lambda: SerialEnv(2, made),
    "ParallelEnv": lambda: ParallelEnv(2, made),
    "AsyncEnvPool": lambda: AsyncEnvPool([made] * 2),
}
TORCHRLS: dict[str, Callable[..., Any]] = {
    "GymEnv": partial(GymEnv, ID),
    "GymEnv of Gymnasium": partial(GymEnv, ID, backend="gymnasium"),
    "several of GymEnv": partial(GymEnv, ID, num_envs=2),
    "GymWrapper": lambda **encoding: GymWrapper(made(), **encoding),
    "GymWrapper of a vector": lambda **encoding: GymWrapper(vector(), **encoding),
    "the stand-in's GymEnv": partial(windrow.torchrl.envs.GymEnv, ID),
    "TorchRL's GymEnv": partial(torchrl.envs.GymEnv, ID),
    "a function": lambda **encoding: partial(GymEnv, ID, **encoding),
    "TransformedEnv": lambda **encoding: TransformedEnv(GymEnv(ID, **encoding), StepCounter()),
    "SerialEnv": lambda **encoding: SerialEnv(2, partial(GymEnv, ID, **encoding)),
    "ParallelEnv": lambda **encoding: ParallelEnv(2, partial(GymEnv, ID, **encoding)),
}


def assert_choices(env: Any, action: list[int], observation: list[int]) -> None:
    """Rows of a batch have these shapes."""
    collector = Collector(env, frames_per_batch=4)
    batch = next(collector)
    shapes = [list(batch[key].shape[batch.ndim :]) for key in ("action", "observation")]
    following = list(batch["next", "observation"].shape[batch.ndim :])
    collector.shutdown()
    assert [*shapes, following] == [action, observation, observation]


@pytest.mark.parametrize("way", GYMNASIUMS)
def test_what_is_gymnasiums_has_indices(way: str) -> None:
    assert_choices(GYMNASIUMS[way](), [], [])


@pytest.mark.parametrize("way", TORCHRLS)
def test_what_has_a_name_of_torchrls_has_one_hot_vectors(way: str) -> None:
    assert_choices(TORCHRLS[way](), [4], [16])


@pytest.mark.parametrize("way", TORCHRLS)
def test_what_has_a_name_of_torchrls_has_indices_where_that_is_asked_for(way: str) -> None:
    assert_choices(TORCHRLS[way](categorical_action_encoding=True), [], [])
