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
#: The package that takes all names and arguments of TorchRL's.
DOOR = f"windrow.{LIBRARY}"
#: Modules of ``windrow.torchrl``, by what they do.
HOMES = {
    name: f"{DOOR}._{name}"
    for name in ("adapter", "around", "methods", "schedulers", "sharing", "specs")
}
adapter, around, methods, schedulers, sharing, specs = map(module, HOMES.values())

#: Functions that take environments of these libraries, see :func:`windrow.envs.register_adapter`.
ADAPTERS = {
    "pettingzoo": f"{DOOR}._libraries:of_pettingzoo",
    LIBRARY: f"{HOMES['adapter']}:of",
    "vmas": f"{DOOR}._libraries:of_vmas",
}


class Method:
    """A method that exists for TorchRL's users: the function of this name in
    ``windrow.torchrl._methods``.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, own: object, owner: type | None = None) -> Callable[..., Any]:
        return getattr(methods, self._name).__get__(own, owner)


class Beyond(ValueError):
    """Arguments that a class of windrow's refuses, and TorchRL's of the same name takes."""


def beyond(made: object, why: str) -> Beyond:
    """The error of a constructor of ``made``: it says ``why``, and where there is a class that
    takes the arguments.
    """
    taken = f"{DOOR}.envs.{type(made).__name__} takes this, where {LIBRARY} is installed"
    return Beyond(f"{why}; {taken}")


def check_derived(cls: type, root: Any) -> None:
    """Checks that windrow can use ``cls``, a class derived from ``root`` of :mod:`windrow.envs`.

    Raises:
        TypeError: a class outside of windrow derives from ``root`` itself, or has methods that
            TorchRL calls, and windrow never does.
    """
    defined = ", ".join(sorted({*root._never_called} & vars(cls).keys()))
    if cls.__module__.partition(".")[0] == "windrow" or not (defined or root in cls.__bases__):
        return
    base = next(base.__name__ for base in cls.__bases__ if issubclass(base, root))
    raise TypeError(
        f"{cls.__name__} derives from {base} of windrow.envs, which never calls {defined or 'methods of a class of yours'}: "
        f"derive it from {DOOR}.envs.{base}, where {LIBRARY} is installed"
    )


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
