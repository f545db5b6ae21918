"""The state of Python that a call of a policy reads beside its inputs and weights, and whether it
has changed since.

:class:`~windrow.policies.watch.Watch` sees which functions run in a call. :class:`State` then finds
everything that these functions can read: what their globals, closures and defaults refer to, and
the attributes, by the names that their code mentions, of every object on the way. It remembers
these values, so that :meth:`State.is_same` can tell whether the same call would read the same. Code
of libraries in :data:`~windrow.policies.watch.TRUSTED` is not looked into: of their objects, all
attributes count.

What cannot be compared is a doubt, for which torch has to evaluate the policy: random generators,
files, clocks, iterators, and functions of C that are not known to compute from their arguments
alone.
"""

from __future__ import annotations

import collections
import dis
import functools
import gc
import inspect
import operator
import sys
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sized
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from windrow._windrow import Readings
from windrow.policies.watch import (
    FIXED,
    PLAIN,
    PURE,
    ROOT,
    impure,
    is_acting,
    is_python,
    is_trusted,
    named,
    package,
)

#: Names in code that read attributes which the code does not name.
DYNAMIC = {"vars", "dir", "__dict__", "__getattribute__", "attrgetter", "__getstate__"}
#: Functions that read or write the attribute of a name that they are given.
BY_TEXT = {"getattr", "setattr", "delattr", "hasattr"}
#: Attributes of a module that every call of it reads.
OF_MODULES = (
    "training",
    "forward",
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
)
#: Attributes of modules that no call reads.
UNREAD = {
    "_backward_hooks",
    "_backward_pre_hooks",
    "_is_full_backward_hook",
    "_non_persistent_buffers_set",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
    "_forward_hooks_always_called",
    "_is_full_forward_hook",
    "_version",
}
#: Objects of learners, from which no policy computes.
IGNORED = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
#: Objects that may be looked at; more are no policy.
MOST = 20_000
#: Marks of a name that is not there.
MISSING = object()


