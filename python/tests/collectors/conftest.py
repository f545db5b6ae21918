from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cartpole import cartpole
from windrow.collectors import AsyncBatchedCollector, _async_batched

Build = Callable[..., Any]


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Iterator[Build]:
    """Builds a collector with so many environments that ask one policy, two to a thread, and ends
    it after the test.
    """
    monkeypatch.setattr(_async_batched, "_TOGETHER", 2)
    monkeypatch.setattr(_async_batched, "cores", lambda: 4)
    built: list[Any] = []

    def make(envs: Any = 4, policy: Any = None, **options: Any) -> Any:
        envs = [cartpole] * envs if isinstance(envs, int) else envs
        built.append(
            AsyncBatchedCollector(envs, policy, **{"frames_per_batch": 40, "seed": 3, **options})
        )
        return built[-1]

    yield make
    for collector in built:
        collector.shutdown(raise_on_error=False)
