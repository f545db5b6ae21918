"""Samplers whose arguments change, and samplers that use frames up, beside TorchRL's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchrl.data
from tensordict import TensorDict
from torchrl.data.replay_buffers import scheduler as their_schedulers

import windrow.data
from windrow.data import (
    ConsumingSampler,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBuffer,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictMaxValueWriter,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from windrow.data.replay_buffers import scheduler as schedulers


def frames(count: int, first: int = 0) -> TensorDict:
    return TensorDict({"number": torch.arange(first, first + count)}, [count])


SCHEDULES = {
    "linear": lambda of, sampler: of.LinearScheduler(sampler, "beta", final_value=1.0, num_steps=4),
    "steps": lambda of, sampler: of.StepScheduler(
        sampler, "alpha", gamma=0.1, n_steps=2, mode="additive", max_value=0.75
    ),
    "factor": lambda of, sampler: of.StepScheduler(sampler, "alpha", gamma=0.5, min_value=0.2),
    "function": lambda of, sampler: of.LambdaScheduler(sampler, "beta", lambda step: 0.9**step),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedulers_set_what_torchrls_set(schedule: str) -> None:
    values = []
    for library, of in ((windrow.data, schedulers), (torchrl.data, their_schedulers)):
        sampler = library.PrioritizedSampler(10, alpha=0.6, beta=0.5)
        scheduler = of.SchedulerList(SCHEDULES[schedule](of, sampler))
        found = []
        for _ in range(6):
            scheduler.step()
            found += [float(sampler.alpha), float(sampler.beta)]
        values.append(found)
    assert values[0] == pytest.approx(values[1])


def test_buffers_follow_the_arguments_of_their_samplers() -> None:
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, storage=LazyTensorStorage(2), batch_size=200, seed=0
    )
    buffer.extend(frames(2))
    buffer.update_priority([0, 1], [1.0, 9.0])
    assert sorted(set(buffer.sample()["priority_weight"].tolist())) == pytest.approx([1 / 9, 1.0])
    scheduler = schedulers.LinearScheduler(buffer, "beta", final_value=0.0, num_steps=1)
    scheduler.step()
    assert set(buffer.sample()["priority_weight"].tolist()) == {1.0}
    buffer.sampler.alpha = 0.0
    buffer.update_priority([0, 1], [1.0, 9.0])
    assert 60 < int((buffer.sample()["index"] == 0).sum()) < 140
    with pytest.raises(AttributeError, match="eps of PrioritizedSampler cannot be set"):
        buffer.sampler.eps = 1.0
    with pytest.raises(ValueError, match="alpha: expected a finite number of at least 0, got -1"):
        buffer.sampler.alpha = -1.0
    assert buffer.sampler.alpha == 0.0
    state = scheduler.state_dict()
    other = schedulers.LinearScheduler(PrioritizedSampler(), "beta", final_value=0.0, num_steps=1)
    other.load_state_dict(state)
    assert other.state_dict() == state


def test_schedulers_need_an_argument_that_can_be_set() -> None:
    with pytest.raises(ValueError, match="RandomSampler has no argument beta"):
        schedulers.LinearScheduler(RandomSampler(), "beta", 1.0, 4)
    with pytest.raises(
        TypeError, match="expected a sampler or a replay buffer of windrow, got builtins.int"
    ):
        schedulers.LinearScheduler(3, "beta", 1.0, 4)


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
@pytest.mark.parametrize("times", [1, 3])
def test_frames_are_removed_after_so_many_samples(times: int, storage: Any) -> None:
    for library in (windrow.data, torchrl.data):
        buffer = library.ReplayBuffer(
            storage=getattr(library, storage.__name__)(8),
            consume_after_n_samples=times,
            batch_size=4,
        )
        buffer.extend(frames(8))
        drawn = [number for batch in buffer for number in batch["number"].tolist()]
        assert sorted(drawn) == sorted(list(range(8)) * times) and len(buffer) == 0
        buffer.extend(frames(3, 8))
        assert len(buffer) == 3 and sorted(buffer.sample()["number"].tolist()) == [8, 9, 10]


def test_rows_that_were_used_up_are_written_first() -> None:
    buffer = ReplayBuffer(
        storage=ListStorage(4), sampler=ConsumingSampler(), collate_fn=lambda items: items
    )
    buffer.extend("abcd"[at] for at in range(4))
    gone = buffer.sample(2)
    buffer.extend(["e", "f"])
    assert sorted(buffer.sample(9)) == sorted(set("abcdef") - set(gone))
    assert len(buffer) == 0
    buffer.extend(range(6))
    assert sorted(buffer[:]) == [2, 3, 4, 5]


def test_consuming_needs_parts_that_suit_it() -> None:
    for sampler in (SamplerWithoutReplacement(), SliceSampler(slice_len=2), ConsumingSampler(3)):
        with pytest.raises(ValueError, match="consume_after_n_samples=2 needs a RandomSampler"):
            ReplayBuffer(storage=LazyTensorStorage(8), sampler=sampler, consume_after_n_samples=2)
    assert ReplayBuffer(
        storage=LazyTensorStorage(8), sampler=ConsumingSampler(2), consume_after_n_samples=2
    ).sampler
    with pytest.raises(ValueError, match="consume_after_n_samples must be 1 or more, got 0"):
        ReplayBuffer(storage=LazyTensorStorage(8), consume_after_n_samples=0)
    with pytest.raises(ValueError, match="writer"):
        ReplayBuffer(storage=LazyTensorStorage(8)).set_sampler(ConsumingSampler())


def test_a_state_keeps_how_often_frames_were_drawn() -> None:
    buffer, other = (
        ReplayBuffer(storage=LazyTensorStorage(8), consume_after_n_samples=2, batch_size=3)
        for _ in range(2)
    )
    buffer.extend(frames(5))
    first = buffer.sample()["number"].tolist()
    other.load_state_dict(buffer.state_dict())
    left = [number for batch in other for number in batch["number"].tolist()]
    assert sorted(left + first) == sorted(list(range(5)) * 2)


def test_writers_take_compilable() -> None:
    for kind in (RoundRobinWriter, TensorDictMaxValueWriter):
        with pytest.warns(UserWarning, match="compilable has no effect"):
            kind(compilable=True)


@pytest.mark.parametrize(
    "kind", ["ReplayBuffer", "TensorDictReplayBuffer", "TensorDictPrioritizedReplayBuffer"]
)
@pytest.mark.parametrize(
    ("storage", "named"),
    [
        ("LazyTensorStorage", None),
        ("LazyTensorStorage", "cpu"),
        ("LazyMemmapStorage", None),
        ("ListStorage", None),
    ],
)
def test_samples_name_the_device_that_torchrls_do(
    kind: str, storage: str, named: str | None
) -> None:
    """So that `.to("cpu")` costs nothing."""
    devices = []
    for package in (windrow.data, torchrl.data):
        arguments = {"alpha": 0.7, "beta": 0.5} if "Prioritized" in kind else {}
        buffer = getattr(package, kind)(
            storage=getattr(package, storage)(20), batch_size=4, **arguments
        )
        nested = TensorDict({"x": torch.zeros(10, 2)}, [10, 2])
        buffer.extend(
            TensorDict({"number": torch.arange(10), "agents": nested}, [10], device=named)
        )
        read = buffer.sample(), buffer[:], buffer[[1, 2]]
        devices.append([(one.device, one["agents"].device) for one in read])
    assert devices[0] == devices[1]


@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
def test_samples_of_all_buffers_say_what_is_padding_and_burn_in(kind: Any) -> None:
    sampler = SliceSampler(slice_len=4, burn_in=2, strict_length=False, pad_output=True)
    buffer = kind(storage=LazyTensorStorage(20), sampler=sampler, batch_size=40)
    done = torch.arange(6)[:, None] % 3 == 2
    buffer.extend(TensorDict({"number": torch.arange(6), "next": {"done": done}}, [6]))
    sample = buffer.sample()
    assert sample["collector", "mask"].reshape(-1, 4).sum(1).tolist() == [3] * 10
    assert sample["collector", "burn_in"].reshape(-1, 4)[0].tolist() == [True, True, False, False]


def test_samplers_that_replace_make_those_that_do_not() -> None:
    random = RandomSampler(replacement=False, drop_last=True)  # type: ignore[call-arg]
    assert isinstance(random, SamplerWithoutReplacement) and random.drop_last
    slices = SliceSampler(slice_len=2, replacement=False)
    assert type(slices) is SliceSamplerWithoutReplacement and slices.slice_len == 2
    assert type(RandomSampler(replacement=True)) is RandomSampler
    assert type(SliceSampler(slice_len=2)) is SliceSampler


def test_other_samplers_are_not_drawn_without_replacement() -> None:
    for kind in (PrioritizedSliceSampler, ConsumingSampler):
        with pytest.raises(TypeError, match=f"{kind.__name__} draws with replacement alone"):
            kind(replacement=False)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="RandomSampler has no argument drop_last"):
        RandomSampler(drop_last=True)  # type: ignore[call-arg]
