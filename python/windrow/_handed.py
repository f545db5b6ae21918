"""Functions of higher rooms, for modules that do not know these: the package, which knows all of
them, hands them over.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Handed(Generic[P, R]):
    """A function of a higher room, which is imported when it is first called."""

    def __init__(self) -> None:
        self._place: str | None = None
        self._function: Callable[P, R] | None = None

    def over(self, place: str) -> None:
        """Hands the function over: ``"module:function"``."""
        self._place, self._function = place, None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._function is None:
            assert self._place is not None, "The package hands it over as it is imported."
            module, _, name = self._place.partition(":")
            self._function = getattr(importlib.import_module(module), name)
        return self._function(*args, **kwargs)


#: Makes a rollout of an environment by the engine, where it can: see
#: :func:`windrow.collectors._rollouts.rollout`.
rollout: Handed[..., tuple[Any, Any]] = Handed()
