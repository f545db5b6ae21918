"""Replay buffers, their storages, samplers, writers and limiters, and what is done to batches.

Classes of specs (``Bounded``, ``Categorical``, ``Composite`` and others) are those of TorchRL, where it is installed.
"""

from typing import Any

from windrow.data._buffers import ReplayBuffer
from windrow.data._limiters import RateLimiter
from windrow.data._named import PrioritizedReplayBuffer, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer
from windrow.data._postprocs import MultiStep, split_trajectories
from windrow.data._samplers import (
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from windrow.data._storages import (
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    TensorStorage,
)
from windrow.data._writers import RoundRobinWriter, TensorDictMaxValueWriter, TensorDictRoundRobinWriter

__all__ = [
    "LazyMemmapStorage",
    "LazyStackStorage",
    "LazyTensorStorage",
    "ListStorage",
    "MultiStep",
    "PrioritizedReplayBuffer",
    "PrioritizedSampler",
    "PrioritizedSliceSampler",
    "RandomSampler",
    "RateLimiter",
    "ReplayBuffer",
    "RoundRobinWriter",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
    "TensorDictMaxValueWriter",
    "TensorDictPrioritizedReplayBuffer",
    "TensorDictReplayBuffer",
    "TensorDictRoundRobinWriter",
    "TensorStorage",
    "split_trajectories",
]

_SPECS = frozenset(
    {"Binary", "Bounded", "Categorical", "Composite", "MultiCategorical", "MultiOneHot", "OneHot", "TensorSpec", "Unbounded"}
)


def __getattr__(name: str) -> Any:
    if name not in _SPECS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import torchrl.data
    except ImportError as error:
        raise ImportError(f"{name} is a class of TorchRL: install torchrl to use it") from error
    return getattr(torchrl.data, name)
