"""State that code reads in other ways than by the name of an attribute."""

from __future__ import annotations

import abc
import collections
import contextlib
import copy
import dataclasses
import functools
import operator
import re
import types
from typing import Any

import numpy as np
import torch

from stale.forms import OfNumber, form, state
from stale.forms_of_data import Fixed, Gain, Two

GET_ONE = operator.attrgetter("one")
GET_HELD_ONE = operator.attrgetter("held.one")
PLAIN = Fixed()


class Marked:
    """An object of which a key is larger than that of others after a change."""

    def __init__(self, gain: float, key: float) -> None:
        self.gain, self.key = gain, key


class Boxed:
    """A value behind the methods that operators and functions of the language call."""

    def __init__(self) -> None:
        self.one = 0

    def set(self, level: int) -> None:
        self.one = level

    def get(self) -> int:
        return self.one

    def __bool__(self) -> bool:
        return self.one > 0

    def __len__(self) -> int:
        return self.one

    def __contains__(self, number: int) -> bool:
        return number < self.one

    def __iter__(self) -> Any:
        return iter((self.one,))

    def __getitem__(self, key: Any) -> int:
        return self.one

    def __float__(self) -> float:
        return float(self.one)

    def __hash__(self) -> int:
        return self.one

    def __eq__(self, other: object) -> bool:
        return self.one == other

    def __format__(self, how: str) -> str:
        return f"<{self.one}>"

    def __enter__(self) -> int:
        return self.one

    def __exit__(self, *error: object) -> None:
        pass

    def __call__(self, times: int = 1) -> int:
        return self.one * times


def _set(policy: Any, level: int) -> None:
    policy.held.set(level)


def _replace(policy: Any, level: int) -> None:
    policy.held = float(level)


@form("held|one|other")
def a_dataclass_that_is_matched_by_position() -> Any:
    class Policy(OfNumber):
        def number(self) -> Any:
            match self.held:
                case Gain(one, _):
                    return one

    policy = Policy(Gain())
    return policy, lambda level: setattr(policy.held, "one", float(level))


@form("held|one|other")
def an_object_that_is_matched_by_name() -> Any:
    class Policy(OfNumber):
        def number(self) -> Any:
            match self.held:
                case Two(one=one):
                    return one

    policy = Policy(Two())
    return policy, policy.held.set


@form("held")
def a_dict_that_is_matched() -> Any:
    class Policy(OfNumber):
        def number(self) -> Any:
            match self.held:
                case {"kind": "high", "gain": gain}:
                    return gain
                case _:
                    return 0.0

    policy = Policy({"kind": "low", "gain": 0.0})
    return policy, lambda level: policy.held.update(kind="high", gain=float(level))


of_one: dict[str, Any] = {
    "a global attrgetter": lambda self: GET_ONE(self.held),
    "a global attrgetter two deep": lambda self: GET_HELD_ONE(self),
    "getattr by a joined name": lambda self: getattr(self.held, "o" + "ne"),
    "the text of an attribute by str.format": lambda self: float(f"{self.held.one}"),
    "object.__getattribute__": lambda self: object.__getattribute__(self.held, "one"),
    "the state by which an object is pickled": lambda self: self.held.__reduce_ex__(2)[2]["one"],
    "a shallow copy": lambda self: copy.copy(self.held).one,
    "a deep copy made by each call": lambda self: copy.deepcopy(self.held).one,
    "text that is evaluated": lambda self: eval("self.held.one"),
    "a getattr that is held": lambda self: functools.reduce(getattr, ("held", "one"), self),
}
for name, read in of_one.items():
    state(name, Two, read, _set, names="held|one|other")

of_gain: dict[str, Any] = {
    "dataclasses.asdict": lambda self: dataclasses.asdict(self.held)["one"],
    "dataclasses.replace": lambda self: dataclasses.replace(self.held, other=1.0).one,
    "the repr of a dataclass": lambda self: float(repr(self.held).split("=")[1].split(",")[0]),
}
for name, read in of_gain.items():
    state(
        name,
        Gain,
        read,
        lambda self, level: setattr(self.held, "one", float(level)),
        names="held|one",
    )

