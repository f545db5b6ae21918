"""Replay buffers."""

from windrow.data._buffers import ReplayBuffer
from windrow.data._named import PrioritizedReplayBuffer, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer

__all__ = [
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "TensorDictPrioritizedReplayBuffer",
    "TensorDictReplayBuffer",
]
