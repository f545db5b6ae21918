"""Whether values of Python are what they were, by the bytes that they pickle to, and what code
reads outside of the objects that it is given.

:class:`Facts` remembers values by their places. :func:`places_outside` finds such places: what
functions and classes of the program, none of a library's, refer to by the names in their code.
"""

from __future__ import annotations

import collections
import copyreg
import dis
import enum
import functools
import io
import pickle
import random
import site
import sys
import sysconfig
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from windrow import _fence

#: Values that never change.
FIXED = {bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size}
#: What a place holds where there is nothing.
MISSING = object()
#: Objects of learners, from which no policy computes.
IGNORED = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
#: Objects that each copy draws from for itself.
GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
#: Packages that are libraries wherever they are installed.
LIBRARIES = {
    "windrow",
    "torch",
    "tensordict",
    _fence.LIBRARY,
    "numpy",
    "gymnasium",
    "stable_baselines3",
    "sb3_contrib",
    *sys.stdlib_module_names,
} - {"__main__"}
#: Names by which code reads attributes that it does not name.
_DYNAMIC = {"vars", "dir", "__dict__", "__getattribute__", "attrgetter", "asdict", "__getstate__"}
_BY_TEXT = {"getattr", "setattr", "delattr", "hasattr"}
#: What calls of objects never read of their classes.
_UNREAD = {
    "__init__",
    "__new__",
    "__init_subclass__",
    "__del__",
    "__dict__",
    "__weakref__",
    "__doc__",
    "__module__",
    "__annotations__",
    "__slotnames__",
    "_abc_impl",
}
_INSTALLED = tuple(
    {*site.getsitepackages(), site.getusersitepackages(), *sysconfig.get_paths().values()}
)
_OF_C = (
    types.BuiltinFunctionType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)

#: What pickles to an identity: what changes in code is found where :class:`Outside` finds the code.
_BY_IDENTITY = (type, types.ModuleType, types.CodeType, *_OF_C, *GENERATORS)

Read = Callable[[], object]


class Facts:
    """Values at places, as they are now.

    Args:
        reads: gives the value of each place, :data:`MISSING` where there is none.
        named: objects that are compared elsewhere, such as weights: their names, by ``id``.
        before: facts of the same places, of which those that are the same are used again.
    """

    def __init__(
        self, reads: Mapping[Any, Read], named: Mapping[int, Any], before: Facts | None = None
    ) -> None:
        known = {} if before is None else before._held
        self._held: dict[Any, tuple[object, bytes | None, list[object]]] = {}
        for place, read in reads.items():
            value, old = read(), known.get(place)
            if old is not None and old[0] is value and _is_still(value, old[1]):
                self._held[place] = old
            else:
                self._held[place] = value, *_bytes_of(value, named)

    def changed(self, before: Facts) -> set[Any]:
        """Places whose values differ, or cannot be compared."""
        return {
            place
            for place in self._held.keys() | before._held.keys()
            if not _same(self._held.get(place), before._held.get(place))
        }

    def size(self) -> int:
        """Bytes of large values."""
        return sum(max(len(held or b"") - 256, 0) for _, held, _ in self._held.values())

    def referred(self) -> Iterator[object]:
        """The functions and classes that values lead to."""
        return (one for _, _, referred in self._held.values() for one in referred)

    def value(self, place: Any) -> object:
        return self._held[place][0] if place in self._held else MISSING


def _is_still(value: Any, held: bytes | None) -> bool:
    """Whether ``value`` is certain to be what it was, when it pickled to ``held``."""
    kind = type(value)
    return kind in FIXED or (kind in _EMPTY and not value and held == _EMPTY[kind])


def _same(
    one: tuple[Any, bytes | None, Any] | None, other: tuple[Any, bytes | None, Any] | None
) -> bool:
    return one is not None and other is not None and one[1] is not None and one[1] == other[1]


