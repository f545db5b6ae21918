"""What guards of torch leave open: where the code that ran comes from.

Guards say that objects are what they were when a call was captured. They take for granted that
classes keep their methods, modules their functions and functions their code. :class:`Closed` looks
at all of these by identity, by one rule: every name that the code looks up, in globals, in modules
below them, or in the class of any object that was read, still gives what it gave.
"""

from __future__ import annotations

import abc
import collections
import dis
import enum
import functools
import sys
import types
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch

from windrow import _fence
from windrow.policies.lower.origin import FIXED, functions_of, global_hooks, own_dict, root
from windrow.policies.lower.values import Unproved
from windrow.policies.places import Places, contents

#: Values that are taken for no more than they are.
PLAIN = (str, bytes, int, float, complex, np.ndarray, np.generic)
#: Modules of C whose functions compute from their arguments alone, or which torch knows.
KNOWN = set(
    "_collections _functools _operator builtins cmath itertools math numpy operator torch".split()
)
#: Names of what tells one object from another that is equal.
IDENTITIES = frozenset({"id", "hash", "__hash__", "ref", "getrefcount"})
#: Names of functions that compare objects as operators do.
COMPARISONS = frozenset("is_ is_not eq ne contains __eq__ __ne__ __contains__".split())
#: Names of what windrow itself sets while a policy is called.
SET = {"_validate_args", "get_fastpath_enabled"}
#: Packages whose code captures take as it is. They are others than those with classes on the list:
#: NumPy and sb3_contrib have none there, and what is asked of the user's code is asked of windrow's
#: and Gymnasium's, too.
LIBRARIES = {"torch", "tensordict", _fence.LIBRARY, "numpy", "stable_baselines3", "sb3_contrib"}


class Closed:
    """The places that code was looked up in, and what was there.

    Args:
        codes: the code that ran, each with the globals that it reads.
        values: objects that it read.

    Raises:
        Unproved: something that it read can change where nobody looks.
    """

    def __init__(
        self, codes: Mapping[types.CodeType, dict[str, Any]], values: Iterable[Any]
    ) -> None:
        self._places = Places()
        #: Which classes count as subclasses of abstract ones, where the user's code asks.
        self._abstract: object = None
        #: Those that names are looked up in.
        self._classes: dict[type, None] = {}
        for code, scope in codes.items():
            self._look_up(code, scope)
        read: dict[int, Any] = {}
        for value in values:
            read[id(value)] = value
            self._value(value)
        names = {name for code in codes for name in (code.co_name, *code.co_names)}
        for kind in self._classes:
            if kind not in (object, type):
                self._class(kind, names, read)
        for hooks in global_hooks():
            self._places.size(hooks)
        self._readings = self._places.readings()

    def is_same(self) -> bool:
        """Whether all of these places hold what they held."""
        return self._readings.is_same() and (
            self._abstract is None or self._abstract == abc.get_cache_token()
        )

    def _value(self, value: Any) -> None:
        """An object that was read."""
        self._found(value)
        if not isinstance(value, type):
            self._places.kind(value)
        kind: Any = value if isinstance(value, type) else type(value)
        is_plain = isinstance(value, PLAIN) and not isinstance(value, enum.Enum)
        if is_plain and hasattr(value, "__dict__"):
            raise Unproved(f"{kind.__name__} is a plain value with attributes")
        if isinstance(value, dict) and type(value) in (dict, collections.OrderedDict):
            # Guards of some versions of torch leave the order out.
            self._places.order(value)
        if isinstance(value, tuple) and _holds_list(value):
            # Torch takes it for a constant, and compares it with itself.
            raise Unproved("a tuple that it reads has a list, which can be changed")
        if isinstance(value, functools._lru_cache_wrapper) and not is_library(
            getattr(value.__wrapped__, "__globals__", {})
        ):
            raise Unproved(f"{value.__name__}() remembers its results")
        self._classes.update(dict.fromkeys((*kind.__mro__, *type(kind).__mro__)))

    def _found(self, value: Any) -> None:
        """What is in a place: functions have places of their own."""
        if isinstance(value, abc.ABCMeta) and not is_library(_globals_of(value)):
            self._abstract = abc.get_cache_token()
        for function in functions_of(value):
            if self._places.function(function):
                self._function(function)

    def _function(self, function: types.FunctionType) -> None:
        defaults, keywords = function.__defaults__ or (), function.__kwdefaults__ or {}
        for name in keywords:
            self._found(self._places.entry(keywords, name))
        may_change = any(map(can_change, (*defaults, *keywords.values())))
        if may_change and not is_library(function.__globals__):
            raise Unproved(f"{function.__name__}() has a default that can be changed")
        for cell in function.__closure__ or ():
            held = contents(cell)
            self._found(held)
            # Torch compares numbers, and reads tensors and arrays anew.
            if not isinstance(held, (float, torch.Tensor, np.ndarray)):
                self._places.cell(cell, held)

    def _look_up(self, code: types.CodeType, scope: dict[str, Any]) -> None:
        is_users = not is_library(scope)
        if is_users and (names := SET & set(code.co_names)):
            raise Unproved(f"{code.co_name}() reads {min(names)}, which windrow sets")
        for _, value in self._places.looked_up(code, scope):
            self._found(value)
            if isinstance(value, type):
                kind: Any = type(value)
                self._classes.update(dict.fromkeys((*value.__mro__, *kind.__mro__)))
                if is_users and isinstance(value, abc.ABCMeta):
                    self._abstract = abc.get_cache_token()
            elif is_users and isinstance(value, types.BuiltinFunctionType):
                module = str(value.__module__ or type(value.__self__).__module__)
                if root(module) not in KNOWN:
                    # Torch takes the results of some for constants.
                    raise Unproved(f"{code.co_name}() calls {module}.{value.__name__}()")

    def _class(self, kind: type, names: set[str], read: dict[int, Any]) -> None:
        if issubclass(kind, enum.Enum):
            # Torch takes members for constants.
            for member in kind.__members__.values():
                if not isinstance(member.value, (*FIXED, frozenset, types.FunctionType)):
                    raise Unproved(f"{kind.__name__}.{member.name} is no plain value")
        if "__del__" in vars(kind) and not is_library(_globals_of(kind)):
            # It may run when the call ends.
            raise Unproved(f"{kind.__name__} has a destructor")
        own = own_dict(kind)
        self._places.size(own)
        for name in names & own.keys():
            value = self._places.entry(own, name)
            self._found(value)
            is_open = can_change(value) and id(value) not in read
            is_open = is_open or (isinstance(value, tuple) and _holds_list(value))
            if is_open and not is_library(_globals_of(kind)):
                # Some versions of torch read these without a guard.
                raise Unproved(f"{kind.__name__}.{name} can be changed")


