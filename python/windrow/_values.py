"""Values that no array holds, as bytes: what is no tensor, and tensors whose shape changes.

The engine keeps them in columns of bytes, and does not read them. The first byte of a value says what follows, so that a batch, a
buffer or a file needs no more to give it back; nothing is None.

Actions of agents that differ from each other are columns of their own, in an entry :data:`MEMBERS`. Batches have them in their group.
"""

from __future__ import annotations

import collections
import pickle
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from windrow._lazy import gymnasium, numpy, tensordict, torch
from windrow.envs._specs import Key, path, short
from windrow.processes.pickling import dumps

#: The entry with actions of single members of a group: their names are those of the action and the member's number.
MEMBERS = "(members)"

_TEXT, _TENSOR, _OBJECT = b"t", b"r", b"o"
_NUMBER = struct.Struct("<q")


def encoded(value: Any, names: str | Sequence[str]) -> bytes:
    """An object of the entry ``names`` as bytes: text is encoded, any other is pickled.

    Raises:
        TypeError: it cannot be pickled.
    """
    if value is None:
        return b""
    if type(value) is str:
        return _TEXT + value.encode("utf-8", "surrogatepass")
    try:
        return _OBJECT + pickle.dumps(value)
    except Exception:
        try:
            # Classes of a script or a notebook.
            return _OBJECT + dumps(value)
        except Exception as error:
            raise TypeError(
                f"{names if isinstance(names, str) else repr(short(tuple(names)))}: expected what can be pickled, as batches and buffers keep objects, got a "
                f"{type(value).__name__}: {error}. Leave the entry out, or make text or tensors of it"
            ) from error


def encoded_tensor(value: Any) -> bytes:
    """A tensor whose shape other steps need not have: the name of its type, its shape, and its elements, none of it pickled."""
    value = value.detach().cpu().contiguous()
    name = str(value.dtype).removeprefix("torch.").encode()
    shape = b"".join(map(_NUMBER.pack, value.shape))
    elements = value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
    return b"".join((_TENSOR, bytes((len(name), value.ndim)), name, shape, elements))


def observed(value: Any, name: str) -> bytes:
    """What an environment of Gymnasium observes under ``name`` as bytes: an array of numbers may have another shape in each step."""
    if isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc":
        return encoded_tensor(torch.from_numpy(numpy.ascontiguousarray(value)))
    return encoded(value, name)


def example_of(space: Any) -> bytes:
    """The bytes of the shortest text or array of a space of Gymnasium; nothing for other objects."""
    if isinstance(space, gymnasium.spaces.Text):
        return encoded("", ())
    if isinstance(space, gymnasium.spaces.Sequence) and space.stack and isinstance(space.feature_space, gymnasium.spaces.Box):
        feature = space.feature_space
        return encoded_tensor(torch.from_numpy(numpy.zeros((0, *feature.shape), feature.dtype)))
    return b""


def decoded(value: bytes) -> Any:
    """What :func:`encoded` or :func:`encoded_tensor` was given; None of nothing.

    Raises:
        ValueError: the bytes are of another kind.
    """
    kind = value[:1]
    if kind == _TEXT:
        return value[1:].decode("utf-8", "surrogatepass")
    if kind == _TENSOR:
        return _tensor_of(value)
    if kind == _OBJECT:
        return pickle.loads(value[1:])
    if kind:
        raise ValueError(f"expected a value of bytes that begins with one of {_TEXT + _TENSOR + _OBJECT!r}, got {kind!r}")
    return None


def _tensor_of(value: bytes) -> Any:
    width, ndim = value[1:3]
    begin = 3 + width
    end = begin + ndim * _NUMBER.size
    dtype = getattr(torch, value[3:begin].decode())
    shape = [number for (number,) in _NUMBER.iter_unpack(value[begin:end])]
    # Torch may write to it.
    elements = bytearray(value[end:])
    return torch.frombuffer(elements, dtype=dtype).reshape(shape) if elements else torch.empty(shape, dtype=dtype)


class Entry(NamedTuple):
    """The values of an entry, an array of objects of the entry's shape, and whether they are tensors."""

    names: tuple[str, ...]
    values: Any
    is_tensor: bool

    def encoded(self, value: Any) -> bytes:
        """One of the values as bytes."""
        return encoded_tensor(value) if self.is_tensor else encoded(value, self.names)