class State:
    """The present state that functions can read.

    Args:
        root: the policy.
        codes: the functions that run in a call, as :attr:`Watch.codes`.
        weights: tensors that are compared elsewhere.

    Attributes:
        doubt: why it cannot be compared, if so: the first part that cannot, by its name.
        functions: code that was found, with its globals, which a call may run.
    """

    def __init__(
        self,
        root: object,
        codes: Mapping[types.CodeType, dict[str, Any]],
        weights: Iterable[torch.Tensor],
    ) -> None:
        self.doubt: str | None = None
        self.functions: dict[types.CodeType, dict[str, Any]] = {}
        #: What was read, by its name, in a form that can be compared.
        self.facts: dict[str, Any] = {}
        #: Functions that give parts of what is read, each with what they gave.
        self._reads: list[tuple[Callable[[], Any], Any]] = []
        #: Parts of which sizes and classes were read, and values of dictionaries, with their keys.
        self._sizes: list[tuple[Sized, int]] = []
        self._types: list[tuple[object, type]] = []
        self._entries: list[tuple[dict[Any, Any], Any, Any]] = []
        self._tensors: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._arrays: list[tuple[np.ndarray, bytes]] = []
        self._seen: dict[int, Any] = {}
        self._codes = codes
        weights = [tensor for tensor in weights if not nn.parameter.is_lazy(tensor)]
        self._weights = set(map(id, weights))
        self._names, self._takes_all = names_in(codes)
        self._found: set[types.CodeType] = set()
        hooks = ("_global_forward_hooks", "_global_forward_pre_hooks")
        for name in hooks:
            self._walk(vars(torch_module)[name], f"torch's {name}")
        self._walk(root, ROOT)
        for code, scope in codes.items():
            self._globals(code, scope)
        self._functions()
        # Only what refers to others is kept: others may be freed.
        if len(self._seen) > MOST:
            self._refuse("it refers to too many objects")

    def again(self, root: object, weights: Iterable[torch.Tensor]) -> State:
        """The state that the same functions read by now."""
        return State(root, self._codes, weights)

    def is_same(self) -> bool:
        """Whether everything that was read is the same object by now, with the same contents. Soon
        says no where it is not certain.
        """
        if not self._readings.is_same():
            return False
        try:
            for read, before in self._reads:
                if not all(map(operator.is_, read(), before)):
                    return False
        except (KeyError, AttributeError, IndexError, ValueError):
            return False
        for tensor, values in self._tensors:
            if (
                tensor.shape != values.shape
                or tensor.dtype != values.dtype
                or not _equal(tensor, values)
            ):
                return False
        return all(array.tobytes() == held for array, held in self._arrays)

    @functools.cached_property
    def _readings(self) -> Readings:
        return Readings(self._sizes, self._types, self._entries, MISSING)

    def difference(self, other: State) -> str | None:
        """The name of something that is not the same in ``other``, if there is any."""
        return next(self._differences(other), None)

    def outside(self, other: State) -> str | None:
        """The name of something outside of the policy that is not the same in ``other``, if there
        is any.
        """
        return next((name for name in self._differences(other) if not name.startswith(ROOT)), None)

    def _differences(self, other: State) -> Iterator[str]:
        for name in dict.fromkeys((*self.facts, *other.facts)):
            if not _alike(self.facts.get(name, MISSING), other.facts.get(name, MISSING)):
                # Behind the mark is what of it is compared.
                yield name.partition("#")[0]

    # Finding

    def _refuse(self, reason: str) -> None:
        self.doubt = self.doubt or reason

    def _walk(self, value: object, path: str, *, takes_all: bool = False) -> None:
        """Adds ``value``, which is read under the name ``path``, and what can be read of it;
        ``takes_all`` of its attributes where code of a library may read them.
        """
        if isinstance(value, FIXED):
            self.facts[path] = value
            return
        if isinstance(value, IGNORED):
            return
        known = id(value) in self._seen
        self.facts[path] = type(value), id(value)
        if known or len(self._seen) > MOST:
            return
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            self._tensor(value, path)
        elif isinstance(value, np.ndarray):
            if value.dtype.hasobject:
                self._refuse(f"it reads {path}, an array of objects")
            held = value.tobytes()
            self._arrays.append((value, held))
            self.facts[path] = str(value.dtype), value.shape, held
        elif isinstance(value, types.ModuleType):
            self._module(value, path)
        elif isinstance(value, types.FunctionType):
            self._function(value, path)
        elif isinstance(value, types.MethodType):
            self._walk(value.__self__, f"{path}.__self__", takes_all=takes_all)
            self._walk(value.__func__, f"{path}.__func__")
        elif isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            reason = impure(value)
            if reason is not None:
                self._refuse(f"it reads {path}, and {reason}")
            owner = getattr(value, "__self__", None)
            if owner is not None and not isinstance(owner, types.ModuleType):
                self._walk(owner, f"{path}.__self__", takes_all=takes_all)
        elif isinstance(value, type):
            self._class(value, path)
        elif isinstance(value, (staticmethod, classmethod)):
            self._walk(value.__func__, f"{path}.__func__")
        elif isinstance(value, weakref.ReferenceType):
            self._read(lambda: (value(),), (value(),))
            self._walk(value(), f"{path}()", takes_all=takes_all)
        elif isinstance(value, functools.partial):
            for name in ("func", "args", "keywords"):
                self._walk(getattr(value, name), f"{path}.{name}", takes_all=takes_all)
        else:
            self._object(value, path, takes_all)

    def _tensor(self, value: torch.Tensor, path: str) -> None:
        # A view of weights is another tensor: a copy of a module has the numbers, and no view.
        if id(value) in self._weights or nn.parameter.is_lazy(value):
            return
        if value.layout != torch.strided or value.device.type != "cpu":
            self._refuse(f"it reads {path}, a tensor on {value.device}")
            return
        values = value.detach().clone()
        self._tensors.append((value, values))
        self.facts[path] = values

    def _object(self, value: object, path: str, takes_all: bool) -> None:
        kind = type(value)
        if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
            self._items(value, path, takes_all)
        elif isinstance(value, Mapping) and isinstance(value, (dict, types.MappingProxyType)):
            self._mapping(value, list(value), path, takes_all)
        elif not is_python(kind) or isinstance(value, (torch.Generator, Iterator)):
            self._refuse(
                f"it reads {path}, a {kind.__module__}.{kind.__qualname__}, whose state cannot be compared"
            )
            return
        if kind.__module__ == "builtins":
            return
        self._types.append((value, kind))
        own = is_trusted(kind.__module__)
        # Cached results are no state.
        caches = own and kind.__module__.startswith(
            ("stable_baselines3.common.distributions", "sb3_contrib.common")
        )
        takes_all = (
            takes_all
            or own
            or package(kind.__module__) in sys.stdlib_module_names
            or any(_reads_attributes(base) for base in kind.__mro__)
        )
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self._attributes(value, attributes, path, takes_all, caches)
        slots = [
            name
            for base in kind.__mro__
            for name in _slots(base)
            if takes_all or name in self._names
        ]
        held = {name: getattr(value, name) for name in slots if hasattr(value, name)}
        if held:
            self._read(lambda: [getattr(value, name) for name in held], list(held.values()))
            for name, part in held.items():
                self._walk(part, f"{path}.{name}", takes_all=takes_all)
        if not own:
            self._class(kind, f"{named(kind.__module__)}.{kind.__qualname__}")

    def _attributes(
        self, value: object, attributes: dict[str, Any], path: str, takes_all: bool, caches: bool
    ) -> None:
        is_module = isinstance(value, nn.Module)
        skipped = UNREAD | {"_parameters", "_buffers", "_modules"} if is_module else set()
        # A library's module reads what its class names, and nothing that a program adds to it.
        own: type = type(value)
        known = _names_of(own) if is_module and is_trusted(own.__module__) else attributes
        # Another thread may add some meanwhile.
        wanted = {
            name
            for name in list(attributes)
            if name in self._names or self._takes_all or (takes_all and name in known)
        } - skipped
        if caches:
            wanted = {
                name
                for name in wanted
                if isinstance(attributes[name], FIXED) and attributes[name] is not None
            }
        if is_module:
            wanted |= {name for name in OF_MODULES if name in attributes}
            for kind in ("_modules", "_parameters", "_buffers"):
                held = attributes[kind]
                self._mapping(held, list(held), path, takes_all=False)
        named = sorted(name for name in wanted if isinstance(name, str))
        for name, part in zip(named, self._mapping_reads(attributes, named, path)):
            # Code may not reach what no name in it leads to, and libraries do not look into what
            # they do not know.
            if name in self._names or not self._is_opaque(part):
                self._walk(part, f"{path}.{name}", takes_all=takes_all)

    def _is_opaque(self, value: object) -> bool:
        plain = isinstance(
            value,
            (
                *FIXED,
                *PLAIN,
                torch.Tensor,
                np.ndarray,
                types.FunctionType,
                types.MethodType,
                type,
                functools.partial,
            ),
        )
        return not plain and not is_python(type(value))

    def _items(self, value: Collection[Any], path: str, takes_all: bool) -> None:
        items = list(value)
        if not isinstance(value, (tuple, frozenset)):
            self._size(value)
            self._reads.append(
                (value.__iter__ if isinstance(value, list) else lambda: list(value), items)
            )
        if isinstance(value, (set, frozenset)):
            self.facts[path] = (
                frozenset(item for item in items if isinstance(item, FIXED)),
                len(items),
            )
            return
        self.facts[f"{path}#len"] = len(items)
        for index, item in enumerate(items):
            self._walk(item, f"{path}[{index}]", takes_all=takes_all)

    def _mapping(
        self, value: Mapping[Any, Any], keys: list[Any], path: str, takes_all: bool
    ) -> None:
        self.facts[f"{path}#keys of {id(value)}"] = [
            key if isinstance(key, FIXED) else id(key) for key in keys
        ]
        for key, part in zip(keys, self._mapping_reads(value, keys, path)):
            name = (
                f"{path}.{key}"
                if isinstance(key, str)
                else f"{path}[{key!r}]"
                if isinstance(key, FIXED)
                else f"{path}[{id(key)}]"
            )
            self._walk(part, name, takes_all=takes_all)

    def _mapping_reads(
        self, value: Mapping[Any, Any], keys: list[Any], path: str
    ) -> tuple[Any, ...]:
        """The values of ``keys``, which are read once: another thread may change them."""
        self._size(value)
        if not keys:
            return ()
        get = operator.itemgetter(*keys)
        read = functools.partial(get, value) if len(keys) > 1 else lambda: (get(value),)
        try:
            held: tuple[Any, ...] = read()
        except KeyError:
            self._refuse(f"{path} changes while it is read")
            return ()
        # Other mappings may find their values by code of their own.
        if isinstance(value, dict) and type(value) in (dict, collections.OrderedDict):
            self._entries += ((value, *entry) for entry in zip(keys, held))
        else:
            self._reads.append((read, held))
        return held

    def _size(self, value: Sized) -> None:
        self._sizes.append((value, len(value)))

    def _read(self, read: Callable[[], Any], held: object) -> None:
        self._reads.append((read, held))

    def _entry(self, scope: dict[str, Any], name: str) -> Any:
        """What has a name in a scope, which is a dictionary of Python's own."""
        value = scope.get(name, MISSING)
        self._entries.append((scope, name, value))
        return value

    def _module(self, module: types.ModuleType, path: str) -> None:
        """A module that is passed on as it is: what code reads of it has a name."""
        name = module.__name__
        if is_acting(name):
            self._refuse(f"it reads {path}, the module {name}")
        elif not is_trusted(name) and name not in PURE:
            self._mapping_of_scope(vars(module), sorted(self._names & vars(module).keys()), path)

    def _mapping_of_scope(self, scope: dict[str, Any], names: list[str], path: str) -> None:
        if names:
            held = [self._entry(scope, name) for name in names]
            for name, part in zip(names, held):
                if part is not MISSING:
                    self._walk(part, f"{path}.{name}")

    def _class(self, kind: type, path: str) -> None:
        """Adds the attributes of the class ``kind`` that its objects or code read."""
        if (id(kind), "class") in self._seen:
            return
        self._seen[(id(kind), "class")] = kind  # type: ignore[index]
        if not isinstance(kind, type) or is_acting(kind.__module__) or kind.__module__ == "random":
            self._refuse(f"it reads {path}, a class of {kind.__module__}")
            return
        if (
            not is_python(kind)
            and not issubclass(kind, (*PLAIN, BaseException))
            and not is_trusted(kind.__module__)
        ):
            # Its constructor may read anything.
            if kind.__module__ not in (
                "builtins",
                "collections",
                "itertools",
                "functools",
                "types",
            ):
                self._refuse(f"it reads {path}, a class of {kind.__module__}")
            return
        if type(kind) is not type and not is_trusted(type(kind).__module__):
            self._class(type(kind), f"{named(type(kind).__module__)}.{type(kind).__qualname__}")
        for base in kind.__mro__:
            held = vars(base)
            if is_trusted(base.__module__) or base.__module__ == "builtins":
                continue
            wanted = [
                name
                for name, part in list(held.items())
                if self._takes_all
                or name in self._names
                or self._has_run(part)
                or _is_read_by_others(name, kind)
            ]
            wanted = [
                name
                for name in wanted
                if name
                not in (
                    "__dict__",
                    "__weakref__",
                    "__doc__",
                    "__module__",
                    "__slots__",
                    "__slotnames__",
                    "_abc_impl",
                )
            ]
            for name, part in zip(
                wanted,
                self._mapping_reads(held, wanted, f"{named(base.__module__)}.{base.__qualname__}"),
            ):
                owner = f"{named(base.__module__)}.{base.__qualname__}.{name}"
                if isinstance(part, property):
                    for function in (part.fget, part.fset):
                        self._walk(function, owner)
                elif (
                    name in self._names
                    or isinstance(part, types.FunctionType)
                    or not self._is_opaque(part)
                ):
                    self._walk(part, owner)

    def _has_run(self, part: object) -> bool:
        functions = (part.fget, part.fset) if isinstance(part, property) else (part,)
        return any(
            isinstance(one, types.FunctionType) and one.__code__ in self._codes for one in functions
        )

    def _function(self, function: types.FunctionType, path: str) -> None:
        code, module = function.__code__, function.__globals__.get("__name__")
        if getattr(sys.modules.get(function.__module__), function.__qualname__, None) is function:
            # It is pickled by this name, and what it holds is not.
            path = f"{named(function.__module__)}.{function.__qualname__}"
        if is_acting(function.__module__):
            # Below a wrapper of a library, nobody sees that it is called.
            self._refuse(f"it reads {path}, a function of {function.__module__}")
        # Those of the standard library lead everywhere: of its objects, all attributes count.
        if not is_trusted(module) and package(module or "") not in sys.stdlib_module_names:
            self.functions[code] = function.__globals__
        self._read(
            lambda: (function.__code__, function.__defaults__, function.__kwdefaults__),
            (code, function.__defaults__, function.__kwdefaults__),
        )
        self.facts[f"{path}#code"] = id(code)
        self._seen[id(code)] = code
        # A wrapper, such as torch's, has the name of what it wraps.
        wrapped = is_trusted(module) and code not in self._codes and function.__closure__
        if code not in self._codes and not wrapped:
            return
        self._found.add(code)
        self._size(vars(function))
        self._mapping_of_scope(vars(function), sorted(self._names & vars(function).keys()), path)
        self._walk(function.__defaults__, f"{path}.__defaults__")
        self._walk(function.__kwdefaults__, f"{path}.__kwdefaults__")
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            self._cell(cell, f"{path}'s {name}")

    def _cell(self, cell: types.CellType, path: str) -> None:
        def contents() -> tuple[Any, ...]:
            try:
                return (cell.cell_contents,)
            except ValueError:
                # Its variable was deleted, or not set yet.
                return (MISSING,)

        held = contents()
        self._read(contents, held)
        if held[0] is not MISSING:
            self._walk(held[0], path)

    def _functions(self) -> None:
        """Functions with closures or defaults that no name led to, such as one behind a
        decorator.
        """
        inner = {part for code in self._codes for part in _inner(code)}
        left = [
            code
            for code in self._codes
            if code not in self._found
            and code not in inner
            and (code.co_freevars or code.co_argcount)
        ]
        if not left:
            return
        for function in gc.get_referrers(*left):
            if isinstance(function, types.FunctionType) and function.__code__ in self._codes:
                if function.__closure__ or function.__defaults__ or function.__kwdefaults__:
                    self._walk(function, f"{named(function.__module__)}.{function.__qualname__}")

    def _globals(self, code: types.CodeType, scope: dict[str, Any]) -> None:
        """Adds the globals that ``code`` reads, with the attributes that it names."""
        module = named(scope.get("__name__", ""))
        for name in imports(code):
            if not is_trusted(name) and name not in PURE:
                self._refuse(f"it imports {name} as it runs")
                if name in sys.modules:
                    self._walk(sys.modules[name], named(name))
        for chain in chains(code):
            holder, path = scope, module
            first, *rest = chain
            value = self._entry(scope, first)
            if value is MISSING:
                builtins = scope.get("__builtins__", {})
                builtins = vars(builtins) if isinstance(builtins, types.ModuleType) else builtins
                value = builtins.get(first, MISSING)
                if isinstance(value, types.BuiltinFunctionType) and impure(value) is not None:
                    # Whether it is called at all, Watch sees.
                    continue
            path = f"{module}.{first}"
            while isinstance(value, types.ModuleType) and rest:
                holder, first = vars(value), rest.pop(0)
                inner = self._entry(holder, first)
                path = f"{path}.{first}"
                if is_trusted(value.__name__) and not isinstance(inner, types.ModuleType):
                    value = MISSING if not _is_drawing(inner) else inner
                    break
                value = inner
            if value is not MISSING:
                self._walk(value, path)


