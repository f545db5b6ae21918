"""Values that no array holds, as bytes: what is no tensor, and tensors whose shape changes.

The engine keeps them in columns of bytes, and does not read them. The first byte of a value says
what follows, so that a batch, a buffer or a file needs no more to give it back. Where nobody wrote
a value, there are no bytes.

Frames with such tensors are stacked lazily, also where all have one shape, so that batches do not
differ by chance; and each tensor has a mark, by which a buffer keeps it as a value again, alone or
in a batch.

Actions of agents that differ from each other are columns of their own, in an entry :data:`MEMBERS`.
Batches have them in their group.
"""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from windrow import _data
from windrow._data import Data, shown
from windrow._keys import Key, path, short
from windrow._lazy import gymnasium, numpy, tensordict, torch

#: The entry with actions of single members of a group: their names are those of the action and the
#: member's number.
MEMBERS = "(members)"

#: The mark of a tensor that was a value, an attribute. The extension knows it, too.
_MARK = "_windrow_value"


def observed(value: object, name: str, codec: Data) -> bytes:
    """What an environment of Gymnasium observes under ``name`` as bytes: an array of numbers may
    have another shape in each step.
    """
    if isinstance(value, numpy.ndarray) and value.dtype.name in _data.NUMBERS:
        native = value.astype(value.dtype.newbyteorder("="), copy=False)
        return b"".join(
            _data.numbers(_data.TENSOR, value.dtype.name, value.shape, native.tobytes())
        )
    return codec.write(value, name)


def example_of(space: object) -> bytes:
    """The bytes of the shortest text or array of a space of Gymnasium; nothing for other
    objects.
    """
    if isinstance(space, gymnasium.spaces.Text):
        return _data.TEXT
    if (
        isinstance(space, gymnasium.spaces.Sequence)
        and space.stack
        and isinstance(space.feature_space, gymnasium.spaces.Box)
    ):
        feature = space.feature_space
        return _data.tensor(torch.from_numpy(numpy.zeros((0, *feature.shape), feature.dtype)))
    return b""


def stacked(
    parts: list[tensordict.TensorDictBase], dim: int, name: str | None = None
) -> tensordict.TensorDictBase:
    """TensorDicts as one along a new dimension of this name, lazily where shapes differ."""
    try:
        made = tensordict.LazyStackedTensorDict.maybe_dense_stack(parts, dim)
    except RuntimeError:
        # Parts that are lazy themselves, and differ within.
        return lazy_stack(parts, dim, name)
    if isinstance(made, tensordict.LazyStackedTensorDict):
        return lazy_stack(parts, dim, name)
    if name is not None:
        made.names = [*made.names[:dim], name, *made.names[dim + 1 :]]
    return made


def lazy_stack(
    parts: list[tensordict.TensorDictBase], dim: int, name: str | None = None
) -> tensordict.TensorDictBase:
    """TensorDicts as one along a new dimension of this name, each of which stays as it is."""
    # Names that are set later have to be those of groups, too, which there may be no tensors of.
    return tensordict.LazyStackedTensorDict(*parts, stack_dim=dim, stack_dim_name=name)


class Entry(NamedTuple):
    """The values of an entry, an array of objects of the entry's shape, and whether all of them are
    tensors.
    """

    names: tuple[str, ...]
    values: numpy.ndarray[Any, Any]
    is_tensor: bool


def entry(
    names: Sequence[str], shape: Sequence[int], values: Sequence[Any], is_tensor: bool
) -> Entry:
    """The entry with these values, one after the other."""
    # One by one: values may be sequences themselves.
    array = numpy.empty(len(values), object)
    for place, value in enumerate(values):
        array[place] = value
    return Entry(tuple(names), array.reshape(tuple(shape)), is_tensor)


def _decoded_entry(
    names: Sequence[str], shape: Sequence[int], sent: Sequence[bytes], codec: Data
) -> Entry:
    """The entry with values of these bytes. Where all values are tensors, an empty one is in the
    place of nothing.

    Raises:
        ValueError: a value cannot be read.
    """
    try:
        values = list(map(codec.read, sent))
    except Exception as error:
        told = (
            f"expected objects that can be unpickled, got {type(error).__name__}: {error}"
            if codec.allow_pickle
            else str(error)
        )
        raise ValueError(f"{shown(names)}{told}") from error
    first: Any = next((value for value in values if isinstance(value, torch.Tensor)), None)
    is_tensor = first is not None and all(not one or one.startswith(_data.TENSOR) for one in sent)
    if is_tensor:
        blank = first.new_zeros([0] * first.ndim)
        values = [value if one else blank for value, one in zip(values, sent, strict=True)]
    return entry(names, shape, values, is_tensor)


