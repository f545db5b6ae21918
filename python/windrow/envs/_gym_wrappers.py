"""Wrappers of Gymnasium whose steps the engine runs (`wrappers.rs`), taken off an environment from
the outside in.
"""

from __future__ import annotations

import dis
import re
import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from windrow._lazy import gymnasium, numpy
from windrow._types import Array

Layer = tuple[str, Any, Callable[..., Any], Any]
"""What the engine does, the wrapper, its own code, and arguments."""

#: The first and the last version of Gymnasium whose wrappers are known to compute what the engine
#: does.
_KNOWN = (1, 0), (1, 4)

#: The method that each wrapper calls in a step, beside that of the environment inside; None where
#: its step does more.
_METHODS: dict[str, str | None] = {
    **dict.fromkeys(("TransformAction", "ClipAction", "RescaleAction"), "action"),
    **dict.fromkeys(("TransformReward", "ClipReward"), "reward"),
    **dict.fromkeys(
        [
            f"{change}Observation"
            for change in (
                "Transform",
                "Flatten",
                "Normalize",
                "Filter",
                "Grayscale",
                "Resize",
                "Reshape",
                "Rescale",
                "Dtype",
            )
        ],
        "observation",
    ),
    **dict.fromkeys(
        ("TimeLimit", "RecordEpisodeStatistics", "NormalizeReward", "FrameStackObservation")
    ),
}


def peel(env: Any) -> tuple[Any, list[Layer]]:
    """The environment to step, and the wrappers around it whose steps the engine runs, the
    outermost first.
    """
    layers: list[Layer] = []
    known = isinstance(env, gymnasium.Env) and _KNOWN[0] <= _version() <= _KNOWN[1]
    while known and _is_gymnasiums(env):
        name = type(env).__name__
        if name in _METHODS:
            method = _METHODS[name]
            own = getattr(env, method) if method else _after(env)
            work, arguments = _work(name, env) or (method or "step", None)
            layers.append((work, env, own, arguments))
        # A step after the first reset is never out of order, and the engine begins with a reset.
        elif name != "OrderEnforcing":
            break
        env = env.env
    # Around the environment that is stepped, a wrapper's own step costs less than its code by
    # itself. A time limit costs too little to run it elsewhere.
    while layers and layers[-1][0] in ("observation", "reward", "action", "step"):
        env = layers.pop()[1]
    return env, layers


def _version() -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", gymnasium.__version__)[:2]))


def _is_gymnasiums(env: object) -> bool:
    """Whether ``env`` is a wrapper of exactly one of Gymnasium's classes, and has its methods."""
    cls = type(env)
    names = ("step", "reset", "observation", "reward", "action")
    if getattr(gymnasium.wrappers, cls.__name__, None) is not cls or any(
        name in vars(env) for name in names
    ):
        return False
    methods = (getattr(cls, name, None) for name in names)
    return all(method is None or method.__module__.startswith("gymnasium.") for method in methods)


def _work(name: str, env: Any) -> tuple[str, Any] | None:
    """What the engine does instead of the wrapper ``env``, and its arguments; None where that is
    nothing.
    """
    if name in ("RecordEpisodeStatistics", "NormalizeReward"):
        return name, None
    if name == "NormalizeObservation":
        return (name, env.observation_space.shape) if env.observation_space.shape else None
    if name == "FlattenObservation":
        space = env.env.observation_space
        is_real = isinstance(space, gymnasium.spaces.Box) and space.dtype in (
            numpy.float32,
            numpy.float64,
        )
        return (name, (space.dtype.name, space.shape)) if is_real else None
    if name in ("TransformObservation", "TransformReward") and (
        bounds := _clipped_between(env.func)
    ):
        return name, bounds
    # Anything may have been put into `func` since.
    func = vars(env).get("func")
    inside = (
        _closure(func)
        if str(getattr(func, "__module__", "")).startswith("gymnasium.wrappers.")
        else {}
    )
    if name == "ClipReward" and {"min_reward", "max_reward"} <= inside.keys():
        bounds = [inside["min_reward"], inside["max_reward"]]
        return (name, bounds) if _are_bounds(bounds) else None
    if name == "ClipAction" and inside:
        return _singles(name, env.env.action_space.low, env.env.action_space.high)
    if name == "RescaleAction" and {"intercept", "gradient"} <= inside.keys():
        return _singles(name, inside["intercept"], inside["gradient"])
    return None


def _singles(name: str, *arrays: Array) -> tuple[str, Any] | None:
    are_singles = all(array.dtype == numpy.float32 for array in arrays)
    return (name, [numpy.ascontiguousarray(array) for array in arrays]) if are_singles else None


def _closure(function: Any) -> dict[str, Any]:
    cells = getattr(function, "__closure__", None) or ()
    return (
        dict(
            zip(function.__code__.co_freevars, (cell.cell_contents for cell in cells), strict=True)
        )
        if cells
        else {}
    )


def _are_bounds(bounds: list[Any]) -> bool:
    # Whole numbers that float32 has, and no number that is infinite there.
    most = {int: 2**24, float: 3e38}
    return (
        len(bounds) == 2
        and all(type(one) in most and abs(one) <= most[type(one)] for one in bounds)
        and bounds[0] <= bounds[1]
    )


def _clipped_between(function: object) -> list[Any] | None:
    """The two numbers of ``lambda x: np.clip(x, low, high)``, which is known by its code."""
    code = getattr(function, "__code__", None)
    if (
        type(function) is not FunctionType
        or code is None
        or len(code.co_varnames) != 1
        or len(code.co_names) != 2
    ):
        return None
    module, argument = code.co_names[0], code.co_varnames[0]
    loads = ("LOAD_CONST", "LOAD_SMALL_INT")
    bounds = [one.argval for one in dis.get_instructions(code) if one.opname in loads]
    is_numpy = function.__globals__.get(module) is sys.modules.get("numpy")
    if not (is_numpy and argument.isidentifier() and _are_bounds(bounds)):
        return None
    same = f"lambda {argument}: {module}.clip({argument}, {bounds[0]!r}, {bounds[1]!r})"
    # Where a module imports the name, Python compiles its attributes in another way.
    for begin in ("", f"import numpy as {module}\n"):
        compiled = next(
            one for one in compile(begin + same, "", "exec").co_consts if isinstance(one, CodeType)
        )
        if all(
            getattr(compiled, part) == getattr(code, part)
            for part in ("co_code", "co_consts", "co_names", "co_argcount")
        ):
            return bounds
    return None


class _Returned:
    """Stands where the environment inside a wrapper is, after a step of it."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.env, self.values = env, ()

    def step(self, action: object) -> tuple[Any, ...]:
        return self.values

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)


def _after(wrapper: gymnasium.Wrapper[Any, Any, Any, Any]) -> Callable[[Any], Any]:
    """What the step of ``wrapper`` does with the values that the environment inside has returned:
    its own code, run in an object that has the wrapper's attributes, except for the environment.
    """
    returned, cls = _Returned(wrapper.env), type(wrapper)
    twin: Any = object.__new__(type(cls.__name__, (cls,), {"env": property(lambda self: returned)}))
    twin.__dict__ = vars(wrapper)

    def after(values: tuple[Any, ...]) -> object:
        returned.values = values
        changed = twin.step(None)
        returned.values = ()
        return changed

    return after
