"""What reaches the user when something goes wrong in a worker, and that Ctrl-C is always heard."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from cartpole import cartpole
from windrow import WorkerError
from windrow.collectors import (
    AsyncCollector,
    BaseCollector,
    Collector,
    MultiAsyncCollector,
    MultiSyncCollector,
)
from windrow.data import LazyTensorStorage, ListStorage, ReplayBuffer


class Breaks:
    """Acts so many times before it raises."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __call__(self, td):
        self.steps -= 1
        if self.steps < 0:
            raise ZeroDivisionError("the policy broke")
        return td.set("action", torch.zeros(td.batch_size, dtype=torch.int64))


@pytest.mark.parametrize(
    "make",
    [
        lambda policy: Collector(cartpole, policy, frames_per_batch=10),
        lambda policy: AsyncCollector(cartpole, policy, placement="threads", frames_per_batch=10),
        lambda policy: MultiSyncCollector(
            [cartpole] * 2, policy, placement="threads", frames_per_batch=10
        ),
        lambda policy: MultiAsyncCollector(
            [cartpole] * 2, policy, placement="threads", frames_per_batch=10
        ),
    ],
    ids=["Collector", "AsyncCollector", "MultiSyncCollector", "MultiAsyncCollector"],
)
def test_an_error_of_a_worker_tells_where_it_came_from(make) -> None:
    collector = make(Breaks(60))
    with pytest.raises(
        WorkerError, match=r"worker \d: the policy failed: ZeroDivisionError: the policy broke"
    ) as caught:
        for _ in collector:
            pass
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "in __call__" in str(caught.value) and "test_errors.py" in str(caught.value)
    assert isinstance(caught.value.worker, int) and caught.value.env is None
    collector.shutdown(raise_on_error=False)


def test_an_error_in_the_making_keeps_its_type() -> None:
    def broken():
        raise FileNotFoundError("no model")

    with pytest.raises(FileNotFoundError, match="no model"):
        Collector(broken, frames_per_batch=10)
    with pytest.raises(ZeroDivisionError, match="broke"):
        Collector(cartpole, Breaks(0), frames_per_batch=10)


#: Programs that wait, each in another place; Ctrl-C comes when they have printed a line.
WAITING = {
    "native environments, inline": """
        collector = Collector("CartPole-v1", frames_per_batch=20_000_000)
        print("waiting", flush=True)
        while True:
            next(collector)
    """,
    "a lowered network, inline": """
        from torch import nn
        net = nn.Sequential(nn.Linear(4, 256), nn.Tanh(), nn.Linear(256, 2))
        collector = Collector("CartPole-v1", net, frames_per_batch=4_000_000)
        print("waiting", flush=True)
        while True:
            next(collector)
    """,
    "native environments, in threads": """
        collector = MultiSyncCollector(["CartPole-v1"] * 2, frames_per_batch=20_000_000)
        print("waiting", flush=True)
        while True:
            next(collector)
    """,
    "a policy of Python, inline": """
        collector = Collector("CartPole-v1", slow, frames_per_batch=100_000)
        print("waiting", flush=True)
        next(collector)
    """,
    "a policy of Python, in threads": """
        collector = MultiSyncCollector(["CartPole-v1"] * 2, slow, frames_per_batch=100_000)
        print("waiting", flush=True)
        next(collector)
    """,
    "a collection in the background": """
        from windrow.data import LazyTensorStorage, ReplayBuffer
        buffer = ReplayBuffer(storage=LazyTensorStorage(100))
        collector = Collector("CartPole-v1", slow, frames_per_batch=100_000, replay_buffer=buffer)
        collector.start()
        print("waiting", flush=True)
        time.sleep(300)
    """,
    "a shutdown that has to wait": """
        import itertools, threading, torch
        def stuck(observation):
            if next(steps) == 10:
                is_stuck.set()
                time.sleep(300)
            return torch.zeros((), dtype=torch.int64)
        steps, is_stuck = itertools.repeat(0), threading.Event()
        collector = AsyncCollector("CartPole-v1", stuck, frames_per_batch=10)
        steps = itertools.count()
        next(collector)
        is_stuck.wait()
        print("waiting", flush=True)
        collector.shutdown()
    """,
}

