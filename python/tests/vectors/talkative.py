"""Environments that tell all kinds of things."""

from __future__ import annotations

import os
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Talkative(gymnasium.Env[Any, Any]):
    """Tells, in ``info``, of numbers, arrays, text, nested entries, and of some things now and
    then; its observation has parts.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}
    observation_space = spaces.Dict(
        {
            "at": spaces.Box(-1, 1, (2,), np.float64),
            "word": spaces.Text(8),
            "of": spaces.Tuple([spaces.Discrete(3, start=1)]),
        }
    )
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, length: int = 5) -> None:
        self.render_mode, self._length, self._left, self.weight = "rgb_array", length, 0, 1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = self._length + int(self.np_random.integers(3))
        return self._seen(), {"options": repr(options), "left": self._left}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        info = {
            "left": self._left,
            "at": np.arange(2) + self._left,
            "deep": {"er": {"x": 0.5, "who": "me"}},
            "even": True,
        }
        if self._left % 2:
            info = {"odd": np.float32(self._left), "deep": {"y": [1]}}
        return self._seen(), float(action.sum()) / 3, self._left == 0, self._left == 1, info

    def _seen(self) -> Any:
        return {
            "at": self.np_random.uniform(-1, 1, 2),
            "word": "w" * (self._left % 8),
            "of": (np.int64(self._left % 3 + 1),),
        }

    def render(self) -> Any:
        return np.full((2, 2, 3), self._left, np.uint8)

    def weigh(self, by: int) -> int:
        return self.weight * by


class Commanded(Talkative):
    """One whose actions have parts."""

    action_space = spaces.Dict(
        {"by": spaces.Box(-1, 1, (), np.float32), "to": spaces.Discrete(3, start=-1)}
    )

    def step(self, action: Any) -> Any:
        return super().step(np.array([float(action["by"]), int(action["to"])]))


class Tabled(Talkative):
    """One that observes and takes tables of choices."""

    observation_space = spaces.MultiDiscrete([[2, 3], [3, 2]])
    action_space = spaces.MultiDiscrete([[2, 3], [3, 2]])

    def _seen(self) -> Any:
        return np.array([[self._left % 2, 2], [0, 1]])


class Numerical(Talkative):
    """One whose ``info`` has numbers of many types, which change now and then, and which is empty
    at times.
    """

    observation_space = spaces.Box(-1, 1, (2,), np.float64)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, reward, terminated, truncated, _ = super().step(action)
        left = self._left
        info = {
            "whole": -left,
            "real": left / 3,
            "even": left % 2 == 0,
            "single": np.float32(left) / 3,
            "byte": np.int8(left),
        }
        if self._length == 5 and left == 2:
            info["whole"] = np.int16(left)
        elif self._length == 5 and left == 3:
            del info["real"]
        return seen, reward, terminated, truncated, {} if left == 4 else info

    def _seen(self) -> Any:
        return self.np_random.uniform(-1, 1, 2)


class Measured(Numerical):
    """One whose ``info`` has numbers of one type always."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *stepped, _ = super().step(action)
        return (*stepped, {"left": np.float64(self._left), "third": np.float64(self._left) / 3})


class Mortal(Talkative):
    """One whose process can be ended."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)

    def _seen(self) -> Any:
        return np.int64(1)

    def die(self) -> None:
        os._exit(3)
