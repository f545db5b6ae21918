"""Arguments that are not a function's own: TorchRL's that change nothing here, and those that nobody knows."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

from windrow._arguments import outside, unknown, warn_ignored

__all__ = ["Fixed", "outside", "pass_over", "unknown"]

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
        TypeError: naming all that are not known, and what each may have been meant to be.
    """
    strange = sorted(set(arguments) - set(without_effect))
    if strange:
        raise unknown(name, strange, {*_named_by(sys._getframe(1)), *without_effect})
    for argument, value in arguments.items():
        warn_ignored(argument, value, *without_effect[argument])


def _named_by(frame: FrameType) -> set[str]:
    """The arguments that a function names, and those of the classes that pass the rest of theirs on to it."""
    own = frame.f_locals.get("self")
    codes = [frame.f_code]
    if own is not None and frame.f_code.co_name == "__init__":
        made = [getattr(vars(kind).get("__init__"), "__code__", None) for kind in type(own).__mro__]
        codes += [code for code in made if code is not None]
    named = (code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] for code in codes)
    return {argument for names in named for argument in names} - {"self"}
