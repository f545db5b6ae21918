"""Document 003: the source of the page on single-node collectors."""

from __future__ import annotations

from typing import Any

import pytest

from seeds.buffers import BUFFERS, MakeBuffer, Time
from seeds.conftest import Run
from windrow import collectors
from windrow.collectors import Collector


def test_async_batched_collector(run: Run) -> None:
    names = run(
        "003/1_async_batched_collector", changes={"total_frames=10000": "total_frames=1000"}
    )
    assert names["data"].shape == (200,) and names["collector"].stats()["frames"] == 1000
    # Logits act by the largest.
    chosen = names["policy"].module(names["data"]["observation"]).argmax(-1)
    assert (names["data"]["action"].argmax(-1) == chosen).float().mean() > 0.9


def test_multi_collector(run: Run, policy: Any) -> None:
    names = run(
        "003/2_multi_collector", {"my_policy": policy}, {"total_frames=100000": "total_frames=2000"}
    )
    assert names["data"].shape == (1000,)
    assert sorted(batch.shape[0] for batch in names["async_collector"]) == [1000, 1000]


@pytest.mark.parametrize("make_buffer", BUFFERS)
def test_start(run: Run, make_env: Any, policy: Any, make_buffer: MakeBuffer) -> None:
    rb = make_buffer()
    names = run(
        "003/3_start",
        {
            "Collector": Collector,
            "time": Time(rb, 100),
            "rb": rb,
            "optim_steps": 5,
            "make_env": make_env,
            "policy": policy,
        },
        {"...": "make_env, policy, frames_per_batch=100, total_frames=-1"},
    )
    assert names["data"].shape == (32,)
    assert names["collector"].is_running()
    names["collector"].async_shutdown()
    assert not names["collector"].is_running()


@pytest.mark.parametrize(
    "name",
    [
        "BaseCollector",
        "Collector",
        "AsyncCollector",
        "MultiCollector",
        "MultiSyncCollector",
        "MultiAsyncCollector",
    ],
)
def test_listed_classes(name: str) -> None:
    assert issubclass(getattr(collectors, name), collectors.BaseCollector)
