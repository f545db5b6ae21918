"""Entries of environments that no column of a slab can hold: what is no tensor, and tensors whose shape changes.

The column has the number of each value instead. :class:`Objects` has the values, until frames with later numbers are delivered. An
adapter keeps them, a policy that torch evaluates is shown them, and batches have them in the place of the numbers.
"""

from __future__ import annotations

import collections
import itertools
import mmap
import os
import pickle
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from windrow._lazy import tensordict, torch
from windrow.envs._specs import Key, path, short
from windrow.processes.pickling import dumps

Line = tuple[Any, ...]
"""What has one value at a time, and the next one with the next step: an entry of an environment. It begins with the worker's number."""

#: Numbers of values that a worker process keeps are places in its stream, below as many bits.
_PLACES = 48


@dataclass(frozen=True)
class Form:
    """What an entry is like, of which no column has the values.

    Attributes:
        shape: dimensions of the column, each of whose elements is the number of a value: those of the group that the entry is in.
        is_tensor: whether values are tensors.
        blank: what a policy is shown before there is a value, and padding where values are tensors.
    """

    shape: tuple[int, ...]
    is_tensor: bool
    blank: Any


class _Kept:
    """Values by their numbers, where those of a line grow."""

    def __init__(self) -> None:
        self.forms: dict[Key, Form] = {}
        #: Actions of agents that differ from each other, with the columns of each.
        self.split: dict[Key, list[Key]] = {}
        self._values: dict[int, tuple[Line, Any]] = {}
        self._lines: dict[Line, collections.deque[int]] = {}

    def describe(self, worker: int, forms: dict[Key, Form], split: dict[Key, list[Key]]) -> None:
        """Notes what the entries of a worker's environments are like."""
        self.forms.update(forms)
        self.split.update(split)

    def _add(self, number: int, line: Line, value: Any) -> None:
        self._values[number] = line, value
        self._lines.setdefault(line, collections.deque()).append(number)

    def _forget(self, line: Line, before: int) -> None:
        """Forgets the values of ``line`` with smaller numbers."""
        numbers = self._lines[line]
        while numbers and numbers[0] < before:
            self._values.pop(numbers.popleft(), None)

    def _find(self, number: int, blank: Any) -> Any:
        """The value with this number; ``blank`` for 0, which no value has."""
        return self._values[number][1] if number else blank

    def settled(self) -> bool:
        """Whether there are such entries. Their forms are known from then on."""
        return bool(self.forms or self.split)

    def shown(self, given: Any, device: Any = None) -> Any:
        """What a policy is given, with values in the place of numbers."""
        return self._replaced(given, {key: form for key, form in self.forms.items() if given.get(key, None) is not None}, "blank", device)

    def value(self, key: Key, numbers: Any) -> Any:
        """The values with these numbers, as a policy is given them that is called with tensors: lists where there are several."""
        form = self.forms[key]
        return _mapped(numbers.tolist(), numbers.ndim, lambda number: self._find(number, form.blank))

    def _replaced(self, data: Any, forms: dict[Key, Form], padding: str, device: Any = None) -> Any:
        for key, form in forms.items():
            if not form.is_tensor:
                numbers, blank = data.get(key), form.blank if padding == "blank" else None
                data.set(key, _stacked(numbers.tolist(), numbers.ndim, lambda number: self._find(number, blank)))
        ragged = [(path(key), form) for key, form in forms.items() if form.is_tensor]
        split = {key: columns for key, columns in self.split.items() if columns[0] in data.keys()}
        if not ragged and not split:
            return data
        names = data.names
        data = self._with_tensors(data, ragged, split, device)
        if any(name is not None for name in names):
            data.names = names
        return data

    def _with_tensors(self, data: Any, entries: list[tuple[tuple[str, ...], Form]], split: dict[Key, list[Key]], device: Any) -> Any:
        """``data`` with tensors in the place of their numbers, and actions of agents in their groups: stacked where their shapes are
        alike, lazily where they are not."""
        if data.ndim:
            parts = [self._with_tensors(part, entries, split, device) for part in data.unbind(-1)]
            return tensordict.LazyStackedTensorDict.maybe_dense_stack(parts, -1)
        inner = collections.defaultdict(list)
        for names, form in entries:
            if len(names) > 1:
                inner[names[0]].append((names[1:], form))
            else:
                value = self._find(int(data.get(names[0])), form.blank)
                data.set(names[0], value if device is None else value.to(device))
        for name, rest in inner.items():
            data.set(name, self._with_tensors(data.get(name), rest, {}, device))
        return joined(data, split, 0)

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


