"""Workers, collectors and replay buffers in actors of Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windrow._lazy import listing, names_of

if TYPE_CHECKING:
    from windrow.ray._collector import RayCollector
    from windrow.ray._launcher import RayLauncher

__all__ = ["RayCollector", "RayLauncher"]

if not TYPE_CHECKING:
    __getattr__ = names_of(__name__, {"RayCollector": "_collector", "RayLauncher": "_launcher"})
    __dir__ = listing(__name__, __all__)
