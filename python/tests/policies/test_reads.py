"""The state that calls of a policy read beside its weights: changes that are seen, state that
cannot be compared, and state that is left alone.
"""

from __future__ import annotations

import collections
import cProfile
import dataclasses
import functools
import gc
import itertools
import operator
import queue
import random
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from windrow.policies import reads
from windrow.policies.torch_policy import copied_module
from windrow.policies.watch import Watch
from windrow.policies.weights import tensors_of

GAIN = 1.0


class Policy(nn.Module):
    """A module that reads what it holds with a function of its own."""

    def __init__(self, held: Any, read: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.held, self.read = held, read

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.layer(observation) + self.read(self.held)


def read_by(policy: nn.Module) -> reads.State:
    return reads.State(policy, reads.reachable(policy), tensors_of(policy).values())


class Object:
    kind = 1.0

    def __init__(self) -> None:
        self.value, self.other = 1.0, 2.0

    def __add__(self, other: Any) -> Any:
        return self.value + other

    @property
    def double(self) -> float:
        return 2 * self.value

    @functools.cached_property
    def cached(self) -> float:
        return 3 * self.value


class Slots:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 1.0


@dataclasses.dataclass(frozen=True)
class Data:
    value: float = 1.0


def given(value: float = 1.0) -> float:
    return value


def closing() -> tuple[Callable[[Any], Any], Callable[[], None]]:
    value = 1.0

    def change() -> None:
        nonlocal value
        value = 2.0

    return lambda held: value, change


CLOSED, CHANGE_CLOSED = closing()
SHARED = np.zeros(2, np.float32)

#: What is held, how it is read, how it changes, and what that is called.
SEEN: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any], str]] = {
    "a number": (1.0, lambda held: held, lambda net: setattr(net, "held", 2.0), "policy.held"),
    "an int of another type": (
        1,
        lambda held: held,
        lambda net: setattr(net, "held", True),
        "policy.held",
    ),
    "an entry": (
        {"a": 1.0},
        lambda held: held["a"],
        lambda net: net.held.update(a=2.0),
        "policy.held.a",
    ),
    "a new entry": (
        {"a": 1.0},
        lambda held: max(held),
        lambda net: net.held.update(b=2.0),
        "policy.held",
    ),
    "an item": (
        [1.0],
        lambda held: held[0],
        lambda net: operator.setitem(net.held, 0, 2.0),
        "policy.held[0]",
    ),
    "a new item": ([1.0], lambda held: held[-1], lambda net: net.held.append(2.0), "policy.held"),
    "a deque": (
        collections.deque([1.0], 1),
        lambda held: held[-1],
        lambda net: net.held.append(2.0),
        "policy.held[0]",
    ),
    "a set": ({1.0}, lambda held: max(held), lambda net: net.held.add(2.0), "policy.held"),
    "a tensor": (torch.ones(2), lambda held: held, lambda net: net.held.add_(1), "policy.held"),
    "a tensor's data": (
        torch.ones(2),
        lambda held: held,
        lambda net: setattr(net.held, "data", torch.zeros(2)),
        "policy.held",
    ),
    "a tensor of a tuple": (
        (torch.ones(2),),
        lambda held: held[0],
        lambda net: net.held[0].add_(1),
        "policy.held[0]",
    ),
    "an array": (np.ones(2), lambda held: held[0], lambda net: net.held.fill(2), "policy.held"),
    "an array below a tensor": (
        torch.from_numpy(SHARED),
        lambda held: held,
        lambda net: SHARED.fill(2),
        "policy.held",
    ),
    "an attribute": (
        Object(),
        lambda held: held.value,
        lambda net: setattr(net.held, "value", 2.0),
        "policy.held.value",
    ),
    "a slot": (
        Slots(),
        lambda held: held.value,
        lambda net: setattr(net.held, "value", 2.0),
        "policy.held.value",
    ),
    "a dataclass": (
        Data(),
        lambda held: held.value,
        lambda net: setattr(net, "held", Data(2.0)),
        "policy.held",
    ),
    "a property": (
        Object(),
        lambda held: held.double,
        lambda net: setattr(net.held, "value", 2.0),
        "policy.held.value",
    ),
    "a cached property": (
        Object(),
        lambda held: held.cached,
        lambda net: setattr(net.held, "value", 2.0),
        "policy.held.value",
    ),
    "an operator": (
        Object(),
        lambda held: held + 1,
        lambda net: setattr(net.held, "value", 2.0),
        "policy.held.value",
    ),
    "a name as text": (
        Object(),
        lambda held: held.value,
        lambda net: setattr(net.held, "value", 2.0),
        "policy.held.value",
    ),
    "any name as text": (
        Object(),
        lambda held: vars(held)["value"],
        lambda net: setattr(net.held, "value", 2.0),
        "policy.held.value",
    ),
    "a namespace": (
        types.SimpleNamespace(a=1.0),
        lambda held: held.a,
        lambda net: setattr(net.held, "a", 2.0),
        "policy.held.a",
    ),
    "a partial": (
        functools.partial(given, 1.0),
        lambda held: held(),
        lambda net: setattr(net, "held", functools.partial(given, 2.0)),
        "policy.held",
    ),
    "a method of an object": (
        Object().__add__,
        lambda held: held(1),
        lambda net: setattr(net.held.__self__, "value", 2.0),
        "policy.held.__self__.value",
    ),
    "a closure": (None, CLOSED, lambda net: CHANGE_CLOSED(), "policy.read's value"),
    "a replaced function": (
        lambda: 1.0,
        lambda held: held(),
        lambda net: setattr(net, "held", lambda: 2.0),
        "policy.held",
    ),
    "a replaced method": (
        None,
        lambda held: 1.0,
        lambda net: setattr(net, "forward", lambda observation: observation),
        "policy.forward",
    ),
    "the mode": (None, lambda held: 1.0, lambda net: net.eval(), "policy"),
    "a hook": (
        None,
        lambda held: 1.0,
        lambda net: net.layer.register_forward_hook(lambda *_: None),
        "policy.layer._forward_hooks",
    ),
    "another class of an object": (
        Object(),
        lambda held: held.value,
        lambda net: setattr(net.held, "__class__", type("B", (Object,), {})),
        "policy.held",
    ),
    "a layer": (
        nn.LeakyReLU(),
        lambda held: held(torch.ones(2)),
        lambda net: setattr(net.held, "negative_slope", 0.5),
        "policy.held.negative_slope",
    ),
}


