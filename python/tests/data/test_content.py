"""What can be written to a buffer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict, tensorclass

from windrow.data import LazyMemmapStorage, LazyTensorStorage, ListStorage, ReplayBuffer

STORAGES = [LazyTensorStorage, LazyMemmapStorage, ListStorage]


@tensorclass
class Frame:
    number: torch.Tensor
    flag: torch.Tensor


def frames() -> TensorDict:
    return TensorDict({"number": torch.arange(6), "flag": torch.zeros(6, 1, dtype=torch.bool)}, [6])


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(
    "content",
    [
        frames(),
        frames().to_dict(),
        Frame(**frames().to_dict(), batch_size=[6]),
        [frames()[at] for at in range(6)],
        tuple(frames()[at].to_dict() for at in range(6)),
        [Frame(**frames().to_dict(), batch_size=[6])[at] for at in range(6)],
        torch.stack([frames()[at] for at in range(6)]),
        TensorDict.lazy_stack([frames()[at] for at in range(6)]),
    ],
    ids=[
        "tensordict",
        "dict",
        "tensorclass",
        "list",
        "dicts",
        "tensorclasses",
        "stack",
        "lazy stack",
    ],
)
def test_frames_come_in_many_ways(storage: Any, content: Any) -> None:
    buffer = ReplayBuffer(storage=storage(20), batch_size=4)
    assert buffer.extend(content).tolist() == list(range(6))
    assert torch.equal(buffer["number"], torch.arange(6)) and buffer["flag"].shape == (6, 1)


@pytest.mark.parametrize(
    "content", [frames()[2], frames()[2].to_dict(), Frame(**frames().to_dict(), batch_size=[6])[2]]
)
def test_a_frame_comes_in_many_ways(content: Any) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    assert buffer.add(content) == 0
    assert buffer[0]["number"] == 2 and buffer[0]["flag"].shape == (1,)


@pytest.mark.parametrize(
    ("content", "got"),
    [
        ([1, 2], "builtins.int"),
        ([], "an empty list"),
        ({"number": torch.zeros(6), "pair": (torch.zeros(6), "text")}, "builtins.str"),
        (None, "builtins.NoneType"),
        (range(3), "builtins.range"),
    ],
)
def test_what_are_no_frames(content: Any, got: str) -> None:
    with pytest.raises(
        TypeError,
        match=f"expected a TensorDict, a tensorclass, a tensor, .*, got {got}: .* in a ListStorage",
    ):
        ReplayBuffer(storage=LazyTensorStorage(20)).extend(content)


def test_an_empty_entry_is_none() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    buffer.extend(frames())
    buffer.extend(frames().set("nested", TensorDict({}, [6])))
    assert set(buffer[:].keys(True, True)) == {"number", "flag"}


@pytest.mark.parametrize("storage", STORAGES)
def test_an_empty_buffer_takes_other_frames(storage: Any) -> None:
    buffer = ReplayBuffer(storage=storage(20), batch_size=4)
    buffer.extend(frames())
    buffer.empty()
    buffer.extend(frames().set("advantage", torch.ones(6, 1)).exclude("flag"))
    assert set(buffer.sample().keys()) == {"number", "advantage"}
    assert len(buffer) == 6