def entry(names: Sequence[str], shape: Sequence[int], values: Sequence[Any], is_tensor: bool) -> Entry:
    """The entry with these values, one after the other."""
    # One by one: values may be sequences themselves.
    array = numpy.empty(len(values), object)
    for place, value in enumerate(values):
        array[place] = value
    return Entry(tuple(names), array.reshape(tuple(shape)), is_tensor)


def _decoded_entry(names: Sequence[str], shape: Sequence[int], sent: Sequence[bytes]) -> Entry:
    """The entry with values of these bytes. Where values are tensors, an empty one is in the place of nothing."""
    values = list(map(decoded, sent))
    first = next((place for place, value in enumerate(sent) if value.startswith(_TENSOR)), None)
    if first is not None:
        blank = values[first].new_zeros([0] * values[first].ndim)
        values = [blank if value is None else value for value in values]
    return entry(names, shape, values, first is not None)


def with_values(data: Any, entries: Iterable[tuple[Sequence[str], Sequence[int], list[bytes]]]) -> Any:
    """A batch of the engine with its values: of each entry the names, the shape, and the bytes of each value."""
    return placed(data, [_decoded_entry(*one) for one in entries], split_of(data.get(MEMBERS, None)))


def placed(data: Any, entries: Sequence[Entry], split: dict[Key, list[Key]] = {}, device: Any = None) -> Any:
    """``data`` with these entries, and with the actions of agents in their groups."""
    for names, values, is_tensor in entries:
        if not is_tensor:
            data.set(names, _stacked(values))
    ragged = [(names, values) for names, values, is_tensor in entries if is_tensor]
    if not ragged and not split:
        return data
    names = data.names
    data = _with_tensors(data, ragged, split, device)
    if any(name is not None for name in names):
        data.names = names
    return data


def _stacked(values: Any) -> Any:
    """An array of objects as a stack, each of whose entries is any object."""
    if values.ndim == 0:
        return tensordict.NonTensorData(values.item())
    if not values.size:
        return tensordict.NonTensorData(None, batch_size=values.shape)
    # Slices stay arrays, whatever objects are in them.
    rows = (values[place : place + 1].reshape(values.shape[1:]) for place in range(len(values)))
    return tensordict.NonTensorStack(*map(_stacked, rows), stack_dim=0)


def nothing(shape: Sequence[int]) -> Any:
    """An entry of this shape with None in the place of each value."""
    return _stacked(numpy.full(tuple(shape), None, object))


def _with_tensors(data: Any, entries: list[tuple[tuple[str, ...], Any]], split: dict[Key, list[Key]], device: Any) -> Any:
    """``data`` with tensors, and actions of agents in their groups: stacked where their shapes are alike, lazily where they are not."""
    if data.ndim:
        dim = data.ndim - 1
        parts = [
            _with_tensors(part, [(names, values.take([place], dim).squeeze(dim)) for names, values in entries], split, device)
            for place, part in enumerate(data.unbind(-1))
        ]
        return stacked(parts, -1)
    inner = collections.defaultdict(list)
    for names, values in entries:
        if len(names) > 1:
            inner[names[0]].append((names[1:], values))
        else:
            value = values.item()
            data.set(names[0], value if device is None else value.to(device))
    for name, rest in inner.items():
        group = data.get(name, None)
        if group is None:
            group = tensordict.TensorDict({}, rest[0][1].shape)
        data.set(name, _with_tensors(group, rest, {}, device))
    return joined(data, split, 0)


def without_values(batch: Any) -> tuple[Any, list[tuple[tuple[str, ...], list[int], list[bytes]]]]:
    """What :func:`with_values` is given, of a batch with values."""
    rest, entries = parted(batch)
    return rest, [(one.names, list(one.values.shape), list(map(one.encoded, one.values.reshape(-1).tolist()))) for one in entries]


def parted(batch: Any) -> tuple[Any, list[Entry]]:
    """``batch`` without the entries that no array holds, and these."""
    entries = []
    for names, is_tensor in unheld(batch):
        parent = batch.get(names[:-1]) if names[1:] else batch
        entries.append(entry(names, parent.shape, values_of(parent, names[-1], parent.ndim, is_tensor), is_tensor))
    if not entries:
        return batch, entries
    rest = batch.exclude(*(one.names for one in entries))
    return rest.contiguous() if any(one.is_tensor for one in entries) else rest, entries


def stacked(parts: list[Any], dim: int) -> Any:
    """TensorDicts as one, lazily where shapes differ."""
    try:
        return tensordict.LazyStackedTensorDict.maybe_dense_stack(parts, dim)
    except RuntimeError:
        # Parts that are lazy themselves, and differ within.
        return tensordict.LazyStackedTensorDict.lazy_stack(parts, dim)


