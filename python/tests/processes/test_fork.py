"""Children of fork: what needs threads of the parent says so, what is memory can be read, and they
end.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from cartpole import cartpole
from windrow.collectors import (
    AsyncBatchedCollector,
    AsyncCollector,
    Collector,
    Evaluator,
    Interruptor,
    MultiAsyncCollector,
    MultiSyncCollector,
)
from windrow.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    RateLimiter,
    ReplayBuffer,
    SliceSampler,
)
from windrow.envs import GymWrapper

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
    pytest.mark.filterwarnings("ignore:environments written in Python share"),
]


def in_child(work: Callable[[], Any]) -> None:
    """Runs `work` in a child of fork, which then ends as programs do."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            gc.collect()
            status = 0
        except BaseException:
            traceback.print_exc()
        # As at the end of a program, without the tests of the parent.
        import atexit

        atexit._run_exitfuncs()
        os._exit(status)
    wait_for(child)


def wait_for(child: int) -> None:
    deadline = time.monotonic() + 120
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.01)


def policy(td):
    return td.set("action", torch.zeros(*td.batch_size, 2))


KINDS = [
    lambda **more: Collector(cartpole, policy, frames_per_batch=20, **more),
    lambda **more: AsyncCollector(
        cartpole, policy, placement="threads", frames_per_batch=20, **more
    ),
    lambda **more: MultiSyncCollector(
        [cartpole] * 2, policy, placement="threads", frames_per_batch=20, **more
    ),
    lambda **more: MultiAsyncCollector(
        [cartpole] * 2, nn.Linear(4, 2), placement="threads", frames_per_batch=20, **more
    ),
    lambda **more: AsyncBatchedCollector(
        [cartpole] * 2, nn.Linear(4, 2), frames_per_batch=20, **more
    ),
]
NAMES = [
    "Collector",
    "AsyncCollector",
    "MultiSyncCollector",
    "MultiAsyncCollector",
    "AsyncBatchedCollector",
]


@pytest.mark.parametrize("make", KINDS, ids=NAMES)
def test_a_collector_is_of_no_use_and_its_batches_can_be_read(make) -> None:
    interruptor = Interruptor()
    collector = make(interruptor=interruptor)
    batch = next(collector)
    expected = batch.clone()

    def work() -> None:
        nonlocal collector, batch
        told = f"this collector belongs to process {os.getppid()}, this is process {os.getpid()}: make it in the process"
        for ask in (
            lambda: next(collector),
            lambda: collector.rollout(),
            lambda: collector.stats(),
            lambda: collector.set_seed(0),
            lambda: collector.state_dict(),
            lambda: collector.update_policy_weights_(nn.Linear(4, 2)),
            lambda: collector.pause().__enter__(),
            lambda: collector.reset(),
            lambda: interruptor.stop_collection(),
        ):
            with pytest.raises(RuntimeError, match=told):
                ask()
        assert "of another process" in repr(collector)
        assert (batch == expected).all()
        with collector:
            pass
        collector.shutdown()
        # The memory of the batch stays as it is, since nobody gives it back here.
        tensor = batch["observation"]
        del collector, batch
        gc.collect()
        assert (tensor == expected["observation"]).all()
        # One of its own.
        with make() as own:
            assert next(own).shape == expected.shape

    in_child(work)
    assert (batch == expected).all()
    interruptor.start_collection()
    for _ in range(5):
        assert next(collector).numel() == 20
    collector.shutdown()


@pytest.mark.parametrize("drop", [False, True])
def test_a_collector_that_is_started_and_its_buffer(drop: bool) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=10)
    collector = MultiAsyncCollector(
        [cartpole] * 2, placement="threads", frames_per_batch=10, replay_buffer=buffer
    )
    collector.start()
    while len(buffer) < 100:
        time.sleep(0.01)

    def work() -> None:
        nonlocal collector
        with pytest.raises(RuntimeError, match="belongs to process"):
            collector.start()
        if drop:
            del collector
        else:
            collector.shutdown()

    for _ in range(5):
        in_child(work)
    before = collector.stats()["frames"]
    while collector.stats()["frames"] == before:
        time.sleep(0.01)
    collector.shutdown()


