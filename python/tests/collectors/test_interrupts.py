"""Ctrl-C while a step does not come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import windrow
from windrow.collectors import (
    AsyncCollector,
    Collector,
    Evaluator,
    MultiAsyncCollector,
    MultiSyncCollector,
)
from windrow.data import LazyTensorStorage, ReplayBuffer

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX"),
    pytest.mark.filterwarnings("ignore:environments written in Python"),
]

KINDS: list[Any] = [AsyncCollector, MultiSyncCollector, MultiAsyncCollector]


class Stuck:
    """What environments wait for from their 30th step on, with Ctrl-C once the first of them
    does.
    """

    def __init__(self) -> None:
        self.go_on, self.is_stuck, self.came_back = (
            threading.Event(),
            threading.Event(),
            threading.Event(),
        )
        self.pressed = threading.Thread(target=self._press)
        self.pressed.start()

    def _press(self) -> None:
        assert self.is_stuck.wait(60)
        # Whoever is to be interrupted waits by then, or is interrupted before it does.
        time.sleep(0.2)
        if not self.go_on.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    def env(self) -> gymnasium.Env:
        return _Env(self)


class _Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, stuck: Stuck) -> None:
        self.stuck, self.steps = stuck, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.steps += 1
        if self.steps > 30:
            self.stuck.is_stuck.set()
            self.stuck.go_on.wait(120)
            self.stuck.came_back.set()
        return np.zeros(3, np.float32), 1.0, False, False, {}


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    stuck = Stuck()
    yield stuck
    stuck.go_on.set()
    stuck.is_stuck.set()
    stuck.pressed.join()
    signal.signal(signal.SIGINT, handler)


def interrupted(stuck: Stuck, run: Callable[[], Any]) -> KeyboardInterrupt:
    """The exception that leaves ``run``, which nobody has waited for a step with."""
    with pytest.raises(KeyboardInterrupt) as caught:
        run()
        # The signal may come at the very end.
        stuck.pressed.join()
    assert not stuck.came_back.is_set()
    return caught.value


def says_that_it_was_left(error: BaseException, name: str) -> bool:
    return any(
        note.startswith(f"{name} was left with a step") for note in getattr(error, "__notes__", [])
    )


def build(kind: Any, stuck: Stuck, **arguments: Any) -> Any:
    env = stuck.env if kind in (Collector, AsyncCollector) else [stuck.env] * 2
    return kind(env, frames_per_batch=20, **{"placement": "threads", **arguments})


def until_it_ends(collector: Any) -> None:
    for _ in collector:
        pass


@pytest.mark.parametrize("kind", KINDS)
def test_a_context_is_left_at_once_and_says_what_was_left_behind(kind: Any, stuck: Stuck) -> None:
    def run() -> None:
        with build(kind, stuck) as collector:
            until_it_ends(collector)

    assert says_that_it_was_left(interrupted(stuck, run), kind.__name__)


@pytest.mark.parametrize("kind", [Collector, *KINDS])
@pytest.mark.parametrize("paused", [False, True])
def test_a_collection_in_the_background_holds_nothing_back(
    kind: Any, paused: bool, stuck: Stuck
) -> None:
    def run() -> None:
        buffer = ReplayBuffer(storage=LazyTensorStorage(1000))
        with build(kind, stuck, replay_buffer=buffer) as collector:
            collector.start()
            assert stuck.is_stuck.wait(60)
            if paused:
                with collector.pause():
                    pass
            stuck.go_on.wait(60)

    assert says_that_it_was_left(interrupted(stuck, run), kind.__name__)


@pytest.mark.parametrize("kind", [Collector, *KINDS])
def test_a_shutdown_that_follows_does_not_take_its_place(kind: Any, stuck: Stuck) -> None:
    def run() -> None:
        collector = build(kind, stuck, replay_buffer=ReplayBuffer(storage=LazyTensorStorage(1000)))
        try:
            collector.start()
            stuck.go_on.wait(60)
        finally:
            with pytest.warns(
                windrow.Warning, match=f"{kind.__name__} was left with a step"
            ) as told:
                collector.async_shutdown()
            assert told[0].filename == __file__

    interrupted(stuck, run)


@pytest.mark.parametrize("kind", [Collector, *KINDS])
def test_a_collector_that_nobody_has_named_holds_nothing_back(kind: Any, stuck: Stuck) -> None:
    if kind is Collector:
        # In the caller's own thread the step itself is interrupted.
        stuck.go_on.wait = interruptible_wait(stuck.go_on)
    interrupted(stuck, lambda: until_it_ends(build(kind, stuck)))


def interruptible_wait(event: threading.Event) -> Callable[[float], bool]:
    def wait(seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not event.is_set() and time.monotonic() < deadline:
            time.sleep(0.01)
        return event.is_set()

    return wait


def zero(observation: torch.Tensor) -> torch.Tensor:
    return torch.eye(2)[0]


@pytest.mark.parametrize("ask", ["evaluate", "wait", "nothing"])
def test_an_evaluator_is_left_whatever_time_its_shutdown_has(ask: str, stuck: Stuck) -> None:
    def run() -> None:
        with Evaluator(
            stuck.env, zero, num_trajectories=1, max_steps=1000, shutdown_timeout=float("inf")
        ) as evaluator:
            if ask == "evaluate":
                evaluator.evaluate()
            evaluator.trigger_eval()
            if ask == "wait":
                evaluator.wait()
            stuck.go_on.wait(60)

    assert says_that_it_was_left(interrupted(stuck, run), "Evaluator")


def test_an_evaluator_that_nobody_has_named_holds_nothing_back(stuck: Stuck) -> None:
    interrupted(
        stuck,
        lambda: Evaluator(
            stuck.env, zero, num_trajectories=1, max_steps=1000, shutdown_timeout=float("inf")
        ).evaluate(),
    )


def test_a_shutdown_of_an_evaluator_that_follows_does_not_take_its_place(stuck: Stuck) -> None:
    def run() -> None:
        evaluator = Evaluator(
            stuck.env, zero, num_trajectories=1, max_steps=1000, shutdown_timeout=float("inf")
        )
        try:
            evaluator.evaluate()
        finally:
            with pytest.warns(windrow.Warning, match="Evaluator was left with a step") as told:
                evaluator.shutdown()
            assert told[0].filename == __file__

    interrupted(stuck, run)


PROGRAM = """
import sys, threading, time
import gymnasium
import torch
from windrow.collectors import *

class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        if threading.current_thread() is not threading.main_thread():
            is_stuck.set()
            time.sleep(1.5)
        return self.observation_space.sample(), 1.0, False, False, {}

class SlowToGo:
    def __del__(self, sleep=time.sleep):
        sleep(3)

is_stuck = threading.Event()
collector = MultiAsyncCollector([Env] * 2, None, placement="threads", frames_per_batch=10)
threading.Thread(target=next, args=[collector], daemon=True).start()
is_stuck.wait()
sys.kept = SlowToGo()
raise KeyboardInterrupt
"""


def test_a_step_that_comes_back_while_the_program_ends_does_not_abort_it() -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, timeout=120
    )
    assert "KeyboardInterrupt" in ended.stderr
    assert ended.returncode in (130, -signal.SIGINT)
