"""Further side effects: writes of every kind, draws, hooks, modes, and what is done to inputs."""

from __future__ import annotations

import bisect
import builtins
import collections
import contextlib
import ctypes
import dataclasses
import enum
import functools
import io
import itertools
import operator
import os
import queue
import random
import threading
import types
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Bounded
from torchrl.modules import EGreedyModule

from stale import elsewhere
from stale.effects import (
    COUNTING,
    EXPLORES,
    Acts,
    counting,
    exploring,
    handling,
    outside,
    turning,
)
from stale.forms import shifted

MANY = 400
LOCAL = threading.local()
KINDS: list[type] = []
HEARD: list[int] = []
ENDED: list[int] = []


class Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(1))
        self.w = nn.Parameter(torch.zeros(1))


class Calls:
    """An object whose methods count how often they are called."""

    def __init__(self) -> None:
        self.calls = 0

    def tick(self, *given: object) -> int:
        self.calls += 1
        return self.calls

    __getitem__ = __add__ = __contains__ = __call__ = tick

    def __enter__(self) -> int:
        return self.tick()

    def __exit__(self, *error: object) -> None:
        pass

    def __getattr__(self, name: str) -> int:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.tick()

    @property
    def read(self) -> int:
        return self.tick()

    @functools.cached_property
    def late(self) -> int:
        return self.tick()


class Sets:
    """An object that counts what is written to it."""

    calls = 0

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__("calls", self.calls + 1)

    @property
    def written(self) -> int:
        return self.calls

    @written.setter
    def written(self, value: int) -> None:
        super().__setattr__("calls", value)


class Kept:
    """A descriptor that keeps what is written."""

    def __init__(self) -> None:
        self.value = 0

    def __get__(self, policy: Any, kind: Any = None) -> int:
        return self.value

    def __set__(self, policy: Any, value: int) -> None:
        self.value = value


class Meta(type):
    calls = 0


class Counted(metaclass=Meta):
    calls = 0

    @classmethod
    def tick(cls) -> int:
        cls.calls += 1
        return cls.calls


class Member(enum.Enum):
    ONE = 1


class Heard(Exception):
    def __init__(self) -> None:
        HEARD.append(1)


class Head:
    def __init_subclass__(cls) -> None:
        KINDS.append(cls)


class Dies:
    def __del__(self) -> None:
        ENDED.append(1)


@dataclasses.dataclass(frozen=True)
class Fixed:
    calls: int = 0


def _then(*values: Any) -> Any:
    """The last of ``values``, after the others were evaluated."""
    return values[-1]


def _attribute(name: str, owner: Any) -> Any:
    """A function that counts in an attribute of an object that is everybody's."""
    setattr(owner, name, 0)

    def count(policy: Any) -> Any:
        # In another process, nothing has set it.
        setattr(owner, name, getattr(owner, name, 0) + 1)
        return getattr(owner, name)

    return count


# Containers

counting("setdefault", dict, lambda s: _then(s.held.setdefault(0, []).append(1), len(s.held[0])))
counting(
    "a deque that is turned",
    lambda: collections.deque(range(1, MANY)),
    lambda s: _then(s.held.rotate(-1), s.held[-1]),
)
counting("a list that another is added to", list, lambda s: len(operator.iadd(s.held, [1])))
counting(
    "a slice of a list",
    lambda: [0],
    lambda s: _then(s.held.__setitem__(slice(0, 1), [s.held[0] + 1]), s.held[0]),
)
counting("a dict that is merged", dict, lambda s: len(operator.ior(s.held, {len(s.held): 1})))
counting("Counter.update", collections.Counter, lambda s: _then(s.held.update(["a"]), s.held["a"]))
counting(
    "a set that shrinks", lambda: {*range(MANY)}, lambda s: _then(s.held.pop(), -len(s.held)) + MANY
)
counting("insort", list, lambda s: _then(bisect.insort(s.held, 1), len(s.held)))
counting(
    "an OrderedDict that is turned",
    lambda: collections.OrderedDict.fromkeys(range(MANY)),
    lambda s: _then(s.held.move_to_end(next(iter(s.held))), next(reversed(s.held))),
)
counting(
    "a comprehension that writes",
    lambda: {"n": 0},
    lambda s: [s.held.update(n=s.held["n"] + 1) or s.held["n"] for _ in (0,)][0],
)
counting("text in memory", io.StringIO, lambda s: _then(s.held.write("x"), s.held.tell()))
counting("a number of ctypes", lambda: ctypes.c_long(0), lambda s: _attribute_of(s.held, "value"))


