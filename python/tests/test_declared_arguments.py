"""Arguments that are declared once."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from windrow._arguments import Arguments, argument, ignored, takes
from windrow._numbers import at_least


class RoomArguments(Arguments):
    name: str = argument("on the door", kw_only=False)
    width: int = argument("steps from wall to wall", check=at_least(1), engine=True)
    seed: int | None = argument("what random choices follow from", default=None, check=at_least(0), engine=True)
    device: str = ignored("rooms are on the CPU", default="cpu")


class Room:
    @takes(RoomArguments)
    def __init__(self, arguments: RoomArguments) -> None:
        self.arguments = arguments


class Hall(Room):
    pass


def test_signature_and_documentation_come_from_the_declaration() -> None:
    parameters = inspect.signature(Hall).parameters
    assert list(parameters) == ["name", "width", "seed", "device"]
    assert parameters["seed"].default is None and parameters["device"].default == "cpu"
    documented = inspect.getdoc(Hall.__init__)
    assert "width: steps from wall to wall" in documented and "device: no effect: rooms are on the CPU" in documented


def test_the_engine_gets_checked_values_by_name() -> None:
    assert Room("a", width=True + 2).arguments.for_engine() == {"width": 3, "seed": None}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"width": 0}, ValueError, "width must be 1 or more, got 0"),
        ({"width": 1, "seed": -1}, ValueError, "seed must be 0 or more, got -1"),
        ({}, TypeError, "Hall: missing a required argument: 'width'"),
        ({"width": 1, "name": "b"}, TypeError, "Hall: multiple values for argument 'name'"),
        ({"widht": 1, "colour": 2}, TypeError, r"Hall has no argument colour, widht \(did you mean width\?\)"),
    ],
)
def test_a_wrong_argument_is_named_with_the_class(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Hall("a", **arguments)


def test_an_argument_without_effect_is_warned_of_where_it_is_given() -> None:
    with pytest.warns(UserWarning, match="device has no effect: rooms are on the CPU"):
        Room("a", width=1, device="cuda")


def test_a_value_that_holds_anyway_needs_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    Room("a", width=1, device="cpu")
    Room("a", width=1, device=None)
    assert not recwarn.list
