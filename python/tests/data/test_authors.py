"""Trajectories of several collectors in one buffer, and collectors that leave their learner
behind.
"""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from windrow.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from windrow.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    PrioritizedSliceSampler,
    RateLimiter,
    ReplayBuffer,
    SliceSampler,
)

LEN = 20


def same(batch: Any) -> Any:
    return batch


def collector(buffer: ReplayBuffer, seed: int, **arguments: Any) -> Collector:
    return Collector(
        "Pendulum-v1",
        frames_per_batch=50,
        total_frames=100,
        replay_buffer=buffer,
        seed=seed,
        **arguments,
    )


#: By way of the engine, and by way of Python.
WAYS = [pytest.param({}, id="engine"), pytest.param({"postproc": same}, id="python")]
SAMPLERS = [
    pytest.param(lambda: SliceSampler(slice_len=LEN), id="slices"),
    pytest.param(
        lambda: PrioritizedSliceSampler(1000, alpha=0.6, beta=0.4, slice_len=LEN), id="prioritized"
    ),
]


def buffer_of(sampler: Callable[[], Any], storage: Any = None) -> ReplayBuffer:
    storage = LazyTensorStorage(1000) if storage is None else storage
    return ReplayBuffer(storage=storage, sampler=sampler(), batch_size=4 * LEN, seed=0)


def check_slices(buffer: ReplayBuffer) -> None:
    """Every frame of a slice but its last leads to the next."""
    for _ in range(40):
        sample = buffer.sample().reshape(-1, LEN)
        assert torch.equal(sample["next", "observation"][:, :-1], sample["observation"][:, 1:])


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("way", WAYS)
def test_trajectories_of_collectors_with_the_same_ids_are_told_apart(
    way: dict[str, Any], sampler: Callable[[], Any]
) -> None:
    buffer = buffer_of(sampler)
    for seed in (0, 1000):
        for _ in collector(buffer, seed, **way):
            pass
    assert buffer.stats()["trajectories"] == 2
    check_slices(buffer)
    # In turn, as iterating over both does.
    for _ in zip(collector(buffer, 7, **way), collector(buffer, 8, **way), strict=True):
        pass
    assert buffer.stats()["trajectories"] == 6
    check_slices(buffer)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [MultiSyncCollector, MultiAsyncCollector])
def test_trajectories_of_collectors_that_write_at_once_are_told_apart(
    kind: Any, way: dict[str, Any]
) -> None:
    buffer = buffer_of(SAMPLERS[0].values[0])
    collectors = [
        kind(
            ["Pendulum-v1"] * 2,
            frames_per_batch=60,
            total_frames=300,
            replay_buffer=buffer,
            seed=seed,
            **way,
        )
        for seed in (0, 1000)
    ]
    for each in collectors:
        each.start()
    while any(each.is_running() for each in collectors):
        time.sleep(0.001)
    for each in collectors:
        each.shutdown()
    check_slices(buffer)


@pytest.mark.parametrize("way", WAYS)
def test_a_collector_that_went_back_does_not_go_on_in_what_it_wrote_since(
    way: dict[str, Any],
) -> None:
    buffer = buffer_of(SAMPLERS[0].values[0])
    one = collector(buffer, 0, max_frames_per_traj=80, **way)
    before = one.state_dict()
    # The id that the state leads to is that of the trajectory under way.
    next(one), next(one)
    one.load_state_dict(before)
    next(one), next(one)
    check_slices(buffer)


def test_a_collector_does_not_go_on_in_what_was_loaded(tmp_path: Path) -> None:
    buffer = buffer_of(SAMPLERS[0].values[0])
    for _ in collector(buffer, 0):
        pass
    buffer.dumps(tmp_path)
    other = buffer_of(SAMPLERS[0].values[0])
    other.loads(tmp_path)
    for _ in collector(other, 1000):
        pass
    assert other.stats()["trajectories"] == 2
    check_slices(other)


def test_a_collector_does_not_go_on_in_a_file_that_another_left(tmp_path: Path) -> None:
    for seed in (0, 1000):
        buffer = buffer_of(SAMPLERS[0].values[0], LazyMemmapStorage(1000, scratch_dir=tmp_path))
        for _ in collector(buffer, seed):
            pass
        check_slices(buffer)
        trajectories = buffer.stats()["trajectories"]
        del buffer
    assert trajectories == 2


def test_a_scratch_directory_that_is_gone_by_the_first_write_is_made_again(tmp_path: Path) -> None:
    directory = tmp_path / "scratch"
    buffer = ReplayBuffer(storage=LazyMemmapStorage(100, scratch_dir=directory), batch_size=4)
    shutil.rmtree(directory)
    buffer.extend(TensorDict({"a": torch.arange(10)}, [10]))
    assert buffer.sample().shape == (4,)


def run_ahead(buffer: ReplayBuffer, way: dict[str, Any], total_frames: int) -> list[str]:
    """What a collector warns of that fills the buffer while nobody samples."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        one = Collector(
            "Pendulum-v1",
            frames_per_batch=20,
            total_frames=total_frames,
            replay_buffer=buffer,
            **way,
        )
        one.start()
        while one.is_running():
            time.sleep(0.001)
        one.shutdown()
    return [
        str(warning.message)
        for warning in caught
        if "since the last sample" in str(warning.message)
    ]


@pytest.mark.parametrize("way", WAYS)
def test_a_started_collector_that_overwrites_all_that_nobody_sampled_warns_once(
    way: dict[str, Any],
) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(40), batch_size=4)
    told = run_ahead(buffer, way, 400)
    assert len(told) == 1 and "the 40 frames of the replay buffer" in told[0]


def test_a_started_collector_that_overwrites_less_does_not_warn() -> None:
    assert run_ahead(ReplayBuffer(storage=LazyTensorStorage(40), batch_size=4), {}, 60) == []


def test_a_limiter_that_waits_for_more_than_there_is_room_for_is_refused() -> None:
    for limiter in (
        RateLimiter.min_size(1000),
        RateLimiter.sample_to_insert_ratio(1.0, 1000, 10.0),
    ):
        with pytest.raises(
            ValueError, match="expected at most 10 frames, which the buffer has room for, got 1000"
        ):
            ReplayBuffer(storage=LazyTensorStorage(10), limiter=limiter)
