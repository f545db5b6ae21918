"""Which functions run in a call of a policy, and which of them are known to compute from their
arguments alone.
"""

from __future__ import annotations

import _lsprof
import collections
import enum
import functools
import gc
import sys
import types
from typing import Any

import numpy as np
import torch

from windrow import _fence

#: Packages whose code computes from its arguments, their attributes and weights alone.
TRUSTED = {
    "torch",
    "tensordict",
    _fence.LIBRARY,
    "stable_baselines3",
    "sb3_contrib",
    "gymnasium",
    "windrow",
    "numpy",
    "functorch",
    "typing",
    "enum",
    "abc",
    "contextlib",
    "functools",
    "collections",
    "dataclasses",
    "copy",
    "operator",
    "math",
    "numbers",
    "types",
    "_weakrefset",
    "weakref",
    "itertools",
    "pyvers",
    "optree",
    "__future__",
    "typing_extensions",
    "importlib",
    "orjson",
    "einops",
}
#: Their modules that do more than that: what these do is lost where a graph is evaluated instead.
ACTING = {
    "torch.random",
    "torch.serialization",
    "torch.distributed",
    "torch.multiprocessing",
    "torch.utils.tensorboard",
    "torch.cuda.random",
    "numpy.random",
    "torch.utils.data",
    "torch.profiler",
    "torch.autograd.profiler",
}
#: Functions of C that compute from their arguments alone, by their module; None for all of a
#: module.
PURE: dict[str, set[str] | None] = {
    "builtins": {
        "abs",
        "all",
        "any",
        "bin",
        "callable",
        "chr",
        "divmod",
        "getattr",
        "hasattr",
        "hash",
        "hex",
        "isinstance",
        "issubclass",
        "iter",
        "len",
        "max",
        "min",
        "next",
        "oct",
        "ord",
        "pow",
        "repr",
        "round",
        "setattr",
        "sorted",
        "sum",
        "vars",
        "dir",
        "format",
        "ascii",
        "delattr",
        "id",
        "__build_class__",
    },
    "math": None,
    "cmath": None,
    "_operator": None,
    "operator": None,
    "_functools": {"reduce"},
    "_bisect": None,
    "_struct": None,
}
#: Functions of torch that hand out the memory of tensors, where no trace sees it.
HANDS_OUT = {"_to_dlpack", "_to_dlpack_versioned"}
#: Types whose methods read and change nothing but the object itself, whose contents are compared.
PLAIN = (
    str,
    bytes,
    bytearray,
    int,
    float,
    complex,
    bool,
    list,
    tuple,
    dict,
    set,
    frozenset,
    collections.deque,
    collections.OrderedDict,
    collections.defaultdict,
    range,
    slice,
    type(None),
    types.MappingProxyType,
)
#: Values that never change.
FIXED: tuple[Any, ...] = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(...),
    type(NotImplemented),
    torch.dtype,
    torch.device,
    torch.Size,
    torch.layout,
    torch.memory_format,
    enum.Enum,
    np.generic,
    np.dtype,
    range,
    slice,
    property,
    type({}.keys()),
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    torch.finfo,
    torch.iinfo,
)
#: The name of the policy in those of its parts.
ROOT = "policy"


def package(name: str) -> str:
    return name.partition(".")[0]


def named(module: object) -> str:
    """The name of a module where it cannot be taken for the policy's. Some classes of C give no
    text.
    """
    return f"module {module}" if str(module).startswith(ROOT) else str(module)


def is_trusted(module: object) -> bool:
    """Whether the code of ``module`` computes from its arguments, their attributes and weights
    alone.
    """
    return isinstance(module, str) and package(module) in TRUSTED and not is_acting(module)


def is_acting(module: object) -> bool:
    # Objects of C may have something else in place of a name.
    return isinstance(module, str) and any(
        module == acting or module.startswith(acting + ".") for acting in ACTING
    )