def _is_drawing(value: object) -> bool:
    """Whether something of a trusted package acts, such as numpy.random.rand under another name."""
    return is_acting(getattr(value, "__module__", None) or "") or isinstance(value, torch.Generator)


def _reads_attributes(base: type) -> bool:
    """Whether code of a library that objects of this base have reads attributes of theirs."""
    return (
        base not in (object, nn.Module)
        and base.__module__ not in ("builtins", "abc", "typing", "enum")
        and is_trusted(base.__module__)
    )


def reachable(policy: Callable[..., Any]) -> dict[types.CodeType, dict[str, Any]]:
    """The functions that a call of ``policy`` may run, with the globals of each: those that names
    in the code of others lead to. Other packages that are installed, such as loggers, are not
    followed: they lead everywhere.
    """
    owner = policy if isinstance(policy, nn.Module) else getattr(policy, "__self__", policy)
    parts = owner.modules() if isinstance(owner, nn.Module) else [owner]
    own = {package(type(part).__module__) for part in parts} | {
        package(getattr(owner, "__module__", None) or "")
    }
    codes: dict[types.CodeType, dict[str, Any]] = {}
    while True:
        new = {
            code: scope
            for code, scope in State(policy, codes, ()).functions.items()
            if code not in codes and _is_followed(code, scope, own)
        }
        if not new:
            return codes
        for code, scope in new.items():
            codes.update(dict.fromkeys((code, *_inner(code)), scope))


