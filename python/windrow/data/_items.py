"""What the engine does not keep as it is, as frames that it keeps, and back.

Names of entries say what was given, so that they are all that is needed to give it back:
``"a (bfloat16)"`` has the values of ``"a"`` as integers of the same width, ``"(0)"``, ``"[0]"`` and
``"<0>"`` are what a tuple, a list and a dictionary have first or under the key 0, and ``"(item)"``
is an item by itself. ``"(batch 10)"`` has an item that is a batch ``[10]``. ``"(object)"`` numbers
items that are any object: :class:`Objects` keeps them.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from windrow._lazy import tensordict, torch
from windrow._values import parted, placed, unheld
from windrow.data._content import flat, kind_of

T = TypeVar("T")

ITEM, OBJECT = "(item)", "(object)"
_TYPED = re.compile(r"(.+) \((\w+)\)")
_BATCH = re.compile(r"\(batch ([\d, ]+)\)")
_PLACE = re.compile(r"\((\d+)\)|\[(\d+)\]|<(.+)>")
#: The order of the names in dictionaries of a tree, by the names around them.
Orders = dict[tuple[str, ...], tuple[str, ...]]
#: Integers of so many bytes.
_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


class Objects:
    """Items that are any object, by the number that the engine keeps in their place.

    Those of a frame that was overwritten go when no thread is reading: a thread that has drawn the
    frame may still look for them.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._kept: dict[int, Any] = {}
        #: The numbers in the rows of the buffer.
        self._in: dict[int, int] = {}
        self._writing, self._counting = threading.Lock(), threading.Lock()
        self._readers = 0
        self._gone: list[int] = []

    def __getstate__(self) -> dict[str, Any]:
        return {"kept": dict(self._kept), "in": dict(self._in), "next": next(self._numbers)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self._kept, self._in, self._numbers = (
            state["kept"],
            state["in"],
            itertools.count(state["next"]),
        )

    def numbers(self, items: list[Any]) -> list[int]:
        """Keeps the items; returns their numbers."""
        numbers = [next(self._numbers) for _ in items]
        self._kept.update(zip(numbers, items, strict=True))
        return numbers

    def of(self, numbers: list[int]) -> list[Any]:
        """The items with these numbers."""
        return [self._kept[number] for number in numbers]

    def write(
        self, numbers: list[int], write: Callable[[], T], read: Callable[[list[int]], Any]
    ) -> T:
        """The result of ``write``, which writes the frames with these numbers and returns their
        rows, from which ``read`` reads them back. Lets go of the objects of frames that are no
        longer there.
        """
        gone = set(numbers)
        with self._writing:
            try:
                written = write()
                rows = [] if written is None else flat(written)
                try:
                    found = list(
                        zip(rows, read(rows)[OBJECT].tolist() if rows else [], strict=True)
                    )
                except IndexError:
                    found = list(_held(rows, read))
                gone.update(self._in.pop(row) for row in set(rows) & self._in.keys())
                for row, number in found:
                    gone.discard(number)
                    self._in[row] = number
            finally:
                self._let_go(gone)
        return written

    def are_in(self, read: Callable[[list[int]], Any]) -> bool:
        """Whether a row holds one, as ``read`` reads it."""
        return any(_held(list(self._in), read))

    def restore(self, kept: dict[int, Any], rows: dict[int, int]) -> None:
        """Keeps the objects of a saved state, whose numbers are in ``rows``, in the place of
        others.
        """
        with self._writing:
            self._let_go(set(self._in.values()) - kept.keys())
            self._kept.update(kept)
            self._in = rows
            self._numbers = itertools.count(
                max([next(self._numbers), *(number + 1 for number in kept)])
            )

    def clear(self, empty: Callable[[], object]) -> None:
        """Lets go of all objects, while ``empty`` removes the frames."""
        with self._writing:
            empty()
            gone = set(self._in.values())
            self._in.clear()
            self._let_go(gone)

    def __enter__(self) -> None:
        with self._counting:
            self._readers += 1

    def __exit__(self, *_: object) -> None:
        with self._counting:
            self._readers -= 1
        if self._gone:
            self._let_go(set())

    def _let_go(self, numbers: set[int]) -> None:
        with self._counting:
            self._gone.extend(numbers)
            if self._readers == 0:
                for number in self._gone:
                    self._kept.pop(number, None)
                self._gone.clear()


def _held(rows: list[int], read: Callable[[list[int]], Any]) -> Iterator[tuple[int, int]]:
    """Those of the rows that hold an object, each with its number: a sampler that consumes frames
    may give up any of them meanwhile.
    """
    for row in rows:
        with contextlib.suppress(IndexError):
            frames = read([row])
            if OBJECT in frames.keys():
                yield row, int(frames[OBJECT])


def packed(
    frames: tensordict.TensorDictBase, plain: frozenset[tuple[str, ...]]
) -> tensordict.TensorDictBase:
    """``frames`` as the engine keeps them: themselves where it can.

    Args:
        plain: entries that the engine reads, whose types must be its own.

    Raises:
        TypeError: one of them is of another type.
    """
    if any(is_tensor for _, is_tensor in unheld(frames)):
        # Tensors whose shapes differ.
        rest, entries = parted(frames)
        kept = packed(rest, plain)
        return frames if kept is rest else placed(kept, entries)
    odd = [
        (key, value)
        for key, value in _odd(frames, ())
        if key in plain or isinstance(value, torch.Tensor)
    ]
    if not odd:
        return frames
    frames = frames.copy()
    for key, value in odd:
        if key in plain:
            raise TypeError(
                f"entry {'.'.join(key)}: expected float32, as the sampler or writer reads it, got {_type_of(value)}"
            )
        frames = frames.exclude(key)
        name = f"{key[-1]} ({_type_of(value)})"
        frames.set((*key[:-1], name), _as_numbers(value))
    return frames


def packed_items(data: object, objects: Objects) -> tensordict.TensorDictBase:
    """Frames that stand for each of several objects.

    Raises:
        TypeError: ``data`` is not several.
    """
    if not isinstance(data, Iterable) or isinstance(data, (str, bytes, Mapping)):
        raise TypeError(
            f"expected a list of items, or a tensor of them, got {kind_of(data)}: give one item to add"
        )
    items = list(data)
    numbers = torch.tensor(objects.numbers(items), dtype=torch.int64, device="cpu")
    return tensordict.TensorDict({OBJECT: numbers}, [len(items)])


def batches(data: tensordict.TensorDictBase, dims: int) -> tensordict.TensorDictBase:
    """Items that are batches themselves, with so many dimensions of items, as frames.

    Raises:
        TypeError: an entry is no tensor.
    """
    for key, value in _odd(data, ()):
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"entry {'.'.join(key)}: expected a tensor, as the item is a batch {list(data.shape[dims:])}, got an object"
            )
    data = data if type(data) is tensordict.TensorDict else data.contiguous()
    shape = list(data.batch_size)
    inner = tensordict.TensorDict(dict(data.items()), shape[:dims], device=data.device)
    return tensordict.TensorDict(
        {f"(batch {', '.join(map(str, shape[dims:]))})": inner}, shape[:dims]
    )


