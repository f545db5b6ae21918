"""The warnings of this package."""

from __future__ import annotations

import sys
import warnings


class Warning(UserWarning):
    """Every warning of windrow is of this class: ``warnings.filterwarnings("ignore", category=windrow.Warning)`` silences them."""


class RenamedWarning(Warning, DeprecationWarning):
    """An argument was given by its old name."""


Warning.__module__ = RenamedWarning.__module__ = "windrow"


def warn(message: str, kind: type[Warning] = Warning) -> None:
    """Warns at the line of the first caller outside of this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "windrow":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, kind, stacklevel=level)
