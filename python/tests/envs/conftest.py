"""Environments of Gymnasium that do what tests need."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest


class Echo(gymnasium.Env[Any, Any]):
    """Observes a draw of its space, which has the last action in it where there is one; ends after
    `length` steps.
    """

    def __init__(self, observation_space: Any, action_space: Any, length: int = 5) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.length, self.steps = length, 0
        self.actions: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.actions.append(action)
        self.steps += 1
        return (
            self.observation_space.sample(),
            float(self.steps),
            self.steps == self.length,
            False,
            {},
        )


class Scripted(gymnasium.Env[Any, Any]):
    """Returns what it is told."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, observation: Any, reward: Any = 0.0) -> None:
        self.observation, self.reward = observation, reward

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if isinstance(self.observation, BaseException):
            raise self.observation
        return self.observation, self.reward, False, False, {}


@pytest.fixture
def echo() -> type[Echo]:
    return Echo


@pytest.fixture
def scripted() -> type[Scripted]:
    return Scripted
