"""Transforms of a buffer: samples go through them in order, written frames through their ``inv`` in the opposite order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from windrow.data._content import checked

Transform: TypeAlias = Callable[[Any], Any]


def sample_from(batch: Any, transforms: Sequence[Transform]) -> Any:
    """The sample that a batch of frames becomes."""
    for transform in transforms:
        batch = transform(batch)
    return batch


def written_from(batch: Any, transforms: Sequence[Transform]) -> Any:
    """The frames that are written when ``batch`` is given; None if there are none."""
    for transform in reversed(transforms):
        inverse = getattr(transform, "inv", None)
        if batch is not None and inverse is not None:
            batch = inverse(batch)
            batch = None if batch is None else checked(batch)
    return batch


class Inverted:
    """A transform whose two directions are exchanged: it is called with written frames, and its ``inv`` with samples."""

    def __init__(self, transform: Transform) -> None:
        self.transform = transform

    def __call__(self, batch: Any) -> Any:
        inverse = getattr(self.transform, "inv", None)
        return batch if inverse is None else inverse(batch)

    def inv(self, batch: Any) -> Any:
        return self.transform(batch)

    def __repr__(self) -> str:
        return f"Inverted({self.transform!r})"
