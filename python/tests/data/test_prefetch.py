"""Samples that are drawn ahead are those that would be drawn when asked for, and none of them
outlives what it was drawn from.
"""

from __future__ import annotations

import copy
import gc
import itertools
import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from windrow import WorkerError
from windrow.collectors import AsyncCollector
from windrow.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    RateLimiter,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    _ahead,
)


def frames(count: int, start: int = 0) -> TensorDict:
    number = torch.arange(start, start + count)
    return TensorDict({"number": number, "next": {"done": (number % 5 == 4)[:, None]}}, [count])


@pytest.fixture(autouse=True)
def small_samples_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ahead, "_WORTH_A_THREAD", 0)


def buffer_of(
    kind: type[ReplayBuffer] = ReplayBuffer,
    *,
    ahead: int | None = 3,
    filled: int = 20,
    **arguments: Any,
) -> ReplayBuffer:
    buffer = kind(
        **{"storage": LazyTensorStorage(20), "batch_size": 4, "seed": 5, **arguments},
        prefetch=ahead,
    )
    if filled:
        buffer.extend(frames(filled))
    return buffer


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (ReplayBuffer, dict),
        (TensorDictReplayBuffer, dict),
        (ReplayBuffer, lambda: {"sampler": SliceSampler(slice_len=2)}),
        (
            TensorDictReplayBuffer,
            lambda: {
                "sampler": SliceSampler(slice_len=2),
                "transform": lambda it: it.set("more", it["number"] + 1),
            },
        ),
        (ReplayBuffer, lambda: {"storage": ListStorage(20), "collate_fn": list}),
        (TensorDictPrioritizedReplayBuffer, lambda: {"alpha": 0.7, "beta": 0.9}),
        (ReplayBuffer, lambda: {"sampler": SamplerWithoutReplacement()}),
    ],
)
def test_samples_are_those_of_a_buffer_that_draws_none_ahead(kind: Any, make: Any) -> None:
    ours, plain = buffer_of(kind, **make()), buffer_of(kind, ahead=0, **make())
    for _ in range(12):
        ahead, now = ours.sample(), plain.sample()
        if isinstance(now, list):
            assert [frame.to_dict() for frame in ahead] == [frame.to_dict() for frame in now]
        else:
            assert (ahead == now).all() and set(ahead.keys(True, True)) == set(now.keys(True, True))
    # Samples of another size, and with `return_info`, are not drawn ahead. Before the end of a
    # pass, one would be short.
    drawn_by(ours)
    assert len(ours.sample(6)) == 6
    assert ours.sample(return_info=True)[1]["index"].shape == (4,)


def test_as_many_as_asked_for_are_drawn_in_another_thread() -> None:
    seen: list[int] = []

    def transform(sample: TensorDict) -> TensorDict:
        seen.append(threading.get_ident())
        return sample

    buffer = buffer_of(ahead=3, transform=transform)
    buffer.sample()
    assert seen == [threading.get_ident()]
    buffer.sample()
    drawn_by(buffer)
    assert len(seen) == 5 and threading.get_ident() not in seen[1:]


def drawn_by(buffer: ReplayBuffer) -> None:
    """Returns when no sample is being drawn."""
    assert buffer._prefetch is not None
    buffer._prefetch._pool.submit(lambda: None).result()


def test_small_samples_without_more_are_drawn_when_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_ahead, "_WORTH_A_THREAD", 4 * 9 + 1)
    small, large = buffer_of(ahead=2), buffer_of(ahead=2)
    large.empty()
    large.extend(frames(20).set("more", torch.zeros(20)))
    for buffer, drawn in ((small, 12), (large, 20)):
        for _ in range(3):
            buffer.sample()
        drawn_by(buffer)
        assert buffer.stats()["sampled"] == drawn
    small.append_transform(lambda sample: sample)
    small.sample(), small.sample()
    drawn_by(small)
    assert small.stats()["sampled"] == 12 + 4 + 4 * 3


