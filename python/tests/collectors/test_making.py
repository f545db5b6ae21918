"""How environments are made: one after the other, and Ctrl-C meanwhile."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time

import gymnasium
import pytest
import torch

import windrow.envs
from cartpole import cartpole
from waiting import threads, until
from windrow.collectors import Collector, Evaluator, MultiAsyncCollector, MultiSyncCollector

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX"),
    pytest.mark.filterwarnings("ignore:environments written in Python share"),
]

MAKING = {
    "one worker": "Collector(slow, frames_per_batch=10)",
    "one worker with several environments": "Collector(slow, frames_per_batch=10, num_envs=3)",
    "one worker, in a thread": "AsyncCollector(slow, placement='threads', frames_per_batch=10)",
    "several workers": "MultiSyncCollector([slow] * 3, placement='threads', frames_per_batch=30)",
    "several workers, inline": "MultiSyncCollector([slow] * 3, frames_per_batch=30, placement='inline')",
    "several workers that run ahead": "MultiAsyncCollector([slow] * 3, placement='threads', frames_per_batch=10)",
    "an evaluator": "Evaluator(slow, lambda observation: None)",
}

PROGRAM = r"""
import os, sys, time
from windrow.collectors import *
def slow():
    os.write(1, b"making\n")
    time.sleep(600)
try:
    {making}
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(7)
"""


@pytest.mark.parametrize("place", MAKING)
def test_ctrl_c_is_heard_and_the_interpreter_ends_while_threads_are_still_at_it(place: str) -> None:
    program = PROGRAM.format(making=MAKING[place])
    running = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert running.stdout.readline() == "making\n"
        os.kill(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=120)
    finally:
        running.kill()
    assert [line for line in out.splitlines() if line != "making"] == ["interrupted"]
    assert (err, running.returncode) == ("", 7)


class Closing(gymnasium.Wrapper):
    """Counts those that are open."""

    opened = 0

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        Closing.opened += 1

    def close(self) -> None:
        Closing.opened -= 1
        super().close()


@pytest.mark.parametrize(
    "make",
    [
        lambda env: MultiSyncCollector(
            [env] * 3, placement="threads", frames_per_batch=30, num_envs=2
        ),
        lambda env: MultiAsyncCollector(
            [env] * 3, placement="threads", frames_per_batch=30, num_envs=2
        ),
        lambda env: Evaluator(env, lambda observation: None),
    ],
    ids=["MultiSyncCollector", "MultiAsyncCollector", "Evaluator"],
)
def test_what_is_made_in_vain_is_closed_and_nothing_else_is_begun(make) -> None:
    go_on = threading.Event()
    begun = itertools.count(1)
    last = 0

    def env() -> Closing:
        nonlocal last
        last = next(begun)
        # Whoever makes it waits; the other workers wait for their turn.
        os.kill(os.getpid(), signal.SIGALRM)
        go_on.wait(60)
        return Closing()

    def interrupt(*_):
        raise KeyboardInterrupt

    before = threads()
    handler = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            make(env)
        go_on.set()
        until(lambda: threads().keys() <= before.keys())
    finally:
        go_on.set()
        signal.signal(signal.SIGALRM, handler)
    assert last == 1
    assert Closing.opened == 0


class Alone:
    """Makes environments, and sees whether two are ever being made at the same time."""

    def __init__(self) -> None:
        self.inside, self.most, self.made = 0, 0, 0

    def __call__(self, fails: bool = False):
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(0.01)
        self.inside -= 1
        self.made += 1
        return Failing() if fails else cartpole()


class Failing(gymnasium.Wrapper):
    """Fails in its twelfth step."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 12:
            raise RuntimeError("lost")
        return super().step(action)


@pytest.mark.parametrize("num_envs", [None, 2])
def test_environments_are_made_one_after_the_other(num_envs: int | None) -> None:
    alone = Alone()

    def collect() -> None:
        with MultiSyncCollector(
            [alone] * 3, placement="threads", frames_per_batch=30, num_envs=num_envs
        ) as collector:
            next(collector)

    others = [threading.Thread(target=collect) for _ in range(2)]
    for other in others:
        other.start()
    windrow.envs.SerialEnv(2, alone).reset()
    for other in others:
        other.join()
    assert (alone.most, alone.made) == (1, 2 * 3 * (num_envs or 1) + 2)


def test_environments_of_lost_workers_are_made_one_after_the_other() -> None:
    alone = Alone()
    with MultiSyncCollector(
        [lambda: alone(fails=True)] * 3,
        placement="threads",
        frames_per_batch=30,
        total_frames=90,
        on_loss=20,
    ) as collector:
        assert sum(batch.numel() for batch in collector) == 90
    assert alone.most == 1 and alone.made > 3


@pytest.mark.parametrize(
    "use",
    [
        lambda inner: next(Collector(inner, frames_per_batch=4)),
        lambda inner: next(
            MultiSyncCollector([inner] * 2, placement="threads", frames_per_batch=4)
        ),
        lambda inner: next(
            MultiAsyncCollector([inner] * 2, placement="threads", frames_per_batch=4)
        ),
        lambda inner: Evaluator(
            inner, lambda observation: torch.zeros(observation.shape[:-1], dtype=torch.int64)
        ).shutdown(),
        lambda inner: windrow.envs.SerialEnv(2, inner).reset(),
    ],
    ids=["Collector", "MultiSyncCollector", "MultiAsyncCollector", "Evaluator", "SerialEnv"],
)
def test_a_function_that_makes_an_environment_may_use_others(use) -> None:
    def env():
        use(lambda: cartpole())
        return cartpole()

    with MultiSyncCollector([env] * 2, placement="threads", frames_per_batch=20) as collector:
        assert next(collector).numel() == 20


def test_environments_that_are_made_in_time_are_all_there() -> None:
    go_on = threading.Event()

    def env():
        assert go_on.wait(60)
        return cartpole()

    threading.Timer(0.3, go_on.set).start()
    with MultiSyncCollector([env] * 3, placement="threads", frames_per_batch=30) as collector:
        assert next(collector).numel() == 30
