"""Values as bytes that are read without pickle, for connections.

The first byte says which kind of value follows. The reader compares every length, count and shape
with the bytes that are there before it allocates memory. :mod:`windrow._objects` adds pickled
objects, for bytes that this program itself has written; nothing here can call it.
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, TypeAlias

from windrow._lazy import numpy, tensordict, torch
from windrow.processes import exceptions

NONE, TEXT, TENSOR, OBJECT = b"n", b"t", b"r", b"o"
_TRUE, _FALSE, _INT, _FLOAT, _BYTES = b"T", b"F", b"i", b"f", b"b"
_LIST, _TUPLE, _SET, _FROZENSET, _DICT = b"l", b"u", b"e", b"z", b"d"
_ARRAY, _SCALAR, _DTYPE, _DEVICE, _TENSORDICT, _STACK, _VALUES = (
    b"a",
    b"g",
    b"y",
    b"v",
    b"D",
    b"S",
    b"N",
)

_NUMBER, _LENGTH, _REAL = struct.Struct("<q"), struct.Struct("<Q"), struct.Struct("<d")
#: Types of numpy that torch has, too.
NUMBERS = frozenset(
    [
        "bool",
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    ]
)
#: Types of torch whose elements mean nothing without a scale that is kept beside them. Torch
#: crashes where it makes tensors of them out of bytes.
_QUANTIZED = frozenset(["qint8", "qint32", "quint8", "quint4x2", "quint2x4"])
#: Values within each other, and values that hold others in all: a few bytes of each make an object
#: of Python's.
_DEPTH, _HOLDERS = 32, 1 << 16
#: Bytes in all of keys whose hash the other side can choose, so that the time of reading them may
#: grow with their number and their size. Python seeds the hashes of text and bytes, and integers
#: below this size are too few.
_KEYS, _SMALL = 1 << 14, 1 << 20
#: Dimensions of a batch. TensorDicts that are stacked lazily, and values, take twice the time to be
#: made for each more.
_DIMENSIONS = 8
#: Places that a shape may have where there are no elements, or no tensors, by which their number
#: would be known.
_PLACES = 1 << 20

_KINDS = "numbers, text, bytes, arrays, tensors, and lists, tuples, dictionaries and TensorDicts of these"
_WAY_OUT = "make data of it or leave it out, or give allow_pickle=True at both ends, if each may run what the other sends"


Buffer: TypeAlias = bytes | memoryview


class NotData(TypeError):
    """Raised at a value that only pickle can write. ``place`` is the path to the value."""

    def __init__(self, value: object) -> None:
        self.value, self.place = value, list[str]()


class Data:
    """A codec for data: no value that it reads can run code.

    Args:
        limit: most bytes that copies of an example may take in one entry, in place of values that
            were not written; None for any number.
    """

    #: True for the codec of ``allow_pickle=True``.
    allow_pickle: ClassVar[bool] = False

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit

    def write(self, value: object, names: str | Sequence[str] = ()) -> bytes:
        """The value of the entry ``names`` as bytes.

        Raises:
            TypeError: the value is an object that only pickle can write, or holds one.
        """
        parts: list[Buffer] = []
        try:
            _write(value, 0, parts)
            return b"".join(parts)
        except NotData as error:
            place = shown([*((names,) if isinstance(names, str) else names), *error.place])
            raise TypeError(
                f"{place}expected data ({_KINDS}), got a {type(error.value).__name__}: {_WAY_OUT}"
            ) from None

    def read(self, given: bytes) -> Any:
        """The value that the bytes ``given`` encode; None if they are empty.

        Raises:
            ValueError: the bytes encode no value, or a pickled object.
        """
        if not given:
            return None
        if given[:1] == TEXT:
            return given[1:].decode("utf-8", "surrogatepass")
        if given[:1] == OBJECT:
            raise ValueError(
                f"expected data, got a pickled object, which can run any code where it is read: {_WAY_OUT}"
            )
        try:
            return _Reading(len(given)).value(memoryview(given))
        except Exception as error:
            raise ValueError(
                f"expected data, got {len(given)} bytes that cannot be read: {error}"
            ) from error

    def write_error(self, error: BaseException) -> bytes:
        """An exception: its type by name, its message and its traceback."""
        return self.write(exceptions.described(error))

    def read_error(self, sent: bytes) -> BaseException:
        """The exception that :meth:`write_error` has written. It has its own type if that is built
        in, and otherwise is a ``RuntimeError`` that names the type. Its cause has the traceback.
        """
        try:
            return exceptions.made_of(*self.read(sent))
        except Exception as error:
            return RuntimeError(f"the other side has failed, and its error cannot be read: {error}")


def shown(names: Sequence[str]) -> str:
    """The name of an entry and a colon, as messages begin; empty without names."""
    return f"{(names[0] if len(names) == 1 else tuple(names))!r}: " if names else ""


def tensor(value: torch.Tensor) -> bytes:
    """A tensor as bytes: the name of its type, its shape, and its elements."""
    return b"".join(_of_tensor(value))


def numbers(
    kind: bytes, dtype: str, shape: Sequence[int], elements: Buffer
) -> tuple[bytes, Buffer]:
    """A tensor or an array as bytes, in two parts: the header, and its ``elements``."""
    name = dtype.encode()
    return b"".join(
        (kind, bytes((len(name), len(shape))), name, *map(_NUMBER.pack, shape))
    ), elements


def _of_tensor(value: torch.Tensor) -> tuple[bytes, Buffer]:
    if value.is_quantized:
        raise NotData(value)
    value = value.detach().cpu().contiguous()
    elements = value.reshape(-1).view(torch.uint8).numpy().data if value.numel() else b""
    return numbers(TENSOR, str(value.dtype).removeprefix("torch."), value.shape, elements)


def _of_array(value: numpy.ndarray[Any, Any], kind: bytes = _ARRAY) -> tuple[bytes, Buffer]:
    if value.dtype.name not in NUMBERS:
        raise NotData(value)
    native = value.astype(value.dtype.newbyteorder("="), copy=False)
    return numbers(kind, value.dtype.name, value.shape, native.tobytes())


def _write(value: Any, depth: int, out: list[Buffer]) -> int:
    """Appends the encoding of ``value`` to ``out``, in parts. Returns its number of bytes."""
    if (write := _WRITERS.get(type(value))) is not None:
        written = write(value)
        out.append(written)
        return len(written)
    if (kind := _HOLDING.get(type(value))) is not None:
        if depth == _DEPTH:
            raise NotData(value)
        out.append(kind)
        if kind is not _DICT:
            return 1 + _several(enumerate(value), depth, out)
        return (
            1
            + _several(((key, key) for key in value), depth, out)
            + _several(value.items(), depth, out)
        )
    # A library that is not imported has made no value.
    if "numpy" in sys.modules and isinstance(value, (numpy.ndarray, numpy.generic)):
        parts = (
            _of_array(value)
            if isinstance(value, numpy.ndarray)
            else _of_array(numpy.asarray(value), _SCALAR)
        )
    elif "torch" in sys.modules:
        return _write_of_torch(value, depth, out)
    else:
        raise NotData(value)
    out.extend(parts)
    return sum(map(len, parts))


def _write_of_torch(value: Any, depth: int, out: list[Buffer]) -> int:
    if (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and value.device.type != "meta"
    ):
        if _types().get(str(value.dtype).removeprefix("torch.")) is not value.dtype:
            raise NotData(value)
        parts = _of_tensor(value)
        out.extend(parts)
        return sum(map(len, parts))
    if isinstance(value, torch.Size):
        return _write(tuple(value), depth, out)
    if isinstance(value, (torch.dtype, torch.device)):
        kind = _DTYPE if isinstance(value, torch.dtype) else _DEVICE
        out.append(kind + str(value).removeprefix("torch.").encode())
        return len(out[-1])
    if "tensordict" not in sys.modules or depth == _DEPTH:
        raise NotData(value)
    kind, about, held = _parts_of(value)
    out.append(kind)
    return 1 + _several([("", about), *held], depth, out)


def _parts_of(value: Any) -> tuple[bytes, tuple[Any, ...], list[tuple[str, Any]]]:
    """The kind of a TensorDict or a stack, its properties, and its entries by name."""
    if tensordict.is_non_tensor(value):
        return _VALUES, tuple(value.batch_size), [("", one) for one in _flat(value)]
    if isinstance(value, tensordict.LazyStackedTensorDict):
        return (
            _STACK,
            (value.stack_dim, value.names[value.stack_dim]),
            [("", part) for part in value.tensordicts],
        )
    if type(value) is not tensordict.TensorDict:
        raise NotData(value)
    names = tuple(value.names) if any(value.names) else None
    about: tuple[Any, ...] = (
        tuple(value.batch_size),
        names,
        value.device is not None,
        tuple(value.keys()),
    )
    return _TENSORDICT, about, [(name, value.get(name)) for name in value.keys()]


def _flat(value: Any) -> list[Any]:
    """The values of a stack of non-tensor values, one for each place of its batch."""
    values = [value.tolist()]
    for _ in range(value.ndim):
        values = [one for inner in values for one in inner]
    return values


def _several(items: Iterable[tuple[object, object]], depth: int, out: list[Buffer]) -> int:
    """Appends ``items``, each after its length, to ``out``. Errors name the item's place."""
    begin, count, size = len(out), 0, _LENGTH.size
    out.append(b"")
    for place, value in items:
        at = len(out)
        out.append(b"")
        try:
            own = _write(value, depth + 1, out)
        except NotData as error:
            if place != "":
                error.place.insert(0, str(place))
            raise
        out[at] = _LENGTH.pack(own)
        count, size = count + 1, size + _LENGTH.size + own
    out[begin] = _LENGTH.pack(count)
    return size


_WRITERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: NONE,
    str: lambda value: TEXT + value.encode("utf-8", "surrogatepass"),
    bool: lambda value: _TRUE if value else _FALSE,
    int: lambda value: _INT + value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True),
    float: lambda value: _FLOAT + _REAL.pack(value),
    bytes: lambda value: _BYTES + value,
}
_HOLDING: dict[type, bytes] = {
    list: _LIST,
    tuple: _TUPLE,
    set: _SET,
    frozenset: _FROZENSET,
    dict: _DICT,
    collections.OrderedDict: _DICT,
}


@functools.cache
def _types() -> dict[str, torch.dtype]:
    """The element types of torch, by name."""
    import torch

    return {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}


class _Reading:
    """Reads one value, of ``size`` bytes."""

    def __init__(self, size: int) -> None:
        self._places = max(size, _PLACES)
        self._depth = self._holders = self._keys = 0

    def value(self, given: memoryview) -> Any:
        kind = bytes(given[:1])
        if (read := _READERS.get(kind)) is not None:
            return read(given[1:])
        if kind in (TENSOR, _ARRAY, _SCALAR):
            if kind != _SCALAR:
                self._count_holder()
            return self._numbers(kind, given)
        if kind not in _HOLDERS_BY_KIND:
            raise ValueError(f"no kind of value begins with {kind!r}")
        self._depth += 1
        self._count_holder()
        made = _HOLDERS_BY_KIND[kind](self, given[1:])
        self._depth -= 1
        return made

    def _count_holder(self) -> None:
        self._holders += 1
        if self._depth > _DEPTH or self._holders > _HOLDERS:
            raise ValueError(
                f"expected at most {_HOLDERS} lists, dictionaries, tensors and arrays, at most {_DEPTH} within each other"
            )

    def keys(self, given: memoryview) -> list[Any]:
        """Values that are to be looked up by their hash."""
        parts = list(self.items(given))
        keys = [self.value(part) for part in parts]
        self._keys += sum(
            len(part) for part, key in zip(parts, keys, strict=True) if not _is_plain_key(key)
        )
        if self._keys > _KEYS:
            raise ValueError(
                f"expected at most {_KEYS} bytes of keys that are neither text, bytes nor integers below {_SMALL}, got {self._keys}"
            )
        return keys

    def items(self, given: memoryview) -> Iterator[memoryview]:
        """The parts of ``given``, each of which follows its length."""
        count, rest = self._length(given)
        if count * _LENGTH.size > len(rest):
            raise ValueError(f"{count} values in {len(rest)} bytes")
        for _ in range(count):
            size, rest = self._length(rest)
            if size > len(rest):
                raise ValueError(f"a value of {size} bytes, of which there are {len(rest)}")
            yield rest[:size]
            rest = rest[size:]
        if len(rest):
            raise ValueError(f"{len(rest)} bytes behind the last value")

    def _length(self, given: memoryview) -> tuple[int, memoryview]:
        if len(given) < _LENGTH.size:
            raise ValueError("a length is cut short")
        return _LENGTH.unpack_from(given)[0], given[_LENGTH.size :]

    def values(self, given: memoryview) -> list[Any]:
        return [self.value(one) for one in self.items(given)]

    def mapping(self, given: memoryview) -> dict[Any, Any]:
        count, rest = self._length(given)
        size = _LENGTH.size
        for _ in range(count):
            length, rest = self._length(rest)
            if length > len(rest):
                raise ValueError(f"a key of {length} bytes, of which there are {len(rest)}")
            rest, size = rest[length:], size + _LENGTH.size + length
        return dict(zip(self.keys(given[:size]), self.values(given[size:]), strict=True))

    def size(self, shape: Any) -> tuple[int, ...]:
        """``shape``, once its number of places is known to be within the limit."""
        if not isinstance(shape, tuple) or not all(
            isinstance(one, int) and one >= 0 for one in shape
        ):
            raise ValueError(f"{shape!r} is no shape")
        # One by one first: the product of vast numbers takes long.
        if (
            max(shape, default=0) > self._places
            or math.prod(max(one, 1) for one in shape) > self._places
        ):
            raise ValueError(
                f"the shape {list(shape)} has more places than the limit of {self._places}"
            )
        return shape

    def batch(self, size: Any) -> tuple[int, ...]:
        """``size``, if it can be that of a batch."""
        check_dimensions(len(size))
        return self.size(size)

    def _numbers(self, kind: bytes, given: memoryview) -> Any:
        if len(given) < 3:
            raise ValueError("a tensor is cut short")
        begin = 3 + given[1]
        end = begin + given[2] * _NUMBER.size
        if end > len(given):
            raise ValueError("a shape is cut short")
        name, elements = str(given[3:begin], "ascii"), given[end:]
        shape = self.size(tuple(number for (number,) in _NUMBER.iter_unpack(given[begin:end])))
        known: Any = (
            _types().get(name) if kind == TENSOR else numpy.dtype(name) if name in NUMBERS else None
        )
        if known is None or name in _QUANTIZED:
            raise ValueError(f"{name!r} is no type of elements")
        if math.prod(shape) * known.itemsize != len(elements):
            raise ValueError(f"{len(elements)} bytes for a {name} of shape {list(shape)}")
        if name == "bool":
            # Torch and numpy accept any byte as a boolean.
            elements = memoryview(bytes(elements).translate(_FLAGS))
        if kind != TENSOR:
            # A copy: the caller may write to the array.
            array = numpy.frombuffer(bytearray(elements), known).reshape(shape)
            return array[()] if kind == _SCALAR else array
        return (
            torch.frombuffer(bytearray(elements), dtype=known).reshape(shape)
            if len(elements)
            else torch.empty(shape, dtype=known, device="cpu")
        )

    def tensordict(self, given: memoryview) -> Any:
        (size, names, has_device, keys), *values = self.values(given)
        if not all(isinstance(key, str) for key in keys) or len(set(keys)) != len(keys):
            raise ValueError("names of entries are no strings, or come twice")
        source = dict(zip(keys, values, strict=True))
        return tensordict.TensorDict(
            source, self.batch(size), names=names, device="cpu" if has_device else None
        )

    def stack(self, given: memoryview) -> Any:
        (dim, name), *parts = self.values(given)
        for part in parts:
            check_dimensions(part.batch_dims + 1)
        return tensordict.LazyStackedTensorDict(*parts, stack_dim=dim, stack_dim_name=name)

    def non_tensor(self, given: memoryview) -> Any:
        size, *values = self.values(given)
        if math.prod(self.batch(size)) != len(values):
            raise ValueError(f"{len(values)} values for the batch size {list(size)}")
        return stacked(values, size)