def with_values(
    data: tensordict.TensorDictBase,
    entries: Iterable[tuple[Sequence[str], Sequence[int], list[bytes]]],
    codec: Data,
) -> tensordict.TensorDictBase:
    """A batch of the engine with its values, which ``codec`` reads: of each entry the names, the
    shape, and the bytes of each value.
    """
    members = data.get(MEMBERS, None)
    columns = () if members is None else [(MEMBERS, *path(key)) for key in members.keys(True, True)]
    return placed(data, [_decoded_entry(*one, codec) for one in entries], split_of(columns))


def placed(
    data: tensordict.TensorDictBase,
    entries: Sequence[Entry],
    split: dict[Key, list[Key]] = {},  # noqa: B006
) -> tensordict.TensorDictBase:
    """``data`` with these entries, and with the actions of agents in their groups."""
    for names, values, is_tensor in entries:
        if not is_tensor:
            data.set(names, _data.stacked(values.reshape(-1).tolist(), values.shape))
    tensors = [_Tensors(names, values, True) for names, values, is_tensor in entries if is_tensor]
    tensors += [
        _Tensors(path(key), _of_agents(data, columns), False) for key, columns in split.items()
    ]
    if not tensors:
        return data
    return _with_tensors(data.exclude(MEMBERS) if split else data, tensors)


class _Tensors(NamedTuple):
    """Tensors of an entry in an array of the entry's shape, and whether they were values, so that
    frames are stacked lazily.
    """

    names: tuple[str, ...]
    values: numpy.ndarray[Any, Any]
    are_values: bool


def _of_agents(data: tensordict.TensorDictBase, columns: list[Key]) -> numpy.ndarray[Any, Any]:
    """The actions in these columns as an array of tensors, whose last dimension is that of
    agents.
    """
    count = data.batch_size.numel()
    each = [
        column.reshape(count, *column.shape[data.ndim :]).unbind(0)
        for column in map(data.get, columns)
    ]
    return entry(
        (), (*data.batch_size, len(columns)), list(itertools.chain(*zip(*each, strict=True))), True
    ).values


def repeated(
    value: bytes, shape: Sequence[int], codec: Data
) -> torch.Tensor | tensordict.NonTensorData | tensordict.NonTensorStack:
    """An entry of this shape that has the value of these bytes, which ``codec`` reads,
    everywhere.
    """
    one = codec.read(value)
    if isinstance(one, torch.Tensor):
        return one.expand((*shape, *one.shape)).clone()
    return _data.stacked([one] * math.prod(shape), tuple(shape))


def _with_tensors(
    data: tensordict.TensorDictBase,
    entries: list[_Tensors],
    *,
    lazily: bool = True,
    device: torch.device | None = None,
) -> tensordict.TensorDictBase:
    """``data`` with these entries. Frames with tensors that were values are stacked ``lazily``,
    others where shapes differ.
    """
    own = [one for one in entries if len(one.names) == 1]
    if data.ndim and own:
        dim = data.ndim - 1
        parts = [
            _with_tensors(
                part,
                [
                    one._replace(values=one.values.take([place], dim).squeeze(dim))
                    for one in entries
                ],
                lazily=lazily,
                device=device,
            )
            for place, part in enumerate(data.unbind(-1))
        ]
        stack = lazy_stack if lazily and any(one.are_values for one in own) else stacked
        return stack(parts, dim, data.names[-1])
    inner = collections.defaultdict(list)
    for one in entries:
        inner[one.names[0]].append(one._replace(names=one.names[1:]))
    for name, rest in inner.items():
        if not rest[0].names:
            value = rest[0].values.item() if device is None else rest[0].values.item().to(device)
            if rest[0].are_values:
                setattr(value, _MARK, True)
            data.set(name, value)
            continue
        group = data.get(name, None)
        if group is None:
            group = tensordict.TensorDict({}, rest[0].values.shape)
        if data.ndim:
            # Those of a lazy stack are set where it is made.
            group.names = [*data.names, *group.names[data.ndim :]]
        data.set(name, _with_tensors(group, rest, lazily=lazily, device=device))
    return data