def values_of(parent: Any, name: str, depth: int, is_tensor: bool) -> list[Any]:
    """The entry ``name`` of ``parent``, one value for each place in its first ``depth`` dimensions."""
    if not is_tensor:
        values = [parent.get(name).tolist()]
        for _ in range(depth):
            values = [value for inner in values for value in inner]
        return values
    # Shapes may differ, so that there is no tensor of all.
    parts = [parent]
    for _ in range(depth):
        parts = [part for one in parts for part in one.unbind(0)]
    return [part.get(name) for part in parts]


def unheld(batch: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Entries that no array holds, and whether each is of tensors."""
    for name in batch.keys():
        try:
            value = batch.get(name)
        except RuntimeError:
            # Tensors that cannot be stacked.
            yield (*prefix, name), True
            continue
        if tensordict.is_non_tensor(value):
            yield (*prefix, name), False
        elif tensordict.is_tensor_collection(value):
            yield from unheld(value, (*prefix, name))


def split_of(members: Any) -> dict[Key, list[Key]]:
    """The actions of agents in an entry :data:`MEMBERS`, each with its columns; none where there is no such entry."""
    found: dict[Key, list[Key]] = collections.defaultdict(list)
    for key in () if members is None else members.keys(True, True):
        found[path(key)[:-1]].append((MEMBERS, *path(key)))
    return {key: sorted(columns, key=lambda names: int(names[-1])) for key, columns in found.items()}


def joined(data: Any, split: dict[Key, list[Key]], dim: int) -> Any:
    """``data`` with the actions of agents in their groups, where agents are in dimension ``dim``, in place of the columns."""
    for key, columns in split.items():
        *group, name = path(key)
        agents = data.get(tuple(group), None)
        size = (*data.batch_size[:dim], len(columns))
        parts = (tensordict.TensorDict({}, size) if agents is None else agents).unbind(dim)
        # New ones: those may be parts of a batch.
        parts = [part.copy().set(name, data.get(column)) for part, column in zip(parts, columns, strict=True)]
        data.set(tuple(group), stacked(parts, dim))
    return data.exclude(MEMBERS) if split else data


class Shown:
    """What a policy is given of values that no array holds: numbers stand for them until it is called.

    Args:
        examples: the bytes of what is shown where there is no value, of each entry.
        action_keys: the actions that the environment takes.
    """

    def __init__(self, examples: Iterable[tuple[Key, bytes]], action_keys: Iterable[Key]) -> None:
        self.examples = dict(examples)
        members = [path(key)[1:] for key in action_keys if path(key)[0] == MEMBERS]
        #: Actions of agents that differ from each other, with the columns of each.
        self.split: dict[Key, list[Key]] = {}
        for names in members:
            self.split.setdefault(names[:-1], []).append((MEMBERS, *names))
        self._values: list[bytes] = []

    def taken(self, inputs: Iterable[Any]) -> list[Any]:
        """``inputs`` with numbers in the place of values, which are kept until the next call."""
        inputs, self._values = list(inputs), []
        for place, given in enumerate(inputs):
            if isinstance(given, tuple):
                values, shape = given
                first = len(self._values)
                self._values += values
                inputs[place] = torch.arange(first, len(self._values)).reshape(shape)
        return inputs

    def shown(self, given: Any, device: Any = None) -> Any:
        """What a policy is given, with values in the place of numbers."""
        found = [(key, given.get(key, None)) for key in self.examples]
        return placed(given, [self._entry(key, numbers) for key, numbers in found if numbers is not None], {}, device)

    def value(self, key: Key, numbers: Any) -> Any:
        """The values with these numbers, as a policy is given them that is called with tensors: lists where there are several."""
        return self._entry(key, numbers).values.tolist()

    def _entry(self, key: Key, numbers: Any) -> Entry:
        return _decoded_entry(path(key), numbers.shape, [self._values[number] or self.examples[key] for number in numbers.flatten().tolist()])

    def parted(self, returned: Any) -> Any:
        """What a policy has written, with actions of agents in their columns."""
        for key, columns in self.split.items():
            *group, name = path(key)
            agents = returned.get(tuple(group), None)
            for agent, column in enumerate(columns if agents is not None else ()):
                # Agents are in the dimension behind those of the batch.
                action = agents[(slice(None),) * returned.ndim + (agent,)].get(name, None)
                if action is not None:
                    returned.set(column, action)
        return returned.exclude(*self.split) if self.split else returned
