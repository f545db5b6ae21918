"""Samples of offline data: mixed with online data, with goals in hindsight, with a burn-in, and
through a DataLoader.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from episodes import DONE, IDS, steps
from windrow.collectors import Collector, MultiAsyncCollector
from windrow.data import (
    HERSampler,
    LazyTensorStorage,
    ListStorage,
    OfflineToOnlineReplayBuffer,
    ParquetSink,
    PrioritizedSliceSampler,
    ReplayBuffer,
    SliceSampler,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)


def filled(frames: Any, **arguments: Any) -> ReplayBuffer:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(1000), seed=0, **arguments)
    buffer.extend(frames)
    return buffer


# Offline and online


@pytest.mark.parametrize("fraction", [0.0, 0.25, 1.0])
def test_each_sample_has_its_share_of_the_data_set(fraction: float, tmp_path: Path) -> None:
    with ParquetSink(tmp_path) as sink:
        sink.extend(steps([9, 9, 9]).set("only", torch.zeros(27)))
    buffer = OfflineToOnlineReplayBuffer(
        tmp_path, online_capacity=100, offline_fraction=fraction, batch_size=16
    )
    assert buffer.sample()["observation"][:, 0].max() < 3 and buffer.batch_size == 16
    assert len(buffer.extend(steps([20], first=5))) == 20 and len(buffer) == 47
    for _ in range(5):
        sample = buffer.sample()
        assert (sample["observation"][:, 0] < 5).sum() == 16 * fraction and sample.shape == (16,)
    buffer.anneal(1, 1)
    assert buffer.sample(7)["observation"][:, 0].min() == 5
    for step, total in ((-1, 10), (0, 0)):
        with pytest.raises(ValueError, match="must be . or more, got"):
            buffer.anneal(step, total)


@pytest.mark.parametrize("start", [False, True])
def test_a_collector_writes_to_the_online_buffer(start: bool) -> None:
    online = ReplayBuffer(storage=LazyTensorStorage(1000))
    buffer = OfflineToOnlineReplayBuffer(
        {"observation": torch.full((10, 4), 9.0)}, online_buffer=online, batch_size=8
    )
    collector = MultiAsyncCollector(
        ["CartPole-v1"], frames_per_batch=100, total_frames=300, replay_buffer=buffer
    )
    if start:
        collector.start()
        online.sample(1)
        collector.shutdown()
    else:
        assert list(collector) == [None] * 3
    assert len(online) > 0 and set(buffer.sample().keys()) == {"observation"}
    assert (buffer.sample()["observation"] == 9).all(1).tolist() == [True] * 4 + [False] * 4


def test_rows_of_one_buffer_are_not_taken_for_those_of_the_other() -> None:
    parts = [
        TensorDictPrioritizedReplayBuffer(storage=LazyTensorStorage(10), alpha=0.6, beta=0.4)
        for _ in range(2)
    ]
    buffer = OfflineToOnlineReplayBuffer(parts[0], online_buffer=parts[1], batch_size=4)
    for part in parts:
        part.extend(steps([4]))
        assert "index" in part.sample(2).keys()
        sample = buffer.sample()
        assert "observation" in sample.keys() and not {"index", "index_generation"} & set(
            sample.keys()
        )
    with pytest.raises(KeyError, match="index"):
        buffer.update_tensordict_priority(sample.set("td_error", torch.ones(4)))


def test_data_that_does_not_fit_together_is_an_error_that_names_the_entry() -> None:
    buffer = OfflineToOnlineReplayBuffer(
        {"observation": torch.zeros(4, 3)}, online_capacity=10, batch_size=4
    )
    buffer.extend(steps([4]))
    with pytest.raises(
        ValueError,
        match=r"entry 'observation': the data set has torch.float32 \[3\], what was written torch.float32 \[2\]",
    ):
        buffer.sample()
    with pytest.raises(
        TypeError, match="expected one of online_storage, online_capacity, online_buffer, got none"
    ):
        OfflineToOnlineReplayBuffer({"observation": torch.zeros(4, 3)})
    with pytest.raises(ValueError, match="offline_fraction must be from 0 to 1, got 2"):
        OfflineToOnlineReplayBuffer({"a": torch.zeros(1)}, online_capacity=1, offline_fraction=2)


# Goals in hindsight


def goals(lengths: list[int]) -> TensorDict:
    """Episodes whose achieved goal is ``[episode, step]``, and whose desired one is
    ``[-1, -1]``.
    """
    batch = steps(lengths)
    batch["achieved_goal"] = batch["observation"].clone()
    batch["next", "achieved_goal"] = batch["observation"] + torch.tensor([0.0, 1.0])
    batch["desired_goal"] = torch.full_like(batch["observation"], -1)
    batch["next", "desired_goal"] = batch["desired_goal"].clone()
    return batch


def reached(frames: Any) -> torch.Tensor:
    return (frames["next", "achieved_goal"] == frames["desired_goal"]).all(1).float()


@pytest.mark.parametrize("strategy", ["future", "final", "episode", "random"])
@pytest.mark.parametrize("cls", [ReplayBuffer, TensorDictReplayBuffer])
def test_a_share_of_a_sample_has_goals_of_its_own_trajectory(strategy: str, cls: Any) -> None:
    lengths = [4, 7, 5]
    buffer = cls(
        storage=LazyTensorStorage(100),
        sampler=HERSampler(reached, her_ratio=0.75, strategy=strategy),
        batch_size=64,
    )
    buffer.extend(goals(lengths))
    for _ in range(5):
        sample, info = buffer.sample(return_info=True)
        assert sample.shape == (64,) and info["index"].shape == (64,)
        new, old = sample[:48], sample[48:]
        assert (old["desired_goal"] == -1).all() and torch.equal(
            old["next", "reward"], old["observation"][:, 1:]
        )
        assert torch.equal(new["desired_goal"], new["next", "desired_goal"]) and torch.equal(
            new["next", "reward"], reached(new)[:, None]
        )
        (episode, step), (goal_episode, goal_step) = new["observation"].T, new["desired_goal"].T
        if strategy != "random":
            assert torch.equal(episode, goal_episode)
        if strategy == "future":
            assert (goal_step > step).all()
        if strategy == "final":
            assert torch.equal(goal_step, torch.tensor(lengths)[episode.long()].float())
    assert torch.equal(buffer[:]["desired_goal"], goals(lengths)["desired_goal"]), (
        "the buffer was changed"
    )


def test_wrong_goals_are_errors() -> None:
    buffer = filled(goals([4]), sampler=HERSampler(lambda frames: torch.zeros(3)), batch_size=10)
    with pytest.raises(
        ValueError,
        match=r"reward_fn must return a reward for each of 8 frames, \[8, 1\], got \[3\]",
    ):
        buffer.sample()
    for arguments, told in (
        ({"her_ratio": 2}, "her_ratio must be from 0 to 1"),
        ({"strategy": "past"}, 'strategy must be "future", "final"'),
    ):
        with pytest.raises(ValueError, match=told):
            HERSampler(reached, **arguments)
    with pytest.raises(TypeError, match="reward_fn must be a function"):
        HERSampler(None)


# Slices


def test_slices_begin_a_stride_apart() -> None:
    buffer = filled(steps([11, 8]), sampler=SliceSampler(slice_len=4, stride=3), batch_size=400)
    starts = buffer.sample()["observation"].reshape(100, 4, 2)[:, 0]
    assert set(map(tuple, starts.tolist())) == {(0, 0), (0, 3), (0, 6), (1, 0), (1, 3)}


def test_frames_of_a_burn_in_are_marked_and_first_frames_can_be_learned_from() -> None:
    sampler = SliceSampler(slice_len=4, burn_in=2, span=(2, 0), strict_length=False)
    sample = filled(steps([6]), sampler=sampler, batch_size=400).sample()
    warming = sample["collector", "burn_in"]
    assert warming.dtype == torch.bool and set(sample["observation"][~warming][:, 1].tolist()) == {
        0,
        1,
        2,
        3,
        4,
        5,
    }
    whole = filled(
        steps([6]), sampler=SliceSampler(slice_len=4, burn_in=2), batch_size=40
    ).sample()["collector", "burn_in"]
    assert torch.equal(whole.reshape(10, 4), torch.tensor([True, True, False, False]).expand(10, 4))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: SliceSampler(slice_len=4, burn_in=4),
            "burn_in.*fewer frames than the 4 of a slice.*4",
        ),
        (lambda: SliceSampler(slice_len=4, stride=0), "stride must be 1 or more"),
        (
            lambda: PrioritizedSliceSampler(slice_len=4, stride=2),
            "stride.*1: a priority is that of a first frame.*2",
        ),
    ],
)
def test_slices_that_cannot_be_are_errors(make: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        ReplayBuffer(sampler=make())


# DataLoader


@pytest.mark.parametrize("method", [None, "fork", "spawn"])
def test_a_loader_has_each_frame_once_in_an_epoch(method: Any) -> None:
    frames = filled(steps([40, 61])).as_dataset()
    loader = DataLoader(
        frames,
        batch_size=10,
        shuffle=True,
        collate_fn=frames.collate,
        num_workers=2 if method else 0,
        multiprocessing_context=method,
    )
    batches = list(loader)
    assert len(loader) == 11 and [len(batch) for batch in batches] == [10] * 10 + [1]
    found = torch.cat(batches)
    assert sorted(map(tuple, found["observation"].tolist())) == sorted(
        map(tuple, steps([40, 61])["observation"].tolist())
    )
    assert found[DONE].sum() == 2 and found[IDS].shape == (101,)


def test_a_frame_and_batches_of_a_sampler_are_there_too() -> None:
    buffer = filled(steps([10]))
    frames = buffer.as_dataset()
    assert frames[3]["observation"].tolist() == [0, 3] and len(frames) == 10
    assert torch.equal(
        frames.collate([frames[1], frames[2]])["observation"], frames[[1, 2]]["observation"]
    )
    batches = list(
        DataLoader(
            frames,
            sampler=BatchSampler(RandomSampler(frames), 5, False),
            batch_size=None,
            collate_fn=frames.collate,
        )
    )
    assert sorted(torch.cat([batch["observation"] for batch in batches])[:, 1].tolist()) == list(
        range(10)
    )
    buffer.empty()
    assert len(frames) == 10, "the data set is not that of the moment it was made"
    objects = ReplayBuffer(storage=ListStorage(3), collate_fn=lambda items: items)
    objects.extend(["a"])
    with pytest.raises(TypeError, match="expected a buffer of TensorDicts"):
        objects.as_dataset()


def test_collected_frames_are_a_data_set() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(500))
    for _ in Collector("CartPole-v1", frames_per_batch=100, total_frames=200, replay_buffer=buffer):
        pass
    assert len(buffer.as_dataset()) == 200