def unpacked(frames: tensordict.TensorDictBase, objects: Objects, orders: Orders) -> object:
    """What was given, of flat frames that the engine kept: a TensorDict, a list of objects, or a
    tree of tensors.
    """
    if OBJECT in frames.keys():
        return objects.of(frames[OBJECT].tolist())
    is_tree = False
    for key in list(frames.keys(True, True)):
        names = (key,) if isinstance(key, str) else key
        typed = _typed(names[-1])
        given = names if typed is None else (*names[:-1], typed[0])
        is_tree = is_tree or any(name == ITEM or _PLACE.fullmatch(name) for name in given)
        if typed is not None:
            value = frames.get(names)
            frames = frames.exclude(names)
            dtype = typed[1]
            is_pair = dtype.is_complex and value.is_floating_point()
            frames.set(
                given, torch.view_as_complex(value.contiguous()) if is_pair else value.view(dtype)
            )
    batch = next((name for name in frames.keys() if _BATCH.fullmatch(name)), None)
    if batch is not None:
        count, frames = len(frames), frames[batch]
        frames.batch_size = (count, *map(int, batch[len("(batch ") : -1].split(",")))
    return _tree(frames, orders, ()) if is_tree else frames


def as_tree(data: object, dims: int, orders: Orders | None = None) -> tensordict.TensorDictBase:
    """A tree of tensors as a TensorDict, with so many of their dimensions as its batch size. Notes
    the ``orders`` of its dictionaries.

    Raises:
        TypeError: something in it is no tensor.
        ValueError: tensors differ in these dimensions.
    """
    if dims and isinstance(data, list) and data:
        return torch.stack([as_tree(item, dims - 1, orders) for item in data])
    named = _named(data, {} if orders is None else orders, ())
    named = named if isinstance(named, dict) else {ITEM: named}
    leaf: Any = named
    while isinstance(leaf, dict):
        leaf = next(iter(leaf.values()))
    if leaf.ndim < dims:
        raise ValueError(
            "expected items along the first dimension of each tensor, got a tensor without dimensions: give one item to add"
        )
    try:
        return tensordict.TensorDict(named, leaf.shape[:dims])
    except RuntimeError as error:
        raise ValueError(
            f"expected tensors with one first dimension, for items: {error}"
        ) from error


def is_marked(frames: tensordict.TensorDictBase) -> bool:
    """Whether entries of frames that the engine kept have to be unpacked."""
    names = {
        name
        for key in frames.keys(True, True)
        for name in ((key,) if isinstance(key, str) else key)
    }
    return OBJECT in frames.keys() or any(
        name == ITEM or _PLACE.fullmatch(name) or _BATCH.fullmatch(name) or _typed(name)
        for name in names
    )


def _typed(name: str) -> tuple[str, torch.dtype] | None:
    """The name of an entry, and the type that its values had, where the engine keeps integers in
    their place. Users may call an entry ``"speed (mps)"``.
    """
    found = _TYPED.fullmatch(name)
    dtype = getattr(torch, found[2], None) if found else None
    if (
        found is None
        or not isinstance(dtype, torch.dtype)
        or dtype in _kept_types()
        or str(dtype) != f"torch.{found[2]}"
    ):
        return None
    return found[1], dtype


