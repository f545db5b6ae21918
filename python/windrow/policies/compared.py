"""Whether values of Python are what they were, by the bytes that they pickle to, and what code
reads outside of the objects that it is given.

:func:`look` reads values at places. :class:`Outside` finds such places: what functions and classes
of the program, none of a library's, refer to by the names in their code.
"""

from __future__ import annotations

import abc
import builtins
import collections
import copyreg
import dis
import enum
import functools
import io
import itertools
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
from windrow.policies.places import MISSING, contents

#: Values that never change.
_FIXED = {
    *(bool, int, float, complex, str, bytes, type(None), types.CodeType),
    *(torch.dtype, torch.device, torch.Size),
}
#: Objects of learners, from which no policy computes.
IGNORED = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
#: Objects that each copy draws from for itself.
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
#: Packages that are libraries wherever they are installed.
_LIBRARIES = {
    *("windrow", "torch", "tensordict", "numpy", "gymnasium", "stable_baselines3", "sb3_contrib"),
    *(_fence.LIBRARY, *sys.stdlib_module_names),
} - {"__main__"}
#: Names by which code reads attributes that it does not name.
_DYNAMIC = {"vars", "dir", "__dict__", "__getattribute__", "attrgetter", "asdict", "__getstate__"}
_BY_TEXT = {"getattr", "setattr", "delattr", "hasattr"}
#: What calls of objects never read of their classes.
_UNREAD = {
    *("__init__", "__new__", "__init_subclass__", "__del__", "__dict__", "__weakref__", "__doc__"),
    *("__module__", "__annotations__", "__slotnames__", "_abc_impl"),
}
_INSTALLED = tuple(
    {*site.getsitepackages(), site.getusersitepackages(), *sysconfig.get_paths().values()}
)
#: What pickles to an identity: what changes in code is found where :class:`Outside` finds the code.
_BY_IDENTITY = (type, types.ModuleType, types.CodeType, *_GENERATORS)
#: What :class:`Outside` looks into by itself.
_CODE = (types.FunctionType, property, staticmethod, classmethod)

Read = Callable[[], object]
#: By place: a value, the bytes that it is compared by, and what these refer to.
Facts = dict[Any, tuple[object, bytes | None, list[object]]]


class Named:
    """Objects that are compared elsewhere, such as weights, and have names. They are kept, so that
    no other object gets the ``id`` of one.
    """

    def __init__(self, named: Iterable[tuple[Any, object]] = ()) -> None:
        self._held = {id(one): (name, one) for name, one in named}

    def name_of(self, value: object) -> Any:
        """The name of ``value``; None where it has none."""
        return self._held.get(id(value), (None,))[0]


def look(reads: Mapping[Any, Read], named: Named, before: Facts | None = None) -> Facts:
    """The values of places, as they are now.

    Args:
        reads: gives the value of each place, :data:`MISSING` where there is none.
        named: objects that are compared elsewhere.
        before: what was there before; what is certain to be the same is used again.
    """
    known: Facts = before or {}
    facts: Facts = {}
    for place, read in reads.items():
        value, held = read(), known.get(place)
        if held is None or held[0] is not value or not _is_still(value, held[1]):
            held = value, *_bytes_of(value, named)
        facts[place] = held
    return facts


def changed(now: Facts, before: Facts) -> set[Any]:
    """Places whose values differ, or cannot be compared."""
    nothing = MISSING, None, None
    return {
        place
        for place in now.keys() | before.keys()
        if (held := now.get(place, nothing)[1]) is None or held != before.get(place, nothing)[1]
    }


def referred(facts: Facts) -> Iterator[object]:
    """What values lead to: functions and classes among others."""
    return (one for _, _, several in facts.values() for one in several)


def _is_still(value: Any, held: bytes | None) -> bool:
    """Whether ``value`` is certain to be what it was, when it pickled to ``held``."""
    kind = type(value)
    return kind in _FIXED or (kind in _EMPTY and not value and held == _EMPTY[kind])


def led_to(value: object, named: Named) -> list[object]:
    """The objects that ``value`` refers to, if not through those that are ``named``."""
    return _bytes_of(value, named)[1]


def _bytes_of(value: object, named: Named) -> tuple[bytes | None, list[object]]:
    """``value`` as bytes, and the objects that it refers to. No bytes where another thread changes
    the value.
    """
    stream = io.BytesIO()
    pickler = _Pickler(stream, named)
    try:
        pickler.dump(value)
    except Exception:
        return None, pickler.referred
    return stream.getvalue(), pickler.referred


class _Token:
    """What stands for a value that is not pickled itself."""


