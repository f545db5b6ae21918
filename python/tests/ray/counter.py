"""What is in actors. They import this module, and no torch."""

from __future__ import annotations

import os
import signal
import time
import uuid
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np


class Counter(gym.Env[Any, Any]):
    """Observes its seed and how many steps it has made, ten an episode.

    Args:
        trap: a file that says what happens once, at the fifteenth step or later: ``"die"`` or
            ``"raise"``.
        tally: a directory where it notes how many steps it has made, when it is closed.
        pace: seconds of a step.
    """

    observation_space = gym.spaces.Box(-1e9, 1e9, (2,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def __init__(
        self, trap: Path | None = None, tally: Path | None = None, pace: float = 0.0
    ) -> None:
        self.trap, self.tally, self.pace, self.number, self.steps = trap, tally, pace, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.number = self.number if seed is None else seed
        return self._observed(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        time.sleep(self.pace)
        if self.trap is not None and self.steps >= 15 and self.trap.exists():
            what = self.trap.read_text()
            self.trap.unlink()
            if what == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            raise LookupError("no such road")
        return self._observed(), 1.0, self.steps % 10 == 0, False, {}

    def close(self) -> None:
        if self.tally is not None and self.steps:
            (self.tally / uuid.uuid4().hex).write_text(str(self.steps))
            self.steps = 0

    def _observed(self) -> Any:
        return np.array([self.number, self.steps], np.float64)


def set_trap(trap: Path, what: str) -> None:
    """Has the next step run into a trap, which it never finds half written."""
    written = trap.with_suffix(".written")
    written.write_text(what)
    written.rename(trap)


class Failing(Counter):
    """Fails at its 1010th step."""

    def step(self, action: Any) -> Any:
        if self.steps == 1009:
            raise LookupError("the road ends here")
        return super().step(action)


def steps_in(tally: Path) -> int:
    """Steps of all environments that have noted them."""
    return sum(int(noted.read_text()) for noted in tally.iterdir())


def fails() -> Any:
    raise ValueError("no such place")


def have_torch(collector: Any) -> list[bool]:
    """Whether the actors of ``collector``, on this machine, have loaded torch."""
    until = time.monotonic() + 60.0
    while True:
        pids = [pid for name, pid in collector.stats("per_worker").items() if name.endswith("/pid")]
        if None not in pids:
            return ["libtorch" in Path(f"/proc/{pid}/maps").read_text() for pid in pids]
        # An actor that takes another's place has no process before it has answered.
        assert time.monotonic() < until, pids
        time.sleep(0.01)


class Taking:
    """Stands for a collector in an actor: keeps what it was given, and needs no torch."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []

    def update_policy_weights_(self, weights: Any) -> None:
        if len(self.taken) == 9:
            raise ArithmeticError("that was enough")
        self.taken.append(weights.tobytes())

    def forget(self) -> None:
        self.taken = []

    def last(self) -> tuple[int, bytes | None]:
        """How often weights came, and the last ones."""
        return len(self.taken), self.taken[-1] if self.taken else None

    def end(self) -> None:
        os._exit(1)
