"""Collectors that keep TorchRL's word where it differs from that of :mod:`windrow.collectors`.

``total_frames`` need not be a multiple of ``frames_per_batch``: a warning says how many frames come
on top, since the last batch is as large as the others. Shares of a :class:`MultiSyncCollector` are
stacked, ``[workers, ...]``, unless ``cat_results`` says otherwise. Batches are contiguous; those of
several environments are copied for it. A :class:`Collector` warns of arguments that it does not
know. In a pause, weights can be published and :meth:`~BaseCollector.map_fn` called.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Self

from windrow import collectors
from windrow._arguments import fields_of
from windrow._warnings import warn
from windrow.collectors import _base
from windrow.collectors._arguments import CollectorArguments, SingleArguments
from windrow.collectors._several import several_for
from windrow.torchrl._collectors import AsTorchRL
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


def _known(arguments: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """``arguments`` without unknown ones, of which it warns."""
    unknown = sorted(arguments.keys() - names)
    if unknown:
        warn(f"Collector has no argument {', '.join(unknown)}: without effect, as in TorchRL")
    return {name: value for name, value in arguments.items() if name in names}
