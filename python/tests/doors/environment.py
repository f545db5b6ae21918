"""An environment whose rows can be recomputed, and that fails once."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

#: The faults, in the order of the table.
FAULTS = ("killed", "stopped", "raises", "exits", "hangs in step", "hangs in reset")
#: Steps of an episode, and the step of the fault, counted over episodes.
LENGTH, AT = 10, 15
#: Once set, environments that hang in threads of this process go on.
RELEASE = threading.Event()
#: The step in which environments without a fault wait while there is a file with the name of the
#: mark and this ending.
HELD_AT, HOLD = 60, ".hold"


class Faulty(gymnasium.Env[Any, Any]):
    """Observes ``[number, step]``; the reward is the step. The first environment that creates the
    file ``mark`` has the fault.
    """

    observation_space = gymnasium.spaces.Box(0, 1000, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, number: int, fault: str | None, mark: str) -> None:
        self.number, self.fault, self.mark = number, fault, mark
        self.step_count, self.taken, self.begun = 0, 0, 0

    def pid(self) -> int:
        return os.getpid()

    def _seen(self) -> np.ndarray:
        return np.array([self.number, self.step_count], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.begun += 1
        self.step_count = 0
        if self.fault == "hangs in reset" and self.begun == 2:
            self._fail()
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.taken += 1
        self.step_count += 1
        if self.taken == AT and self.fault != "hangs in reset":
            self._fail()
        if self.taken == HELD_AT and self.fault is None:
            while Path(self.mark + HOLD).exists():
                time.sleep(0.01)
        return self._seen(), float(self.step_count), self.step_count == LENGTH, False, {}

    def _fail(self) -> None:
        if self.fault is None:
            return
        try:
            with open(self.mark, "x") as file:
                # A clock that all processes share.
                file.write(str(time.monotonic()))
        except FileExistsError:
            return
        if self.fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.fault == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.fault == "raises":
            raise RuntimeError("a cable broke")
        elif self.fault == "exits":
            os._exit(3)
        else:
            RELEASE.wait(600)


def when(mark: str) -> float:
    """The time of the fault."""
    return float(Path(mark).read_text())
