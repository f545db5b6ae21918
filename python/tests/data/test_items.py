"""Items of buffers that are no TensorDicts of the engine's types, beside TorchRL's buffers."""

from __future__ import annotations

import copy
import gc
import io
import threading
import weakref
from typing import Any

import pytest
import torch
import torchrl.data
from tensordict import NonTensorStack, TensorDict, TensorDictBase
from torch.utils._pytree import tree_leaves

import windrow.data
from windrow.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
    TensorStorage,
)

DENSE = [LazyTensorStorage, LazyMemmapStorage]
ODD = [
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
    torch.uint16,
    torch.float8_e4m3fn,
]


def frames(count: int = 6) -> TensorDict:
    return TensorDict(
        {"number": torch.arange(count), "next": {"reward": torch.arange(count)[:, None].float()}},
        [count],
    )


def in_order(library: Any, storage: Any, **arguments: Any) -> Any:
    """A buffer that draws all items in their order."""
    return library.ReplayBuffer(
        storage=storage(library)(100),
        sampler=library.SamplerWithoutReplacement(shuffle=False),
        batch_size=5,
        **arguments,
    )


def alike(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, torch.Tensor):
        return (
            isinstance(ours, torch.Tensor)
            and ours.dtype == theirs.dtype
            and torch.equal(ours, theirs)
        )
    if isinstance(theirs, TensorDictBase):
        theirs, ours = theirs.to_dict(), ours.to_dict()
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(alike(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, (list, tuple)):
        return (
            type(ours) is type(theirs)
            and len(ours) == len(theirs)
            and all(map(alike, ours, theirs))
        )
    return bool(ours == theirs)


TREES = {
    "a tensor": torch.arange(20.0).reshape(10, 2),
    "a tuple": (torch.arange(10), torch.arange(10)[:, None].double()),
    "a tree": {
        "a": torch.arange(10),
        "b": {"c": (torch.zeros(10, 2), [torch.ones(10, 1)])},
        30: -torch.ones(10),
    },
    "a list of tensors": [torch.full((3,), float(value)) for value in range(10)],
    "half": torch.arange(10).half(),
}


@pytest.mark.parametrize("storage", ["LazyTensorStorage", "LazyMemmapStorage"])
@pytest.mark.parametrize("content", TREES)
def test_trees_of_tensors_come_back_as_torchrl_gives_them(content: str, storage: str) -> None:
    ours, theirs = (
        in_order(library, lambda of: getattr(of, storage))
        for library in (windrow.data, torchrl.data)
    )
    for buffer in (ours, theirs):
        buffer.extend(TREES[content])
    assert alike(ours.sample(), theirs.sample())
    assert (
        alike(ours[3], theirs[3])
        and alike(ours[2:4], theirs[2:4])
        and len(ours.storage) == len(theirs.storage)
    )


@pytest.mark.parametrize("storage", DENSE)
def test_dictionaries_of_a_tree_keep_the_order_of_their_keys(storage: Any) -> None:
    zero, one, two, three, four, five = torch.arange(6.0)[:, None].expand(6, 4)
    tree = {"b": zero, 30: {"z": one, "c": (two, three)}, "a": four, 7: five}
    buffer = ReplayBuffer(storage=storage(10))
    buffer.extend(tree)
    for given in (buffer.sample(4), buffer[:], copy.deepcopy(buffer).sample(4)):
        assert [leaf[0].item() for leaf in tree_leaves(given)] == [0, 1, 2, 3, 4, 5]
    assert list(buffer[2]) == list(buffer.storage[2]) == ["b", 30, "a", 7] and list(
        buffer.sample(2)[30]
    ) == ["z", "c"]


def test_items_are_added_one_by_one() -> None:
    item = {"a": torch.zeros(3), "b": (torch.zeros(2), [torch.ones(1)]), 30: -torch.ones(())}
    samples = []
    for library in (windrow.data, torchrl.data):
        buffer = library.ReplayBuffer(storage=library.LazyTensorStorage(10))
        assert int(buffer.add(item)) == 0
        samples.append(buffer.sample(4))
    assert alike(*samples)


OBJECTS = {
    "strings": (["a", 0, None, "b"] * 3, lambda items: items),
    "a set": (set(range(10)), lambda items: sorted(items)),
    "tensors": ([torch.full((2,), value) for value in range(10)], None),
    "a tensor": (torch.arange(20).reshape(10, 2), None),
    "dictionaries": (
        [{"a": torch.tensor(value), "b": (torch.zeros(2),)} for value in range(10)],
        None,
    ),
}


@pytest.mark.parametrize("content", OBJECTS)
def test_lists_keep_any_objects_as_torchrl_does(content: str) -> None:
    items, collate = OBJECTS[content]
    samples = []
    for library in (windrow.data, torchrl.data):
        buffer = in_order(library, lambda of: of.ListStorage, collate_fn=collate)
        buffer.extend(items)
        sample = buffer.sample()
        samples.append(sample.to_dict() if isinstance(sample, TensorDictBase) else sample)
    assert alike(*samples)


def test_a_range_is_numbers_of_which_the_last_are_kept() -> None:
    buffer = ReplayBuffer()
    buffer.extend(range(2000))
    assert len(buffer) == 1000 and buffer[0] == 1000 and buffer[-1] == 1999
    assert buffer.sample(50).dtype == torch.int64 and bool((buffer.sample(50) >= 1000).all())


class Item:
    """Something that tells when it is gone."""


@pytest.mark.parametrize("sampler", [RandomSampler, SamplerWithoutReplacement, PrioritizedSampler])
def test_objects_live_as_long_as_their_rows(sampler: Any) -> None:
    buffer = ReplayBuffer(
        storage=ListStorage(4), sampler=sampler(), batch_size=2, collate_fn=lambda items: items
    )
    items = [Item() for _ in range(10)]
    alive = [weakref.ref(item) for item in items]
    buffer.extend(items[:3])
    buffer.add(items[3])
    buffer.extend(items[4:])
    assert set(map(id, buffer[:])) == set(map(id, items[6:])) and set(buffer.sample(4)) <= set(
        items[6:]
    )
    buffer[1] = Item()
    del items
    gc.collect()
    assert sum(item() is not None for item in alive) == 3
    buffer.empty()
    gc.collect()
    assert not any(item() for item in alive) and len(buffer) == 0


def test_objects_are_drawn_while_others_are_written() -> None:
    buffer = ReplayBuffer(storage=ListStorage(8), collate_fn=lambda items: items)
    buffer.extend([(value, value) for value in range(8)])
    over = threading.Event()

    def write() -> None:
        for value in range(8, 400):
            buffer.extend([(value, value)] * 3)
        over.set()

    thread = threading.Thread(target=write)
    thread.start()
    while True:
        assert len(buffer.sample(8)) == len(buffer[:]) == 8
        assert all(first == second for first, second in buffer.sample(8))
        if over.is_set():
            break
    thread.join()
    assert {first for first, _ in buffer[:]} == {397, 398, 399}


@pytest.mark.parametrize("storage", [*DENSE, ListStorage])
@pytest.mark.parametrize("dtype", ODD)
def test_entries_of_other_types_come_back_bit_by_bit(dtype: torch.dtype, storage: Any) -> None:
    values = torch.randint(0, 255, (6, 32), dtype=torch.uint8).view(dtype)
    buffer = ReplayBuffer(
        storage=storage(10), sampler=SamplerWithoutReplacement(shuffle=False), batch_size=6
    )
    buffer.extend(frames().set(("next", "odd"), values))
    assert buffer.sample()["next", "odd"].dtype == dtype
    for found in (
        buffer.sample(),
        buffer[:],
        buffer[torch.arange(6).reshape(2, 3)].reshape(-1),
        buffer.storage[:6],
    ):
        assert torch.equal(found["next", "odd"].view(torch.uint8), values.view(torch.uint8))
    assert set(buffer[2].keys(True, True)) == {"number", ("next", "reward"), ("next", "odd")}


@pytest.mark.parametrize("storage", [*DENSE, ListStorage])
def test_entries_that_are_no_tensors_are_kept_as_they_are(storage: Any) -> None:
    buffer = TensorDictReplayBuffer(storage=storage(8), batch_size=4)
    text = (
        frames().set("text", NonTensorStack(*"abcdef")).set_non_tensor(("next", "same"), {"x": 1})
    )
    buffer.extend(text)
    buffer.add(text[0].set_non_tensor("text", "z"))
    assert buffer[:]["text"] == list("abcdefz") and buffer[6]["next", "same"] == {"x": 1}
    sample = buffer.sample()
    assert sample["text"] == ["abcdefz"[row] for row in sample["index"]]
    buffer.extend(text)
    buffer[:2] = text[0].set_non_tensor("text", "y")
    # The second batch fills row 7, and goes on at row 0.
    assert buffer[:]["text"] == list("yydeffza")
    with pytest.raises((ValueError, RuntimeError), match="same|text"):
        buffer.extend(frames())
        buffer[:]


@pytest.mark.parametrize("storage", [*DENSE, ListStorage])
def test_objects_that_are_tensors_stay_objects(storage: Any) -> None:
    buffer = ReplayBuffer(storage=storage(8), batch_size=4)
    items = [torch.ones(2), None, [torch.zeros(1)]] * 2
    buffer.extend(frames().set("object", NonTensorStack(*items)))
    found = buffer[:].get("object").tolist()
    assert isinstance(buffer[:].get("object"), NonTensorStack)
    assert all(
        type(one) is type(other) for one, other in zip(found, items, strict=True)
    ) and torch.equal(found[0], items[0])


def test_entries_that_are_read_as_numbers_have_to_be_of_the_engines_types() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(8), batch_size=4)
    with pytest.raises(
        TypeError,
        match="entry td_error: expected float32, as the sampler or writer reads it, got float16",
    ):
        buffer.extend(frames().set("td_error", torch.zeros(6).half()))


