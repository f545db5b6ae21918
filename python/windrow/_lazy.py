"""Packages that come with an extra, or with the user's environments: each is imported when something in it is first asked for."""

from __future__ import annotations

import importlib
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


if TYPE_CHECKING:
    import gymnasium
    import numpy
    import tensordict
    import torch
else:
    gymnasium, numpy, tensordict, torch = map(_Lazy, __all__)
