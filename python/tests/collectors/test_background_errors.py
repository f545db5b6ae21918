"""What ends a collector in the background is heard of by whoever asks next."""

from __future__ import annotations

import copy
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from cartpole import cartpole
from waiting import until
from windrow import WorkerError
from windrow.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from windrow.data import (
    LazyTensorStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    TensorDictReplayBuffer,
)


class Fails:
    """A policy that fails at its third frame, or once it is told to."""

    def __init__(self, go_on: threading.Event | None = None) -> None:
        self.calls = 0
        self.go_on = go_on

    def __call__(self, td: Any) -> Any:
        self.calls += 1
        if self.calls > 3:
            if self.go_on is not None:
                assert self.go_on.wait(60)
            raise ValueError("the policy broke")
        return td.set("action", torch.zeros(*td.batch_size, 2))


def failing_hook(batch: Any) -> Any:
    raise ValueError("the postproc broke")


def policy(td: Any) -> Any:
    return td.set("action", torch.zeros(*td.batch_size, 2))


#: Collectors that fail before their first batch is written, and what that raises.
FAILING = {
    "inline": (
        lambda buffer: Collector(cartpole, Fails(), frames_per_batch=20, replay_buffer=buffer),
        WorkerError,
    ),
    "sync": (
        lambda buffer: MultiSyncCollector(
            [cartpole] * 2, Fails(), placement="threads", frames_per_batch=20, replay_buffer=buffer
        ),
        WorkerError,
    ),
    "async": (
        lambda buffer: MultiAsyncCollector(
            [cartpole] * 2, Fails(), placement="threads", frames_per_batch=20, replay_buffer=buffer
        ),
        WorkerError,
    ),
    "postproc": (
        lambda buffer: Collector(
            cartpole, frames_per_batch=20, replay_buffer=buffer, postproc=failing_hook
        ),
        ValueError,
    ),
}


def buffer_of(count: int = 0, **arguments: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(1000), sampler=PrioritizedSampler(), batch_size=5, **arguments
    )
    if count:
        buffer.extend(frames(count))
    return buffer


def frames(count: int) -> TensorDict:
    return TensorDict({"number": torch.arange(count)}, [count])


def failed(kind: str, buffer: Any) -> Any:
    collector = FAILING[kind][0](buffer)
    collector.start()
    until(lambda: not collector.is_running())
    return collector


CALLS_OF_BUFFERS = {
    "len": len,
    "write_count": lambda buffer: buffer.write_count,
    "stats": lambda buffer: buffer.stats(),
    "sample": lambda buffer: buffer.sample(),
    "sample with info": lambda buffer: buffer.sample(return_info=True),
    "iteration": lambda buffer: next(iter(buffer)),
    "next": lambda buffer: buffer.next(),
    "extend": lambda buffer: buffer.extend(frames(5)),
    "add": lambda buffer: buffer.add(frames(1)[0]),
    "a row": lambda buffer: buffer[0],
    "all rows": lambda buffer: buffer[:],
    "an entry": lambda buffer: buffer["number"],
    "setting rows": lambda buffer: buffer.__setitem__([0], frames(1)),
    "setting an entry": lambda buffer: buffer.__setitem__(
        "number", torch.zeros(len(buffer), dtype=torch.int64)
    ),
    "update_priority": lambda buffer: buffer.update_priority([0], [1.0]),
    "set_beta": lambda buffer: buffer.set_beta(0.5),
    "set_sampler": lambda buffer: buffer.set_sampler(RandomSampler()),
    "empty": lambda buffer: buffer.empty(),
    "state_dict": lambda buffer: buffer.state_dict(),
    "load_state_dict": lambda buffer: buffer.load_state_dict(buffer_of(5).state_dict()),
    "dumps": lambda buffer: buffer.dumps("checkpoint"),
}

CALLS_OF_COLLECTORS = {
    "next": lambda collector: next(collector),
    "iteration": lambda collector: next(iter(collector)),
    "rollout": lambda collector: collector.rollout(),
    "start": lambda collector: collector.start(),
    "stats": lambda collector: collector.stats(),
    "stats of workers": lambda collector: collector.stats(workers="per_worker"),
    "losses": lambda collector: collector.losses(),
    "policy_version": lambda collector: collector.policy_version,
    "set_seed": lambda collector: collector.set_seed(0),
    "reset": lambda collector: collector.reset(),
    "pause": lambda collector: collector.pause().__enter__(),
    "state_dict": lambda collector: collector.state_dict(),
    "load_state_dict": lambda collector: collector.load_state_dict({}),
    "update_policy_weights_": lambda collector: collector.update_policy_weights_(),
    "fake_tensordict": lambda collector: collector.fake_tensordict(),
    "profile_summary": lambda collector: collector.profile_summary(),
    "shutdown": lambda collector: collector.shutdown(),
    "async_shutdown": lambda collector: collector.async_shutdown(),
}


