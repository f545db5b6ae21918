"""What windrow has no counterpart of, under the names that TorchRL has for it."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def of_torchrl(name: str, own: str, theirs: str) -> Any:
    """What the module ``theirs`` of TorchRL calls ``name``, for the module ``own`` of windrow that was asked for it.

    Raises:
        AttributeError: neither of them has it.
        ImportError: TorchRL is not installed.
    """
    if name.startswith("_"):
        raise AttributeError(f"module {own!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(theirs)
    except ImportError as error:
        raise ImportError(f"{own} has no {name!r} of its own, and torchrl, which may have it, is not installed") from error
    try:
        return getattr(module, name)
    except AttributeError:
        raise AttributeError(f"module {own!r} has no attribute {name!r}, nor has {theirs}") from None


class AskedByTorchRL:
    """An attribute that torchrl reads, or writes, of what it is about to go around: nothing here is for that."""

    def __get__(self, own: Any, owner: type | None = None) -> Any:
        if own is None:
            return self
        name = f"{type(own).__module__}.{type(own).__name__}"
        raise TypeError(
            f"torchrl goes around environments and transforms of its own, got {name}: TransformedEnv, SerialEnv, ParallelEnv and "
            "the collectors of windrow take it. Where only torchrl has a transform, put that around torchrl.envs.GymEnv, which "
            "windrow's collectors take as well"
        )

    def __set__(self, own: Any, value: Any) -> None:
        self.__get__(own)


def is_of_torchrl(env: Any) -> bool:
    """Whether ``env`` is an environment of TorchRL."""
    # Whoever has an object of a library has imported it.
    if "torchrl" not in sys.modules:
        return False
    from torchrl.envs import EnvBase

    return isinstance(env, EnvBase)
