"""Which part of an object cannot be sent to another process, or holds weights that no copy of it
follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from windrow.processes.pickling import Door, NoProcesses, Unsendable, dumps


def pickled(value: object, arguments: dict[str, Any]) -> bytes:
    """``value``, made of these ``arguments`` of the user's, as bytes.

    Raises:
        NoProcesses: a part of one cannot be pickled; the error names it.
    """
    try:
        return dumps(value)
    except NoProcesses:
        raise
    except Exception as error:
        for name, given in arguments.items():
            for path, culprit in _culprits(given, ""):
                problem = f"{path}, {_short(culprit)}, cannot be pickled: {error}"
                raise Unsendable.said(partial(_refused, name, problem)) from error
        raise


def _refused(name: str, problem: str, door: Door) -> str:
    """The message about a ``problem``, which begins with its place in the argument ``name``."""
    name = door.env if name == "create_env_fn" else name
    return f"{door.who} sends {name} to {door.to}, but {name}{problem}. Make it within the function{door.or_instead}"


def _culprits(value: object, path: str, depth: int = 6) -> Iterator[tuple[str, Any]]:
    """The innermost parts of ``value`` that cannot be pickled, and where they are in it."""
    try:
        dumps(value)
        return
    except Exception:
        inner = parts(value) if depth else []
    found = False
    for name, part in inner:
        for culprit in _culprits(part, path + name, depth - 1):
            found = True
            yield culprit
    if not found:
        yield path, value


def parts(value: object) -> list[tuple[str, Any]]:
    """What ``value`` refers to, each with how it is written behind the name of ``value``."""
    if isinstance(value, (list, tuple)):
        return [(f"[{index}]", part) for index, part in enumerate(value)]
    if isinstance(value, dict):
        return [(f"[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, partial):
        return [(".func", value.func), (".args", value.args), (".keywords", value.keywords)]
    if isinstance(value, MethodType):
        return [(".__self__", value.__self__)]
    if isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or ())
        # A cell is empty where its variable was deleted.
        free = [(name, cell.cell_contents) for name, cell in cells if cell != type(cell)()]
        known = [
            (name, value.__globals__[name])
            for name in _names(value.__code__)
            if name in value.__globals__
        ]
        named = [(f" uses {name}", part) for name, part in (*free, *known)]
        return [
            (name, part)
            for name, part in named
            if not isinstance(part, (ModuleType, BuiltinFunctionType))
        ]
    # Some leave out of their state what they could not be pickled with.
    try:
        state = value.__getstate__()
    except Exception:
        state = None
    state = state if isinstance(state, dict) else getattr(value, "__dict__", {})
    # The user gave the function, and nothing around it.
    is_around = getattr(type(value), "is_around_a_function", False)
    return [("" if is_around else f".{name}", part) for name, part in state.items()]


def _names(code: CodeType) -> list[str]:
    """Names that ``code`` and the functions in it use."""
    inner = [name for part in code.co_consts if isinstance(part, CodeType) for name in _names(part)]
    return [*code.co_names, *inner]


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception:
        text = object.__repr__(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def held_weights(policy: object) -> str | None:
    """Where a module, or one of which ``policy`` is a method, has weights that are not its own, as
    in ``".act uses net"``: in a function that is an attribute. No copy takes new ones. None if
    there are none.
    """
    import torch

    module = policy if isinstance(policy, torch.nn.Module) else getattr(policy, "__self__", None)
    if not isinstance(module, torch.nn.Module):
        return None
    seen = set(map(id, (*module.modules(), *module.parameters())))

    def found(value: object, path: str, depth: int = 6) -> str | None:
        # Large data are not looked through to the end.
        if (
            not depth
            or id(value) in seen
            or len(seen) > 10_000
            or isinstance(value, (type, str, bytes))
        ):
            return None
        seen.add(id(value))
        if isinstance(value, torch.nn.Module):
            return path if next(value.parameters(), None) is not None else None
        if isinstance(value, torch.Tensor):
            return path if value.requires_grad else None
        return next(
            filter(None, (found(part, path + name, depth - 1) for name, part in parts(value))), None
        )

    entries = [entry for part in module.modules() for entry in vars(part).items()]
    functions = [
        (name, value) for name, value in entries if isinstance(value, (FunctionType, partial))
    ]
    return next(filter(None, (found(value, f".{name}") for name, value in functions)), None)


def held_state(function: object, depth: int = 6) -> str | None:
    """A place that ``function`` reads at each call and that is copied with it to another process,
    in words such as ``" uses level"``; None if there is none.
    """
    for name, part in parts(function) if depth else []:
        if isinstance(part, (type, ModuleType, BuiltinFunctionType)):
            continue
        if isinstance(part, (FunctionType, MethodType, partial)):
            inner = held_state(part, depth - 1)
            if inner is not None:
                return name + inner
        elif not isinstance(function, partial) or _can_change(part):
            return name
    return None


def _can_change(value: object) -> bool:
    """True for a bound argument that can change in place."""
    if isinstance(value, (tuple, dict)):
        return any(map(_can_change, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, (str, bytes, int, float, type(None)))