@pytest.mark.parametrize("call", CALLS_OF_BUFFERS)
def test_each_call_of_the_buffer_raises_it_once(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    buffer = buffer_of(20)
    collector = failed("inline", buffer)
    ask = CALLS_OF_BUFFERS[call]
    with pytest.raises(WorkerError, match="(?s)worker 0.*the policy broke"):
        ask(buffer)
    # The frames are there, and nobody is told again.
    assert buffer[:]["number"].tolist() == list(range(20))
    ask(buffer)
    collector.stats()
    collector.shutdown()


@pytest.mark.parametrize("call", CALLS_OF_COLLECTORS)
def test_each_call_of_the_collector_raises_it_once(call: str) -> None:
    buffer = buffer_of(20)
    collector = failed("inline", buffer)
    with pytest.raises(WorkerError, match="(?s)worker 0.*the policy broke"):
        CALLS_OF_COLLECTORS[call](collector)
    assert buffer.sample().shape == (5,) and len(buffer) == 20
    assert collector.stats()["frames"] == 0
    collector.shutdown()


@pytest.mark.parametrize("asked", ["buffer", "collector"])
@pytest.mark.parametrize("kind", FAILING)
def test_it_is_the_error_itself(kind: str, asked: str) -> None:
    buffer = buffer_of()
    collector = failed(kind, buffer)
    with pytest.raises(FAILING[kind][1]) as caught:
        len(buffer) if asked == "buffer" else collector.stats()
    assert "broke" in str(caught.value)
    names = {entry.name for entry in caught.traceback}
    if kind == "postproc":
        assert "failing_hook" in names
    else:
        assert "in __call__" in str(caught.value) and isinstance(caught.value.__cause__, ValueError)
        assert caught.value.worker is not None  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError):
        next(collector)
    collector.shutdown(raise_on_error=False)


@pytest.mark.parametrize("kind", FAILING)
def test_a_sample_that_waits_raises_it(kind: str) -> None:
    buffer = buffer_of(sample_timeout=600.0)
    collector = FAILING[kind][0](buffer)
    collector.start()
    with pytest.raises(FAILING[kind][1], match="broke"):
        buffer.sample()
    collector.shutdown(raise_on_error=False)


def test_all_samples_that_wait_come_to_an_end() -> None:
    buffer, go_on = buffer_of(sample_timeout=600.0), threading.Event()
    collector = Collector(cartpole, Fails(go_on), frames_per_batch=20, replay_buffer=buffer)
    collector.start()
    raised: list[BaseException] = []

    def sample() -> None:
        try:
            buffer.sample()
        except BaseException as error:
            raised.append(error)

    samplers = [threading.Thread(target=sample) for _ in range(3)]
    for sampler in samplers:
        sampler.start()
    go_on.set()
    for sampler in samplers:
        sampler.join(60)
    assert sorted("broke" in str(error) for error in raised) == [False, False, True]
    assert all(isinstance(error, RuntimeError) for error in raised)
    collector.shutdown()


