from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Inverted:
    """A transform that is called with what is written, and its ``inv`` with samples."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.transform = transform

    def __call__(self, batch: Any) -> Any:
        inverse = getattr(self.transform, "inv", None)
        return batch if inverse is None else inverse(batch)

    def inv(self, batch: Any) -> Any:
        return self.transform(batch)

    def __repr__(self) -> str:
        return f"Inverted({self.transform!r})"
