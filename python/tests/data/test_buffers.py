from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from cartpole import cartpole
from windrow.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from windrow.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    MultiStep,
    PrioritizedSliceSampler,
    RateLimiter,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictMaxValueWriter,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    split_trajectories,
)


def frames(count: int, start: int = 0) -> TensorDict:
    """Frames that tell their number, in episodes of ten."""
    number = torch.arange(start, start + count)
    done = (number % 10 == 9)[:, None]
    following = TensorDict({"reward": number[:, None].float(), "done": done}, [count])
    return TensorDict({"number": number, "next": following}, [count])


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage, ListStorage])
def test_frames_are_kept_in_a_ring(storage: Any) -> None:
    buffer = ReplayBuffer(storage=storage(8), batch_size=4)
    assert buffer.extend(frames(6)).tolist() == [0, 1, 2, 3, 4, 5]
    assert buffer.extend(frames(4, 6)).tolist() == [6, 7, 0, 1]
    assert len(buffer) == 8 and buffer.write_count == 10
    assert buffer[:]["number"].tolist() == [8, 9, 2, 3, 4, 5, 6, 7]
    assert buffer[-2:]["number"].tolist() == [6, 7]
    assert buffer[1]["number"] == 9 and buffer[1].shape == ()
    assert buffer[torch.tensor([3, 0])]["next", "reward"].tolist() == [[3.0], [8.0]]
    buffer.empty()
    assert len(buffer) == 0


def test_what_is_kept_is_a_copy() -> None:
    buffer, batch = ReplayBuffer(storage=LazyTensorStorage(8)), frames(4)
    buffer.extend(batch)
    batch["number"].zero_()
    sample = buffer[:]
    sample["number"].zero_()
    assert buffer[:]["number"].tolist() == [0, 1, 2, 3]


def test_samples() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), seed=1)
    buffer.extend(frames(100))
    sample, info = buffer.sample(32, return_info=True)
    assert sample.shape == (32,) and set(sample.keys()) == {"number", "next"}
    assert torch.equal(info["index"], sample["number"])
    assert torch.equal(sample["next", "reward"].squeeze(-1), sample["number"].float())
    again = ReplayBuffer(storage=LazyTensorStorage(100), seed=1)
    again.extend(frames(100))
    assert torch.equal(again.sample(32)["number"], sample["number"])
    with pytest.raises(RuntimeError, match="expected a batch size"):
        buffer.sample()


def test_every_frame_once() -> None:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(100), sampler=SamplerWithoutReplacement(), batch_size=25
    )
    buffer.extend(frames(100))
    seen = torch.cat([buffer.sample()["number"] for _ in range(4)])
    assert sorted(seen.tolist()) == list(range(100))


def test_slices_stay_within_episodes() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100), sampler=SliceSampler(slice_len=4), batch_size=32
    )
    buffer.extend(frames(100))
    sample = buffer.sample()
    assert torch.equal(sample["index"], sample["number"])
    number = sample["number"].reshape(8, 4)
    assert torch.equal(number[:, 1:], number[:, :-1] + 1)
    assert torch.equal(number[:, 0] // 10, number[:, -1] // 10)
    assert sample["next", "truncated"].reshape(8, 4)[:, -1].all()
    with pytest.raises(RuntimeError, match="batch size 30 is not a multiple of slice_len=4"):
        buffer.sample(30)


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (TypeError, {}),
        (TypeError, {"num_slices": 2, "slice_len": 2}),
        (RuntimeError, {"slice_len": 2, "end_key": "done", "end_keys": ["done"]}),
        (ValueError, {"slice_len": 2, "pad_output": True}),
    ],
)
def test_slices_that_make_no_sense(error: type[Exception], arguments: dict[str, Any]) -> None:
    with pytest.raises(error):
        SliceSampler(**arguments)


def test_priorities() -> None:
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1.0,
        beta=1.0,
        storage=LazyTensorStorage(10),
        batch_size=64,
        priority_key="error",
        seed=0,
    )
    buffer.extend(frames(10))
    buffer.update_priority(torch.arange(10), 0.0)
    sample = buffer.sample()
    sample["error"] = (sample["number"] == 3).float()[:, None]
    buffer.update_tensordict_priority(sample)
    again = buffer.sample()
    assert set(again["number"].tolist()) == {3}
    assert again["priority_weight"].shape == (64,)
    with pytest.raises(RuntimeError, match="prioritized sampler"):
        ReplayBuffer(storage=LazyTensorStorage(10)).update_priority([0], 1.0)