@pytest.mark.parametrize("what", SEEN)
def test_what_a_policy_reads_is_seen_to_change_and_has_a_name(what: str) -> None:
    held, read, change, name = SEEN[what]
    net = Policy(held, read)
    before = read_by(net)
    assert before.is_same() and before.difference(read_by(net)) is None
    change(net)
    changed = before.difference(before.again(net, tensors_of(net).values()))
    assert not before.is_same()
    assert changed is not None and changed.startswith(name), changed


def test_globals_and_defaults_that_a_policy_reads_are_seen_to_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = Policy(None, lambda held: GAIN * given())
    before = read_by(net)
    monkeypatch.setitem(globals(), "GAIN", 2.0)
    assert not before.is_same() and before.outside(read_by(net)) == f"{__name__}.GAIN"
    before = read_by(net)
    monkeypatch.setattr(given, "__defaults__", (2.0,))
    assert not before.is_same() and before.outside(read_by(net)) is not None


def test_what_a_weak_reference_leads_to_is_seen_to_change() -> None:
    seen = Object()
    net = Policy(weakref.ref(seen), lambda held: held().value)
    before = read_by(net)
    seen.value = 2.0
    assert before.difference(read_by(net)) == "policy.held().value"


REFUSED: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "a generator of Python": (random.Random(0), lambda held: held.random()),
    "a generator of NumPy": (np.random.default_rng(0), lambda held: held.random()),
    "a generator of torch": (torch.Generator(), lambda held: torch.rand(2, generator=held)),
    "an iterator": (iter([1.0, 2.0]), lambda held: next(held)),
    "itertools.count": (itertools.count(), lambda held: next(held)),
    "a queue": (queue.SimpleQueue(), lambda held: held.qsize()),
    "a lock": (threading.Lock(), lambda held: held.locked()),
    "a generator function": ((number for number in (1.0, 2.0)), lambda held: next(held)),
    "an array of objects": (np.array([Object()], dtype=object), lambda held: held[0].value),
    "a clock": (time.perf_counter, lambda held: held()),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_compared_is_a_doubt_that_names_it(what: str) -> None:
    doubt = read_by(Policy(*REFUSED[what])).doubt
    assert doubt is not None and "policy.held" in doubt


