"""Figures of a server that evaluates a policy for many clients."""

from __future__ import annotations

import time
from typing import Any

#: What is counted, and counted anew after a reset.
_COUNTS = ("requests", "batches", "failed_batches", "rows")


class Figures:
    """Figures of a server as its users see them, from those of the engine, for calls with up to
    ``max_batch_size`` rows.
    """

    def __init__(self, max_batch_size: int) -> None:
        self._most = max_batch_size
        self._since = time.monotonic()
        self._before = dict.fromkeys(_COUNTS, 0)

    def of(self, figures: dict[str, Any], *, reset: bool) -> dict[str, float | int]:
        """``figures`` of the engine, with rates since the start or the last ``reset``; nothing
        where there are none.
        """
        if not figures:
            return {}
        seconds = max(time.monotonic() - self._since, 1e-9)
        counts = {name: figures[name] - self._before[name] for name in _COUNTS}
        size = counts["rows"] / max(counts["batches"], 1)
        out = {
            **figures,
            **counts,
            "avg_batch_size": size,
            "batch_fill": size / self._most,
            "requests_per_s": counts["requests"] / seconds,
            "batches_per_s": counts["batches"] / seconds,
        }
        if reset:
            self._since, self._before = time.monotonic(), {name: figures[name] for name in _COUNTS}
        return out