def _attribute_of(held: Any, name: str) -> Any:
    setattr(held, name, getattr(held, name) + 1)
    return getattr(held, name)


def _filled() -> Any:
    filled: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(MANY):
        filled.put(number)
    return filled


counting("a queue that is read", _filled, lambda s: s.held.get())
counting("a zip", lambda: zip(itertools.count(), itertools.count()), lambda s: next(s.held)[0])
counting("an enumeration", lambda: enumerate(itertools.repeat(0)), lambda s: next(s.held)[0])
counting("an iterator of a range", lambda: iter(range(MANY)), lambda s: next(s.held))

# Tensors and arrays

counting("a buffer in place", Buffered, lambda s: s.held.n.add_(1)[0])
counting("data of a buffer", Buffered, lambda s: s.held.n.data.add_(1)[0])
counting(
    "an item of a buffer",
    Buffered,
    lambda s: _then(s.held.n.__setitem__(0, s.held.n[0] + 1), s.held.n[0]),
)
counting("a buffer that is copied to", Buffered, lambda s: s.held.n.copy_(s.held.n + 1)[0])
counting(
    "a buffer that is replaced",
    Buffered,
    lambda s: _then(setattr(s.held, "n", s.held.n + 1), s.held.n[0]),
)
counting(
    "a view of a buffer", Buffered, lambda s: _then(s.held.n.view(1, 1)[0].add_(1), s.held.n[0])
)
counting(
    "a buffer that is registered",
    Buffered,
    lambda s: _then(s.held.register_buffer("n", s.held.n + 1), s.held.n[0]),
)
counting("a sum that is written out", Buffered, lambda s: torch.add(s.held.n, 1, out=s.held.n)[0])
counting(
    "a list of tensors in place",
    Buffered,
    lambda s: _then(torch._foreach_add_([s.held.n], 1.0), s.held.n[0]),
)
counting(
    "an array over a tensor",
    lambda: torch.zeros(1),
    lambda s: _then(operator.iadd(s.held.numpy(), 1), s.held[0]),
)
counting(
    "a record of NumPy",
    lambda: np.zeros(1, [("n", "i8")]),
    lambda s: _then(s.held["n"].__iadd__(1), s.held["n"][0]),
)
counting("a weight in place", Buffered, lambda s: s.held.w.data.add_(1)[0])


def _gradient(s: Any) -> Any:
    weight = s.held.w
    weight.grad = torch.ones(1) if weight.grad is None else weight.grad + 1
    return weight.grad[0]


counting("a gradient", Buffered, _gradient)


def _rate() -> Any:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    return torch.optim.lr_scheduler.LambdaLR(optimizer, float)


counting(
    "a schedule",
    _rate,
    lambda s: _then(s.held.optimizer.step(), s.held.step(), s.held.get_last_lr()[0]),
)
counting(
    "statistics of a norm in training",
    lambda: nn.BatchNorm1d(1),
    lambda s: _then(s.held(torch.ones(2, 1)), s.held.num_batches_tracked),
)
counting(
    "an exploration schedule of torchrl",
    lambda: EGreedyModule(
        Bounded(0.0, 1.0, (2,)), eps_init=1.0, annealing_num_steps=1000, eps_end=0.0
    ),
    lambda s: _then(s.held.step(1), round(1000 * (1 - float(s.held.eps)))),
)
counting(
    "an entry of a tensordict",
    lambda: TensorDict({"n": torch.zeros(())}),
    lambda s: s.held.set_("n", s.held["n"] + 1)["n"],
)
counting(
    "names of a tensordict's dimensions",
    lambda: TensorDict({}, [1], names=["0"]),
    lambda s: _then(
        setattr(s.held, "names", [str(int(s.held.names[0]) + 1)]), int(s.held.names[0])
    ),
)
counting(
    "the seed of a generator",
    lambda: torch.Generator().manual_seed(0),
    lambda s: s.held.manual_seed(s.held.initial_seed() + 1).initial_seed(),
)
counting(
    "a layer that is added",
    nn.Module,
    lambda s: _then(
        s.held.add_module(f"l{len(s.held._modules)}", nn.Identity()), len(s.held._modules)
    ),
)

# Attributes, classes, functions

