"""What a policy that is no module holds: the modules whose weights it has, and the object whose
attributes it reads.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from windrow.policies.compared import IGNORED, Outside, globals_of
from windrow.policies.places import contents
from windrow.policies.predictors import Predictor
from windrow.policies.weights import original, source_of, tensors_of

#: How deep objects are looked into, and how many of them.
_DEEP, _MOST = 6, 10_000
#: The name, among parts, of an object that is no module.
OWNER = "policy"


class Held(nn.Module):
    """Several modules and tensors that a function holds, each under the name of its place."""

    def __init__(self, found: Mapping[str, nn.Module | torch.Tensor]) -> None:
        super().__init__()
        for place, one in found.items():
            held: dict[str, Any] = self._modules if isinstance(one, nn.Module) else self._parameters
            held[place] = one


def source_of_weights(policy: Any) -> nn.Module:
    """The module whose weights a call of ``policy`` reads. For a function, a method or an object,
    that is the module which it holds: in its closure, its defaults, a ``partial``, an attribute or
    a global. A :class:`Held`, which may be empty, if it holds none or several.
    """
    if isinstance(original(policy), nn.Module):
        return original(policy)
    source = source_of(policy)
    if source is not None:
        return source
    found = _found(policy, _code_of(policy))
    modules = {place: one for place, one in found.items() if isinstance(one, nn.Module)}
    inner = {id(part) for one in modules.values() for part in list(one.modules())[1:]}
    modules = {place: one for place, one in modules.items() if id(one) not in inner}
    known = {id(tensor) for one in modules.values() for tensor in tensors_of(one).values()}
    tensors = {
        place: one
        for place, one in found.items()
        if isinstance(one, torch.Tensor) and id(one) not in known
    }
    if len(modules) == 1 and not tensors:
        return next(iter(modules.values()))
    return Held({**modules, **tensors})


def parts_of(policy: Any, module: nn.Module) -> dict[str, Any]:
    """The parts of ``module``, which :func:`source_of_weights` returned, by their names; and, by
    the name :data:`OWNER`, the object that ``policy`` is, or is a method of, if that is no module.
    """
    parts: dict[str, Any] = dict(original(module).named_modules())
    owner = owner_of(policy)
    return parts if owner is None else parts | {OWNER: owner}


def owner_of(policy: Any) -> object | None:
    """The object that ``policy`` is, or is a method of; None for a module or a function."""
    called = policy.predict if isinstance(policy, Predictor) else original(policy)
    owner = getattr(called, "__self__", called)
    functions = (nn.Module, types.FunctionType, functools.partial)
    return None if isinstance(owner, functions) or not hasattr(owner, "__dict__") else owner


def roots_of(policy: Any, parts: Mapping[str, object]) -> Iterator[object]:
    """The code that a call of ``policy`` begins with."""
    called = policy.predict if isinstance(policy, Predictor) else original(policy)
    while isinstance(called, functools.partial):
        called = called.func
    yield called
    for name, part in parts.items():
        # Of an object, the names in the code that is called lead to the rest.
        if name != OWNER:
            yield type(part)
    owner = parts.get(OWNER)
    if owner is not None:
        yield type(owner)


def packages_of(policy: Any, parts: Mapping[str, object]) -> set[str]:
    """The packages that the code of ``policy`` is from."""
    modules = [type(part).__module__ for part in parts.values() if not isinstance(part, Held)]
    modules.append(str(getattr(original(policy), "__module__", None)))
    own = {str(name).partition(".")[0] for name in modules}
    return own - {"torch", "tensordict", "windrow", "builtins", "functools", "None"}


def _code_of(policy: Any) -> Outside:
    parts: dict[str, object] = {}
    owner = owner_of(policy)
    if owner is not None:
        parts[OWNER] = owner
    code = Outside(packages_of(policy, parts))
    code.follow(roots_of(policy, parts))
    return code


def _found(policy: Any, code: Outside) -> dict[str, Any]:
    """Modules with tensors, and tensors that require gradients, by their places in ``policy``."""
    seen: dict[int, object] = {}
    found: dict[str, Any] = {}

    def look(value: Any, place: str, depth: int) -> None:
        if not depth or id(value) in seen or len(seen) > _MOST:
            return
        seen[id(value)] = value
        is_weight = isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf
        if is_weight or (isinstance(value, nn.Module) and tensors_of(value)):
            found[place or type(value).__name__] = value
        for name, part in _parts(value, code):
            look(part, ".".join(filter(None, (place, name))), depth - 1)

    look(policy, "", _DEEP)
    return found


def _parts(value: Any, code: Outside) -> Iterable[tuple[str, Any]]:
    """What ``value`` refers to, with names where these count."""
    if isinstance(value, (list, tuple)):
        return [(str(index), part) for index, part in enumerate(value)]
    if isinstance(value, dict):
        return [(str(key), part) for key, part in list(value.items())]
    if isinstance(value, functools.partial):
        return [("", value.func), ("", value.args), ("", value.keywords)]
    if isinstance(value, types.MethodType):
        return [("", value.__func__), ("", value.__self__)]
    if isinstance(value, Predictor):
        return [("", value.predict)]
    if isinstance(value, types.FunctionType):
        return [] if code.is_library(value) else _referred(value)
    if isinstance(value, (type, types.ModuleType, nn.Module, torch.Tensor, *IGNORED)):
        return []
    is_library = code.is_library(type(value))
    return [
        (name, part)
        for name, part in list(getattr(value, "__dict__", {}).items())
        if (isinstance(part, nn.Module) if is_library else code.reads_named(name))
    ]


def _referred(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code, scope = function.__code__, function.__globals__
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        yield name, contents(cell)
    names = code.co_varnames[: code.co_argcount]
    yield from list(zip(reversed(names), reversed(function.__defaults__ or ())))[::-1]
    yield from (function.__kwdefaults__ or {}).items()
    yield from ((name, scope[name]) for name in globals_of(code) if name in scope)