def _bytes_of(value: object, named: Mapping[int, Any]) -> tuple[bytes | None, list[object]]:
    """``value`` as bytes, and what it refers to of which these only hold the identity: functions,
    classes, and objects that cannot be pickled. No bytes where another thread changes the value.
    """
    stream = io.BytesIO()
    pickler = _Pickler(stream, named)
    try:
        pickler.dump(value)
    except Exception:
        return None, pickler.referred
    return stream.getvalue(), pickler.referred


def figures(learner: Any) -> object:
    """The numbers of an optimizer or a schedule, without what the former gathers of weights."""
    groups = getattr(learner, "param_groups", [])
    figures = [{name: one for name, one in group.items() if name != "params"} for group in groups]
    return figures or {
        name: one for name, one in vars(learner).items() if not isinstance(one, IGNORED)
    }


class _Token:
    """What stands for a value that is not pickled itself."""


class _Identity:
    """A value of which only the identity is compared."""

    def __init__(self, value: object) -> None:
        self.value = value


class _Pickler(pickle.Pickler):
    """Writes what can be compared, and need not be read again."""

    def __init__(self, stream: io.BytesIO, named: Mapping[int, Any]) -> None:
        super().__init__(stream, protocol=5)
        self._named = named
        self.referred: list[Any] = []

    def persistent_id(self, value: Any) -> object:
        if id(value) in self._named:
            return self._named[id(value)]
        is_identity = isinstance(value, _Identity)
        value = value.value if is_identity else value
        if is_identity or value is MISSING or isinstance(value, _BY_IDENTITY):
            self.referred.append(value)
            return id(value)
        return None

    def reducer_override(self, value: Any) -> Any:
        self.referred.append(type(value))
        try:
            reduced: Any = self._parts(value)
            if reduced is None:
                reduce = copyreg.dispatch_table.get(type(value))
                reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except Exception:
            reduced = ""
        if isinstance(reduced, str):
            self.referred.append(value)
            return _Token, (id(value),), getattr(value, "__dict__", None)
        return reduced

    def _parts(self, value: Any) -> tuple[Any, ...] | None:
        """What is compared of values that say too little when they are pickled."""
        parts: Any
        if isinstance(value, IGNORED):
            return _Token, (id(value),), figures(value)
        if isinstance(value, types.FunctionType):
            self.referred += [value, value.__code__]
            cells = [contents(cell) for cell in value.__closure__ or ()]
            return (
                _Token,
                (id(value.__code__),),
                (value.__defaults__, value.__kwdefaults__, cells, vars(value)),
            )
        if isinstance(value, torch.Tensor) and not nn.parameter.is_lazy(value):
            held = value.detach().cpu().contiguous().view(-1)
            kind = type(value), str(value.dtype), value.shape, value.requires_grad
            return _Token, (*kind, held.view(torch.uint8).numpy().tobytes()), vars(value)
        if isinstance(value, enum.Enum):
            return _Token, (type(value), value.name), vars(value)
        if isinstance(value, types.MethodType):
            parts = value.__self__, value.__func__
        elif isinstance(value, property):
            parts = value.fget, value.fset
        elif isinstance(value, (staticmethod, classmethod)):
            parts = (value.__func__,)
        elif isinstance(value, weakref.ReferenceType):
            parts = (value(),)
        elif isinstance(value, types.CellType):
            parts = (contents(value),)
        elif isinstance(value, types.MappingProxyType):
            parts = (dict(value),)
        elif isinstance(value, (type({}.keys()), type({}.values()), type({}.items()))):
            parts = (list(value),)
        else:
            return None
        return _Token, (), parts


#: What empty containers pickle to: most attributes of modules are empty.
_EMPTY: dict[type, bytes | None] = {
    kind: _bytes_of(kind(), {})[0] for kind in (dict, list, set, collections.OrderedDict)
}


