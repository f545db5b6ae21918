"""Arguments of TorchRL's that change nothing here."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Any


def pass_over(name: str, arguments: Mapping[str, Any], without_effect: Mapping[str, str]) -> None:
    """Warns of arguments that have no effect, at the line of whoever calls windrow.

    Args:
        name: of the class that was given them.
        arguments: those that it does not name itself.
        without_effect: those that TorchRL knows, and why they have no effect.

    Raises:
        TypeError: naming all that are not known.
    """
    strange = sorted(set(arguments) - set(without_effect))
    if strange:
        raise TypeError(f"{name} has no argument {', '.join(strange)}")
    for argument, value in arguments.items():
        if value is not None and not (isinstance(value, int) and not value):
            warnings.warn(f"{argument} has no effect: {without_effect[argument]}", UserWarning, stacklevel=_outside())


def _outside() -> int:
    """How far up the first caller is that is not of this package, as ``stacklevel`` of a warning of :func:`pass_over`."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "windrow":
        level, frame = level + 1, frame.f_back
    return level