def _named(data: Any, orders: Orders, path: tuple[str, ...]) -> torch.Tensor | dict[str, Any]:
    if isinstance(data, torch.Tensor):
        return data
    if hasattr(data, "__array__"):
        return torch.as_tensor(data, device="cpu")
    if isinstance(data, Mapping) and data:
        names = {name: name if isinstance(name, str) else f"<{name!r}>" for name in data}
        orders[path] = tuple(names.values())
        return {
            names[name]: _named(value, orders, (*path, names[name])) for name, value in data.items()
        }
    if type(data) in (tuple, list) and data:
        around = "({})" if type(data) is tuple else "[{}]"
        places = map(around.format, range(len(data)))
        return {place: _named(value, orders, (*path, place)) for place, value in zip(places, data)}
    got = f"an empty {type(data).__name__}" if data in ({}, (), []) else kind_of(data)
    raise TypeError(
        "expected a TensorDict, a tensorclass, a tensor, a dictionary or tuple of tensors, or a list of frames that are one of these, "
        f"got {got}: any object can be kept in a ListStorage"
    )


def _tree(
    frames: torch.Tensor | tensordict.TensorDictBase, orders: Orders, path: tuple[str, ...]
) -> object:
    """The tree that :func:`_named` was given."""
    if isinstance(frames, torch.Tensor):
        return frames
    if ITEM in frames.keys():
        return frames[ITEM]
    own = set(frames.keys())
    # The engine sorts names; those of a state that was loaded stay as they are.
    order = orders.get(path, ())
    places = {
        name: _PLACE.fullmatch(name) for name in (order if own == set(order) else frames.keys())
    }
    trees = {name: _tree(frames[name], orders, (*path, name)) for name in places}
    found = next(iter(places.values()), None)
    if found is None or found[3]:
        return {
            ast.literal_eval(place[3]) if place else name: trees[name]
            for name, place in places.items()
        }
    kind, around = (tuple, "({})") if found[1] else (list, "[{}]")
    return kind(trees[around.format(place)] for place in range(len(places)))


def map_tree(work: Callable[[Any], Any], tree: Any) -> object:
    """The tree with the results of ``work`` in the places of tensors and TensorDicts; objects stay
    as they are.
    """
    if isinstance(tree, torch.Tensor) or tensordict.is_tensor_collection(tree):
        return work(tree)
    if type(tree) is dict:
        return {name: map_tree(work, value) for name, value in tree.items()}
    return (
        type(tree)(map_tree(work, value) for value in tree) if type(tree) in (tuple, list) else tree
    )


def pinned(tree: Any) -> object:
    """The tree with those tensors in pinned memory that are not on a GPU."""
    return map_tree(
        lambda value: (
            value.apply(_pinned) if tensordict.is_tensor_collection(value) else _pinned(value)
        ),
        tree,
    )


def _pinned(value: torch.Tensor) -> torch.Tensor:
    return value.pin_memory() if value.device.type == "cpu" else value


def stacked(items: list[Any]) -> object:
    """One batch of several items that are alike.

    Raises:
        TypeError: they are neither tensors nor numbers, nor trees of these.
    """
    first = items[0]
    if tensordict.is_tensor_collection(first):
        return tensordict.LazyStackedTensorDict.maybe_dense_stack(items)
    if isinstance(first, torch.Tensor):
        return torch.stack(items)
    if hasattr(first, "__array__") or isinstance(first, (bool, int, float, complex)):
        return torch.stack([torch.as_tensor(item, device="cpu") for item in items])
    if isinstance(first, Mapping):
        return {name: stacked([item[name] for item in items]) for name in first}
    if isinstance(first, (tuple, list)):
        kind: Any = type(first)
        parts = [stacked(list(parts)) for parts in zip(*items, strict=True)]
        return kind(*parts) if hasattr(first, "_fields") else kind(parts)
    raise TypeError(
        f"cannot stack items, got {kind_of(first)}: give the buffer a collate_fn, such as lambda items: items"
    )


def _odd(
    data: tensordict.TensorDictBase, prefix: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The entries that the engine cannot keep as they are."""
    kept = _kept_types()
    for name, value in data.items():
        key = (*prefix, name)
        if isinstance(value, torch.Tensor):
            if value.dtype not in kept:
                yield key, value
        elif tensordict.is_non_tensor(value):
            yield key, value
        else:
            yield from _odd(value, key)


@functools.cache
def _kept_types() -> frozenset[Any]:
    """Types of torch that the engine has."""
    names = ("bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64")
    return frozenset(getattr(torch, name) for name in names)


def _as_numbers(value: torch.Tensor) -> torch.Tensor:
    """Values of a type that the engine has not as numbers of the same bytes."""
    value = value.detach().resolve_conj().resolve_neg()
    integers = _INTEGERS.get(value.element_size())
    return torch.view_as_real(value) if integers is None else value.view(getattr(torch, integers))


def _type_of(value: object) -> str:
    return (
        str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else "no tensor"
    )
