"""Comparisons of two vectors, value by value."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

MODES = list(AutoresetMode)


def assert_alike(ours: Any, theirs: Any) -> None:
    """The same types, keys, element types, shapes and bits."""
    assert type(ours) is type(theirs), (ours, theirs)
    if isinstance(theirs, dict):
        # Seconds are the one entry that differs.
        assert ours.keys() == theirs.keys(), (ours, theirs)
        for name in theirs.keys() - {"t"}:
            assert_alike(ours[name], theirs[name])
    elif isinstance(theirs, (tuple, list)):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_alike(one, other)
    elif isinstance(theirs, np.ndarray) and theirs.dtype == object:
        assert_alike(ours.tolist(), theirs.tolist())
    elif isinstance(theirs, np.ndarray):
        assert (
            ours.dtype == theirs.dtype
            and ours.shape == theirs.shape
            and ours.tobytes() == theirs.tobytes()
        ), (ours, theirs)
    else:
        assert ours == theirs


def sync(env: Any, num_envs: int, mode: AutoresetMode, wrap: Any = None) -> Any:
    """Gymnasium's vector of the same environments."""

    def make() -> Any:
        made = gymnasium.make(env) if isinstance(env, str) else env()
        return made if wrap is None else wrap(made)

    return gymnasium.vector.SyncVectorEnv([make] * num_envs, autoreset_mode=mode)


def run_beside(ours: Any, theirs: Any, steps: int, rewards: Any = lambda values: values) -> int:
    """Steps both with the same actions and compares all that they return; the number of episodes
    that have ended.
    """
    assert ours.single_observation_space == theirs.single_observation_space
    assert (
        ours.observation_space == theirs.observation_space
        and ours.action_space == theirs.action_space
    )
    assert_alike(ours.reset(seed=7), theirs.reset(seed=7))
    theirs.action_space.seed(1)
    episodes = 0
    for _ in range(steps):
        actions = theirs.action_space.sample()
        seen, expected = ours.step(actions), theirs.step(actions)
        assert_alike((seen[0], *seen[2:]), (expected[0], *expected[2:]))
        assert_alike(seen[1], rewards(expected[1]))
        ended = expected[2] | expected[3]
        episodes += int(ended.sum())
        if theirs.metadata["autoreset_mode"] is AutoresetMode.DISABLED and ended.any():
            assert_alike(
                *(one.reset(options={"reset_mask": ended.copy()}) for one in (ours, theirs))
            )
    return episodes
