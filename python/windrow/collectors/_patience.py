"""How long the end of collectors and evaluators waits for a step that has not returned."""

from __future__ import annotations

import sys

from windrow._windrow import IMPATIENCE, PATIENCE


def is_interrupted() -> bool:
    """Whether the caller is handling ``KeyboardInterrupt``, in an ``except`` or ``finally``."""
    return isinstance(sys.exc_info()[1], KeyboardInterrupt)


def at_exit() -> float:
    """Seconds at the end of the program, which ``KeyboardInterrupt`` may have ended."""
    ended_by = getattr(sys, "last_value", None)
    return IMPATIENCE if isinstance(ended_by, KeyboardInterrupt) else PATIENCE


def left_behind(name: str) -> str:
    """The message about a collector or evaluator, called ``name``, that did not end in time."""
    return (
        f"{name} was left with a step of its environment, or a call of its policy, that has not returned: its thread ends when "
        "it does"
    )
