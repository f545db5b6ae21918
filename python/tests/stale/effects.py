"""Side effects of policies: whether each happens at each step, as it does where torch calls them.

Some count their calls, and add the count to the first number that they observe; some explore, in a
quarter of their calls; some change what is not theirs; some alternate; some hand on or write what
they are given.
"""

from __future__ import annotations

import array
import collections
import contextvars
import dataclasses
import functools
import heapq
import itertools
import logging
import os
import queue
import random
import re
import secrets
import tempfile
import threading
import time
import types
import uuid
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from stale.forms import Base, OfTensorDict
from stale.worlds import World
from windrow.collectors import AsyncCollector, Collector

FRAMES = 120
#: How often a policy explores, and in what shares of ``FRAMES`` frames it does so but for one run
#: in a thousand millions.
EXPLORES, SHARES = 0.25, (0.03, 0.55)
#: How often each is run in the calling thread.
SEEDS = 6

#: Makes a policy, and returns what counts its effects where nothing of them is in its actions.
Make = Callable[[int], tuple[nn.Module, Callable[[], int] | None]]
COUNTING: dict[str, Make] = {}
EXPLORING: dict[str, Make] = {}
OUTSIDE: dict[str, Make] = {}
TURNING: dict[str, Make] = {}
#: Those that do what is no state of theirs to their inputs and outputs: they add 1.
HANDLING: dict[str, Make] = {}

CALLS = 0
HISTORY: list[int] = []
CONTEXT: contextvars.ContextVar[int] = contextvars.ContextVar("calls", default=0)
LOGGER = logging.getLogger("stale")


class Acts(Base):
    """Calls a function of the module at each step, and adds what that gives."""

    def __init__(self, act: Callable[[Any], Any], **held: Any) -> None:
        super().__init__()
        self.act = act
        for name, value in held.items():
            setattr(self, name, value)

    def read(self) -> Any:
        value = float(self.act(self))
        return value, -value


def counting(name: str, held: Callable[[], Any], count: Callable[[Any], Any]) -> None:
    """Adds a policy that holds something in ``held``, by which ``count`` gives the number of the
    call.
    """
    COUNTING[name] = lambda seed: (Acts(count, held=held()), None)


def exploring(name: str, held: Callable[[int], Any], draw: Callable[[Any], Any]) -> None:
    """Adds a policy that explores where ``draw`` gives less than a quarter."""
    EXPLORING[name] = lambda seed: (Acts(lambda self: draw(self) < EXPLORES, held=held(seed)), None)


def turning(name: str, held: Callable[[], Any], turn: Callable[[Any], Any]) -> None:
    """Adds a policy for which ``turn`` gives 0 and 1 in turn."""
    TURNING[name] = lambda seed: (Acts(turn, held=held()), None)


