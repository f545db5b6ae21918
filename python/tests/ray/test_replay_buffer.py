"""A replay buffer in an actor of Ray, whose samples and writes come from other processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from counter import have_torch
from tensordict import TensorDict

from cartpole import cartpole
from windrow import WorkerError
from windrow.collectors import Collector, MultiAsyncCollector, RayCollector
from windrow.data import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    RateLimiter,
    RayReplayBuffer,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
)
from windrow.ray import _buffer

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.usefixtures("cluster")]

#: Made in each test, and ended after it.
Make = Any


@pytest.fixture(scope="module")
def actor(cluster: Any) -> Iterator[Any]:
    """The actor of all buffers that leave it as it was, one after the other: to start one for each
    takes long.
    """
    actor = _buffer._owner(None)
    yield actor
    ray.kill(actor)


@pytest.fixture
def make(actor: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes one buffer; those that end their actor are ``alone`` in it."""
    made: list[RayReplayBuffer] = []

    def make(alone: bool = False, **arguments: Any) -> RayReplayBuffer:
        arguments = {"storage": LazyTensorStorage(1000), "batch_size": 10, "seed": 0, **arguments}
        if alone:
            made.append(RayReplayBuffer(**arguments))
            return made[-1]
        ray.get(actor.__ray_call__.remote(lambda owner: owner.__init__()))
        with monkeypatch.context() as patch:
            patch.setattr(_buffer, "_owner", lambda _: actor)
            return RayReplayBuffer(**arguments)

    yield make
    for buffer in made:
        buffer.shutdown()


def frames(count: int, start: int = 0) -> TensorDict:
    return TensorDict(
        {"number": torch.arange(start, start + count), "nested": {"half": torch.rand(count, 3)}},
        [count],
    )


def even(error_buffer: float = 20.0) -> RateLimiter:
    """As many frames sampled as written; 30 may be written before any is sampled."""
    return RateLimiter.sample_to_insert_ratio(1.0, min_size_to_sample=10, error_buffer=error_buffer)


def test_it_does_what_a_buffer_here_does(make: Make) -> None:
    # Parts are values, or functions that make them.
    there = make(storage=LazyTensorStorage(20), sampler=RandomSampler)
    here = ReplayBuffer(storage=LazyTensorStorage(20), batch_size=10, seed=0)
    batch = frames(15)
    assert there.extend(batch).tolist() == here.extend(batch).tolist()
    assert there.add(batch[3]) == here.add(batch[3]) == 15
    assert there.extend(frames(7, 100)).tolist() == here.extend(frames(7, 100)).tolist()
    assert len(there) == len(here) == 20 and there.write_count == here.write_count == 23
    assert there.batch_size == 10 and there.stats() == here.stats()
    assert there[:]["number"].tolist() == here[:]["number"].tolist()
    assert there[-2:]["number"].tolist() == here[-2:]["number"].tolist()
    one, other = there.sample(), here.sample()
    assert one.batch_size == other.batch_size and one["number"].tolist() == other["number"].tolist()
    assert there.sample(3).shape == (3,)
    # In memory of its own.
    one["number"].add_(1)
    assert there.sample(4, return_info=True)[1]["index"].shape == (4,)
    there[0] = frames(1, 500)[0]
    assert there[0]["number"] == 500
    there.empty()
    assert len(there) == 0 and there.write_count == 0
    there.extend((torch.arange(4), torch.zeros(4)))
    assert len(there) == 4 and there.sample(2)[0].shape == (2,)


def test_objects_travel_too(make: Make) -> None:
    buffer = make(storage=ListStorage(10), collate_fn=lambda items: items)
    buffer.extend(["a", {"b": 1}])
    assert buffer.add("c") == 2
    assert buffer[0] == ["a"] or buffer[0] == "a"
    assert all(item in ("a", {"b": 1}, "c") for item in buffer.sample(5))


def test_states_checkpoints_and_passes(make: Make, tmp_path: Path) -> None:
    buffer = make(sampler=SamplerWithoutReplacement())
    buffer.extend(frames(12))
    state = buffer.state_dict()
    buffer.dumps(tmp_path / "saved")
    drawn = buffer.sample()["number"].tolist()
    for restore in (
        lambda: buffer.load_state_dict(state),
        lambda: buffer.loads(tmp_path / "saved"),
    ):
        buffer.empty()
        restore()
        assert len(buffer) == 12 and buffer.sample()["number"].tolist() == drawn
    buffer.empty()
    buffer.extend(frames(40))
    # All handles share a pass.
    assert sorted(
        torch.cat([batch["number"] for batch in (buffer.client().next(), *buffer)]).tolist()
    ) == list(range(40))


