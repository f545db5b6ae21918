"""Where an input of a captured graph comes from, as an expression that reads it anew."""

from __future__ import annotations

import sys
from typing import Any

import torch

from windrow.policies.lower.values import Unproved

#: Classes of torch's sources that add nothing to where they point.
SAME = {
    "FSDPNNModuleSource",
    "NNModuleSource",
    "OptimizerSource",
    "SkipGuardSource",
    "UnspecializedBuiltinNNModuleSource",
    "UnspecializedNNModuleSource",
}
#: Those of an attribute by its name.
ATTRIBUTES = {
    "AttrSource",
    "CellContentsSource",
    "ParamBufferSource",
    "UnspecializedParamBufferSource",
}
#: Those of an item by its key or place.
ITEMS = {"DictGetItemSource", "DictSubclassGetItemSource", "GetItemSource", "ListGetItemSource"}
#: Those of a key by its place.
KEYS = {"ConstDictKeySource", "NonSerializableSetGetItemSource"}
#: All others, as an expression of what is below them.
BELOW = {
    "ClosureSource": "{}.__closure__",
    "CodeSource": "{}.__code__",
    "FloatTensorSource": "number({})",
    "GradSource": "{}.grad",
    "NumpyTensorSource": "array({})",
    "TypeDictSource": "vars({})",
    "TypeMROSource": "{}.__mro__",
    "TypeSource": "type({})",
    "WeakRefCallSource": "{}()",
}


def expression(source: Any) -> str:
    """An expression of ``L``, the locals of the captured call, and ``G``, its globals, in the
    names of :data:`SCOPE`.

    Raises:
        Unproved: no expression reads it.
    """
    kind = type(source).__name__
    if kind == "LocalSource":
        return f"L[{source.local_name!r}]"
    if kind == "GlobalSource":
        return f"G[{source.global_name!r}]"
    if kind == "ImportSource":
        return f"modules[{source.module_name!r}]"
    if not hasattr(source, "base"):
        raise _unreadable(kind)
    base = expression(source.base)
    if kind in SAME:
        return base
    if kind in ATTRIBUTES:
        return f"{base}.{source.member}"
    if kind == "GenericAttrSource":
        return f"generic({base}, {source.member!r})"
    if kind in ITEMS:
        return f"{base}[{_index(source)}]"
    if kind in KEYS:
        return f"key({base}, {source.index})"
    if kind == "DefaultsSource":
        held = "__kwdefaults__" if source.is_kw else "__defaults__"
        return f"{base}.{held}[{source.idx_key!r}]"
    if kind in BELOW:
        return BELOW[kind].format(base)
    raise _unreadable(kind)


def _unreadable(what: str) -> Unproved:
    return Unproved(f"it reads a {what}, no attribute, item, cell or global")


def name_of(source: Any) -> str:
    """Torch's own name of a source, which was a method before it was a property."""
    name = getattr(source, "name", None)
    return str(name() if callable(name) else name)


def _index(source: Any) -> str:
    index = source.index
    if type(index).__name__ in KEYS or hasattr(index, "base"):
        return expression(index)
    return _literal(source.unpack_slice() if getattr(source, "index_is_slice", False) else index)


def _literal(index: Any) -> str:
    if type(index) in (int, str, bool, type(None), float, slice):
        return repr(index)
    if type(index) is tuple:
        return "(" + "".join(f"{_literal(one)}, " for one in index) + ")"
    raise _unreadable(f"an item by {type(index).__name__}")


def _key(owner: Any, place: int) -> Any:
    return list(dict.keys(owner) if isinstance(owner, dict) else owner)[place]


def _number(value: Any) -> torch.Tensor:
    return torch.tensor(float(value), dtype=torch.float64)


#: The names that expressions use beside ``L`` and ``G``.
SCOPE: dict[str, Any] = {
    "modules": sys.modules,
    "generic": object.__getattribute__,
    "key": _key,
    "array": torch.as_tensor,
    "number": _number,
}
