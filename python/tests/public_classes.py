"""Writes down what programs rely on of every public class and function: its module and bases, the
names, order and defaults of its arguments, and what a pickle of one holds.

    python python/tests/public_classes.py > python/tests/public_classes.txt
"""

from __future__ import annotations

import importlib
import inspect
import pickle
import pickletools
import re
from collections.abc import Iterator
from typing import Any

PACKAGES = (
    "windrow",
    "windrow.collectors",
    "windrow.data",
    "windrow.envs",
    "windrow.modules",
    "windrow.ray",
    "windrow.vectors",
)

#: Arguments that make one of a class, whose pickle is written down.
MADE: dict[str, dict[str, Any]] = {
    "windrow.data.LazyTensorStorage": {"max_size": 10},
    "windrow.data.ListStorage": {"max_size": 10},
    "windrow.data.PrioritizedSampler": {"max_capacity": 10, "alpha": 0.5, "beta": 0.5},
    "windrow.data.RandomSampler": {},
    "windrow.data.RateLimiter": {
        "samples_per_insert": 2.0,
        "min_size_to_sample": 1,
        "error_buffer": 9.0,
    },
    "windrow.data.RoundRobinWriter": {},
    "windrow.data.SliceSampler": {"num_slices": 2},
    "windrow.envs.ActionDiscretizer": {"num_intervals": 3},
    "windrow.envs.ActionMask": {},
    "windrow.envs.BinarizeReward": {},
    "windrow.envs.CatFrames": {"N": 4, "dim": -3},
    "windrow.envs.CatTensors": {"in_keys": ["a", "b"]},
    "windrow.envs.CenterCrop": {"w": 3},
    "windrow.envs.ClipTransform": {"in_keys": ["a"], "low": 0.0},
    "windrow.envs.Compose": {},
    "windrow.envs.DoubleToFloat": {},
    "windrow.envs.EndOfLifeTransform": {},
    "windrow.envs.FiniteTensorDictCheck": {},
    "windrow.envs.FlattenObservation": {"first_dim": -2, "last_dim": -1},
    "windrow.envs.FrameSkipTransform": {"frame_skip": 2},
    "windrow.envs.GrayScale": {},
    "windrow.envs.InitTracker": {},
    "windrow.envs.NoopResetEnv": {},
    "windrow.envs.ObservationNorm": {"loc": 0.0, "scale": 1.0, "in_keys": ["a"]},
    "windrow.envs.PermuteTransform": {"dims": [-1, -2]},
    "windrow.envs.RenameTransform": {"in_keys": ["a"], "out_keys": ["b"]},
    "windrow.envs.Resize": {"w": 3},
    "windrow.envs.RewardClipping": {"clamp_min": 0.0},
    "windrow.envs.RewardScaling": {"loc": 0.0, "scale": 2.0},
    "windrow.envs.RewardSum": {},
    "windrow.envs.SignTransform": {"in_keys": ["a"]},
    "windrow.envs.SqueezeTransform": {"dim": -1},
    "windrow.envs.StepCounter": {"max_steps": 5},
    "windrow.envs.TargetReturn": {"target_return": 5.0},
    "windrow.envs.TimeMaxPool": {},
    "windrow.envs.ToTensorImage": {},
    "windrow.envs.UnsqueezeTransform": {"dim": -1},
    "windrow.modules.RandomPolicy": {},
}


def lines() -> Iterator[str]:
    """A paragraph for each public name of each package."""
    names: dict[Any, str] = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in sorted(module.__all__):
            value, path = getattr(module, name), f"{package}.{name}"
            if not callable(value):
                continue
            if (first := names.setdefault(value, path)) != path:
                yield f"{path}: the same as {first}"
            else:
                yield from described(path, value)


def described(name: str, value: Any) -> Iterator[str]:
    """What is written down of ``value``, which is found as ``name``."""
    bases = ", ".join(base.__name__ for base in getattr(value, "__bases__", ()))
    kind = f"class ({bases})" if isinstance(value, type) else "function"
    yield f"{name}: {kind} {value.__module__}.{getattr(value, '__qualname__', '')}"
    inherited = value.__mro__[1:] if isinstance(value, type) else ()
    for base in inherited:
        if base is not object and arguments_of(base) == arguments_of(value) != []:
            yield f"    arguments of {base.__name__}"
            break
    else:
        yield from arguments_of(value)
    if name in MADE:
        yield f"    pickle: {' '.join(texts_of(value(**MADE[name])))}"


def arguments_of(value: Any) -> list[str]:
    """A line for each argument: its kind, name and default."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return []
    return [
        f"    {parameter.kind.name.lower():<22}{shown(parameter)}"
        for parameter in parameters
        if parameter.name != "self"
    ]


def shown(parameter: inspect.Parameter) -> str:
    """The name of ``parameter`` and its default, without addresses."""
    if parameter.default is inspect.Parameter.empty:
        return parameter.name
    default = re.sub(r" at 0x[0-9a-f]+", "", repr(parameter.default))
    return f"{parameter.name} = {default}"


def texts_of(value: object) -> list[str]:
    """The names in a pickle of ``value``: of classes, and of what they hold."""
    operations = pickletools.genops(pickle.dumps(value, protocol=4))
    texts = [str(argument) for _, argument, _ in operations if isinstance(argument, str)]
    # Numbers lie in modules that differ from version to version of NumPy.
    return [text for text in texts if not text.startswith("numpy")]


if __name__ == "__main__":
    print("\n".join(lines()))