PROGRAM = """
import os, time
from windrow.collectors import *
def slow(observation):
    import torch
    time.sleep(0.05)
    return torch.zeros((), dtype=torch.int64)
try:
{body}
except KeyboardInterrupt:
    print("interrupted", flush=True)
    os._exit(7)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("place", WAITING)
def test_ctrl_c_is_heard(place) -> None:
    body = textwrap.indent(textwrap.dedent(WAITING[place]), "    ")
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=body)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout.readline() == "waiting\n"
        time.sleep(0.3)
        os.kill(program.pid, signal.SIGINT)
        out, _ = program.communicate(timeout=60)
        assert (out, program.returncode) == ("interrupted\n", 7)
    finally:
        program.kill()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_batch_that_ctrl_c_kept_from_arriving_comes_later() -> None:
    go_on = threading.Event()

    def waits(observation):
        if probed:
            # By now the batch is waited for.
            if first.acquire(blocking=False):
                os.kill(os.getpid(), signal.SIGALRM)
            go_on.wait(60)
        return torch.zeros((), dtype=torch.int64)

    def interrupt(*_):
        raise KeyboardInterrupt

    probed: list[bool] = []
    first = threading.Lock()
    collector = MultiSyncCollector(
        [cartpole] * 2, waits, placement="threads", frames_per_batch=20, total_frames=40
    )
    probed.append(True)
    handler = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            next(collector)
        go_on.set()
        assert [batch.numel() for batch in collector] == [20, 20]
    finally:
        go_on.set()
        signal.signal(signal.SIGALRM, handler)
        collector.shutdown()


class Wide(gymnasium.Env):
    """Observes a mebibyte."""

    observation_space = gymnasium.spaces.Box(0, 255, (1 << 20,), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1 << 20, np.uint8), {}

    def step(self, action):
        return np.zeros(1 << 20, np.uint8), 0.0, False, False, {}


def test_what_does_not_fit_into_memory_is_a_memory_error() -> None:
    with pytest.raises(
        MemoryError, match="frames_per_batch=35184372088832 is too much: no memory for .* bytes"
    ):
        Collector("CartPole-v1", frames_per_batch=1 << 45)
    with pytest.raises(MemoryError, match="its size in bytes overflows"):
        Collector("CartPole-v1", frames_per_batch=(1 << 64) - 1)
    buffer = ReplayBuffer(storage=LazyTensorStorage((1 << 32) - 1))
    large = TensorDict({"pixels": torch.zeros(1, 1 << 20, dtype=torch.uint8)}, [1])
    with pytest.raises(
        MemoryError, match="no memory for a store of 4294967295 rows of 1048576 bytes each"
    ):
        buffer.extend(large)
    collector = Collector(Wide, None, frames_per_batch=1, replay_buffer=buffer)
    with pytest.raises(MemoryError, match="4294967295 rows of 2097"):
        next(collector)
    with pytest.raises(
        ValueError, match="a capacity of 1 to 4294967295 frames, got 10000000000000"
    ):
        ReplayBuffer(storage=LazyTensorStorage(10**13))
    small = ReplayBuffer(storage=ListStorage((1 << 32) - 1))
    small.extend(TensorDict({"number": torch.arange(3)}, [3]))
    assert len(small) == 3
    with pytest.raises(MemoryError, match="no memory for a sample of 1125899906842624 frames"):
        small.sample(1 << 50)


class Raises(gymnasium.Env):
    """Raises an error in the 25th step of its life."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 25:
            raise self.error
        return np.full(1, self.steps, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("on_loss", ["raise", "continue", 5])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_a_call_is_no_loss_and_inline_the_next_call_goes_on(error, on_loss) -> None:
    collector = MultiSyncCollector(
        [lambda: Raises(error)] * 2,
        None,
        frames_per_batch=20,
        total_frames=100,
        placement="inline",
        on_loss=on_loss,
    )
    batches = [next(collector), next(collector)]
    for _ in range(2):
        with pytest.raises(error):
            next(collector)
    batches += collector
    assert [batch.numel() for batch in batches] == [20] * 5
    assert collector.losses() == [] and collector.stats()["restarts"] == 0
    # The step that was interrupted is gone, and those before it that were not delivered.
    assert batches[2]["observation"][0, 0] == 0 and batches[2]["next", "observation"][0, 0] == 26


@pytest.mark.parametrize("on_loss", ["raise", "continue", 5])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_in_a_thread_it_ends_the_collector(error, on_loss) -> None:
    collector = MultiSyncCollector(
        [lambda: Raises(error)] * 2, None, placement="threads", frames_per_batch=20, on_loss=on_loss
    )
    with pytest.raises(error):
        for _ in collector:
            pass
    assert collector.losses() == []
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match=f"was ended by an error: worker .*{error.__name__}.*build a new one"
        ):
            next(collector)
    collector.shutdown(raise_on_error=False)


