"""Packages that come with an extra."""

from __future__ import annotations

import importlib


def torch(what: str) -> None:
    """Checks that torch and tensordict, which ``what`` needs, are installed.

    Raises:
        ImportError: one is not; the message names the extra that brings it.
    """
    for name in ("torch", "tensordict"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            raise ImportError(f'{what} needs {name}, which is not installed: pip install "windrow[torch]"', name=name) from error