def _is_followed(code: types.CodeType, scope: dict[str, Any], own: set[str]) -> bool:
    is_installed = "site-packages" in code.co_filename or "dist-packages" in code.co_filename
    return not is_installed or package(scope.get("__name__", "")) in own


def _is_read_by_others(name: str, kind: type) -> bool:
    """Whether code that does not name it reads ``name`` of ``kind``: a method of an operator, or
    what a class of a library reads.
    """
    is_special = (
        name.startswith("__")
        and name.endswith("__")
        and name not in ("__init__", "__new__", "__init_subclass__", "__del__")
    )
    return is_special or any(
        is_trusted(base.__module__) and hasattr(base, name) for base in kind.__mro__
    )


@functools.lru_cache(maxsize=4096)
def _names_of(kind: type) -> frozenset[str]:
    """Names in the code of a class and its bases."""
    functions = [part for base in kind.__mro__ for part in vars(base).values()]
    functions = [
        getattr(part, "fget", None) or getattr(part, "__func__", part) for part in functions
    ]
    codes = [
        part.__code__
        for part in map(inspect.unwrap, filter(callable, functions))
        if isinstance(part, types.FunctionType)
    ]
    return frozenset(
        name for code in codes for inner in (code, *_inner(code)) for name in inner.co_names
    )


