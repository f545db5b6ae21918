"""Packages that come with an extra, and systems that some classes need."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import NoReturn

#: Names of the extension that it has on some systems only.
_SYSTEMS = {
    "Linux": ("CommandLauncher", "EvaluatorProcess", "Nursery", "ParallelMembers", "run_worker"),
    "Linux or macOS": ("RemoteServerCore", "RemoteWeightsCore"),
}


def fill(extension: ModuleType) -> None:
    """Gives ``extension`` what it lacks on this system, so that whatever imports it can be
    imported; it is an error to use it.
    """
    for system, names in _SYSTEMS.items():
        for name in names:
            if not hasattr(extension, name):
                setattr(
                    extension,
                    name,
                    type(name, (), {"__new__": _refusing(name.removesuffix("Core"), system)}),
                )


def _refusing(name: str, system: str) -> Callable[..., NoReturn]:
    def refuse(cls: type, *args: object, **kwargs: object) -> NoReturn:
        raise OSError(f"{name} needs {system}, and this is {sys.platform}")

    return refuse


def install(extra: str) -> str:
    """The command that installs windrow with ``extra``. The distribution is not called what is
    imported.
    """
    return f'pip install "windrow-rl[{extra}]"'


def module(what: str, name: str, extra: str) -> ModuleType:
    """The module ``name`` of a package that comes with ``extra``, which ``what`` needs.

    Raises:
        ImportError: the package is not installed; the message names the extra that brings it.
    """
    package = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise ImportError(
            f"{what} needs {package}, which is not installed: {install(extra)}", name=package
        ) from error


def torch(what: str) -> None:
    """Checks that torch and tensordict, which ``what`` needs, are installed.

    Raises:
        ImportError: one is not; the message names the extra that brings it.
    """
    for name in ("torch", "tensordict"):
        module(what, name, "torch")
