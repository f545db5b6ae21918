"""What refers to itself by way of a collector, an evaluator, an environment or a buffer is freed
all the same.
"""

from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
import torch
from torch import nn

from cartpole import cartpole
from waiting import threads, until
from windrow._windrow import native_ids
from windrow.collectors import (
    AsyncBatchedCollector,
    AsyncCollector,
    Collector,
    Evaluator,
    Interruptor,
    MultiAsyncCollector,
    MultiSyncCollector,
    WeightUpdaterBase,
)
from windrow.data import LazyTensorStorage, ReplayBuffer
from windrow.envs import (
    Compose,
    EnvBase,
    GymEnv,
    GymWrapper,
    ParallelEnv,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)

pytestmark = pytest.mark.filterwarnings("ignore:environments written in Python share")


class Anything:
    """Something that refers to whatever it is told to."""

    def __init__(self) -> None:
        self.other: Any = None


class Owned(gymnasium.Wrapper):
    """An environment of Python's that refers to whoever owns it, and tells when it is closed."""

    def __init__(self, owner: Any = None, closed: list[bool] | None = None) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.owner = owner
        self.closed = closed

    def close(self) -> None:
        # An environment that was taken apart already has no owner.
        if self.closed is not None:
            self.closed.append(self.owner is not None)
        super().close()


@pytest.fixture
def collected() -> Callable[[Callable[[], list[Any]]], None]:
    """Lets `make` make objects that refer to each other, and checks that all of them go away with
    their threads.
    """

    def check(make: Callable[[], list[Any]]) -> None:
        gc.collect()
        before = threads()
        gc.disable()
        try:
            gone = [weakref.ref(thing) for thing in make()]
            # A worker that is at something keeps it for as long. What threads without the
            # interpreter's lock have dropped is given up at the next call of windrow, whatever it
            # is.
            until(
                lambda: (
                    native_ids() and gc.collect() >= 0 and all(thing() is None for thing in gone)
                )
            )
        finally:
            gc.enable()
        # A thread ends a little after it has nothing left to do.
        until(lambda: threads().keys() <= before.keys())

    return check


