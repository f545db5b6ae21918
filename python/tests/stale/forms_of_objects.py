"""State in containers, subclasses of plain types, objects of Python's library and NumPy."""

from __future__ import annotations

import collections
import ctypes
import decimal
import enum
import functools
import multiprocessing
import threading
import types
import weakref
from typing import Any

import attr
import numpy as np
import pydantic
import torch
from torch import nn

from stale.forms import OfNumber, form, pair, shifted, state
from stale.forms_of_data import Two

OPTIONS: dict[str, float] = {"gain": 0.0}
KEYS, VALUES = OPTIONS.keys(), OPTIONS.values()


class Name(str):
    pass


class Real(float):
    pass


class Items(list):  # type: ignore[type-arg]
    pass


class Table(dict):  # type: ignore[type-arg]
    def __missing__(self, key: str) -> float:
        return OPTIONS["gain"]


class Reached(dict):  # type: ignore[type-arg]
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__  # type: ignore[assignment]


class Array(np.ndarray):  # type: ignore[type-arg]
    pass


class Marked(torch.Tensor):
    """A tensor with attributes, as quantisers and images have them."""


class Member(enum.Enum):
    ONE = 1


class Listed(enum.Enum):
    GAIN = [0.0]


class Switch(enum.IntFlag):
    LOW = 1
    HIGH = 2


class Model(pydantic.BaseModel):
    gain: float = 0.0


Attrs = attr.make_class("Attrs", {"gain": attr.ib(default=0.0)})


def _gained(self: Any, level: int) -> None:
    self.held.gain = float(level)


def _first(self: Any) -> Any:
    return next(iter(self.held)).one


def _of_first(self: Any, level: int) -> None:
    next(iter(self.held)).set(level)


def _option(self: Any, level: int) -> None:
    OPTIONS["gain"] = float(level)


def _at(value: Any, **attributes: Any) -> Any:
    for name, one in attributes.items():
        setattr(value, name, one)
    return value


subclasses: dict[str, Any] = {
    "an attribute of a str": lambda: _at(Name("a"), gain=0.0),
    "an attribute of a float": lambda: _at(Real(2.0), gain=0.0),
    "an attribute of a list": lambda: _at(Items([1]), gain=0.0),
    "an attribute of an array": lambda: _at(np.ones(2).view(Array), gain=0.0),
    "an attribute of a plain tensor": lambda: _at(torch.ones(2), gain=0.0),
    "an attribute of a tensor of a subclass": lambda: _at(
        torch.ones(2).as_subclass(Marked), gain=0.0
    ),
    "a dict whose items are attributes": lambda: Reached(gain=0.0),
    "an object of attrs": Attrs,
    "a model of pydantic": Model,
}
for name, make in subclasses.items():
    # NumPy copies arrays without their attributes.
    whole = name != "an attribute of an array"
    state(
        name,
        make,
        lambda self: self.held.gain,
        _gained,
        names="held|gain",
        is_whole_copy=whole,
    )

for name, held in {"a set": set, "a frozenset": frozenset}.items():
    state(
        f"an object in {name}", lambda held=held: held([Two()]), _first, _of_first, names="held|one"
    )
state(
    "an object that is a key",
    lambda: {Two(): 1.0},
    lambda self: sum(key.one * value for key, value in self.held.items()),
    _of_first,
    names="held|one",
)
state(
    "a tensor in a set",
    lambda: {torch.zeros(())},
    lambda self: next(iter(self.held)),
    lambda self, level: next(iter(self.held)).fill_(level),
)
state(
    "a tuple in a set",
    lambda: {(0, 0)},
    lambda self: float((1, 1) in self.held),
    lambda self, level: (self.held.clear(), self.held.add((level, level))),
    is_flag=True,
)
state(
    "keys of a dict, held",
    lambda: (lambda items: (items, items.keys()))({}),
    lambda self: float("late" in self.held[1]),
    lambda self, level: self.held[0].update(late=1) if level else self.held[0].clear(),
    is_flag=True,
)
state(
    "keys of a global dict",
    lambda: None,
    lambda self: float("late" in KEYS),
    lambda self, level: OPTIONS.update(late=1.0) if level else OPTIONS.pop("late", None),
    names="KEYS|OPTIONS|gain",
    is_flag=True,
    is_shared=True,
    undo=lambda: OPTIONS.pop("late", None),
)
state(
    "values of a global dict",
    lambda: None,
    lambda self: sum(VALUES),
    _option,
    names="VALUES|OPTIONS|gain",
    is_shared=True,
    undo=lambda: OPTIONS.update(gain=0.0),
)
state(
    "a dict that makes what is missing",
    Table,
    lambda self: self.held["any"],
    _option,
    names="held|OPTIONS|gain",
    is_shared=True,
    undo=lambda: OPTIONS.update(gain=0.0),
)


def _reordered(self: Any, level: int) -> None:
    for key in ("one", "other") if level else ("other", "one"):
        self.held[key] = self.held.pop(key)