@pytest.mark.parametrize("placement", ["inline", "threads"])
def test_a_collector_that_an_error_has_ended_is_not_taken_for_a_finished_one(
    placement: str,
) -> None:
    collector = Collector(
        lambda: Raises(ZeroDivisionError),
        None,
        frames_per_batch=10,
        total_frames=100,
        placement=placement,
    )
    with pytest.raises(WorkerError, match="ZeroDivisionError"):
        list(collector)
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match="ended by an error: worker 0, .*ZeroDivisionError.*build a new one"
        ):
            list(collector)
    collector.shutdown()
    with pytest.raises(RuntimeError, match="ended by an error"):
        list(collector)


@pytest.mark.parametrize("place", ["postproc", "pre_collect_hook", "post_collect_hook"])
def test_stop_iteration_of_a_hook_is_not_the_end_of_the_batches(place: str) -> None:
    left = iter([1])

    def runs_out(*batch):
        next(left)
        return batch[0] if batch else None

    collector = Collector(
        "CartPole-v1", None, frames_per_batch=10, total_frames=50, **{place: runs_out}
    )
    with pytest.raises(
        RuntimeError, match="a function passed to Collector raised StopIteration"
    ) as caught:
        list(collector)
    assert isinstance(caught.value.__context__, StopIteration)
    with pytest.raises(RuntimeError):
        list(collector)


@pytest.mark.parametrize("place", ["postproc", "post_collect_hook"])
@pytest.mark.parametrize("placement", ["inline", "threads"])
def test_a_batch_whose_postproc_was_interrupted_is_the_next(place: str, placement: str) -> None:
    seen: list[TensorDict] = []

    def interrupted(batch):
        seen.append(batch.clone())
        if len(seen) == 2:
            raise KeyboardInterrupt
        return batch

    collector = Collector(
        cartpole,
        None,
        frames_per_batch=10,
        total_frames=30,
        placement=placement,
        **{place: interrupted},
    )
    batches = [next(collector)]
    with pytest.raises(KeyboardInterrupt):
        next(collector)
    batches += collector
    assert len(batches) == 3 and len(seen) == 4
    assert (batches[1] == seen[1]).all()


@pytest.mark.parametrize("placement", ["inline", "threads"])
@pytest.mark.parametrize(
    "ask",
    [
        next,
        BaseCollector.rollout,
        BaseCollector.state_dict,
        BaseCollector.reset,
        BaseCollector.shutdown,
        BaseCollector.fake_tensordict,
        lambda collector: collector.set_seed(1),
    ],
    ids=["next", "rollout", "state_dict", "reset", "shutdown", "fake_tensordict", "set_seed"],
)
def test_who_asks_a_collector_that_waits_for_it_is_told(ask, placement: str) -> None:
    def policy(observation):
        if collectors:
            assert collectors[0].stats()["frames"] == 0 and "Collector(0 frames" in repr(
                collectors[0]
            )
            with pytest.raises(RuntimeError, match="from within its own environment or policy"):
                ask(collectors[0])
            asked.append(True)
        return torch.zeros((), dtype=torch.int64)

    collectors: list[BaseCollector] = []
    asked: list[bool] = []
    with Collector(cartpole, policy, frames_per_batch=10, placement=placement) as collector:
        collectors.append(collector)
        assert next(collector).numel() == 10
        collectors.clear()
        assert len(asked) >= 10


class Steps(gymnasium.Env):
    """Counts its steps, and says when it has begun."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.steps = 0
        self.began = threading.Event()

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        self.began.set()
        time.sleep(0.001)
        return np.full(1, self.steps, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("placement", ["inline", "threads"])
def test_a_shutdown_cuts_the_batch_of_the_background_short(placement: str) -> None:
    env = Steps()
    buffer = ReplayBuffer(storage=LazyTensorStorage(100))
    collector = Collector(
        env, None, frames_per_batch=1_000_000, replay_buffer=buffer, placement=placement
    )
    collector.start()
    assert env.began.wait(60)
    collector.shutdown()
    assert env.steps < 1_000_000
    assert collector.stats()["frames"] == buffer.write_count == env.steps
