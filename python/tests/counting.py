"""Environments that worker processes make. They import this module, and no torch."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np


class Counting(gym.Env):
    """Counts its steps, ten an episode, and does something else in the seventh."""

    observation_space = gym.spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, act: Callable[[], object] | None = None, pace: float = 1.0) -> None:
        self.act = act
        self.pace = pace
        self.resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        self.resets += 1
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.act is not None and self.steps == 7:
            self.act()
        return self._seen(), 1.0, False, self.steps >= 10, {}

    def _seen(self) -> Any:
        return np.array([self.steps * self.pace, os.getpid()], np.float32)

    def told(self, function: Callable[[], object]) -> object:
        return function()

    def faster(self, by: float) -> float:
        self.pace *= by
        return self.pace


class Locked(Counting):
    """Has what cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Stateful(Counting):
    """Has a state: how often it was begun."""

    def state_dict(self) -> dict[str, Any]:
        return {"resets": np.array(self.resets)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.resets = int(state["resets"])


class Telling(Counting):
    """Tells in ``info`` what nobody observes."""

    def step(self, action: Any) -> Any:
        return (*super().step(action)[:4], {"speed": 1.0})


class Odd(Exception):
    """Its constructor does not take what it keeps."""

    def __init__(self, cause: str, *, place: int) -> None:
        super().__init__(f"{cause} at {place}")


def raises_value_error() -> None:
    raise ValueError("no such road")


def raises_odd() -> None:
    raise Odd("mud", place=3)


def raises_surrogates() -> None:
    raise OSError("caf\udce9")


def raises_lock() -> None:
    error = LookupError("held")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    raise error


def sleeps_long() -> None:
    time.sleep(1000)


def check_no_torch() -> None:
    assert "torch" not in sys.modules


def without_torch() -> gym.Env:
    check_no_torch()
    return Counting(check_no_torch)
