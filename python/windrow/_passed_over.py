"""Arguments that are not a function's own: TorchRL's that change nothing here, and those that nobody knows."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable, Mapping
from types import FrameType
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
        TypeError: naming all that are not known, and what each may have been meant to be.
    """
    strange = sorted(set(arguments) - set(without_effect))
    if strange:
        raise unknown(name, strange, {*_named_by(sys._getframe(1)), *without_effect})
    for argument, value in arguments.items():
        holds, why = without_effect[argument]
        # Of one type, since 0 is no False, and since tensors do not compare.
        if value is not None and not (type(value) is type(holds) and value == holds):
            warnings.warn(f"{argument} has no effect: {why}", UserWarning, stacklevel=outside())


def unknown(name: str, strange: Iterable[str], known: Iterable[str]) -> TypeError:
    """The error for arguments of ``name`` that are none of the ``known`` ones."""
    known = sorted(known)

    def told(argument: str) -> str:
        near = difflib.get_close_matches(argument, known, n=1, cutoff=0.75)
        return f"{argument} (did you mean {near[0]}?)" if near else argument

    return TypeError(f"{name} has no argument {', '.join(map(told, strange))}")


def _named_by(frame: FrameType) -> set[str]:
    """The arguments that a function names, and those of the classes that pass the rest of theirs on to it."""
    own = frame.f_locals.get("self")
    codes = [frame.f_code]
    if own is not None and frame.f_code.co_name == "__init__":
        made = [getattr(vars(kind).get("__init__"), "__code__", None) for kind in type(own).__mro__]
        codes += [code for code in made if code is not None]
    named = (code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] for code in codes)
    return {argument for names in named for argument in names} - {"self"}


def outside() -> int:
    """How far up the first caller is that is not of this package, as ``stacklevel`` of a warning of whoever asks."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "windrow":
        level, frame = level + 1, frame.f_back
    return level
