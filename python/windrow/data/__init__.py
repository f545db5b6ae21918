"""Replay buffers, their storages, samplers, writers and limiters, and what is done to batches.

The modules that define classes name them, in their ``__all__``. Classes of specs (``Bounded``, ``Categorical``, ``Composite`` and
others) are those of TorchRL, where it is installed.
"""

from typing import Any as _Any

from windrow.data._limiters import *
from windrow.data._postprocs import *
from windrow.data.replay_buffers.replay_buffers import *
from windrow.data.replay_buffers.samplers import *
from windrow.data.replay_buffers.storages import *
from windrow.data.replay_buffers.writers import *

#: Classes of TorchRL's own that its package of this name has.
_SPECS = {"Binary", "Bounded", "Categorical", "Composite", "MultiCategorical", "MultiOneHot", "OneHot", "TensorSpec", "Unbounded"}


def __getattr__(name: str) -> _Any:
    if name not in _SPECS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import torchrl.data
    except ImportError as error:
        raise ImportError(f"{name} is a class of TorchRL: install torchrl to use it") from error
    return getattr(torchrl.data, name)