def check_likeness(
    codes: Mapping[types.CodeType, dict[str, Any]],
    values: Iterable[Any],
    originals: Iterable[object],
) -> None:
    """Checks that code cannot see that other objects stand for the ``originals``, which are equal
    to them in all but their identity.

    Raises:
        Unproved: it asks for identities, or may compare one of the originals, which it has from
            somewhere else, with what stands for it.
    """
    own = [code for code, scope in codes.items() if not is_library(scope)]
    if asked := IDENTITIES.intersection(*[chain.from_iterable(code.co_names for code in own)]):
        raise Unproved(f"it asks which object it is, by {min(asked)}")
    numbers = set(map(id, originals))
    for value in values:
        inner = value if isinstance(value, (dict, list, tuple, set, frozenset)) else ()
        is_inside = any(id(one) in numbers for one in inner)
        if is_inside or (id(value) in numbers and any(map(_compares_objects, own))):
            raise Unproved("it reads itself from somewhere else")


def _compares_objects(code: types.CodeType) -> bool:
    """Whether code compares something else than attributes and constants with each other by
    identity or equality, or looks for it in a container.
    """
    if not COMPARISONS.isdisjoint(code.co_names):
        return True
    steps = list(dis.get_instructions(code))
    for at, step in enumerate(steps):
        is_equality = step.opname == "COMPARE_OP" and step.argrepr.strip("bol()") in ("==", "!=")
        if not is_equality and step.opname not in ("IS_OP", "CONTAINS_OP"):
            continue
        # The last step of each operand, from the second one back to the first.
        for _ in range(2):
            at -= 1
            if at < 0 or steps[at].opname not in ("LOAD_ATTR", "LOAD_CONST"):
                return True
            depth = 0
            while at >= 0 and (depth := depth + dis.stack_effect(*_operation(steps[at]))) < 1:
                at -= 1
    return False


def _operation(step: dis.Instruction) -> tuple[int, int | None]:
    return step.opcode, step.arg if step.opcode >= dis.HAVE_ARGUMENT else None


def can_change(value: object) -> bool:
    """Whether ``value`` is a list, a dictionary or a set."""
    return isinstance(value, (list, dict, set))


def _holds_list(values: tuple[Any, ...]) -> bool:
    return any(can_change(one) or isinstance(one, tuple) and _holds_list(one) for one in values)


def is_library(scope: Mapping[str, Any]) -> bool:
    """Whether code with these globals is a library's."""
    return root(scope.get("__name__")) in LIBRARIES


def _globals_of(kind: type) -> dict[str, Any]:
    return vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {}
