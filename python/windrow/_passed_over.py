"""Arguments of TorchRL's that change nothing here."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Any

#: What windrow does in any case where TorchRL has a choice, and why that is so.
Fixed = tuple[Any, str]


def pass_over(name: str, arguments: Mapping[str, Any], without_effect: Mapping[str, Fixed]) -> None:
    """Warns of arguments that have no effect, at the line of whoever calls windrow. What asks for what is done anyway, or for
    nothing, needs no warning.

    Args:
        name: of the class that was given them.
        arguments: those that it does not name itself.
        without_effect: those that TorchRL knows, with the value that holds here and why no other has an effect.

    Raises:
        TypeError: naming all that are not known.
    """
    strange = sorted(set(arguments) - set(without_effect))
    if strange:
        raise TypeError(f"{name} has no argument {', '.join(strange)}")
    for argument, value in arguments.items():
        holds, why = without_effect[argument]
        # Of one type, since 0 is no False, and since tensors do not compare.
        if value is not None and not (type(value) is type(holds) and value == holds):
            warnings.warn(f"{argument} has no effect: {why}", UserWarning, stacklevel=outside())


def outside() -> int:
    """How far up the first caller is that is not of this package, as ``stacklevel`` of a warning of whoever asks."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "windrow":
        level, frame = level + 1, frame.f_back
    return level