class Aside(_Kept):
    """Values of a batch, while the engine works on it with numbers in their place."""

    def put(self, batch: Any) -> Any:
        """``batch`` with numbers; itself where it has nothing but arrays."""
        numbers = {}
        for names, is_tensor in unheld(batch):
            parent = batch.get(names[:-1]) if names[1:] else batch
            values = values_of(parent, names[-1], parent.ndim, is_tensor)
            numbers[short(names)] = self.take(short(names), values, parent.shape, batch.ndim, is_tensor)
        if not numbers:
            return batch
        rest = batch.exclude(*numbers)
        if any(form.is_tensor for form in self.forms.values()):
            rest = rest.contiguous()
        for key, numbered in numbers.items():
            rest.set(key, numbered)
        return rest

    def take(self, key: Key, values: list[Any], shape: Sequence[int], dims: int, is_tensor: bool) -> Any:
        """The numbers of ``values``, of an entry of this shape, in a batch of so many dimensions."""
        # Padding is of the first value's type.
        blank = values[0].new_zeros([0] * values[0].ndim) if is_tensor and values else None
        self.forms[key] = Form(tuple(shape[dims:]), is_tensor, blank)
        first = len(self._values) + 1
        self._values.update((number, ((), value)) for number, value in enumerate(values, first))
        return torch.arange(first, first + len(values)).reshape(*shape)

    def back(self, batch: Any) -> Any:
        """What became of the batch, with values."""
        found = {key: form for key, form in self.forms.items() if batch.get(key, None) is not None}
        return self._replaced(batch, found, "none")


class Objects(_Kept):
    """The values of a collector's environments, where the collector is. Threads keep them here; processes send them, each in a stream of
    its own.

    Args:
        processes: number of workers that are processes.
    """

    def __init__(self, processes: int = 0) -> None:
        super().__init__()
        self._numbers = itertools.count(1)
        self._draining = threading.Lock()
        self._streams = [Stream.new() for _ in range(processes)]
        #: Workers find what was sent to them twice, with environments and with a policy.
        self._id = os.urandom(16)

    def __reduce__(self) -> Any:
        return _arrived, (self._id, self._streams)

    def keep(self, worker: int, values: Iterable[tuple[Line, Any]]) -> list[int]:
        """Keeps values of a worker's environments; returns their numbers."""
        numbers = []
        for line, value in values:
            number = next(self._numbers)
            self._add(number, (worker, *line), value)
            numbers.append(number)
        return numbers

    def settled(self) -> bool:
        self.settle()
        return super().settled()

    def settle(self) -> None:
        """Takes what processes have sent."""
        with self._draining:
            for worker, stream in enumerate(self._streams):
                for place, sent in stream.read():
                    line, value = pickle.loads(sent)
                    if line is None:
                        self.describe(worker, *value)
                    else:
                        self._add(worker << _PLACES | place, (worker, *line), value)

    def end(self) -> None:
        """Closes the streams of processes, which have ended."""
        with self._draining:
            streams, self._streams = self._streams, []
        for stream in streams:
            stream.close()

    def _find(self, number: int, blank: Any) -> Any:
        if number and number not in self._values:
            # A policy is shown what its worker has just sent.
            self.settle()
        return super()._find(number, blank)

    def delivered(self, batch: Any) -> Any:
        """A batch with values in the place of numbers. Values that no later frame can have are forgotten with the next batch: this one
        may be delivered once more, after Ctrl-C."""
        if not self.forms and not self.split:
            return batch
        self.settle()
        places = [(short(place), form) for key, form in self.forms.items() for place in (path(key), ("next", *path(key)))]
        found = {place: form for place, form in places if batch.get(place, None) is not None}
        for place in found:
            if batch.get(place).dtype != torch.int64:
                raise TypeError(f"{place!r} has values that no array holds: expected that no transform of windrow changes it")
        oldest: dict[Line, int] = {}
        for number in {number for place in found for number in batch.get(place).unique().tolist() if number}:
            line = self._values[number][0]
            oldest[line] = min(number, oldest.get(line, number))
        batch = self._replaced(batch, found, "none")
        # Frames of an environment are delivered in order.
        for line, number in oldest.items():
            self._forget(line, number)
        return batch