@pytest.mark.parametrize("kind", ["policy", "postproc"])
def test_a_shutdown_raises_what_goes_wrong_meanwhile(kind: str) -> None:
    buffer = buffer_of()
    started = threading.Event()

    def fails(td: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            started.set()
            until(lambda: collector._ended)
            raise OSError("it broke at the end")
        return policy(td)

    arguments = {"policy": fails} if kind == "policy" else {"policy": policy, "postproc": fails}
    collector = Collector(cartpole, frames_per_batch=20, replay_buffer=buffer, **arguments)
    collector.start()
    assert started.wait(60)
    with pytest.raises((WorkerError, OSError), match="it broke at the end"):
        collector.shutdown()
    assert len(buffer) == 0


@pytest.mark.parametrize("kind", FAILING)
def test_who_iterates_is_told_and_the_buffer_goes_on(kind: str) -> None:
    buffer = buffer_of(20)
    collector = FAILING[kind][0](buffer)
    with pytest.raises(FAILING[kind][1], match="broke"):
        next(collector)
    assert buffer.sample().shape == (5,)
    buffer.extend(frames(5))
    assert len(buffer) == 25
    collector.shutdown(raise_on_error=False)


def test_nobody_is_told_where_nobody_wants_to_be() -> None:
    buffer = buffer_of(20)
    collector = failed("inline", buffer)
    collector.shutdown(raise_on_error=False)
    assert len(buffer) == 20 and buffer.sample().shape == (5,)
    collector.stats()


def test_an_error_that_leaves_the_context_is_the_one_to_be_seen() -> None:
    buffer = buffer_of(20)
    with pytest.raises(KeyError, match="mine"), failed("inline", buffer):
        raise KeyError("mine")
    assert len(buffer) == 20


def test_a_context_that_is_left_in_peace_raises_it() -> None:
    with pytest.raises(WorkerError, match="broke"), failed("inline", buffer_of(20)):
        pass


@pytest.mark.parametrize("show", [repr, str])
def test_showing_raises_nothing(show: Any) -> None:
    buffer = buffer_of(20)
    collector = failed("inline", buffer)
    assert "20 frames" in show(buffer) and "Collector(" in show(collector)
    with pytest.raises(WorkerError, match="broke"):
        len(buffer)
    collector.shutdown()


def test_a_copy_of_the_buffer_has_not_failed() -> None:
    buffer = buffer_of(20)
    collector = failed("inline", buffer)
    assert len(copy.deepcopy(buffer)) == 20
    collector.shutdown(raise_on_error=False)


@pytest.mark.parametrize("through_python", [False, True])
def test_another_collector_of_the_buffer_goes_on(through_python: bool) -> None:
    buffer = buffer_of()
    seen: list[int] = []

    def look(batch: Any) -> Any:
        # In the thread that collects, which is no user's.
        seen.append(len(buffer))
        return batch

    postproc = look if through_python else None
    other = Collector(
        cartpole,
        policy,
        frames_per_batch=20,
        total_frames=60,
        replay_buffer=buffer,
        postproc=postproc,
    )
    background = Collector(
        cartpole,
        policy,
        frames_per_batch=20,
        total_frames=60,
        replay_buffer=buffer,
        postproc=postproc,
    )
    collector = failed("inline", buffer)
    assert list(other) == [None] * 3
    background.start()
    until(lambda: not background.is_running())
    background.shutdown()
    with pytest.raises(WorkerError, match="broke"):
        len(buffer)
    assert buffer[:].numel() == 120 and len(seen) == (6 if through_python else 0)
    collector.shutdown()


def test_a_worker_that_looks_at_the_buffer_does_not_hear_of_its_own_collector() -> None:
    buffer = buffer_of(20)
    started, looking, looked = threading.Event(), threading.Event(), threading.Event()

    def looks(td: Any) -> Any:
        if started.is_set():
            looking.set()
            # The collector may wait for this worker before it says that it has failed.
            for _ in range(100):
                if buffer._failures:
                    break
                time.sleep(0.01)
            len(buffer)
            looked.set()
        return policy(td)

    def fails(td: Any) -> Any:
        if started.is_set():
            # A failed collector gives the other worker no part, if it has none yet.
            assert looking.wait(60)
            raise ValueError("the policy broke")
        return policy(td)

    collector = MultiAsyncCollector(
        [cartpole] * 2,
        policy_factory=[lambda: looks, lambda: fails],
        placement="threads",
        frames_per_batch=20,
        replay_buffer=buffer,
    )
    started.set()
    collector.start()
    until(lambda: not collector.is_running())
    assert looked.wait(60)
    with pytest.raises(WorkerError, match="broke"):
        len(buffer)
    collector.shutdown(raise_on_error=False)


def test_several_collectors_are_told_of_one_after_the_other() -> None:
    buffer = buffer_of(20)
    collectors = [FAILING[kind][0](buffer) for kind in ("inline", "postproc")]
    for collector in collectors:
        collector.start()
        until(lambda: not collector.is_running())
    for message in ("the policy broke", "the postproc broke"):
        with pytest.raises((WorkerError, ValueError), match=message):
            len(buffer)
    assert len(buffer) == 20
    for collector in collectors:
        collector.shutdown()


def test_a_buffer_of_another_library_leaves_it_to_the_collector() -> None:
    data = pytest.importorskip("torchrl.data")
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(1000))
    collector = failed("inline", buffer)
    assert len(buffer) == 0
    with pytest.raises(WorkerError, match="broke"):
        collector.stats()
    collector.shutdown()


def test_the_buffer_tells_of_a_collector_that_is_no_more() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100))
    failed("inline", buffer)
    with pytest.raises(WorkerError, match="broke"):
        len(buffer)
    assert len(buffer) == 0
