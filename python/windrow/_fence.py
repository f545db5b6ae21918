"""All that the rest of windrow knows of torchrl: which module of ``windrow.torchrl`` does what, and
whether an object is one of torchrl's.

Nothing here imports torchrl, or that package, before a program has an object of torchrl's or asks
for a name that only torchrl has.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

from windrow._lazy import module

LIBRARY = "torchrl"
#: Modules of ``windrow.torchrl``, by what they do.
HOMES = {
    name: f"windrow.{LIBRARY}._{name}"
    for name in ("adapter", "around", "methods", "schedulers", "sharing", "specs")
}
adapter, around, methods, schedulers, sharing, specs = map(module, HOMES.values())

#: Functions that take environments of these libraries, see :func:`windrow.envs.register_adapter`.
ADAPTERS = {
    "pettingzoo": f"windrow.{LIBRARY}._libraries:of_pettingzoo",
    LIBRARY: f"{HOMES['adapter']}:of",
    "vmas": f"windrow.{LIBRARY}._libraries:of_vmas",
}


class Method:
    """A method that exists for TorchRL's users: the function of this name in
    ``windrow.torchrl._methods``.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, own: object, owner: type | None = None) -> Callable[..., Any]:
        return getattr(methods, self._name).__get__(own, owner)


def loaded(name: str) -> Any:
    """The module ``name`` below torchrl, if the program has imported it; otherwise there are no
    objects of its classes, and this is None.
    """
    return sys.modules.get(f"{LIBRARY}.{name}")


def is_a(made: object, name: str) -> bool:
    """Whether ``made`` is an object of the class ``name`` of ``torchrl.envs``."""
    theirs = loaded("envs")
    return theirs is not None and isinstance(made, getattr(theirs, name, ()))


@functools.cache
def is_installed() -> bool:
    """Whether torchrl is installed, which is imported if it is."""
    try:
        importlib.import_module(LIBRARY)
    except ModuleNotFoundError as error:
        if error.name != LIBRARY:
            raise
        return False
    return True


def class_of(name: str) -> type | None:
    """The class ``name`` of ``torchrl.envs``; None where it has none, or is not installed."""
    return (
        getattr(importlib.import_module(f"{LIBRARY}.envs"), name, None) if is_installed() else None
    )
