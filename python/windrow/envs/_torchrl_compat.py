"""Names, classes of specs and primers of TorchRL, for its users. Nothing here imports torchrl before it is needed; the adapter of its
environments is in ``windrow.torchrl``.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import types
from typing import TYPE_CHECKING, Any

from windrow._lazy import torch
from windrow._values import decoded
from windrow.envs._specs import Composite, Spec


#: What steps environments of a library, and what carries its transforms out around windrow's environments, by the first name of the module
#: of their class. Nothing else outside of ``windrow.torchrl`` names a module in it.
HOMES = {"torchrl": ("windrow.torchrl._adapter", "windrow.torchrl._around")}


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
            "the collectors of windrow take it. windrow's TransformedEnv takes transforms of TorchRL as well"
        )

    def __set__(self, own: Any, value: Any) -> None:
        self.__get__(own)


class Counterpart(type):
    """Classes that TorchRL has under the same names. Its objects are instances of them too.

    A user's class is derived from TorchRL's where it derives from a base of all environments or transforms, or has methods that
    only TorchRL calls, such as ``_step``.
    """

    #: Whether TorchRL's class takes arguments that this one refuses.
    _defers: bool = False

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        own = namespace.get("__module__", "").partition(".")[0] == "windrow"
        theirs = bases if own or _OWN_METHODS & namespace.keys() else tuple(_derivable(base, namespace, name) for base in bases)
        if theirs == bases:
            return super().__new__(mcls, name, bases, namespace, **options)
        return types.prepare_class(name, theirs)[0](name, theirs, namespace, **options)

    if not TYPE_CHECKING:

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            try:
                made = super().__call__(*args, **kwargs)
                if cls._defers:
                    vars(made)["_given"] = args, kwargs
                return made
            except (TypeError, ValueError) as error:
                theirs = cls._theirs() if cls._defers else None
                if theirs is None:
                    raise
                try:
                    made = theirs(*args, **kwargs)
                except Exception:
                    raise error from None
                vars(made)["refused_by_windrow"] = str(error)
                return made

    @property
    def __signature__(cls) -> inspect.Signature:
        own = cls.__init__ is not object.__init__  # type: ignore[misc]
        signature = inspect.signature(cls.__init__ if own else lambda self: None)  # type: ignore[misc]
        return signature.replace(parameters=list(signature.parameters.values())[1:])

    def __instancecheck__(cls, instance: Any) -> bool:
        if super().__instancecheck__(instance):
            return True
        # An object of TorchRL was made by code that has imported it.
        theirs = cls._theirs() if "torchrl.envs" in sys.modules else None
        return theirs is not None and isinstance(instance, theirs)

    def _theirs(cls) -> Any:
        """TorchRL's class; None where it has none, or is not installed."""
        if cls.__module__.partition(".")[0] != "windrow" or _classes() is None:
            return None
        return getattr(importlib.import_module("torchrl.envs"), cls.__name__, None)


#: What says how the engine makes something.
_OWN_METHODS = {"_recipe", "_new_recipe", "_described"}


def is_windrows(made: Any) -> bool:
    """Whether ``made`` is an environment or a transform of windrow."""
    return isinstance(type(made), Counterpart)


def _derivable(base: type, namespace: dict[str, Any], name: str) -> type:
    """The class that a user's class ``name`` derives from, where it names ``base``."""
    theirs = base._theirs() if isinstance(base, Counterpart) else None
    is_root = base.__name__ in ("EnvBase", "Transform")
    if theirs is None:
        if isinstance(base, Counterpart) and is_root:
            raise ImportError(f"{name} is derived from {base.__name__}, which is TorchRL's then: install torchrl")
        return base
    return theirs if is_root or any(hasattr(theirs, entry) and not hasattr(base, entry) for entry in namespace) else base


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


def is_transform(transform: Any, name: str = "Transform") -> bool:
    """Whether ``transform`` is one of TorchRL's, of the class ``name``."""
    theirs = sys.modules.get("torchrl.envs")
    return theirs is not None and isinstance(transform, getattr(theirs, name, ()))


def delta_type(transform: Any) -> str:
    """The element type of the differences that a ``NextObservationDelta`` makes, by its name."""
    return str(transform.delta_dtype).removeprefix("torch.")


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


def _convert(spec: Spec | Composite, theirs: Any, group: tuple[int, ...] | None = None) -> Any:
    """``spec``, an entry of a composite of shape ``group``, of TorchRL's classes."""
    if isinstance(spec, Composite):
        entries = {name: _convert(entry, theirs, spec.shape) for name, entry in spec.items()}
        return theirs.Composite(entries, shape=spec.shape, device=spec.device)
    if spec.is_bytes:
        value = decoded(spec._leaf.example)
        if not isinstance(value, torch.Tensor):
            return theirs.NonTensor(shape=spec.shape, device=spec.device, example_data=value)
        return theirs.Unbounded(shape=(*spec.shape, *[-1] * value.ndim), dtype=value.dtype, device=spec.device)
    common = {"shape": spec.shape, "dtype": spec.dtype, "device": spec.device}
    match spec._leaf.kind:
        case "bounded":
            return theirs.Bounded(low=spec.low, high=spec.high, **common)
        case "binary":
            return theirs.Binary(n=spec.shape[-1] if spec.ndim else None, **common)
        case "discrete":
            return theirs.Categorical(spec.n, **common)
        # Each member of the group has one of these choices.
        case "multi_discrete" if spec.shape == group and len(set(spec.nvec)) == 1:
            return theirs.Categorical(spec.nvec[0], **common)
        case "multi_discrete":
            return theirs.MultiCategorical(spec.nvec, **common)
        case "one_hot":
            return theirs.OneHot(spec.n, **common) if len(spec.nvec) == 1 else theirs.MultiOneHot(spec.nvec, **common)
    return theirs.Unbounded(**common)