def impure(function: object) -> str | None:
    """Why a function of C might not compute from its arguments alone, if so."""
    owner = getattr(function, "__self__", None)
    name = str(
        getattr(function, "__qualname__", None)
        or getattr(function, "__name__", type(function).__name__)
    )
    if owner is None or isinstance(owner, types.ModuleType):
        module = str(getattr(function, "__module__", None) or getattr(owner, "__name__", ""))
        allowed = PURE.get(module, set())
        pure = (
            is_trusted(module) and name not in HANDS_OUT
            if module not in PURE
            else allowed is None or name in allowed
        )
        return None if pure else f"it calls {module}.{name}()"
    kind = owner if isinstance(owner, type) else type(owner)
    # Contents of the first are compared; the last is what every class has.
    pure = (
        isinstance(owner, (*PLAIN, *FIXED, np.ndarray))
        or kind in PLAIN
        or is_trusted(kind.__module__)
        or name.startswith("object.")
    )
    return (
        None
        if pure and not isinstance(owner, torch.Generator)
        else f"it calls {kind.__module__}.{name}()"
    )


def is_python(kind: type) -> bool:
    """Whether instances of ``kind`` have no state but attributes and what plain types hold: no
    other base is implemented in C.
    """
    return all(
        base in (object, type, *PLAIN) or is_trusted(base.__module__) or not _is_of_c(base)
        for base in kind.__mro__
    )


@functools.lru_cache(maxsize=4096)
def _is_of_c(kind: type) -> bool:
    is_made_by_class = 1 << 9
    if not kind.__flags__ & is_made_by_class or isinstance(
        vars(kind).get("__new__"), types.BuiltinFunctionType
    ):
        return True
    return (
        not hasattr(sys.modules.get(kind.__module__), "__file__")
        and kind.__module__ in sys.builtin_module_names
    )


def _is_users(frame: types.FrameType | None) -> bool:
    """Whether the function of ``frame`` is none of a trusted package, and was not called on behalf
    of one: libraries call Python's own modules, and import others.
    """
    answer: bool | None = None
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("importlib"):
            return False
        if answer is None and (package(module) not in sys.stdlib_module_names or is_acting(module)):
            answer = package(module) not in TRUSTED
        if answer is False or package(module) == "windrow":
            break
        frame = frame.f_back
    return bool(answer)


def _can_pause(profiler: Any) -> bool:
    """Whether ``profiler``, which ``sys.getprofile`` returned, can be set again after another."""
    return profiler is None or callable(profiler) or isinstance(profiler, _lsprof.Profiler)


def _resume(profiler: Any) -> None:
    # cProfile's, which Python 3.11 returns, is no function.
    if isinstance(profiler, _lsprof.Profiler):
        profiler.enable()
    else:
        sys.setprofile(profiler)


class Watch:
    """Sees which functions of Python run in this thread while the context is entered, but for those
    of trusted packages.

    Attributes:
        codes: their code, with the globals that it reads.
        doubt: why a call might do more than to compute from what it reads, if so.
    """

    def __init__(self) -> None:
        self.codes: dict[types.CodeType, dict[str, Any]] = {}
        self.doubt: str | None = None
        self._passed: set[types.CodeType] = set()
        self._before: Any = None
        self._collects = False

    def __enter__(self) -> Watch:
        self._before, self._collects = sys.getprofile(), gc.isenabled()
        # Destructors of objects that are freed meanwhile are no part of the policy.
        gc.disable()
        if _can_pause(self._before):
            sys.setprofile(self._event)
        else:
            self.doubt = (
                self.doubt
                or f"{type(self._before).__name__} profiles this thread, and cannot be paused"
            )
        return self

    def __exit__(self, *_: object) -> None:
        if _can_pause(self._before):
            if sys.getprofile() != self._event:
                self.doubt = self.doubt or "it calls sys.setprofile()"
            _resume(self._before)
        if self._collects:
            gc.enable()

    def _event(self, frame: types.FrameType, event: str, argument: object) -> None:
        try:
            self._see(frame, event, argument)
        except Exception as error:
            # Python would call this function no more.
            self.doubt = (
                self.doubt or f"{frame.f_code.co_name}() calls what cannot be looked at: {error!r}"
            )

    def _see(self, frame: types.FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code not in self._passed and code not in self.codes:
            module = frame.f_globals.get("__name__", "")
            if is_trusted(module):
                self._passed.add(code)
            elif is_acting(module):
                # Windrow, and code of libraries, may do so.
                if self.doubt is None and _is_users(frame.f_back):
                    self.doubt = f"it calls {module}.{code.co_name}()"
            elif _is_users(frame):
                self.codes[code] = frame.f_globals
        elif event == "c_call" and code in self.codes and self.doubt is None:
            doubt = impure(argument)
            if doubt is not None and _is_users(frame):
                self.doubt = doubt
