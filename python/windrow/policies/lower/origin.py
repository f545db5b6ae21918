"""Where the code of libraries comes from: whether a class or a function is as its library has
defined it, and whether it has stayed so.

Code is taken for the library's own if it lies in the library's files, the first time that somebody
looks. From then on, it and the names that it looks up are compared by identity.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as nn_module

from windrow import _fence
from windrow._windrow import Readings
from windrow.policies.lower.values import NotLowerable
from windrow.policies.places import Places, contents

#: How many wrappers may lie around a function.
DEEPEST = 8
#: Packages with classes on the list.
LIBRARIES = ("torch", "tensordict", _fence.LIBRARY, "stable_baselines3", "gymnasium", "windrow")
#: Others whose functions stand in for, or wrap, those of libraries, beside Python's own.
OTHERS = ("numpy", "pyvers", "typing_extensions")
#: Modules whose functions are followed where code calls them.
FOLLOWED = (
    "torch.nn.functional",
    "torch.nn.modules.",
    "torch.nn.utils.",
    "torch.distributions.",
    "tensordict.nn.",
    f"{_fence.LIBRARY}.modules.",
    f"{_fence.LIBRARY}.data.tensor_specs",
    "stable_baselines3.common.",
    "windrow.policies.onnx.",
)
#: Values that never change, with the classes below these of Python, NumPy and torch.
FIXED: tuple[Any, ...] = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice, type(...)),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
    *(np.generic, np.dtype),
)
#: Where Python's own modules are.
STANDARD = os.path.dirname(os.__file__) + os.sep
#: Methods of ``Module`` that run in a call.
CALLED = {"__call__", "_call_impl", "_wrapped_call_impl", "__getattr__"}
#: Methods of other classes that do not.
NOT_CALLED = set(
    (
        "__init__ __repr__ __getstate__ __setstate__ __reduce__ extra_repr reset_parameters "
        "_load_from_state_dict _save_to_state_dict state_dict load_state_dict share_memory "
        "set_extra_state get_extra_state"
    ).split()
)


class NotListed(NotLowerable):
    """Why a policy's classes alone do not tell what its call reads."""


class _Known:
    """Reads a class, or a function.

    Attributes:
        places: all that its code looks up in its library.

    Raises:
        NotListed: it is not as its library has defined it.
    """

    def __init__(self, what: Any) -> None:
        self.places = Places()
        if isinstance(what, type):
            self._class(what)
        else:
            self._function(what)

    def _class(self, kind: type) -> None:
        if not _is_of_python(kind):
            return
        if root(kind.__module__) not in LIBRARIES:
            if _is_known(kind.__module__):
                return
            raise NotListed(f"{kind.__module__}.{kind.__qualname__} is of no library on the list")
        own = own_dict(kind)
        self.places.size(own)
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        for name, value in own.items():
            functions = list(functions_of(value))
            if not functions:
                if hasattr(type(value), "__get__") and not _is_known(type(value).__module__):
                    raise NotListed(f"{kind.__qualname__}.{name} is no library's")
                continue
            if name in CALLED if kind is nn.Module else name not in NOT_CALLED:
                _check(kind, name, functions, file)
                self.places.note(own, name, value)
                for function in functions:
                    self._function(function)

    def _function(self, function: types.FunctionType) -> None:
        if not self.places.function(function):
            return
        for cell in function.__closure__ or ():
            held = contents(cell)
            self.places.cell(cell, held)
            for inner in functions_of(held):
                self._function(inner)
        scope = function.__globals__
        for code in _codes(function.__code__):
            for name, value in self.places.looked_up(code, scope):
                if callable(value):
                    self._called(name, value)
                elif type(value) is dict and _is_followed(scope.get("__name__")):
                    self.places.whole(value)

    def _called(self, name: str, called: Any) -> None:
        """What code calls by this name: functions of libraries are followed where they are near."""
        if not is_theirs(called):
            raise NotListed(f"{name} is {called!r}, which no library has defined")
        if not isinstance(called, type) and _is_followed(getattr(called, "__module__", None)):
            for inner in functions_of(called):
                self._function(inner)


_KNOWN: dict[Any, Readings] = {}


