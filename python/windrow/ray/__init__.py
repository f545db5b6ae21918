"""Workers, collectors and replay buffers in actors of Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING

# First, whatever is imported first: it has the names of a module here.
from windrow import data as _data
from windrow._lazy import listing, names_of

if TYPE_CHECKING:
    from windrow.ray._buffer import RayReplayBuffer
    from windrow.ray._collector import RayCollector
    from windrow.ray._launcher import RayLauncher

__all__ = ["RayCollector", "RayLauncher", "RayReplayBuffer"]

if not TYPE_CHECKING:
    __getattr__ = names_of(
        __name__,
        {"RayCollector": "_collector", "RayLauncher": "_launcher", "RayReplayBuffer": "_buffer"},
    )
    __dir__ = listing(__name__, __all__)
