"""Ctrl-C while environments are being made that take long."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading

import gymnasium
import pytest

from environments import cartpole
from waiting import threads, until
from windrow.collectors import Evaluator, MultiAsyncCollector, MultiSyncCollector

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX"),
    pytest.mark.filterwarnings("ignore:environments written in Python share"),
]

MAKING = {
    "one worker": "Collector(slow, frames_per_batch=10)",
    "one worker with several environments": "Collector(slow, frames_per_batch=10, num_envs=3)",
    "one worker, in a thread": "AsyncCollector(slow, frames_per_batch=10)",
    "several workers": "MultiSyncCollector([slow] * 3, frames_per_batch=30)",
    "several workers, inline": "MultiSyncCollector([slow] * 3, frames_per_batch=30, placement='inline')",
    "several workers that run ahead": "MultiAsyncCollector([slow] * 3, frames_per_batch=10)",
    "an evaluator": "Evaluator(slow, lambda observation: None)",
}

PROGRAM = r"""
import os, sys, time
from windrow.collectors import *
def slow():
    os.write(1, b"making\n")
    time.sleep(30)
try:
    {making}
except KeyboardInterrupt:
    print("interrupted", flush=True)
    {end}
"""


def interrupted(making: str, end: str) -> tuple[list[str], str, int]:
    """What a program that is interrupted while it makes environments has said, and its exit status."""
    program = PROGRAM.format(making=making, end=end)
    running = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert running.stdout.readline() == "making\n"
        os.kill(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=15)
        return [line for line in out.splitlines() if line != "making"], err, running.returncode
    finally:
        running.kill()


@pytest.mark.parametrize("place", MAKING)
def test_ctrl_c_is_heard(place: str) -> None:
    out, _, status = interrupted(MAKING[place], "os._exit(7)")
    assert (out, status) == (["interrupted"], 7)


@pytest.mark.parametrize("place", MAKING)
def test_the_interpreter_ends_while_threads_are_still_at_it(place: str) -> None:
    out, err, status = interrupted(MAKING[place], "sys.exit(7)")
    assert (out, err, status) == (["interrupted"], "", 7)


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
    ("make", "workers"),
    [
        (lambda env: MultiSyncCollector([env] * 3, frames_per_batch=30, num_envs=2), 3),
        (lambda env: MultiAsyncCollector([env] * 3, frames_per_batch=30, num_envs=2), 3),
        (lambda env: Evaluator(env, lambda observation: None), 1),
    ],
    ids=["MultiSyncCollector", "MultiAsyncCollector", "Evaluator"],
)
def test_what_is_made_in_vain_is_closed_and_nothing_else_is_begun(make, workers: int) -> None:
    go_on = threading.Event()
    begun = itertools.count(1)
    last = 0

    def env() -> Closing:
        nonlocal last
        last = next(begun)
        if last == workers:
            # All are at it, and whoever makes them waits.
            os.kill(os.getpid(), signal.SIGALRM)
        go_on.wait(30)
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
    assert last == workers
    assert Closing.opened == 0


def test_environments_that_are_made_in_time_are_all_there() -> None:
    go_on = threading.Event()

    def env():
        assert go_on.wait(30)
        return cartpole()

    threading.Timer(0.3, go_on.set).start()
    with MultiSyncCollector([env] * 3, frames_per_batch=30) as collector:
        assert next(collector).numel() == 30
