"""The classes of collectors: what they are built of, and what happens to each batch between the
engine and the user.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from windrow import _fence, _html, _needs
from windrow._arguments import signature_of, takes, warn_ignored
from windrow._keys import path
from windrow._lazy import module, tensordict as td
from windrow._values import unheld
from windrow._warnings import warn
from windrow._windrow import CollectorCore, ReplayBufferCore
from windrow.collectors._arguments import CollectorArguments, MultiArguments, SingleArguments
from windrow.collectors._control import AUTHORS, Control
from windrow.collectors._ending import ALIVE
from windrow.collectors._interruptor import Interruptor, follow
from windrow.collectors._progress import Loop, Progress
from windrow.collectors._several import several_for
from windrow.collectors._workers import Devices, Workers
from windrow.envs._specs import set_delta
from windrow.policies.choose import (
    Choice,
    Conditions,
    choose,
    compiled,
    exploration_name,
    tell_of_python,
    unfit,
    warmup_of,
)
from windrow.policies.weights import WeightSource
from windrow.processes.blame import held_weights
from windrow.processes.exceptions import refusal
from windrow.processes.pickling import NoProcesses
from windrow.processes.setup import sending

if TYPE_CHECKING:
    from windrow.policies.audit import Audit

_acting, _predictors = module("windrow.policies.acting"), module("windrow.policies.predictors")
_ray = module("windrow.ray._collector")


class BaseCollector(Control):
    """Runs a policy in environments, and is an iterator over batches of what happened.

    Each batch is a ``tensordict.TensorDict``, ``[time]`` or, where environments step together,
    ``[num_envs, time]``. It lies in memory of the collector, which is used again once none of its
    tensors is left: keep what you like, for as long as you like.

    Python's garbage collector frees a collector that its own policy or environments refer to, some
    time later: call :meth:`shutdown`, or use the collector in a ``with`` statement, to end it at
    once.

    A collector belongs to the process that made it: a child of ``os.fork`` can read its batches;
    anything else raises an error.

    Use one of the subclasses, which differ in where environments run and in how their frames make
    batches.

    Raises:
        TypeError: an argument is missing, unknown or of the wrong type.
        ValueError: an argument has a value that cannot be used; the message says which can.
        KeyError: the policy reads what nobody writes, or writes no action.
        RuntimeError: torch finds no such device.
    """

    #: Whether each batch waits for all workers.
    _sync: ClassVar[bool] = True
    #: Whether workers run in threads of their own.
    _threads: ClassVar[bool] = False
    #: Whether there is one worker.
    _single: ClassVar[bool] = True
    #: Whether paths of :meth:`map_fn` begin at the collector itself, not at each of its workers.
    _direct: ClassVar[bool] = False
    #: Whether each worker has a policy, or one is served to all.
    _inference: ClassVar[Literal["local", "served"]] = "local"
    #: The same, unless the policy is at a server of its own.
    _asks: Literal["local", "served"] | None = None
    #: How many workers have shares in a batch that does not wait for all.
    _together = 1
    #: Frames of all environments are delivered in one dimension, one environment after the other.
    _flat = False
    #: Rows of each call of a served policy, where they are always as many.
    _rows: int | None = None
    #: The batch that ``return_same_td`` delivers again.
    _same: Any = None
    #: The first batch was looked at for outputs of the policy without names.
    _has_named = False
    #: The user was warned of a worker that is missed.
    _missed = False
    #: Why worker processes have refused the graph of the policy, if they have.
    _refusal: str | None = None

    @takes(CollectorArguments)
    def __init__(self, arguments: CollectorArguments) -> None:
        self._build(arguments)

    def __init_subclass__(cls, **arguments: object) -> None:
        super().__init_subclass__(**arguments)
        if "__init__" in vars(cls) and "__signature__" not in vars(cls):
            # Not that of a base.
            cls.__signature__ = inspect.signature(functools.partial(cls.__init__, None))  # type: ignore[attr-defined]

    def _build(self, arguments: CollectorArguments) -> None:
        name = type(self).__name__
        _needs.torch(name)
        self._arguments, self._author = arguments, next(AUTHORS)
        #: Compares delivered rows with the policy's module, where the engine of this process
        #: evaluates it.
        self._audit: Audit | None = None
        self._workers = Workers(name, arguments, single=self._single)
        #: Whether the user has said where workers run.
        self._placed = arguments.placement is not None or arguments.launcher is not None
        self._placement = arguments.placement or (
            "processes" if self._placed else self._default_placement()
        )
        self._devices = Devices(arguments, self._workers.count)
        self._exploration = exploration_name(arguments.exploration_type, arguments.exploration_mode)
        self.policy = arguments.policy
        self.pre_collect_hook = arguments.pre_collect_hook
        self.post_collect_hook = arguments.post_collect_hook
        move = getattr(arguments.postproc, "to", None)
        if self._devices.storing is not None and move is not None:
            move(self._devices.storing)
        with sending() as environments:
            try:
                choice = self._fitting_core(arguments)
            except NoProcesses as reason:
                # What can be killed is a process.
                if self._placed or arguments.step_timeout is not None:
                    raise
                environments.keep()
                self._fall_back(str(reason))
                choice = self._fitting_core(arguments)
        self._warn_of_rounding(self._arguments.frames_per_batch)
        self._source = WeightSource(self._core, choice, inline=self._placement == "inline")
        #: Why torch has evaluated the policy from the beginning.
        self._doubted = choice.doubt
        instead = choice.core.get("fallback") if isinstance(choice.core, dict) else None
        if instead and self._backend == "torch":
            self._doubted = unfit(instead[0].refusal)
            tell_of_python(self._doubted)
        choice.tell()
        self._audit = choice.audit if self._backend == "native" else None
        if self._audit is not None:
            self._audit.envs = self._core.envs_of_a_worker()
        if arguments.interruptor is not None:
            follow(arguments.interruptor, self._core)
        if type(self.policy).__name__ == "RandomPolicy" and self.policy.action_spec is None:
            self.policy.action_spec = getattr(self._workers.env(0), "action_spec", None)
        self.weight_updater = arguments.weight_updater
        if arguments.progress or arguments.logger is not None:
            self._progress = Progress(self)
        self._core.serve(self)
        ALIVE.add(self)

    # Constants of the engine, which each batch needs.

    @functools.cached_property
    def _backend(self) -> str:
        """:attr:`policy_backend`, as long as nothing was lost."""
        return self._core.policy_backend()

    @functools.cached_property
    def _deltas(self) -> Sequence[tuple[Any, Any]]:
        """Observations that batches have as differences, with their element types."""
        return self._core.deltas()

    @functools.cached_property
    def _inner_dimensions(self) -> Sequence[int]:
        """Dimensions of a worker's environments within each of them, where one has several."""
        return self._core.dimensions()[1:]

    def _default_placement(self) -> str:
        """Where workers run if nobody says where."""
        if not self._threads:
            return "inline"
        return "threads" if sys.platform != "linux" or self._workers.are_native else "processes"

    def _fall_back(self, reason: str) -> None:
        """Lets workers run in threads, for a ``reason`` why they cannot be processes."""
        self._placement = "threads"
        warn(f"workers run in threads, where Python code takes turns: {reason}")

    @property
    def _doubt(self) -> str | None:
        """The reason why torch evaluates the policy."""
        return self._doubted or self._source.lost

    def _fitting_core(self, arguments: CollectorArguments) -> Choice:
        """Makes the engine's collector; returns its policy, which is called where worker processes
        refuse the graph that it was read as.
        """
        try:
            return self._make_core(arguments)
        except Exception as error:
            self._refusal = refusal(error)
            if self._refusal is None:
                raise
        return self._make_core(self._arguments)

    def _make_core(self, arguments: CollectorArguments) -> Choice:
        """Makes the engine's collector; returns its policy."""
        choice = self._chosen_policy(arguments)
        if self._refusal is not None:
            choice = replace(choice, doubt=unfit(self._refusal), surprise="once")
        if self._placement == "processes" and not self._placed and self._workers.factories is None:
            is_torch = isinstance(choice.core, list)
            held = held_weights(_predictors.adapted(arguments.policy)) if is_torch else None
            if held is not None:
                self._fall_back(
                    f"policy{held}, whose new weights no copy of policy in a worker process would get. Make it an attribute of the "
                    'policy, or choose placement="processes" for copies of what it is now, or placement="threads"'
                )
        if self._placement == "processes":
            self._workers.check_distinct()
        else:
            warn_ignored(
                "num_sub_threads",
                arguments.num_sub_threads,
                1,
                "workers are threads of one process",
            )
            if arguments.init_fn is not None:
                arguments.init_fn()
        self._core = CollectorCore(self._options(arguments, choice))
        if self._placement == "processes":
            self._workers.move(self._core)
        return choice

    def _chosen_policy(self, arguments: CollectorArguments) -> Choice:
        """The policy in the form that the engine takes."""
        device, count = self._devices.policy, arguments.num_envs
        is_served = (self._asks or self._inference) == "served"
        return choose(
            compiled(arguments.policy, arguments.compile_policy),
            self._workers.factories,
            Conditions(
                self._exploration,
                threads=self._placement != "inline",
                apart=self._placement == "processes",
                device=device,
                is_here=arguments.launcher is None,
                trust=bool(arguments.trust_policy),
                register=arguments.auto_register_policy_transforms is not False,
                named=self._devices.acting,
                served=is_served,
                alone=(1, None) if count is None or is_served else (1,) if count == 1 else (),
                rows=self._rows,
                warmup=warmup_of(arguments.cudagraph_policy, device),
            ),
            backend=arguments.policy_backend if self._refusal is None else "torch",
            env=self._workers.given[0],
        )

    def _options(self, arguments: CollectorArguments, choice: Choice) -> dict[str, Any]:
        """The options of the engine: its configuration, in which arguments stand by their names,
        and objects.
        """
        buffer = arguments.replay_buffer
        core = getattr(buffer, "_core", None)
        # The engine writes batches that nothing in Python looks at.
        plain = (
            self._devices.storing is None
            and not arguments.compact_obs
            and arguments.postproc is None
        )
        plain = (
            plain
            and self._inference == "local"
            and not arguments.progress
            and arguments.logger is None
        )
        # Versions of a module that the program changes are marked in Python.
        is_live = choice.shared and isinstance(choice.core, list)
        plain = plain and not (is_live and arguments.track_policy_version)
        fills_buffer = plain and bool(getattr(buffer, "_takes_frames_as_they_are", False))
        random_frames = max(
            0, int(arguments.init_random_frames or 0) - getattr(buffer, "write_count", 0)
        )
        seed = self._workers.own_seed() if arguments.seed is None else arguments.seed
        # Where torch alone acts, its generator is left as it is: what modules draw follows it,
        # unless they do so in processes.
        is_torch = isinstance(choice.core, list) and self._placement != "processes"
        draws = not is_torch or bool(arguments.init_random_frames)
        traj_format = arguments.traj_format
        if arguments.trajs_per_batch is not None and buffer is not None:
            traj_format = traj_format or "cat"  # Padding is not kept.
        config = {
            **arguments.for_engine(),
            "num_workers": self._workers.repeated,
            "placement": self._placement,
            "delivery": "synchronous" if self._sync else self._together,
            "merge_statistics": not self._single,
            "inference": self._asks or self._inference,
            "init_random_frames": random_frames,
            "exploration_type": self._exploration,
            "seed": seed,
            "noise_seed": _drawn_by_torch() if draws and seed is None else None,
            "cat_results": _concatenation(arguments.cat_results, sync=self._sync),
            "traj_format": traj_format,
        }
        return {
            "config": config,
            "envs": self._workers.envs,
            "env_kwargs": self._workers.env_kwargs,
            "policy": choice.core,
            "replay_buffer": core if isinstance(core, ReplayBufferCore) else None,
            "takes_writes": buffer is not None and not fills_buffer,
            "device": self._devices.named,
            "flat": self._flat,
            "init_fn": arguments.init_fn,
            "worker_threads": arguments.num_sub_threads,
            "launcher": arguments.launcher,
            "allow_pickle": arguments.launcher is None or bool(arguments.allow_pickle),
        }

    def _warn_of_rounding(self, asked: int | float | Sequence[int]) -> None:
        if isinstance(asked, (int, float)) and asked < self.frames_per_batch:
            warn(
                f"frames_per_batch={asked} cannot be split over environments that step together: batches have "
                f"{self.frames_per_batch} frames, and the last one as many fewer as total_frames asks for"
            )

    @property
    def env(self) -> Any:
        """The environment, as it was given or made. Where the workers have several environments,
        this is an object that reaches all of them, in the order of their numbers: a method is
        called on each environment, and returns a list; ``call``, ``get_attr`` and ``set_attr`` do
        what those of Gymnasium's vectors do.
        """
        return self._workers.all

    @property
    def closed(self) -> bool:
        """Whether the collector was shut down."""
        return self._ended

    @property
    def init_random_frames(self) -> int:
        """Frames at the start with random actions."""
        return max(0, int(self._arguments.init_random_frames or 0))

    cascade_execute = _fence.Method()
    get_distant_attr = _fence.Method()
    get_model = _fence.Method()
    getattr_env = _fence.Method()
    getattr_policy = _fence.Method()
    getattr_rb = _fence.Method()
    increment_version = _fence.Method()
    map_fn = _fence.Method()
    receive_weights = _fence.Method()
    set_post_collect_hook = _fence.Method()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Arguments are attributes, as in TorchRL.
            arguments = self.__dict__.get("_arguments")
            if name.startswith("_") or not hasattr(arguments, name):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return getattr(arguments, name)

    # Iteration

    def __iter__(self) -> Iterator[td.TensorDictBase]:
        return self if self._progress is None else Loop(self, self._progress)

    def __next__(self) -> td.TensorDictBase:
        if self._progress is None:
            return self._ready.next()
        self._progress.asked()
        try:
            return self._ready.next()
        except BaseException:
            # The end, or an error.
            self._progress.close()
            raise
        finally:
            self._progress.answered()

    def _prepare(self) -> contextlib.AbstractContextManager[None] | None:
        """Runs before the frames of a batch are collected; returns a context that they are
        collected in.
        """
        self._tell_of_loss()
        if self._progress is not None:
            self._progress.open(self._core.stats()["frames"])
        if self.pre_collect_hook is not None:
            self.pre_collect_hook()
        interruptor = self._arguments.interruptor
        if not isinstance(interruptor, (Interruptor, NoneType)):
            self._core.cut(bool(interruptor.collection_stopped()))
        if self._arguments.update_at_each_batch:
            self.update_policy_weights_()
        else:
            self._source.follow()
        return self._acting()

    def _tell_of_loss(self) -> None:
        """Says once what the collector lacks since it goes on without a worker."""
        if self._arguments.on_loss != "continue" or self._missed:
            return
        lost = self._core.take_losses()
        self._unasked.extend(lost)
        if not lost:
            return
        self._missed = True
        alive = [worker["alive"] for worker in self._core.worker_stats()]
        left = f"{sum(alive)} of {len(alive)} workers"
        shrinks = (
            self._sync
            and getattr(self._arguments, "trajs_per_batch", None) is None
            and self._arguments.allow_partial_batch is not False
        )
        now = (
            f"have the frames of {left}, fewer than frames_per_batch={self.frames_per_batch}"
            if shrinks
            else f"come from {left}"
        )
        warn(
            f'{lost[0].splitlines()[0]}. on_loss="continue" goes on without this worker: from now on batches {now}. A number, such as on_loss=3, '
            f"replaces a lost worker so often{', and with allow_partial_batch=False the others fill its share' if shrinks else ''}; losses() returns "
            "all such errors"
        )

    def _acting(self) -> contextlib.AbstractContextManager[None] | None:
        """What the policy needs around it, where it is called in this thread."""
        is_native = self._backend == "native" and self._source.lost is None
        if self._placement != "inline" or is_native:
            return None
        return self._settled()

    @contextlib.contextmanager
    def _settled(self) -> Iterator[None]:
        with _acting.acting(self._exploration, _acting.aggregation()):
            yield
        self._source.settle()

    def _processed(self, batch: td.TensorDictBase) -> td.TensorDictBase:
        """A batch, or zeros in the shape of one, after post-processing."""
        if self._audit is not None and self._source.lost is None:
            self._audit.look(batch)
        batch = self._with_deltas(self._shaped(batch))
        if self._arguments.compact_obs:
            kept = {"reward", "done", "terminated", "truncated"}
            deltas = {("delta", *path(key)) for key, _ in self._deltas}
            names = map(path, batch["next"].keys(True, True, is_leaf=td.is_leaf_nontensor))
            batch = batch.exclude(
                *(("next", *name) for name in names if name[-1] not in kept and name not in deltas)
            )
        if self._devices.storing is not None:
            batch = batch.to(self._devices.storing)
        if self._arguments.postproc is not None:
            batch = self._arguments.postproc(batch)
            if not hasattr(batch, "exclude"):
                raise TypeError(
                    f"postproc must return the batch, as a TensorDict, got {type(batch).__name__}"
                )
            private = [
                key for key in batch.keys(True) if any(name.startswith("_") for name in path(key))
            ]
            batch = batch.exclude(*private) if private else batch
        return batch

    def _shaped(self, batch: td.TensorDictBase) -> td.TensorDictBase:
        """The batch with all dimensions of a worker's environments, where these are in one that has
        several.
        """
        arguments = self._arguments
        if batch.ndim < 2 or arguments.split_trajs or arguments.trajs_per_batch is not None:
            return batch
        inner, names = self._inner_dimensions, batch.names
        if not inner:
            return batch
        shaped = batch.unflatten(batch.ndim - 2, (batch.shape[-2] // math.prod(inner), *inner))
        shaped.names = [*names[:-1], *[None] * len(inner), names[-1]]
        return shaped

    def _with_deltas(self, batch: td.TensorDictBase) -> td.TensorDictBase:
        """The batch with differences in place of the next observations that have them."""
        if not self._deltas:
            return batch
        for key, dtype in self._deltas:
            set_delta(batch, key, dtype)
        return batch.exclude(*(("next", *path(key)) for key, _ in self._deltas))

    def _finish(self, batch: td.TensorDictBase) -> td.TensorDictBase:
        """What is delivered of a batch, or written."""
        self._tell_of_loss()
        if self._progress is not None:
            self._progress.add(batch, self)
        self._source.mark(batch)
        if not self._has_named:
            self._tell_of_names(batch)
        batch = self._processed(batch)
        if self.replay_buffer is not None:
            return batch
        if self._arguments.return_same_td:
            batch = self._into_the_same(batch)
        if self.post_collect_hook is not None:
            self.post_collect_hook(batch)
        return batch

    def _tell_of_names(self, batch: td.TensorDictBase) -> None:
        """Says how outputs of the policy that have no names get some."""
        self._has_named = True
        if "output1" in batch.keys() and "output1" not in batch["next"].keys():
            warn(
                'the policy returns a tuple, whose outputs beside the action are called "output1" and so on in batches: a dictionary, such as '
                '{"action": action, "log_prob": log_prob}, gives them names'
            )

    def _into_the_same(self, batch: td.TensorDictBase) -> td.TensorDictBase:
        """``batch`` in the memory of the one before; in its own where that has another shape or
        other entries, as the mask of a batch that was cut short, and where shapes change from frame
        to frame.
        """
        same = self._same
        is_ragged = any(is_tensor for _, is_tensor in unheld(batch))
        if (
            same is None
            or is_ragged
            or same.batch_size != batch.batch_size
            or set(same.keys(True, True)) != set(batch.keys(True, True))
        ):
            self._same = batch.clone()
        else:
            self._same.update(batch, inplace=True)
        return self._same

    def _write(self, batch: td.TensorDictBase, number: int | None, patient: bool) -> None:
        """Writes a batch. A replay buffer of windrow tells the collector's trajectories by
        ``number`` from those of others, and a ``patient`` write waits for its limiter until the
        collector is ended.
        """
        given_up = self._core.is_ending if patient else None
        if number is not None:
            self.replay_buffer._write(batch, given_up, number)
        elif getattr(self.replay_buffer, "_tells_writers_apart", False):
            self.replay_buffer._write(batch, given_up, self._author)
        else:
            self.replay_buffer.extend(batch)

    def iterator(self) -> Iterator[td.TensorDictBase]:
        """The batches, as iterating over the collector gives them."""
        return iter(self)

    def next(self) -> td.TensorDictBase | None:
        """The next batch, or None after the last."""
        return next(self, None)

    def rollout(self) -> td.TensorDictBase:
        """One batch as it was collected, without post-processing and outside of the count of
        frames. No replay buffer gets it.

        A rollout continues running episodes, which go on after it. They get new trajectory ids
        then, since no other batch has the frames of the rollout: so trajectories and slices have no
        holes. A collector that delivers whole trajectories leaves out the episodes that the rollout
        cuts, and counts their frames in ``dropped_frames`` of :meth:`stats`.
        """
        self._core.check_outside()
        self._check_ready()
        self._source.follow()
        with self._acting() or contextlib.nullcontext():
            batch = self._core.rollout()
        if self._progress is not None:
            self._progress.add_outside(batch)
        self._source.mark(batch)
        return self._with_deltas(batch)

    def __len__(self) -> int:
        length = self._checked.len()
        if length is None:
            raise TypeError(f"an endless {type(self).__name__} has no length")
        return length

    def fake_tensordict(self) -> td.TensorDictBase:
        """Zeros with the entries, names, shapes and dtypes of a whole batch as it is delivered; no
        environment is stepped.

        What ``postproc`` and ``split_trajs`` make of a batch, they make of these zeros.

        Raises:
            ValueError: whole trajectories are delivered, whose lengths nobody knows before.
        """
        return self._ready.fake_batch()

    @_html.table
    def _repr_html_(self) -> dict[str, Any]:
        stats = self._core.stats()
        total, version = stats["total_frames"], stats["policy_version"]
        return {
            "frames": f"{stats['frames']:,} of {'any number' if total is None else format(total, ',')}",
            "frames a second": stats["recent_frames_per_second"],
            "frames in a batch": stats["requested_frames_per_batch"],
            "workers": f"{stats['workers_alive']} of {stats['workers']}, {'inline' if self._placement == 'inline' else 'in ' + self._placement}",
            "environments": stats["num_envs"],
            "policy": f"{self.policy_backend}{f': {self._doubt}' if self._doubt else ''}",
            "version of its weights": f"{version}, up to {stats['policy_lag_max']} behind it"
            if version
            else None,
            "restarts of workers": stats["restarts"] or None,
            "dropped frames": stats["dropped_frames"] or None,
            "memory of batches": f"{stats['slab_bytes'] / 2**20:,.1f} MiB in {stats['slabs']}",
        }

    def __repr__(self) -> str:
        if not self._core.belongs_here():
            return f"{type(self).__name__}(of another process)"
        stats = self._core.stats()
        total = "endless" if stats["total_frames"] is None else f"of {stats['total_frames']}"
        return (
            f"{type(self).__name__}({stats['frames']} frames {total}, {stats['requested_frames_per_batch']} a batch, "
            f"{stats['workers']} workers {'inline' if self._placement == 'inline' else 'in ' + self._placement}, "
            f"{stats['num_envs']} environments, "
            f"policy={self.policy_backend}{f': {self._doubt}' if self._doubt else ''})"
        )


class Collector(BaseCollector):
    """One worker, which runs in the thread that asks for batches.

    It acts with the policy as it is when a batch is asked for, without
    :meth:`update_policy_weights_`, unless the worker runs elsewhere or the policy is a copy on
    another device.

    Raises:
        TypeError: an argument is missing, unknown or of the wrong type.
        ValueError: an argument has a value that cannot be used, or is for several workers.

    Example:
        >>> from windrow.collectors import Collector
        >>> collector = Collector("CartPole-v1", frames_per_batch=100, total_frames=300)
        >>> [batch.shape for batch in collector]
        [torch.Size([100]), torch.Size([100]), torch.Size([100])]
    """

    _direct = True

    # As of `MultiCollector`.
    __signature__ = signature_of(SingleArguments)

    def __new__(cls, *args: Any, **arguments: Any) -> Self:
        several: Any = several_for(MultiCollector, args, arguments) if cls is Collector else None
        return super().__new__(cls) if several is None else several

    @takes(SingleArguments)
    def __init__(self, arguments: SingleArguments) -> None:
        self._build(arguments)


class AsyncCollector(BaseCollector):
    """One worker in the background, which collects the next batch while the present one is being
    used: a thread where the environment is native, a process where it is written in Python, see
    ``placement``.

    It acts with the weights that :meth:`update_policy_weights_` gave it.

    Example:
        >>> from windrow.collectors import AsyncCollector
        >>> with AsyncCollector("CartPole-v1", frames_per_batch=100, total_frames=200) as collector:
        ...     [len(batch) for batch in collector]
        [100, 100]
    """

    _sync = False
    _threads = True


class MultiCollector(BaseCollector):
    """Several workers: a :class:`MultiSyncCollector` or a :class:`MultiAsyncCollector`, as ``sync``
    says.

    ``create_env_fn`` is a list with an environment for each worker, an id or a function that makes
    one; or one of these, with ``num_workers``. Workers are threads where all environments are
    native, otherwise processes, see ``placement``. They act with the weights that
    :meth:`update_policy_weights_` gave them.

    Raises:
        TypeError: ``sync`` is missing, or the number of workers.
        ValueError: an argument has a value that cannot be used; the message says which can.
    """

    _threads = True
    _single = False

    # `__new__` chooses the class alone: what users may give stands in `__init__`.
    __signature__ = signature_of(MultiArguments)

    def __new__(cls, *_: Any, **arguments: Any) -> Self:
        chosen: Any = cls
        if cls is MultiCollector:
            sync = arguments.get("sync")
            if sync is None:
                near = difflib.get_close_matches("sync", arguments, n=1)
                raise TypeError(
                    f"MultiCollector needs sync=True or sync=False{f', got {near[0]}' if near else ''}"
                )
            chosen = MultiSyncCollector if sync else MultiAsyncCollector
        return super().__new__(chosen)

    @takes(MultiArguments)
    def __init__(self, arguments: MultiArguments) -> None:
        if arguments.sync is not None and arguments.sync != self._sync:
            raise ValueError(
                f"{type(self).__name__} with sync={arguments.sync}: leave sync out, or use MultiCollector"
            )
        self._build(arguments)

    @staticmethod
    def _on_ray(**arguments: Any) -> BaseCollector:
        """The same with workers in actors of Ray."""
        collector: BaseCollector = _ray.RayCollector(**arguments)
        return collector


class MultiSyncCollector(MultiCollector):
    """Several workers; each batch has a share of every one, collected after it was asked for.

    Its arguments are those of :class:`MultiCollector`; ``sync`` can be left out.

    Example:
        >>> from torch import nn
        >>> from windrow.collectors import MultiSyncCollector
        >>> policy = nn.Linear(4, 2)
        >>> with MultiSyncCollector("CartPole-v1", policy, num_workers=2, frames_per_batch=100, total_frames=200) as collector:
        ...     for batch in collector:
        ...         # Train the policy here, then publish its weights to the workers.
        ...         collector.update_policy_weights_()
        >>> len(batch)
        100
    """

    _sync = True


class MultiAsyncCollector(MultiCollector):
    """Several workers; each batch is one worker's, whichever is ready first, and the others go on
    meanwhile.

    Its arguments are those of :class:`MultiCollector`; ``sync`` can be left out.

    Example:
        >>> from windrow.collectors import MultiAsyncCollector
        >>> with MultiAsyncCollector(["CartPole-v1"] * 2, frames_per_batch=100, total_frames=400) as collector:
        ...     sum(len(batch) for batch in collector)
        400
    """

    _sync = False


# Old and present names of TorchRL.
DataCollectorBase = BaseCollector
SyncDataCollector = Collector
aSyncDataCollector = AsyncCollector
_MultiDataCollector = MultiCollector
MultiSyncDataCollector = MultiSyncCollector
MultiaSyncDataCollector = MultiAsyncCollector


def _concatenation(cat_results: object, *, sync: bool) -> str:
    """How shares of workers are put together, by the engine's name. Without ``sync``, each batch is
    one worker's.
    """
    names = {None: "flat", 0: "flat", -1: "time", "stack": "stack"}
    if isinstance(cat_results, bool) or cat_results not in names:
        raise ValueError(f'cat_results must be "stack", 0 or -1, got {cat_results!r}')
    return names[cat_results if sync else None]


def _drawn_by_torch() -> int:
    """A number of torch's generator: the same after each ``torch.manual_seed``, another for the
    next collector.
    """
    import torch

    return int(torch.randint(2**62, (), device="cpu"))
