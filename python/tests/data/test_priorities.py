"""Priorities come with frames, and samplers are changed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchrl.data
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

import windrow.data
from windrow.collectors import Collector
from windrow.data import (
    LazyTensorStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictMaxValueWriter,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)

LIBRARIES = [torchrl.data, windrow.data]


def frames(priority: torch.Tensor) -> TensorDict:
    count = len(priority)
    return TensorDict({"number": torch.arange(count), "td_error": priority}, [count])


def always() -> torch.Generator:
    """What lets a buffer draw the same each time."""
    return torch.Generator().manual_seed(0)


def shares(buffer: Any, count: int) -> list[float]:
    """How often each frame comes."""
    numbers = buffer.sample(20_000)["number"]
    return [float((numbers == number).float().mean()) for number in range(count)]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_frames_bring_their_priorities(library: Any, shape: tuple[int, ...]) -> None:
    buffer = library.TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, storage=library.LazyTensorStorage(10), generator=always()
    )
    buffer.extend(frames(torch.tensor([0.0, 1.0, 2.0, 5.0]).reshape(shape)))
    assert shares(buffer, 4) == pytest.approx([0, 1 / 8, 2 / 8, 5 / 8], abs=0.02)


def test_frames_without_priorities_have_the_highest() -> None:
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1.0,
        beta=1.0,
        storage=LazyTensorStorage(10),
        priority_key=("a", "b"),
        batch_size=8,
        generator=always(),
    )
    first = TensorDict({"number": torch.arange(2), "a": {"b": torch.tensor([1.0, 3.0])}}, [2])
    buffer.extend(first)
    assert shares(buffer, 2) == pytest.approx([1 / 4, 3 / 4], abs=0.02)
    sampler = PrioritizedSampler(alpha=1.0, beta=1.0)
    plain = ReplayBuffer(sampler=sampler, storage=LazyTensorStorage(10), generator=always())
    plain.extend(frames(torch.tensor([0.0, 5.0])))
    assert shares(plain, 2) == pytest.approx([1 / 2, 1 / 2], abs=0.02)


def test_of_more_frames_than_rows_the_last_bring_theirs() -> None:
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, storage=LazyTensorStorage(2), generator=always()
    )
    buffer.extend(frames(torch.tensor([9.0, 9.0, 1.0, 3.0])))
    assert shares(buffer, 4) == pytest.approx([0, 0, 1 / 4, 3 / 4], abs=0.02)
    writer = TensorDictMaxValueWriter("number")
    best = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, storage=LazyTensorStorage(2), writer=writer, generator=always()
    )
    best.extend(frames(torch.tensor([9.0, 9.0, 1.0, 3.0])))
    assert shares(best, 4) == pytest.approx([0, 0, 1 / 4, 3 / 4], abs=0.02)


def test_priorities_that_make_no_sense_are_not_written() -> None:
    buffer = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, storage=LazyTensorStorage(10))
    with pytest.raises(ValueError, match="td_error.*got -1 for frame 1"):
        buffer.extend(frames(torch.tensor([1.0, -1.0])))
    assert len(buffer) == 0


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        ("max", [4 / 9, 5 / 9]),
        ("min", [1 / 2, 1 / 2]),
        ("mean", [7 / 14, 7 / 14]),
        ("median", [2 / 3, 1 / 3]),
    ],
)
@pytest.mark.parametrize("library", LIBRARIES)
def test_several_priorities_make_one(library: Any, reduction: str, expected: list[float]) -> None:
    sampler = library.PrioritizedSampler(10, alpha=1.0, beta=1.0, reduction=reduction)
    storage = library.LazyTensorStorage(10)
    buffer = library.TensorDictReplayBuffer(storage=storage, sampler=sampler, generator=always())
    buffer.extend(TensorDict({"number": torch.arange(2)}, [2]))
    sample = buffer.sample(64)
    several = torch.tensor([[1.0, 2.0, 4.0], [1.0, 1.0, 5.0]])
    sample["td_error"] = several[sample["number"]]
    buffer.update_tensordict_priority(sample)
    assert shares(buffer, 2) == pytest.approx(expected, abs=0.02)
    if library is windrow.data:
        brought = TensorDictReplayBuffer(
            storage=LazyTensorStorage(10), sampler=sampler, generator=always()
        )
        brought.extend(frames(several))
        assert shares(brought, 2) == pytest.approx(expected, abs=0.02)


def test_reductions_that_there_are_not() -> None:
    for sampler in (PrioritizedSampler, PrioritizedSliceSampler):
        with pytest.raises(ValueError, match='reduction must be "max", "min"'):
            sampler(
                10,
                1.0,
                1.0,
                reduction="most",
                **({"slice_len": 2} if sampler is PrioritizedSliceSampler else {}),
            )


def test_collectors_bring_priorities() -> None:
    def act(observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros_like(observation[..., :1]), observation[..., :1].abs()

    policy = TensorDictModule(act, in_keys=["observation"], out_keys=["action", "td_error"])
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, storage=LazyTensorStorage(100), generator=always()
    )
    for _ in Collector(
        "Pendulum-v1", policy, frames_per_batch=50, total_frames=50, replay_buffer=buffer, seed=0
    ):
        pass
    priority = buffer["td_error"].squeeze(-1)
    index = buffer.sample(50_000)["index"]
    often = torch.bincount(index, minlength=50) / 50_000
    assert torch.allclose(often, priority / priority.sum(), atol=0.01)


def test_without_priorities_nothing_is_taken_over() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4)
    buffer.extend(frames(torch.tensor([-1.0, 2.0])))
    buffer.update_tensordict_priority(buffer.sample())


def test_samplers_are_changed() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4, generator=always())
    buffer.extend(frames(torch.tensor([0.0, 1.0, 1.0, 1.0])))
    before = buffer.sampler
    assert buffer.set_sampler(SamplerWithoutReplacement()) is before
    assert [sorted(batch["number"].tolist()) for batch in buffer] == [[0, 1, 2, 3]]
    buffer.sampler = PrioritizedSampler(alpha=1.0, beta=1.0)
    assert isinstance(buffer.sampler, PrioritizedSampler)
    assert shares(buffer, 4) == pytest.approx([1 / 4] * 4, abs=0.02)
    buffer.extend(frames(torch.tensor([0.0] * 6)))
    assert len(buffer) == 10
    buffer.update_priority([0], 3.0)
    assert buffer.sample(1000)["index"].unique().tolist() == [0, 1, 2, 3]


def test_a_sampler_and_its_buffer_have_one_beta() -> None:
    before, after = (PrioritizedSampler(alpha=1.0, beta=1.0) for _ in range(2))
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(10), sampler=before, batch_size=100, generator=always()
    )
    buffer.extend(frames(torch.tensor([1.0, 4.0])))

    def weights() -> list[float]:
        return sorted(buffer.sample()["priority_weight"].unique().tolist())

    assert weights() == pytest.approx([1 / 4, 1])
    buffer.set_beta(0.5)
    assert before.beta == 0.5 and weights() == pytest.approx([1 / 2, 1])
    buffer.set_sampler(after)
    buffer.update_priority([0, 1], [1.0, 4.0])
    # That is the sampler of no buffer.
    before.beta = 0.0
    assert weights() == pytest.approx([1 / 4, 1])
    # A sampler may take its own place.
    buffer.set_sampler(after)
    buffer.update_priority([0, 1], [1.0, 4.0])
    after.beta = 0.5
    assert weights() == pytest.approx([1 / 2, 1])
    buffer.set_sampler(RandomSampler())
    after.beta = before.beta = 0.1
    with pytest.raises(RuntimeError, match="priorities"):
        buffer.set_beta(0.1)


def test_a_sampler_has_the_beta_that_its_buffer_loads(tmp_path: Path) -> None:
    saved = TensorDictReplayBuffer(
        storage=LazyTensorStorage(10), sampler=PrioritizedSampler(alpha=1.0, beta=0.3)
    )
    saved.extend(frames(torch.tensor([1.0, 4.0])))
    saved.set_beta(0.5)
    saved.dumps(tmp_path / "saved")
    for load in (
        lambda buffer: buffer.load_state_dict(saved.state_dict()),
        lambda buffer: buffer.loads(tmp_path / "saved"),
    ):
        sampler = PrioritizedSampler(alpha=1.0, beta=0.3)
        load(TensorDictReplayBuffer(storage=LazyTensorStorage(10), sampler=sampler))
        assert sampler.beta == 0.5


def test_a_sampler_of_a_closed_buffer_serves_others() -> None:
    sampler = PrioritizedSampler(alpha=1.0, beta=1.0)
    buffer, closed = (
        TensorDictReplayBuffer(storage=LazyTensorStorage(10), sampler=sampler) for _ in range(2)
    )
    closed.close()
    buffer.set_beta(0.5)
    assert sampler.beta == 0.5


def test_a_sampler_of_slices_finds_trajectories_that_are_there() -> None:
    number = torch.arange(40)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(30), batch_size=60, generator=always()
    )
    buffer.extend(TensorDict({"number": number, "episode": number // 7}, [40]))
    buffer.sampler = SliceSampler(slice_len=3, traj_key="episode")
    slices = buffer.sample()["number"].reshape(-1, 3)
    assert torch.equal(slices, slices[:, :1] + torch.arange(3))
    assert torch.equal(slices[:, 0] // 7, slices[:, 2] // 7)
    assert slices.min() >= 10
    buffer.extend(TensorDict({"number": number[:5] + 40, "episode": (number[:5] + 40) // 7}, [5]))
    assert buffer.sample(300)["number"].max() == 44


def test_samplers_that_do_not_fit_are_refused() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4)
    buffer.extend(frames(torch.zeros(4)))
    with pytest.raises(RuntimeError, match="episode"):
        buffer.set_sampler(SliceSampler(slice_len=2, traj_key="episode"))
    with pytest.raises(TypeError, match="expected a sampler of windrow.data, got torchrl"):
        buffer.set_sampler(torchrl.data.PrioritizedSampler(10, 1.0, 1.0))
    with pytest.raises(
        TypeError, match="expected a sampler of windrow.data, got builtins.NoneType"
    ):
        buffer.set_sampler(None)  # type: ignore[arg-type]
    assert isinstance(buffer.sampler, RandomSampler)
    assert buffer.sample().shape == (4,)


def test_only_tensordict_buffers_mark_slices() -> None:
    number = torch.arange(40)
    data = TensorDict(
        {
            "number": number,
            "is_init": torch.zeros(40, 1, dtype=torch.bool),
            "next": {
                "done": (number % 10 == 9)[:, None],
                "truncated": torch.zeros(40, 1, dtype=torch.bool),
            },
        },
        [40],
    )
    for library in LIBRARIES:
        samples = []
        for kind in (library.ReplayBuffer, library.TensorDictReplayBuffer):
            buffer = kind(
                storage=library.LazyTensorStorage(40),
                sampler=library.SliceSampler(slice_len=4),
                batch_size=32,
            )
            buffer.extend(data)
            sample, info = buffer.sample(return_info=True)
            samples.append(sample)
            at = info["index"][0] if isinstance(info["index"], tuple) else info["index"]
            assert torch.equal(sample["number"], at.reshape(-1))
            ends = torch.arange(32) % 4 == 3
            assert torch.equal(info["next", "truncated"].squeeze(-1), ends)
            assert torch.equal(
                info["next", "done"].squeeze(-1), ends | (sample["number"] % 10 == 9)
            )
            assert torch.equal(info["is_init"].squeeze(-1), torch.arange(32) % 4 == 0)
        plain, marked = samples
        for key in [("next", "truncated"), ("next", "done"), "is_init"]:
            assert torch.equal(plain[key], data[key][plain["number"]])
        assert torch.equal(marked["next", "truncated"].squeeze(-1), torch.arange(32) % 4 == 3)
        assert "index" not in plain.keys() and "index" in marked.keys()


def ranked(count: int = 20, **others: Any) -> TensorDictReplayBuffer:
    sampler = PrioritizedSampler(count, alpha=1.0, beta=1.0)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(count),
        sampler=sampler,
        batch_size=count,
        generator=always(),
        **others,
    )
    buffer.extend(TensorDict({"number": torch.arange(count)}, [count]))
    return buffer


def overwrite(buffer: ReplayBuffer, count: int) -> None:
    buffer.extend(TensorDict({"number": torch.arange(count) + 100}, [count]))


@pytest.mark.parametrize("by_rows", [True, False])
def test_an_overwritten_frame_gives_its_priority_to_no_other(by_rows: bool) -> None:
    buffer = ranked()
    sample = buffer.sample()
    overwrite(buffer, 10)
    kept = int((sample["index"] >= 10).sum())
    assert 0 < kept < 20
    if by_rows:
        assert buffer.update_priority(sample["index"], 0.0) == kept
    else:
        assert buffer.update_tensordict_priority(sample.set("td_error", torch.zeros(20))) == kept
    assert set(buffer.sample(1000)["number"].tolist()) >= set(range(100, 110))


def test_samples_in_use_at_once_are_told_apart_by_their_generations() -> None:
    buffer = ranked()
    first = buffer.sample()
    overwrite(buffer, 20)
    second, info = buffer.sample(20, return_info=True)
    assert buffer.update_priority(first["index"], 0.0, first["index_generation"]) == 0
    assert buffer.update_priority(info["index"], 0.0, info["index_generation"]) == 20
    assert torch.equal(second["index_generation"], info["index_generation"])


def test_prefetched_samples_give_priorities_to_their_own_frames() -> None:
    buffer = ranked(prefetch=2, transform=lambda sample: sample)
    buffer.sample(), buffer.sample()
    assert buffer._prefetch is not None
    # The thread has drawn all that was asked for.
    buffer._prefetch._pool.submit(int).result()
    overwrite(buffer, 20)
    early = buffer.sample()
    assert buffer.update_priority(early["index"], 0.0) == 0
    assert buffer.update_tensordict_priority(early.set("td_error", torch.zeros(20))) == 0
    late = next(sample for sample in iter(buffer.sample, None) if sample["number"].min() >= 100)
    assert buffer.update_priority(late["index"], 1.0) == 20


def test_samples_without_priorities_have_no_generations() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4)
    buffer.extend(frames(torch.zeros(4)))
    sample, info = buffer.sample(return_info=True)
    assert "index_generation" not in sample.keys() and "index_generation" not in info
    assert buffer.update_tensordict_priority(sample) == 0


@pytest.mark.parametrize("row", [-1, 20, 1 << 40])
def test_a_row_that_there_is_not_has_no_priority(row: int) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(20), sampler=PrioritizedSampler(20, 0.7, 0.9))
    buffer.extend(TensorDict({"number": torch.arange(15)}, [15]))
    with pytest.raises(IndexError, match=f"expected rows from 0 to 19, got {row}"):
        buffer.update_priority([0, row], [1.0, 2.0])
    # Where there may be a frame again, and was one, nothing is wrong.
    buffer.update_priority([17], [2.0])


@pytest.mark.parametrize(
    ("index", "priority", "message"),
    [
        ([1, 2], None, "priority must be numbers, got None"),
        ([1, 2], ["high", 1.0], "priority must be numbers, got ['high', 1.0]"),
        (None, 1.0, "index must be whole numbers, got None"),
        (torch.tensor([1.5]), 1.0, "index must be whole numbers, got tensor([1.5000])"),
        (
            torch.tensor([True, False]),
            1.0,
            "index must be whole numbers, got tensor([ True, False])",
        ),
    ],
)
def test_what_is_no_row_or_no_priority_is_refused_by_name(
    index: object, priority: object, message: str
) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(20), sampler=PrioritizedSampler(20, 0.7, 0.9))
    buffer.extend(TensorDict({"number": torch.arange(15)}, [15]))
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        buffer.update_priority(index, priority)
    buffer.update_priority([np.int64(1), torch.tensor(2)], torch.tensor(3))
