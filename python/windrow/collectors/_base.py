from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any, ClassVar

from windrow import _needs, _policy
from windrow._arguments import outside, takes
from windrow._exploration import name_of
from windrow._weights import WeightSource
from windrow._windrow import CollectorCore, ReplayBufferCore
from windrow.collectors import _checks
from windrow.collectors._arguments import CollectorArguments
from windrow.collectors._torchrl_compat import TorchRLMethods
from windrow.collectors._workers import Devices, Workers


class BaseCollector(TorchRLMethods):
    """Runs a policy in environments, and is an iterator over batches of what happened.

    Each batch is a ``tensordict.TensorDict``, ``[time]`` or, where environments step together, ``[num_envs, time]``. It lies in
    memory of the collector, which is used again once none of its tensors is left: keep what you like, for as long as you like.

    Python's garbage collector frees a collector that its own policy or environments refer to, some time later: call
    :meth:`shutdown`, or use the collector in a ``with`` statement, to end it at once.

    A collector belongs to the process that made it: a child of ``os.fork`` can read its batches; anything else raises an error.

    Use one of the subclasses, which differ in where environments run and in how their frames make batches.

    Raises:
        TypeError: an argument is missing, unknown or of the wrong type.
        ValueError: an argument makes no sense; the message names what would.
        KeyError: the policy reads what nobody writes, or writes no action.
        RuntimeError: torch finds no such device.
    """

    #: Whether each batch waits for all workers.
    _sync: ClassVar[bool] = True
    #: Whether workers run in threads of their own.
    _threads: ClassVar[bool] = False
    #: Whether there is one worker.
    _single: ClassVar[bool] = True

    @takes(CollectorArguments)
    def __init__(self, arguments: CollectorArguments) -> None:
        self._build(arguments)

    def _build(self, arguments: CollectorArguments) -> None:
        name = type(self).__name__
        _needs.torch(name)
        self._placement = arguments.placement or ("threads" if self._threads else "inline")
        self._workers = Workers(name, arguments, single=self._single)
        self._devices = Devices.of(arguments, self._workers.count)
        self._exploration = name_of(arguments.exploration_type, arguments.exploration_mode)
        if arguments.init_fn is not None:
            arguments.init_fn()
        self.policy = arguments.policy
        choice = self._chosen_policy(arguments)
        self._prepare_delivery(arguments)
        self._core = CollectorCore(self._options(arguments, choice))
        self._warn_of_rounding(arguments.frames_per_batch)
        self._source = WeightSource(self._core, choice.source, is_actor=choice.shared)
        self._interruptor = arguments.interruptor
        if arguments.interruptor is not None:
            arguments.interruptor.register(self._core)
        self._worker_idx = arguments.worker_idx
        self._profile = None
        self.weight_updater = arguments.weight_updater
        self._core.serve(self)
        self._end_before_interpreter()

    def _chosen_policy(self, arguments: CollectorArguments) -> _policy.Choice:
        """The policy in the form that the engine takes."""
        device = self._devices.policy
        return _policy.choose(
            _policy.compiled(arguments.policy, arguments.compile_policy, arguments.cudagraph_policy, device),
            self._workers.factories,
            _policy.Conditions(
                self._exploration,
                threads=self._placement == "threads",
                device=device,
                trust=bool(arguments.trust_policy),
                register=arguments.auto_register_policy_transforms is not False,
            ),
            backend=arguments.policy_backend,
            env=self._workers.given[0],
        )

    def _prepare_delivery(self, arguments: CollectorArguments) -> None:
        """Takes note of what happens to each batch between the engine and the user."""
        self._storing_device = self._devices.storing
        self._postproc = arguments.postproc
        move = getattr(arguments.postproc, "to", None)
        if self._storing_device is not None and move is not None:
            move(self._storing_device)
        self.pre_collect_hook = arguments.pre_collect_hook
        self.post_collect_hook = arguments.post_collect_hook
        self._compact_obs = arguments.compact_obs
        self._update_at_each_batch = arguments.update_at_each_batch
        self._replay_buffer = buffer = arguments.replay_buffer
        # The engine writes batches that nothing in Python looks at.
        plain = self._storing_device is None and not self._compact_obs and self._postproc is None
        self._fills_buffer = plain and bool(getattr(buffer, "_takes_frames_as_they_are", False))
        self._returns_same, self._same = arguments.return_same_td, None

    def _options(self, arguments: CollectorArguments, choice: _policy.Choice) -> dict[str, Any]:
        """The options of the engine: its configuration, in which arguments stand by their names, and objects."""
        buffer = arguments.replay_buffer
        core = getattr(buffer, "_core", None)
        random_frames = max(0, int(arguments.init_random_frames or 0) - getattr(buffer, "write_count", 0))
        seed = self._workers.own_seed() if arguments.seed is None else arguments.seed
        # Where torch alone acts, its generator is left as it is: what modules draw follows it.
        draws = not isinstance(choice.core, list) or bool(arguments.init_random_frames)
        config = {
            **arguments.for_engine(),
            "num_workers": self._workers.repeated,
            "placement": self._placement,
            "delivery": "synchronous" if self._sync else 1,
            "init_random_frames": random_frames,
            "exploration_type": self._exploration,
            "seed": seed,
            "noise_seed": _drawn_by_torch() if draws and seed is None else None,
            "cat_results": _checks.concatenation(arguments.cat_results, sync=self._sync),
            # Padding is not kept.
            "traj_format": arguments.traj_format or ("padded" if buffer is None else "cat"),
        }
        return {
            "config": config,
            "envs": self._workers.envs,
            "env_kwargs": self._workers.env_kwargs,
            "policy": choice.core,
            "replay_buffer": core if isinstance(core, ReplayBufferCore) else None,
            "takes_writes": buffer is not None and not self._fills_buffer,
            "device": self._devices.named,
        }

    def _warn_of_rounding(self, asked: Any) -> None:
        if not isinstance(asked, list) and asked < self.frames_per_batch:
            warnings.warn(
                f"frames_per_batch={asked} cannot be split over environments that step together: batches have "
                f"{self.frames_per_batch} frames, and the last one as many fewer as total_frames asks for",
                stacklevel=outside(),
            )

    # Iteration

    def __next__(self) -> Any:
        self._surface()
        return self._core.next()

    def _prepare(self) -> contextlib.AbstractContextManager[None] | None:
        """Runs before the frames of a batch are collected; returns a context that they are collected in."""
        if self.pre_collect_hook is not None:
            self.pre_collect_hook()
        if self._update_at_each_batch:
            self.update_policy_weights_()
        else:
            self._source.follow()
        return self._acting()

    def _acting(self) -> contextlib.AbstractContextManager[None] | None:
        """What the policy needs around it, where it is called in this thread."""
        if self._placement == "inline" and self.policy_backend == "torch":
            return _policy.acting(self._exploration)
        return None

    def _processed(self, batch: Any) -> Any:
        """A batch, or zeros in the shape of one, after post-processing."""
        if self._storing_device is not None:
            batch = batch.to(self._storing_device)
        if self._compact_obs:
            batch = _without_next_observations(batch)
        if self._postproc is not None:
            batch = self._postproc(batch)
            if not hasattr(batch, "exclude"):
                raise TypeError(f"postproc must return the batch, as a TensorDict, got {type(batch).__name__}")
            batch = _without_private(batch)
        return batch

    def _finish(self, batch: Any) -> Any:
        """What is delivered of a batch, or written."""
        batch = self._processed(batch)
        if self._replay_buffer is not None:
            return batch
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

    def _write(self, batch: Any, number: int | None, patient: bool) -> None:
        """Writes a batch. A replay buffer of windrow tells the collector's trajectories by ``number`` from those of others, and a
        ``patient`` write waits for its limiter until the collector is ended."""
        if number is None:
            self._replay_buffer.extend(batch)
        else:
            self._replay_buffer._write(batch, self._core.is_ending if patient else None, number)

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
        self._source.follow()
        with self._acting() or contextlib.nullcontext():
            return self._core.rollout()

    def __len__(self) -> int:
        length = self._asked.len()
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
        return self._core.fake_batch()

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


def _drawn_by_torch() -> int:
    """A number of torch's generator: the same after each ``torch.manual_seed``, another for the next collector."""
    import torch

    return int(torch.randint(2**62, ()))
