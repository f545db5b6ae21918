"""CartPole for the tests, and how to collect it in threads."""

from __future__ import annotations

from typing import Any

from windrow.collectors import Collector
from windrow.envs import GymEnv


def cartpole() -> GymEnv:
    """CartPole whose action is the number of a choice."""
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def in_threads(kind: Any) -> dict[str, Any]:
    """The arguments by which workers of a class of collectors run in threads, where they would run in processes."""
    return {} if kind is Collector else {"placement": "threads"}
