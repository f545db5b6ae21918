"""Replay buffers and their parts, where TorchRL has them. The modules that define them name them."""

from windrow import _fence as _fence
from windrow.data.replay_buffers.replay_buffers import *
from windrow.data.replay_buffers.samplers import *
from windrow.data.replay_buffers.storages import *
from windrow.data.replay_buffers.writers import *
from windrow.ray._buffer import *

__getattr__ = _fence.rest_of(__name__)
