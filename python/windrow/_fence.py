"""All that the rest of windrow knows of torchrl: what ``windrow.torchrl`` does for it, and whether
an object is one of torchrl's.

Nothing here imports torchrl, or that package, before a program has an object of torchrl's or asks
for a name that only torchrl has.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

LIBRARY = "torchrl"
#: The package that takes all names and arguments of TorchRL's.
DOOR = f"windrow.{LIBRARY}"
#: Modules behind the fence, by what they do. The package, which knows both sides, enters them.
HOMES: dict[str, str] = {}
#: Functions there that take environments of these libraries, see
#: :func:`windrow.envs.register_adapter`.
ADAPTERS: dict[str, str] = {}


class _Behind:
    """A module behind the fence, which is imported when something in it is first asked for."""

    def __init__(self, does: str) -> None:
        self._does = does

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(HOMES[self._does]), name)


adapter, around, methods = _Behind("adapter"), _Behind("around"), _Behind("methods")
schedulers, sharing, specs = _Behind("schedulers"), _Behind("sharing"), _Behind("specs")


class Method:
    """A method that exists for TorchRL's users: the function of this name in :data:`methods`."""

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


#: What wrappers and collectors of TorchRL ask an environment, or its transforms, for first.
_ASKED = ("_check_batched_worker_compat", "_has_dynamic_specs", "_supports_set_state")


def lacking(own: object, name: str) -> Exception:
    """The error of ``own``, an environment or a transform of windrow, where it is asked for the
    attribute ``name`` that it lacks.
    """
    # It takes a third of the time that windrow is imported in.
    import inspect

    kind = type(own).__name__
    if isinstance(found := inspect.getattr_static(type(own), name, None), property):
        # Python asks for it anew where it has raised an AttributeError of its own: this one.
        found.__get__(own)
    if name not in _ASKED:
        return AttributeError(f"{kind!r} object has no attribute {name!r}")
    # With an AttributeError, wrappers would say that they lack the attribute themselves.
    return TypeError(
        f"{LIBRARY} expected environments and transforms of its own, got {kind} of windrow: take the wrapper, collector or function "
        f"of the same name in {DOOR}, such as {DOOR}.envs.TransformedEnv"
    )


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