@pytest.mark.parametrize("ahead", [1, 4, 50])
def test_each_pass_has_each_frame_once(ahead: int) -> None:
    buffer = buffer_of(ahead=ahead, sampler=SamplerWithoutReplacement(), batch_size=6)
    for _ in range(3):
        passed = torch.cat([batch["number"] for batch in buffer])
        assert passed.sort().values.equal(torch.arange(20)) or len(passed) == 18 == len(
            passed.unique()
        )
    left = next(iter(buffer))["number"]
    rest = torch.cat([batch["number"] for batch in buffer])
    assert len(torch.cat([left, rest]).unique()) == len(left) + len(rest) > 12
    batches = list(iter(buffer.next, None))
    assert len(torch.cat([batch["number"] for batch in batches]).unique()) > 12


def test_it_waits_for_frames_where_a_sample_does() -> None:
    buffer = buffer_of(filled=0)
    with pytest.raises(RuntimeError, match="no writer is attached"):
        buffer.sample()
    buffer.extend(frames(20))
    assert all(len(buffer.sample()) == 4 for _ in range(8))
    limited = buffer_of(filled=0, limiter=RateLimiter.min_size(10), sample_timeout=0.2)
    limited.extend(frames(8))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="limiter"):
            limited.sample()
    limited.extend(frames(8))
    assert len(limited.sample()) == 4
    with AsyncCollector(
        "CartPole-v1", frames_per_batch=50, total_frames=-1, replay_buffer=buffer_of(filled=0)
    ) as collector:
        filled = collector.replay_buffer
        collector.start()
        assert all(len(filled.sample()) == 4 for _ in range(20))
        collector.shutdown()


def test_nothing_of_before_is_handed_over_afterwards() -> None:
    buffer = buffer_of()
    saved = buffer.state_dict()
    buffer.sample(), buffer.sample()
    buffer.empty()
    buffer.extend(frames(20, start=100))
    assert all(int(buffer.sample()["number"].min()) >= 100 for _ in range(5))
    buffer.load_state_dict(saved)
    assert all(int(buffer.sample()["number"].max()) < 20 for _ in range(5))
    buffer.append_transform(lambda sample: sample.set("more", sample["number"]))
    assert all("more" in buffer.sample() for _ in range(5))
    buffer.sample()
    buffer.set_sampler(SamplerWithoutReplacement())
    assert len(torch.cat([batch["number"] for batch in buffer]).unique()) == 20
    buffer.set_sampler(RandomSampler())
    # A state restored goes on as the buffer it was taken from would, had it drawn nothing ahead.
    again, plain = buffer_of(), buffer_of(ahead=None)
    again.sample(), again.sample()
    again.load_state_dict(saved), plain.load_state_dict(saved)
    assert all((again.sample() == plain.sample()).all() for _ in range(5))


def test_loading_a_folder_forgets_what_was_drawn(tmp_path: Any) -> None:
    buffer = buffer_of(filled=0)
    buffer.extend(frames(20, start=100))
    buffer.dumps(tmp_path)
    buffer.empty()
    buffer.extend(frames(20))
    buffer.sample(), buffer.sample()
    buffer.loads(tmp_path)
    assert all(int(buffer.sample()["number"].min()) >= 100 for _ in range(5))


def test_errors_reach_who_asks() -> None:
    numbers = itertools.count()

    def third_fails(sample: TensorDict) -> TensorDict:
        if next(numbers) == 2:
            raise ZeroDivisionError("the third")
        return sample

    buffer = buffer_of(transform=third_fails)
    buffer.sample(), buffer.sample()
    with pytest.raises(ZeroDivisionError, match="the third"):
        buffer.sample()
    assert all(len(buffer.sample()) == 4 for _ in range(8))
    for wrong, error in ((-1, ValueError), ("2", TypeError)):
        with pytest.raises(error, match="prefetch"):
            buffer_of(ahead=wrong)
    nothing = ReplayBuffer(prefetch=2)
    nothing.extend(frames(3))
    with pytest.raises(RuntimeError, match="batch size"):
        nothing.sample()


def test_the_error_of_a_collector_is_raised_once() -> None:
    calls = itertools.count()

    def fails_later(td: TensorDict) -> TensorDict:
        if next(calls) > 30:
            raise ZeroDivisionError("the policy")
        return td.set("action", torch.zeros(td.shape, dtype=torch.long))

    buffer = buffer_of(filled=0)
    with AsyncCollector(
        "CartPole-v1", fails_later, frames_per_batch=10, total_frames=-1, replay_buffer=buffer
    ) as collector:
        collector.start()
        with pytest.raises(WorkerError, match="ZeroDivisionError: the policy"):
            for _ in range(100_000):
                buffer.sample()
        assert all(len(buffer.sample()) == 4 for _ in range(8))


