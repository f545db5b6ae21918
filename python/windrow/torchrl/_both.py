"""Classes that stand for windrow's and TorchRL's of one name."""

from __future__ import annotations

import inspect
from typing import Any

from windrow import _fence, envs


class Both(type):
    """Classes whose instances are those of windrow's and TorchRL's classes of the same name, too.

    A class that a user derives from one has its own instances alone.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        return super().__instancecheck__(instance) or isinstance(instance, _namesakes(cls))

    @property
    def __signature__(cls) -> inspect.Signature:
        # The metaclass calls it, of which `inspect` would take the signature.
        own = inspect.signature(cls.__init__)  # type: ignore[misc]
        return own.replace(parameters=list(own.parameters.values())[1:])


def _namesakes(cls: type) -> tuple[type, ...]:
    if not cls.__module__.startswith(f"{_fence.DOOR}."):
        return ()
    # An object of TorchRL's was made by code that has imported it.
    found: list[Any] = [getattr(of, cls.__name__, None) for of in (envs, _fence.loaded("envs"))]
    return tuple(kind for kind in found if kind is not None)
