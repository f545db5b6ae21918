"""Environments of the tests."""

from __future__ import annotations

from windrow.envs import GymEnv


def cartpole() -> GymEnv:
    """CartPole whose action is the number of a choice."""
    return GymEnv("CartPole-v1", categorical_action_encoding=True)
