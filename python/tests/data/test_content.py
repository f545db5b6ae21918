"""What can be written to a buffer."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from environments import cartpole
from tensordict import NonTensorStack, TensorDict, tensorclass

from windrow.collectors import Collector
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
    ids=["tensordict", "dict", "tensorclass", "list", "dicts", "tensorclasses", "stack", "lazy stack"],
)
def test_frames_come_in_many_ways(storage: Any, content: Any) -> None:
    buffer = ReplayBuffer(storage=storage(20), batch_size=4)
    assert buffer.extend(content).tolist() == list(range(6))
    assert torch.equal(buffer["number"], torch.arange(6)) and buffer["flag"].shape == (6, 1)


@pytest.mark.parametrize("content", [frames()[2], frames()[2].to_dict(), Frame(**frames().to_dict(), batch_size=[6])[2]])
def test_a_frame_comes_in_many_ways(content: Any) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    assert buffer.add(content) == 0
    assert buffer[0]["number"] == 2 and buffer[0]["flag"].shape == (1,)


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (torch.zeros(3), "torch.Tensor"),
        ((torch.zeros(3), torch.zeros(3)), "torch.Tensor"),
        ([1, 2], "builtins.int"),
        ([], "builtins.list"),
        (None, "builtins.NoneType"),
    ],
)
def test_what_are_no_frames(content: Any, got: str) -> None:
    with pytest.raises(TypeError, match=f"expected a TensorDict, a tensorclass, a dictionary of tensors, .*, got {got}"):
        ReplayBuffer(storage=LazyTensorStorage(20)).extend(content)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64])
def test_types_that_cannot_be_kept(dtype: torch.dtype) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    wrong = frames().set(("nested", "pixels"), torch.zeros(6, 2).to(dtype))
    with pytest.raises(TypeError, match=f"entry nested.pixels: expected bool, .*, got {str(dtype).removeprefix('torch.')}"):
        buffer.extend(wrong)
    assert len(buffer) == 0


@tensorclass
class Labelled:
    number: torch.Tensor
    label: str


#: Frames with an entry that is no tensor, its name, what it is, and how to leave it out.
STRANGE = {
    "a stack": (frames().set("text", NonTensorStack(*"abcdef")), "text", "str", "'text'"),
    "one for all": (frames().set_non_tensor("text", "hello"), "text", "str", "'text'"),
    "a number": (frames().set_non_tensor("count", 5), "count", "int", "'count'"),
    "nested": (frames().set_non_tensor(("nested", "one"), None), "nested.one", "NoneType", "('nested', 'one')"),
    "a dict": ({**frames().to_dict(), "text": "hello"}, "text", "str", "'text'"),
    "a tensorclass": (Labelled(torch.arange(6), "hello", batch_size=[6]), "label", "str", "'label'"),
}


def inverted(buffer: ReplayBuffer, content: Any) -> None:
    """Writes what a transform makes of frames without fault."""

    class Strange:
        def __call__(self, batch: Any) -> Any:
            return batch

        def inv(self, batch: Any) -> Any:
            return TensorDict(content, [6]) if isinstance(content, dict) else content.to_tensordict()

    buffer.append_transform(Strange())
    buffer.extend(frames())


DOORS = {
    "extend": lambda buffer, content: buffer.extend(content),
    "extend with a list": lambda buffer, content: buffer.extend([content[at] for at in range(6)]),
    "add": lambda buffer, content: buffer.add(content[0]),
    "a row": lambda buffer, content: buffer.__setitem__(slice(None), content),
    "a transform": inverted,
}


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("strange", STRANGE)
def test_an_entry_that_is_no_tensor_is_refused_by_name(strange: str, door: str, storage: Any) -> None:
    content, name, got, way_out = STRANGE[strange]
    if isinstance(content, dict) and door in ("add", "extend with a list"):
        content = TensorDict(content, [6])
    buffer = ReplayBuffer(storage=storage(20))
    buffer.extend(frames())
    before = buffer.write_count
    message = f"entry {name}: expected a tensor, got {got}: give it as numbers, or leave it out with exclude({way_out})"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
        DOORS[door](buffer, content)
    assert buffer.write_count == before


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("write", [ReplayBuffer.add, ReplayBuffer.extend])
def test_several_tensors_under_one_name_are_refused_by_it(write: Any, nested: bool) -> None:
    pair = {"pair": (torch.zeros(6, 2), torch.ones(6, 1))}
    content: dict[str, Any] = {"number": torch.arange(6), **({"nested": pair} if nested else pair)}
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    with pytest.raises(TypeError, match=f"entry {'nested.' if nested else ''}pair: expected a tensor, got tuple"):
        write(buffer, content)
    assert len(buffer) == 0


def test_a_collector_ends_with_an_entry_that_its_buffer_does_not_take() -> None:
    def postproc(batch: Any) -> Any:
        return batch.set_non_tensor("text", "hello")

    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    collector = Collector(cartpole, frames_per_batch=10, replay_buffer=buffer, postproc=postproc)
    with pytest.raises(TypeError, match="entry text: expected a tensor, got str"):
        next(collector)


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
