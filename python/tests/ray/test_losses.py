"""Exact accounts: what is counted, and where it went, when actors are lost and when a collector
ends.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from counter import Counter, Failing, set_trap, steps_in

from waiting import comes, killed, runs, until
from windrow import WorkerError
from windrow.collectors import RayCollector
from windrow.data import LazyTensorStorage, RateLimiter, RayReplayBuffer, ReplayBuffer
from windrow.ray import _session

pytestmark = pytest.mark.usefixtures("cluster")

Build = Callable[..., RayCollector]


@pytest.mark.parametrize("sync", [True, False])
def test_lost_actors_are_replaced_and_nothing_counts_twice(
    build: Build, tmp_path: Path, sync: bool
) -> None:
    trap, losses = tmp_path / "trap", ["raise", "die"]
    collector = build(
        [partial(Counter, None), partial(Counter, trap)],
        num_collectors=None,
        sync=sync,
        on_loss=2,
        total_frames=600,
    )
    frames: dict[float, list[float]] = {}
    ids: dict[float, set[int]] = {}
    for batch in collector:
        for seed, step, number in zip(
            *batch["next", "observation"].unbind(-1), batch["collector", "traj_ids"], strict=True
        ):
            frames.setdefault(seed.item(), []).append(step.item())
            ids.setdefault(seed.item(), set()).add(int(number))
        if not trap.exists() and losses and collector.stats()["restarts"] == 2 - len(losses):
            set_trap(trap, losses.pop())
        if not sync and collector.stats()["restarts"] < 2:
            # The other may be quicker than the one that is about to be lost, and than the news of
            # it.
            comes(lambda: not trap.exists(), 2)
            time.sleep(0.1)
    stats = collector.stats()
    assert sum(map(len, frames.values())) == stats["frames"] == 600
    assert stats["restarts"] == 2 and stats["workers_alive"] == 2
    # Each environment's frames are all of its own from the first on: none is missing in between,
    # none comes twice.
    assert all(steps == list(range(1, len(steps) + 1)) for steps in frames.values())
    # New actors have seeds and trajectories of their own.
    assert len(frames) <= 4 and (frames.keys() & {3, 4})
    # Of whoever is first, all may be one actor's.
    assert not sync or len(frames) == 4
    known = [number for own in ids.values() for number in own]
    assert len(known) == len(set(known))
    died, raised = collector.losses()
    assert (
        "worker 1" in died
        and "its actor was lost: The actor is dead" in died
        and "no such road" in raised
    )


@pytest.mark.parametrize("sync", [True, False])
def test_actors_may_be_killed_at_any_time(build: Build, sync: bool) -> None:
    collector = build(partial(Counter, None), sync=sync, on_loss=9, total_frames=2000)
    chance, frames, kills = random.Random(7), {}, 0
    for batch in collector:
        for seed, step in batch["next", "observation"].tolist():
            frames.setdefault(seed, []).append(step)
        if kills < 3 and collector.stats()["batches"] % 20 == 10:
            # None while another takes its place.
            if killed(collector.stats("per_worker")[f"worker_{chance.randrange(2)}/pid"]):
                kills += 1
                time.sleep(chance.random() / 100)
    stats = collector.stats()
    assert sum(map(len, frames.values())) == stats["frames"] == 2000
    assert all(steps == list(range(1, len(steps) + 1)) for steps in frames.values())
    assert 1 <= stats["restarts"] <= kills <= 3 and len(frames) <= 2 + stats["restarts"]


def test_others_go_on_until_the_last_is_lost_and_its_exception_is_what_was_raised(
    build: Build, tmp_path: Path
) -> None:
    traps = [tmp_path / "0", tmp_path / "1"]
    set_trap(traps[1], "die")
    collector = build(
        [partial(Counter, trap) for trap in traps],
        num_collectors=None,
        sync=True,
        on_loss="continue",
    )
    assert sum(next(collector).numel() for _ in range(6)) == collector.stats()["frames"] < 120
    assert collector.stats()["workers_alive"] == 1 and collector.stats()["restarts"] == 0
    assert "worker 1" in collector.losses()[0]
    set_trap(traps[0], "raise")
    with pytest.raises(WorkerError, match="no such road") as caught:
        next(collector)
    error: BaseException = caught.value
    assert isinstance(error.__cause__, LookupError) and "worker 0" in str(error)
    with pytest.raises(RuntimeError, match="was ended by an error"):
        next(collector)


def test_batches_before_an_error_arrive(build: Build) -> None:
    collector = build(Failing, num_collectors=1)
    steps: list[float] = []
    with pytest.raises(WorkerError, match="the road ends here"):
        for batch in collector:
            steps += batch["next", "observation"][:, 1].tolist()
    assert steps == list(range(1, 1001))


# In a replay buffer


@pytest.fixture(scope="module")
def buffer(cluster: Any) -> Any:
    with RayReplayBuffer(storage=LazyTensorStorage(10_000), batch_size=10) as buffer:
        yield buffer


@pytest.mark.parametrize("sync", [True, False])
def test_frames_are_written_once_although_an_actor_is_lost(
    build: Build, buffer: RayReplayBuffer, sync: bool
) -> None:
    buffer.empty()
    collector = build(
        partial(Counter, None), sync=sync, replay_buffer=buffer, on_loss=1, total_frames=1200
    )
    for _ in range(3):
        assert next(collector) is None
    _session.kill(collector.remote_collectors[1:])
    assert all(batch is None for batch in collector)
    stats = collector.stats()
    assert (
        stats["restarts"] == 1
        and stats["frames"] == buffer.write_count == 1200
        and stats["batches"] == 60
    )
    for seed in (3, 4, 6):
        written = buffer[:]["next", "observation"]
        steps = written[written[:, 0] == seed][:, 1]
        assert torch.equal(steps, torch.arange(1, len(steps) + 1).double())


def doubled(batch: Any) -> Any:
    return batch.set("doubled", 2 * batch["next", "observation"])


def test_a_buffer_in_an_actor_gets_what_others_get(build: Build, buffer: RayReplayBuffer) -> None:
    buffer.empty()
    options: dict[str, Any] = {
        "num_collectors": 1,
        "replay_buffer": buffer,
        "trajs_per_batch": 3,
        "postproc": doubled,
    }
    collector = build(partial(Counter, None), frames_per_batch=7, total_frames=200, **options)
    assert all(batch is None for batch in collector)
    # It writes on until then.
    collector.shutdown()
    # Whole episodes of ten steps, without padding.
    written = buffer[:]
    assert written["next", "observation"][:, 1].tolist() == list(
        range(1, buffer.write_count + 1)
    ) and buffer.write_count % 10 == 0 < len(written)
    assert torch.equal(written["doubled"], 2 * written["next", "observation"])


# At the end


@pytest.mark.parametrize("where", ["here", "in an actor"])
def test_a_shutdown_writes_what_is_under_way(
    build: Build, buffer: RayReplayBuffer, tmp_path: Path, where: str
) -> None:
    target = (
        ReplayBuffer(storage=LazyTensorStorage(10_000), batch_size=10)
        if where == "here"
        else buffer
    )
    target.empty()
    collector = build(
        partial(Counter, None, tmp_path, 0.001),
        sync=True,
        replay_buffer=target,
        frames_per_batch=20_000,
    )
    collector.start()
    time.sleep(0.3)
    collector.shutdown()
    stats = collector.stats()
    assert stats["frames"] == target.write_count == steps_in(tmp_path) > 0
    assert stats["dropped_frames"] == 0
    for seed in (3, 4):
        written = target[:]["next", "observation"]
        steps = written[written[:, 0] == seed][:, 1]
        assert len(steps) and torch.equal(steps, torch.arange(1, len(steps) + 1).double())


@pytest.mark.parametrize("where", ["here", "in an actor"])
def test_a_shutdown_leaves_out_what_a_limiter_keeps_out(build: Build, where: str) -> None:
    kind = ReplayBuffer if where == "here" else RayReplayBuffer
    limiter = RateLimiter.sample_to_insert_ratio(1.0, min_size_to_sample=10, error_buffer=20.0)
    target = kind(storage=LazyTensorStorage(1000), batch_size=10, limiter=limiter)
    collector = build(partial(Counter, None), replay_buffer=target, frames_per_batch=10)
    collector.start()
    until(lambda: target.write_count == 30)
    collector.shutdown()
    assert target.write_count == 30 and not collector.is_running()
    if kind is RayReplayBuffer:
        target.shutdown()


def test_an_actor_that_does_not_come_back_from_a_step_is_ended(build: Build) -> None:
    collector = build(partial(Counter, None, None, 600.0), num_collectors=1, step_timeout=1.0)
    (pid,) = (pid for name, pid in collector.stats("per_worker").items() if name.endswith("/pid"))
    with pytest.raises(WorkerError, match="1 s"):
        next(collector)
    until(lambda: not runs(pid))
