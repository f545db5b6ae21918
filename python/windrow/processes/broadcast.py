"""Several environments, as one object that reaches all of them."""

from __future__ import annotations

import types
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from windrow import _fence

#: Modules whose objects are sent as copies. Any other object stays in its process, where its
#: attributes are read and its methods called.
_VALUES = (
    "builtins",
    "gymnasium.spaces",
    "numpy",
    "tensordict",
    "torch",
    f"{_fence.LIBRARY}.data",
    "windrow.envs._specs",
    "collections",
)

#: Endings and names of attributes that describe all environments of a collector alike.
_ALIKE_ENDINGS = ("_spec", "_specs", "_space", "_keys")
_ALIKE = {"batch_size", "device", "id", "metadata", "render_mode", "reward_range", "shape", "spec"}


class Broadcast:
    """Environments, or an object of each of them, in the order of their numbers.

    Reading an attribute returns a list with the attribute of each environment. Calling a method
    calls it on each environment and returns a list. Setting an attribute sets it on each. An
    attribute that describes all environments alike, such as a spec or a space, is read from the
    first. :meth:`call`, :meth:`get_attr` and :meth:`set_attr` do what those of Gymnasium's vectors
    do.
    """

    def __init__(self, each: Sequence[Any]) -> None:
        vars(self)["_each"] = tuple(each)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The result of the method ``name`` of each environment, or the attribute ``name``."""
        found = [attribute_of(one, name) for one in self._each]
        return tuple(one(*args, **kwargs) if callable(one) else one for one in found)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """The attribute ``name`` of each environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Sets the attribute ``name`` of each environment: to its entry of ``values`` if that is a
        list or a tuple, otherwise to ``values`` itself.

        Raises:
            ValueError: the number of values is not that of the environments.
        """
        for one, value in zip(self._each, value_of_each(values, len(self._each)), strict=True):
            if hasattr(one, "set_wrapper_attr"):
                one.set_wrapper_attr(name, value)
            else:
                setattr(one, name, value)

    def __getattr__(self, name: str) -> Any:
        # The interpreter, pickle and windrow itself look for names with an underscore.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name in _ALIKE or name.endswith(_ALIKE_ENDINGS):
            return getattr(self._each[0], name)
        return _broadcast([attribute_of(one, name) for one in self._each])

    def __setattr__(self, name: str, value: object) -> None:
        for one in self._each:
            setattr(one, name, value)

    def __getitem__(self, key: object) -> Any:
        return _broadcast([one[key] for one in self._each])

    def __repr__(self) -> str:
        return f"<{len(self._each)} environments: {', '.join(map(repr, self._each))}>"


class BroadcastMethod(Broadcast):
    """A method of each environment."""

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        return [one(*args, **kwargs) for one in self._each]


def one_or_all(each: Sequence[Any]) -> Any:
    """The environment in ``each`` if it is the only one, otherwise one object for all of them."""
    return each[0] if len(each) == 1 else Broadcast(each)


def targets_of(found: object) -> list[Any]:
    """The objects that ``found`` reaches: those of a :class:`Broadcast`, otherwise itself."""
    return list(found._each) if isinstance(found, Broadcast) else [found]


def value_of_each(values: Any, count: int) -> Sequence[Any]:
    """A value for each of ``count`` environments: the entries of ``values`` if that is a list or a
    tuple, otherwise ``values`` for all.

    Raises:
        ValueError: the number of entries is not ``count``.
    """
    given = values if isinstance(values, (list, tuple)) else [values] * count
    if len(given) != count:
        raise ValueError(
            f"expected a value for each of {count} environments, or a single value that is no list or tuple, got {len(given)} values"
        )
    return given


def attribute_of(env: Any, name: str) -> Any:
    """The attribute ``name`` of ``env`` or, through Gymnasium's wrappers, of the environments
    inside.
    """
    try:
        return getattr(env, name)
    except AttributeError:
        if name.startswith("_") or not hasattr(env, "get_wrapper_attr"):
            raise
    return env.get_wrapper_attr(name)


def _broadcast(found: list[Any]) -> Any:
    if all(map(callable, found)):
        return BroadcastMethod(found)
    return found if all(map(is_value, found)) else Broadcast(found)


def is_value(found: object) -> bool:
    """True if a copy of ``found`` serves as well as the object itself."""
    if isinstance(
        found, (types.FunctionType, types.MethodType, types.BuiltinFunctionType, ModuleType, type)
    ):
        return False
    if isinstance(found, (list, tuple, set, frozenset)):
        return all(map(is_value, found))
    if isinstance(found, dict):
        return all(map(is_value, found.values()))
    module = type(found).__module__
    if hasattr(found, "forward") or hasattr(found, "step"):
        return False
    return any(module == known or module.startswith(f"{known}.") for known in _VALUES)
