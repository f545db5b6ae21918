"""State in classes, functions and modules of Python that a program replaces."""

from __future__ import annotations

import builtins
import contextvars
import copy
import functools
import importlib
import logging
import math
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from stale import elsewhere
from stale.forms import Base, OfNumber, form, pair, shifted, state
from stale.forms_of_data import Two

GAINS = {"gain": 0.0}
REGISTRY: dict[str, type] = {}
LOGGER = logging.getLogger("stale.forms")
ELSEWHERE = elsewhere.__name__


def _outer() -> Any:
    return _inner()


def _inner() -> Any:
    return 0.0


def _given(gain: float = 0.0, *, more: float = 0.0) -> float:
    return gain + more


@functools.lru_cache
def _cached(key: str) -> float:
    return GAINS[key]


def _recached(self: Any, level: int) -> None:
    GAINS["gain"] = float(level)
    _cached.cache_clear()


def _forgotten() -> None:
    _recached(None, 0)


@functools.singledispatch
def _dispatched(value: Any) -> float:
    return 0.0


def _reset(**names: Any) -> Callable[[], None]:
    return lambda: globals().update(names)


# A module's functions, defaults and caches

state(
    "a function that a function calls, replaced",
    lambda: None,
    lambda self: _outer(),
    lambda self, level: globals().update(_inner=lambda: float(level)),
    names="_inner|_outer",
    is_shared=True,
    undo=_reset(_inner=_inner),
)
state(
    "keyword defaults of a function",
    lambda: None,
    lambda self: _given(),
    lambda self, level: setattr(_given, "__kwdefaults__", {"more": float(level)}),
    names="_given",
    is_shared=True,
    undo=lambda: setattr(_given, "__kwdefaults__", {"more": 0.0}),
)
state(
    "a cache that is cleared",
    lambda: None,
    lambda self: _cached("gain"),
    _recached,
    names="_cached|GAINS|gain",
    is_shared=True,
    undo=_forgotten,
)
state(
    "an implementation that is registered",
    lambda: 1,
    lambda self: _dispatched(self.held),
    lambda self, level: _dispatched.register(int, lambda value: float(level)),
    names="_dispatched",
    is_shared=True,
    undo=lambda: _dispatched.register(int, lambda value: 0.0),
)
state(
    "a global that hides a builtin",
    lambda: None,
    lambda self: abs(0.0),
    lambda self, level: globals().update(abs=lambda value: float(level)),
    names="abs",
    is_shared=True,
    undo=lambda: globals().pop("abs", None),
)
state(
    "a name in builtins",
    lambda: setattr(builtins, "WINDROW_STALE", 0.0),
    lambda self: WINDROW_STALE,  # type: ignore[name-defined]
    lambda self, level: setattr(builtins, "WINDROW_STALE", float(level)),
    names="WINDROW_STALE",
    is_shared=True,
    undo=lambda: setattr(builtins, "WINDROW_STALE", 0.0),
)
state(
    "a module in place of another",
    lambda: None,
    lambda self: importlib.import_module(ELSEWHERE).LATE,
    lambda self, level: sys.modules.update({ELSEWHERE: types.SimpleNamespace(LATE=level)}),
    names="elsewhere|ELSEWHERE|LATE",
    is_shared=True,
    undo=lambda: sys.modules.update({ELSEWHERE: elsewhere}),
)
elsewhere.LATE = 0.0  # type: ignore[attr-defined]
LATE = types.ModuleType("late")
LATE.__getattr__ = lambda name: {"GAIN": 0.0}[name]  # type: ignore[method-assign]
state(
    "an attribute that a module made up before",
    lambda: None,
    lambda self: LATE.GAIN,
    lambda self, level: setattr(LATE, "GAIN", float(level)),
    names="LATE|GAIN",
    is_shared=True,
    undo=lambda: vars(LATE).pop("GAIN", None),
)


@form("gains|held|loop", is_shared=True, is_whole=True)
def functions_made_in_a_loop() -> Any:
    made = []
    for at in range(2):
        made.append(lambda: at * 0.0 + gains[0])
    gains = [0.0]
    policy = type("Policy", (OfNumber,), {"number": lambda self: made[1]()})()
    return policy, lambda level: gains.__setitem__(0, float(level))


@form("gain|cell|number", is_shared=True, is_whole=True)
def a_cell_that_is_set() -> Any:
    gain = 0.0

    def number(self: Any) -> Any:
        return gain

    policy = type("Policy", (OfNumber,), {"number": number})()
    return policy, lambda level: setattr(number.__closure__[0], "cell_contents", float(level))


def _wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def inner(*given: Any) -> Any:
        return inner.__wrapped__(*given)

    return inner


@form("__wrapped__|number", is_shared=True)
def what_a_decorator_wraps() -> Any:
    class Policy(OfNumber):
        @_wrapped
        def number(self) -> Any:
            return 0.0

    return Policy(), lambda level: setattr(Policy.number, "__wrapped__", lambda self: float(level))


