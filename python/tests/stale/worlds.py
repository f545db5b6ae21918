"""An environment whose observations are numbers, and that may change a policy as it steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

#: Steps of an episode.
STEPS = 5


class World(gym.Env):  # type: ignore[type-arg]
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self, on_step: Callable[[], Any] | None = None) -> None:
        self.on_step = on_step
        self._drawn = np.random.default_rng(0)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self.on_step is not None:
            self.on_step()
        return self._observation(), 0.0, False, self._steps == STEPS, {}

    def _observation(self) -> Any:
        return self._drawn.random(2, np.float32)


class Wrapper(gym.Wrapper):  # type: ignore[type-arg]
    """Changes a policy around the environment."""

    def __init__(self, env: Any, on_step: Callable[[], Any]) -> None:
        super().__init__(env)
        self._on_step = on_step

    def step(self, action: Any) -> Any:
        stepped = super().step(action)
        self._on_step()
        return stepped
