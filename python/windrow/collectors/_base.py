from __future__ import annotations

import atexit
import contextlib
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from windrow import _policy, _weights
from windrow._exploration import name_of
from windrow._windrow import CollectorCore
from windrow.collectors import _arguments
from windrow.collectors._background import Background
from windrow.collectors._interruptor import Interruptor
from windrow.collectors._profile import ProfileConfig
from windrow.collectors._updaters import WeightUpdaterBase

_ALIVE: weakref.WeakSet[BaseCollector] = weakref.WeakSet()


class BaseCollector:
    """Runs a policy in environments, and is an iterator over batches of what happened.

    Each batch is a ``tensordict.TensorDict`` over memory of the collector, which is used again once none of its tensors is
    left: keep what you like, for as long as you like.

    Use one of the subclasses, which differ in where environments run and in how their frames make batches.

    Args:
        create_env_fn: an environment, an id such as ``"CartPole-v1"``, or a function that returns one; a list of these where
            there are several workers.
        policy: who acts. None acts at random; otherwise a module of tensordict, or a callable whose parameters are called
            as observations are, or ``tensordict`` or ``td``.
        policy_factory: a function without arguments that makes the policy, or one for each worker. ``policy`` is then only
            where new weights come from.
        frames_per_batch: frames in each batch, over all workers and environments; a list says how many each worker has. Where
            environments that step together cannot share it evenly, it is rounded up, with a warning.
        total_frames: frames in all, a multiple of ``frames_per_batch``; endless without it, and where it is negative.
        allow_partial_batch: let the last batch be shorter, so that ``total_frames`` need not be a multiple.
        num_workers: how often ``create_env_fn`` is used, where it is no list.
        num_envs: environments of each worker, which step together and get a dimension of their own in batches.
        create_env_kwargs: arguments of ``create_env_fn``, for all workers or a list of one for each.
        seed: of everything that is random; see :meth:`set_seed`. Drawn where it is not given.
        device: the default of the three devices that follow.
        storing_device: where batches go. On the CPU they are views; they are copied to any other device.
        policy_device: where a policy that torch evaluates is evaluated.
        env_device: environments run on the CPU; here for the sake of code that names a device.
        max_frames_per_traj: truncate episodes after so many steps, which ``step_count`` then counts.
        init_random_frames: frames at the start for which actions are random, rounded up to whole batches.
        reset_at_each_iter: begin each batch with new episodes.
        postproc: what is done to each batch before it is delivered.
        split_trajs: deliver a row for every piece of a trajectory, padded, with ``("collector", "mask")``.
        track_traj_ids: let frames carry ``("collector", "traj_ids")``.
        exploration_type: whether actions are sampled (``RANDOM``) or the policy's best guess.
        return_same_td: deliver all batches in the same memory; the one before has to be dropped by then.
        set_truncated: mark the last step of each batch as truncated.
        interruptor: an :class:`Interruptor` that can cut batches short.
        replay_buffer: something with a method ``extend``: batches go there, and iteration yields None for each.
        trust_policy: take the policy for one that maps a TensorDict to a TensorDict, whatever its signature.
        policy_backend: ``"native"`` evaluates the policy in Rust, ``"torch"`` calls it; ``"auto"`` chooses the former where
            the policy is a network that windrow knows.
        compile_policy: compile the policy with ``torch.compile``: True, or its arguments.
        weight_updater: what :meth:`update_policy_weights_` goes through, or a function that makes it.
        track_policy_version: let frames carry ``policy_version``, the version of the weights that acted.
        trajs_per_batch: deliver so many whole trajectories in each batch.
        trajs_per_write: whole trajectories of one write to a buffer of ``windrow.data``, at most.
        traj_format: ``"padded"`` or ``"cat"``: how whole trajectories lie in a batch.
        cat_results: ``0``, ``-1`` or ``"stack"``: how the shares of workers are put together.
        preemptive_threshold: cut the shares of slow workers short once this fraction of them is ready.
        auto_register_policy_transforms: let environments observe ``is_init`` if the policy reads it and they do not, and begin
            a recurrent policy's state as its modules' ``make_tensordict_primer`` say. Without it the policy has to make do
            with what environments observe; its state is carried from step to step all the same.
        update_at_each_batch: call :meth:`update_policy_weights_` before each batch.
        pre_collect_hook: called before each batch is collected.
        post_collect_hook: called with each batch as it is delivered.
        on_loss: ``"raise"``, ``"continue"`` without the worker, or how often a worker whose environment fails is replaced.
        placement: ``"inline"`` or ``"threads"``, in place of what the class says.

    Raises:
        TypeError: an argument is missing, unknown or of the wrong type.
        ValueError: an argument makes no sense; the message names what would.
    """

    #: Whether each batch waits for all workers.
    _sync: ClassVar[bool] = True
    #: Whether workers run in threads of their own.
    _threads: ClassVar[bool] = False
    #: Whether there is one worker.
    _single: ClassVar[bool] = True

    def __init__(
        self,
        create_env_fn: Any,
        policy: Any = None,
        *,
        policy_factory: Any = None,
        frames_per_batch: Any = None,
        total_frames: int | None = -1,
        allow_partial_batch: bool = False,
        num_workers: int | None = None,
        num_envs: int | None = None,
        create_env_kwargs: Any = None,
        seed: int | None = None,
        device: Any = None,
        storing_device: Any = None,
        policy_device: Any = None,
        env_device: Any = None,
        max_frames_per_traj: int | None = None,
        init_random_frames: int | None = None,
        reset_at_each_iter: bool = False,
        postproc: Callable[[Any], Any] | None = None,
        split_trajs: bool | None = None,
        track_traj_ids: bool = True,
        exploration_type: Any = None,
        exploration_mode: Any = None,
        return_same_td: bool = False,
        reset_when_done: bool = True,
        set_truncated: bool = False,
        interruptor: Interruptor | None = None,
        replay_buffer: Any = None,
        trust_policy: bool | None = None,
        policy_backend: str = "auto",
        compile_policy: Any = None,
        cudagraph_policy: Any = None,
        weight_updater: Any = None,
        track_policy_version: bool = False,
        trajs_per_batch: int | None = None,
        trajs_per_write: int | None = None,
        traj_format: str | None = None,
        cat_results: Any = None,
        preemptive_threshold: float | None = None,
        update_at_each_batch: bool = False,
        init_fn: Callable[[], None] | None = None,
        auto_register_policy_transforms: bool | None = True,
        pre_collect_hook: Callable[[], None] | None = None,
        post_collect_hook: Callable[[Any], None] | None = None,
        compact_obs: bool = False,
        worker_idx: int | None = None,
        on_loss: str | int = "raise",
        placement: str | None = None,
        **others: Any,
    ) -> None:
        name = type(self).__name__
        _arguments.unknown(name, others)
        if not reset_when_done:
            raise ValueError("reset_when_done=False: an ended episode is always followed by a new one")
        if replay_buffer is not None and return_same_td:
            raise TypeError("return_same_td makes no sense with a replay_buffer, which keeps its own copy")
        if placement not in (None, "inline", "threads"):
            raise ValueError(f'placement must be "inline" or "threads", got {placement!r}')
        if traj_format is not None and trajs_per_batch is None:
            raise ValueError("traj_format makes no sense without trajs_per_batch")
        if policy is not None and policy_factory is not None and not hasattr(policy, "state_dict"):
            raise TypeError("policy and policy_factory: expected one of them, or a module as source of weights")
        threads = self._threads if placement is None else placement == "threads"
        envs, workers = _arguments.environments(create_env_fn, num_workers, single=self._single, name=name)
        count = workers or len(envs)
        batch, shares = _arguments.shares(frames_per_batch)
        self._storing_device = _arguments.device_of("storing_device", storing_device, device)
        self._policy_device = _arguments.device_of("policy_device", policy_device, device)
        _arguments.device_of("env_device", env_device)
        self._annotation = storing_device if storing_device is not None else device
        self._exploration = name_of(exploration_type, exploration_mode)
        if init_fn is not None:
            init_fn()
        self._policy = _policy.choose(
            _policy.compiled(policy, compile_policy, cudagraph_policy, self._policy_device),
            _arguments.factories(policy_factory, count),
            backend=policy_backend,
            exploration_type=self._exploration,
            threads=threads,
            device=self._policy_device,
            trust=bool(trust_policy),
            register=auto_register_policy_transforms is not False,
            env=envs[0],
        )
        self.policy = policy
        self._postproc = postproc
        self.pre_collect_hook = pre_collect_hook
        self.post_collect_hook = post_collect_hook
        self._compact_obs = compact_obs
        self._replay_buffer = replay_buffer
        # Batches that nobody in Python looks at go from the engine to the buffer.
        plain = self._storing_device is None and not compact_obs and postproc is None
        self._fills_buffer = plain and bool(getattr(replay_buffer, "_takes_frames_as_they_are", False))
        self._update_at_each_batch = update_at_each_batch
        self._worker_idx = worker_idx
        self._profile: ProfileConfig | None = None
        self._background: Background | None = None
        self._paused = False
        self._lock = threading.RLock()
        self._placement = "threads" if threads else "inline"
        self._core = CollectorCore(
            {
                "sync": self._sync,
                "threads": threads,
                "envs": envs,
                "env_kwargs": _arguments.environment_arguments(create_env_kwargs, count),
                "num_workers": workers,
                "num_envs": num_envs,
                "policy": self._policy.core,
                "frames_per_batch": batch,
                "frames_per_worker": shares,
                "total_frames": _arguments.frames("total_frames", total_frames),
                "allow_partial_batch": allow_partial_batch,
                "max_frames_per_traj": _arguments.positive("max_frames_per_traj", max_frames_per_traj),
                "init_random_frames": _arguments.frames("init_random_frames", init_random_frames) or 0,
                "exploration_type": self._exploration,
                "seed": seed,
                "reset_at_each_iter": reset_at_each_iter,
                "set_truncated": set_truncated,
                "track_traj_ids": track_traj_ids,
                "track_policy_version": bool(track_policy_version),
                "return_same_td": return_same_td,
                "cat_results": _arguments.concatenation(cat_results, sync=self._sync),
                "preemptive_threshold": preemptive_threshold,
                "trajs_per_batch": trajs_per_batch,
                "trajs_per_write": trajs_per_write if self._fills_buffer else None,
                "replay_buffer": replay_buffer._core if self._fills_buffer else None,
                # Padding is nothing to be kept.
                "traj_format": traj_format or ("padded" if replay_buffer is None else "cat"),
                "split_trajs": bool(split_trajs),
                "on_loss": on_loss,
            }
        )
        if batch is not None and batch < self.frames_per_batch:
            warnings.warn(
                f"frames_per_batch={batch} cannot be split over environments that step together: batches have "
                f"{self.frames_per_batch} frames, and the last one as many fewer as total_frames asks for",
                stacklevel=2,
            )
        # The collector acts with the user's module as it is, be it called or read.
        self._follows = self._policy.shared
        self._calls_source = self._follows and self.policy_backend == "torch"
        self._slots: list[tuple[dict[str, Any], str, Any]] | None = None
        if self._follows and not self._calls_source:
            self._watch_source()
        self._interruptor = interruptor
        if interruptor is not None:
            interruptor.register(self._core)
        self._updater = weight_updater() if isinstance(weight_updater, type) else weight_updater
        if isinstance(self._updater, WeightUpdaterBase):
            self._updater.register_collector(self)
        _ALIVE.add(self)

    # Iteration

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._surface()
        with self._lock:
            with self._ended_by_errors():
                self._prepare()
            # The engine knows which of its errors are its end.
            if self._fills_buffer:
                with self._acting():
                    more = self._core.advance()
                if more:
                    return None
                raise StopIteration
            with self._acting():
                batch = self._core.next()
            if batch is None:
                raise StopIteration
            with self._ended_by_errors():
                return self._deliver(batch)

    @contextlib.contextmanager
    def _ended_by_errors(self) -> Iterator[None]:
        """An error of the user's own functions ends the collector."""
        try:
            yield
        except Exception:
            self.shutdown(raise_on_error=False)
            raise

    def _acting(self) -> contextlib.AbstractContextManager[None]:
        """What the policy needs around it, where it is called in this thread."""
        if self._placement == "inline" and self.policy_backend == "torch":
            return _policy.acting(self._exploration)
        return contextlib.nullcontext()

    def _prepare(self) -> None:
        if self.pre_collect_hook is not None and not self._core.stats()["completed"]:
            self.pre_collect_hook()
        if self._update_at_each_batch:
            self.update_policy_weights_()
        else:
            self._follow_policy()

    def _deliver(self, batch: Any) -> Any:
        if self._storing_device is not None:
            batch = batch.to(self._storing_device)
        if self._compact_obs:
            batch = _without_next_observations(batch)
        if self._postproc is not None:
            batch = _without_private(self._postproc(batch))
        if self._replay_buffer is not None:
            self._replay_buffer.extend(batch)
            batch = None
        elif self.post_collect_hook is not None:
            self.post_collect_hook(batch)
        return batch

    def _follow_policy(self) -> None:
        """Takes up weights that changed since the last batch, for a policy that was read out of the user's module: who
        collects and learns in turn need not publish them."""
        if self._slots is None:
            return
        if not all(owner.get(name) is tensor for owner, name, tensor in self._slots):
            self._watch_source()
        self._core.follow()

    def _watch_source(self) -> None:
        self._slots = _weights.slots_of(self._policy.source)
        self._core.set_source(_weights.tensors_of(self._policy.source))

    def iterator(self) -> Iterator[Any]:
        """The batches, as iterating over the collector gives them."""
        return iter(self)

    def next(self) -> Any:
        """The next batch, or None after the last."""
        return next(self, None)

    def rollout(self) -> Any:
        """One batch as it was collected, without post-processing and outside of the count of frames."""
        self._surface()
        with self._lock:
            self._follow_policy()
            with self._acting():
                return self._core.rollout()

    def __len__(self) -> int:
        length = self._core.len()
        if length is None:
            raise TypeError(f"an endless {type(self).__name__} has no length")
        return length

    # Weights

    def update_policy_weights_(
        self,
        policy_or_weights: Any = None,
        /,
        *,
        weights: Any = None,
        policy: Any = None,
        worker_ids: Any = None,
        model_id: str | None = None,
        weights_dict: Mapping[str, Any] | None = None,
        policy_weights: Any = None,
    ) -> None:
        """Publishes new weights, which each worker takes up with its next share of a batch.

        Args:
            policy_or_weights: a module, a TensorDict of parameters, a ``state_dict``, or a dictionary from workers to these;
                the module that the collector was built with where there is nothing.
            weights: the same, by name.
            policy: a module.
            worker_ids: the only workers that are to take these weights: numbers, or one.
            model_id: ``"policy"``, the only model there is.
            weights_dict: the weights of each model by its id.
            policy_weights: what ``weights`` was called once.

        Raises:
            ValueError: weights were given twice, or are another policy's.
            KeyError: there is no such model.
            RuntimeError: there are no weights to be published.
        """
        self._surface()
        given = _single_source(policy_or_weights, weights, policy, policy_weights, model_id, weights_dict)
        if self._updater is not None:
            if model_id is not None or weights_dict is not None:
                raise ValueError("a weight_updater knows one model: model_id and weights_dict make no sense with it")
            self._updater.push_weights(given, worker_ids)
            return
        self._publish(given, worker_ids)

    def _publish(self, given: Any, worker_ids: Any = None) -> None:
        if isinstance(given, dict) and given and all(isinstance(worker, int) for worker in given):
            for worker, weights in given.items():
                self._core.publish(_weights.weights_of(weights), worker)
            return
        if given is None:
            given = self._policy.source
        if given is None:
            raise RuntimeError("no weights were given, and the collector has no module to take them from")
        weights = _weights.weights_of(given)
        if self._follows:
            _weights.copy(_weights.tensors_of(self._policy.source), weights)
        if self._slots is not None:
            self._follow_policy()
            return
        if self._calls_source:
            weights = {}
        workers = [None] if worker_ids is None else [worker_ids] if isinstance(worker_ids, int) else worker_ids
        for worker in workers:
            self._core.publish(weights, worker)

    @property
    def policy_version(self) -> int:
        """Version of the weights that were published last; 0 are those that the policy came with."""
        return int(self._core.stats()["policy_version"])

    # Control

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seeds environment ``i`` with ``seed + i`` (all of them with ``seed``, where ``static_seed``), and begins new
        episodes. Returns the seed of the last environment.

        The frames that follow are those that would follow this seed at any other time, with the same weights, except for
        their trajectory ids. A policy that torch evaluates draws from torch's own generator, which is left alone: call
        ``torch.manual_seed`` too, and its actions repeat where one thread draws them.
        """
        self._surface()
        return self._core.set_seed(int(seed), static_seed)

    def reset(self, index: Any = None) -> None:
        """Begins new episodes in all environments.

        Raises:
            RuntimeError: only some of them are to be reset.
        """
        if index is not None and not (isinstance(index, (list, tuple)) and all(index)):
            raise RuntimeError("reset begins new episodes in all environments: index must be left out")
        self._surface()
        self._core.reset()

    @contextlib.contextmanager
    def pause(self) -> Iterator[Self]:
        """Workers finish what they are at and start nothing in this context, where no batch can be asked for. After
        :meth:`start`, the batch that is under way is written before, and nothing is written in this context.

        Raises:
            RuntimeError: it is paused already, or a hook of the background asks, which would wait for itself.
        """
        self._surface()
        background = self._background
        if background is not None and background.is_this_thread():
            raise RuntimeError("the thread that collects in the background cannot pause the collector")
        try:
            if background is not None:
                background.hold()
            self._core.pause()
            self._paused = True
            yield self
        finally:
            if self._paused:
                self._paused = False
                self._core.resume()
            if background is not None:
                background.release()

    def state_dict(self) -> dict[str, Any]:
        """What it takes to go on later: ``frames``, ``iter``, ``seed``, ``policy_version``, ``traj_pool`` and
        ``policy_state_dict``. Simulators are not saved."""
        state = self._core.state_dict().to_dict()
        if self._calls_source:
            source = _weights.tensors_of(self._policy.source)
            state["policy_state_dict"] = {name: value.detach().clone() for name, value in source.items()}
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], **_: Any) -> None:
        """Goes on from a saved state, with new episodes in every environment.

        Raises:
            ValueError: it is the state of another kind of collector, or of another policy.
        """
        state = dict(state_dict)
        if self._follows:
            _weights.copy(_weights.tensors_of(self._policy.source), state.get("policy_state_dict", {}))
        if self._calls_source:
            state["policy_state_dict"] = {}
        self._core.load_state_dict(state)

    def stats(self, workers: str = "aggregate") -> dict[str, Any]:
        """Figures since the start, by name.

        Args:
            workers: ``"aggregate"``; the engine has no others.

        Raises:
            ValueError: other figures are asked for.
        """
        if workers != "aggregate":
            raise ValueError(f'workers must be "aggregate", got {workers!r}')
        return {**self._core.stats(), "policy_backend": self.policy_backend}

    def losses(self) -> list[str]:
        """What happened to workers that were lost without ending the collector, since this was last asked."""
        return self._core.take_losses()

    @property
    def policy_backend(self) -> str:
        """Who evaluates the policy: ``"native"`` in Rust, ``"torch"`` in Python."""
        return self._core.policy_backend()

    @property
    def requested_frames_per_batch(self) -> int:
        """Frames in a batch."""
        return int(self._core.stats()["requested_frames_per_batch"])

    @property
    def frames_per_batch(self) -> int:
        """Frames in a batch."""
        return self.requested_frames_per_batch

    @property
    def total_frames(self) -> int | float:
        """Frames in all; infinite where the collector is endless."""
        total = self._core.stats()["total_frames"]
        return float("inf") if total is None else int(total)

    @property
    def replay_buffer(self) -> Any:
        """Where batches go, if they are not delivered."""
        return self._replay_buffer

    @property
    def interruptor(self) -> Interruptor | None:
        """What can cut batches short."""
        return self._interruptor

    @property
    def worker_idx(self) -> int:
        """The number that was given to this collector.

        Raises:
            RuntimeError: none was.
        """
        if self._worker_idx is None:
            raise RuntimeError("worker_idx was not given to this collector")
        return self._worker_idx

    def set_post_collect_hook(self, hook: Callable[[Any], None] | None) -> None:
        """Calls ``hook`` with each batch as it is delivered, in place of the present one."""
        self.post_collect_hook = hook

    # Background

    def start(self) -> None:
        """Collects into the replay buffer in a thread, up to ``total_frames``.

        Raises:
            RuntimeError: there is no replay buffer, or the collector runs already.
        """
        if self._replay_buffer is None:
            raise RuntimeError("start() collects into a replay buffer: build the collector with replay_buffer=")
        if self.is_running():
            raise RuntimeError("the collector was started already")
        self._background = Background(self)

    def is_running(self) -> bool:
        """Whether a thread collects into the replay buffer."""
        return self._background is not None and self._background.is_alive()

    def async_shutdown(self, timeout: float | None = None, close_env: bool = True, raise_on_error: bool = True) -> None:
        """Ends what :meth:`start` began, and the collector."""
        self.shutdown(timeout, close_env, raise_on_error)

    def shutdown(self, timeout: float | None = None, close_env: bool = True, raise_on_error: bool = True) -> None:
        """Ends collection and waits for the workers. Batches that are held stay valid.

        Environments that were made for the collector are closed. An object that was handed over is not: it can be used again.

        Args:
            timeout: seconds to wait for the thread of :meth:`start`; as long as it takes where it is None.
            close_env: environments are closed, or given back, whatever this says.
            raise_on_error: whether an error in the background is raised now, if it was not before.
        """
        try:
            if self._background is not None:
                self._background.stop(timeout)
            self._core.shutdown()
            if raise_on_error:
                self._raise_background()
        except Exception:
            if raise_on_error:
                raise

    def _surface(self) -> None:
        """Raises what cannot be asked in a pause, and what went wrong in the background."""
        if self._paused:
            raise RuntimeError("the collector is paused: nothing can be asked of it before the pause is over")
        self._raise_background()

    def _raise_background(self) -> None:
        background = self._background
        if background is not None and background.error is not None and not background.is_this_thread():
            error, background.error = background.error, None
            raise error

    # Profile

    def enable_profile(
        self,
        *,
        workers: list[int] | None = None,
        num_rollouts: int = 3,
        warmup_rollouts: int = 1,
        save_path: Any = None,
        **options: Any,
    ) -> None:
        """Records where the time of workers goes, and writes a trace for each that Perfetto opens.

        Args:
            workers: numbers of workers; the first where there is nothing.
            num_rollouts: batches after which a worker is no longer looked at.
            warmup_rollouts: how many of these are not recorded.
            save_path: of the trace; ``{worker_idx}`` stands for the number of the worker. Its folder is made.
            options: of torch's profiler, which is not used; kept in :attr:`profile_config`.

        Raises:
            RuntimeError: the first batch was collected already.
            ValueError: nothing would be recorded, or there is no such worker.
        """
        config = ProfileConfig(
            workers=workers, num_rollouts=num_rollouts, warmup_rollouts=warmup_rollouts, save_path=save_path, **options
        )
        template = config.template()
        Path(template).parent.mkdir(parents=True, exist_ok=True)
        self._core.enable_profile(config.workers or [0], num_rollouts, warmup_rollouts, template)
        self._profile = config

    def disable_profile(self) -> None:
        """Ends the recording, and writes what there is."""
        self._core.disable_profile()

    @property
    def profile_config(self) -> ProfileConfig | None:
        """What :meth:`enable_profile` was called with."""
        return self._profile

    def profile_summary(self) -> dict[int, dict[str, float]]:
        """Seconds that each recorded worker has spent in each phase."""
        return self._core.profile_summary()

    # Life

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        # An error that leaves the context is the one to be seen.
        self.shutdown(raise_on_error=kind is None)

    def __repr__(self) -> str:
        stats = self._core.stats()
        total = "endless" if stats["total_frames"] is None else f"of {stats['total_frames']}"
        return (
            f"{type(self).__name__}({stats['frames']} frames {total}, {stats['requested_frames_per_batch']} a batch, "
            f"{stats['workers']} workers {self._placement}, {stats['num_envs']} environments, "
            f"policy={self.policy_backend})"
        )


def _single_source(
    positional: Any, weights: Any, policy: Any, policy_weights: Any, model_id: str | None, by_id: Mapping[str, Any] | None
) -> Any:
    given = [source for source in (positional, weights, policy, policy_weights) if source is not None]
    if by_id is not None:
        if given or model_id is not None:
            raise ValueError("weights_dict says all: leave model_id and other weights out")
        strange = sorted(set(by_id) - {"policy"})
        if strange:
            raise KeyError(f"no model is called {strange[0]!r}: there is 'policy' alone")
        return by_id["policy"]
    if len(given) > 1:
        raise ValueError(f"expected weights from one source, got {len(given)}")
    if model_id not in (None, "policy"):
        raise KeyError(f"no model is called {model_id!r}: there is 'policy' alone")
    if policy_weights is not None:
        warnings.warn("policy_weights is called weights now", DeprecationWarning, stacklevel=3)
    return given[0] if given else None


def _without_private(batch: Any) -> Any:
    """``batch`` without entries that begin with an underscore, at any depth."""
    private = [key for key in batch.keys(True) if any(name.startswith("_") for name in _names(key))]
    return batch.exclude(*private) if private else batch


def _without_next_observations(batch: Any) -> Any:
    """``batch`` with nothing under ``"next"`` but the reward and the flags."""
    kept = {"reward", "done", "terminated", "truncated"}
    dropped = [("next", *_names(key)) for key in batch["next"].keys(True, True) if _names(key)[-1] not in kept]
    return batch.exclude(*dropped)


def _names(key: Any) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)


@atexit.register
def _end_all() -> None:
    """Ends what is still alive: threads that need the interpreter must be through before it is."""
    for collector in list(_ALIVE):
        collector.shutdown(raise_on_error=False)