@form("number", is_shared=True)
def a_partial_method() -> Any:
    class Policy(OfNumber):
        def _at(self, gain: float) -> Any:
            return gain

        number = functools.partialmethod(_at, 0.0)

    return Policy(), lambda level: setattr(
        Policy, "number", functools.partialmethod(Policy._at, float(level))
    )


@form("number|Policy", is_shared=True)
def a_method_put_into_a_subclass() -> Any:
    class Parent(OfNumber):
        def number(self) -> Any:
            return 0.0

    class Policy(Parent):
        pass

    return Policy(), lambda level: setattr(Policy, "number", lambda self: float(level))


@form("gain|Mixin", is_shared=True)
def an_attribute_of_a_class_between() -> Any:
    class Far:
        gain = 0.0

    class Mixin(Far):
        pass

    class Policy(Mixin, OfNumber):
        def number(self) -> Any:
            return self.gain

    return Policy(), lambda level: setattr(Mixin, "gain", float(level))


@form("gain|__bases__|Policy", is_shared=True)
def other_bases() -> Any:
    class One:
        gain = 0.0

    class Policy(OfNumber, One):
        def number(self) -> Any:
            return self.gain

    def change(level: int) -> None:
        Policy.__bases__ = (OfNumber, type("Other", (), {"gain": float(level)}))

    return Policy(), change


@form("gain|Settings", is_shared=True)
def a_list_of_the_class() -> Any:
    class Policy(OfNumber):
        gains = [0.0]

        def number(self) -> Any:
            return type(self).gains[0]

    return Policy(), lambda level: Policy.gains.__setitem__(0, float(level))


@form("Meta|gain", is_shared=True)
def a_property_of_a_metaclass() -> Any:
    class Meta(type):
        gain = property(lambda cls: 0.0)

    class Policy(OfNumber, metaclass=Meta):
        def number(self) -> Any:
            return type(self).gain

    return Policy(), lambda level: setattr(Meta, "gain", property(lambda cls: float(level)))


@form("Meta|stored", is_shared=True)
def getattr_of_a_metaclass() -> Any:
    class Meta(type):
        def __getattr__(cls, name: str) -> Any:
            if name != "gain":
                raise AttributeError(name)
            return cls.stored["gain"]

    class Kind(metaclass=Meta):
        stored = {"gain": 0.0}

    class Policy(OfNumber):
        def number(self) -> Any:
            return Kind.gain

    return Policy(), lambda level: Kind.stored.update(gain=float(level))


@form("stored|gain")
def getattr_of_the_module_itself() -> Any:
    class Policy(OfNumber):
        def __getattr__(self, name: str) -> Any:
            return vars(self)["stored"]["gain"] if name == "gain" else super().__getattr__(name)

        def number(self) -> Any:
            return self.gain

    policy = Policy()
    policy.stored = {"gain": 0.0}
    return policy, lambda level: policy.stored.update(gain=float(level))


@form("__getattribute__|gain", is_shared=True, is_whole_copy=False)
def getattribute_put_into_a_class() -> Any:
    class Settings:
        gain = 0.0

    class Policy(OfNumber):
        def number(self) -> Any:
            return self.held.gain

    def change(level: int) -> None:
        Settings.__getattribute__ = lambda self, name: float(level)

    return Policy(Settings()), change


class Scaled:
    """A descriptor with a state of its own."""

    gain = 0.0

    def __get__(self, policy: Any, kind: Any = None) -> Any:
        return self.gain


@form("both|gain", is_shared=True)
def a_descriptor_with_state() -> Any:
    scaled = Scaled()

    class Policy(OfNumber):
        both = scaled

        def number(self) -> Any:
            return self.both

    return Policy(), lambda level: setattr(scaled, "gain", float(level))


@form("__call__|Policy", is_shared=True)
def call_put_into_the_class() -> Any:
    class Policy(OfNumber):
        def number(self) -> Any:
            return 0.0

    def change(level: int) -> None:
        Policy.__call__ = lambda self, x: shifted(self.forward(x), *pair(level))

    return Policy(), change


@form("REGISTRY", is_shared=True)
def a_registry_of_subclasses() -> Any:
    class Head:
        def __init_subclass__(cls, name: str) -> None:
            REGISTRY[name] = cls

    class Policy(OfNumber):
        def number(self) -> Any:
            return REGISTRY["head"].gain  # type: ignore[attr-defined]

    def change(level: int) -> None:
        type("Own", (Head,), {"gain": float(level)}, name="head")

    change(0)
    return Policy(), change


@form("held|one|other", is_shared=True)
def an_object_that_is_copied_in_a_hook() -> Any:
    held = Two()

    class Policy(Base):
        def read(self) -> Any:
            return 0.0, 0.0

    policy = Policy()

    def hook(module: Any, given: Any, output: Any) -> Any:
        twin = copy.deepcopy(held)
        return shifted(output, twin.one, twin.other)

    policy.net.register_forward_hook(hook)
    return policy, held.set


# Classes and functions of torch

