"""Replay buffers, their storages, samplers, writers and limiters, and what is done to batches."""

from windrow.data._buffers import (
    PrioritizedReplayBuffer,
    ReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from windrow.data._limiters import RateLimiter
from windrow.data._postprocs import MultiStep, split_trajectories
from windrow.data._samplers import (
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from windrow.data._storages import LazyMemmapStorage, LazyTensorStorage, ListStorage
from windrow.data._writers import RoundRobinWriter, TensorDictMaxValueWriter, TensorDictRoundRobinWriter

__all__ = [
    "LazyMemmapStorage",
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
    "split_trajectories",
]