def _is_plain_key(key: object) -> bool:
    return type(key) in (str, bytes, bool, type(None)) or (
        type(key) is int and -_SMALL < key < _SMALL
    )


def check_dimensions(count: int) -> None:
    """Raises ValueError where a batch of values has ``count`` dimensions, and that is too many."""
    if count > _DIMENSIONS:
        raise ValueError(
            f"expected a batch of at most {_DIMENSIONS} dimensions, got one of {count}"
        )


def stacked(
    values: list[Any], shape: tuple[int, ...]
) -> tensordict.NonTensorData | tensordict.NonTensorStack:
    """Values as a stack of this shape, each of which is any object.

    Raises:
        ValueError: the shape has too many dimensions.
    """
    check_dimensions(len(shape))
    if not shape:
        return tensordict.NonTensorData(values[0])
    if not values:
        return tensordict.NonTensorData(None, batch_size=shape)
    each = len(values) // shape[0]
    rows = (values[place : place + each] for place in range(0, len(values), each))
    return tensordict.NonTensorStack(*(stacked(row, shape[1:]) for row in rows), stack_dim=0)


#: Any byte but 0 stands for True.
_FLAGS = bytes((0, *itertools.repeat(1, 255)))
_READERS: dict[bytes, Callable[[memoryview], Any]] = {
    NONE: lambda given: None,
    TEXT: lambda given: str(given, "utf-8", "surrogatepass"),
    _TRUE: lambda given: True,
    _FALSE: lambda given: False,
    _INT: lambda given: int.from_bytes(given, "little", signed=True),
    _FLOAT: lambda given: _REAL.unpack(given)[0],
    _BYTES: bytes,
    _DTYPE: lambda given: _types()[str(given, "ascii")],
    _DEVICE: lambda given: torch.device(str(given, "ascii")),
}
_HOLDERS_BY_KIND: dict[bytes, Callable[[_Reading, memoryview], Any]] = {
    _LIST: _Reading.values,
    _TUPLE: lambda reading, given: tuple(reading.values(given)),
    _SET: lambda reading, given: set(reading.keys(given)),
    _FROZENSET: lambda reading, given: frozenset(reading.keys(given)),
    _DICT: _Reading.mapping,
    _TENSORDICT: _Reading.tensordict,
    _STACK: _Reading.stack,
    _VALUES: _Reading.non_tensor,
}
