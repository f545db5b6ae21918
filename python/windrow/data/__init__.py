"""Replay buffers, their storages, samplers, writers and limiters, and what is done to batches.

The modules that define classes name them, in their ``__all__``. Classes of specs (``Bounded``, ``Categorical``, ``Composite`` and
others) are those of TorchRL, where it is installed, and so is all else that only ``torchrl.data`` has.
"""

from windrow import _fence as _fence
from windrow.data._limiters import *
from windrow.data._postprocs import *
from windrow.data.replay_buffers.replay_buffers import *
from windrow.data.replay_buffers.samplers import *
from windrow.data.replay_buffers.storages import *
from windrow.data.replay_buffers.writers import *
from windrow.ray._buffer import *

__getattr__ = _fence.rest_of(__name__)
