"""Classes that stand for windrow's and TorchRL's of one name."""

from __future__ import annotations

import importlib
import inspect
import types
from typing import Any

from windrow import _fence, envs


class Both(type):
    """Classes whose instances are those of windrow's and TorchRL's classes of the same name, too.

    A class that a user derives from one has its own instances alone. It derives from TorchRL's
    class where it has methods that only TorchRL calls, such as ``_step``.
    """

    def __new__(
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> Any:
        derived = tuple(_base_of(namespace, base) for base in bases)
        if derived == bases:
            return super().__new__(mcls, name, bases, namespace, **options)
        return types.prepare_class(name, derived)[0](name, derived, namespace, **options)

    def __instancecheck__(cls, instance: object) -> bool:
        return super().__instancecheck__(instance) or isinstance(instance, _namesakes(cls))

    @property
    def __signature__(cls) -> inspect.Signature:
        # The metaclass calls it, of which `inspect` would take the signature.
        own = inspect.signature(cls.__init__)  # type: ignore[misc]
        return own.replace(parameters=list(own.parameters.values())[1:])


def _base_of(namespace: dict[str, Any], base: type) -> type:
    """What a class with the methods in ``namespace`` derives from in place of ``base``."""
    never = getattr(base, "_never_called", ()) if isinstance(base, Both) else ()
    if not {*never} & namespace.keys() or not _fence.is_installed():
        return base
    return getattr(importlib.import_module(f"{_fence.LIBRARY}.envs"), base.__name__, base)


def _namesakes(cls: type) -> tuple[type, ...]:
    if not cls.__module__.startswith(f"{_fence.DOOR}."):
        return ()
    # An object of TorchRL's was made by code that has imported it.
    found: list[Any] = [getattr(of, cls.__name__, None) for of in (envs, _fence.loaded("envs"))]
    return tuple(kind for kind in found if kind is not None)