state(
    "the order of a dict",
    lambda: {"other": 0.0, "one": 1.0},
    lambda self: next(iter(self.held.values())),
    _reordered,
    is_flag=True,
    is_raced=False,
)
state(
    "the order of functions in a dict",
    lambda: {"one": lambda x: x + 1.0, "other": lambda x: x * 0.0},
    lambda self: functools.reduce(lambda x, function: function(x), self.held.values(), 0.0),
    lambda self, level: _reordered(self, 1 - level),
    is_flag=True,
    is_raced=False,
)
state(
    "the order of an OrderedDict",
    lambda: collections.OrderedDict(one=1.0, other=0.0),
    lambda self: [*self.held.values()][-1],
    lambda self, level: self.held.move_to_end("one" if level else "other"),
    is_flag=True,
)
state(
    "a UserDict",
    lambda: collections.UserDict(one=0.0),
    lambda self: self.held["one"],
    lambda self, level: self.held.update(one=float(level)),
)
state(
    "a deque that is turned",
    lambda: collections.deque([0.0, 1.0]),
    lambda self: self.held[0],
    lambda self, level: self.held.rotate(1),
    is_flag=True,
)
state(
    "a list into which a number is put",
    lambda: [0.0, 0.0],
    lambda self: self.held[0],
    lambda self, level: self.held.insert(0, float(level)),
)
state(
    "a slice",
    lambda: slice(0, 0),
    lambda self: float(len(range(10_000_000)[self.held])),
    lambda self, level: setattr(self, "held", slice(0, level)),
)
state(
    "a range",
    lambda: range(0),
    lambda self: float(len(self.held)),
    lambda self, level: setattr(self, "held", range(level)),
)
state(
    "a bytearray",
    lambda: bytearray(1),
    lambda self: float(self.held[0]),
    lambda self, level: self.held.__setitem__(0, level),
    is_raced=False,
)
state(
    "a decimal",
    lambda: decimal.Decimal(0),
    lambda self: float(self.held),
    lambda self, level: setattr(self, "held", decimal.Decimal(level)),
)
state(
    "a number of ctypes",
    lambda: ctypes.c_double(0),
    lambda self: self.held.value,
    lambda self, level: setattr(self.held, "value", float(level)),
)
state(
    "a number that processes share",
    lambda: multiprocessing.RawValue("d", 0.0),
    lambda self: self.held.value,
    lambda self, level: setattr(self.held, "value", float(level)),
    is_local=True,
)
state(
    "a view of bytes",
    lambda: memoryview(bytearray(8)).cast("d"),
    lambda self: self.held[0],
    lambda self, level: self.held.__setitem__(0, float(level)),
)
state(
    "a tensor over bytes",
    lambda: bytearray(4),
    lambda self: torch.frombuffer(self.held, dtype=torch.float32)[0],
    lambda self, level: np.frombuffer(self.held, np.float32).__setitem__(0, level),
)
state(
    "a mask of a masked array",
    lambda: np.ma.array([1.0], mask=[True]),
    lambda self: float(self.held.filled(0.0)[0]),
    lambda self, level: setattr(self.held, "mask", [not level]),
    is_flag=True,
)
state(
    "a record of NumPy",
    lambda: np.zeros(1, [("gain", "f4")])[0],
    lambda self: float(self.held["gain"]),
    lambda self, level: self.held.__setitem__("gain", level),
)
state(
    "an array without dimensions in place",
    lambda: np.zeros(()),
    lambda self: float(self.held),
    lambda self, level: self.held.fill(level),
)
state(
    "a branch on an array",
    lambda: np.zeros(3),
    lambda self: 1.0 if self.held.sum() > 2 else 0.0,
    lambda self, level: self.held.fill(level),
    is_flag=True,
)
state(
    "a branch on a number of NumPy",
    lambda: np.False_,
    lambda self: 1.0 if self.held else 0.0,
    lambda self, level: setattr(self, "held", np.bool_(level)),
    is_flag=True,
)
state(
    "an array of another type of numbers",
    lambda: np.zeros(1, np.float32),
    lambda self: torch.from_numpy(self.held).float()[0],
    lambda self, level: setattr(self, "held", np.full(1, level, (np.float64, np.int64)[level % 2])),
)
state(
    "an array of another shape",
    lambda: np.zeros(1),
    lambda self: torch.from_numpy(self.held).float().mean(),
    lambda self, level: setattr(self, "held", np.full(level + 1, float(level))),
    is_raced=False,
)
state(
    "an object array",
    lambda: np.array([0.0, None], object),
    lambda self: self.held[0],
    lambda self, level: self.held.__setitem__(0, float(level)),
)
state(
    "a value of an enum member",
    lambda: Listed.GAIN,
    lambda self: self.held.value[0],
    lambda self, level: Listed.GAIN.value.__setitem__(0, float(level)),
    names="held|Listed",
    is_shared=True,
    undo=lambda: Listed.GAIN.value.__setitem__(0, 0.0),
)
state(
    "an attribute of an enum member",
    lambda: _at(Member.ONE, gain=0.0),
    lambda self: self.held.gain,  # type: ignore[attr-defined]
    lambda self, level: setattr(Member.ONE, "gain", float(level)),
    names="held|gain",
    is_shared=True,
    undo=lambda: setattr(Member.ONE, "gain", 0.0),
)
state(
    "flags of an enum",
    lambda: Switch.LOW,
    lambda self: float(Switch.HIGH in self.held),
    lambda self, level: setattr(self, "held", Switch.LOW | Switch.HIGH if level else Switch.LOW),
    is_flag=True,
)
state(
    "a model of pydantic, dumped",
    Model,
    lambda self: self.held.model_dump()["gain"],
    _gained,
    names="held|gain",
)
state(
    "a property over a list that grows",
    lambda: types.SimpleNamespace(items=[Two()]),
    lambda self: self.held.items[-1].one,
    lambda self, level: self.held.items.append(types.SimpleNamespace(one=float(level))),
)
state(
    "an object whose dict is replaced",
    Two,
    lambda self: self.held.one,
    lambda self, level: setattr(self.held, "__dict__", {"one": float(level)}),
)
state(
    "an object whose class is replaced",
    Two,
    lambda self: self.held.gain if hasattr(self.held, "gain") else 0.0,
    lambda self, level: setattr(
        self.held, "__class__", type("Gains", (Two,), {"gain": float(level)})
    ),
)
state(
    "an event of threads",
    threading.Event,
    lambda self: float(self.held.is_set()),
    lambda self, level: self.held.set() if level else self.held.clear(),
    is_flag=True,
    is_local=True,
)