def contents(cell: types.CellType) -> object:
    """What a closure has in ``cell``; :data:`MISSING` for nothing."""
    try:
        return cell.cell_contents
    except ValueError:
        # Its variable was deleted, or not set yet.
        return MISSING


def _outermost(value: object) -> object:
    """What is compared of ``value`` where its code is looked into by itself."""
    is_code = isinstance(value, (types.FunctionType, property, staticmethod, classmethod))
    return _Identity(value) if is_code else value


class Outside:
    """What code refers to outside of the objects that it is given: places in globals, closures,
    defaults and classes, by the names in the code that these lead to. Code of libraries is not
    looked into.

    Args:
        own: packages that are no libraries, though they may be installed.
        named: as of :class:`Facts`.

    Attributes:
        reads: gives the value of each place, by what an error calls it.
        names: names in the code.
        takes_all: the code may read attributes that it does not name.
    """

    def __init__(self, own: Iterable[str], named: Mapping[int, Any]) -> None:
        self._own, self.named = set(own), named
        self.reads: dict[str, Read] = {}
        self.names: set[str] = set()
        self._attributes: set[str] = set()
        self.takes_all = False
        self._met: dict[int, Any] = {}
        for hooks in ("_global_forward_hooks", "_global_forward_pre_hooks"):
            self._add(f"torch's {hooks}", functools.partial(getattr, torch_module, hooks))

    def follow(self, roots: Iterable[object]) -> None:
        """Adds the places that ``roots`` lead to: functions, classes, and objects of these."""
        for root in roots:
            self._meet(root)
        before = None
        # Names lead to code, and code to names.
        while before != (now := (len(self._met), len(self.reads), len(self.names))):
            before = now
            for one in list(self._met.values()):
                if isinstance(one, types.FunctionType):
                    self._function(one)
                elif isinstance(one, types.ModuleType):
                    self._module(one)
                else:
                    self._class(one)

    def reads_named(self, attribute: str) -> bool:
        """Whether the code may read an attribute of this name."""
        return self.takes_all or attribute in self.names

    def _meet(self, value: object) -> None:
        """Notes code that ``value`` leads to."""
        if isinstance(value, (staticmethod, classmethod, types.MethodType)):
            value = value.__func__
        elif isinstance(value, property):
            for function in (value.fget, value.fset):
                self._meet(function)
            return
        if id(value) in self._met or type(value) in FIXED:
            return
        if isinstance(value, (types.FunctionType, types.ModuleType, type)):
            is_module = isinstance(value, types.ModuleType)
            if is_module or not self.is_library(value):
                self._met[id(value)] = value
            if isinstance(value, type):
                for base in (*value.__mro__[1:], type(value)):
                    if base not in (object, type):
                        self._meet(base)

    def is_library(self, value: Any) -> bool:
        """Whether a function, a class or a module is a library's."""
        name: Any
        path: Any
        if isinstance(value, types.FunctionType):
            name, path = value.__globals__.get("__name__"), value.__code__.co_filename
        elif isinstance(value, types.ModuleType):
            name, path = value.__name__, getattr(value, "__file__", None)
        else:
            name = value.__module__
            path = getattr(sys.modules.get(str(name)), "__file__", None)
        package = str(name).partition(".")[0]
        if package in self._own:
            return False
        return package in LIBRARIES or str(path).startswith(("<frozen", *_INSTALLED))

    def _add(self, place: str, read: Read, *, is_there: bool = True) -> None:
        value = read()
        if place not in self.reads and not (is_there and value is MISSING):
            self.reads[place] = lambda: _outermost(read())
            self._meet(value)
            for one in _bytes_of(value, self.named)[1]:
                self._meet(one)

    def _function(self, function: types.FunctionType) -> None:
        code, scope = function.__code__, function.__globals__
        codes = list(_inner(code))
        name = f"{function.__module__}.{function.__qualname__}"
        names, takes_all = _names_in(code)
        self.names |= names
        self._attributes.update(used for part in codes for used in part.co_names)
        self.takes_all = self.takes_all or takes_all
        self._add(f"{name}.__code__", lambda: function.__code__)
        for part in ("__defaults__", "__kwdefaults__", "__dict__"):
            if getattr(function, part):
                self._add(f"{name}.{part}", functools.partial(getattr, function, part))
        for free, cell in zip(code.co_freevars, function.__closure__ or ()):
            self._add(f"{name}'s {free}", functools.partial(contents, cell))
        for used in globals_of(code):
            if used in scope:
                self._entry(scope, used, f"{scope.get('__name__')}.{used}")
        for used in [used for part in codes for used in part.co_names]:
            if used not in scope and used in sys.modules:
                # Imported as it runs.
                self._meet(sys.modules[used])

    def _module(self, module: types.ModuleType) -> None:
        is_library = self.is_library(module)
        held = vars(module)
        for name in [name for name in held if name in self._attributes]:
            if not (name.startswith("__") and name.endswith("__")):
                self._entry(held, name, f"{module.__name__}.{name}", is_library=is_library)

    def _entry(
        self, scope: Mapping[str, Any], name: str, place: str, *, is_library: bool = False
    ) -> None:
        value = scope[name]
        if isinstance(value, types.ModuleType):
            self._meet(value)
        elif is_library and callable(value):
            self._add(place, lambda: _Identity(scope.get(name, MISSING)))
        else:
            self._add(place, lambda: scope.get(name, MISSING))

    def _class(self, kind: type) -> None:
        held = vars(kind)
        wanted = {
            name
            for name, part in list(held.items())
            if name in self.names
            or (name.startswith("__") and name.endswith("__"))
            or (self.takes_all and not callable(part))
            or any(hasattr(base, name) for base in kind.__mro__ if self.is_library(base))
        }
        # Bases have these, and the class may get its own.
        wanted |= {name for name in (*self.names, "forward", "__call__") if hasattr(kind, name)}
        for name in wanted - _UNREAD:
            place = f"{kind.__module__}.{kind.__qualname__}.{name}"
            self._add(place, functools.partial(held.get, name, MISSING), is_there=False)


