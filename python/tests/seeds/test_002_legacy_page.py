"""Document 002: the page on single-node collectors, with the names of old."""

from __future__ import annotations

from typing import Any

import pytest

from seeds.buffers import BUFFERS, MakeBuffer, Time
from seeds.conftest import Run
from windrow.collectors import SyncDataCollector


@pytest.mark.parametrize("make_buffer", BUFFERS)
def test_start(run: Run, make_env: Any, policy: Any, make_buffer: MakeBuffer) -> None:
    rb = make_buffer()
    names = run(
        "002/1_start",
        {
            "SyncDataCollector": SyncDataCollector,
            "time": Time(rb, 1000),
            "rb": rb,
            "optim_steps": 5,
            "make_env": make_env,
            "policy": policy,
        },
        {"...": "make_env, policy, frames_per_batch=100, total_frames=1000"},
    )
    assert names["data"].shape == (32,)
    names["collector"].async_shutdown()
    assert len(rb) == 1000