@pytest.mark.parametrize(
    "act",
    [
        lambda: random.random(),
        lambda: np.random.rand(),
        lambda: time.time(),
        lambda: torch.manual_seed(0),
        lambda: print(end=""),
    ],
    ids=["random", "numpy.random", "time", "torch.manual_seed", "print"],
)
def test_a_call_that_does_more_than_to_compute_is_a_doubt(act: Callable[[], Any]) -> None:
    net = Policy(None, lambda held: act() and 0.0 or 0.0)
    watch = Watch()
    with watch:
        net(torch.ones(2))
    assert (watch.doubt or reads.State(net, watch.codes, ()).doubt) is not None


def test_a_call_that_cannot_be_watched_to_its_end_is_a_doubt() -> None:
    with (watch := Watch()):
        Policy(None, lambda held: sys.setprofile(None) or 0.0)(torch.ones(2))
    assert watch.doubt is not None


def test_a_profiler_goes_on_after_a_call_was_watched() -> None:
    def called_afterwards() -> None:
        pass

    with cProfile.Profile() as profiler:
        with (watch := Watch()):
            Policy(None, lambda held: 0.0)(torch.ones(2))
        called_afterwards()
    assert watch.doubt is None
    assert called_afterwards.__code__ in {entry.code for entry in profiler.getstats()}


def test_a_profiler_that_cannot_be_paused_is_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "getprofile", object)
    monkeypatch.setattr(sys, "setprofile", lambda _: pytest.fail("it would be lost"))
    with (watch := Watch()):
        Policy(None, lambda held: 0.0)(torch.ones(2))
    assert watch.doubt == "object profiles this thread, and cannot be paused"


def test_what_is_freed_during_a_call_is_none_of_its_functions() -> None:
    class Freed:
        def __del__(self) -> None:
            print(end="")

    def frees(held: Any) -> float:
        cycle: Any = Freed()
        cycle.itself = cycle
        del cycle
        return sum(len([number]) for number in range(5_000)) * 0.0

    gc.collect()
    kept = gc.get_threshold()
    gc.set_threshold(100, 1, 1)
    try:
        with (watch := Watch()):
            Policy(None, frees)(torch.ones(2))
    finally:
        gc.set_threshold(*kept)
    assert watch.doubt is None and Freed.__del__.__code__ not in watch.codes
    assert gc.isenabled()


def test_what_computes_alone_is_no_doubt() -> None:
    net = Policy(
        {"a": [1.0, (2.0,)]},
        lambda held: max(held["a"][0], abs(-1.0)) + np.float32(0.5) * torch.ones(2).sum(),
    )
    watch = Watch()
    with watch:
        net(torch.ones(2))
    assert watch.doubt is None and read_by(net).doubt is None


class Env:
    """Something that changes all the time, and that nothing can be said of."""

    def __init__(self) -> None:
        self.lock, self.value = threading.Lock(), 0


def test_what_no_function_of_a_policy_names_is_left_alone() -> None:
    net: Any = Policy(None, lambda held: 1.0)
    net.env, net.buffer = Env(), [Env()]
    net.optimizer = torch.optim.Adam(net.parameters())
    before = read_by(net)
    net.env.value = 1
    net.buffer.append(Env())
    net.layer(torch.ones(2)).sum().backward()
    net.optimizer.step()
    net.optimizer.zero_grad()
    with torch.no_grad():
        net.layer.weight.add_(1)
    assert before.doubt is None and before.is_same() and before.difference(read_by(net)) is None


