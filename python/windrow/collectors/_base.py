from __future__ import annotations

import contextlib
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from windrow import _needs, _policy
from windrow._exploration import name_of
from windrow._failure import COLLECTING
from windrow._numbers import whole_or_none
from windrow._passed_over import pass_over
from windrow._weights import WeightSource
from windrow._windrow import CollectorCore
from windrow.collectors import _arguments
from windrow.collectors._batches import without_next_observations, without_padding, without_private
from windrow.collectors._interruptor import Interruptor
from windrow.collectors._life import EndedByErrors
from windrow.collectors._reach import Reach, factories_of_envs, factories_of_policies


class BaseCollector(Reach):
    """Runs a policy in environments, and is an iterator over batches of what happened.

    Each batch is a ``tensordict.TensorDict``, ``[time]`` or, where environments step together, ``[num_envs, time]``. It lies in
    memory of the collector, which is used again once none of its tensors is left: keep what you like, for as long as you like.

    A collector that its own policy or environments refer to is freed when Python's garbage collector comes by: end it with
    :meth:`shutdown`, or use it in a ``with`` statement, where it is to end at once.

    It belongs to the process that made it: a child of ``os.fork`` can read its batches, and nothing else.

    Use one of the subclasses, which differ in where environments run and in how their frames make batches.

    Args:
        create_env_fn: an environment, an id such as ``"CartPole-v1"``, or a function that returns one; a list of these where
            there are several workers.
        policy: who acts. None acts at random; otherwise a module of tensordict, or a callable whose parameters are called
            as observations are, or ``tensordict`` or ``td``. It writes the same at each step; where it replaces an
            observation, batches hold what it wrote at the root, and what the environment observed under ``"next"``.
        policy_factory: a function without arguments that makes the policy, or one for each worker. ``policy`` is then only
            where new weights come from.
        frames_per_batch: frames in each batch, over all workers and environments; a list says how many each worker has. Where
            environments that step together cannot share it evenly, it is rounded up, with a warning.
        total_frames: frames in all, a multiple of ``frames_per_batch``; endless without it, and where it is negative.
        allow_partial_batch: let the last batch be shorter, so that ``total_frames`` need not be a multiple.
        num_workers: how often ``create_env_fn`` is used, where it is no list.
        num_envs: environments of each worker, which step together and get a dimension of their own in batches.
        create_env_kwargs: arguments of ``create_env_fn``, for all workers or a list of one for each.
        seed: of everything that is random; see :meth:`set_seed`. Without it, environments begin as they were seeded by their own
            ``set_seed``; random actions in those of other libraries then follow torch's generator.
        device: the default of the three devices that follow.
        storing_device: where batches go. On the CPU they are views; they are copied to any other device.
        policy_device: where a policy that torch evaluates is evaluated.
        env_device: environments are stepped on the CPU; a warning says so where it is another one.
        max_frames_per_traj: truncate episodes after so many steps, which ``step_count`` then counts.
        init_random_frames: frames at the start for which actions are random, rounded up to whole batches. Those that were
            written to the ``replay_buffer`` before count.
        reset_at_each_iter: begin each batch with new episodes.
        postproc: what is done to each batch before it is delivered. What has a method ``to`` is moved to where batches are.
        split_trajs: deliver a row for every piece of a trajectory, padded, with ``("collector", "mask")``.
        track_traj_ids: let frames carry ``("collector", "traj_ids")``.
        exploration_type: whether actions are sampled (``RANDOM``) or the policy's best guess.
        exploration_mode: what ``exploration_type`` was called once.
        reset_when_done: True: an ended episode is always followed by a new one.
        return_same_td: deliver the same TensorDict every time, with other values: those of the batch before are gone then.
        set_truncated: mark the last step of each batch as truncated.
        interruptor: an :class:`Interruptor` that can cut batches short.
        replay_buffer: something with a method ``extend``: batches go there, and iteration yields None for each.
        trust_policy: take the policy for one that maps a TensorDict to a TensorDict, whatever its signature.
        policy_backend: ``"native"`` evaluates the policy in Rust, ``"torch"`` calls it; ``"auto"`` chooses the former where
            the policy is a network that windrow knows.
        compile_policy: compile the policy with ``torch.compile``: True, or its arguments.
        cudagraph_policy: replay the policy as a CUDA graph, which needs a ``policy_device`` of CUDA: True, or the arguments of
            ``CudaGraphModule``.
        weight_updater: what :meth:`update_policy_weights_` goes through, or a function that makes it.
        track_policy_version: let frames carry ``policy_version``, the version of the weights that acted, at the root and, in
            the same memory, under ``"next"``.
        trajs_per_batch: deliver so many whole trajectories in each batch.
        trajs_per_write: whole trajectories of one write to the replay buffer, at most; all that are complete where nothing is
            said.
        traj_format: ``"padded"`` or ``"cat"``: how whole trajectories lie in a batch.
        cat_results: ``0``, ``-1`` or ``"stack"``: how the shares of workers are put together.
        preemptive_threshold: cut the shares of slow workers short once this fraction of them is ready.
        auto_register_policy_transforms: let environments observe ``is_init`` if the policy reads it and they do not, and begin
            a recurrent policy's state as its modules' ``make_tensordict_primer`` say. Without it the policy has to make do
            with what environments observe; its state is carried from step to step all the same.
        update_at_each_batch: call :meth:`update_policy_weights_` before each batch.
        init_fn: called without arguments while the collector is built, before policies are made.
        pre_collect_hook: called before each batch is collected.
        post_collect_hook: called with each batch as it is delivered.
        compact_obs: leave all that is under ``"next"`` out of batches, but for rewards and flags.
        worker_idx: a number of your own for this collector.
        on_loss: ``"raise"``, ``"continue"`` without the worker, or how often a worker whose environment fails is replaced.
        placement: ``"inline"`` or ``"threads"``, in place of what the class says.
        others: what TorchRL's collectors can be told besides; a warning says why it has no effect.

    Raises:
        TypeError: an argument is missing, unknown or of the wrong type.
        ValueError: an argument makes no sense; the message names what would.
        KeyError: the policy reads what nobody writes, or writes no action.
        RuntimeError: a device is asked for that torch does not find.
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
        # Before what a misspelt argument leaves out is missed.
        pass_over(name, others, _arguments.WITHOUT_EFFECT)
        _needs.torch(name)
        if not reset_when_done:
            raise ValueError("reset_when_done=False: an ended episode is always followed by a new one")
        if replay_buffer is not None and return_same_td:
            raise TypeError("return_same_td makes no sense with a replay_buffer, which keeps its own copy")
        if replay_buffer is not None and not hasattr(replay_buffer, "extend"):
            raise TypeError(f"expected a replay_buffer with a method extend, got {type(replay_buffer).__name__}")
        if interruptor is not None and not isinstance(interruptor, Interruptor):
            kind = f"{type(interruptor).__module__}.{type(interruptor).__name__}"
            raise TypeError(f"expected an Interruptor of windrow.collectors as interruptor, got {kind}")
        if placement not in (None, "inline", "threads"):
            raise ValueError(f'placement must be "inline" or "threads", got {placement!r}')
        if traj_format is not None and trajs_per_batch is None:
            raise ValueError("traj_format makes no sense without trajs_per_batch")
        if policy is not None and policy_factory is not None and not hasattr(policy, "state_dict"):
            raise TypeError("policy and policy_factory: expected one of them, or a module as source of weights")
        threads = self._threads if placement is None else placement == "threads"
        envs, workers = _arguments.environments(create_env_fn, num_workers, single=self._single, name=name)
        count = workers or len(envs)
        self._envs, workers = factories_of_envs(envs, workers, num_envs)
        batch, shares = _arguments.shares(frames_per_batch)
        self._storing_device = _arguments.device_of("storing_device", storing_device, device, workers=count)
        self._policy_device = _arguments.device_of("policy_device", policy_device, device, workers=count)
        env_device = _arguments.device_of("env_device", env_device, workers=count)
        pass_over(name, {"env_device": env_device}, _arguments.WITHOUT_EFFECT)
        self._exploration = name_of(exploration_type, exploration_mode)
        if init_fn is not None:
            init_fn()
        self._policies = factories_of_policies(_arguments.factories(policy_factory, count))
        self._policy = _policy.choose(
            _policy.compiled(policy, compile_policy, cudagraph_policy, self._policy_device),
            self._policies,
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
        move = getattr(postproc, "to", None)
        if self._storing_device is not None and move is not None:
            move(self._storing_device)
        self.pre_collect_hook = pre_collect_hook
        self.post_collect_hook = post_collect_hook
        self._compact_obs = compact_obs
        self._replay_buffer = replay_buffer
        # Batches that nobody in Python looks at go from the engine to the buffer.
        plain = self._storing_device is None and not compact_obs and postproc is None
        self._fills_buffer = plain and bool(getattr(replay_buffer, "_takes_frames_as_they_are", False))
        # Whole trajectories are put into groups by the engine also where Python writes them.
        self._takes_writes = replay_buffer is not None and not self._fills_buffer and trajs_per_batch is not None
        self._writes: deque[Any] = deque()
        self._taken: list[Any] = []
        self._returns_same, self._same = return_same_td, None
        self._update_at_each_batch = update_at_each_batch
        self._worker_idx = worker_idx
        self._profile = None
        self._background = None
        self._paused = False
        self._lock = threading.RLock()
        self._placement = "threads" if threads else "inline"
        if seed is None:
            seed = _arguments.own_seed(envs)
        draws = not isinstance(self._policy.core, list) or bool(init_random_frames)
        self._core = CollectorCore(
            {
                "sync": self._sync,
                "threads": threads,
                "envs": self._envs,
                "env_kwargs": _arguments.environment_arguments(create_env_kwargs, count, self._envs),
                "num_workers": workers,
                "num_envs": num_envs,
                "policy": self._policy.core,
                "frames_per_batch": batch,
                "frames_per_worker": shares,
                "total_frames": _arguments.frames("total_frames", total_frames),
                "allow_partial_batch": allow_partial_batch,
                "max_frames_per_traj": _arguments.positive("max_frames_per_traj", max_frames_per_traj),
                "init_random_frames": _arguments.random_frames(init_random_frames, replay_buffer),
                "exploration_type": self._exploration,
                "seed": seed,
                # Where torch alone acts, its generator is left as it is: what modules draw follows it.
                "noise_seed": _arguments.noise_seed() if draws and seed is None else None,
                "reset_at_each_iter": reset_at_each_iter,
                "set_truncated": set_truncated,
                "track_traj_ids": track_traj_ids,
                "track_policy_version": bool(track_policy_version),
                "cat_results": _arguments.concatenation(cat_results, sync=self._sync),
                "preemptive_threshold": preemptive_threshold,
                "trajs_per_batch": whole_or_none("trajs_per_batch", trajs_per_batch, 1),
                "trajs_per_write": whole_or_none("trajs_per_write", trajs_per_write, 1),
                "replay_buffer": replay_buffer._core if self._fills_buffer else None,
                "takes_writes": self._takes_writes,
                # Padding is nothing to be kept.
                "traj_format": traj_format or ("padded" if replay_buffer is None else "cat"),
                "split_trajs": bool(split_trajs),
                "on_loss": on_loss,
                "device": _arguments.cpu(storing_device, device),
            }
        )
        if batch is not None and batch < self.frames_per_batch:
            warnings.warn(
                f"frames_per_batch={batch} cannot be split over environments that step together: batches have "
                f"{self.frames_per_batch} frames, and the last one as many fewer as total_frames asks for",
                stacklevel=2,
            )
        self._source = WeightSource(self._core, self._policy.source, is_actor=self._policy.shared)
        self._splits = bool(split_trajs)
        self._interruptor = interruptor
        if interruptor is not None:
            interruptor.register(self._core)
        self.weight_updater = weight_updater
        self._begin()

    # Iteration

    def __next__(self) -> Any:
        self._core.check_outside()
        self._surface()
        with self._lock, COLLECTING:
            # The engine knows which of its errors are its end.
            if self._fills_buffer or self._takes_writes:
                with EndedByErrors(self):
                    self._prepare()
                with self._acting():
                    more = self._core.advance(self._is_in_background())
                with EndedByErrors(self):
                    self._write_on()
                if more:
                    return None
                raise StopIteration
            # What Ctrl-C has kept from being delivered comes first.
            if not self._taken:
                with EndedByErrors(self):
                    self._prepare()
                with self._acting():
                    more = self._core.next(self._taken)
                if not more:
                    raise StopIteration
            with EndedByErrors(self):
                batch = self._deliver(self._taken[0])
            self._taken.clear()
            return batch

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
            self._source.follow()

    def _processed(self, batch: Any) -> Any:
        if self._storing_device is not None:
            batch = batch.to(self._storing_device)
        if self._compact_obs:
            batch = without_next_observations(batch)
        if self._postproc is not None:
            batch = self._postproc(batch)
            if not hasattr(batch, "exclude"):
                raise TypeError(f"postproc must return the batch, as a TensorDict, got {type(batch).__name__}")
            batch = without_private(batch)
        return batch

    def _deliver(self, batch: Any) -> Any:
        if self._replay_buffer is not None and not self._splits:
            # Before postproc, which may drop the mask: what was not collected is not to be kept.
            batch = without_padding(batch)
        batch = self._processed(batch)
        if self._replay_buffer is not None:
            self._write(batch)
            return None
        if self._returns_same:
            batch = self._into_the_same(batch)
        if self.post_collect_hook is not None:
            self.post_collect_hook(batch)
        return batch

    def _into_the_same(self, batch: Any) -> Any:
        """``batch`` in the memory of the one before; in its own where that has another shape or other entries, as the mask of a
        batch that was cut short."""
        same = self._same
        if same is None or same.batch_size != batch.batch_size or _entries(same) != _entries(batch):
            self._same = batch.clone()
        else:
            self._same.update(batch, inplace=True)
        return self._same

    def _write_on(self) -> None:
        """Writes what the engine has put aside to be written: groups of whole trajectories."""
        self._writes.extend(self._core.take_writes())
        while self._writes:
            self._write(self._processed(self._writes[0]))
            # Only now, so that what Ctrl-C has kept from being written is the first to be written next time.
            self._writes.popleft()

    def iterator(self) -> Iterator[Any]:
        """The batches, as iterating over the collector gives them."""
        return iter(self)

    def next(self) -> Any:
        """The next batch, or None after the last."""
        return next(self, None)

    def rollout(self) -> Any:
        """One batch as it was collected, without post-processing and outside of the count of frames."""
        self._core.check_outside()
        self._surface()
        with self._lock, COLLECTING:
            self._source.follow()
            with self._acting():
                return self._core.rollout()

    def __len__(self) -> int:
        self._raise_background()
        length = self._core.len()
        if length is None:
            raise TypeError(f"an endless {type(self).__name__} has no length")
        return length

    def fake_tensordict(self) -> Any:
        """Zeros with the entries, names, shapes and dtypes of a whole batch as it is delivered; no environment is stepped.

        What ``postproc`` and ``split_trajs`` make of a batch, they make of these zeros.

        Raises:
            ValueError: whole trajectories are delivered, whose lengths nobody knows before.
        """
        self._surface()
        return self._processed(self._core.fake_batch())

    def __repr__(self) -> str:
        if not self._core.belongs_here():
            return f"{type(self).__name__}(of another process)"
        stats = self._core.stats()
        total = "endless" if stats["total_frames"] is None else f"of {stats['total_frames']}"
        return (
            f"{type(self).__name__}({stats['frames']} frames {total}, {stats['requested_frames_per_batch']} a batch, "
            f"{stats['workers']} workers {self._placement}, {stats['num_envs']} environments, "
            f"policy={self.policy_backend})"
        )


def _entries(batch: Any) -> set[Any]:
    return set(batch.keys(True, True))