def handling(name: str, act: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
    """Adds a policy that is ``act(module, observation)``, which adds 1."""
    HANDLING[name] = lambda seed: (type("Policy", (Base,), {"forward": act})(), None)


def outside(name: str) -> Callable[[Callable[[], Any]], Any]:
    """Adds a policy that calls a function, beside what counts its effects."""

    def add(make: Callable[[], tuple[Callable[[Any], Any], Callable[[], int]]]) -> Any:
        def made(seed: int) -> Any:
            act, count = make()
            return Acts(lambda self: act(self) and 0.0 or 0.0), count

        OUTSIDE[name] = made
        return make

    return add


def _set(policy: Any, value: Any) -> Any:
    policy.held = value
    return value


def _added(held: Any, key: Any = "calls") -> Any:
    held[key] += 1
    return held[key]


def _grown(held: Any) -> int:
    held.append(len(held))
    return len(held)


def _of_object(held: Any) -> int:
    held.calls += 1
    calls: int = held.calls
    return calls


def _global(policy: Any) -> int:
    global CALLS
    CALLS += 1
    return CALLS


def _of_class(policy: Any) -> int:
    Shared.calls += 1
    return Shared.calls


def _default(policy: Any, held: list[int] = []) -> int:
    return _grown(held)


def _of_function(policy: Any) -> int:
    _of_function.calls += 1  # type: ignore[attr-defined]
    return _of_function.calls  # type: ignore[attr-defined,no-any-return]


_of_function.calls = 0  # type: ignore[attr-defined]


def _of_context(policy: Any) -> int:
    CONTEXT.set(CONTEXT.get() + 1)
    return CONTEXT.get()


class Shared:
    calls = 0


class Slots:
    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0


@dataclasses.dataclass
class Data:
    calls: int = 0


class Steps:
    """An iterator."""

    def __init__(self) -> None:
        self.calls = 0

    def __iter__(self) -> Steps:
        return self

    def __next__(self) -> int:
        self.calls += 1
        return self.calls


def _generator() -> Any:
    yield from itertools.count(1)


def _closure() -> Callable[[Any], int]:
    calls = 0

    def count(policy: Any) -> int:
        nonlocal calls
        calls += 1
        return calls

    return count


@functools.cache
def _cached(number: int) -> int:
    return number


def _of_cache(policy: Any) -> int:
    _cached(_cached.cache_info().misses)
    return _cached.cache_info().misses


def _toggled(policy: Any) -> int:
    policy.held["on"] = not policy.held["on"]
    policy.held["calls"] += 1
    return int(policy.held["calls"])


counting("an int", lambda: 0, lambda self: _set(self, self.held + 1))
counting("a tuple replaced", lambda: (0,), lambda self: _set(self, (self.held[0] + 1,))[0])
counting("a string that grows", str, lambda self: len(_set(self, self.held + "x")))
counting("a dict", lambda: {"calls": 0}, lambda self: _added(self.held))
counting("a Counter", collections.Counter, lambda self: _added(self.held))
counting("a default dict", lambda: collections.defaultdict(int), lambda self: _added(self.held))
counting("a list", list, lambda self: _grown(self.held))
counting("an item of a list", lambda: [0], lambda self: _added(self.held, 0))
counting("a set", set, lambda self: self.held.add(len(self.held)) or len(self.held))
counting("a deque", collections.deque, lambda self: _grown(self.held))
counting("a list that is used up", lambda: list(range(400, 0, -1)), lambda self: self.held.pop())
counting("a heap", lambda: list(range(1, 400)), lambda self: heapq.heappop(self.held))
counting("a bytearray", bytearray, lambda self: self.held.extend(b"x") or len(self.held))
counting(
    "an array of the standard library",
    lambda: array.array("l", [0]),
    lambda self: _added(self.held, 0),
)
counting("a NumPy array", lambda: np.zeros(1), lambda self: _added(self.held, 0))
counting("a tensor in place", lambda: torch.zeros(1), lambda self: self.held.add_(1)[0])
counting("a tensor replaced", lambda: torch.zeros(()), lambda self: _set(self, self.held + 1))
counting(
    "an object",
    types.SimpleNamespace,
    lambda self: _of_object(vars(self.held).setdefault("calls", 0) is None or self.held),
)
counting("an object with slots", Slots, lambda self: _of_object(self.held))
counting("a dataclass", Data, lambda self: _of_object(self.held))
counting("itertools.count", lambda: itertools.count(1), lambda self: next(self.held))
counting("an iterator", Steps, lambda self: next(self.held))
counting("a global", lambda: None, _global)
counting("a class attribute", lambda: None, _of_class)
counting("a default argument", lambda: None, _default)
counting("an attribute of a function", lambda: None, _of_function)
counting("a context variable", lambda: None, _of_context)
counting("a cache of functools", lambda: None, _of_cache)
counting("a flag that changes", lambda: {"on": False, "calls": 0}, _toggled)
counting(
    "the number of layers",
    lambda: nn.ModuleList(),
    lambda self: self.held.append(nn.Identity()) and len(self.held),
)
counting(
    "another object by setattr",
    Data,
    lambda self: setattr(self.held, "calls", self.held.calls + 1) or self.held.calls,
)
counting("a generator", _generator, lambda self: next(self.held))
COUNTING["a closure"] = lambda seed: (Acts(_closure()), None)

exploring("random.Random", random.Random, lambda self: self.held.random())
exploring("NumPy's default_rng", np.random.default_rng, lambda self: self.held.random())
exploring("NumPy's RandomState", np.random.RandomState, lambda self: self.held.rand())
exploring(
    "torch.Generator",
    lambda seed: torch.Generator().manual_seed(seed),
    lambda self: torch.rand((), generator=self.held),
)
exploring("random.random", lambda seed: random.seed(seed), lambda self: random.random())
exploring("random.choice", lambda seed: random.seed(seed), lambda self: random.choice((0, 1, 1, 1)))
exploring("np.random.rand", lambda seed: np.random.seed(seed), lambda self: np.random.rand())
exploring("secrets", lambda seed: None, lambda self: secrets.randbelow(100) / 100)
exploring("os.urandom", lambda seed: None, lambda self: os.urandom(1)[0] / 256)
exploring("uuid", lambda seed: None, lambda self: uuid.uuid4().int % 100 / 100)
exploring("SystemRandom", lambda seed: random.SystemRandom(), lambda self: self.held.random())
exploring(
    "a method of random.Random", lambda seed: random.Random(seed).random, lambda self: self.held()
)
exploring("torch.rand", lambda seed: torch.manual_seed(seed) and None, lambda self: torch.rand(()))
exploring(
    "Python's clock", lambda seed: None, lambda self: time.perf_counter_ns() // 128 % 100 / 100
)


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


class Written:
    """A stream that counts its lines."""

    def __init__(self) -> None:
        self.lines = 0

    def write(self, text: str) -> int:
        self.lines += text.count("\n")
        return len(text)

    def flush(self) -> None:
        pass


PRINTED = Written()


@outside("print")
def _prints() -> Any:
    return lambda self: print("acting", file=PRINTED), lambda: PRINTED.lines


@outside("logging")
def _logs() -> Any:
    lines = Lines()
    LOGGER.handlers, LOGGER.propagate = [lines], False
    LOGGER.setLevel(logging.INFO)
    return lambda self: LOGGER.info("acting"), lambda: lines.count


@outside("a file")
def _files() -> Any:
    path = Path(tempfile.mkdtemp()) / "calls"
    path.touch()

    def write(self: Any) -> None:
        with path.open("a") as file:
            file.write("x")

    return write, lambda: path.stat().st_size


@outside("a queue")
def _queues() -> Any:
    held: queue.SimpleQueue[int] = queue.SimpleQueue()
    return lambda self: held.put(1), held.qsize


@outside("a list of the program")
def _lists() -> Any:
    return lambda self: HISTORY.append(1), lambda: len(HISTORY)


@outside("a variable of the environment")
def _environs() -> Any:
    os.environ["WINDROW_CALLS"] = "0"

    def count(self: Any) -> None:
        os.environ["WINDROW_CALLS"] = str(int(os.environ["WINDROW_CALLS"]) + 1)

    return count, lambda: int(os.environ["WINDROW_CALLS"])


@outside("a warning")
def _warns() -> Any:
    shown = [0]

    def show(*_: Any, **__: Any) -> None:
        shown[0] += 1

    def warn(self: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = show
            warnings.warn("acting", stacklevel=1)

    return warn, lambda: shown[0]


@outside("a semaphore")
def _semaphores() -> Any:
    held = threading.Semaphore(0)
    return lambda self: held.release(), lambda: held._value


@outside("torch.manual_seed")
def _seeds() -> Any:
    total = 0

    def count() -> int:
        nonlocal total
        # A seed set once in a batch and one set at each step leave the same state.
        total += FRAMES * (torch.initial_seed() == 12345)
        torch.manual_seed(1)
        return total

    return lambda self: torch.manual_seed(12345) and None, count


@dataclass
class Effects:
    """Counts of the policies with side effects."""

    policies: int = 0
    forms: set[str] = field(default_factory=set)
    lost: list[str] = field(default_factory=list)


def _acted(
    kind: Any, place: str, backend: str, policy: nn.Module, count: Callable[[], int] | None
) -> tuple[list[int], int]:
    """The number added to each of ``FRAMES`` observations, and how often the side effect happened
    meanwhile.
    """
    with kind(
        World,
        policy,
        frames_per_batch=FRAMES,
        total_frames=-1,
        placement=place,
        policy_backend=backend,
    ) as collector:
        collector.next()
        before = 0 if count is None else count()
        batch = collector.next()
        after = 0 if count is None else count()
    # What the environment has observed is known, whatever the batch says.
    observed = known(2 * FRAMES)[FRAMES:]
    if not torch.equal(batch["observation"], observed):
        raise AssertionError(f"another observation: {batch['observation'][:2].tolist()}")
    added = (batch["action"] - observed)[:, 0]
    return added.round().int().tolist(), after - before


@functools.cache
def known(frames: int) -> torch.Tensor:
    """What the first frames of the environment observe."""
    env, observed = World(), []
    while len(observed) < frames:
        observation, is_over = env.reset()[0], False
        while not is_over:
            observed.append(torch.from_numpy(observation))
            observation, _, _, is_over, _ = env.step(None)
    return torch.stack(observed[:frames])


def _lost(kind: str, added: list[int], happened: int) -> str | None:
    if kind == "counts":
        steps = {later - now for now, later in zip(added, added[1:])}
        return None if steps == {1} else f"counts {added[:5]} ..., expected one more in each call"
    if kind == "turns":
        steps = {abs(later - now) for now, later in zip(added, added[1:])}
        return None if steps == {1} and {*added} == {0, 1} else f"turns {added[:5]} ..."
    if kind == "handles":
        return None if {*added} == {1} else f"adds {added[:5]} ..., expected 1"
    if kind == "explores":
        share = sum(added) / len(added)
        return (
            None
            if SHARES[0] < share < SHARES[1] and len(set(added)) == 2
            else f"explores in {share} of its calls, expected {EXPLORES}"
        )
    return None if happened == FRAMES else f"happened {happened} times in {FRAMES} calls"


#: Two functions in these have one variable, of which each has its own in another process: pickles
#: of functions hold values.
APART = {"a cell of two functions", "a subclass in each call"}
KINDS = {
    "counts": COUNTING,
    "explores": EXPLORING,
    "changes": OUTSIDE,
    "turns": TURNING,
    "handles": HANDLING,
}


@dataclass(frozen=True)
class Run:
    """A policy below a collector."""

    kind: str
    name: str
    collector: Any
    place: str
    backend: str
    seed: int
    is_wrapped: bool

    def __str__(self) -> str:
        given = " of a tensordict" if self.is_wrapped else ""
        return f"{self.name}{given} {self.kind}, {self.collector.__name__} {self.place} {self.backend}, seed {self.seed}"

    @property
    def makes_sense(self) -> bool:
        # In a process, changes are made there; and what is in a TensorDict is the batch's.
        if self.place == "processes" and (self.kind == "changes" or self.name in APART):
            return False
        return not (self.kind == "handles" and self.is_wrapped)

    def lost(self) -> str | None:
        """What is lost, if it is."""
        policy, count = KINDS[self.kind][self.name](self.seed)
        if self.is_wrapped:
            policy = OfTensorDict(policy)
        acted = _acted(self.collector, self.place, self.backend, policy, count)
        return _lost(self.kind, *acted)


def _runs() -> list[Run]:
    places = ((Collector, "inline"), (Collector, "threads"), (AsyncCollector, "processes"))
    runs = [
        Run(kind, name, collector, place, backend, seed, is_wrapped)
        for kind, forms in KINDS.items()
        for name in forms
        for collector, place in places
        for backend in ("auto", "torch")
        for seed in range(SEEDS if place == "inline" else 1)
        for is_wrapped in (False, True)
    ]
    return [run for run in runs if run.makes_sense]


def run(drawn: random.Random, seconds: float, wanted: str) -> Effects:
    """Runs each policy once in the calling thread, and then with others in an order that is drawn,
    until time is over.
    """
    total, end = Effects(), time.monotonic() + seconds
    runs = [run for run in _runs() if wanted in f"effects: {run}"]
    first: dict[tuple[str, str], Run] = {}
    for run in drawn.sample(runs, len(runs)):
        if run.place == "inline" and run.backend == "auto":
            first.setdefault((run.kind, run.name), run)
    for run in (*first.values(), *drawn.sample(runs, len(runs))):
        if len(total.forms) >= len(first) and time.monotonic() > end:
            break
        try:
            lost = run.lost()
        except Exception as error:
            if run.place != "inline" and re.search("pickle|does not have state", str(error)):
                # No worker gets a copy of it.
                continue
            lost = f"{type(error).__name__}: {str(error)[-400:]}"
        total.policies += 1
        total.forms.add(f"{run.name} {run.kind}")
        if lost is not None:
            total.lost.append(f"{run}: {lost}")
    return total