def known(what: Any) -> Readings:
    """Says whether a class, or a function, of a library is as it is now.

    Raises:
        NotListed: it is not as its library has defined it, or has changed.
    """
    found = _KNOWN.get(what)
    if found is None or not found.is_same():
        found = _Known(what).places.readings()
        # Others are made for one object each.
        if getattr(sys.modules.get(what.__module__), what.__qualname__, None) is what:
            _KNOWN[what] = found
    return found


def root(module: object) -> str:
    """The package of a module's name."""
    return module.partition(".")[0] if isinstance(module, str) else ""


def is_theirs(called: Any) -> bool:
    """Whether a function, a class or an object that can be called is of a library."""
    functions = list(functions_of(called))
    if functions:
        return all(_is_theirs(function.__code__) for function in functions)
    is_named = isinstance(called, (type, types.BuiltinFunctionType))
    module = getattr(called, "__module__", None) if is_named else type(called).__module__
    return _is_known(module or "builtins")


def _is_followed(module: object) -> bool:
    return f"{module}.".startswith(FOLLOWED)


def _is_known(module: object) -> bool:
    return root(module) in (*LIBRARIES, *OTHERS) or root(module) in sys.stdlib_module_names


def own_dict(kind: type) -> dict[str, Any]:
    """The dictionary of a class itself, behind what ``vars`` gives."""
    found: dict[str, Any] = gc.get_referents(vars(kind))[0]
    return found


@functools.cache
def _folder(package: str) -> str:
    file = str(sys.modules[package].__file__)
    return os.path.dirname(file) + os.sep if "__init__" in file else file


def _is_theirs(code: types.CodeType) -> bool:
    """Whether code lies in a file of a library, or of Python's own."""
    file = code.co_filename
    folders = tuple(_folder(name) for name in (*LIBRARIES, *OTHERS) if name in sys.modules)
    in_python = file.startswith(STANDARD) and "site-packages" not in file[len(STANDARD) :]
    return file.startswith(folders) or in_python or file in ("<string>", "<frozen abc>")


def _check(kind: type, name: str, functions: list[types.FunctionType], file: str | None) -> None:
    """Checks that functions in a class are those that its file defines."""
    where = f"{kind.__module__}.{kind.__qualname__}.{name}"
    own, wrappers = functions[-1], functions[:-1]
    # Of dataclasses and named tuples, which Python has written.
    is_written = hasattr(kind, "__dataclass_fields__") or hasattr(kind, "_fields")
    is_generated = is_written and _is_theirs(own.__code__)
    prefix = own.__qualname__.rpartition(".")[0]
    is_own = own.__code__.co_filename == file and (
        not prefix or "<locals>" in prefix or prefix == kind.__qualname__
    )
    if not (is_own or is_generated or _is_inherited(own, kind)):
        raise NotListed(f"{where} is not as its library has defined it")
    if not all(_is_theirs(wrapper.__code__) for wrapper in wrappers):
        raise NotListed(f"{where} is wrapped by code of no library")


def _is_inherited(function: types.FunctionType, kind: type) -> bool:
    """Whether ``function`` was taken from another class of a library, under its own name."""
    owner: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        owner = getattr(owner, name, None)
    return function in functions_of(owner) and _is_theirs(function.__code__)


def _is_of_python(kind: type) -> bool:
    is_made_by_class = 1 << 9
    return bool(kind.__flags__ & is_made_by_class)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def functions_of(value: Any) -> Iterator[types.FunctionType]:
    """The functions of Python in what a class or a module holds: those that wrap others first."""
    for _ in range(DEEPEST):
        if isinstance(value, types.FunctionType):
            yield value
            value = getattr(value, "__wrapped__", None)
        elif isinstance(value, (staticmethod, classmethod, types.MethodType)):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        elif isinstance(value, (functools.partialmethod, functools.partial)):
            value = value.func
        elif isinstance(value, functools.cached_property):
            value = value.func
        else:
            return


def global_hooks() -> Iterator[dict[Any, Any]]:
    """The hooks that torch runs for all modules."""
    for name, hooks in vars(nn_module).items():
        if name.startswith("_global_") and isinstance(hooks, dict):
            yield hooks
