"""Buffers of ``windrow.torchrl``: windrow's, unless a part is one that only TorchRL has."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest
import torch
import torchrl.data
from tensordict import TensorDict

import windrow.data
from windrow.torchrl.data import (
    CompressedListStorage,
    LazyTensorStorage,
    ReplayBuffer,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    StalenessAwareSampler,
    TensorDictReplayBuffer,
)
from windrow.torchrl.envs import (
    Compose,
    GymEnv,
    InitTracker,
    RewardSum,
    StepCounter,
    TransformedEnv,
)


def test_a_buffer_is_windrows(recwarn: pytest.WarningsRecorder) -> None:
    further: dict[str, Any] = {
        "sample_unit": None,
        "service_backend": "direct",
        "service_backend_options": {},
        "transport": "auto",
    }
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(30), sampler=SamplerWithoutReplacement(), batch_size=4, **further
    )
    assert isinstance(buffer, windrow.data.ReplayBuffer)
    buffer.extend(TensorDict({"value": torch.arange(20)}, [20]))
    assert len(buffer.sample()) == 4 and not recwarn


@pytest.mark.parametrize(
    "storage", [LazyTensorStorage(30), LazyTensorStorage, partial(LazyTensorStorage, 30)], ids=str
)
def test_with_a_part_of_torchrl_a_buffer_is_torchrls(storage: Any) -> None:
    storage = partial(storage, 30) if storage is LazyTensorStorage else storage
    writer = RoundRobinWriter(track_generations=True)
    with pytest.warns(
        UserWarning,
        match="windrow has no sampler=StalenessAwareSampler: this TensorDictReplayBuffer is TorchRL's",
    ):
        buffer = TensorDictReplayBuffer(
            storage=storage,
            sampler=StalenessAwareSampler(max_staleness=3),
            writer=writer,
            batch_size=4,
        )
    assert type(buffer) is torchrl.data.TensorDictReplayBuffer and buffer._writer._track_generations
    assert (
        type(buffer._storage) is torchrl.data.LazyTensorStorage and buffer._storage.max_size == 30
    )


def test_what_makes_a_part_of_torchrl_counts_as_one() -> None:
    with pytest.warns(UserWarning, match="storage=CompressedListStorage"):
        assert (
            type(ReplayBuffer(storage=partial(CompressedListStorage, max_size=10)))
            is torchrl.data.ReplayBuffer
        )


def test_a_derived_buffer_takes_no_part_of_torchrl() -> None:
    class Own(ReplayBuffer):
        pass

    assert isinstance(Own(storage=LazyTensorStorage(3)), windrow.data.ReplayBuffer)
    with pytest.raises(
        TypeError, match="in a class derived from Own, got storage=CompressedListStorage"
    ):
        Own(storage=CompressedListStorage(max_size=10))


def test_generations_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="track_generations has no effect"):
        ReplayBuffer(storage=LazyTensorStorage(3), writer=RoundRobinWriter(track_generations=True))


def test_environments_take_torchrls_arguments(recwarn: pytest.WarningsRecorder) -> None:
    env = GymEnv(
        "CartPole-v1",
        batch_size=None,
        allow_done_after_reset=False,
        missing_obs_value=None,
        disable_env_checker=None,
    )
    assert env.backend == "native"
    around = TransformedEnv(
        env, Compose(transforms=[StepCounter(), RewardSum()]), cache_specs=True, auto_unwrap=None
    )
    assert around.rollout(3)["next", "step_count"].flatten().tolist() == [1, 2, 3] and not recwarn
    with pytest.warns(UserWarning, match="auto_reset has no effect"):
        GymEnv("CartPole-v1", auto_reset=True)


def test_configurations_do_not_take_transforms_for_their_own_nodes() -> None:
    for transform in (StepCounter(max_steps=3), RewardSum(), InitTracker()):
        assert not dataclasses.is_dataclass(transform)
    assert repr(StepCounter(max_steps=3)).startswith("StepCounter(max_steps=3")
