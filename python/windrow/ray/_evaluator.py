"""Evaluations in an actor of Ray, in place of the engine's."""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from windrow import _needs
from windrow._lazy import module
from windrow._windrow import WorkerError
from windrow.policies.choose import Choice, Conditions, Sent, choose, exploration_name, unfit
from windrow.processes import blame, setup
from windrow.processes.exceptions import refusal
from windrow.ray import _session

if TYPE_CHECKING:
    import torch

    from windrow.collectors._evaluator import Evaluator, EvaluatorArguments

_evaluator_actor = module("windrow.ray._evaluator_actor")
#: Seconds between two looks at the end of the evaluator while an answer is awaited.
_LOOK = 0.2

#: Arguments of the evaluator in the actor that are given to it as they are.
_PASSED = (
    "num_trajectories",
    "max_steps",
    "seed",
    "log_prefix",
    "device",
    "policy_backend",
    "trust_policy",
    "dump_video",
    "video",
)


@dataclass(eq=False)
class Job:
    """An evaluation that was asked for: packed weights or None, their version, and who waits for
    the result, if anybody does.
    """

    weights: Any
    version: int
    step: int
    reply: Future[dict[str, Any]] | None


def build(
    kind: type[Evaluator], name: str, arguments: EvaluatorArguments, doubt: str | None = None
) -> tuple[Choice, RayEvaluatorCore]:
    """The policy, and the evaluator called ``name``, which the actor makes of ``kind``; with a
    ``doubt``, which says why the actor has refused the graph of the policy, it calls that.

    Raises:
        ImportError: Ray is not installed.
        TypeError: something cannot be sent to an actor; the error names it.
        RuntimeError: Ray has too little for the actor, or it did not start.
        Exception: what making environment or policy in the actor has raised.
    """
    _needs.module(name, "ray", "ray")
    exploration = exploration_name(arguments.exploration_type)
    given = {option: getattr(arguments, option) for option in _PASSED} | {
        "exploration_type": exploration
    }
    choice = Choice(None)
    if arguments.policy_factory is not None:
        given["policy_factory"] = arguments.policy_factory
    else:
        device = None
        if arguments.device is not None:
            import torch

            device = torch.device(arguments.device)
        conditions = Conditions(
            exploration,
            threads=True,
            apart=True,
            device=None if device is None or device.type == "cpu" else device,
            is_here=False,
            trust=bool(arguments.trust_policy),
            evaluates=True,
        )
        choice = choose(
            arguments.policy,
            None,
            conditions,
            backend=arguments.policy_backend if doubt is None else "torch",
            env=arguments.env,
        )
        if doubt is not None:
            choice = replace(choice, doubt=doubt, surprise="once")
        given["policy"] = Sent(_told(lambda: setup.policy(choice.core)))
    named = {
        "env": arguments.env,
        "policy_factory": arguments.policy_factory,
        "init_fn": arguments.init_fn,
    }
    first = _told(lambda: blame.pickled(arguments.init_fn, named))
    sent = _told(lambda: blame.pickled((kind, arguments.env, given), named))
    pickled = pickle.dumps((setup.surroundings(), first, sent, arguments.metrics_fn is not None))
    try:
        return choice, RayEvaluatorCore(name, pickled, arguments)
    except Exception as error:
        refused = refusal(error)
        if refused is None:
            raise
    return build(kind, name, arguments, unfit(refused))


def _told(pickle_: Callable[[], bytes]) -> bytes:
    """What ``pickle_`` returns; its error says that an actor was to be sent something."""
    try:
        return pickle_()
    except TypeError as error:
        told = (
            str(error)
            .replace('placement="processes" sends', 'backend="ray" sends')
            .replace("to each worker", "to its actor")
        )
        raise TypeError(
            told.replace('placement="threads"', 'backend="thread"')
        ) from error.__cause__