boxed: dict[str, Any] = {
    "__len__ of an object": lambda self: len(self.held),
    "__iter__ of an object": lambda self: sum(self.held),
    "__getitem__ of an object": lambda self: self.held["any"],
    "__float__ of an object": lambda self: float(self.held),
    "__hash__ of an object": lambda self: hash(self.held),
    "__format__ of an object": lambda self: float(f"{self.held}"[1:-1]),
    "__call__ of an object": lambda self: self.held(),
    "an object that is unpacked": lambda self: [*self.held][0],
}
for name, read in boxed.items():
    state(name, Boxed, read, _set, names="held|one")

flags: dict[str, Any] = {
    "__bool__ of an object": lambda self: 1.0 if self.held else 0.0,
    "__contains__ of an object": lambda self: float(0 in self.held),
    "__eq__ of an object": lambda self: float(self.held == 1),
}
for name, read in flags.items():
    state(name, Boxed, read, _set, names="held|one", is_flag=True)


@form("held|one")
def an_object_whose_context_is_entered() -> Any:
    class Policy(OfNumber):
        def number(self) -> Any:
            with self.held as value:
                return value

    policy = Policy(Boxed())
    return policy, policy.held.set


class Index:
    """A number that indexes."""

    at = 0

    def __index__(self) -> int:
        return self.at


state(
    "an object as an index of a tensor",
    Index,
    lambda self: torch.arange(64.0)[self.held],
    lambda self, level: setattr(self.held, "at", min(level, 63)),
    names="held|at",
    is_raced=False,
)
state(
    "an attrgetter that it holds",
    lambda: (operator.attrgetter("one"), Two()),
    lambda self: self.held[0](self.held[1]),
    lambda self, level: self.held[1].set(level),
)
state(
    "a methodcaller that it holds",
    lambda: (operator.methodcaller("get"), Boxed()),
    lambda self: self.held[0](self.held[1]),
    lambda self, level: self.held[1].set(level),
)
state(
    "an itemgetter that it holds",
    lambda: (operator.itemgetter("one"), {"one": 0}),
    lambda self: self.held[0](self.held[1]),
    lambda self, level: self.held[1].update(one=level),
)
state(
    "the largest by an attrgetter",
    lambda: [Marked(0.0, 1.0), Marked(0.0, 0.0)],
    lambda self: max(self.held, key=operator.attrgetter("key")).gain,
    lambda self, level: self.held.append(Marked(float(level), level + 1.0)),
)
state(
    "a dataclass that is compared",
    Fixed,
    lambda self: float(self.held != PLAIN),
    lambda self, level: setattr(self, "held", Fixed(float(level))),
    is_flag=True,
)
state(
    "whether it is a certain object",
    lambda: PLAIN,
    lambda self: float(id(self.held) != id(PLAIN)),
    lambda self, level: setattr(self, "held", Fixed() if level else PLAIN),
    is_flag=True,
    is_whole_copy=False,
)
state(
    "a counter whose name begins as torch's",
    lambda: None,
    lambda self: self._version,
    lambda self, level: setattr(self, "_version", level),
    names="_version",
    start={"_version": 0},
)
state(
    "a pattern that is searched",
    lambda: "a0",
    lambda self: float(re.search(r"\d+", self.held).group()),
    lambda self, level: setattr(self, "held", f"a{level}"),
)
state(
    "text that it evaluates",
    lambda: "0.0",
    lambda self: eval(self.held),
    lambda self, level: setattr(self, "held", f"{level} + 0.0"),
)
state(
    "the name of a class",
    lambda: type("Gain0", (), {}),
    lambda self: float(self.held.__name__[4:]),
    lambda self, level: setattr(self, "held", type(f"Gain{level}", (), {})),
)
state(
    "the text beside a function",
    lambda: lambda: None,
    lambda self: float(self.held.__doc__ or 0),
    lambda self, level: setattr(self.held, "__doc__", str(level)),
    names="held|__doc__",
    is_shared=True,
)


