"""Several environments, as one object that reaches all of them."""

from __future__ import annotations

import types
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from windrow import _fence

#: Objects of these modules are sent as copies; of any other class, what is asked of them is asked
#: where they are.
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


class Together:
    """Environments, or an object of each of them, in the order of their numbers.

    An attribute is a list with that of each environment, and a method is called on each and returns
    a list. Setting an attribute sets it on each. What describes all environments alike, such as a
    spec or a space, is that of the first. :meth:`call`, :meth:`get_attr` and :meth:`set_attr` are
    those of Gymnasium's vectors.
    """

    def __init__(self, each: Sequence[Any]) -> None:
        vars(self)["_each"] = tuple(each)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The results of the method ``name`` of each environment, or its attribute of this name."""
        found = [attribute_of(one, name) for one in self._each]
        return tuple(one(*args, **kwargs) if callable(one) else one for one in found)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """The attribute ``name`` of each environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Sets the attribute ``name`` of each environment: to ``values``, or to its own entry of a
        list or tuple.

        Raises:
            ValueError: there is another number of values.
        """
        for one, value in zip(self._each, value_of_each(values, len(self._each)), strict=True):
            if hasattr(one, "set_wrapper_attr"):
                one.set_wrapper_attr(name, value)
            else:
                setattr(one, name, value)

    def __getattr__(self, name: str) -> Any:
        # Names with an underscore are read by the interpreter, by pickle and by windrow itself.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name in _ALIKE or name.endswith(_ALIKE_ENDINGS):
            return getattr(self._each[0], name)
        return _together([attribute_of(one, name) for one in self._each])

    def __setattr__(self, name: str, value: object) -> None:
        for one in self._each:
            setattr(one, name, value)

    def __getitem__(self, key: object) -> Any:
        return _together([one[key] for one in self._each])

    def __repr__(self) -> str:
        return f"<{len(self._each)} environments: {', '.join(map(repr, self._each))}>"


class TogetherMethod(Together):
    """A method of each environment."""

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        return [one(*args, **kwargs) for one in self._each]


def together(each: Sequence[Any]) -> Any:
    """The only one of ``each``, or all of them as one object."""
    return each[0] if len(each) == 1 else Together(each)


def each_of(found: object) -> list[Any]:
    """The object of each environment in ``found``."""
    return list(found._each) if isinstance(found, Together) else [found]


def value_of_each(values: Any, count: int) -> Sequence[Any]:
    """A value for each of ``count`` environments: those of a list or tuple, or one for all.

    Raises:
        ValueError: there is another number of values.
    """
    given = values if isinstance(values, (list, tuple)) else [values] * count
    if len(given) != count:
        raise ValueError(
            f"expected a value for each of {count} environments, or one that is no list, got {len(given)}"
        )
    return given


def attribute_of(env: Any, name: str) -> Any:
    """The attribute ``name`` of ``env``, or of what wrappers of Gymnasium's have around."""
    try:
        return getattr(env, name)
    except AttributeError:
        if name.startswith("_") or not hasattr(type(env), "get_wrapper_attr"):
            raise
    return env.get_wrapper_attr(name)


def _together(found: list[Any]) -> Any:
    if all(map(callable, found)):
        return TogetherMethod(found)
    return found if all(map(is_value, found)) else Together(found)


def is_value(found: object) -> bool:
    """True where a copy of ``found`` is as good as the object itself."""
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
