"""Errors that nobody has asked for are shown, once their collector ends."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from typing import Any

import gymnasium
import pytest

from windrow.collectors import AsyncCollector, MultiAsyncCollector
from windrow.envs import GymWrapper

PROGRAM = """
import time
import gymnasium
from windrow.collectors import Collector

class Breaks(gymnasium.Wrapper):
    def step(self, action):
        if batches:
            raise ZeroDivisionError("it broke")
        return super().step(action)

class Buffer:
    def extend(self, batch):
        batches.append(batch)

batches = []
collector = Collector(lambda: Breaks(gymnasium.make("CartPole-v1")), frames_per_batch=10, replay_buffer=Buffer())
collector.start()
while collector.is_running(): time.sleep(0.01)
"""


def test_an_error_in_the_background_that_nobody_asked_for_is_shown_at_the_end_of_the_program() -> (
    None
):
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, timeout=120
    )
    assert "Exception in thread windrow-collector" in ended.stderr and "it broke" in ended.stderr
    assert ended.returncode == 0


@pytest.mark.filterwarnings("ignore:environments written in Python")
@pytest.mark.parametrize("kind", [AsyncCollector, MultiAsyncCollector])
def test_an_error_of_a_worker_that_nobody_asked_for_is_shown(
    kind: Any, unraisable: list[BaseException | None]
) -> None:
    delivered, broke = threading.Event(), threading.Event()

    class Breaks(gymnasium.Wrapper):
        def step(self, action: Any) -> Any:
            if self.steps == 10:
                # The worker runs ahead.
                delivered.wait(60)
                broke.set()
                raise ZeroDivisionError("it broke")
            self.steps += 1
            return super().step(action)

        steps = 0

    env = [lambda: GymWrapper(Breaks(gymnasium.make("CartPole-v1")))]
    collector = kind(env, frames_per_batch=10, placement="threads")
    next(collector)
    delivered.set()
    assert broke.wait(60)
    del collector
    gc.collect()
    assert len(unraisable) == 1 and "it broke" in str(unraisable[0])
