"""Rows of buffers are picked and set as those of TorchRL are."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
import torchrl.data
from tensordict import TensorDict

import windrow.data
from windrow.data import (
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictMaxValueWriter,
)

LIBRARIES = [torchrl.data, windrow.data]


def frames(count: int, start: int = 0) -> TensorDict:
    number = torch.arange(start, start + count)
    return TensorDict({"number": number, "next": {"done": (number % 5 == 4)[:, None]}}, [count])


def buffer_of(library: Any) -> Any:
    buffer = library.ReplayBuffer(storage=library.LazyTensorStorage(20))
    buffer.extend(frames(10))
    return buffer


INDICES = [
    3,
    -1,
    numpy.int64(3),
    torch.tensor(3),
    slice(2, 5),
    slice(-2, None),
    slice(0, 10, 3),
    slice(4, 4),
    range(3),
    [1, -2],
    torch.tensor([3, 0]),
    torch.tensor([-1, 0]),
    torch.tensor([[0, 1], [2, -1]]),
    numpy.array([5, 6]),
    torch.arange(10) % 3 == 0,
    numpy.arange(10) > 7,
    [True] * 2 + [False] * 8,
    (2,),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_rows_are_picked(index: Any) -> None:
    of_torchrl, of_windrow = [buffer_of(library)[index] for library in LIBRARIES]
    assert of_windrow.shape == of_torchrl.shape
    assert torch.equal(of_windrow["number"], of_torchrl["number"])


@pytest.mark.parametrize("key", ["number", ("next", "done")])
def test_entries_are_picked(key: Any) -> None:
    of_torchrl, of_windrow = [buffer_of(library)[key] for library in LIBRARIES]
    assert torch.equal(of_windrow, of_torchrl)


def test_all_rows_are_picked_by_an_ellipsis() -> None:
    assert torch.equal(buffer_of(windrow.data)[...]["number"], torch.arange(10))


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (torch.arange(4) > 2, IndexError, r"a mask of 10 rows, .*, got shape \[4\]"),
        (12, IndexError, "row 12 holds no frame"),
        (-11, IndexError, "row -11 holds no frame"),
        (1.5, TypeError, "expected a row"),
        (None, TypeError, "expected a row"),
        ((0, 1), TypeError, "expected a row"),
    ],
)
def test_rows_that_there_are_not(index: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        buffer_of(windrow.data)[index]


@pytest.mark.parametrize("index", [2, slice(2, 5), torch.tensor([7, 1])], ids=str)
def test_rows_are_set(index: Any) -> None:
    def run(library: Any) -> Any:
        buffer = buffer_of(library)
        there = buffer[index]
        buffer[index] = frames(max(there.numel(), 1), 50).reshape(there.shape)
        return buffer[:]["number"].tolist()

    of_torchrl, of_windrow = [run(library) for library in LIBRARIES]
    assert of_windrow == of_torchrl


def test_rows_are_set_as_they_are_picked() -> None:
    # TorchRL counts these among all rows, full or not, and drops what an entry is set to.
    buffer = buffer_of(windrow.data)
    buffer[-1] = frames(1, 50)[0]
    buffer[torch.arange(10) < 2] = frames(2, 60)
    assert buffer["number"].tolist() == [60, 61, *range(2, 9), 50]
    buffer["number"] = torch.arange(10) * 2
    assert buffer["number"].tolist() == list(range(0, 20, 2))


def test_set_rows_keep_their_places() -> None:
    buffer = ReplayBuffer(storage=ListStorage(4), batch_size=2)
    buffer.extend(frames(6))
    buffer[0:2] = frames(1, 50)[0]
    assert buffer[:]["number"].tolist() == [50, 50, 2, 3]
    buffer.extend(frames(1, 60))
    assert buffer[:]["number"].tolist() == [50, 50, 60, 3]


def test_rows_that_cannot_be_set() -> None:
    buffer = buffer_of(windrow.data)
    with pytest.raises(IndexError, match="row 11 holds no frame"):
        buffer[11] = frames(1)[0]
    with pytest.raises(ValueError, match="number"):
        buffer[1] = frames(1)[0].exclude("number")
    with pytest.raises(
        ValueError,
        match=r"expected frames \[3\], as there are rows, or one for all of them, got \[2\]",
    ):
        buffer[0:3] = frames(2)
    assert torch.equal(buffer["number"], torch.arange(10))

    slices = ReplayBuffer(storage=LazyTensorStorage(20), sampler=SliceSampler(slice_len=2))
    slices.extend(frames(10))
    slices[5:10] = frames(5, 55)
    with pytest.raises(ValueError, match="where trajectories end"):
        slices[5:10] = frames(5, 56)

    best = ReplayBuffer(storage=LazyTensorStorage(20), writer=TensorDictMaxValueWriter("number"))
    best.extend(frames(10))
    with pytest.raises(ValueError, match="keeps frames in order"):
        best[0] = frames(1)[0]


@pytest.mark.parametrize("shape", [(4, 5), (20,)])
def test_every_frame_has_a_row(shape: tuple[int, ...]) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100, ndim=len(shape)), batch_size=8)
    assert buffer.extend(frames(20).reshape(shape)).tolist() == list(range(20))
    assert len(buffer) == 20 and buffer[:].shape == (20,) and buffer.sample().shape == (8,)
