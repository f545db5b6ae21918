"""Collectors that keep TorchRL's word where it differs from that of :mod:`windrow.collectors`.

``total_frames`` need not be a multiple of ``frames_per_batch``: a warning says how many frames come
on top, since the last batch is as large as the others. Shares of a :class:`MultiSyncCollector` are
stacked, ``[workers, ...]``, unless ``cat_results`` says otherwise. Batches are contiguous; those of
several environments are copied for it. A :class:`Collector` warns of arguments that it does not
know. In a pause, weights can be published and :meth:`~BaseCollector.map_fn` called.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Self

from windrow import collectors
from windrow._arguments import fields_of
from windrow._lazy import tensordict as td
from windrow._types import Policy
from windrow._warnings import warn
from windrow.collectors import _base
from windrow.collectors._arguments import CollectorArguments, SingleArguments
from windrow.collectors._base import BaseCollector
from windrow.collectors._several import several_for
from windrow.envs._factory import is_function
from windrow.envs.transforms import Wrapped
from windrow.policies.choose import Choice
from windrow.torchrl._names import register, stand_in

if TYPE_CHECKING:
    from windrow.collectors import (
        CommandLauncher as CommandLauncher,
        DataCollectorBase as DataCollectorBase,
        Evaluator as Evaluator,
        Interruptor as Interruptor,
        Launched as Launched,
        Launcher as Launcher,
        MultiProcessedWeightUpdater as MultiProcessedWeightUpdater,
        ProfileConfig as ProfileConfig,
        RandomPolicy as RandomPolicy,
        RayCollector as RayCollector,
        RayWeightUpdater as RayWeightUpdater,
        RemoteModuleWeightUpdater as RemoteModuleWeightUpdater,
        VanillaWeightUpdater as VanillaWeightUpdater,
        WeightUpdaterBase as WeightUpdaterBase,
    )
    from windrow.collectors.utils import split_trajectories as split_trajectories

_OWN = [
    "AsyncCollector",
    "Collector",
    "MultiAsyncCollector",
    "MultiCollector",
    "MultiSyncCollector",
    "MultiSyncDataCollector",
    "MultiaSyncDataCollector",
    "SyncDataCollector",
    "_MultiDataCollector",
    "aSyncDataCollector",
]
register(
    __name__,
    {
        "windrow.collectors.utils": ["split_trajectories"],
        "windrow.collectors": [*collectors.__all__, "_Interruptor"],
        "windrow.torchrl._async_batched": ["AsyncBatchedCollector"],
        __name__: _OWN,
    },
)
__getattr__, __dir__ = stand_in(__name__)


class AsTorchRL(BaseCollector):
    """TorchRL's word for any class of collectors."""

    #: As it was given.
    _asked_for: int | None = None

    def _build(self, arguments: CollectorArguments) -> None:
        acts = arguments.policy
        name = getattr(acts, "__name__", None)
        if getattr(acts, "__self__", acts) is arguments.create_env_fn is not None and name in (
            "rand_action",
            "rand_step",
        ):
            # The collector steps the environment, which draws the actions.
            arguments = arguments.but(policy=None)
        if arguments.trajs_per_batch is None and not arguments.allow_partial_batch:
            arguments, self._asked_for = _whole_batches(arguments)
        super()._build(arguments)

    def _chosen_policy(self, arguments: CollectorArguments) -> Choice:
        self._specify(arguments.policy)
        return super()._chosen_policy(arguments)

    def _specify(self, policy: Policy | None) -> None:
        """Gives modules of ``policy`` that add noise, and know no spec of actions, that of the
        environment.
        """
        if not any(
            getattr(module, "_spec", policy) is None
            for module in getattr(policy, "modules", list)()
        ):
            return
        # Such a module comes from torchrl.
        from torchrl.modules import set_exploration_modules_spec_from_env

        given = self._workers.given[0]
        looked_at = Wrapped(given) if isinstance(given, str) or is_function(given) else given
        set_exploration_modules_spec_from_env(policy, looked_at)
        if looked_at is not given:
            looked_at.close()

    def _make_core(self, arguments: CollectorArguments) -> Choice:
        try:
            choice = super()._make_core(arguments)
        except ValueError:
            if self._asked_for is None:
                raise
            # Environments that step together may not share the frames in all. How large their
            # batches are, an endless collector says.
            choice = super()._make_core(arguments.but(total_frames=None))
        batch = self.frames_per_batch
        rounded = arguments if self._asked_for is None else _rounded_up(arguments, batch)
        if self._asked_for is not None and (
            rounded is not arguments or self._core.stats()["total_frames"] is None
        ):
            self._warn_of_rounding(arguments.frames_per_batch)
            self._arguments = rounded.but(frames_per_batch=batch)
            self._core.shutdown(None)
            choice = super()._make_core(self._arguments)
        return choice

    def _warn_of_rounding(self, asked: int | float | Sequence[int]) -> None:
        if isinstance(asked, (int, float)) and asked < self.frames_per_batch:
            rounded = f"frames_per_batch={asked} cannot be split over environments that step together: batches have {self.frames_per_batch} frames"
            warn(rounded)

    @property
    def total_frames(self) -> int | float:
        """Frames in all, as they were asked for; infinite if the collector is endless."""
        return super().total_frames if self._asked_for is None else self._asked_for

    def _shaped(self, batch: td.TensorDictBase) -> td.TensorDictBase:
        batch = super()._shaped(batch)
        # The engine keeps environments next to each other at each step. Scripts call `view`, which
        # TorchRL's order allows.
        return batch.contiguous() if batch.ndim > 1 and isinstance(batch, td.TensorDict) else batch

    @functools.cached_property
    def _inner_dimensions(self) -> Sequence[int]:
        return super()._inner_dimensions or self.getattr_env("batch_size")[1:]

    def _check_answers(self) -> None:
        self._raise_background()


