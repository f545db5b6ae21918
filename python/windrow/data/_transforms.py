"""Transforms of samples, and of frames that are written."""

from collections.abc import Callable
from typing import Any, TypeAlias

Transform: TypeAlias = Callable[[Any], Any]


class Inverted:
    """A transform whose two directions are exchanged: it is called with written frames, and its
    ``inv`` with samples.
    """

    def __init__(self, transform: Transform) -> None:
        self.inv = transform

    def __call__(self, batch: object) -> object:
        inverse = getattr(self.inv, "inv", None)
        return batch if inverse is None else inverse(batch)

    def __repr__(self) -> str:
        return f"Inverted({self.inv!r})"
