"""The warnings of this package."""

from __future__ import annotations

import sys
import warnings


class Warning(UserWarning):
    """Every warning of windrow is of this class:
    ``warnings.filterwarnings("ignore", category=windrow.Warning)`` silences them.
    """


class RenamedWarning(Warning, DeprecationWarning):
    """An argument was given by its old name."""


class PerformanceWarning(Warning):
    """A program is right, and slower than it could be: Python calls a policy, or steps an
    environment, that Rust could run if it were made in another way.
    """


for _kind in (Warning, RenamedWarning, PerformanceWarning):
    _kind.__module__ = "windrow"

#: Packages whose frames lie between a user's line and windrow's: decorators, context managers, and
#: what calls modules and iterators.
_BETWEEN = {
    "windrow",
    "contextlib",
    "functools",
    "dataclasses",
    "importlib",
    "torch",
    "tensordict",
    "tqdm",
}
_told: set[str] = set()


def warn(message: str, kind: type[Warning] = Warning) -> None:
    """Warns at the line of the first caller outside of this package, and of packages through which
    it was called.
    """
    frame = sys._getframe()
    while frame.f_back is not None and (
        str(frame.f_globals.get("__name__", "")).partition(".")[0] in _BETWEEN
    ):
        frame = frame.f_back
    known = frame.f_globals
    registry = known.setdefault("__warningregistry__", {})
    warnings.warn_explicit(
        message,
        kind,
        frame.f_code.co_filename,
        frame.f_lineno,
        str(known.get("__name__", "<string>")),
        registry,
    )


def warn_once(subject: str, message: str, kind: type[Warning] = Warning) -> None:
    """As :func:`warn`, the first time in this process that it is called for ``subject``."""
    if subject not in _told:
        _told.add(subject)
        warn(message, kind)
