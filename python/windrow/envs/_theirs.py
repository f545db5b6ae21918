"""What windrow has no counterpart of, under the names that TorchRL has for it."""

from __future__ import annotations

import importlib
from typing import Any


def of_torchrl(name: str, own: str, theirs: str) -> Any:
    """What the module ``theirs`` of TorchRL calls ``name``, for the module ``own`` of windrow that was asked for it.

    Raises:
        AttributeError: neither of them has it.
        ImportError: TorchRL is not installed.
    """
    if name.startswith("_"):
        raise AttributeError(f"module {own!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(theirs)
    except ImportError as error:
        raise ImportError(f"{own} has no {name!r} of its own, and torchrl, which may have it, is not installed") from error
    try:
        return getattr(module, name)
    except AttributeError:
        raise AttributeError(f"module {own!r} has no attribute {name!r}, nor has {theirs}") from None
