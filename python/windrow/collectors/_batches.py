"""Changes of a batch before it is delivered."""

from __future__ import annotations

from typing import Any


def without_private(batch: Any) -> Any:
    """``batch`` without entries that begin with an underscore, at any depth."""
    private = [key for key in batch.keys(True) if any(name.startswith("_") for name in _names(key))]
    return batch.exclude(*private) if private else batch


def without_next_observations(batch: Any) -> Any:
    """``batch`` with nothing under ``"next"`` but the reward and the flags."""
    kept = {"reward", "done", "terminated", "truncated"}
    dropped = [("next", *_names(key)) for key in batch["next"].keys(True, True) if _names(key)[-1] not in kept]
    return batch.exclude(*dropped)


def _names(key: Any) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)
