"""Exceptions of other processes, with their tracebacks as text."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

from windrow.processes.pickling import dumps

#: Exceptions that take more bytes than this are sent as text, which is cut to this number of
#: characters.
_LONG = 1 << 20


class RemoteTraceback(Exception):
    """The traceback of an exception in a worker process, as the ``__cause__`` of that exception
    here.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lines = text

    def __str__(self) -> str:
        return f"in a worker process:\n{self.lines}"


def sent(error: BaseException) -> bytes:
    """An exception of a worker process, as bytes."""
    # What no encoding knows, such as the name of a file, is written as an escape.
    lines = _cut(
        "".join(traceback.format_exception(error)).encode(errors="backslashreplace").decode()
    )
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    message = _cut(traceback.format_exception_only(error)[-1].strip())
    try:
        pickled = dumps(error)
        # Some can be written, and not be read again: their constructors have other arguments.
        pickle.loads(pickled)
        pickled = pickled if len(pickled) <= _LONG else b""
    except BaseException:
        pickled = b""
    return pickle.dumps((pickled, name, message, lines, isinstance(error, Exception)))


def _cut(text: str) -> str:
    half = _LONG // 2
    return (
        text if len(text) <= _LONG else f"{text[:half]}… ({len(text)} characters) …{text[-half:]}"
    )


def received(sent: bytes) -> BaseException:
    """The exception that :func:`sent` has written: of its own type where that can be read here,
    otherwise a ``RuntimeError`` that names the type. Its cause has the traceback.
    """
    pickled, name, message, text, is_failure = pickle.loads(sent)
    error: Any = None
    if pickled:
        try:
            error = pickle.loads(pickled)
        except Exception:
            pass
    if not isinstance(error, BaseException):
        error = RuntimeError(message) if is_failure else KeyboardInterrupt(message)
        error.add_note(f"It was {name}, which cannot be sent from a worker process.")
    error.__cause__ = RemoteTraceback(text.rstrip())
    return error