@pytest.mark.parametrize(
    ("storage", "content"),
    [
        (LazyTensorStorage, TREES["a tree"]),
        (LazyTensorStorage, frames(10).set("odd", torch.arange(10).bfloat16())),
        (ListStorage, list(range(10))),
        (ListStorage, frames(10).set("text", NonTensorStack(*"abcdefghij"))),
    ],
    ids=["tree", "bfloat16", "objects", "text"],
)
def test_states_and_copies_keep_what_was_given(storage: Any, content: Any) -> None:
    def make() -> ReplayBuffer:
        return ReplayBuffer(storage=storage(10), batch_size=4, seed=1)

    buffer = make()
    buffer.extend(content)
    file = io.BytesIO()
    torch.save(buffer.state_dict(), file)
    file.seek(0)
    loaded = make()
    loaded.load_state_dict(torch.load(file))
    copied = copy.deepcopy(buffer)
    expected = buffer.sample()
    for other in (loaded, copied):
        assert alike(other.sample(), expected) and alike(other[:], buffer[:])
        other.extend(content)
        assert alike(other[:], buffer[:])


def test_checkpoints_keep_types_and_trees_but_no_objects(tmp_path: Any) -> None:
    for name, content in TREES.items():
        buffer, loaded = (ReplayBuffer(storage=LazyTensorStorage(10)) for _ in range(2))
        buffer.extend(content)
        buffer.dumps(tmp_path / name)
        loaded.loads(tmp_path / name)
        assert alike(loaded[:], buffer[:])
    objects = ReplayBuffer(storage=ListStorage(10))
    objects.extend([1, 2])
    with pytest.raises(RuntimeError, match="objects .* state_dict"):
        objects.dumps(tmp_path / "objects")