class RayEvaluatorCore:
    """Answers what :class:`windrow._windrow.EvaluatorCore` answers. One thread asks the actor for
    one evaluation after the other.
    """

    def __init__(self, name: str, sent: bytes, arguments: EvaluatorArguments) -> None:
        self._name, self._sent, self._pid = name, sent, os.getpid()
        self._busy_policy, self._prefix, self._patience = (
            arguments.busy_policy,
            arguments.log_prefix,
            arguments.shutdown_timeout,
        )
        self._metrics, self._on_result = arguments.metrics_fn, arguments.listener
        self._seconds("shutdown_timeout", self._patience)
        #: Changed under the condition: what waits, what runs, and results or errors that nobody has
        #: read.
        self._changed = threading.Condition()
        self._queue: deque[Job] = deque()
        self._running: Job | None = None
        self._unread: deque[dict[str, Any] | BaseException] = deque()
        self._version = 0
        self._is_ending = self._is_told = False
        #: The newest weights that were evaluated, and their version: an actor that takes the place
        #: of another begins with them.
        self._newest: tuple[Any, int] = (None, 0)
        self._actor: Any = None
        #: What was asked of it last.
        self._waiting: list[Any] = []
        self._send = _session.Sender()
        self._ray, self._release = _session.acquire(name, None)
        try:
            gpus = arguments.num_gpus
            if gpus is None:
                gpus = min(1, int(self._ray.cluster_resources().get("GPU", 0)))
            self._options = {"num_gpus": gpus, **(arguments.ray_kwargs or {})}
            _session.check_claims(
                self._ray, [self._options], "let it claim less by num_gpus and ray_kwargs"
            )
            self._start()
        except BaseException:
            _session.kill([self._actor] if self._actor is not None else [])
            self._release()
            raise
        self._thread = threading.Thread(target=self._run, name="windrow-evaluator", daemon=True)
        self._thread.start()

    # Calls of users

    def evaluate(self, weights: Mapping[str, torch.Tensor] | None, step: int) -> dict[str, Any]:
        self._surface()
        reply: Future[dict[str, Any]] = Future()
        self._submit(weights, step, reply, "queue")
        return reply.result()

    def trigger(self, weights: Mapping[str, torch.Tensor] | None, step: int) -> bool:
        self._surface()
        return self._submit(weights, step, None, self._busy_policy)

    def _submit(
        self,
        weights: Mapping[str, torch.Tensor] | None,
        step: int,
        reply: Future[dict[str, Any]] | None,
        when_busy: str,
    ) -> bool:
        self._check_here()
        with self._changed:
            if self._is_ending:
                raise self._over()
            if self._is_busy() and when_busy != "queue":
                if when_busy == "skip":
                    return False
                running = "" if self._running is None else f" of step {self._running.step}"
                raise RuntimeError(
                    f"an evaluation{running} is running: wait for its result, or choose another busy_policy"
                )
            sent = None if weights is None else self._send(weights)
            self._version += sent is not None
            self._queue.append(Job(sent, self._version, step, reply))
            self._changed.notify_all()
        return True

    def wait(self, seconds: float | None) -> dict[str, Any] | None:
        self._check_here()
        until = None if seconds is None else time.monotonic() + self._seconds("timeout", seconds)
        with self._changed:
            while not self._unread:
                if self._is_ending:
                    if self._is_told:
                        return None
                    self._is_told = True
                    raise self._over()
                jobs = [*self._queue, *filter(None, [self._running])]
                left = None if until is None else until - time.monotonic()
                if all(job.reply is not None for job in jobs) or (left is not None and left <= 0):
                    return None
                self._changed.wait(left)
            outcome = self._unread.popleft()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def pending(self) -> bool:
        self._check_here()
        with self._changed:
            return self._is_busy()

    def _is_busy(self) -> bool:
        return self._running is not None or bool(self._queue)

    def _surface(self) -> None:
        """Raises the oldest error that nobody has read."""
        if (error := self._take_error()) is not None:
            raise error

    def _take_error(self) -> BaseException | None:
        with self._changed:
            error = next(
                (outcome for outcome in self._unread if isinstance(outcome, BaseException)), None
            )
            if error is not None:
                self._unread.remove(error)
            return error

    def _seconds(self, name: str, seconds: float) -> float:
        if not seconds >= 0:
            raise ValueError(f"{name} must be a number of seconds, 0 or more, got {seconds}")
        return min(seconds, threading.TIMEOUT_MAX / 2)

    def _check_here(self) -> None:
        if not self.belongs_here():
            raise RuntimeError("the evaluator belongs to another process: make one here")

    def _over(self) -> RuntimeError:
        return RuntimeError("the evaluator was shut down; build a new one")

    # Its thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_ending)
                if self._is_ending:
                    return
                job = self._running = self._queue.popleft()
            outcome: dict[str, Any] | BaseException
            try:
                outcome = self._evaluated(job)
            except BaseException as error:
                outcome = error
            with self._changed:
                # A shutdown has answered it.
                is_wanted, self._running = self._running is job, None
                if is_wanted and job.reply is None:
                    self._unread.append(outcome)
                self._changed.notify_all()
            if not is_wanted or job.reply is None:
                continue
            if isinstance(outcome, BaseException):
                job.reply.set_exception(outcome)
            else:
                job.reply.set_result(outcome)

    def _evaluated(self, job: Job) -> dict[str, Any]:
        weights, before = job.weights, self._newest
        if weights is not None:
            self._newest = weights, job.version
        if self._actor is None:
            self._start()
            weights = self._newest[0]
        try:
            result, packed = self._answer("evaluate", weights, job.step)
        except ValueError:
            # The weights do not fit, and the old ones stay.
            self._newest = before
            raise
        result[f"{self._prefix}/policy_version"] = self._newest[1]
        if self._metrics is not None:
            figures = self._metrics(_session.unpack(packed))
            result |= {f"{self._prefix}/{name}": float(figure) for name, figure in figures.items()}
        if self._on_result is not None:
            try:
                self._on_result(result)
            except Exception as error:
                _show(error)
        return result

    def _start(self) -> None:
        """Starts an actor.

        Raises:
            RuntimeError: Ray did not start it in time.
        """
        self._check_ray()
        self._actor = _session.actor(
            self._ray,
            _evaluator_actor.EvaluatorActor,
            {"concurrency_groups": _evaluator_actor.THREADS, **self._options},
        )
        self._answer("begin", self._sent, secrets.randbits(63), patience=_session.PATIENCE)

    def _answer(self, method: str, *args: Any, patience: float | None = None) -> Any:
        """What a method of the actor returns."""
        until = None if patience is None else time.monotonic() + patience
        try:
            self._check_ray()
            waiting = self._waiting = [getattr(self._actor, method).remote(*args)]
            while not self._ray.wait(waiting, timeout=_LOOK)[0]:
                self._check_ray()
                if until is not None and time.monotonic() > until:
                    raise RuntimeError(
                        f"the evaluator's actor has not started within {patience:.0f} s: {_session.wants(self._ray, self._options)}"
                    )
            return _session.get(waiting[0])
        except self._ray.exceptions.RayError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            self._give_up()
            raise WorkerError(f"the evaluator's actor was lost: {' '.join(lines[:1])}") from error
        except BaseException:
            if method == "begin":
                self._give_up()
            raise

    def _give_up(self) -> None:
        """Ends the actor; the next evaluation starts another."""
        actor, self._actor = self._actor, None
        _session.kill([actor])

    def _check_ray(self) -> None:
        if self._is_ending:
            raise self._over()
        if not self._ray.is_initialized():
            raise RuntimeError("Ray was shut down, and the evaluator's actor with it")

    # Its end

    def shutdown(self, seconds: float | None = None) -> None:
        if not self.belongs_here():
            return
        if not self._ended(seconds):
            raise RuntimeError(
                "metrics_fn or on_result has not returned: the evaluator's thread ends when it does"
            )
        self._surface()

    def end(self, seconds: float | None = None) -> bool:
        if not self.belongs_here():
            return True
        ended = self._ended(seconds)
        while (error := self._take_error()) is not None:
            _show(error)
        return ended

    def finalize(self) -> None:
        with contextlib.suppress(Exception):
            self.end(1.0)

    def belongs_here(self) -> bool:
        return os.getpid() == self._pid

    def _ended(self, seconds: float | None) -> bool:
        """Ends actor and thread; returns whether the thread has ended within ``seconds``."""
        seconds = self._seconds("timeout", self._patience if seconds is None else seconds)
        until = time.monotonic() + seconds
        with self._changed:
            is_first, self._is_ending = not self._is_ending, True
            forgotten, self._running = [*self._queue, *filter(None, [self._running])], None
            self._queue.clear()
            self._changed.notify_all()
        for job in forgotten:
            if job.reply is not None:
                job.reply.set_exception(self._over())
        is_own = self._thread is threading.current_thread()
        try:
            actor = self._actor
            if is_first and actor is not None and self._ray.is_initialized():
                try:
                    _session.drain(
                        [actor.shutdown.remote(), *self._waiting], min(seconds, _session.FAREWELL)
                    )
                finally:
                    _session.kill([actor])
            if not is_own:
                # It looks every now and then.
                self._thread.join(max(until - time.monotonic(), 2 * _LOOK))
        finally:
            self._release()
        return is_own or not self._thread.is_alive()


class _Shown:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __del__(self) -> None:
        raise self.error


def _show(error: BaseException) -> None:
    """Passes an error to ``sys.unraisablehook``, which gets those of finalizers."""
    _Shown(error)
