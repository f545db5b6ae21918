"""Replay buffers and their parts, where TorchRL has them. The modules that define them name them."""

from windrow._lazy import of_torchrl as _of_torchrl
from windrow.data.replay_buffers._ray import *
from windrow.data.replay_buffers.replay_buffers import *
from windrow.data.replay_buffers.samplers import *
from windrow.data.replay_buffers.storages import *
from windrow.data.replay_buffers.writers import *

__getattr__ = _of_torchrl(__name__)
