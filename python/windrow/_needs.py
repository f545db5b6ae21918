"""What is installed with an extra only."""

from __future__ import annotations

import importlib


def torch(what: str) -> None:
    """Whether torch and tensordict are there, which ``what`` needs.

    Raises:
        ImportError: naming the extra that brings them.
    """
    for name in ("torch", "tensordict"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            raise ImportError(f'{what} needs {name}, which is not installed: pip install "windrow[torch]"', name=name) from error