def without_values(
    batch: tensordict.TensorDictBase, codec: Data
) -> tuple[tensordict.TensorDictBase, list[tuple[tuple[str, ...], list[int], list[bytes]]]]:
    """What :func:`with_values` is given, of a batch with values."""
    rest, entries = parted(batch)
    return rest, [
        (
            one.names,
            list(one.values.shape),
            [codec.write(value, one.names) for value in one.values.reshape(-1).tolist()],
        )
        for one in entries
    ]


def parted(batch: tensordict.TensorDictBase) -> tuple[tensordict.TensorDictBase, list[Entry]]:
    """``batch`` without the entries that no array holds, and these."""
    entries = []
    for names, is_tensor in unheld(batch):
        parent = batch.get(names[:-1]) if names[1:] else batch
        values = values_of(parent, names[-1], parent.ndim, is_tensor)
        entries.append(
            entry(
                names,
                parent.shape,
                values,
                all(isinstance(value, torch.Tensor) for value in values) and bool(values),
            )
        )
    if not entries:
        return batch, entries
    rest = batch.exclude(*(one.names for one in entries))
    return rest if type(rest) is tensordict.TensorDict else rest.contiguous(), entries


def values_of(
    parent: tensordict.TensorDictBase, name: str, depth: int, is_tensor: bool
) -> list[Any]:
    """The entry ``name`` of ``parent``, one value for each place in its first ``depth``
    dimensions.
    """
    if not is_tensor:
        values = [parent.get(name).tolist()]
        for _ in range(depth):
            values = [value for inner in values for value in inner]
        return values
    # Shapes may differ, so that there is no tensor of all.
    parts = [parent]
    for _ in range(depth):
        parts = [part for one in parts for part in one.unbind(0)]
    values = [part.get(name) for part in parts]
    return [value.data if tensordict.is_non_tensor(value) else value for value in values]


def _was_value(batch: tensordict.TensorDictBase, name: str) -> bool:
    """Whether the entry ``name`` is of tensors that were values."""
    while isinstance(batch, tensordict.LazyStackedTensorDict) and len(batch.tensordicts):
        batch = batch.tensordicts[0]
    value = batch.get(name, None)
    return isinstance(value, torch.Tensor) and hasattr(value, _MARK)


