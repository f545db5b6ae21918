"""Actors of Ray that run a collector, which imports torch only where its environments or its policy do, or an evaluator."""

from __future__ import annotations

import functools
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import ray

from windrow import _ray, collectors
from windrow.collectors._base import BaseCollector
from windrow.processes import exceptions, setup

#: Threads of an actor that answer questions while its main thread collects.
THREADS = {"control": 2}

_control = ray.method(concurrency_group="control")

P = ParamSpec("P")
R = TypeVar("R")


def _telling(method: Callable[P, R]) -> Callable[P, R]:
    """Raises an exception that Ray can send in place of one that it may not."""

    @functools.wraps(method)
    def told(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except BaseException as error:
            made = exceptions.received(exceptions.sent(error))
            if error.__cause__ is not None:
                # Pickle leaves it out.
                vars(made)["_sent_cause"] = exceptions.sent(error.__cause__)
            raise made from error

    return told


class CollectorActor:
    """What a :class:`~windrow.collectors.RayCollector` calls. All methods but ``next`` and ``whole`` are answered while it collects."""

    def __init__(self) -> None:
        self._begun = threading.Event()
        self._stopped = False
        #: What the batch after those of the last answer has raised.
        self._late: Exception | None = None

    @_telling
    def begin(self, sent: bytes, weights: Any, seed: int, name: str) -> dict[str, Any]:
        """Builds the collector, from what a :class:`~windrow.collectors.RayCollector` has sent and the newest ``weights``; returns what it
        is like. A replay buffer in an actor knows it by ``name``."""
        try:
            return self._built(sent, weights, seed, name)
        finally:
            self._begun.set()

    def _built(self, sent: bytes, weights: Any, seed: int, name: str) -> dict[str, Any]:
        around, pickled = pickle.loads(sent)
        setup.arrive(around)
        kind, env, arguments, self._buffer = pickle.loads(pickled)
        if hasattr(self._buffer, "_settle"):
            self._buffer._name = name
        self._collector: BaseCollector = kind(env, seed=seed, total_frames=-1, **arguments)
        self._core: Any = self._collector._core
        # What is packed by the engine need not be seen by Python.
        self._is_plain = kind.__module__.startswith("windrow.") and not _STAGE & {name for name in arguments if arguments[name]}
        if self._is_plain:
            self._core.serve(None)
        setup.seed_torch(seed)
        if weights is not None:
            self._publish(weights)
        stats = self._core.stats()
        return {
            "num_envs": stats["num_envs"],
            "frames_per_batch": stats["requested_frames_per_batch"],
            "dimensions": self._core.dimensions(),
            "deltas": self._core.deltas(),
            "policy_backend": self._core.policy_backend(),
            "pid": os.getpid(),
            "node": ray.get_runtime_context().get_node_id(),
        }

    @_telling
    def next(self, count: int = 1) -> list[tuple[Any, int]]:
        """The next ``count`` batches; fewer where the collector ends, or where one after the first raises: the next call raises that."""
        if self._late is not None:
            late, self._late = self._late, None
            raise late
        answers: list[tuple[Any, int]] = []
        while len(answers) < count and not (answers and self._stopped):
            try:
                answers.append(self._batch())
            except Exception as error:
                if not answers:
                    raise
                self._late = error
                break
        return answers

    def _batch(self) -> tuple[Any, int]:
        """The next batch, packed, and its frames. In place of the batch, None where it went to a replay buffer, and False where nobody
        has it: since the collector ends, or the buffer would have had to wait."""
        if self._stopped:
            return False, 0
        before = self._core.stats()["frames"]
        packed = self._core.next_packed() if self._is_plain else _ray.pack(next(self._collector))
        frames = self._core.stats()["frames"] - before
        if self._buffer is None:
            return packed, frames
        write = getattr(self._buffer, "write_packed", None)
        if write is None:
            self._buffer.extend(_ray.unpadded(_ray.unpack(packed)))
        elif not write(packed, frames, lambda: self._stopped):
            return False, frames
        return None, frames

    @_telling
    def whole(self, name: str) -> Any:
        """What a method of the collector returns that makes one batch, packed."""
        self._core.serve(self._collector)
        try:
            return _ray.pack(getattr(self._collector, name)())
        finally:
            self._core.serve(None if self._is_plain else self._collector)

    @_control
    def update_policy_weights_(self, weights: Any) -> None:
        """Publishes weights: those that were packed, or in any form that the collector takes."""
        self._wait()
        self._publish(weights)

    def _publish(self, weights: Any) -> None:
        if type(weights).__name__ == "ndarray":
            self._core.publish_packed(weights, None)
        else:
            self._collector.update_policy_weights_(weights)

    def _wait(self) -> None:
        """Waits until the collector was built.

        Raises:
            RuntimeError: it could not be built.
        """
        self._begun.wait()
        if not hasattr(self, "_core"):
            raise RuntimeError("the actor's collector could not be built")

    @_control
    def cut(self, short: bool) -> None:
        """As of the engine's collector."""
        self._wait()
        self._core.cut(short)

    @_control
    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a method of the collector."""
        self._wait()
        return getattr(self._collector, name)(*args, **kwargs)

    @_control
    def apply(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls ``function`` with the collector."""
        self._wait()
        return function(self._collector, *args)

    @_control
    def stop(self) -> None:
        """Has the present batch cut short at its next step, and later ones left out. Trajectories that go on are dropped."""
        self._stopped = True
        self._wait()
        self._core.cut(True)
        if self._collector._arguments.trajs_per_batch is not None:
            self._collector.shutdown()

    @_control
    def shutdown(self) -> None:
        """Ends the collector."""
        self._wait()
        self._collector.shutdown()


class EvaluatorActor:
    """What an :class:`~windrow.collectors.Evaluator` calls: one in a thread of the actor."""

    #: The frames of the last evaluation, packed.
    _frames: Any = None

    @_telling
    def begin(self, sent: bytes, seed: int) -> None:
        """Calls ``init_fn``, before anything else is imported for the evaluator; then builds it."""
        around, init_fn, pickled, tells_frames = pickle.loads(sent)
        setup.arrive(around)
        init_fn = pickle.loads(init_fn)
        if init_fn is not None:
            init_fn()
        env, arguments = pickle.loads(pickled)
        self._evaluator = collectors.Evaluator(env, **arguments, backend="thread", metrics_fn=self._keep if tells_frames else None)
        setup.seed_torch(seed)

    def _keep(self, batch: Any) -> dict[str, float]:
        self._frames = _ray.pack(batch)
        return {}

    @_telling
    def evaluate(self, weights: Any, step: int) -> tuple[dict[str, Any], Any]:
        """The result with these packed weights, and the packed frames of all episodes if they were asked for."""
        result = self._evaluator.evaluate(weights, step)
        frames, self._frames = self._frames, None
        return result, frames

    @_control
    def shutdown(self) -> None:
        """Ends the evaluator, and closes what was made for it."""
        if hasattr(self, "_evaluator"):
            self._evaluator.shutdown()


#: Arguments of a collector by which Python changes batches.
_STAGE = {
    "postproc", "compact_obs", "split_trajs", "pre_collect_hook", "post_collect_hook", "replay_buffer", "return_same_td", "storing_device",
    "update_at_each_batch", "interruptor",
}  # fmt: skip
