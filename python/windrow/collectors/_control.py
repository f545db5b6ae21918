"""What users tell a collector, and ask it. The engine does the work."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from windrow import _fence
from windrow._arguments import instance_of, one_of, takes, warn_ignored
from windrow._failure import Failure
from windrow._lazy import tensordict, torch
from windrow._numbers import whole
from windrow._types import Weights
from windrow._warnings import RenamedWarning, warn
from windrow._windrow import PATIENCE, CollectorCore
from windrow.collectors import _env_states
from windrow.collectors._arguments import CollectorArguments
from windrow.collectors._ending import Ending
from windrow.collectors._interruptor import Interrupts
from windrow.collectors._profile import ProfileConfig
from windrow.collectors._progress import Progress
from windrow.collectors._updaters import RemoteModuleWeightUpdater, WeightUpdaterBase
from windrow.collectors._workers import Workers
from windrow.policies.weights import WeightSource, check_model, weights_by_id
from windrow.processes.pickling import dumps
from windrow.processes.proxy import remember

#: Numbers of authors of trajectories, which no two collectors of a program share.
AUTHORS = itertools.count(1)


class Control(Ending, Iterator["tensordict.TensorDictBase"]):
    """Starts, pauses and ends collection; weights, seeds, states, figures and profiles; errors of
    the background.
    """

    _arguments: CollectorArguments
    _core: CollectorCore
    _source: WeightSource
    _updater: WeightUpdaterBase | None
    _workers: Workers
    policy: Any
    _placement: str
    _profile: ProfileConfig | None = None
    #: The bar, if one was asked for.
    _progress: Progress | None = None
    #: The error that ended the thread of :meth:`start`.
    _failure: Failure | None = None
    _paused = False
    _ended = False
    #: A warning has said that simulators are not saved.
    _told_of_simulators = False
    #: By this number, a buffer that the engine does not write tells the collector's trajectories
    #: from those of others.
    _author: int

    # Start, pause and end

    def start(self) -> None:
        """Collects into the replay buffer in a thread, up to ``total_frames``.

        Collection does not wait for samples: without a limiter it collects as fast as it can, and
        may overwrite frames, or reach its end, before a learner has seen many of them.
        ``ReplayBuffer(limiter=...)`` with :class:`~windrow.data.RateLimiter` ties writes to
        samples. The collector warns once when a whole buffer was overwritten and nothing sampled.

        The collector goes on as long as the program refers to it or to its replay buffer. So a cell
        of a notebook that makes a collector for an existing buffer, and is run twice, leaves two
        collectors that collect. End a collector by :meth:`shutdown`, or give it ``total_frames``.
        When nothing refers to the collector or its buffer any more, it ends as the garbage
        collector runs. A collector that writes to a sink, to an actor of Ray or to an object of
        another library always goes on.

        Meanwhile you can update weights, seed and reset environments, read statistics and
        :meth:`pause`, but not ask for batches.

        An error ends the thread. The next call on the collector, or on a replay buffer of windrow,
        raises the error, once; a sample that waits for frames raises it at once. Frames that were
        written before stay in the buffer, which you can go on using. :meth:`shutdown` raises an
        error that no other call has raised.

        Raises:
            RuntimeError: there is no replay buffer, or the collector was started before or was shut
                down.
        """
        self._checked.start()
        accompany = getattr(self.replay_buffer, "_accompany", None)
        if accompany is not None:
            accompany(self)

    def _keep(self) -> bool:
        """Makes the replay buffer keep the collector alive. Returns False for a buffer that cannot,
        as those of other libraries.
        """
        collecting = getattr(self.replay_buffer, "_collecting", None)
        if not isinstance(collecting, set):
            return False
        collecting.add(self)
        return True

    def _let_go(self) -> None:
        collecting = getattr(self.replay_buffer, "_collecting", None)
        if isinstance(collecting, set):
            collecting.discard(self)

    def is_running(self) -> bool:
        """Whether a thread collects into the replay buffer. The next call raises an error that has
        ended it; this one does not.
        """
        return self._core.is_running()

    def async_shutdown(
        self, timeout: float | None = None, close_env: bool = True, raise_on_error: bool = True
    ) -> None:
        """The same as :meth:`shutdown`."""
        self.shutdown(timeout, close_env, raise_on_error)

    def shutdown(
        self, timeout: float | None = None, close_env: bool = True, raise_on_error: bool = True
    ) -> None:
        """Ends collection and waits for the workers. Batches stay valid. After :meth:`start`, the
        present batch is cut short at its next step, and written.

        While ``KeyboardInterrupt`` is being handled, or leaves a ``with`` statement, the shutdown
        waits for a fraction of a second only. It leaves a step that does not return behind with its
        thread, as a warning or a note of the exception says.

        The shutdown closes environments that were made for the collector, but no environment object
        that was given to it, which can be used again. Called by a function of the collector, such
        as ``post_collect_hook``, it does not wait, and the present batch is the last one.

        Args:
            timeout: seconds to wait for the thread of :meth:`start`; None waits as long as it
                takes.
            close_env: environments are closed, or given back, also where this is False; a warning
                says so.
            raise_on_error: raise an error of the background that no call has raised; otherwise no
                call raises it any more, on the replay buffer neither.

        Raises:
            TimeoutError: the thread of :meth:`start` did not end in time.
        """
        if not self._core.belongs_here():
            # Only the process that made a collector ends it.
            return
        warn_ignored(
            "close_env",
            close_env,
            True,
            "environments that were made for the collector end with it",
        )
        if timeout is None and self._leave_if_interrupted():
            return
        try:
            self._core.check_outside()
            if not self._ended:
                remember(self._workers.stateful)
            self._ended = True
            self._core.shutdown(timeout)
            if raise_on_error:
                self._raise_background()
        except Exception:
            if raise_on_error:
                raise
        finally:
            if self._progress is not None:
                self._progress.close()
            if not raise_on_error and self._failure is not None:
                self._failure.silence()

    def _leave(self, seconds: float) -> bool:
        if not self._core.belongs_here():
            return True
        self._ended = True
        ended = self._core.leave(seconds)
        if self._progress is not None:
            self._progress.close()
        error = None if self._failure is None else self._failure.silence()
        if error is not None:
            # The message shows its name only.
            thread = threading.Thread(name="windrow-collector")
            told = (type(error), error, error.__traceback__, thread)
            threading.excepthook(threading.ExceptHookArgs(told))
        return ended

    @contextlib.contextmanager
    def pause(self) -> Iterator[Self]:
        """In this context, workers start nothing, after they have finished their present share, and
        batches cannot be asked for. After :meth:`start`, the present batch is written before the
        context begins, and nothing is written in it.

        Raises:
            RuntimeError: the collector is paused already; the replay buffer keeps a write waiting
                for long; a function that the collector calls asks for the pause, which would wait
                for that function.
        """
        try:
            self._ready.pause(PATIENCE)
        finally:
            # The thread of `start` may have failed with its last batch.
            self._raise_background()
        self._paused = True
        try:
            yield self
        finally:
            self._paused = False
            self._core.resume()

    # Weights

    def update_policy_weights_(
        self,
        policy_or_weights: Weights | Mapping[int, Weights] | None = None,
        *,
        weights: Weights | Mapping[int, Weights] | None = None,
        policy: torch.nn.Module | None = None,
        worker_ids: object = None,
        model_id: str | None = None,
        weights_dict: Mapping[str, Weights] | None = None,
        policy_weights: Weights | Mapping[int, Weights] | None = None,
    ) -> None:
        """Publishes weights as a new version, which each worker uses from its next share of a batch
        on. Does nothing where no weights are given and the policy has none.

        Args:
            policy_or_weights: a module, a TensorDict of parameters, a ``state_dict``, or a
                dictionary from workers to these; by default the module that the collector was built
                with.
            weights: the same, by name.
            policy: a module.
            worker_ids: publish to these workers only: numbers, or one.
            model_id: ``"policy"``, or the path of a module from the collector, such as
                ``"env.transform[0]"`` or ``"replay_buffer.transform[0].module"``, which loads them
                by ``load_state_dict``.
            weights_dict: the weights of each model by its id.
            policy_weights: the old name of ``weights``.

        Raises:
            ValueError: weights were given twice, or belong to another policy; there is no such
                worker.
            KeyError: there is no such model.
            RuntimeError: workers have weights of their own and none are given, as with
                ``policy_factory`` alone; or more than the weights of the module, which windrow has
                read, was changed.
        """
        self._check_answers()
        given = _single_source(policy_or_weights, weights, policy, policy_weights)
        if weights_dict is not None and (given is not None or model_id is not None):
            raise ValueError("weights_dict names all weights: leave model_id and other weights out")
        if model_id is not None and "." in model_id:
            _fence.methods.load_models(self, {model_id: given}, worker_ids)
            return
        if weights_dict is not None and any("." in model for model in weights_dict):
            _fence.methods.load_models(
                self,
                {model: given for model, given in weights_dict.items() if "." in model},
                worker_ids,
            )
            weights_dict = {
                model: given for model, given in weights_dict.items() if "." not in model
            }
            if not weights_dict:
                return
        if model_id is not None:
            check_model(model_id)
        if weights_dict is not None:
            given = weights_by_id(weights_dict)
        if self._updater is None:
            self._source.publish(given, worker_ids)
        elif model_id is not None or weights_dict is not None:
            raise ValueError(
                "a weight_updater knows one model: leave model_id and weights_dict out, got one of them"
            )
        else:
            self._updater.push_weights(given, worker_ids)

    @property
    def policy_version(self) -> int:
        """Version of the weights published last; 0 before the first were. Weights of a module that
        torch calls itself, not a copy, get a new version with the batch after they have changed.
        """
        return int(self._checked.stats()["policy_version"])

    @property
    def weight_updater(self) -> WeightUpdaterBase | None:
        """The updater that :meth:`update_policy_weights_` goes through; None without one. By
        default, a ``RemotePolicy`` has one that pushes to its server.
        """
        return self._updater

    @weight_updater.setter
    def weight_updater(
        self, updater: WeightUpdaterBase | Callable[[], WeightUpdaterBase] | None
    ) -> None:
        if callable(updater) and not isinstance(updater, WeightUpdaterBase):
            updater = updater()
        if updater is None and hasattr(self.policy, "_remote_options"):
            updater = RemoteModuleWeightUpdater(self.policy)
        if updater is not None:
            instance_of(WeightUpdaterBase)("weight_updater", updater).register_collector(self)
        self._updater = updater

    # Seeds and states

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seeds environment ``i`` with ``seed + i`` (all of them with ``seed``, where
        ``static_seed``), and begins new episodes. Returns the seed of the last environment.

        Raises:
            TypeError: the seed is not a whole number.
            ValueError: it is negative.
            RuntimeError: the collector was shut down.
        """
        return self._lasting.set_seed(whole("seed", seed, 0), static_seed)

    def reset(self, index: object = None, *, reset_idx: object = None) -> None:
        """Begins new episodes in all environments.

        Args:
            index: a flag for each worker or environment, all of them True.
            reset_idx: the same, by its name in TorchRL's collectors with several workers.

        Raises:
            RuntimeError: a flag is False, or the collector was shut down.
        """
        index = reset_idx if index is None else index
        if index is not None and not (isinstance(index, (list, tuple)) and all(index)):
            raise RuntimeError(
                "reset begins new episodes in all environments: index must be left out"
            )
        self._lasting.reset()

    def state_dict(self, *, pickle: bool = False) -> dict[str, Any]:
        """What a later run needs to go on: ``frames``, ``iter``, ``seed``, ``policy_version``,
        ``traj_pool``, ``policy_state_dict``, ``env_state_dict`` and ``simulators``.
        ``env_state_dict`` holds what transforms of environments have gathered, under
        ``"worker<i>"`` where there are several workers. Workers finish their present share before,
        and :meth:`start` its present batch.

        ``simulators`` is there where the state of all environments can be saved, and of the policy:
        then a run goes on bit for bit. That holds for windrow's own environments and transforms;
        for Gymnasium's with methods ``get_state`` and ``set_state``, or ``state_dict`` and
        ``load_state_dict``, whose generator is saved too; and for others of Gymnasium's with
        ``pickle``. Otherwise a warning says once why, and a run that is resumed begins new
        episodes.

        After a worker process has ended, its environments' states are those at the shutdown, if it
        answered then; otherwise those that were asked for last.

        Args:
            pickle: pickle environments of Gymnasium that have no such methods, with their
                generators.
        """
        found, reason = self._checked.state_dict(pickle)
        if reason is not None and not self._told_of_simulators:
            self._told_of_simulators = True
            warn(
                f"simulators are not saved, so that a run that is resumed begins new episodes: {reason}"
            )
        state = found.to_dict()
        state["env_state_dict"] = _env_states.states_of(self._workers.stateful)
        self._source.add_to(state)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], **_: object) -> None:
        """Goes on from a saved state: bit for bit from one with ``simulators``, otherwise with new
        episodes in every environment. An error changes nothing.

        States of Gymnasium's environments are pickled: load such a state only where you trust who
        has written it.

        Raises:
            TypeError: ``state_dict`` is no mapping.
            ValueError: the state belongs to another kind of collector, another policy or other
                environments.
        """
        self._raise_background()
        if not isinstance(state_dict, Mapping):
            raise TypeError(
                f"expected what state_dict() has returned, got {type(state_dict).__name__}"
            )
        state = dict(state_dict)
        states = state.get("env_state_dict", {})
        state["env_state_dict"] = {}
        with self._source.restored(state):
            before = _env_states.states_of(self._workers.stateful)
            try:
                _env_states.load(self._workers.stateful, states)
                self._core.load_state_dict(state)
            except BaseException:
                _env_states.load(self._workers.stateful, before)
                raise
        # Ids of trajectories stand for others than before.
        self._author = next(AUTHORS)

    # Environments

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The result of the method ``name`` of each environment, or its attribute ``name``, as
        Gymnasium's vectors return it: in the order of the environments' numbers, wherever these
        are. A process answers between two shares of its worker.

        An environment that holds others, such as a ``ParallelEnv``, is one of them and returns a
        list.

        Raises:
            AttributeError: an environment has no such method or attribute, as native ones.
            TypeError: arguments cannot be sent to a process.
        """
        self._raise_background()
        return self._workers.each.call(name, *args, **kwargs)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """The attribute ``name`` of each environment, see :meth:`call`."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Sets the attribute ``name`` of each environment: to its entry of ``values`` if that is a
        list or a tuple, otherwise to ``values`` itself. Through Gymnasium's wrappers, the innermost
        environment that has it is set. An environment that takes the place of a lost one begins as
        it was made.

        Raises:
            ValueError: the number of values is not that of the environments.
            TypeError: a value cannot be sent to a process.
        """
        self._raise_background()
        self._workers.each.set_attr(name, values)

    # Figures

    def stats(self, workers: str = "aggregate") -> dict[str, Any]:
        """Figures since the start, by name.

        Args:
            workers: ``"aggregate"``: figures of the collector. ``"per_worker"``: of each worker, as
                ``"worker_<i>/<name>"``: ``frames`` it has collected, delivered or not; ``parts``,
                the shares of batches that it has filled; ``restarts`` after failures; whether it is
                ``alive``; the ``pid`` of its process, where it has one; seconds it has ``waited``;
                the ``policy_version`` that acted last, and its ``policy_lag`` behind the newest.
                ``"both"``: all of them.

        Raises:
            ValueError: ``workers`` is none of these.
        """
        one_of("aggregate", "per_worker", "both")("workers", workers)
        self._raise_background()
        figures: dict[str, Any] = {}
        if workers != "per_worker":
            figures |= {**self._core.stats(), "policy_backend": self.policy_backend}
        if workers != "aggregate":
            for worker, its in enumerate(self._core.worker_stats()):
                figures |= {f"worker_{worker}/{name}": figure for name, figure in its.items()}
        return figures

    def losses(self) -> list[str]:
        """Errors of workers that were lost without ending the collector, since the last call."""
        return [*self._warned_losses(), *self._checked.take_losses()]

    @functools.cached_property
    def _unasked(self) -> collections.deque[str]:
        """Errors of lost workers that a warning has named, and no call of :meth:`losses` has
        returned.
        """
        return collections.deque()

    def _warned_losses(self) -> list[str]:
        """Takes them, while another thread may add some."""
        return [self._unasked.popleft() for _ in range(len(self._unasked))]

    @property
    def policy_backend(self) -> str:
        """``"native"``: Rust evaluates the policy; ``"torch"``: Python does."""
        return "torch" if self._source.lost is not None else self._core.policy_backend()

    @property
    def frames_per_batch(self) -> int:
        """Frames in a batch."""
        return int(self._core.stats()["requested_frames_per_batch"])

    requested_frames_per_batch = frames_per_batch

    @property
    def total_frames(self) -> int | float:
        """Frames in all; infinite if the collector is endless."""
        total = self._core.stats()["total_frames"]
        return float("inf") if total is None else int(total)

    @property
    def replay_buffer(self) -> Any:
        """The buffer that batches are written to; None if they are delivered."""
        return self._arguments.replay_buffer

    @property
    def interruptor(self) -> Interrupts | None:
        """The interruptor that can cut batches short; None without one."""
        return self._arguments.interruptor

    @property
    def worker_idx(self) -> int | None:
        """The number given to this collector; None without one."""
        return self._arguments.worker_idx

    # Profile

    @takes(ProfileConfig)
    def enable_profile(self, config: ProfileConfig) -> None:
        """Records where workers spend their time, and writes a trace for each, which Perfetto
        opens. Each rollout is a worker's share of a batch.

        An error of PyTorch's profiler, such as one of ``on_trace_ready``, is raised by the next
        call that asks for a batch, or by :meth:`disable_profile` or :meth:`shutdown`. In a thread,
        that profiler ends with its last rollout or with the thread: to :meth:`disable_profile` it
        before is such an error.

        Raises:
            RuntimeError: the first batch was collected already.
            ValueError: nothing would be recorded, or there is no such worker; PyTorch's profiler
                was asked for in several threads.
            TypeError: an option is unknown, or cannot be sent to a worker process.
        """
        template, beside = config.template(), config.profiler()
        away = self._placement == "processes"
        if beside is not None and not away and len(config.workers) > 1:
            raise ValueError(
                f"PyTorch's profiler records one worker in each process, got workers={list(config.workers)}: choose one of them, or "
                'build the collector with placement="processes"'
            )
        sent = dumps(beside) if beside is not None and away else None
        profiler = None if beside is None else (beside, sent)
        self._checked.enable_profile(
            config.workers, config.num_rollouts, config.warmup_rollouts, template, profiler
        )
        Path(template).parent.mkdir(parents=True, exist_ok=True)
        self._profile = config

    def disable_profile(self) -> None:
        """Ends the recording, and writes the traces."""
        self._checked.disable_profile()

    @property
    def profile_config(self) -> ProfileConfig | None:
        """The arguments of :meth:`enable_profile`; None before it was called."""
        return self._profile

    def profile_summary(self) -> dict[int, dict[str, float]]:
        """Seconds that each recorded worker has spent in each phase."""
        return self._checked.profile_summary()

    # Errors

    def _end_with(self, error: BaseException) -> None:
        try:
            self.shutdown()
        except Exception as own:
            if own is not error:
                error.add_note(
                    f"{type(self).__name__} had an error of its own: {type(own).__name__}: {own}"
                )

    def _raise_background(self) -> None:
        """Raises an error of the background that no call has raised."""
        if self._failure is not None:
            self._failure.tell()

    def _check_ready(self) -> None:
        """Raises an error during a pause, and an error of the background."""
        if self._paused:
            raise RuntimeError("the collector is paused: ask again after the pause")
        self._raise_background()

    def _check_answers(self) -> None:
        """As :meth:`_check_ready`, for calls that need not wait for the end of a pause."""
        self._check_ready()

    @property
    def _checked(self) -> CollectorCore:
        """The engine's collector, once errors of the background were raised."""
        self._raise_background()
        return self._core

    @property
    def _ready(self) -> CollectorCore:
        """As :attr:`_checked`, for calls that have to wait for the end of a pause."""
        self._check_ready()
        return self._core

    @property
    def _lasting(self) -> CollectorCore:
        """As :attr:`_ready`, for orders to workers, which end with a shutdown."""
        self._check_ready()
        if self._ended:
            raise RuntimeError("the collector was shut down; build a new one")
        return self._core

    def _fail(self, error: BaseException) -> None:
        """Keeps the error that has ended the thread of :meth:`start` for the next call on the
        collector or its buffer.
        """
        if self._progress is not None:
            self._progress.close()
        self._failure = Failure(error, self._core)
        failures = getattr(self.replay_buffer, "_failures", None)
        if failures is not None:
            failures.append(self._failure)


def _single_source(
    positional: object, weights: object, policy: object, policy_weights: object
) -> Any:
    """The weights that were given, at most once; None if none were."""
    given = [
        source for source in (positional, weights, policy, policy_weights) if source is not None
    ]
    if len(given) > 1:
        raise ValueError(f"expected weights from one source, got {len(given)}")
    if policy_weights is not None:
        warn("policy_weights is called weights now", RenamedWarning)
    return given[0] if given else None
