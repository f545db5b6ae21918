"""CartPole for the tests, and how to collect it in threads."""

from __future__ import annotations

from typing import Any

from windrow.collectors import (
    AsyncBatchedCollector,
    AsyncCollector,
    Collector,
    MultiAsyncCollector,
    MultiSyncCollector,
)
from windrow.envs import GymEnv

TWO = ["CartPole-v1"] * 2
#: Every class of collectors, and environments for it.
KINDS: list[tuple[Any, Any]] = [
    (Collector, "CartPole-v1"),
    (AsyncCollector, "CartPole-v1"),
    (MultiSyncCollector, TWO),
    (MultiAsyncCollector, TWO),
    (AsyncBatchedCollector, TWO),
]


def cartpole() -> GymEnv:
    """CartPole whose action is the number of a choice."""
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def in_threads(kind: Any) -> dict[str, Any]:
    """The arguments by which workers of a class of collectors run in threads, where they would run
    in processes.
    """
    return {} if kind is Collector else {"placement": "threads"}
