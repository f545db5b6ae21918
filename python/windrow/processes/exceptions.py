"""Exceptions of other processes as data: type by name, message and traceback as text."""

from __future__ import annotations

import builtins
import traceback
from typing import Any

#: Text that is longer is cut to this number of characters.
_LONG = 1 << 20
#: Notes of an exception that cross; each is cut to ``_LONG`` characters.
_NOTES = 64

#: The exceptions that are made again, by name. Others stand for an end of the program or of a loop,
#: which is nobody else's to say.
_BUILT_IN = {
    f"builtins.{name}": kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type)
    and issubclass(kind, Exception)
    and not issubclass(kind, (StopIteration, StopAsyncIteration))
}


class GraphRefused(RuntimeError):
    """The graph of a policy does not fit the environments of a worker process, which has nothing
    else of the policy.
    """


#: Exceptions of windrow's own that are made again, too.
_OWN = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in (GraphRefused,)}


def refusal(error: BaseException | None) -> str | None:
    """Why a worker process refused a graph; None where ``error`` says something else."""
    if isinstance(error, GraphRefused):
        return str(error)
    return None if error is None else refusal(error.__cause__)


class RemoteTraceback(Exception):
    """The traceback of an exception in a worker process, as the ``__cause__`` of that exception
    here.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lines = text

    def __str__(self) -> str:
        return f"in a worker process:\n{self.lines}"


def described(error: BaseException) -> tuple[Any, ...]:
    """The arguments of :func:`made_of` for ``error``, all of them data: the name of the type, the
    message, the traceback, the exception's arguments if they are plain, and the first notes.
    """
    # What no encoding knows, such as the name of a file, is written as an escape.
    lines = _cut(
        "".join(traceback.format_exception(error)).encode(errors="backslashreplace").decode()
    )
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    summary = traceback.TracebackException(type(error), error, None)
    summary.__notes__ = None
    message = _cut("".join(summary.format_exception_only()).strip())
    are_plain = (
        all(type(one) in (str, bytes, int, float, bool, type(None)) for one in error.args)
        and len(repr(error.args)) <= _LONG
    )
    notes = [note for note in getattr(error, "__notes__", ()) if type(note) is str]
    return (
        name,
        message,
        lines,
        error.args if are_plain else None,
        tuple(map(_cut, notes[:_NOTES])),
    )


def _cut(text: str) -> str:
    half = _LONG // 2
    return (
        text if len(text) <= _LONG else f"{text[:half]}… ({len(text)} characters) …{text[-half:]}"
    )


def made_of(
    name: str,
    message: str,
    lines: str,
    args: tuple[Any, ...] | None,
    notes: tuple[str, ...],
) -> Exception:
    """The exception that was :func:`described`. It has its own type if that is built in. Otherwise
    it is a ``RuntimeError`` with a note that names the type. Its cause has the traceback.
    """
    error = _built_in(name, args)
    if error is None:
        error = RuntimeError(message)
        error.add_note(f"It was {name}, which cannot be sent from a worker process.")
    for note in notes[:_NOTES]:
        error.add_note(_cut(note))
    error.__cause__ = RemoteTraceback(lines.rstrip())
    return error


def _built_in(name: str, args: tuple[Any, ...] | None) -> Exception | None:
    """The exception of this name, if it is built in, or windrow's, and takes these arguments."""
    kind = _BUILT_IN.get(name) or _OWN.get(name)
    try:
        made = None if kind is None or args is None else kind(*args)
        return None if isinstance(made, UnicodeError) and _lies_outside(made) else made
    except Exception:
        return None


def _lies_outside(error: UnicodeError) -> bool:
    """Whether ``error`` is at a place beyond its text, which Python reads where it shows it,
    without a look at the text's length.
    """
    if type(error) is UnicodeError:
        return False
    *_, text, start, end, _ = error.args
    return not 0 <= start <= end <= len(text)
