from __future__ import annotations

from collections.abc import Callable
from typing import Any

from windrow.data._content import checked


class Transforms:
    """The transforms of a buffer: samples go through them in order, written frames through their ``inv`` in the opposite order."""

    def __init__(self, first: Callable[[Any], Any] | None) -> None:
        self.all: list[Callable[[Any], Any]] = [] if first is None else [first]

    def insert(self, index: int, transform: Callable[[Any], Any], invert: bool) -> None:
        """Adds a transform before the one in place ``index``; with ``invert``, its two directions are exchanged."""
        self.all.insert(index, Inverted(transform) if invert else transform)

    @property
    def leave_writes(self) -> bool:
        """Whether frames are written as they are given."""
        return not any(hasattr(transform, "inv") for transform in self.all)

    def of_sample(self, batch: Any) -> Any:
        """The sample that a batch of frames becomes."""
        for transform in self.all:
            batch = transform(batch)
        return batch

    def of_written(self, batch: Any) -> Any:
        """The frames that are written when ``batch`` is given; None if there are none."""
        for transform in reversed(self.all):
            inverse = getattr(transform, "inv", None)
            if batch is not None and inverse is not None:
                batch = inverse(batch)
                batch = None if batch is None else checked(batch)
        return batch


class Inverted:
    """A transform whose two directions are exchanged: it is called with written frames, and its ``inv`` with samples."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.transform = transform

    def __call__(self, batch: Any) -> Any:
        inverse = getattr(self.transform, "inv", None)
        return batch if inverse is None else inverse(batch)

    def inv(self, batch: Any) -> Any:
        return self.transform(batch)

    def __repr__(self) -> str:
        return f"Inverted({self.transform!r})"