class Collector(AsTorchRL, _base.Collector):
    __doc__ = _base.Collector.__doc__

    __signature__ = _base.Collector.__signature__

    def __new__(cls, *args: Any, **arguments: Any) -> Self:
        several: Any = several_for(MultiCollector, args, arguments) if cls is Collector else None
        return object.__new__(cls) if several is None else several

    def __init__(self, *args: Any, **arguments: Any) -> None:
        _base.Collector.__init__(
            self, *args, **_known(arguments, {field.name for field in fields_of(SingleArguments)})
        )


class AsyncCollector(AsTorchRL, _base.AsyncCollector):
    __doc__ = _base.AsyncCollector.__doc__


class MultiCollector(AsTorchRL, _base.MultiCollector):
    __doc__ = _base.MultiCollector.__doc__

    def __new__(cls, *_: Any, sync: bool | None = None, **__: Any) -> Self:
        chosen: Any = cls
        if cls is MultiCollector:
            if sync is None:
                raise TypeError("MultiCollector needs sync=True or sync=False")
            chosen = MultiSyncCollector if sync else MultiAsyncCollector
        return object.__new__(chosen)


class MultiSyncCollector(MultiCollector, _base.MultiSyncCollector):
    __doc__ = _base.MultiSyncCollector.__doc__

    def _build(self, arguments: CollectorArguments) -> None:
        if arguments.cat_results is None and arguments.trajs_per_batch is None:
            arguments = arguments.but(cat_results="stack")
        envs, frames = arguments.create_env_fn, arguments.frames_per_batch
        workers = len(envs) if isinstance(envs, (list, tuple)) else arguments.num_workers
        if (
            arguments.cat_results == "stack"
            and workers
            and isinstance(frames, int)
            and frames % workers
        ):
            even = -(-frames // workers) * workers
            warn(
                f"frames_per_batch={frames} cannot be split over {workers} workers: batches have {even} frames"
            )
            arguments = arguments.but(frames_per_batch=even)
        super()._build(arguments)


class MultiAsyncCollector(MultiCollector, _base.MultiAsyncCollector):
    __doc__ = _base.MultiAsyncCollector.__doc__


# Old names of TorchRL.
SyncDataCollector = Collector
aSyncDataCollector = AsyncCollector
_MultiDataCollector = MultiCollector
MultiSyncDataCollector = MultiSyncCollector
MultiaSyncDataCollector = MultiAsyncCollector


def _whole_batches(arguments: CollectorArguments) -> tuple[CollectorArguments, int | None]:
    """Rounds ``total_frames`` up to whole batches, with a warning. Also returns the frames that
    were requested, None for endless collection.
    """
    asked = arguments.total_frames
    frames = arguments.frames_per_batch
    batch = int(sum(frames) if isinstance(frames, (list, tuple)) else frames)  # type: ignore[arg-type]
    rounded = _rounded_up(arguments, batch)
    if asked is None or rounded is arguments:
        return arguments, None if asked is None else int(asked)
    warn(
        f"total_frames={asked} is no multiple of frames_per_batch={batch}: the last batch is as large as the others, as in TorchRL"
    )
    return rounded, int(asked)


def _rounded_up(arguments: CollectorArguments, batch: int) -> CollectorArguments:
    """``arguments`` with ``total_frames`` a multiple of ``batch``; themselves if it is one."""
    total = arguments.total_frames
    if total is None or total % batch == 0:
        return arguments
    return arguments.but(total_frames=-(-int(total) // batch) * batch)


def _known(arguments: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """``arguments`` without unknown ones, of which it warns."""
    unknown = sorted(arguments.keys() - names)
    if unknown:
        warn(f"Collector has no argument {', '.join(unknown)}: without effect, as in TorchRL")
    return {name: value for name, value in arguments.items() if name in names}
