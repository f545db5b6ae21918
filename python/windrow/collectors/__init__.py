"""Collectors run a policy in environments, and deliver batches of experience."""

from windrow.collectors._base import (
    AsyncCollector,
    BaseCollector,
    Collector,
    MultiAsyncCollector,
    MultiCollector,
    MultiSyncCollector,
)
from windrow.collectors._evaluator import Evaluator
from windrow.collectors._interruptor import Interruptor
from windrow.collectors._profile import ProfileConfig
from windrow.collectors._updaters import (
    MultiProcessedWeightUpdater,
    RayWeightUpdater,
    RemoteModuleWeightUpdater,
    VanillaWeightUpdater,
    WeightUpdaterBase,
)
from windrow.modules import RandomPolicy

# Old and present names of TorchRL.
DataCollectorBase = BaseCollector
SyncDataCollector = Collector
aSyncDataCollector = AsyncCollector
_MultiDataCollector = MultiCollector
MultiSyncDataCollector = MultiSyncCollector
MultiaSyncDataCollector = MultiAsyncCollector
_Interruptor = Interruptor

__all__ = [
    "AsyncCollector",
    "BaseCollector",
    "Collector",
    "DataCollectorBase",
    "Evaluator",
    "Interruptor",
    "MultiAsyncCollector",
    "MultiCollector",
    "MultiProcessedWeightUpdater",
    "MultiSyncCollector",
    "MultiSyncDataCollector",
    "MultiaSyncDataCollector",
    "ProfileConfig",
    "RandomPolicy",
    "RayWeightUpdater",
    "RemoteModuleWeightUpdater",
    "SyncDataCollector",
    "VanillaWeightUpdater",
    "WeightUpdaterBase",
    "aSyncDataCollector",
]
