"""What is imported when something in it is first asked for: packages that come with an extra, or
with the user's environments, and windrow's own modules behind the names of its packages. A worker
process imports the few that it needs.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

__all__ = ["gymnasium", "numpy", "tensordict", "torch"]


class _Lazy:
    __slots__ = ("__dict__", "_name")

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        module = importlib.import_module(self._name)
        # Later lookups find what is in the module without a call.
        self.__dict__ = module.__dict__
        return getattr(module, attribute)


def module(name: str) -> Any:
    """Windrow's own module ``name``, which needs a package that comes with an extra: imported
    when something in it is first asked for.
    """
    return _Lazy(name)


def names_of(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A ``__getattr__`` for ``package``: finds names in the modules that ``homes`` says, below it
    or, as ``".other"``, beside it, and the modules below it themselves. :func:`listing` makes the
    ``__dir__`` beside it.
    """

    def found(name: str) -> object:
        if home := homes.get(name):
            value = getattr(importlib.import_module(f".{home}", package), name)
        elif not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}") is not None:
            try:
                value = importlib.import_module(f"{package}.{name}")
            except ImportError as error:
                # `hasattr` and `help` ask so; a statement that imports it raises the error itself.
                raise AttributeError(f"{package}.{name} cannot be imported: {error}") from error
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # Later lookups find it without a call.
        setattr(sys.modules[package], name, value)
        return value

    return found


def is_installed(package: str) -> bool:
    """Whether ``package``, which comes with an extra, can be imported. It is not imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def listing(package: str, names: Iterable[str]) -> Callable[[], list[str]]:
    """A ``__dir__`` for ``package``: its public ``names`` and the public modules below it, none of
    which is imported for it.
    """

    def listed() -> list[str]:
        # Most programs never ask.
        import pkgutil

        below = (found.name for found in pkgutil.iter_modules(sys.modules[package].__path__))
        return sorted({*names, *(name for name in below if not name.startswith("_"))})

    return listed


if TYPE_CHECKING:
    import gymnasium
    import numpy
    import tensordict
    import torch
else:
    gymnasium, numpy, tensordict, torch = map(_Lazy, __all__)
