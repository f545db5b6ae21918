"""An environment whose observations tell which frame they are, and what was collected of it."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import gymnasium
import numpy as np

_NUMBERS = itertools.count()


def length(number: int, episode: int) -> int:
    """Steps of an episode of environment ``number``."""
    return 1 + (number * 5 + episode * 3) % 7


class Ledger(gymnasium.Env):
    """Observes its own number, the number of the episode and the step. Episodes have 1 to 7
    steps.
    """

    observation_space = gymnasium.spaces.Box(0, 1e6, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.number = next(_NUMBERS)
        self.episode = -1
        self.step_count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.step_count = self.episode + 1, 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.step_count += 1
        return (
            self._observation(),
            1.0,
            self.step_count == length(self.number, self.episode),
            False,
            {},
        )

    def _observation(self) -> Any:
        return np.array([self.number, self.episode, self.step_count], np.float32)


def trajectories_of(batch: Any) -> list[tuple[int, int]]:
    """Environment and episode of each trajectory in a flat batch, all of which must be whole."""
    found: list[tuple[int, int]] = []
    expected = 0
    frames = batch["observation"].int().tolist()
    for (number, episode, step), done in zip(
        frames, batch["next", "done"].flatten().tolist(), strict=True
    ):
        assert step == expected, (
            f"environment {number}, episode {episode}: step {step} where {expected} belongs"
        )
        expected += 1
        if done:
            found.append((number, episode))
            expected = 0
    assert expected == 0, "the last trajectory is not whole"
    return found


def check_ledger(trajectories: list[tuple[int, int]]) -> None:
    """Each environment's episodes are there once, in order, from the first to some last."""
    by_env = defaultdict(list)
    for number, episode in trajectories:
        by_env[number].append(episode)
    for number, episodes in by_env.items():
        assert episodes == list(range(len(episodes))), f"environment {number}: {episodes}"
