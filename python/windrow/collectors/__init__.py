"""Collectors run a policy in environments, and deliver batches of experience."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windrow._lazy import listing, names_of
from windrow.modules import RandomPolicy

if TYPE_CHECKING:
    from windrow.collectors._async_batched import AsyncBatchedCollector
    from windrow.collectors._base import (
        AsyncCollector,
        BaseCollector,
        Collector,
        DataCollectorBase,
        MultiAsyncCollector,
        MultiaSyncDataCollector,
        MultiCollector,
        MultiSyncCollector,
        MultiSyncDataCollector,
        SyncDataCollector,
        _MultiDataCollector,
        aSyncDataCollector,
    )
    from windrow.collectors._evaluator import Evaluator
    from windrow.collectors._interruptor import Interruptor, _Interruptor
    from windrow.collectors._launcher import CommandLauncher, Launched, Launcher
    from windrow.collectors._profile import ProfileConfig
    from windrow.collectors._updaters import (
        MultiProcessedWeightUpdater,
        RayWeightUpdater,
        RemoteModuleWeightUpdater,
        VanillaWeightUpdater,
        WeightUpdaterBase,
    )
    from windrow.ray import RayCollector

__all__ = [
    "AsyncBatchedCollector",
    "AsyncCollector",
    "BaseCollector",
    "Collector",
    "CommandLauncher",
    "DataCollectorBase",
    "Evaluator",
    "Interruptor",
    "Launched",
    "Launcher",
    "MultiAsyncCollector",
    "MultiCollector",
    "MultiProcessedWeightUpdater",
    "MultiSyncCollector",
    "MultiSyncDataCollector",
    "MultiaSyncDataCollector",
    "ProfileConfig",
    "RandomPolicy",
    "RayCollector",
    "RayWeightUpdater",
    "RemoteModuleWeightUpdater",
    "SyncDataCollector",
    "VanillaWeightUpdater",
    "WeightUpdaterBase",
    "aSyncDataCollector",
]

if not TYPE_CHECKING:
    #: The modules of all names that are not in ``_base``.
    _HOMES = {
        "AsyncBatchedCollector": "_async_batched",
        "CommandLauncher": "_launcher",
        "Evaluator": "_evaluator",
        "Interruptor": "_interruptor",
        "Launched": "_launcher",
        "Launcher": "_launcher",
        "MultiProcessedWeightUpdater": "_updaters",
        "ProfileConfig": "_profile",
        "RayCollector": ".ray",
        "RayWeightUpdater": "_updaters",
        "RemoteModuleWeightUpdater": "_updaters",
        "VanillaWeightUpdater": "_updaters",
        "WeightUpdaterBase": "_updaters",
        "_Interruptor": "_interruptor",
    }
    __getattr__ = names_of(
        __name__,
        {
            name: _HOMES.get(name, "_base")
            for name in (*__all__, "_Interruptor", "_MultiDataCollector")
        },
    )
    __dir__ = listing(__name__, __all__)
