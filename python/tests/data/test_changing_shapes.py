"""Entries whose shape changes from frame to frame, or whose values are of several kinds, in replay
buffers: however they come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import LazyStackedTensorDict, NonTensorStack, TensorDict

from windrow.collectors import Collector
from windrow.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SliceSampler,
)

STORAGES: list[Callable[[int], Any]] = [LazyTensorStorage, LazyMemmapStorage, ListStorage]
BOX = spaces.Box(-1, 100, (3,), np.float32)


class Piling(gymnasium.Env[Any, Any]):
    """Observes ``rows(count, episode)`` rows, each of which is the count of steps."""

    def __init__(self, rows: Callable[[int, int], int]) -> None:
        self.observation_space = spaces.Dict(
            {
                "count": spaces.Box(0, 100, (1,), np.float32),
                "pile": spaces.Sequence(BOX, stack=True),
            }
        )
        self.action_space = spaces.Discrete(2)
        self.rows, self.episode = rows, 0

    def _seen(self) -> Any:
        return {
            "count": np.array([self.count], np.float32),
            "pile": np.full((self.rows(self.count, self.episode), 3), self.count, np.float32),
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count, self.episode = 0, self.episode + 1
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self._seen(), 1.0, self.count >= 5, False, {}


#: How many rows there are in each step: as many in the first two episodes, later or earlier another
#: number in each step; and in each episode another number.
ROWS: dict[str, Callable[[int, int], int]] = {
    "alike first": lambda count, episode: 2 if episode <= 2 else 1 + count,
    "alike last": lambda count, episode: 1 + count if episode <= 2 else 2,
    "alike in each": lambda count, episode: episode,
}


def batches(rows: str, frames: int = 10, **options: Any) -> Any:
    return Collector(
        lambda: Piling(ROWS[rows]), None, frames_per_batch=5, total_frames=frames, **options
    )


def piled(data: Any, rows: str | None = None) -> int:
    """How many frames there are, after a look at each of them."""
    frames = data.reshape(-1).unbind(0)
    for frame in frames:
        for side in (frame, frame["next"]):
            assert side["pile"].dtype == torch.float32 and bool(
                (side["pile"] == side["count"]).all()
            )
    return len(frames)


def shapes(data: Any) -> list[int]:
    return [len(frame["pile"]) for frame in data.unbind(0)]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("storage", STORAGES)
def test_batches_go_in_whatever_shapes_they_happen_to_have(storage: Any, rows: str) -> None:
    buffer = ReplayBuffer(storage=storage(100), batch_size=16)
    written = []
    for batch in batches(rows, 20):
        buffer.extend(batch)
        written += shapes(batch)
    assert shapes(buffer[:]) == written and len(set(written)) > 1
    assert piled(buffer.sample()) == 16 and piled(buffer[:]) == 20
    single = ReplayBuffer(storage=storage(100), batch_size=16)
    for batch in batches(rows, 20):
        for frame in batch.unbind(0):
            single.add(frame)
    assert shapes(single[:]) == written and piled(single.sample()) == 16


@pytest.mark.parametrize(
    "change", [lambda batch: batch.clone(), lambda batch: batch.clone().reshape(1, 5)]
)
@pytest.mark.parametrize("rows", ["alike first", "alike last"])
@pytest.mark.parametrize("storage", STORAGES)
def test_copies_of_batches_go_in_too(storage: Any, rows: str, change: Any) -> None:
    sampler = SliceSampler(slice_len=3, strict_length=True) if storage is not ListStorage else None
    buffer = ReplayBuffer(storage=storage(100), sampler=sampler, batch_size=15)
    for batch in batches(rows, 20):
        buffer.extend(change(batch))
    assert len(buffer) == 20 and piled(buffer[:]) == 20 and piled(buffer.sample()) == 15


@pytest.mark.parametrize("given_first", [True, False])
@pytest.mark.parametrize("change", [lambda batch: batch, lambda batch: batch.clone()])
@pytest.mark.parametrize("storage", STORAGES)
def test_batches_of_a_user_and_of_a_collector_go_into_one_buffer(
    storage: Any, change: Any, given_first: bool
) -> None:
    buffer = ReplayBuffer(storage=storage(100), batch_size=16)

    def give(rows: str) -> None:
        for _ in batches(rows, replay_buffer=buffer):
            pass

    def write(rows: str) -> None:
        for batch in batches(rows):
            buffer.extend(change(batch))

    if given_first:
        give("alike last")
    write("alike first")
    give("alike last")
    write("alike first")
    assert (
        len(buffer) == 30 + 10 * given_first
        and piled(buffer[:]) == len(buffer)
        and piled(buffer.sample()) == 16
    )
    buffer[2:4] = change(next(batches("alike first")))[:2]
    assert piled(buffer[:]) == len(buffer)
    again = ReplayBuffer(storage=storage(100), batch_size=16)
    again.load_state_dict(buffer.state_dict())
    assert shapes(again[:]) == shapes(buffer[:]) and piled(again.sample()) == 16


def test_numbers_that_become_values_keep_rows_trajectories_and_priorities() -> None:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(8), sampler=SliceSampler(slice_len=2), batch_size=8
    )
    dense = [batch.clone().contiguous() for batch in batches("alike first")]
    for batch in dense:
        buffer.extend(batch)
    assert len(buffer) == 8
    before = buffer[:]["count"].flatten().tolist()
    buffer.extend(next(batches("alike last"))[:1])
    assert (
        buffer[:]["count"].flatten().tolist() == [*before[:2], 0, *before[3:]]
        and piled(buffer[:]) == 8
    )
    for _ in range(10):
        counts = buffer.sample()["count"].reshape(-1, 2)
        assert bool((counts[:, 1] - counts[:, 0] == 1).all())


def test_another_shape_of_an_entry_that_is_no_value_is_an_error() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), batch_size=2)
    buffer.extend(TensorDict({"x": torch.zeros(2, 3)}, [2]))
    with pytest.raises(
        ValueError, match=r'entry "x": expected float32 \[3\] a frame, got float32 \[4\]'
    ):
        buffer.extend(TensorDict({"x": torch.zeros(2, 4)}, [2]))


MIXED = [
    "text",
    None,
    torch.tensor(2.5),
    torch.tensor([2**53 + 1]),
    torch.tensor([0.5]),
    {"k": 1},
    [1, 2],
    (3,),
    torch.zeros(0, 2),
]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
        )
    return bool(type(one) is type(other) and one == other)


@pytest.mark.parametrize("storage", STORAGES)
def test_values_of_several_kinds_come_back_as_they_went_in(storage: Any) -> None:
    class Mixed(Piling):
        def _seen(self) -> Any:
            value = MIXED[self.count]
            return {
                "count": np.array([self.count], np.float32),
                "pile": value.numpy() if isinstance(value, torch.Tensor) else value,
            }

        def step(self, action: Any) -> Any:
            seen, *rest = super().step(action)
            return seen, 1.0, self.count == len(MIXED) - 1, False, {}

    batch = next(Collector(lambda: Mixed(lambda count, episode: 0), None, frames_per_batch=8))
    assert all(
        same(frame["pile"], value) for frame, value in zip(batch.unbind(0), MIXED, strict=False)
    )
    assert all(
        same(frame["next", "pile"], value)
        for frame, value in zip(batch.unbind(0), MIXED[1:], strict=True)
    )
    buffer = ReplayBuffer(storage=storage(20), batch_size=4)
    buffer.extend(batch)
    for _ in Collector(
        lambda: Mixed(lambda count, episode: 0),
        None,
        frames_per_batch=8,
        total_frames=8,
        replay_buffer=buffer,
    ):
        pass
    for frame in buffer[:].unbind(0):
        assert same(frame["pile"], MIXED[int(frame["count"])])
    assert same(buffer[3]["pile"], MIXED[3])


def test_stacks_of_a_user_are_numbers_where_they_can_be() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), batch_size=2)
    buffer.extend(
        LazyStackedTensorDict(*(TensorDict({"x": torch.ones(2), "text": "a"}) for _ in range(3)))
    )
    assert type(buffer[:]) is TensorDict and isinstance(buffer[:].get("text"), NonTensorStack)


def test_arrays_of_any_order_of_bytes_are_read_and_objects_that_cannot_be_unpickled_are_named() -> (
    None
):
    class Swapped(Piling):
        def _seen(self) -> Any:
            return {**super()._seen(), "pile": np.arange(self.count, dtype=">f4")}

    batch = next(Collector(lambda: Swapped(lambda count, episode: 0), None, frames_per_batch=5))
    assert [frame["pile"].tolist() for frame in batch.unbind(0)] == [
        list(range(count)) for count in range(5)
    ]

    class Broken(Piling):
        def _seen(self) -> Any:
            return {**super()._seen(), "pile": Unreadable()}

    with pytest.raises(
        Exception,
        match="'pile'\\)?: expected objects that can be unpickled, got ValueError: cannot be read",
    ):
        next(Collector(lambda: Broken(lambda count, episode: 0), None, frames_per_batch=5))


def raises() -> None:
    raise ValueError("cannot be read")


class Unreadable:
    def __reduce__(self) -> Any:
        return raises, ()
