"""What happens when the served policy fails, and when nobody takes the batches."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from cartpole import cartpole
from collectors.conftest import Build
from waiting import threads, until
from windrow import WorkerError
from windrow.collectors import AsyncBatchedCollector


class Fails(nn.Module):
    """Raises at some of its calls, counted from the first that acts, and may wait in the next call
    until the loss is counted.
    """

    def __init__(self, *at: int, is_counted: Callable[[], bool] = lambda: True) -> None:
        super().__init__()
        self.at, self.calls, self.is_counted = at, -1, is_counted

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls in self.at:
            raise ValueError(f"no idea at {self.calls}")
        if self.calls - 1 in self.at:
            until(self.is_counted)
        return torch.zeros(observation.shape[:-1], dtype=torch.int64)


def test_what_the_policy_raises_is_raised_with_its_cause(build: Build) -> None:
    collector = build(4, Fails(5), policy_backend="torch")
    with pytest.raises(WorkerError, match="no idea at 5") as told:
        list(collector)
    assert isinstance(told.value.__cause__, ValueError) and "in forward" in str(told.value)
    with pytest.raises(RuntimeError, match="ended by an error"):
        collector.next()


def test_a_failing_call_is_that_of_its_own_requests(build: Build) -> None:
    # One environment in each worker, and one worker in each call. The other one might collect all
    # frames before the loss is counted.
    policy = Fails(5, is_counted=lambda: collector.stats()["restarts"] == 1)
    collector = build(
        2,
        policy,
        policy_backend="torch",
        max_batch_size=1,
        on_loss=1,
        frames_per_batch=10,
        total_frames=100,
    )
    assert sum(batch.numel() for batch in collector) == 100
    assert collector.stats()["restarts"] == 1 and collector.server_stats()["failed_batches"] == 1
    assert ["no idea at 5" in loss for loss in collector.losses()] == [True]


def test_workers_are_replaced_and_go_on(build: Build) -> None:
    collector = build(
        4, Fails(3, 11), policy_backend="torch", on_loss=5, frames_per_batch=20, total_frames=400
    )
    frames = torch.cat(
        [batch.select("env_index", ("collector", "traj_ids")) for batch in collector]
    )
    assert frames.shape == (400,) and torch.equal(
        frames["env_index"], frames["collector", "traj_ids"] % 4
    )
    assert collector.stats()["restarts"] >= 2


def test_a_policy_that_cannot_be_called_is_an_error_at_once(build: Build) -> None:
    with pytest.raises(ValueError, match="no idea at 0"):
        build(2, Fails(0), policy_backend="torch")
    with pytest.raises(TypeError, match="expected a policy whose parameters are observations"):
        build(2, lambda pixels, depth: pixels, policy_backend="torch")


def test_an_error_after_start_is_raised_by_the_next_call(build: Build) -> None:
    from windrow.data import LazyTensorStorage, ReplayBuffer

    collector = build(
        2,
        Fails(9),
        policy_backend="torch",
        replay_buffer=ReplayBuffer(storage=LazyTensorStorage(100)),
    )
    collector.start()
    until(lambda: not collector.is_running())
    with pytest.raises(WorkerError, match="no idea at 9"):
        collector.stats()


def test_a_slow_learner_stops_the_environments(build: Build) -> None:
    collector = build(4, Fails(), policy_backend="torch", frames_per_batch=20)
    batch = next(collector)
    workers = collector.stats()["workers"]

    def collected() -> int:
        return sum(worker["frames"] for worker in collector._core.worker_stats())

    # Each worker fills a part ahead, and then waits.
    until(lambda: collected() >= (workers + 1) * 20 or collector.stats()["slabs"] > workers + 2)
    bound = collected()
    for _ in range(50):
        assert (
            collected() <= (2 * workers + 1) * 20 and collector.stats()["slabs"] <= 2 * workers + 2
        )
        threading.Event().wait(0.002)
    assert bound <= (2 * workers + 1) * 20 and batch.numel() == 20


def test_a_call_that_does_not_return_is_left_behind(build: Build) -> None:
    begun, release = threading.Event(), threading.Event()

    def stuck(observation: torch.Tensor) -> torch.Tensor:
        if begun.is_set() or observation.shape[0] == 0:
            release.wait()
        begun.set()
        return torch.zeros(observation.shape[:-1], dtype=torch.int64)

    collector = build(2, stuck, policy_backend="torch")
    assert begun.is_set()
    threading.Timer(0.2, release.set).start()
    # It waits for the call, no longer.
    collector.shutdown()
    release.set()


def test_no_thread_is_left() -> None:
    before = set(threads())
    with AsyncBatchedCollector(
        [cartpole] * 4, Fails(), policy_backend="torch", frames_per_batch=20
    ) as collector:
        next(collector)
        assert set(threads()) - before
    until(lambda: not set(threads()) - before)


def test_a_collector_that_its_policy_refers_to_is_freed() -> None:
    class Owner:
        def policy(self, observation: torch.Tensor) -> torch.Tensor:
            return torch.zeros(observation.shape[:-1], dtype=torch.int64)

    owner: Any = Owner()
    owner.collector = AsyncBatchedCollector([cartpole] * 2, owner.policy, frames_per_batch=20)
    next(owner.collector)
    freed = weakref.ref(owner.collector)
    del owner

    def is_freed() -> bool:
        gc.collect()
        return freed() is None

    until(is_freed)


def test_a_shut_down_collector_says_so(build: Build) -> None:
    collector = build(2, Fails(), policy_backend="torch")
    collector.shutdown()
    for ask in (collector.reset, lambda: collector.set_seed(1), lambda: next(collector)):
        with pytest.raises(RuntimeError, match="shut down"):
            ask()
