"""Replay buffers, their storages, samplers, writers and limiters, data sets, and what is done to
batches.

The modules that define classes name them, in their ``__all__``.
"""

from typing import TYPE_CHECKING

from windrow._lazy import listing as _listing, names_of as _names_of
from windrow.data import _datasets, _frames, _limiters, _mix, _postprocs, replay_buffers
from windrow.data._datasets import *
from windrow.data._frames import *
from windrow.data._limiters import *
from windrow.data._mix import *
from windrow.data._postprocs import *
from windrow.data.replay_buffers import *

if not TYPE_CHECKING:
    __getattr__ = _names_of(__name__, {})
    # Checkers that add up no lists take all that was imported.
    __all__ = [
        *_datasets.__all__,
        *_frames.__all__,
        *_limiters.__all__,
        *_mix.__all__,
        *_postprocs.__all__,
        *replay_buffers.__all__,
    ]
    __dir__ = _listing(__name__, __all__)
