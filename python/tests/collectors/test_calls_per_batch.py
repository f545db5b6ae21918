"""How often a batch calls the engine."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from torch import nn

from cartpole import cartpole
from windrow.collectors import AsyncCollector, Collector, MultiSyncCollector
from windrow.envs import ParallelEnv


class Counted:
    """A core that counts the calls of its methods."""

    def __init__(self, core: Any) -> None:
        self.core, self.calls = core, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self.core, name)


def policy() -> nn.Module:
    return nn.Linear(4, 2)


@pytest.mark.parametrize(
    ("kind", "arguments", "expected"),
    [
        (Collector, {"policy_backend": "native"}, {"next": 1, "follow": 1}),
        (Collector, {"policy_backend": "torch"}, {"next": 1}),
        (Collector, {"policy_backend": "native", "num_envs": 2}, {"next": 1, "follow": 1}),
        (Collector, {"compact_obs": True, "policy_backend": "torch"}, {"next": 1}),
        (AsyncCollector, {"placement": "threads"}, {"next": 1}),
        (MultiSyncCollector, {"placement": "threads", "num_workers": 2}, {"next": 1}),
    ],
)
def test_a_batch_asks_the_engine_for_nothing_that_never_changes(
    kind: Any, arguments: dict[str, Any], expected: dict[str, int]
) -> None:
    with kind("CartPole-v1", policy(), frames_per_batch=20, **arguments) as collector:
        next(collector)
        collector._core = collector._source._core = counted = Counted(collector._core)
        next(collector)
        assert counted.calls == expected


def test_environments_in_several_dimensions_need_no_call_of_their_own() -> None:
    def pair() -> ParallelEnv:
        return ParallelEnv(2, cartpole)

    with Collector(pair(), frames_per_batch=20) as collector:
        next(collector)
        collector._core = collector._source._core = counted = Counted(collector._core)
        assert next(collector).shape == (2, 10)
        assert counted.calls == {"next": 1}