def unheld(
    batch: tensordict.TensorDictBase, prefix: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Entries that no array holds, and whether each is of tensors."""
    for name in batch.keys():
        if _was_value(batch, name):
            yield (*prefix, name), True
            continue
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


def split_of(columns: Iterable[Key]) -> dict[Key, list[Key]]:
    """The actions of agents that differ from each other, each with its own of the ``columns``,
    which are in an entry :data:`MEMBERS`.
    """
    found: dict[Key, list[Key]] = collections.defaultdict(list)
    for names in map(path, columns):
        if names[0] == MEMBERS:
            found[names[1:-1]].append(names)
    return {
        key: sorted(columns, key=lambda names: int(names[-1])) for key, columns in found.items()
    }


def public(key: Key) -> Key:
    """The name of an action, of which ``key`` may be the column of one agent."""
    names = path(key)
    return short(names[1:-1]) if names[0] == MEMBERS else key


def action_in(data: tensordict.TensorDictBase, key: Key) -> torch.Tensor | None:
    """The action ``key`` in ``data``, of one agent where it is a column of such; None where there
    is none.
    """
    names = path(key)
    if names[0] != MEMBERS:
        return data.get(key, None)
    *group, name, agent = names[1:]
    agents = data.get(tuple(group), None)
    # Agents are in the dimension behind those of the batch.
    return (
        None
        if agents is None
        else agents[(slice(None),) * data.ndim + (int(agent),)].get(name, None)
    )


def joined(
    data: tensordict.TensorDictBase, split: dict[Key, list[Key]], dim: int
) -> tensordict.TensorDictBase:
    """``data`` with the actions of agents in their groups, where agents are in dimension ``dim``,
    in place of the columns.
    """
    return with_actions(data, split, dim, data).exclude(MEMBERS) if split else data


def with_actions(
    data: tensordict.TensorDictBase,
    split: dict[Key, list[Key]],
    dim: int,
    actions: tensordict.TensorDictBase | dict[Key, torch.Tensor],
) -> tensordict.TensorDictBase:
    """``data``, to which the columns in ``actions`` are added as :func:`joined` does."""
    for key, columns in split.items():
        *group, name = path(key)
        agents = data.get(tuple(group), None)
        size = (*data.batch_size[:dim], len(columns))
        parts = (tensordict.TensorDict({}, size) if agents is None else agents).unbind(dim)
        # New ones: those may be parts of a batch.
        parts = [
            part.copy().set(name, actions.get(column))
            for part, column in zip(parts, columns, strict=True)
        ]
        data.set(tuple(group), stacked(parts, dim))
    return data


class Shown:
    """What a policy is given of values that no array holds: numbers stand for them until it is
    called.

    Args:
        examples: the bytes of what is shown where there is no value, of each entry.
        action_keys: the actions that the environment takes.
        codec: reads the values.
    """

    def __init__(
        self, examples: Iterable[tuple[Key, bytes]], action_keys: Iterable[Key], codec: Data
    ) -> None:
        self._codec = codec
        self.examples = dict(examples)
        #: Actions of agents that differ from each other, with the columns of each.
        self.split = split_of(action_keys)
        self._values: list[bytes] = []
        #: What was shown last, of each entry.
        self._entries: dict[tuple[str, ...], Entry] = {}

    def taken(self, inputs: Iterable[Any]) -> list[Any]:
        """``inputs`` with numbers in the place of values, which are kept until the next call."""
        inputs, self._values = list(inputs), []
        for place, given in enumerate(inputs):
            if isinstance(given, tuple):
                values, shape = given
                first = len(self._values)
                self._values += values
                inputs[place] = torch.arange(first, len(self._values), device="cpu").reshape(shape)
        return inputs

    def shown(
        self, given: tensordict.TensorDictBase, device: torch.device | None = None
    ) -> tensordict.TensorDictBase:
        """What a policy is given, with values in the place of numbers."""
        found = [(key, given.get(key, None)) for key in self.examples]
        entries = [self._entry(key, numbers) for key, numbers in found if numbers is not None]
        self._entries = {one.names: one for one in entries}
        tensors = [
            _Tensors(names, values, True) for names, values, is_tensor in entries if is_tensor
        ]
        given = placed(given, [one for one in entries if not one.is_tensor])
        return _with_tensors(given, tensors, lazily=False, device=device) if tensors else given

    def is_left(self, returned: tensordict.TensorDictBase, key: Key) -> bool:
        """Whether the values of the entry ``key`` are in ``returned`` as they were shown, or not at
        all.
        """
        names = path(key)
        parent = returned.get(names[:-1], None) if names[1:] else returned
        if names not in self._entries or parent is None or names[-1] not in parent.keys():
            return True
        own = self._entries[names]
        values = values_of(parent, names[-1], parent.ndim, own.is_tensor)
        now, before = (
            [self._codec.write(value, names) for value in each]
            for each in (values, own.values.reshape(-1).tolist())
        )
        return now == before

    def value(self, key: Key, numbers: torch.Tensor) -> object:
        """The values with these numbers, as a policy is given them that is called with tensors:
        lists where there are several.
        """
        return self._entry(key, numbers).values.tolist()

    def _entry(self, key: Key, numbers: torch.Tensor) -> Entry:
        example, limit = self.examples[key], self._codec.limit
        sent = [self._values[number] or example for number in numbers.flatten().tolist()]
        if (
            limit is not None
            and (shown_as := sum(one is example for one in sent)) * len(example) > limit
        ):
            raise ValueError(
                f"{shown(path(key))}an example of {len(example)} bytes stands for {shown_as} values: expected {limit} bytes at most"
            )
        return _decoded_entry(path(key), numbers.shape, sent, self._codec)

    def parted(self, returned: tensordict.TensorDictBase) -> tensordict.TensorDictBase:
        """What a policy has written, with actions of agents in their columns."""
        for column in itertools.chain(*self.split.values()):
            action = action_in(returned, column)
            if action is not None:
                returned.set(column, action)
        return returned.exclude(*self.split) if self.split else returned