def test_priorities(make: Make) -> None:
    buffer = make(
        sampler=PrioritizedSampler(1000, alpha=1.0, beta=1.0),
        replay_buffer_cls=TensorDictReplayBuffer,
        priority_key="error",
    )
    buffer.extend(frames(100))
    buffer.update_priority(torch.arange(100), [0.0] * 99 + [1.0])
    assert set(buffer.sample()["index"].tolist()) == {99}
    sample = buffer.sample().set("error", torch.zeros(10))
    assert buffer.update_tensordict_priority(sample) == 10
    assert buffer.update_priority([5], 1.0) == 1
    assert set(buffer.sample()["number"].tolist()) == {5}
    buffer.set_beta(0.5)


def test_overwritten_frames_give_priorities_to_no_others(make: Make) -> None:
    storage = LazyTensorStorage(10)
    buffer = make(
        storage=storage,
        sampler=PrioritizedSampler(10, 1.0, 1.0),
        replay_buffer_cls=TensorDictReplayBuffer,
        priority_key="error",
    )
    buffer.extend(frames(10))
    sample = buffer.sample().set("error", torch.zeros(10))
    buffer.extend(frames(10))
    assert buffer.update_tensordict_priority(sample) == 0
    assert buffer.update_priority(sample["index"], 0.0, sample["index_generation"]) == 0


def test_samples_that_are_asked_for_ahead(make: Make) -> None:
    empty, buffer = make(prefetch=2), make(prefetch=2)
    with pytest.raises(RuntimeError, match="no writer is attached"):
        empty.sample()
    # What the other has asked for ahead might be answered now.
    buffer.extend(frames(100))
    drawn = [buffer.sample()["number"] for _ in range(10)]
    assert all(
        len(numbers) == 10 and 0 <= numbers.min() and numbers.max() < 100 for numbers in drawn
    )
    ray.wait(buffer._ahead.clear(), num_returns=2)
    assert buffer.stats()["sampled"] == 120


def test_samples_that_were_asked_for_ahead_do_not_survive_what_replaces_all(
    make: Make, tmp_path: Path
) -> None:
    buffer = make(prefetch=2)
    buffer.extend(frames(100))
    buffer.dumps(str(tmp_path))
    state = buffer.state_dict()
    changes = {
        "set_sampler": lambda: buffer.set_sampler(RandomSampler()),
        "append_transform": lambda: buffer.append_transform(_same),
        "empty": lambda: buffer.empty(),
        "load_state_dict": lambda: buffer.load_state_dict(state),
        "loads": lambda: buffer.loads(str(tmp_path)),
    }
    for name, change in changes.items():
        if not len(buffer):
            buffer.load_state_dict(state)
        buffer.sample()
        change()
        assert buffer._ahead.pop() is None, name


def _same(batch: Any) -> Any:
    return batch


def test_errors_have_their_type(make: Make) -> None:
    with pytest.raises(TypeError, match="batch_sise"):
        make(alone=True, batch_sise=10)
    with pytest.raises(ValueError, match="transport"):
        make(transport="distributed", alone=True)
    with pytest.raises(ValueError, match="prefetch"):
        make(prefetch=-1, alone=True)
    buffer = make()
    with pytest.raises(RuntimeError, match="no writer is attached") as raised:
        buffer.sample()
    assert type(raised.value) is RuntimeError
    buffer.extend(frames(10))
    with pytest.raises(ValueError, match="number"):
        buffer.extend(frames(3).set("number", torch.zeros(3, 2)))
    with pytest.raises(IndexError):
        buffer[50]
    with pytest.raises(TypeError, match="TensorDict"):
        buffer.extend(3)
    assert len(buffer) == 10


def test_a_handle_goes_to_other_actors(make: Make) -> None:
    buffer = make(alone=True)

    @ray.remote(num_cpus=0)
    def write(buffer: RayReplayBuffer, start: int) -> int:
        buffer.extend(frames(5, start))
        return len(buffer.sample(3))

    buffer.extend(frames(5, 5))
    assert ray.get(write.remote(buffer, 0)) == 3
    assert sorted(buffer[:]["number"].tolist()) == list(range(10))
    copy = buffer.client()
    assert len(copy) == 10 and copy.batch_size == 10
    with pytest.raises(RuntimeError, match="handle that made"):
        copy.shutdown()
    assert all(len(one) == 10 for one in buffer.clients(2))
    buffer.shutdown()
    for handle in (buffer, copy):
        with pytest.raises(ray.exceptions.RayActorError):
            handle.extend(frames(3))