NAMES = "patched|replaced|Linear|Sequential|Tanh|tanh|relu|linear|Normal|Module|torch|floor|max"


class Layers(nn.Sequential):
    """A linear layer that changes nothing and a function of torch that doesn't either."""

    def __init__(self, last: nn.Module) -> None:
        layer = nn.Linear(2, 2)
        nn.init.eye_(layer.weight)
        nn.init.zeros_(layer.bias)
        super().__init__(layer, last)


class Calls(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.function(observation)


def _patched(name: str, owner: Any, attribute: str, make: Any, replaced: Any) -> None:
    """Adds a form in which an attribute of a class or module of torch is ``replaced(level)``."""
    first = vars(owner).get(attribute)

    def made() -> Any:
        return make(), lambda level: setattr(owner, attribute, replaced(level))

    def undo() -> None:
        if first is None:
            delattr(owner, attribute) if attribute in vars(owner) else None
        else:
            setattr(owner, attribute, first)

    made.__name__, made.__module__ = name, __name__
    form(NAMES, is_shared=True, is_of_process=True, undo=undo)(made)


def _relu(level: int) -> Any:
    return lambda x, inplace=False: shifted(x, *pair(level))


_patched(
    "torch.relu replaced", torch, "relu", lambda: Layers(Calls(lambda x: torch.relu(x))), _relu
)
_patched("F.relu replaced", F, "relu", lambda: Layers(Calls(lambda x: F.relu(x))), _relu)
_patched("F.relu below a layer replaced", F, "relu", lambda: Layers(nn.ReLU()), _relu)
_patched(
    "a method put into tensors",
    torch.Tensor,
    "relu",
    lambda: Layers(Calls(lambda x: x.relu())),
    _relu,
)
_patched(
    "F.linear replaced",
    F,
    "linear",
    lambda: Layers(nn.Identity()),
    lambda level: lambda x, weight, bias=None: shifted(x @ weight.T, *pair(level)),
)
_patched(
    "forward of ReLU replaced",
    nn.ReLU,
    "forward",
    lambda: Layers(nn.ReLU()),
    lambda level: lambda self, x: shifted(x, *pair(level)),
)
_patched(
    "forward of Linear replaced",
    nn.Linear,
    "forward",
    lambda: Layers(nn.Identity()),
    lambda level: lambda self, x: shifted(x @ self.weight.T, *pair(level)),
)
_patched(
    "forward of Sequential replaced",
    nn.Sequential,
    "forward",
    lambda: Layers(nn.ReLU()),
    lambda level: lambda self, x: shifted(self[1](self[0](x)), *pair(level)),
)
_patched(
    "call put into ReLU",
    nn.ReLU,
    "__call__",
    lambda: Layers(nn.ReLU()),
    lambda level: lambda self, x: shifted(x, *pair(level)),
)
_patched(
    "mode of Normal replaced",
    torch.distributions.Normal,
    "mode",
    lambda: Calls(lambda x: torch.distributions.Normal(x, 1.0).mode),
    lambda level: property(lambda self: shifted(self.loc, *pair(level))),
)
_patched(
    "math.floor replaced",
    math,
    "floor",
    lambda: Calls(lambda x: x + math.floor(0.5)),
    lambda level: lambda value: torch.tensor(pair(level)),
)
_patched(
    "builtins.max replaced",
    builtins,
    "max",
    lambda: Calls(lambda x: x + max(0.0, -1.0)),
    lambda level: (
        lambda *given, _max=max, **named: (
            torch.tensor(pair(level)) if given == (0.0, -1.0) else _max(*given, **named)
        )
    ),
)


@form("forward|net", is_shared=True)
def forward_of_a_layer_replaced_as_adapters_do() -> Any:
    class Policy(Base):
        def read(self) -> Any:
            return 0.0, 0.0

    policy = Policy()

    def change(level: int) -> None:
        layer = policy.net
        added = torch.tensor(pair(level))
        layer.forward = lambda x: F.linear(x, layer.weight, layer.bias) + added

    return policy, change


# What belongs to a thread, and what the standard library keeps

LOCAL = threading.local()
CONTEXT = contextvars.ContextVar("gain", default=0.0)
state(
    "a value of the thread",
    lambda: None,
    lambda self: getattr(LOCAL, "gain", 0.0),
    lambda self, level: setattr(LOCAL, "gain", float(level)),
    names="LOCAL",
    is_local=True,
    undo=lambda: vars(LOCAL).clear(),
)
state(
    "a variable of the context",
    lambda: None,
    lambda self: CONTEXT.get(),
    lambda self, level: CONTEXT.set(float(level)),
    names="CONTEXT",
    is_local=True,
    undo=lambda: CONTEXT.set(0.0),
)
state(
    "the level of a logger",
    lambda: None,
    lambda self: float(LOGGER.level),
    lambda self, level: LOGGER.setLevel(level),
    names="LOGGER|level",
    is_shared=True,
    is_of_process=True,
    undo=lambda: LOGGER.setLevel(0),
)