class OfWeak(OfNumber):
    """Keeps what is referred to weakly."""

    def __init__(self, refer: Any) -> None:
        super().__init__()
        self.kept = Two()
        self.held = refer(self.kept)


def _weak(name: str, refer: Any, read: Any) -> None:
    def make() -> Any:
        policy = type("Policy", (OfWeak,), {"number": read})(refer)
        return policy, policy.kept.set

    make.__name__ = name
    make.__module__ = __name__
    form("held|kept|one", is_whole_copy=False)(make)


_weak("a proxy of an object", weakref.proxy, lambda self: self.held.one)
_weak("a set of weak references", lambda two: weakref.WeakSet([two]), _first)
_weak(
    "a weak dict of values",
    lambda two: weakref.WeakValueDictionary({"one": two}),
    lambda self: self.held["one"].one,
)

GAINS: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
BY_ID: dict[int, float] = {}


@form("GAINS", is_whole_copy=False, is_shared=True)
def a_weak_dict_by_the_module() -> Any:
    policy = type("Policy", (OfNumber,), {"number": lambda self: GAINS.get(self, -9.0)})()
    GAINS[policy] = 0.0
    return policy, lambda level: GAINS.__setitem__(policy, float(level))


@form("BY_ID", is_whole_copy=False, is_shared=True)
def a_dict_by_the_identity_of_the_module() -> Any:
    policy = type("Policy", (OfNumber,), {"number": lambda self: BY_ID.get(id(self), -9.0)})()
    BY_ID[id(policy)] = 0.0
    return policy, lambda level: BY_ID.__setitem__(id(policy), float(level))


class LeavesOut(OfNumber):
    """Copies of it are plain."""

    gain = -9.0

    def number(self) -> Any:
        return self.gain


class CopiedPlain(LeavesOut):
    def __deepcopy__(self, memo: Any) -> Any:
        other = CopiedPlain()
        other.load_state_dict(self.state_dict())
        return other


class PickledPlain(LeavesOut):
    def __getstate__(self) -> Any:
        return {key: value for key, value in vars(self).items() if key != "gain"}


for kind in (CopiedPlain, PickledPlain):

    def make(kind: Any = kind) -> Any:
        policy = kind()
        policy.gain = 0.0
        return policy, lambda level: setattr(policy, "gain", float(level))

    make.__name__ = f"a module that is {kind.__name__}"
    make.__module__ = __name__
    form("gain", is_whole_copy=False)(make)


@form("held|one", is_whole_copy=False)
def a_child_that_refers_to_its_parent() -> Any:
    class Child(nn.Module):
        def __init__(self, parent: Any) -> None:
            super().__init__()
            self.parent = weakref.ref(parent)

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            parent = self.parent()
            return shifted(parent.net(observation), parent.gain, -parent.gain)

    class Policy(OfNumber):
        def __init__(self) -> None:
            super().__init__()
            self.gain, self.child = 0.0, Child(self)

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return self.child(observation)

    policy = Policy()
    return policy, lambda level: setattr(policy, "gain", float(level))


@form("held|bias", is_shared=True)
def modules_in_a_set() -> Any:
    layer = nn.Linear(2, 2)
    nn.init.eye_(layer.weight)
    nn.init.zeros_(layer.bias)

    class Policy(OfNumber):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            for one in self.held:
                observation = one(observation)
            return observation

    policy = Policy({layer})
    return policy, lambda level: layer.bias.data.copy_(torch.tensor(pair(level)))
