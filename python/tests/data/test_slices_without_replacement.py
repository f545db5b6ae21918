"""A slice of every trajectory before any has another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from cartpole import cartpole
from windrow.collectors import Collector
from windrow.data import LazyTensorStorage, SliceSamplerWithoutReplacement, TensorDictReplayBuffer


def trajectories(lengths: list[int], first: int = 0) -> TensorDict:
    """Frames of trajectories of these lengths, with the number of the trajectory and the step."""
    traj = torch.cat(
        [torch.full((length,), first + number) for number, length in enumerate(lengths)]
    )
    step = torch.cat([torch.arange(length) for length in lengths])
    done = torch.cat([torch.arange(length) == length - 1 for length in lengths])[:, None]
    return TensorDict({"traj": traj, "step": step, "next": {"done": done}}, [sum(lengths)])


def buffer_of(batch_size: int | None = None, **arguments: Any) -> TensorDictReplayBuffer:
    sampler = SliceSamplerWithoutReplacement(traj_key="traj", **arguments)
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(1000), sampler=sampler, batch_size=batch_size, seed=0
    )


def drawn(sample: Any, slice_len: int) -> list[int]:
    """The trajectories of the slices, each of which must be a piece of one."""
    traj, step = sample["traj"].reshape(-1, slice_len), sample["step"].reshape(-1, slice_len)
    assert (traj == traj[:, :1]).all()
    assert torch.equal(step, step[:, :1] + torch.arange(slice_len))
    return traj[:, 0].tolist()


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("by", [{"slice_len": 4}, {"num_slices": 3}])
def test_every_trajectory_has_its_turn_once_in_a_pass(shuffle: bool, by: dict[str, int]) -> None:
    buffer = buffer_of(12, shuffle=shuffle, **by)
    buffer.extend(trajectories([9, 4, 7, 3, 5, 4, 12, 8, 2, 6]))
    passes = [[drawn(buffer.sample(), 4) for _ in range(3)] for _ in range(2)]
    # Eight trajectories have four frames: two batches of three, and one of two.
    for batches in passes:
        assert [len(batch) for batch in batches] == [3, 3, 2]
        assert sorted(sum(batches, [])) == [0, 1, 2, 4, 5, 6, 7, 9]
    in_order = [[[0, 1, 2], [4, 5, 6], [7, 9]]] * 2
    assert (passes == in_order) is not shuffle


def test_drop_last_leaves_out_what_does_not_fill_a_batch() -> None:
    buffer = buffer_of(12, slice_len=4, shuffle=False, drop_last=True)
    buffer.extend(trajectories([4] * 8))
    assert [drawn(buffer.sample(), 4) for _ in range(3)] == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]
    with pytest.raises(
        RuntimeError,
        match="with drop_last that takes 9 trajectories of at least 4 frames, there are 8",
    ):
        buffer.sample(36)
    # What could not be drawn has changed nothing.
    assert drawn(buffer.sample(), 4) == [3, 4, 5]


def test_short_trajectories_take_part_where_length_is_not_strict() -> None:
    buffer = buffer_of(16, slice_len=4, strict_length=False, shuffle=False)
    buffer.extend(trajectories([2, 4, 1]))
    sample = buffer.sample()
    assert sample["traj"].tolist() == [0, 0, 1, 1, 1, 1, 2]
    assert sample["next", "truncated"].flatten().nonzero().flatten().tolist() == [1, 5, 6]
    strict = buffer_of(16, slice_len=4)
    strict.extend(trajectories([2, 3, 1]))
    with pytest.raises(
        RuntimeError, match="no trajectory has the 4 frames of a slice, the longest has 3"
    ):
        strict.sample()


def test_short_slices_can_be_filled_up() -> None:
    buffer = buffer_of(8, slice_len=4, strict_length=False, pad_output=True, shuffle=False)
    buffer.extend(trajectories([3, 6]))
    sample = buffer.sample()
    assert sample["traj"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert sample["collector", "mask"].tolist() == [True, True, True, False, True, True, True, True]


def test_a_pass_takes_in_what_is_written_meanwhile() -> None:
    buffer = buffer_of(8, slice_len=4, shuffle=False)
    buffer.extend(trajectories([4, 4, 4]))
    assert drawn(buffer.sample(), 4) == [0, 1]
    buffer.extend(trajectories([4, 4], first=3))
    assert [drawn(buffer.sample(), 4) for _ in range(3)] == [[2, 3], [4], [0, 1]]


def test_a_state_goes_on_with_the_pass() -> None:
    buffer, other = buffer_of(8, slice_len=4), buffer_of(8, slice_len=4)
    buffer.extend(trajectories([5] * 6))
    first = drawn(buffer.sample(), 4)
    other.load_state_dict(buffer.state_dict())
    rest = [drawn(other.sample(), 4) for _ in range(2)]
    assert rest == [drawn(buffer.sample(), 4) for _ in range(2)]
    assert sorted(first + sum(rest, [])) == [0, 1, 2, 3, 4, 5]


def test_trajectories_of_a_collector() -> None:
    sampler = SliceSamplerWithoutReplacement(slice_len=5)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(1000), sampler=sampler, batch_size=50, seed=0
    )
    for _ in Collector(
        cartpole, frames_per_batch=100, total_frames=600, replay_buffer=buffer, seed=0
    ):
        pass
    count = len(buffer[:]["collector", "traj_ids"].unique())
    seen: list[int] = []
    while len(seen) < count:
        ids = buffer.sample()["collector", "traj_ids"].reshape(-1, 5)[:, 0].tolist()
        assert len(set(ids)) == len(ids)
        if set(ids) & set(seen):
            break
        seen += ids
    assert len(seen) == len(set(seen)) >= count - 5


def test_arguments_are_those_of_a_slice_sampler() -> None:
    with pytest.raises(TypeError, match="either num_slices or slice_len"):
        SliceSamplerWithoutReplacement()
    with pytest.raises(ValueError, match="strict_length"):
        SliceSamplerWithoutReplacement(slice_len=2, pad_output=True)