@functools.lru_cache(maxsize=4096)
def globals_of(code: types.CodeType) -> tuple[str, ...]:
    """The names of globals that ``code`` reads."""
    found = [
        one.argval
        for part in _inner(code)
        for one in dis.get_instructions(part)
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    ]
    return tuple(dict.fromkeys(found))


def _inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _inner(part)


@functools.lru_cache(maxsize=4096)
def _names_in(code: types.CodeType) -> tuple[frozenset[str], bool]:
    """Names that ``code`` may read something by, text among them, and whether it may read what it
    does not name.
    """
    names: set[str] = set()
    takes_all = False
    for part in _inner(code):
        names.update(part.co_names)
        for constant in part.co_consts:
            several = constant if isinstance(constant, tuple) else (constant,)
            texts = [text for text in several if isinstance(text, str)]
            names.update(word for text in texts for word in text.split(".") if word.isidentifier())
        used = set(part.co_names)
        takes_all = takes_all or bool(used & _DYNAMIC) or bool(used & _BY_TEXT and _computes(part))
    return frozenset(names), takes_all


def _computes(code: types.CodeType) -> bool:
    """Whether ``code`` reads an attribute by a name that is no constant."""
    instructions = [
        one
        for one in dis.get_instructions(code)
        if one.opname not in ("CACHE", "PUSH_NULL", "EXTENDED_ARG", "PRECALL", "KW_NAMES")
    ]
    for number, one in enumerate(instructions):
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME") and one.argval in _BY_TEXT:
            rest = instructions[number:]
            call = next((at for at, it in enumerate(rest) if it.opname.startswith("CALL")), 0)
            texts = [it for it in rest[:call] if isinstance(it.argval, str)]
            if sum(it.opname == "LOAD_CONST" for it in texts) != 1:
                return True
    return False