def test_trajectories_of_several_collectors_stay_apart(make: Make) -> None:
    buffer = make(
        sampler=SliceSampler(slice_len=4, traj_key="episode", strict_length=False), batch_size=8
    )
    for start, handle in enumerate([buffer.client(), buffer.client()]):
        written = TensorDict(
            {"episode": torch.zeros(4, dtype=torch.int64), "number": torch.arange(4) + 4 * start},
            [4],
        )
        handle._write(written)
    assert buffer.stats()["trajectories"] == 2
    for _ in range(20):
        parts = buffer.sample()["number"].reshape(2, 4)
        assert all(part.tolist() in ([0, 1, 2, 3], [4, 5, 6, 7]) for part in parts)


def test_a_sample_that_waits_lets_writers_in(make: Make) -> None:
    buffer = make(limiter=even(), sample_timeout=60.0)
    collector = Collector(cartpole, frames_per_batch=10, total_frames=-1, replay_buffer=buffer)
    with collector:
        collector.start()
        # As many samples wait as there are threads for them, while the limiter lets one write after
        # another in.
        taken: list[int] = []
        waiting = [
            threading.Thread(target=lambda: taken.append(len(buffer.sample()))) for _ in range(16)
        ]
        for thread in waiting:
            thread.start()
        for thread in waiting:
            thread.join()
        assert taken == [10] * 16
        assert buffer.write_count <= 160 + 30


def test_a_collector_that_was_started_waits_for_samples_until_it_ends(make: Make) -> None:
    buffer = make(limiter=even(), sample_timeout=0.2)
    collector = MultiAsyncCollector(
        [cartpole] * 2, frames_per_batch=10, total_frames=-1, replay_buffer=buffer
    )
    collector.start()
    while buffer.write_count < 30:
        time.sleep(0.01)
    # Longer than the timeout, and than a write waits before it asks again.
    time.sleep(1.5)
    assert collector.is_running() and buffer.write_count == 30
    collector.shutdown()
    assert buffer.write_count == 30
    # One more than that collector may write is refused after the timeout.
    with pytest.raises(RuntimeError, match="waited 0.2 s"):
        buffer.extend(buffer[:10])


class Failing:
    """A collector, whose policy fails after so many frames."""

    def __init__(self, buffer: RayReplayBuffer, after: float) -> None:
        self.steps, self.after = 0, after
        self.collector = Collector(
            cartpole, self.act, frames_per_batch=10, total_frames=-1, replay_buffer=buffer
        )

    def act(self, observation: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        if self.steps > self.after:
            raise ZeroDivisionError("the policy is broken")
        return torch.ones(observation.shape[:-1], dtype=torch.int64)

    def start(self) -> None:
        self.collector.start()


def test_a_sample_raises_the_error_that_ended_a_collector(make: Make) -> None:
    buffer = make(limiter=RateLimiter.min_size(500))
    there = ray.remote(num_cpus=0)(Failing).remote(buffer, 40)
    ray.get(there.start.remote())
    with pytest.raises(WorkerError, match="ZeroDivisionError: the policy is broken"):
        buffer.sample()
    assert len(buffer) in (30, 40)
    # In this process, too, where the collector knows it as well.
    here = Failing(buffer, 40)
    here.start()
    with pytest.raises(WorkerError, match="ZeroDivisionError: the policy is broken"):
        buffer.sample()
    here.collector.shutdown()
    ray.kill(there)


def test_a_sample_does_not_wait_for_a_dead_process(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_buffer, "_SILENCE", 8.0)
    buffer = make(alone=True, limiter=even(), sample_timeout=120.0)
    there = ray.remote(num_cpus=0)(Failing).remote(buffer, float("inf"))
    ray.get(there.start.remote())
    buffer.sample()
    assert buffer.stats()["writers"] == 1
    ray.kill(there)
    with pytest.raises(RuntimeError, match="no writer is attached") as raised:
        while True:
            buffer.sample()
    assert any("fallen silent" in note for note in raised.value.__notes__)


def test_a_collector_of_actors_writes_while_one_is_killed(
    make: Make, network: torch.nn.Module
) -> None:
    buffer = make(limiter=even())
    options: dict[str, Any] = {
        "sync": False,
        "on_loss": 2,
        "remote_configs": {"num_cpus": 0},
        "seed": 0,
    }
    with RayCollector(
        ["CartPole-v1"] * 2,
        network,
        frames_per_batch=10,
        total_frames=400,
        replay_buffer=buffer,
        **options,
    ) as collector:
        first = collector.remote_collectors[0]
        collector.start()
        for taken in range(40):
            assert len(buffer.sample()) == 10
            if taken == 10:
                ray.kill(first)
        while collector.is_running():
            time.sleep(0.01)
        stats = collector.stats()
        assert stats["frames"] == 400 and stats["restarts"] == 1
        assert buffer.write_count == 400
        assert have_torch(collector) == [False] * 2
