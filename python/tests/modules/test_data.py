"""Values as data, without pickle."""

from __future__ import annotations

import pickle
import struct
import traceback
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict

from windrow import _codecs
from windrow._data import Data
from windrow._objects import Objects

DATA = Data()


class Own(Exception):
    """No built-in exception."""


def same(one: Any, other: Any) -> bool:
    """Whether two values are of one type and content."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, (np.ndarray, np.generic)):
        return (
            type(one) is type(other)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and bool((one == other).all())
        )
    if isinstance(one, dict):
        return (
            type(other) is dict
            and list(one) == list(other)
            and all(same(one[key], other[key]) for key in one)
        )
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, -1, 255, -(2**70), 0.5, float("inf"), "", "text \ud800", b"", b"o\x80", [], (), {}, [1, "a", (2.5, None)],
        {"a": 1, 2: [b"x"], (1, 2): {}}, {1, 2}, frozenset("a"), torch.float16, torch.device("cpu"),
        torch.arange(6).reshape(2, 3), torch.zeros(0, 4), torch.tensor(True), torch.ones(3, dtype=torch.bfloat16), torch.ones(2, dtype=torch.complex64),
        np.arange(3, dtype=">i4").astype("<i4"), np.float32(1.5), np.zeros((2, 0)),
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_data_comes_back_as_it_was(value: Any) -> None:
    assert same(value, DATA.read(DATA.write(value)))


def test_tensordicts_come_back_with_their_names_values_and_stacks() -> None:
    parts = [TensorDict({"a": torch.ones(size)}) for size in (1, 2)]
    entries = {
        "text": NonTensorStack("one", "two", stack_dim=0),
        "same": NonTensorData({"level": 3}, batch_size=[2]),
        "nested": TensorDict({"x": torch.ones(2, 3, dtype=torch.float16)}, [2, 3]),
        "ragged": LazyStackedTensorDict(*parts, stack_dim=0),
    }
    read = DATA.read(DATA.write(TensorDict(entries, [2], device="cpu")))
    assert read.batch_size == (2,) and read.device == torch.device("cpu")
    assert read["text"] == ["one", "two"] and read.get("same").tolist() == [{"level": 3}] * 2
    assert (
        read["nested"].batch_size == (2, 3)
        and (read["nested", "x"] == 1).all()
        and read["nested", "x"].dtype == torch.float16
    )
    assert [len(part["a"]) for part in read["ragged"].unbind(0)] == [1, 2]
    named = DATA.read(
        DATA.write(TensorDict({"x": torch.zeros(2, 3)}, [2, 3], names=[None, "time"]))
    )
    assert named.names == [None, "time"] and named.device is None


def test_what_is_no_data_is_refused_by_its_name() -> None:
    circle: list[Any] = []
    circle.append(circle)
    for value, what in (
        (object(), "a object"),
        (circle, "a list"),
        (np.array(["a"]), "a ndarray"),
        (Own, "a type"),
    ):
        with pytest.raises(
            TypeError,
            match=rf"'?info'?, 'x'.*expected data .*got {what}.*allow_pickle=True at both ends",
        ):
            DATA.write({"x": value}, "info")


class Trap:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("unpickled",)


def numbers(kind: bytes, name: bytes, shape: tuple[int, ...], elements: bytes = b"") -> bytes:
    return (
        kind
        + bytes((len(name), len(shape)))
        + name
        + struct.pack(f"<{len(shape)}q", *shape)
        + elements
    )


def listed(kind: bytes, count: int, *values: bytes) -> bytes:
    return (
        kind
        + struct.pack("<Q", count)
        + b"".join(struct.pack("<Q", len(value)) + value for value in values)
    )


def batch(*size: int) -> bytes:
    """A TensorDict without entries."""
    return listed(b"D", 1, listed(b"u", 4, DATA.write(size), b"n", b"F", listed(b"u", 0)))


def stacks(depth: int) -> bytes:
    """Stacks within each other, the innermost of which holds a TensorDict."""
    value = batch()
    for _ in range(depth):
        value = listed(b"S", 2, DATA.write((0, None)), value)
    return value


def nested(depth: int) -> bytes:
    value = b"n"
    for _ in range(depth):
        value = listed(b"l", 1, value)
    return value


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (b"o" + pickle.dumps(Trap()), "got a pickled object.*allow_pickle=True at both ends"),
        (listed(b"l", 1, b"o" + pickle.dumps(Trap())), "no kind of value begins with b'o'"),
        (numbers(b"r", b"float32", (2**31, 4)), "more places than the limit"),
        (numbers(b"r", b"float32", (0, 2**62)), "more places than the limit"),
        (numbers(b"r", b"float32", (-1, 4)), "no shape"),
        (numbers(b"r", b"float32", (3,), bytes(8)), "8 bytes for a float32"),
        (numbers(b"r", b"load", (1,), bytes(8)), "'load' is no type"),
        (numbers(b"a", b"object", (1,), bytes(8)), "'object' is no type"),
        (b"r\x07\xff", "shape is cut short"),
        (listed(b"l", 2**40), "1099511627776 values in 0 bytes"),
        (b"l" + struct.pack("<QQ", 1, 2**40), "a value of 1099511627776 bytes"),
        (listed(b"l", 1, b"n") + b"x", "1 bytes behind"),
        (nested(100), "at most 32 within each other"),
        (listed(b"l", 70_000, *[listed(b"l", 0)] * 70_000), "at most 65536 lists"),
        (batch(2**40), "more places than the limit"),
        (batch(*[2**2000] * 8), "more places than the limit"),
        (batch(*[1] * 9), "at most 8 dimensions, got one of 9"),
        (stacks(20), "at most 8 dimensions, got one of 9"),
        (listed(b"N", 2, DATA.write((1,) * 60), b"n"), "at most 8 dimensions, got one of 60"),
        (listed(b"N", 2, DATA.write((2**40,)), b"n"), "more places than the limit"),
        (b"?", "no kind of value"),
    ],
    ids=str,
)
def test_bytes_that_are_no_data_are_errors_before_anything_is_made_of_them(
    given: bytes, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        DATA.read(given)


def test_bytes_are_made_tensors_of_those_types_alone_that_need_no_scale() -> None:
    names = {name for name, kind in vars(torch).items() if isinstance(kind, torch.dtype)}
    quantized = {name for name in names if name.startswith(("qint", "quint"))}
    assert len(quantized) == 5
    for name in names:
        size = getattr(torch, name).itemsize
        given = numbers(b"r", name.encode(), (1,), bytes(size))
        if name in quantized:
            with pytest.raises(ValueError, match=f"'{name}' is no type of elements"):
                DATA.read(given)
        else:
            assert DATA.read(given).dtype is getattr(torch, name)


def test_tensors_that_have_a_scale_cross_as_objects_alone() -> None:
    value = torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.quint8)
    with pytest.raises(TypeError, match=r"expected data .*got a Tensor"):
        DATA.write(value)
    assert torch.equal(Objects().read(Objects().write(value)), value)


def test_damaged_data_is_an_error_or_other_data() -> None:
    given = TensorDict(
        {
            "a": torch.arange(3),
            "b": NonTensorData("text"),
            "c": TensorDict({"d": torch.zeros(2, 2)}),
        }
    )
    written = DATA.write(([given, {"k": (1, 2.5, None)}], np.arange(4)))
    generator = np.random.default_rng(0)
    for _ in range(3000):
        damaged = bytearray(written)
        for at in generator.integers(0, len(damaged), generator.integers(1, 4)):
            damaged[at] = generator.integers(0, 256)
        cut = (
            damaged[: generator.integers(1, len(damaged) + 1)]
            if generator.random() < 0.3
            else damaged
        )
        try:
            DATA.read(bytes(cut))
        except ValueError:
            continue


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    "error",
    [
        ValueError("unlucky", 13),
        KeyError("x"),
        FileNotFoundError(2, "no such file"),
        ZeroDivisionError(),
        UnicodeDecodeError("ascii", b"\xff", 0, 1, "x"),
    ],
    ids=repr,
)
def test_built_in_exceptions_are_made_again_with_their_traceback(error: Exception) -> None:
    error.add_note("a note")
    made = DATA.read_error(DATA.write_error(raised(error)))
    assert type(made) is type(error) and made.args == error.args and made.__notes__ == ["a note"]
    assert "raise error" in str(made.__cause__)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("UnicodeDecodeError", ("ascii", b"x", -(2**40), 1 - 2**40, "odd")),
        ("UnicodeDecodeError", ("ascii", b"x", 0, 2, "odd")),
        ("UnicodeEncodeError", ("ascii", "x", -(2**40), 1 - 2**40, "odd")),
        ("UnicodeTranslateError", ("x", -1, 0, "odd")),
        ("StopIteration", ()),
        ("StopAsyncIteration", ()),
        ("SystemExit", (0,)),
    ],
)
def test_exceptions_that_would_do_harm_are_not_made_again(name: str, args: tuple[Any, ...]) -> None:
    sent = DATA.write((f"builtins.{name}", f"{name}: message", "lines", args, ()))
    error = DATA.read_error(sent)
    assert type(error) is RuntimeError and str(error) == f"{name}: message"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_end_of_the_other_program_crosses_as_a_failure(kind: type[BaseException]) -> None:
    made = DATA.read_error(DATA.write_error(kind(3)))
    assert type(made) is RuntimeError and kind.__name__ in str(made.__notes__)


def test_the_notes_of_an_exception_are_limited_where_they_are_read() -> None:
    notes = ("x" * (1 << 21), *["y"] * 1000)
    made = DATA.read_error(DATA.write(("builtins.KeyError", "m", "lines", (), notes)))
    assert len(made.__notes__) == 64 and len(made.__notes__[0]) < 1 << 21


@pytest.mark.parametrize(
    "keys",
    [
        [place * (2**61 - 1) for place in range(2000)],
        [place * 2.0**61 for place in range(2000)],
        [(place,) for place in range(2000)],
        [frozenset([place]) for place in range(2000)],
        [place * (2**61 - 1) << 4000 for place in range(100)],
    ],
    ids=["integers", "floats", "tuples", "sets", "long integers"],
)
def test_keys_whose_hashes_the_sender_can_choose_are_limited(keys: list[Any]) -> None:
    for value in (set(keys), frozenset(keys), dict.fromkeys(keys)):
        with pytest.raises(ValueError, match="expected at most 16384 bytes of keys"):
            DATA.read(DATA.write(value))


def test_any_number_of_keys_of_text_and_small_integers_is_read() -> None:
    for value in (set(range(5000)), {f"{place}": place for place in range(5000)}):
        assert DATA.read(DATA.write(value)) == value


def test_small_arrays_count_like_lists() -> None:
    array = np.zeros(1, "uint8")
    with pytest.raises(ValueError, match="expected at most 65536 lists"):
        DATA.read(DATA.write([array] * 65536))


def test_other_exceptions_cross_by_their_text() -> None:
    made = DATA.read_error(DATA.write_error(raised(Own("lost", object()))))
    assert (
        type(made) is RuntimeError
        and "lost" in str(made)
        and "Own" in "".join(traceback.format_exception_only(made))
    )
    assert "cannot be read" in str(DATA.read_error(b"o" + pickle.dumps(Trap())))
    objects = Objects()
    assert type(objects.read_error(objects.write_error(Own("lost")))) is Own


def test_objects_are_read_by_the_other_type_alone() -> None:
    written = Objects().write([object])
    assert Objects().read(written) == [object]
    with pytest.raises(ValueError, match="pickled object"):
        DATA.read(written)
    assert not _codecs.codec(False).allow_pickle and _codecs.codec(True).allow_pickle
