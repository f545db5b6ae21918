"""Replay buffers and their parts, where TorchRL has them. The modules that define them name
them.
"""

from typing import TYPE_CHECKING

from windrow._lazy import listing as _listing, names_of as _names_of
from windrow.data.replay_buffers import (
    replay_buffers as _buffers,
    samplers as _samplers,
    storages as _storages,
    writers as _writers,
)
from windrow.data.replay_buffers.replay_buffers import *
from windrow.data.replay_buffers.samplers import *
from windrow.data.replay_buffers.storages import *
from windrow.data.replay_buffers.writers import *
from windrow.ray import _buffer as _ray
from windrow.ray._buffer import *

if not TYPE_CHECKING:
    __getattr__ = _names_of(__name__, {})
    # Checkers that add up no lists take all that was imported.
    __all__ = [
        *_ray.__all__,
        *_buffers.__all__,
        *_samplers.__all__,
        *_storages.__all__,
        *_writers.__all__,
    ]
    __dir__ = _listing(__name__, __all__)