def _slots(kind: type) -> list[str]:
    slots = vars(kind).get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    return [
        f"_{kind.__name__.lstrip('_')}{name}"
        if name.startswith("__") and not name.endswith("__")
        else name
        for name in names
    ]


def _inner(code: types.CodeType) -> Iterator[types.CodeType]:
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield part
            yield from _inner(part)


def names_in(codes: Iterable[types.CodeType]) -> tuple[set[str], bool]:
    """Names of attributes that ``codes`` mention, and whether they may read any others."""
    names: set[str] = set()
    for code in codes:
        names.update(code.co_names)
        found = _dynamic(code)
        if found is None:
            return names | {part for code in codes for part in code.co_names}, True
        names.update(found)
    return names, False


@functools.lru_cache(maxsize=4096)
def _dynamic(code: types.CodeType) -> frozenset[str] | None:
    """Attributes that ``code`` reads by their names as text; None where it may read any."""
    if DYNAMIC & set(code.co_names):
        return None
    found = set()
    if BY_TEXT & set(code.co_names):
        instructions = [
            one
            for one in dis.get_instructions(code)
            if one.opname not in ("CACHE", "PUSH_NULL", "EXTENDED_ARG", "PRECALL")
        ]
        for number, instruction in enumerate(instructions):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") and instruction.argval in BY_TEXT:
                call = next(
                    (
                        i
                        for i in range(number, len(instructions))
                        if instructions[i].opname.startswith("CALL")
                    ),
                    number,
                )
                given = [
                    one.argval
                    for one in instructions[number:call]
                    if one.opname == "LOAD_CONST" and isinstance(one.argval, str)
                ]
                if len(given) != 1:
                    return None
                found.update(given)
    return frozenset(found)


