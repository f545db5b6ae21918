"""Checks of numbers of Python, numpy or torch, and the number of cores."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from typing import Any


def whole(name: str, value: object, least: int) -> int:
    """``value`` as a whole number that is ``least`` or more.

    Raises:
        TypeError: it is not a whole number.
        ValueError: it is less.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {value!r}") from None
    if number < least:
        raise ValueError(f"{name} must be {least} or more, got {value!r}")
    return number


def at_least(least: int) -> Callable[[str, Any], int]:
    """:func:`whole` as the check of an argument."""
    return lambda name, value: whole(name, value, least)


def whole_or_none(name: str, value: object, least: int) -> int | None:
    """As :func:`whole`; None stays None."""
    return None if value is None else whole(name, value, least)


def share(name: str, value: object) -> float:
    """``value`` as a float from 0 to 1.

    Raises:
        TypeError: it is not a number.
        ValueError: it is less or more.
    """
    number = real(name, value)
    if not 0 <= number <= 1:
        raise ValueError(f"{name} must be from 0 to 1, got {value!r}")
    return number


def real(name: str, value: object) -> float:
    """``value`` as a float.

    Raises:
        TypeError: it is not a number.
    """
    try:
        if isinstance(value, str):
            raise TypeError
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {value!r}") from None


def cores() -> int:
    """How many cores this process may use: a scheduler may have bound it to some of the
    machine's.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def seconds_or_none(name: str, value: object) -> float | None:
    """``value`` as a number of seconds above 0; None stays None.

    Raises:
        TypeError: it is not a number.
        ValueError: it is 0 or less, or infinite.
    """
    if value is None:
        return None
    if not 0 < (seconds := real(name, value)) < float("inf"):
        raise ValueError(f"{name} must be a number of seconds above 0, got {value!r}")
    return seconds