@pytest.mark.parametrize("content", ["half", "a tree"])
def test_checkpoints_are_written_and_read_where_row_0_holds_no_frame(
    content: str, tmp_path: Any
) -> None:
    buffer, loaded = (
        ReplayBuffer(storage=LazyTensorStorage(10), consume_after_n_samples=1, seed=2)
        for _ in range(2)
    )
    buffer.extend(TREES[content])
    buffer.sample(5)
    with pytest.raises(IndexError, match="row 0"):
        buffer[0]
    buffer.dumps(tmp_path)
    loaded.loads(tmp_path)
    assert alike(loaded[:], buffer[:]) and len(loaded) == 5


def test_objects_are_in_no_checkpoint_where_row_0_holds_no_frame(tmp_path: Any) -> None:
    buffer = ReplayBuffer(storage=ListStorage(10), consume_after_n_samples=1, seed=2)
    buffer.extend(range(10))
    buffer.sample(5)
    with pytest.raises(IndexError, match="row 0"):
        buffer[0]
    with pytest.raises(RuntimeError, match="objects .* state_dict"):
        buffer.dumps(tmp_path)
    buffer.sample(5)
    buffer.dumps(tmp_path)


def test_objects_may_be_drawn_and_given_up_while_they_are_written() -> None:
    buffer = ReplayBuffer(
        storage=ListStorage(8),
        consume_after_n_samples=1,
        batch_size=2,
        collate_fn=lambda items: items,
    )
    core, drawn = buffer._core, []

    class Drawing:
        """Another thread has drawn a sample when the write returns."""

        get = staticmethod(core.get)

        def extend(self, *arguments: Any) -> Any:
            rows = core.extend(*arguments)
            drawn.extend(buffer._objects.of(core.sample_apart(2)[0]["(object)"].tolist()))
            return rows

    buffer._core = Drawing()  # type: ignore[assignment]
    buffer.extend("abcd"[at] for at in range(4))
    buffer._core = core
    assert sorted(buffer.sample() + drawn) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("name", ["speed (mps)", "width (float)", "number (int64)", "where (here)"])