class _Identity:
    """A value of which only the identity is compared."""

    def __init__(self, value: object) -> None:
        self.value = value


class _Pickler(pickle.Pickler):
    """Writes what can be compared, and need not be read again: of code, and of what cannot be
    pickled, the identity.
    """

    def __init__(self, stream: io.BytesIO, named: Named) -> None:
        super().__init__(stream, protocol=5)
        self._named = named
        #: Kept as long as the bytes, which hold identities.
        self.referred: list[Any] = []

    def persistent_id(self, value: Any) -> object:
        if (name := self._named.name_of(value)) is not None:
            self.referred.append(value)
            return name
        is_identity = isinstance(value, _Identity)
        value = value.value if is_identity else value
        if is_identity or value is MISSING or isinstance(value, _BY_IDENTITY):
            self.referred.append(value)
            return id(value)
        return None

    def reducer_override(self, value: Any) -> Any:
        kind: Any = type(value)
        self.referred += kind, value
        reduced: Any
        try:
            parts = _parts_of(kind)
            if parts is not None:
                return _Token, (), parts(value)
            reduce = copyreg.dispatch_table.get(kind)
            reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except Exception:
            reduced = ""
        if isinstance(reduced, str):
            return _Token, (id(value),), getattr(value, "__dict__", None)
        return reduced


def _figures(learner: Any) -> object:
    """The numbers of an optimizer or a schedule, without what the former gathers of weights."""
    groups = getattr(learner, "param_groups", [])
    figures = [{name: one for name, one in group.items() if name != "params"} for group in groups]
    return figures or {
        name: one for name, one in vars(learner).items() if not isinstance(one, IGNORED)
    }


def _numbers(tensor: torch.Tensor) -> object:
    held = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    kind = type(tensor), str(tensor.dtype), tuple(tensor.shape), tensor.requires_grad
    return kind, held, vars(tensor)


def _of_function(function: types.FunctionType) -> object:
    cells = [contents(cell) for cell in function.__closure__ or ()]
    defaults = function.__defaults__, function.__kwdefaults__
    return function.__code__, defaults, cells, vars(function)


#: What is compared of values that say too little when they are pickled.
_PARTS: list[tuple[Any, Callable[[Any], object]]] = [
    (IGNORED, _figures),
    (types.FunctionType, _of_function),
    (torch.Tensor, _numbers),
    (enum.Enum, lambda member: (type(member), member.name, vars(member))),
    (types.MethodType, lambda method: (method.__self__, method.__func__)),
    (property, lambda held: (held.fget, held.fset)),
    ((staticmethod, classmethod), lambda method: method.__func__),
    (weakref.ReferenceType, lambda reference: reference()),
    (types.CellType, lambda cell: contents(cell)),
    (types.MappingProxyType, dict),
    ((type({}.keys()), type({}.values()), type({}.items())), list),
]


@functools.lru_cache(maxsize=4096)
def _parts_of(kind: type) -> Callable[[Any], object] | None:
    return next((parts for kinds, parts in _PARTS if issubclass(kind, kinds)), None)


#: What empty containers pickle to: most attributes of modules are empty.
_EMPTY: dict[type, bytes | None] = {
    kind: _bytes_of(kind(), Named())[0] for kind in (dict, list, set, collections.OrderedDict)
}