@functools.lru_cache(maxsize=4096)
def imports(code: types.CodeType) -> list[str]:
    """Modules that ``code`` imports as it runs."""
    return [one.argval for one in dis.get_instructions(code) if one.opname == "IMPORT_NAME"]


@functools.lru_cache(maxsize=4096)
def chains(code: types.CodeType) -> tuple[tuple[str, ...], ...]:
    """The globals that ``code`` reads, each with the attributes that it reads of it, one of the
    other: ``("np", "random", "rand")``.
    """
    found: list[list[str]] = []
    current: list[str] | None = None
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if name in ("LOAD_GLOBAL", "LOAD_NAME"):
            current = [instruction.argval]
            found.append(current)
        elif name in ("LOAD_ATTR", "LOAD_METHOD") and current is not None:
            current.append(instruction.argval)
        elif name not in ("PUSH_NULL", "CACHE", "NOP", "RESUME", "EXTENDED_ARG"):
            current = None
    return tuple(dict.fromkeys(map(tuple, found)))


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if torch.equal(one, other):
        return True
    # NaN is the same as NaN here.
    return one.is_floating_point() and bool(
        ((one == other) | ((one != one) & (other != other))).all()
    )


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return (
            isinstance(one, torch.Tensor)
            and isinstance(other, torch.Tensor)
            and one.shape == other.shape
            and one.dtype == other.dtype
            and _equal(one, other)
        )
    if type(one) is not type(other):
        return False
    same = one is other or one == other or (one != one and other != other)
    return bool(np.all(same))
