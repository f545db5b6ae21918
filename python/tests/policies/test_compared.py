"""Values compared by what they pickle to, and what code refers to outside of its objects."""

from __future__ import annotations

import collections
import enum
import functools
import os
import random
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from windrow.policies.compared import Named, Outside, changed, look

LEVEL = 0
HELD = {"level": 0}
DRAWS = random.Random(0)


class Colour(enum.Enum):
    RED = 1


class Number(float):
    level = 0


class Thing:
    level = 0


def thing(**given: Any) -> Thing:
    made = Thing()
    vars(made).update(given)
    return made


def value_of(form: str) -> tuple[Any, Callable[[], Any]]:
    """A value, and what changes it."""
    held: dict[str, Any] = {"one": 1}
    tensor, lock = torch.zeros(2), threading.Lock()
    locked = thing(lock=lock, level=0)
    number, layer = Number(1.0), nn.Linear(1, 1)
    forms: dict[str, tuple[Any, Callable[[], Any]]] = {
        "a dictionary": (held, lambda: held.update(one=2)),
        "order of a dictionary": (held, lambda: held.update(one=held.pop("one")) or held),
        "views of keys": (held.keys(), lambda: held.update(two=2)),
        "a proxy": (types.MappingProxyType(held), lambda: held.update(two=2)),
        "a function": (lambda: held["one"], lambda: held.update(one=2)),
        "a partial": (functools.partial(max, held), lambda: held.update(one=2)),
        "an attribute of a number": (number, lambda: setattr(number, "level", 1)),
        "an attribute of a member": (Colour.RED, lambda: setattr(Colour.RED, "level", object())),
        "a tensor": (tensor, lambda: tensor.add_(1)),
        "a mark on a tensor": (tensor, lambda: setattr(tensor, "mark", 1)),
        "a module of no one": (layer, lambda: nn.init.zeros_(layer.weight)),
        "behind a weak reference": (weakref.ref(locked), lambda: setattr(locked, "level", 1)),
        "beside a lock": (locked, lambda: setattr(locked, "level", 1)),
        "an array": (array := np.zeros(2), lambda: array.fill(1)),
        "a queue": (queue := collections.deque([1]), lambda: queue.append(2)),
    }
    held.update(forms_end=0)
    return forms[form]


FORMS = [
    "a dictionary",
    "order of a dictionary",
    "views of keys",
    "a proxy",
    "a function",
    "a partial",
    "an attribute of a number",
    "an attribute of a member",
    "a tensor",
    "a mark on a tensor",
    "a module of no one",
    "behind a weak reference",
    "beside a lock",
    "an array",
    "a queue",
]


@pytest.mark.parametrize("form", FORMS)
def test_a_change_within_a_value_is_seen_and_nothing_else(form: str) -> None:
    value, change = value_of(form)
    reads = {"it": lambda: value}
    before = look(reads, Named())
    assert not changed(look(reads, Named(), before), before)
    change()
    assert changed(look(reads, Named(), before), before) == {"it"}


@pytest.mark.parametrize(
    "value", [threading.Lock(), iter(()), (number for number in ()), DRAWS, print, Thing]
)
def test_what_cannot_be_pickled_or_draws_is_compared_by_identity(value: object) -> None:
    held = [value]
    before = look({"it": lambda: held}, Named())
    if value is DRAWS:
        DRAWS.random()
    assert not changed(look({"it": lambda: held}, Named()), before)
    held[0] = threading.Lock()
    assert changed(look({"it": lambda: held}, Named()), before)


def outer(level: int = 0, *, named: dict[str, int] = {"level": 0}) -> Any:
    return LEVEL, HELD, inner(), Thing.level, os.environ["HOME"], DRAWS.random(), level, named


def inner() -> Any:
    return inner.level  # type: ignore[attr-defined]


inner.level = 0  # type: ignore[attr-defined]


class Parent:
    level = 0

    @property
    def both(self) -> Any:
        return self.level

    @staticmethod
    def given() -> int:
        return 0


class Child(Parent):
    def act(self) -> Any:
        return self.both, self.given(), id(self)

    def learn(self) -> Any:
        return UNNAMED


UNNAMED = 0


@pytest.mark.parametrize(
    ("place", "change"),
    [
        ("LEVEL", lambda patch: patch.setitem(globals(), "LEVEL", 1)),
        ("HELD", lambda patch: patch.setitem(HELD, "level", 1)),
        ("inner.__dict__", lambda patch: patch.setattr(inner, "level", 1)),
        ("inner", lambda patch: patch.setitem(globals(), "inner", lambda: 0)),
        ("Thing.level", lambda patch: patch.setattr(Thing, "level", 1)),
        ("os.environ", lambda patch: patch.setenv("HOME", "elsewhere")),
        ("outer.__defaults__", lambda patch: patch.setattr(outer, "__defaults__", (1,))),
        ("outer.__kwdefaults__", lambda patch: patch.setitem(outer.__kwdefaults__, "named", {})),
        ("outer.__code__", lambda patch: patch.setattr(outer, "__code__", inner.__code__)),
        ("Parent.level", lambda patch: patch.setattr(Parent, "level", 1)),
        ("Child.level", lambda patch: patch.setattr(Child, "level", 1, raising=False)),
        ("Parent.both", lambda patch: patch.setattr(Parent, "both", property(id))),
        ("id", lambda patch: patch.setitem(globals(), "id", abs)),
        ("Parent.given", lambda patch: patch.setattr(Parent, "given", staticmethod(dict))),
    ],
)
def test_a_change_outside_is_named(
    place: str, change: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = Outside(())
    outside.follow([outer, Child.act, Child])
    before = look(outside.reads, Named())
    DRAWS.random()
    # No name in what runs leads there.
    monkeypatch.setitem(globals(), "UNNAMED", 1)
    assert not changed(look(outside.reads, Named(), before), before)
    change(monkeypatch)
    found = changed(look(outside.reads, Named(), before), before)
    assert [one for one in found if one.endswith(place)] == sorted(found)


def test_what_a_closure_holds_is_named_by_its_variable() -> None:
    level = [0]

    def read() -> Any:
        return level

    outside = Outside(())
    outside.follow([read])
    before = look(outside.reads, Named())
    level.append(1)
    (found,) = changed(look(outside.reads, Named()), before)
    assert found.endswith("read's level")


def test_other_bases_of_a_class_are_named() -> None:
    class Told(Parent):
        pass

    class Other(Parent):
        pass

    outside = Outside(())
    outside.follow([Told])
    before = look(outside.reads, Named())
    Told.__bases__ = (Other,)
    (found,) = changed(look(outside.reads, Named(), before), before)
    assert found.endswith("Told.__bases__")
