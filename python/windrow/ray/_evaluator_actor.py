"""The actor of Ray that runs an evaluator. It imports torch only if its environments or its policy
do.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import ray
from windrow._codecs import codec
from windrow.processes import setup
from windrow.ray import _session

if TYPE_CHECKING:
    from tensordict import TensorDictBase

#: Threads of an actor that answer questions while its main thread works.
THREADS = {"control": 2}

_control = ray.method(concurrency_group="control")

P = ParamSpec("P")
R = TypeVar("R")


def _sendable_errors(method: Callable[P, R]) -> Callable[P, R]:
    """Raises an exception that Ray can send in place of one that it may not."""

    @functools.wraps(method)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except BaseException as error:
            objects = codec(True)
            made = objects.read_error(objects.write_error(error))
            if error.__cause__ is not None:
                # Pickle leaves it out.
                vars(made)["_sent_cause"] = objects.write_error(error.__cause__)
            raise made from error

    return checked


class EvaluatorActor:
    """What an :class:`~windrow.collectors.Evaluator` calls: one in a thread of the actor."""

    #: The frames of the last evaluation, packed.
    _frames: Any = None

    @_sendable_errors
    def begin(self, sent: bytes, seed: int) -> None:
        """Calls ``init_fn``, before anything else is imported for the evaluator; then builds it."""
        around, init_fn, pickled, tells_frames = pickle.loads(sent)
        setup.arrive(around)
        init_fn = pickle.loads(init_fn)
        if init_fn is not None:
            init_fn()
        evaluator, env, arguments = pickle.loads(pickled)
        self._evaluator = evaluator(
            env, **arguments, backend="thread", metrics_fn=self._keep if tells_frames else None
        )
        setup.seed_torch(seed)

    def _keep(self, batch: TensorDictBase) -> dict[str, float]:
        self._frames = _session.pack(batch)
        return {}

    @_sendable_errors
    def evaluate(self, weights: object, step: int) -> tuple[dict[str, Any], Any]:
        """The result with these packed weights, and the packed frames of all episodes if they were
        asked for.
        """
        result = self._evaluator.evaluate(weights, step)
        frames, self._frames = self._frames, None
        return result, frames

    @_control
    def shutdown(self) -> None:
        """Ends the evaluator, and closes what was made for it."""
        if hasattr(self, "_evaluator"):
            self._evaluator.shutdown()
