"""Samples and writes that wait for each other."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from cartpole import cartpole
from waiting import until
from windrow.collectors import Collector, MultiAsyncCollector, MultiSyncCollector, _control
from windrow.data import LazyTensorStorage, RateLimiter, ReplayBuffer


def frames(count: int) -> TensorDict:
    return TensorDict({"number": torch.arange(count)}, [count])


def buffer_of(limiter: RateLimiter, **arguments: Any) -> ReplayBuffer:
    return ReplayBuffer(
        storage=LazyTensorStorage(10_000), limiter=limiter, batch_size=10, **arguments
    )


def even(error_buffer: float = 20.0) -> RateLimiter:
    """As many frames sampled as written; 30 may be written before any is sampled."""
    return RateLimiter.sample_to_insert_ratio(1.0, min_size_to_sample=10, error_buffer=error_buffer)


#: Collectors that write by way of the engine, and by way of Python.
WAYS = [
    pytest.param(
        lambda buffer: Collector(cartpole, frames_per_batch=10, replay_buffer=buffer), id="inline"
    ),
    pytest.param(
        lambda buffer: MultiSyncCollector(
            [cartpole] * 2, placement="threads", frames_per_batch=10, replay_buffer=buffer
        ),
        id="threads",
    ),
    pytest.param(
        lambda buffer: Collector(
            cartpole, frames_per_batch=10, replay_buffer=buffer, postproc=lambda batch: batch
        ),
        id="postproc",
    ),
    pytest.param(
        lambda buffer: MultiAsyncCollector(
            [cartpole] * 2,
            placement="threads",
            frames_per_batch=10,
            replay_buffer=buffer,
            postproc=lambda batch: batch,
        ),
        id="threads and postproc",
    ),
]

#: A time-out of 0.2 s, after which a busy machine may take its time.
WAITED = r"waited (0\.[2-9]|[1-9]\d*\.\d) s"


def wait_until_full(buffer: ReplayBuffer) -> None:
    while buffer.write_count < 30:
        time.sleep(0.001)


def test_a_minimum_is_waited_for() -> None:
    buffer = buffer_of(RateLimiter.min_size(200))
    assert repr(buffer.limiter) == "RateLimiter.min_size(200)"
    buffer.extend(frames(199))
    with pytest.raises(
        RuntimeError, match="the limiter waits for 200 frames, the buffer holds 199; .*no writer"
    ):
        buffer.sample()
    buffer.extend(frames(1))
    assert buffer.sample().shape == (10,)


def test_a_thread_that_samples_waits_for_a_collector() -> None:
    buffer = buffer_of(RateLimiter.min_size(200))
    written: list[int] = []

    def sample() -> None:
        buffer.sample()
        written.append(buffer.write_count)

    with Collector(
        cartpole, frames_per_batch=10, total_frames=500, replay_buffer=buffer
    ) as collector:
        collector.start()
        sampler = threading.Thread(target=sample)
        sampler.start()
        sampler.join()
    assert written[0] >= 200


@pytest.mark.parametrize("make", WAYS)
def test_a_collector_and_a_learner_keep_the_ratio(make: Any) -> None:
    buffer = buffer_of(even())
    with make(buffer) as collector:
        collector.start()
        for _ in range(50):
            assert buffer.sample().shape == (10,)
            stats = buffer.stats()
            assert -10 <= stats["write_count"] - stats["sampled"] <= 30
    assert buffer.stats()["sampled"] == 500


@pytest.mark.parametrize("make", WAYS)
def test_a_collector_that_waits_for_samples_can_be_asked_and_ended(make: Any) -> None:
    buffer = buffer_of(even())
    collector = make(buffer)
    collector.start()
    wait_until_full(buffer)
    assert collector.stats(workers="both")["worker_0/alive"]
    assert collector.policy_version == 0
    assert "Collector(" in repr(collector)
    assert collector.set_seed(7) == 7 + collector.stats()["num_envs"] - 1
    collector.reset()
    assert int(collector.state_dict()["seed"]) == 7
    assert collector.is_running() and buffer.write_count == 30
    collector.async_shutdown()
    assert not collector.is_running()
    assert (buffer.write_count, buffer.stats()["writers"]) == (30, 0)
    # Nobody takes the end for a failure.
    assert buffer.sample(30).shape == (30,)


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_weights_reach_a_collector_that_waits_for_samples(
    backend: str, network: torch.nn.Module
) -> None:
    buffer = buffer_of(even())
    collector = MultiSyncCollector(
        [cartpole] * 2,
        network,
        policy_backend=backend,
        placement="threads",
        frames_per_batch=10,
        replay_buffer=buffer,
    )
    with collector:
        collector.start()
        wait_until_full(buffer)
        collector.update_policy_weights_()
        assert collector.policy_version == 1


@pytest.mark.parametrize("make", WAYS)
def test_a_pause_begins_between_two_writes(make: Any) -> None:
    buffer = buffer_of(RateLimiter.min_size(10))
    with make(buffer) as collector:
        collector.start()
        buffer.sample()
        with collector.pause():
            written = buffer.write_count
            assert written % 10 == 0
            time.sleep(0.02)
            assert buffer.write_count == written
            with pytest.raises(RuntimeError, match="paused"):
                next(collector)
        while buffer.write_count == written:
            buffer.sample()


@pytest.mark.parametrize("make", WAYS)
def test_a_pause_does_not_wait_for_samples_for_ever(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_control, "PATIENCE", 0.1)
    buffer = buffer_of(even())
    with make(buffer) as collector:
        collector.start()
        # The batch that finds no room is collected: its thread stands between two batches no more.
        while collector.stats()["frames"] < 40:
            time.sleep(0.001)
        with pytest.raises(RuntimeError, match="kept a write waiting"), collector.pause():
            pass
        assert collector.is_running()
        # It goes on where it waited.
        buffer.sample()
        while buffer.write_count == 30:
            time.sleep(0.001)


@pytest.mark.parametrize("make", WAYS)
def test_who_iterates_waits_no_longer_than_samples_do(make: Any) -> None:
    buffer = buffer_of(even(), sample_timeout=0.2)
    with make(buffer) as collector:
        assert [next(collector) for _ in range(3)] == [None] * 3
        expected = "cannot write 10 frames: the limiter waits for more to be sampled: (30 frames inserted + 10)"
        with pytest.raises(RuntimeError, match=rf"{re.escape(expected)}.*{WAITED}"):
            next(collector)


def test_samples_and_writes_of_users_wait_no_longer_than_they_are_told() -> None:
    buffer = buffer_of(even(5.0), sample_timeout=0.2)
    buffer.extend(frames(10))
    with pytest.raises(RuntimeError, match=rf"cannot write 6 frames: .* = 16 > 15; {WAITED}"):
        buffer.extend(frames(6))
    with pytest.raises(
        RuntimeError,
        match="11 frames can never be written together: error_buffer=5 must be at least 5.5",
    ):
        buffer.extend(frames(11))
    with pytest.raises(RuntimeError, match="11 frames can never be sampled together"):
        buffer.sample(11)
    buffer.extend(frames(5))
    with pytest.raises(RuntimeError, match=rf"cannot write 1 frames: .*; {WAITED}"):
        buffer.add(frames(1)[0])
    # More than are collected in that time.
    large = ReplayBuffer(
        storage=LazyTensorStorage(10**6),
        limiter=RateLimiter.min_size(10**6),
        batch_size=10,
        sample_timeout=0.3,
    )
    collector = Collector(cartpole, frames_per_batch=10, replay_buffer=large)
    collector.start()
    with pytest.raises(
        RuntimeError,
        match=r"the limiter waits for 1000000 frames, .*; waited \d+\.\d s for . writer",
    ):
        collector.replay_buffer.sample()
    collector.async_shutdown()


def test_a_write_of_a_user_waits_for_samples_in_another_thread() -> None:
    buffer = buffer_of(even())
    buffer.extend(frames(30))
    writer = threading.Thread(target=buffer.extend, args=(frames(10),))
    writer.start()
    buffer.sample()
    writer.join()
    assert buffer.write_count == 40


@contextlib.contextmanager
def ctrl_c(is_due: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Raises ``KeyboardInterrupt`` in the main thread, a moment after it is due."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def press() -> None:
        until(is_due)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGALRM)

    handler = signal.signal(signal.SIGALRM, interrupt)
    pressed = threading.Thread(target=press)
    pressed.start()
    try:
        yield
    finally:
        pressed.join()
        signal.signal(signal.SIGALRM, handler)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("make", WAYS)
def test_ctrl_c_is_heard_by_who_waits_for_samples(make: Any) -> None:
    buffer = buffer_of(even())
    collector = make(buffer)
    assert [next(collector) for _ in range(3)] == [None] * 3
    with pytest.raises(KeyboardInterrupt), ctrl_c():
        next(collector)
    collector.shutdown(raise_on_error=False)
    kept = buffer[:10]
    with pytest.raises(KeyboardInterrupt), ctrl_c():
        buffer.extend(kept)
    assert buffer.write_count == 30


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("make", WAYS)
def test_what_ctrl_c_kept_from_being_written_is_written_later(make: Any) -> None:
    buffer = buffer_of(even())
    with make(buffer) as collector:
        assert [next(collector) for _ in range(3)] == [None] * 3
        # It has collected the batch that it may not write yet.
        with (
            pytest.raises(KeyboardInterrupt),
            ctrl_c(lambda: collector._core.stats()["frames"] == 40),
        ):
            next(collector)
        collected = collector.stats()["frames"]
        assert (collected, buffer.write_count) == (40, 30)
        buffer.sample()
        assert next(collector) is None
        assert collector.stats()["frames"] == buffer.write_count == 40


def test_a_state_keeps_what_was_counted() -> None:
    buffer, other = buffer_of(even(), sample_timeout=0.05), buffer_of(even(), sample_timeout=0.05)
    buffer.extend(frames(30))
    other.load_state_dict(buffer.state_dict())
    with pytest.raises(RuntimeError, match="cannot write 10 frames"):
        other.extend(frames(10))


@pytest.mark.parametrize(
    ("limiter", "message"),
    [
        (
            RateLimiter.sample_to_insert_ratio(0.0, 1, 2.0),
            "samples_per_insert: expected a positive number, got 0",
        ),
        (
            RateLimiter.sample_to_insert_ratio(1.0, 0, 2.0),
            "min_size_to_sample: expected at least 1, got 0",
        ),
        (
            RateLimiter.sample_to_insert_ratio(3.0, 1, 2.9),
            "error_buffer: expected at least 3, got 2.9",
        ),
    ],
)
def test_limiters_that_let_nothing_through(limiter: RateLimiter, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        buffer_of(limiter)


def test_what_is_no_limiter_is_named() -> None:
    with pytest.raises(TypeError, match="expected a limiter of windrow.data, got builtins.int"):
        ReplayBuffer(limiter=3)