def test_a_transform_may_draw_samples_itself() -> None:
    def doubled(sample: TensorDict) -> TensorDict:
        return sample if inner.is_set() else torch.cat([sample, nested()])

    def nested() -> Any:
        inner.set()
        try:
            return buffer.sample()
        finally:
            inner.clear()

    inner = threading.Event()
    buffer = buffer_of(transform=doubled)
    assert all(len(buffer.sample()) == 8 for _ in range(6))


def test_priorities_are_those_of_when_a_sample_was_drawn() -> None:
    buffer = buffer_of(
        TensorDictReplayBuffer,
        ahead=2,
        sampler=PrioritizedSampler(20, alpha=1.0, beta=1.0),
        priority_key="error",
    )
    buffer.sample(), buffer.sample()
    drawn_by(buffer)
    buffer.update_priority(torch.arange(20), [0.0] * 19 + [1.0])
    stale = torch.cat([buffer.sample()["index"] for _ in range(2)])
    assert set(stale.tolist()) != {19}
    assert set(buffer.sample()["index"].tolist()) == {19}


def test_no_sample_is_lost_that_was_drawn_after_one_that_found_nothing() -> None:
    buffer = buffer_of(
        filled=0, ahead=2, consume_after_n_samples=1, transform=lambda sample: sample
    )
    buffer.extend(frames(8))
    seen = [buffer.sample()["number"], buffer.sample()["number"]]
    drawn_by(buffer)
    buffer.extend(frames(8, start=8))
    seen += [buffer.sample()["number"], buffer.sample()["number"]]
    assert torch.cat(seen).sort().values.equal(torch.arange(16))
    with pytest.raises(RuntimeError, match="cannot draw"):
        buffer.sample()


def test_a_buffer_that_nobody_has_lets_go_of_its_files(tmp_path: Any) -> None:
    buffer = ReplayBuffer(
        storage=LazyMemmapStorage(20, scratch_dir=tmp_path), batch_size=4, prefetch=2
    )
    buffer.extend(frames(20))
    buffer.sample(), buffer.sample()
    drawn_by(buffer)
    gc.disable()
    try:
        del buffer
        assert (
            len(
                ReplayBuffer(
                    storage=LazyMemmapStorage(20, scratch_dir=tmp_path, existsok=True), batch_size=4
                )
            )
            == 20
        )
    finally:
        gc.enable()


def test_copies_and_closed_buffers() -> None:
    buffer = buffer_of()
    buffer.sample(), buffer.sample()
    other = copy.deepcopy(buffer)
    assert all(len(other.sample()) == 4 for _ in range(5))
    buffer.close()
    with pytest.raises(RuntimeError, match="was closed"):
        buffer.sample()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no forks")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("changes", [False, True])
def test_a_fork_draws_with_a_thread_of_its_own(changes: bool) -> None:
    goes_on = threading.Event()
    buffer = buffer_of(transform=lambda sample: sample if goes_on.wait() else None)
    goes_on.set()
    buffer.sample()
    goes_on.clear()
    forked = threading.Timer(0.5, goes_on.set)
    forked.start()
    # A sample is being drawn when the process forks.
    asked = threading.Thread(target=buffer.sample)
    asked.start()
    while buffer.stats()["sampled"] < 8:
        time.sleep(0.001)
    child = os.fork()
    if child == 0:
        goes_on.set()
        if changes:
            buffer.append_transform(lambda sample: sample)
        os._exit(0 if all(len(buffer.sample()) == 4 for _ in range(8)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    asked.join()


def test_a_program_ends_with_samples_drawn_ahead() -> None:
    program = """
from windrow.collectors import AsyncCollector
from windrow.data import LazyTensorStorage, RateLimiter, ReplayBuffer
buffer = ReplayBuffer(storage=LazyTensorStorage(500), batch_size=8, prefetch=4, transform=lambda sample: sample, limiter=RateLimiter.min_size(50))
collector = AsyncCollector("CartPole-v1", frames_per_batch=100, total_frames=-1, replay_buffer=buffer)
collector.start()
print(len(buffer.sample()), len(buffer.sample()))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stdout == "8 8\n", done.stderr