def test_slices_by_priority() -> None:
    sampler = PrioritizedSliceSampler(100, alpha=1.0, beta=1.0, slice_len=5)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100), sampler=sampler, batch_size=20, seed=0
    )
    buffer.extend(frames(100))
    buffer.update_priority(
        list(range(100)), [1.0 if number == 42 else 0.0 for number in range(100)]
    )
    assert buffer.sample()["number"].reshape(4, 5).tolist() == [[42, 43, 44, 45, 46]] * 4


def test_the_best_frames_are_kept() -> None:
    buffer = ReplayBuffer(storage=ListStorage(3), writer=TensorDictMaxValueWriter())
    buffer.extend(frames(50))
    buffer.extend(frames(10))
    assert sorted(buffer[:]["number"].tolist()) == [47, 48, 49]


def test_transforms_go_both_ways() -> None:
    class Scale:
        def __call__(self, batch: Any) -> Any:
            return batch.set("number", batch["number"] * 10)

        def inv(self, batch: Any) -> Any:
            return batch.clone().set("number", batch["number"] + 1)

    buffer = ReplayBuffer(storage=LazyTensorStorage(10), batch_size=2, transform=Scale())
    buffer.extend(frames(1))
    assert buffer[:]["number"].tolist() == [1]
    assert buffer.sample()["number"].tolist() == [10, 10]


def test_errors_tell_what_was_expected() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), batch_size=4)
    with pytest.raises(
        RuntimeError, match="cannot draw 4 frames: the buffer is empty; .*no writer is attached"
    ):
        buffer.sample()
    with pytest.raises(TypeError, match="expected a TensorDict, .*, got builtins.str"):
        buffer.extend("text")
    buffer.extend(frames(2))
    with pytest.raises(ValueError, match="number"):
        buffer.extend(frames(2).exclude("number"))
    with pytest.raises(IndexError, match="row 7 holds no frame"):
        buffer[7]
    with pytest.raises(TypeError, match="expected a storage of windrow.data, got builtins.int"):
        ReplayBuffer(storage=10)
    with pytest.raises(ValueError, match="max_size must be 1 or more, got 0"):
        ReplayBuffer(storage=LazyTensorStorage(0))


def test_a_state_goes_on(tmp_path: Path) -> None:
    def build() -> ReplayBuffer:
        return ReplayBuffer(storage=LazyTensorStorage(20), batch_size=5, seed=0)

    buffer = build()
    buffer.extend(frames(12))
    for way in ("state", "checkpoint"):
        other = build()
        if way == "state":
            other.load_state_dict(buffer.state_dict())
        else:
            buffer.dumps(tmp_path / "checkpoint")
            other.loads(tmp_path / "checkpoint")
        assert other[:]["number"].tolist() == list(range(12))
        other.extend(frames(1, 12))
        assert other[-1]["number"] == 12


def test_a_file_is_gone_on_with(tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=LazyMemmapStorage(20, scratch_dir=tmp_path))
    buffer.extend(frames(12))
    del buffer
    assert ReplayBuffer(storage=LazyMemmapStorage(20, scratch_dir=tmp_path))[:][
        "number"
    ].tolist() == list(range(12))


def test_threads_share_a_buffer() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=16)
    buffer.extend(frames(10))
    wrong: list[Any] = []

    def sample() -> None:
        for _ in range(200):
            sampled = buffer.sample()
            if not torch.equal(sampled["number"].float(), sampled["next", "reward"].squeeze(-1)):
                wrong.append(sampled)

    threads = [threading.Thread(target=sample) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        buffer.extend(frames(30))
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("by_way_of_python", [False, True])
def test_collectors_fill_buffers(by_way_of_python: bool) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=16)
    postproc = (lambda batch: batch) if by_way_of_python else None
    collector = MultiSyncCollector(
        [cartpole] * 2,
        placement="threads",
        frames_per_batch=100,
        total_frames=300,
        seed=3,
        replay_buffer=buffer,
        postproc=postproc,
    )
    assert list(collector) == [None, None, None]
    batches = list(
        MultiSyncCollector(
            [cartpole] * 2, placement="threads", frames_per_batch=100, total_frames=300, seed=3
        )
    )
    assert torch.equal(
        buffer[:]["observation"], torch.cat([batch["observation"] for batch in batches])
    )
    assert buffer.sample()["next", "reward"].shape == (16, 1)


