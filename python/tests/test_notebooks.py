"""What notebooks show of an object."""

from __future__ import annotations

import os
from html.parser import HTMLParser
from typing import Any

import pytest
from torch import nn

from windrow import _html
from windrow.collectors import (
    AsyncBatchedCollector,
    Collector,
    Evaluator,
    MultiAsyncCollector,
    MultiSyncCollector,
)
from windrow.data import LazyTensorStorage, PrioritizedReplayBuffer, RateLimiter, ReplayBuffer


class Cells(HTMLParser):
    """The rows of a table. Each tag that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.cells.append(data)

    @property
    def rows(self) -> dict[str, str]:
        return dict(zip(self.cells[1::2], self.cells[2::2], strict=True))


@pytest.mark.parametrize(
    "kind", [Collector, MultiSyncCollector, MultiAsyncCollector, AsyncBatchedCollector]
)
def test_a_collector_shows_a_table(kind: Any) -> None:
    workers = {} if kind is Collector else {"num_workers": 2}
    with kind(
        "CartPole-v1", nn.Linear(4, 2), frames_per_batch=1000, total_frames=2000, **workers
    ) as collector:
        next(collector)
        cells = Cells(collector._repr_html_())
        assert cells.cells[0] == kind.__name__
        assert cells.rows["frames"] == "1,000 of 2,000" and cells.rows["policy"] == "native"
    assert Cells(collector._repr_html_()).rows["frames"] == "1,000 of 2,000"


def test_a_buffer_shows_a_table_and_no_frame() -> None:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(2000), batch_size=32, limiter=RateLimiter.min_size(10)
    )
    assert Cells(buffer._repr_html_()).rows["frames"] == "0 of 2,000"
    list(Collector("CartPole-v1", frames_per_batch=1000, total_frames=1000, replay_buffer=buffer))
    rows = Cells(buffer._repr_html_()).rows
    assert (
        rows["frames"] == "1,000 of 2,000"
        and rows["frames in a sample"] == "32"
        and rows["limiter"] == "RateLimiter.min_size(10)"
    )
    assert (
        "PrioritizedSampler("
        in Cells(PrioritizedReplayBuffer(alpha=0.5, beta=0.5)._repr_html_()).rows["sampler"]
    )


def test_an_evaluator_shows_a_table() -> None:
    with Evaluator("CartPole-v1", nn.Linear(4, 2), num_trajectories=2) as evaluator:
        evaluator.evaluate()
        rows = Cells(evaluator._repr_html_()).rows
    assert (
        rows["runs in"] == "thread"
        and rows["episodes of each"] == "2"
        and rows["evaluations asked for"] == "1"
    )


def test_what_is_shown_is_escaped() -> None:
    class Shown:
        @_html.table
        def _repr_html_(self) -> dict[str, Any]:
            return {
                "<script>": "a & b <i>",
                "none": None,
                "flag": True,
                "many": 1234567,
                "part": 0.123456,
            }

    text = Shown()._repr_html_()
    assert "<script>" not in text and "<i>" not in text
    assert Cells(text).rows == {
        "<script>": "a & b <i>",
        "flag": "True",
        "many": "1,234,567",
        "part": "0.1235",
    }


def test_an_error_is_in_the_way_of_a_table_alone() -> None:
    class Broken:
        @_html.table
        def _repr_html_(self) -> dict[str, Any]:
            raise RuntimeError

    assert Broken()._repr_html_() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_an_object_of_another_process_shows_no_table() -> None:
    with Collector("CartPole-v1", frames_per_batch=10) as collector:
        child = os.fork()
        if child == 0:
            os._exit(0 if collector._repr_html_() is None else 1)
        assert os.waitpid(child, 0)[1] == 0