class Outside:
    """What code refers to outside of the objects that it is given: places in globals, closures,
    defaults and classes, by the names in the code that these lead to. Code of libraries is not
    looked into.

    Args:
        own: packages that are no libraries, though they may be installed.

    Attributes:
        named: as of :func:`look`.
        reads: gives the value of each place, by what an error calls it.
        names: names in the code.
        takes_all: the code may read attributes that it does not name.
    """

    def __init__(self, own: Iterable[str]) -> None:
        self._own = set(own)
        self.named = Named()
        self.reads: dict[str, Read] = {}
        self.names: set[str] = set()
        self.takes_all = False
        self._met: dict[int, Any] = {}
        for hooks in ("_global_forward_hooks", "_global_forward_pre_hooks"):
            self._add(f"torch's {hooks}", functools.partial(getattr, torch_module, hooks))

    def follow(self, roots: Iterable[object]) -> None:
        """Adds the places that ``roots`` lead to, where these are functions, methods, modules or
        classes.
        """
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
        """Notes code that ``value`` is."""
        value = value.__func__ if isinstance(value, types.MethodType) else value
        if id(value) in self._met or not isinstance(
            value, (types.FunctionType, types.ModuleType, type)
        ):
            return
        is_layer = isinstance(value, type) and issubclass(value, nn.Module)
        if is_layer or isinstance(value, types.ModuleType) or not self.is_library(value):
            self._met[id(value)] = value
        for base in (*value.__mro__[1:], type(value)) if isinstance(value, type) else ():
            if base not in (object, type):
                self._meet(base)

    def is_library(self, value: Any) -> bool:
        """Whether a function, a class or a module is a library's."""
        name: Any
        path: Any
        if isinstance(value, types.FunctionType):
            name, path = value.__globals__.get("__name__"), value.__code__.co_filename
        elif isinstance(value, types.ModuleType):
            name, path = value.__name__, vars(value).get("__file__")
        else:
            name = value.__module__
            path = getattr(sys.modules.get(str(name)), "__file__", None)
        package = str(name).partition(".")[0]
        if package in self._own:
            return False
        return package in _LIBRARIES or str(path).startswith(("<frozen", *_INSTALLED))

    def _add(self, place: str, read: Read, *, is_identity: bool = False) -> None:
        if place in self.reads:
            return

        def compared() -> object:
            value = read()
            # Code is looked into by itself.
            return _Identity(value) if is_identity or isinstance(value, _CODE) else value

        self.reads[place] = compared
        for one in led_to(compared() if is_identity else read(), self.named):
            self._meet(one)

    def _function(self, function: types.FunctionType) -> None:
        code, scope = function.__code__, function.__globals__
        name = f"{function.__module__}.{function.__qualname__}"
        names, takes_all = _names_in(code)
        self.names |= names
        self.takes_all = self.takes_all or takes_all
        for part in ("__code__", "__defaults__", "__kwdefaults__", "__dict__", "__doc__"):
            self._add(f"{name}.{part}", functools.partial(getattr, function, part))
        for free, cell in zip(code.co_freevars, function.__closure__ or ()):
            self._add(f"{name}'s {free}", functools.partial(contents, cell))
        for used in globals_of(code):
            found = collections.ChainMap(scope, vars(builtins))
            self._entry(found, used, f"{scope.get('__name__')}.{used}")
        for used in names - scope.keys():
            # Imported as it runs.
            self._meet(sys.modules.get(used))

    def _module(self, module: types.ModuleType) -> None:
        is_library = self.is_library(module)
        held = vars(module)
        # One that makes names up may get them later.
        for name in self.names if "__getattr__" in held else self.names & held.keys():
            if not (name.startswith("__") and name.endswith("__")):
                self._entry(held, name, f"{module.__name__}.{name}", is_library=is_library)

    def _entry(
        self, scope: Mapping[str, Any], name: str, place: str, *, is_library: bool = False
    ) -> None:
        value = scope.get(name, MISSING)
        if isinstance(value, types.ModuleType):
            self._meet(value)
        else:
            read = functools.partial(scope.get, name, MISSING)
            self._add(place, read, is_identity=is_library and callable(value))

    def _class(self, kind: type) -> None:
        is_library = self.is_library(kind)
        named = {"forward", "__call__", *(() if is_library else self.names)}
        # Bases have these, and the class may get its own.
        wanted = {name for name in named if hasattr(kind, name)}
        libraries = [base for base in kind.__mro__ if self.is_library(base)]
        wanted |= {
            name
            for name, part in ([] if is_library else list(vars(kind).items()))
            if (name.startswith("__") and name.endswith("__"))
            or (self.takes_all and not callable(part))
            or any(hasattr(base, name) for base in libraries)
        }
        whole = f"{kind.__module__}.{kind.__qualname__}"
        self._add(f"{whole}.__bases__", lambda: kind.__bases__)
        if isinstance(kind, abc.ABCMeta) and not is_library:
            self._add(f"{whole}.register", lambda: _registered(kind))
        if issubclass(kind, enum.Enum) and not is_library:
            for member in kind:
                self._add(f"{whole}.{member.name}", functools.partial(vars, member))
        for name in wanted - _UNREAD:
            read = functools.partial(vars(kind).get, name, MISSING)
            self._add(f"{whole}.{name}", read, is_identity=is_library)


def _registered(kind: abc.ABCMeta) -> list[object]:
    """The classes that count as subclasses of ``kind`` since they were registered."""
    python: Any = abc
    registered = python._get_dump(kind)[0]
    return sorted((one() for one in registered), key=id)


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
    instructions = list(dis.get_instructions(code))
    for number, one in enumerate(instructions):
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME") and one.argval in _BY_TEXT:
            given = itertools.takewhile(
                lambda it: not it.opname.startswith("CALL"), instructions[number:]
            )
            if sum(it.opname == "LOAD_CONST" and isinstance(it.argval, str) for it in given) != 1:
                return True
    return False