def test_a_replaced_buffer_of_weights_is_no_change_of_state_and_one_that_is_no_weight_is() -> None:
    net: Any = Policy(None, lambda held: 1.0)
    net.register_buffer("kept", torch.ones(2))
    net.register_buffer("passing", torch.ones(2), persistent=False)
    before = read_by(net)
    net.kept.add_(1)
    assert before.is_same(), "weights are compared elsewhere"
    net.passing.add_(1)
    assert before.difference(read_by(net)) == "policy.passing"


def test_looking_again_at_ten_times_as_many_layers_takes_no_more_than_ten_times_as_many_reads() -> (
    None
):
    few, many = (
        read_by(nn.Sequential(*[nn.Linear(2, 2) for _ in range(count)])) for count in (10, 100)
    )
    assert len(many._entries) <= 11 * len(few._entries)
    # A module of torch has no code to look into.
    assert len(many._entries) < 12 * 100
    assert not many._reads


def test_another_thread_that_changes_a_policy_without_pause_is_never_seen_half() -> None:
    net: Any = Policy((1.0, -1.0), lambda held: held[0] + held[1])
    is_over = threading.Event()

    def learn() -> None:
        for number in itertools.count():
            if is_over.is_set():
                return
            net.held = (float(number), -float(number))

    learner = threading.Thread(target=learn)
    learner.start()
    try:
        for _ in range(50):
            facts = read_by(net).facts
            assert facts["policy.held[0]"] == -facts["policy.held[1]"]
    finally:
        is_over.set()
        learner.join()


def test_copies_of_functions_have_the_same_classes_and_closures_of_their_own() -> None:
    class Shift:
        by = 0.0

    held, shared = {"gain": 1.0}, Shift()

    def shift(hidden: torch.Tensor, *, added: dict[str, float] = {"by": 0.0}) -> torch.Tensor:
        return hidden * held["gain"] + shared.by + added["by"]

    wrapped = TensorDictSequential(
        TensorDictModule(nn.Identity(), in_keys=["observation"], out_keys=["hidden"]),
        TensorDictModule(shift, in_keys=["hidden"], out_keys=["action"]),
        TensorDictModule(
            lambda action: action * held["gain"], in_keys=["action"], out_keys=["action"]
        ),
    )
    copied = copied_module(wrapped)

    def act(policy: nn.Module) -> float:
        return float(policy(TensorDict({"observation": torch.ones(1)}))["action"])

    held["gain"], shared.by, shift.__kwdefaults__["added"]["by"] = 2.0, 3.0, 4.0
    assert (act(wrapped), act(copied)) == (18.0, 1.0)
    # Both functions of the copy still share one dictionary, and what they close over is of the same
    # class.
    inner = copied.module[1].module
    inside = dict(zip(inner.__code__.co_freevars, inner.__closure__))
    inside["held"].cell_contents["gain"] = 5.0
    assert (
        act(copied) == 25.0
        and type(inside["shared"].cell_contents) is Shift
        and inner.__qualname__ == shift.__qualname__
    )


def test_a_function_that_cannot_be_copied_leaves_no_half_of_a_copy_to_others() -> None:
    held = {"gain": 1.0}

    class Locked:
        """Fails to be copied when a part of it was."""

        def __init__(self) -> None:
            self.held, self.lock = held, threading.Lock()

    locked = Locked()

    def first(observation: torch.Tensor) -> torch.Tensor:
        return observation * locked.held["gain"]

    wrapped = TensorDictSequential(
        TensorDictModule(first, in_keys=["observation"], out_keys=["hidden"]),
        TensorDictModule(
            lambda hidden: hidden * locked.held["gain"], in_keys=["hidden"], out_keys=["hidden"]
        ),
        TensorDictModule(
            lambda hidden: hidden * held["gain"], in_keys=["hidden"], out_keys=["action"]
        ),
    )
    copied = copied_module(wrapped)
    held["gain"] = 3.0
    # Two functions are shared, since they cannot be copied; the third has what it had.
    assert float(copied(TensorDict({"observation": torch.ones(1)}))["action"]) == 9.0