class Latest(_Kept):
    """As :class:`Objects`, of environments whose frames only the policy sees: has the values that it can be shown."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)
        self._id = os.urandom(16)

    def __reduce__(self) -> Any:
        return _arrived, (self._id, None)

    def keep(self, worker: int, values: Iterable[tuple[Line, Any]]) -> list[int]:
        """Keeps values in place of those before; returns their numbers."""
        values = list(values)
        numbers = self._numbered(worker, values)
        for number, (line, value) in zip(numbers, values, strict=True):
            self._add(number, line, value)
            self._forget(line, number)
        return numbers

    def _numbered(self, worker: int, values: list[tuple[Line, Any]]) -> list[int]:
        return [next(self._numbers) for _ in values]


class _Sender(Latest):
    """As :class:`Objects`, in a worker process."""

    def __init__(self, streams: list[Stream]) -> None:
        super().__init__()
        self._streams = streams

    def describe(self, worker: int, forms: dict[Key, Form], split: dict[Key, list[Key]]) -> None:
        super().describe(worker, forms, split)
        self._streams[worker].write([_dumped(None, (forms, split))])

    def _numbered(self, worker: int, values: list[tuple[Line, Any]]) -> list[int]:
        places = self._streams[worker].write([_dumped(line, value) for line, value in values])
        return [worker << _PLACES | place for place in places]


class Stream:
    """What a worker process sends, in the order in which it does: in a file without a name, whose memory is given back as it is read.

    The first bytes of the file say up to where it is whole, so that a worker may die while it writes. Its replacement goes on there.
    """

    #: Bytes of a number in the file.
    _WORD = 8

    def __init__(self, place: tuple[int, int] | None) -> None:
        self._place = place
        self._file: int | None = None
        #: Up to where it was read.
        self._read = self._WORD

    @classmethod
    def new(cls) -> Stream:
        """An empty one, which this process reads."""
        stream = cls(None)
        stream._use(os.memfd_create("windrow-objects"))
        stream._told(cls._WORD)
        return stream

    def __reduce__(self) -> Any:
        return Stream, (self._place or (os.getpid(), self._file),)

    def _use(self, file: int) -> None:
        self._file = file
        self._close = weakref.finalize(self, os.close, file)

    def close(self) -> None:
        """Closes the file, if it is open. Nobody may read or write afterwards."""
        if self._file is not None:
            self._close()

    @property
    def _opened(self) -> int:
        if self._file is None:
            process, number = self._place or (0, 0)
            self._use(os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC))
        return self._file  # type: ignore[return-value]

    def _end(self) -> int:
        return int.from_bytes(os.pread(self._opened, self._WORD, 0), "little")

    def _told(self, end: int) -> None:
        os.pwrite(self._opened, end.to_bytes(self._WORD, "little"), 0)

    def write(self, sent: Sequence[bytes]) -> list[int]:
        """Sends each of these; returns their places, of which none is 0."""
        places, end, written = [], self._end(), bytearray()
        for one in sent:
            places.append(end + len(written))
            written += len(one).to_bytes(self._WORD, "little") + one
        left, at = memoryview(written), end
        while left:
            count = os.pwrite(self._opened, left, at)
            left, at = left[count:], at + count
        self._told(at)
        return places

    def read(self) -> Iterator[tuple[int, bytes]]:
        """What was sent since the last call, with places."""
        begin, end = self._read, self._end()
        if begin == end:
            return
        sent = os.pread(self._opened, end - begin, begin)
        while self._read < end:
            at = self._read - begin + self._WORD
            size = int.from_bytes(sent[at - self._WORD : at], "little")
            place, self._read = self._read, begin + at + size
            yield place, sent[at : at + size]
        # The first page stays, which says how far the file goes.
        first, last = max(begin // mmap.PAGESIZE, 1) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last:
            with mmap.mmap(self._opened, last - first, offset=first) as memory:
                memory.madvise(mmap.MADV_REMOVE)


_ARRIVED: dict[bytes, Latest] = {}
"""In a worker process, what environments and policy have both been sent."""


def _arrived(number: bytes, streams: list[Stream] | None) -> Latest:
    return _ARRIVED.setdefault(number, Latest() if streams is None else _Sender(streams))


def _dumped(line: Line | None, value: Any) -> bytes:
    """A value as it is sent.

    Raises:
        TypeError: it cannot be pickled.
    """
    try:
        return pickle.dumps((line, value))
    except Exception:
        try:
            # Classes of a script or a notebook.
            return dumps((line, value))
        except Exception as error:
            what = repr(line[1]) if line else "an entry"
            raise TypeError(
                f"{what} has a value that cannot be pickled, as worker processes send what they observe: {error}. Choose "
                'placement="threads", or leave the entry out'
            ) from error


class Keeper:
    """Keeps what no column holds, of a worker's environments.

    Args:
        objects: where it is kept.
        worker: the worker's number.
    """

    def __init__(self, objects: Any, worker: int) -> None:
        self._objects = objects
        self._worker = worker
        #: The seats of adapters that are not closed, by their numbers. Others take over those that are free.
        self._taken: list[weakref.ref[Seat] | None] = []

    def __reduce__(self) -> Any:
        return Keeper, (self._objects, self._worker)

    def seat(self) -> Seat:
        """A seat for an adapter. Values of a seat are delivered in the order in which they are kept, whoever has it."""
        free = (number for number, taken in enumerate(self._taken) if taken is None or taken() is None)
        number = next(free, len(self._taken))
        seat = Seat(self, number)
        self._taken[number : number + 1] = [weakref.ref(seat)]
        return seat

    def leave(self, seat: Seat) -> None:
        """Frees a seat, if it is not another's by now."""
        if (taken := self._taken[seat.number]) is not None and taken() is seat:
            self._taken[seat.number] = None

    def describe(self, forms: dict[Key, Form], split: dict[Key, list[Key]]) -> None:
        """Notes what entries are like."""
        if forms or split:
            self._objects.describe(self._worker, forms, split)

    def keep(self, values: Iterable[tuple[Line, Any]]) -> list[int]:
        """Keeps values, returns their numbers."""
        return self._objects.keep(self._worker, values)


