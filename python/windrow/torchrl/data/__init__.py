"""Replay buffers that keep TorchRL's word where it differs from that of :mod:`windrow.data`."""

from __future__ import annotations

from types import ModuleType

from windrow import data
from windrow.data.replay_buffers import scheduler
from windrow.torchrl._names import register, stand_in

_PUBLIC = [name for name, value in vars(data).items() if not (name.startswith("_") or isinstance(value, ModuleType))]
_BUFFERS = [
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "RoundRobinWriter",
    "TensorDictPrioritizedReplayBuffer",
    "TensorDictReplayBuffer",
    "TensorDictRoundRobinWriter",
]
register(
    __name__,
    {"windrow.torchrl._schedulers": scheduler.__all__, "windrow.data": _PUBLIC, "windrow.torchrl._buffers": _BUFFERS},
)
__getattr__, __dir__ = stand_in(__name__)
