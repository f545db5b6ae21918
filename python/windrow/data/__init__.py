"""Replay buffers, their storages, samplers, writers and limiters, and what is done to batches.

The modules that define classes name them, in their ``__all__``. Classes of specs (``Bounded``, ``Categorical``, ``Composite`` and
others) are those of TorchRL, where it is installed.
"""

from typing import Any as _Any

from windrow.data import _torchrl_compat
from windrow.data._buffers import *
from windrow.data._limiters import *
from windrow.data._named import *
from windrow.data._postprocs import *
from windrow.data._samplers import *
from windrow.data._storages import *
from windrow.data._torchrl_compat import *
from windrow.data._writers import *


def __getattr__(name: str) -> _Any:
    if name not in _torchrl_compat.SPECS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _torchrl_compat.spec_class(name)
