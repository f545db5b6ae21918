"""One call of Rust says whether what Python has read is still there."""

import gc
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from windrow._windrow import Readings

MISSING = object()


class Held:
    """Something that a weak reference can follow."""


def _function(default: object = 1, *, keyword: object = 2) -> object:
    return default, keyword


def _cell(*held: object) -> types.CellType:
    return types.CellType(*held)


def _copied() -> Any:
    """A function of its own that is made as :func:`_function` is."""
    copied = types.FunctionType(
        _function.__code__, globals(), "copied", _function.__defaults__, None
    )
    copied.__kwdefaults__ = dict(_function.__kwdefaults__ or {})
    return copied


def _of_list(held: list[object]) -> Readings:
    return Readings([], [], [], MISSING, items=[(held, 1, held[1])])


def _of_function(held: Any) -> Readings:
    state = (held, held.__code__, held.__defaults__, held.__kwdefaults__)
    return Readings([], [], [], MISSING, functions=[state])


CHANGES: dict[str, Callable[[Any], object]] = {
    "__code__": lambda function: setattr(function, "__code__", _copied.__code__),
    "__defaults__": lambda function: setattr(function, "__defaults__", (3,)),
    "no __defaults__": lambda function: setattr(function, "__defaults__", None),
    "__kwdefaults__": lambda function: setattr(function, "__kwdefaults__", {"keyword": 2}),
}


def test_an_item_of_a_list_is_the_same_until_another_object_is_in_its_place() -> None:
    held: list[object] = [Held(), Held(), Held()]
    readings = _of_list(held)
    held[0] = held[2] = Held()
    assert readings.is_same()
    held[1] = Held()
    assert not readings.is_same()


def test_an_item_of_a_list_that_became_too_short_is_another() -> None:
    held: list[object] = [Held(), Held()]
    readings = _of_list(held)
    held.pop()
    assert not readings.is_same()


@pytest.mark.parametrize("change", list(CHANGES))
def test_a_function_is_another_once_what_it_is_made_of_is_assigned(change: str) -> None:
    function = _copied()
    readings = _of_function(function)
    assert readings.is_same()
    CHANGES[change](function)
    assert not readings.is_same()


def test_a_cell_is_another_once_it_holds_another_object() -> None:
    value = Held()
    cell = _cell(value)
    readings = Readings([], [], [], MISSING, cells=[(cell, value)])
    assert readings.is_same()
    cell.cell_contents = Held()
    assert not readings.is_same()


def test_a_cell_that_is_emptied_or_filled_is_another() -> None:
    cell, empty = _cell(1), _cell()
    readings = [
        Readings([], [], [], MISSING, cells=[(cell, 1)]),
        Readings([], [], [], MISSING, cells=[(empty, MISSING)]),
    ]
    assert all(one.is_same() for one in readings)
    del cell.cell_contents
    empty.cell_contents = MISSING
    assert not any(one.is_same() for one in readings)


def test_readings_in_a_cycle_of_references_are_freed() -> None:
    value, function = Held(), _copied()
    held: list[object] = [value]
    cell = _cell(value)
    function.__defaults__ = (value,)
    value.readings = Readings(  # type: ignore[attr-defined]
        [],
        [],
        [],
        MISSING,
        items=[(held, 0, value)],
        functions=[(function, function.__code__, function.__defaults__, None)],
        cells=[(cell, value)],
    )
    gone = weakref.ref(value)
    del value, held, cell, function
    gc.collect()
    assert gone() is None
