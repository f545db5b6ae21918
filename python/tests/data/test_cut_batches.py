"""What collectors write of batches that were cut short."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torchrl.data

import windrow.data
from windrow.collectors import Collector, Interruptor, MultiSyncCollector

KEEPS: list[Callable[[Any], Any]] = [lambda batch: batch, lambda batch: batch.exclude("collector")]


@pytest.mark.parametrize("library", [windrow.data, torchrl.data], ids=["windrow", "torchrl"])
@pytest.mark.parametrize("postproc", [None, *KEEPS], ids=["none", "keeps all", "drops the mask"])
@pytest.mark.parametrize("workers", [1, 2])
def test_what_was_not_collected_is_not_written(library: Any, postproc: Any, workers: int) -> None:
    buffer = library.ReplayBuffer(storage=library.LazyTensorStorage(100))
    interruptor = Interruptor()
    interruptor.stop_collection()
    arguments: dict[str, Any] = {
        "frames_per_batch": 40,
        "replay_buffer": buffer,
        "postproc": postproc,
        "interruptor": interruptor,
    }
    if workers == 1:
        collector: Any = Collector("CartPole-v1", **arguments)
    else:
        collector = MultiSyncCollector(["CartPole-v1"] * workers, cat_results="stack", **arguments)
    with collector:
        next(collector)
    assert len(buffer) == workers
    assert (buffer[:]["next", "reward"] == 1).all()