def test_a_collector_whose_write_waits_for_samples() -> None:
    limiter = RateLimiter.sample_to_insert_ratio(1.0, 10, 10.0)
    buffer = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=10, limiter=limiter)
    collector = Collector(cartpole, frames_per_batch=10, replay_buffer=buffer)
    collector.start()
    while collector._core.write_waits() is None:
        time.sleep(0.01)
    in_child(collector.shutdown)
    collector.shutdown()


def test_an_evaluator() -> None:
    go_on = threading.Event()
    waits: list[bool] = []

    def slow(td):
        if waits:
            go_on.wait(120)
        return policy(td)

    with Evaluator(cartpole, slow, num_trajectories=1) as evaluator:

        def work() -> None:
            nonlocal evaluator
            for ask in (
                lambda: evaluator.evaluate(),
                lambda: evaluator.trigger_eval(),
                lambda: evaluator.wait(),
                lambda: evaluator.poll(),
                lambda: evaluator.pending,
            ):
                with pytest.raises(RuntimeError, match="this evaluator belongs to process"):
                    ask()
            assert "of another process" in repr(evaluator)
            evaluator.shutdown()
            with evaluator:
                pass
            del evaluator
            gc.collect()

        in_child(work)
        waits.append(True)
        # Also while it is at something.
        evaluator.trigger_eval()
        in_child(work)
        go_on.set()
        assert evaluator.wait()["eval/num_episodes"] == 1


class Pipe(gymnasium.Wrapper):
    """An environment that shares something with the parent, such as a process."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.process = os.getpid()

    def close(self) -> None:
        assert self.process == os.getpid()
        super().close()


def test_environments_of_the_parent_are_not_closed(capfd) -> None:
    collector = Collector(Pipe, frames_per_batch=10)
    next(collector)
    wrapped = GymWrapper(Pipe())
    wrapped.reset()

    def work() -> None:
        nonlocal collector, wrapped
        del collector, wrapped
        gc.collect()

    in_child(work)
    assert "AssertionError" not in capfd.readouterr().err
    collector.shutdown()


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage, LazyMemmapStorage])
def test_a_buffer_can_be_used_where_nobody_was_at_it(storage) -> None:
    buffer = ReplayBuffer(storage=storage(100), sampler=SliceSampler(slice_len=2), batch_size=10)
    with Collector(
        cartpole, frames_per_batch=50, total_frames=100, replay_buffer=buffer
    ) as collector:
        for _ in collector:
            pass
    held = buffer.sample()

    def work() -> None:
        nonlocal held
        assert len(buffer) == 100 and buffer.sample().numel() == 10 and buffer[3:7].numel() == 4
        if storage is not LazyMemmapStorage:
            # That is one file for both.
            buffer.extend(buffer[:10])
        del held

    in_child(work)
    assert len(buffer) == 100 and buffer.sample().numel() == 10


class Frames(Dataset):
    def __init__(self, frames: Any) -> None:
        self.frames = frames

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.frames[index]["observation"].reshape(-1)


@pytest.mark.parametrize("of", ["batch", "buffer"])
@pytest.mark.parametrize("running", [False, True])
def test_a_data_loader_with_workers(of: str, running: bool) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=10)
    collector = MultiSyncCollector([cartpole] * 2, placement="threads", frames_per_batch=100)
    batch = next(collector)
    buffer.extend(batch)
    if not running:
        collector.shutdown()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = DataLoader(
            Frames(batch if of == "batch" else buffer),
            batch_size=10,
            num_workers=2,
            multiprocessing_context="fork",
            timeout=120,
        )
        for _ in range(2):
            loaded = torch.cat(list(loader))
            assert (loaded == batch["observation"]).all()
    if running:
        assert next(collector).numel() == 100
    collector.shutdown()


def test_multiprocessing_ends() -> None:
    import multiprocessing

    collector = MultiAsyncCollector([cartpole] * 2, placement="threads", frames_per_batch=20)
    batch = next(collector)
    context = multiprocessing.get_context("fork")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        children = [context.Process(target=batch.sum) for _ in range(2)]
        for child in children:
            child.start()
    for child in children:
        child.join(120)
        assert child.exitcode == 0
    collector.shutdown()