counting(
    "an attribute that is new each time",
    types.SimpleNamespace,
    lambda s: _then(setattr(s.held, f"a{len(vars(s.held))}", 0), len(vars(s.held))),
)
counting(
    "an attribute that is deleted",
    lambda: types.SimpleNamespace(**{f"a{number}": 0 for number in range(MANY)}),
    lambda s: _then(delattr(s.held, f"a{len(vars(s.held)) - 1}"), MANY - len(vars(s.held))),
)
counting(
    "the dict of the module", lambda: 0, lambda s: _then(vars(s).update(held=s.held + 1), s.held)
)
counting(
    "object.__setattr__",
    lambda: 0,
    lambda s: _then(object.__setattr__(s, "held", s.held + 1), s.held),
)
counting("__setattr__ of an object", Sets, lambda s: _then(setattr(s.held, "any", 0), s.held.calls))
counting(
    "a property that writes",
    Sets,
    lambda s: _then(Sets.written.fset(s.held, s.held.written + 1), s.held.calls),  # type: ignore[attr-defined]
)
counting("a property that counts", Calls, lambda s: s.held.read)
counting("__getattr__ that counts", Calls, lambda s: s.held.anything)
counting("__getitem__ that counts", Calls, lambda s: s.held[0])
counting("__add__ that counts", Calls, lambda s: s.held + 1)
counting("__call__ that counts", Calls, lambda s: s.held())
counting("a method of an object", Calls, lambda s: s.held.tick())
counting("a cached property", Calls, lambda s: _then(s.held.late, vars(s.held).pop("late")))


def _entered(s: Any) -> int:
    with s.held as calls:
        return calls


def _left(s: Any) -> int:
    with contextlib.ExitStack() as stack:
        stack.callback(s.held.tick)
    return s.held.calls


def _raised(s: Any) -> int:
    try:
        raise Heard
    except Heard:
        return len(HEARD)


counting("a context that is entered", Calls, _entered)
counting("what is called at the end of a context", Calls, _left)
counting("an error that counts", lambda: None, _raised)
counting(
    "a dataclass that is replaced",
    Fixed,
    lambda s: _then(
        setattr(s, "held", dataclasses.replace(s.held, calls=s.held.calls + 1)), s.held.calls
    ),
)
counting("a class method", lambda: None, lambda s: Counted.tick())
counting("an attribute of a metaclass", lambda: None, _attribute("calls", Meta))
counting("an attribute of an enum member", lambda: None, _attribute("calls", Member.ONE))
counting("an attribute of a module", lambda: None, _attribute("CALLS", elsewhere))
counting("a name in builtins", lambda: None, _attribute("WINDROW_CALLS", builtins))
counting("an attribute of the thread", lambda: None, _attribute("calls", LOCAL))
counting(
    "globals()",
    lambda: None,
    lambda s: _then(globals().update(NOW=globals().get("NOW", 0) + 1), globals()["NOW"]),
)
counting(
    "a subclass in each call", lambda: None, lambda s: _then(type("Own", (Head,), {}), len(KINDS))
)
counting("a generator that is sent to", lambda: _echo(), lambda s: s.held.send(1))


def _echo() -> Any:
    def summed() -> Any:
        total = 0
        while True:
            total += yield total

    made = summed()
    next(made)
    return made


@functools.lru_cache
def _hit() -> int:
    return 0


counting("the hits of a cache", lambda: None, lambda s: _then(_hit(), _hit.cache_info().hits))


def _cells() -> Any:
    calls = 0

    def put() -> None:
        nonlocal calls
        calls += 1

    return put, lambda: calls


counting("a cell of two functions", _cells, lambda s: _then(s.held[0](), s.held[1]()))


def _deep(s: Any) -> int:
    def inner() -> int:
        def innermost() -> int:
            s.held += 1
            return s.held

        return innermost()

    return inner()


counting("a function in a function", lambda: 0, _deep)


# Hooks


def _hooked(name: str, register: str) -> None:
    def made(seed: int) -> Any:
        calls = Calls()
        policy = Acts(lambda self: calls.calls)
        # The layer is called before the count is read.
        getattr(policy.net, register)(lambda *given: _then(calls.tick(), None))
        return _First(policy), None

    COUNTING[name] = made


class _First(nn.Module):
    """Calls a layer, and then adds a count."""

    def __init__(self, inner: Acts) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        hidden = self.inner.net(observation)
        value = float(self.inner.act(self.inner))
        return shifted(hidden, value, -value)


_hooked("a hook", "register_forward_hook")
_hooked("a hook before a layer", "register_forward_pre_hook")
counting(
    "a hook that is registered in each call",
    nn.Identity,
    lambda s: _then(s.held.register_forward_hook(_nothing), len(s.held._forward_hooks)),
)


def _nothing(*given: object) -> None:
    pass


# What alternates

