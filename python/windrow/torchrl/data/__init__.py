"""Replay buffers that keep TorchRL's word where it differs from that of :mod:`windrow.data`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windrow import data
from windrow.data.replay_buffers import scheduler
from windrow.torchrl._names import register, stand_in

if TYPE_CHECKING:
    from windrow.data._limiters import *
    from windrow.data._postprocs import *
    from windrow.data.replay_buffers.samplers import *
    from windrow.data.replay_buffers.storages import *
    from windrow.data.replay_buffers.writers import (
        TensorDictMaxValueWriter as TensorDictMaxValueWriter,
    )
    from windrow.ray._buffer import *
    from windrow.torchrl._buffers import (
        HERReplayBuffer as HERReplayBuffer,
        PrioritizedReplayBuffer as PrioritizedReplayBuffer,
        ReplayBuffer as ReplayBuffer,
        RoundRobinWriter as RoundRobinWriter,
        TensorDictPrioritizedReplayBuffer as TensorDictPrioritizedReplayBuffer,
        TensorDictReplayBuffer as TensorDictReplayBuffer,
        TensorDictRoundRobinWriter as TensorDictRoundRobinWriter,
    )
    from windrow.torchrl._schedulers import *

_BUFFERS = [
    "HERReplayBuffer",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "RoundRobinWriter",
    "TensorDictPrioritizedReplayBuffer",
    "TensorDictReplayBuffer",
    "TensorDictRoundRobinWriter",
]
register(
    __name__,
    {
        "windrow.torchrl._schedulers": scheduler.__all__,
        "windrow.data": vars(data)["__all__"],
        "windrow.torchrl._buffers": _BUFFERS,
    },
)
__getattr__, __dir__ = stand_in(__name__)