class Trainer:
    """Has a collector whose policy is a method of its own."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self.collector = make(self.policy)

    def policy(self, td):
        return td.set("action", torch.zeros(*td.batch_size, 2))


KINDS = [
    lambda policy, env=cartpole: Collector(env, policy, frames_per_batch=10),
    lambda policy, env=cartpole: AsyncCollector(
        env, policy, placement="threads", frames_per_batch=10
    ),
    lambda policy, env=cartpole: MultiSyncCollector(
        [env] * 2, policy, placement="threads", frames_per_batch=10
    ),
    lambda policy, env=cartpole: MultiAsyncCollector(
        [env] * 2, policy, placement="threads", frames_per_batch=10
    ),
    lambda policy, env=cartpole: AsyncBatchedCollector(
        [env] * 2, policy, backend="threading", frames_per_batch=10
    ),
]
NAMES = [
    "Collector",
    "AsyncCollector",
    "MultiSyncCollector",
    "MultiAsyncCollector",
    "AsyncBatchedCollector",
]


@pytest.mark.parametrize("batches", [0, 2])
@pytest.mark.parametrize("make", KINDS, ids=NAMES)
def test_a_collector_whose_policy_is_a_method_of_its_owner(collected, make, batches: int) -> None:
    def trainer() -> list[Any]:
        trainer = Trainer(make)
        for _ in range(batches):
            next(trainer.collector)
        return [trainer, trainer.collector, trainer.collector._core]

    collected(trainer)


@pytest.mark.parametrize(
    "shows",
    [{"logger": lambda figures, step: None, "log_interval": 0}, {"progress": True}],
    ids=["logger", "progress"],
)
def test_a_collector_that_shows_its_progress_ends_with_its_last_reference(
    shows: dict[str, Any],
) -> None:
    gc.disable()
    try:
        collector = Collector(cartpole, nn.Linear(4, 2), frames_per_batch=10, **shows)
        next(collector)
        gone = weakref.ref(collector)
        del collector
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("batches", [0, 2])
@pytest.mark.parametrize("make", KINDS, ids=NAMES)
def test_a_collector_that_its_environments_refer_to_is_freed_after_they_are_closed(
    collected, make, batches: int
) -> None:
    closed: list[bool] = []
    made: list[weakref.ref[Any]] = []

    def collector() -> list[Any]:
        owner = Anything()

        def env() -> Owned:
            made.append(weakref.ref(made_now := Owned(owner, closed)))
            return made_now

        owner.other = make(None, env)
        for _ in range(batches):
            next(owner.other)
        # One that was only looked at has gone.
        return [owner, owner.other, *filter(None, (ref() for ref in made))]

    collected(collector)
    # While they were still whole.
    assert closed and all(closed)
    assert [ref() for ref in made if ref() is not None] == []


@pytest.mark.parametrize(
    "env",
    [
        lambda owner: Owned(owner),
        lambda owner: GymWrapper(Owned(owner)),
        lambda owner: TransformedEnv(GymWrapper(Owned(owner)), Compose(StepCounter(), RewardSum())),
        lambda owner: SerialEnv(2, lambda: Owned(owner)),
        lambda owner: gymnasium.vector.SyncVectorEnv([lambda: Owned(owner)] * 2),
    ],
    ids=["an object", "GymWrapper", "TransformedEnv", "SerialEnv", "a vector"],
)
def test_a_collector_that_the_object_it_was_given_refers_to(collected, env) -> None:
    def collector() -> list[Any]:
        owner = Anything()
        owner.other = Collector(env(owner), frames_per_batch=20)
        next(owner.other)
        return [owner, owner.other]

    collected(collector)


@pytest.mark.parametrize(
    "kind",
    ["pre_collect_hook", "post_collect_hook", "postproc", "policy_factory", "create_env_kwargs"],
)
def test_a_collector_that_what_it_was_given_refers_to(collected, kind: str) -> None:
    def collector() -> list[Any]:
        owner = Anything()

        def given(batch: Any = None) -> Any:
            return batch if owner else None

        def env(of: Any = None) -> GymEnv:
            return cartpole()

        arguments = {
            "policy_factory": lambda: Trainer(lambda policy: owner).policy,
            "create_env_kwargs": {"of": owner},
        }
        owner.other = Collector(env, frames_per_batch=10, **{kind: arguments.get(kind, given)})
        next(owner.other)
        return [owner, owner.other]

    collected(collector)


def test_a_collector_of_a_module_that_refers_to_it(collected, network: nn.Module) -> None:
    def collector(backend: str) -> list[Any]:
        network.owner = Collector(cartpole, network, frames_per_batch=10, policy_backend=backend)
        next(network.owner)
        freed = [network.owner]
        del network.owner
        module = nn.Sequential(nn.Linear(4, 2))
        module.owner = Collector(cartpole, module, frames_per_batch=10, policy_backend=backend)
        next(module.owner)
        return [*freed, module, module.owner]

    for backend in "native", "torch":
        collected(lambda backend=backend: collector(backend))


def test_a_collector_that_its_updater_and_its_interruptor_refer_to(collected) -> None:
    class Updater(WeightUpdaterBase):
        owner: Any = None

    def collector() -> list[Any]:
        updater, interruptor = Updater(), Interruptor()
        updater.owner = Collector(
            cartpole,
            nn.Linear(4, 2),
            frames_per_batch=10,
            weight_updater=updater,
            interruptor=interruptor,
        )
        interruptor.owner = updater  # type: ignore[attr-defined]
        next(updater.owner)
        return [updater, updater.owner, interruptor]

    collected(collector)


@pytest.mark.parametrize("fails", ["environment", "policy"])
@pytest.mark.parametrize("on_loss", ["raise", "continue", 1])
def test_a_collector_whose_workers_have_failed(collected, fails: str, on_loss: Any) -> None:
    """Their errors refer to everything; some of these nobody has read."""
    together = threading.Barrier(2)

    def fail() -> None:
        together.wait(60)
        raise ZeroDivisionError("it broke")

    class Breaks(Owned):
        def step(self, action):
            if fails == "environment":
                fail()
            return super().step(action)

    def collector() -> list[Any]:
        owner = Anything()

        def policy(td):
            if fails == "policy" and owner.other is not None:
                fail()
            return td.set("action", torch.zeros(*td.batch_size, 2))

        owner.other = MultiSyncCollector(
            [lambda: Breaks(owner)] * 2,
            policy,
            placement="threads",
            frames_per_batch=10,
            on_loss=on_loss,
        )
        with pytest.raises(RuntimeError, match="it broke"):
            for _ in owner.other:
                pass
        # A worker that was replaced may wait for another that was not.
        together.abort()
        return [owner, owner.other]

    collected(collector)


def test_a_collector_that_was_started_and_has_ended(collected) -> None:
    def collector() -> list[Any]:
        buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=5)
        trainer = Trainer(
            lambda policy: Collector(
                cartpole, policy, frames_per_batch=10, total_frames=30, replay_buffer=buffer
            )
        )
        trainer.collector.start()
        until(lambda: not trainer.collector.is_running())
        buffer.owner = trainer  # type: ignore[attr-defined]
        return [trainer, trainer.collector, buffer]

    collected(collector)


@pytest.mark.parametrize("placement", ["threads", "processes"])
def test_a_collector_that_was_started_and_runs_is_freed_with_its_buffer(
    collected, placement: str
) -> None:
    def collector() -> list[Any]:
        buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=5)
        collector = MultiAsyncCollector(
            [cartpole] * 2, frames_per_batch=10, placement=placement, replay_buffer=buffer
        )
        collector.start()
        buffer.sample()
        return [collector, buffer]

    collected(collector)


def test_a_collector_that_was_started_lives_as_long_as_its_buffer() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=5)
    Collector(cartpole, frames_per_batch=10, total_frames=2000, replay_buffer=buffer).start()
    gc.collect()
    until(lambda: buffer.write_count == 2000)
    # What has ended is kept no longer.
    until(lambda: not buffer._collecting)


@pytest.mark.parametrize("asked", [False, True])
def test_a_collector_that_has_failed_in_the_background(collected, asked: bool) -> None:
    def collector() -> list[Any]:
        buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=5)
        owner = Anything()

        def policy(td):
            if owner.other is not None:
                raise RuntimeError("it broke")
            return td.set("action", torch.zeros(*td.batch_size, 2))

        owner.other = None
        owner.other = Collector(cartpole, policy, frames_per_batch=10, replay_buffer=buffer)
        owner.other.start()
        until(lambda: not owner.other.is_running())
        buffer.owner = owner  # type: ignore[attr-defined]
        if asked:
            with pytest.raises(RuntimeError, match="it broke"):
                len(buffer)
        return [owner, owner.other, buffer]

    collected(collector)


def test_a_collector_that_is_dropped_by_its_own_worker() -> None:
    """As happens where the garbage collector comes by in the thread of a worker."""
    owner, steps, before = Anything(), itertools.count(1), threads()
    waits, go, dropped = threading.Event(), threading.Event(), threading.Event()
    took: list[float] = []

    def policy(td):
        # After a first batch of 10, when the worker runs ahead. Policies are called once to see
        # what they write.
        if next(steps) == 15:
            waits.set()
            assert go.wait(60)
            began = time.monotonic()
            owner.other = None
            took.append(time.monotonic() - began)
            dropped.set()
        return td.set("action", torch.zeros(*td.batch_size, 2))

    owner.other = AsyncCollector(cartpole, policy, placement="threads", frames_per_batch=10)
    assert next(owner.other).numel() == 10
    gone = weakref.ref(owner.other)
    assert waits.wait(60)
    go.set()
    assert dropped.wait(60)
    # It does not wait for itself, which would take the five seconds that workers have to end.
    assert took[0] < 5 and gone() is None
    until(lambda: threads().keys() <= before.keys())


@pytest.mark.parametrize("evaluations", [0, 1])
@pytest.mark.parametrize("given", ["policy", "env", "metrics_fn", "on_result"])
def test_an_evaluator(collected, given: str, evaluations: int) -> None:
    closed: list[bool] = []

    def evaluator() -> list[Any]:
        owner = Anything()
        arguments: dict[str, Any] = {
            "policy": Trainer(lambda policy: owner).policy,
            "env": lambda: Owned(owner, closed),
            "metrics_fn": lambda batch: {"owned": float(owner is not None)},
            "on_result": lambda result: owner.other,
        }
        defaults = {"policy": Trainer(lambda policy: None).policy, "env": cartpole}
        owner.other = Evaluator(num_trajectories=1, **{**defaults, given: arguments[given]})
        for _ in range(evaluations):
            owner.other.evaluate()
        return [owner, owner.other]

    collected(evaluator)
    assert all(closed)


def test_an_evaluator_whose_error_nobody_has_read(collected, unraisable) -> None:
    def evaluator() -> list[Any]:
        owner = Anything()

        def measure(batch):
            assert owner.other is None, "it broke"

        owner.other = Evaluator(
            cartpole, Trainer(lambda policy: None).policy, num_trajectories=1, metrics_fn=measure
        )
        owner.other.trigger_eval()
        until(lambda: not owner.other.pending)
        return [owner, owner.other]

    collected(evaluator)
    assert len(unraisable) == 1 and "it broke" in str(unraisable[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda env: GymWrapper(env),
        lambda env: TransformedEnv(GymWrapper(env), StepCounter()),
        lambda env: SerialEnv(2, [cartpole, lambda: env]),
        lambda env: ParallelEnv(1, lambda: env),
    ],
    ids=["GymWrapper", "TransformedEnv", "SerialEnv", "ParallelEnv"],
)
@pytest.mark.parametrize("steps", [0, 3])
def test_an_environment_that_is_stepped_by_hand(
    collected, make: Callable[[Any], EnvBase], steps: int
) -> None:
    def env() -> list[Any]:
        inner = Owned()
        inner.owner = make(inner)
        if steps:
            inner.owner.rollout(steps)
        return [inner, inner.owner]

    collected(env)


@pytest.mark.parametrize("given", ["collate_fn", "transform", "attribute"])
def test_a_replay_buffer(collected, given: str) -> None:
    def buffer() -> list[Any]:
        owner = Anything()
        functions = (
            {given: lambda frames: frames if owner else None} if given != "attribute" else {}
        )
        owner.other = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=5, **functions)
        with Collector(
            cartpole, frames_per_batch=10, total_frames=20, replay_buffer=owner.other
        ) as collector:
            for _ in collector:
                pass
        assert len(owner.other.sample()) == 5
        owner.other.owner = owner
        return [owner, owner.other]

    collected(buffer)


def test_what_is_still_in_use_is_not_freed() -> None:
    """Objects that only the engine holds, by now."""
    made = []

    def env() -> Owned:
        made.append(weakref.ref(made_now := Owned()))
        return made_now

    collectors = [
        Collector(env, Trainer(lambda policy: None).policy, frames_per_batch=10),
        MultiAsyncCollector(
            [env] * 2, Trainer(lambda policy: None).policy, placement="threads", frames_per_batch=10
        ),
    ]
    wrapped = GymWrapper(Owned(closed=[]))
    for _ in range(5):
        gc.collect()
        for collector in collectors:
            assert next(collector).numel() == 10
        assert wrapped.rollout(3).numel() <= 3
    assert all(ref() is not None for ref in made)
    for collector in collectors:
        collector.shutdown()