class Seat:
    """Keeps the values of one adapter's environments."""

    def __init__(self, keeper: Keeper, number: int) -> None:
        self.keeper = keeper
        self.number = number

    def __reduce__(self) -> Any:
        # In another process, its keeper has other seats.
        return Keeper.seat, (self.keeper,)

    def keep(self, key: Key, values: dict[int, Any]) -> list[int]:
        """Keeps values of the entry ``key``, each of an element of its column, by its place there; returns their numbers."""
        return self.keeper.keep(((self.number, key, place), value) for place, value in values.items())

    def leave(self) -> None:
        """Frees it for another adapter."""
        self.keeper.leave(self)


def joined(data: Any, split: dict[Key, list[Key]], dim: int) -> Any:
    """``data`` with the actions of agents in their groups, where agents are in dimension ``dim``, in place of the columns."""
    for key, columns in split.items():
        *group, name = path(key)
        agents = data.get(tuple(group), None)
        size = (*data.batch_size[:dim], len(columns))
        parts = (tensordict.TensorDict({}, size) if agents is None else agents).unbind(dim)
        # New ones: those may be parts of a batch.
        parts = [part.copy().set(name, data.get(column)) for part, column in zip(parts, columns, strict=True)]
        data.set(tuple(group), tensordict.LazyStackedTensorDict.maybe_dense_stack(parts, dim))
        data = data.exclude(*columns)
    return data


def values_of(parent: Any, name: str, depth: int, is_tensor: bool) -> list[Any]:
    """The entry ``name`` of ``parent``, one value for each place in its first dimensions, of which there are ``depth``."""
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


def _mapped(nested: Any, depth: int, of: Any) -> Any:
    """Lists in each other, so many of them, with ``of(entry)`` for each entry."""
    return of(nested) if depth == 0 else [_mapped(entry, depth - 1, of) for entry in nested]


def _stacked(nested: Any, depth: int, of: Any) -> Any:
    """The same as a stack, each of whose entries is any object."""
    if depth == 0:
        return tensordict.NonTensorData(of(nested))
    return tensordict.NonTensorStack(*(_stacked(entry, depth - 1, of) for entry in nested), stack_dim=0)
