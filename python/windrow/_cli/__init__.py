"""The command line, ``windrow``: collects, measures and looks around without a script."""

from __future__ import annotations

import importlib
import sys

from windrow import _needs
from windrow._lazy import module

__all__ = ["main"]

_commands = module("windrow._cli.commands")


def main() -> None:
    """Runs the command that the program's arguments name, and ends the program."""
    try:
        importlib.import_module("click")
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.exit(
            f"Error: the command windrow needs click, which is not installed: {_needs.install('cli')}"
        )
    _commands.windrow(prog_name="windrow")
