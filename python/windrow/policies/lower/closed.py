"""What guards of torch leave open: where the code that ran comes from.

Guards say that objects are what they were when a call was captured. They take for granted that
classes keep their methods, modules their functions and functions their code. :class:`Closed` looks
at all of these by identity, by one rule: every name that the code looks up, in globals, in modules
below them, or in the class of any object that was read, still gives what it gave.
"""

from __future__ import annotations

import abc
import builtins
import collections
import enum
import functools
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from windrow import _fence
from windrow._windrow import Readings
from windrow.policies.lower.origin import MISSING, functions_of, global_hooks, own_dict

#: Values of members of an enumeration that cannot change.
CONSTANT = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    frozenset,
    types.FunctionType,
    torch.dtype,
)
#: Values that are taken for no more than they are.
PLAIN = (str, bytes, int, float, complex, np.ndarray, np.generic)
#: Modules of C whose functions compute from their arguments alone, or which torch knows.
KNOWN = {
    "_collections",
    "_functools",
    "_operator",
    "builtins",
    "cmath",
    "itertools",
    "math",
    "numpy",
    "operator",
    "torch",
}
#: Names of what windrow itself sets while a policy is called.
SET = {"_validate_args", "get_fastpath_enabled"}
#: Packages whose code is not the user's.
LIBRARIES = {"torch", "tensordict", _fence.LIBRARY, "numpy", "stable_baselines3", "sb3_contrib"}


class Doubtful(Exception):
    """Something whose changes nobody would see."""