turning(
    "its mode", nn.Identity, lambda s: _then(s.held.train(not s.held.training), s.held.training)
)
turning("its own mode", lambda: None, lambda s: _then(s.train(not s.training), s.training))
turning(
    "whether a weight is trained",
    Buffered,
    lambda s: s.held.w.requires_grad_(not s.held.w.requires_grad).requires_grad,
)
turning("a list that is reversed", lambda: [0, 1], lambda s: _then(s.held.reverse(), s.held[0]))
turning("a cycle", lambda: itertools.cycle((0, 1)), lambda s: next(s.held))
turning(
    "two attributes exchanged",
    lambda: types.SimpleNamespace(one=0, other=1),
    lambda s: _then(s.held.__dict__.update(one=s.held.other, other=s.held.one), s.held.one),
)
turning(
    "an event",
    threading.Event,
    lambda s: _then((s.held.clear if s.held.is_set() else s.held.set)(), s.held.is_set()),
)

# Draws

exploring("a generator of one's own", lambda seed: seed, lambda s: _congruent(s))
exploring("torch.randint", lambda seed: None, lambda s: torch.randint(100, ()) / 100)
exploring(
    "torch.bernoulli", lambda seed: None, lambda s: 1 - torch.bernoulli(torch.tensor(EXPLORES))
)
exploring("uniform_", lambda seed: None, lambda s: torch.empty(()).uniform_())
exploring("torch.randperm", lambda seed: None, lambda s: torch.randperm(4)[0] / 4)
exploring(
    "torch.multinomial", lambda seed: None, lambda s: torch.multinomial(torch.ones(4), 1)[0] / 4
)
exploring(
    "dropout in training",
    lambda seed: nn.Dropout(1 - EXPLORES),
    lambda s: 1.0 - s.held(torch.ones(())),
)
exploring(
    "a Categorical",
    lambda seed: None,
    lambda s: torch.distributions.Categorical(torch.ones(4) / 4).sample() / 4,
)
exploring(
    "random.shuffle",
    lambda seed: [0, 1, 2, 3],
    lambda s: _then(random.shuffle(s.held), s.held[0]) / 4,
)
exploring("getrandbits", lambda seed: random.Random(seed), lambda s: s.held.getrandbits(2) / 4)
exploring(
    "NumPy's choice", lambda seed: np.random.default_rng(seed), lambda s: s.held.choice(4) / 4
)


def _congruent(s: Any) -> float:
    s.held = (1103515245 * s.held + 12345) % 2**31
    return s.held / 2**31


# What is not the policy's


@outside("a callback")
def _callbacks() -> Any:
    heard: list[int] = []
    callbacks = [heard.append]
    return lambda self: [callback(1) for callback in callbacks] and None, lambda: len(heard)


@outside("a destructor")
def _destructors() -> Any:
    return lambda self: Dies() and None, lambda: len(ENDED)


@outside("a pipe")
def _pipes() -> Any:
    there, here = os.pipe()
    os.set_blocking(there, False)
    total = [0]

    def count() -> int:
        with contextlib.suppress(BlockingIOError):
            total[0] += len(os.read(there, 1 << 16))
        return total[0]

    return lambda self: os.write(here, b"x") and None, count


@outside("a thread")
def _threads() -> Any:
    held = Calls()

    def start(self: Any) -> None:
        thread = threading.Thread(target=held.tick)
        thread.start()
        thread.join()

    return start, lambda: held.calls


@outside("a writer of scalars")
def _writers() -> Any:
    written = types.SimpleNamespace(scalars=[])
    written.add_scalar = lambda tag, value: written.scalars.append((tag, value))
    return lambda self: written.add_scalar("gain", 1.0), lambda: len(written.scalars)


# What is done to inputs and outputs


def _keeps(s: Any, x: torch.Tensor) -> torch.Tensor:
    s.last = s.net(x) + 1
    return s.last


def _fills(s: Any, x: torch.Tensor) -> torch.Tensor:
    if not hasattr(s, "filled") or s.filled.shape != x.shape:
        s.filled = torch.zeros_like(x)
    return s.filled.copy_(x + 1)


handling("its input in place", lambda s, x: x.add_(1))
handling("an item of its input", lambda s, x: _then(x.__setitem__((..., 0), x[..., 0] + 1), x))
handling("an output that it keeps", _keeps)
handling("a tensor that it fills each time", _fills)
handling("a view of what it computes", lambda s, x: (s.net(x) + 1).unsqueeze(0)[0])


def _wiped(s: Any, x: torch.Tensor) -> torch.Tensor:
    given = s.net(x) + 1
    x.zero_()
    return given


handling("an input that is wiped", _wiped)