def test_names_with_a_word_in_parentheses_are_names(name: str, tmp_path: Any) -> None:
    buffer, loaded = (ReplayBuffer(storage=LazyTensorStorage(10)) for _ in range(2))
    buffer.extend(frames().set(name, torch.arange(6.0)).set("half (m)", torch.arange(6).half()))
    buffer.dumps(tmp_path)
    loaded.loads(tmp_path)
    for other in (buffer, loaded):
        assert set(other.sample(3).keys(True, True)) == {
            "number",
            ("next", "reward"),
            name,
            "half (m)",
        }
        assert (
            other[:][name].tolist() == [0, 1, 2, 3, 4, 5]
            and other[:]["half (m)"].dtype == torch.float16
        )


def test_frames_in_a_directory_come_back_in_their_types(tmp_path: Any) -> None:
    buffer = ReplayBuffer(storage=LazyMemmapStorage(10, scratch_dir=tmp_path))
    buffer.extend(TREES["half"])
    del buffer
    gc.collect()
    assert alike(
        ReplayBuffer(storage=LazyMemmapStorage(10, scratch_dir=tmp_path))[:], TREES["half"]
    )
    buffer = ReplayBuffer(storage=LazyMemmapStorage(10, scratch_dir=tmp_path / "other"))
    buffer.extend(frames().set_non_tensor("text", "a"))
    del buffer
    gc.collect()
    assert (
        ReplayBuffer(storage=LazyMemmapStorage(10, scratch_dir=tmp_path / "other"))[:]["text"]
        == ["a"] * 6
    )


def test_a_storage_may_begin_with_items() -> None:
    buffer = ReplayBuffer(storage=TensorStorage(torch.arange(12).reshape(6, 2)))
    assert (
        buffer[:].tolist() == torch.arange(12).reshape(6, 2).tolist()
        and buffer.storage.max_size == 6
    )


def test_transforms_see_items_as_they_were_given() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), transform=lambda pair: pair[0] + pair[1])
    buffer.extend((torch.ones(4), torch.ones(4)))
    assert buffer.sample(3).tolist() == [2, 2, 2]


def test_a_storage_is_indexed_as_its_buffer() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10))
    assert len(buffer.storage) == 0 and buffer._storage is buffer.storage
    buffer.extend(frames())
    assert (
        buffer.storage[:4]["number"].tolist() == [0, 1, 2, 3]
        and buffer.storage.get(2)["number"] == 2
    )
    buffer.storage.set(2, frames()[5])
    assert buffer[2]["number"] == 5 and len(buffer._storage) == 6
    with pytest.raises(RuntimeError, match="expected a storage of one buffer, got one of 0"):
        LazyTensorStorage(10)[0]


def test_a_storage_may_be_given_as_a_class() -> None:
    buffer = ReplayBuffer(storage=ListStorage, batch_size=2)
    buffer.extend(frames())
    assert len(buffer) == 6 and buffer.storage.max_size == 2**32 - 1


def test_samples_without_what_the_sampler_adds() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=2)
    buffer.extend(frames())
    assert (
        "index" in buffer.sample().keys()
        and "index" not in buffer.sample(include_info=False).keys()
    )
    sample, info = buffer.sample(return_info=True)
    assert info["index"].tolist() == sample["index"].tolist()
    objects = TensorDictReplayBuffer(storage=ListStorage(10), batch_size=2)
    objects.extend([1, 2])
    with pytest.raises(RuntimeError, match="samples, which must be TensorDicts"):
        objects.sample()


def test_what_cannot_be_stacked_needs_a_collate_fn() -> None:
    buffer = ReplayBuffer(storage=ListStorage(10))
    buffer.extend(["a", "b"])
    with pytest.raises(
        TypeError, match="cannot stack items, got builtins.str: give the buffer a collate_fn"
    ):
        buffer.sample(2)
    with pytest.raises(
        TypeError, match="expected a list of items, or a tensor of them, got builtins.str"
    ):
        buffer.extend("text")