class Closed:
    """The places that code was looked up in, and what was there.

    Args:
        codes: the code that ran, each with the globals that it reads.
        values: objects that it read.

    Raises:
        Doubtful: something that it read can change where nobody looks.
    """

    def __init__(
        self, codes: Mapping[types.CodeType, dict[str, Any]], values: Iterable[Any]
    ) -> None:
        self._entries: list[tuple[dict[Any, Any], Any, Any]] = []
        self._sizes: list[tuple[Any, int]] = []
        self._types: list[tuple[object, type]] = []
        self._functions: list[tuple[types.FunctionType, Any, Any, Any]] = []
        self._cells: list[tuple[types.CellType, Any]] = []
        self._orders: list[tuple[Any, list[Any]]] = []
        self._seen: set[tuple[int, Any]] = set()
        #: Which classes count as subclasses of abstract ones, where the user's code asks.
        self._abstract: object = None
        classes: dict[type, None] = {}
        for code, scope in codes.items():
            self._look_up(code, scope, classes)
        for value in values:
            self._value(value, classes)
        names = {name for code in codes for name in (code.co_name, *code.co_names)}
        for kind in classes:
            if kind is not object and kind is not type:
                self._class(kind, names)
        for hooks in global_hooks():
            self._sizes.append((hooks, len(hooks)))
        self._readings = Readings(
            self._sizes,
            self._types,
            self._entries,
            MISSING,
            functions=self._functions,
            cells=self._cells,
        )

    def is_same(self) -> bool:
        """Whether all of these places hold what they held."""
        return (
            self._readings.is_same()
            and all(list(order) == keys for order, keys in self._orders)
            and (self._abstract is None or self._abstract == abc.get_cache_token())
        )

    def _value(self, value: Any, classes: dict[type, None]) -> None:
        self._function(value)
        if isinstance(value, types.MethodType):
            self._function(value.__func__)
        kind: Any = value if isinstance(value, type) else type(value)
        if kind is not value:
            self._types.append((value, kind))
        elif isinstance(kind, abc.ABCMeta) and not is_library(_globals_of(kind)):
            self._abstract = abc.get_cache_token()
        is_plain = isinstance(value, PLAIN) and not isinstance(value, enum.Enum)
        if is_plain and hasattr(value, "__dict__"):
            raise Doubtful(f"{kind.__name__} is a plain value with attributes")
        if isinstance(value, collections.OrderedDict) and value:
            self._orders.append((value, list(value)))
        if isinstance(value, functools._lru_cache_wrapper) and not is_library(
            getattr(value.__wrapped__, "__globals__", {})
        ):
            raise Doubtful(f"{value.__name__}() remembers its results")
        classes.update(dict.fromkeys((*kind.__mro__, *type(kind).__mro__)))

    def _entry(self, owner: dict[Any, Any], key: Any) -> Any:
        value = owner.get(key, MISSING)
        if (id(owner), key) not in self._seen:
            self._seen.add((id(owner), key))
            self._entries.append((owner, key, value))
            self._function(value)
            if isinstance(value, abc.ABCMeta) and not is_library(_globals_of(value)):
                self._abstract = abc.get_cache_token()
        return value

    def _function(self, value: Any) -> None:
        for function in functions_of(value):
            if (id(function), "") in self._seen:
                continue
            self._seen.add((id(function), ""))
            defaults, keywords = function.__defaults__, function.__kwdefaults__
            self._functions.append((function, function.__code__, defaults, keywords))
            if keywords is not None:
                for name in keywords:
                    self._entry(keywords, name)
            given = (*(defaults or ()), *(keywords or {}).values())
            if any(isinstance(one, (list, dict, set)) for one in given):
                if not is_library(function.__globals__):
                    raise Doubtful(f"{function.__name__}() has a default that can be changed")
            for cell in function.__closure__ or ():
                self._cell(cell)

    def _cell(self, cell: types.CellType) -> None:
        try:
            held = cell.cell_contents
        except ValueError:
            # Not filled yet.
            return
        self._function(held)
        # Torch compares numbers, and reads tensors and arrays anew.
        if not isinstance(held, (float, torch.Tensor, np.ndarray)):
            self._cells.append((cell, held))

    def _look_up(
        self, code: types.CodeType, scope: dict[str, Any], classes: dict[type, None]
    ) -> None:
        """Remembers what the names in ``code`` give, in its globals and in modules below them."""
        is_users = not is_library(scope)
        if is_users and (names := SET & set(code.co_names)):
            raise Doubtful(f"{code.co_name}() reads {min(names)}, which windrow sets")
        for name in dict.fromkeys(code.co_names):
            if name in scope:
                below = [self._entry(scope, name)]
            elif name in vars(builtins):
                self._entry(scope, name)
                below = [self._entry(vars(builtins), name)]
            else:
                continue
            while below:
                value = below.pop()
                if isinstance(value, types.ModuleType):
                    below += [
                        self._entry(vars(value), inner)
                        for inner in dict.fromkeys(code.co_names)
                        if inner in vars(value) and (id(vars(value)), inner) not in self._seen
                    ]
                elif isinstance(value, type):
                    kind: Any = type(value)
                    classes.update(dict.fromkeys([*value.__mro__, *kind.__mro__]))
                    if is_users and isinstance(value, abc.ABCMeta):
                        self._abstract = abc.get_cache_token()
                elif is_users and isinstance(value, types.BuiltinFunctionType):
                    module = str(value.__module__ or type(value.__self__).__module__)
                    if module.partition(".")[0] not in KNOWN:
                        # Torch takes the results of some for constants.
                        raise Doubtful(f"{code.co_name}() calls {module}.{value.__name__}()")

    def _class(self, kind: type, names: set[str]) -> None:
        if issubclass(kind, enum.Enum):
            # Torch takes members for constants.
            for member in kind.__members__.values():
                if not isinstance(member.value, CONSTANT):
                    raise Doubtful(f"{kind.__name__}.{member.name} is no plain value")
        if "__del__" in vars(kind) and not is_library(_globals_of(kind)):
            # It may run when the call ends.
            raise Doubtful(f"{kind.__name__} has a destructor")
        own = own_dict(kind)
        self._sizes.append((own, len(own)))
        for name in names & own.keys():
            self._entry(own, name)


def is_library(scope: Mapping[str, Any]) -> bool:
    """Whether code with these globals is a library's."""
    return str(scope.get("__name__", "")).partition(".")[0] in LIBRARIES


def _globals_of(kind: type) -> dict[str, Any]:
    return vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {}
