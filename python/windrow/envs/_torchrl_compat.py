"""Names, classes of specs and primers of TorchRL, for its users. Nothing here imports torchrl before it is needed; the adapter of its
environments is in ``_torchrl``.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

from windrow.envs._specs import Composite, Spec


def of_torchrl(own: str, theirs: str) -> Callable[[str], Any]:
    """A ``__getattr__`` for the module ``own`` of windrow: what it has not is looked up in TorchRL's module ``theirs``."""

    def found(name: str) -> Any:
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

    return found


class AskedByTorchRL:
    """An attribute that torchrl reads, or writes, of an object that it is about to wrap: its wrappers do not take windrow's objects,
    and the error says which do.
    """

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
    # An object of a library was made by code that has imported it.
    if sys.modules.get("torchrl") is None:
        return False
    from torchrl.envs import EnvBase

    return isinstance(env, EnvBase)


def without_transforms(env: Any) -> Any:
    """The environment inside of all ``TransformedEnv`` of TorchRL."""
    from torchrl.envs import TransformedEnv

    while isinstance(env, TransformedEnv):
        env = env.base_env
    return env


def is_primer(transform: Any) -> bool:
    """Whether ``transform`` is a ``TensorDictPrimer`` of TorchRL."""
    theirs = sys.modules.get("torchrl.envs")
    return theirs is not None and isinstance(transform, theirs.TensorDictPrimer)


@functools.cache
def _classes() -> Any:
    """TorchRL's module of specs; None where torchrl is not installed."""
    try:
        importlib.import_module("torchrl")
    except ModuleNotFoundError as error:
        if error.name != "torchrl":
            raise
        return None
    return importlib.import_module("torchrl.data.tensor_specs")


def public(spec: Spec | Composite) -> Any:
    """``spec`` as users are given it: of TorchRL's classes where torchrl is installed, since its modules and losses take no others;
    otherwise of windrow's. It does not depend on what a program has imported: the first spec imports torchrl.
    """
    theirs = _classes()
    return spec if theirs is None else _convert(spec, theirs)


def _convert(spec: Spec | Composite, theirs: Any) -> Any:
    if isinstance(spec, Composite):
        entries = {name: _convert(entry, theirs) for name, entry in spec.items()}
        return theirs.Composite(entries, shape=spec.shape, device=spec.device)
    common = {"shape": spec.shape, "dtype": spec.dtype, "device": spec.device}
    match spec._leaf.kind:
        case "bounded":
            return theirs.Bounded(low=spec.low, high=spec.high, **common)
        case "binary":
            return theirs.Binary(n=spec.shape[-1] if spec.ndim else None, **common)
        case "discrete":
            return theirs.Categorical(spec.n, **common)
        case "multi_discrete":
            return theirs.MultiCategorical(spec.nvec, **common)
        case "one_hot":
            return theirs.OneHot(spec.n, **common) if len(spec.nvec) == 1 else theirs.MultiOneHot(spec.nvec, **common)
    return theirs.Unbounded(**common)