def test_whole_trajectories_fill_buffers() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(2000))
    collector = Collector(
        cartpole,
        frames_per_batch=50,
        total_frames=1000,
        trajs_per_batch=2,
        trajs_per_write=1,
        replay_buffer=buffer,
        seed=0,
    )
    assert set(collector) == {None}
    kept = buffer[:]
    assert 800 < len(kept) <= 1000
    ends = kept["next", "done"].squeeze(-1)
    assert ends[-1] and len(kept["collector", "traj_ids"].unique()) == ends.sum()


def test_samples_wait_for_a_collector_that_was_started() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=300)
    collector = MultiAsyncCollector(
        [cartpole] * 2,
        placement="threads",
        frames_per_batch=50,
        total_frames=500,
        replay_buffer=buffer,
    )
    collector.start()
    assert buffer.sample().shape == (300,)
    collector.async_shutdown()
    assert buffer.stats()["writers"] == 0


def test_samples_wait_no_longer_than_they_are_told() -> None:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(1000),
        batch_size=300,
        sample_timeout=0.3,
        sampler=SliceSampler(slice_len=300),
    )
    collector = Collector(
        cartpole, frames_per_batch=50, max_frames_per_traj=10, replay_buffer=buffer
    )
    collector.start()
    with pytest.raises(
        RuntimeError, match=r"cannot draw 300 frames: .*; waited \d+\.\d s for . writer"
    ):
        buffer.sample()
    collector.async_shutdown()


def test_a_failed_collector_is_told_to_who_samples() -> None:
    def fail(_: Any) -> Any:
        raise OSError("disk full")

    buffer = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=16)
    collector = Collector(cartpole, frames_per_batch=50, replay_buffer=buffer, postproc=fail)
    collector.start()
    with pytest.raises(OSError, match="disk full"):
        buffer.sample()
    collector.async_shutdown()


def test_multi_step() -> None:
    def rewards(discount: float, steps: int) -> list[float]:
        batch = MultiStep(discount, steps)(frames(12))
        assert batch["next", "original_reward"].squeeze(-1).tolist() == list(range(12))
        return batch["next", "reward"].squeeze(-1).tolist()

    assert rewards(1.0, 2) == [1, 3, 5, 7, 9, 11, 13, 15, 17, 9, 21, 11]
    assert rewards(0.5, 3)[0] == 0 + 0.5 * 1 + 0.25 * 2
    batches = Collector(
        cartpole, frames_per_batch=20, total_frames=20, postproc=MultiStep(0.9, 3), seed=0
    )
    assert next(batches)["steps_to_next_obs"].max() == 3
    for gamma, steps in [(0.0, 1), (1.5, 1), (0.9, 0)]:
        with pytest.raises(ValueError, match="must be"):
            MultiStep(gamma, steps)


def test_split_trajectories() -> None:
    split = split_trajectories(frames(25))
    assert split.shape == (3, 10)
    assert split["mask"].sum(-1).tolist() == [10, 10, 5]
    assert split["traj_ids"][:, 0].tolist() == [0, 1, 2]
    assert (split["traj_ids"][~split["mask"]] == -1).all()
    assert split["number"][2].tolist() == [20, 21, 22, 23, 24, 0, 0, 0, 0, 0]


def test_the_end_of_a_buffer_wakes_who_waits_for_it() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), batch_size=4, sample_timeout=600)
    limited = ReplayBuffer(
        storage=LazyTensorStorage(10),
        sample_timeout=600,
        limiter=RateLimiter.sample_to_insert_ratio(1.0, 1, 2.0),
    )
    # A collector that is attached, and writes nothing.
    buffer._core.attach()
    limited.extend(frames(2))
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(buffer.sample), pool.submit(limited.extend, frames(2))]
        assert not any(one.done() for one in waiting)
        for one in buffer, limited:
            one.close()
        for one in waiting:
            with pytest.raises(RuntimeError, match="the replay buffer was closed"):
                one.result(60)


def test_a_with_statement_closes_a_buffer(tmp_path) -> None:
    frames = TensorDict({"x": torch.arange(10)}, [10])
    for storage in (LazyTensorStorage(10), LazyMemmapStorage(10, scratch_dir=tmp_path / "rows")):
        with ReplayBuffer(storage=storage, batch_size=4) as buffer:
            buffer.extend(frames)
            sample = buffer.sample()
        for ask in (
            buffer.sample,
            lambda: buffer.extend(frames),
            lambda: len(buffer),
            buffer.state_dict,
        ):
            with pytest.raises(RuntimeError, match="the replay buffer was closed"):
                ask()
        assert "closed" in repr(buffer) and len(sample) == 4
    assert any((tmp_path / "rows").iterdir())