def _caught(self: Any) -> Any:
    try:
        return self.boost
    except AttributeError:
        return 0.0


def _suppressed(self: Any) -> Any:
    with contextlib.suppress(KeyError):
        return self.held["boost"]
    return 0.0


def _swap(self: Any, level: int) -> None:
    # As many attributes as before.
    vars(self).pop("held", None)
    self.boost = float(level)


state("an attribute that appears while another goes", lambda: 0.0, _caught, _swap, names="boost")
state(
    "a key that appears, within suppress",
    dict,
    _suppressed,
    lambda self, level: self.held.update(boost=float(level)),
)
state(
    "hasattr of what appears",
    lambda: None,
    lambda self: self.late if hasattr(self, "late") else 0.0,
    lambda self, level: setattr(self, "late", float(level)),
    names="late",
)
state(
    "getattr with a default of what appears",
    lambda: types.SimpleNamespace(),
    lambda self: getattr(self.held, "late", 0.0),
    lambda self, level: setattr(self.held, "late", float(level)),
    names="held|late",
)
state(
    "dict.get of what appears",
    dict,
    lambda self: self.held.get("late", 0.0),
    lambda self, level: self.held.update(late=float(level)),
)
state(
    "whether a key is there",
    dict,
    lambda self: float("late" in self.held),
    lambda self, level: self.held.update(late=1) if level else self.held.clear(),
    is_flag=True,
)
state(
    "a key that appears in an earlier dict of a chain",
    lambda: collections.ChainMap({}, {"one": 0.0}),
    lambda self: self.held["one"],
    lambda self, level: self.held.maps[0].update(one=float(level)),
)
state(
    "keywords that it passes on",
    lambda: {"gain": 0.0},
    lambda self: (lambda gain=0.0, **_: gain)(**self.held),
    lambda self, level: self.held.update(gain=float(level)),
)


@form("shown", is_flag=True)
def a_deletion_that_shows_the_attribute_of_the_class() -> Any:
    class Policy(OfNumber):
        shown = 1.0

        def number(self) -> Any:
            return self.shown

    policy = Policy()
    policy.shown = 0.0

    def change(level: int) -> None:
        if level:
            del policy.shown
        else:
            policy.shown = 0.0

    return policy, change


@form("kind|held|register", is_shared=True, is_flag=True, is_raced=False)
def a_class_that_is_registered_with_an_abstract_one() -> Any:
    class Own(abc.ABC):  # noqa: B024
        pass

    class Other:
        pass

    class Policy(OfNumber):
        def number(self) -> Any:
            return float(isinstance(self.held, self.kind))

        kind = Own

    policy = Policy(Other())

    def change(level: int) -> None:
        if level:
            Own.register(Other)
            Policy.kind = Own
        else:
            # Nothing takes a registration back.
            Policy.kind = Fixed

    return policy, change


state(
    "numbers interpolated in a table",
    lambda: np.array([0.0, 0.0]),
    lambda self: float(np.interp(0.5, [0.0, 1.0], self.held)),
    lambda self, level: self.held.__setitem__(slice(None), float(level)),
)
state(
    "one of three hundred numbers",
    lambda: [0] * 300,
    lambda self: self.held[150],
    lambda self, level: self.held.__setitem__(150, level),
)
state(
    "how deep a function calls itself",
    lambda: 0,
    lambda self: _depth(self.held),
    lambda self, level: setattr(self, "held", level % 50),
    is_raced=False,
)


def _depth(left: int) -> int:
    return 0 if left == 0 else 1 + _depth(left - 1)


state("a number that is annealed", lambda: 0.0, lambda self: self.held * 1.0, _replace)
