"""Which environments windrow steps itself, and with which arguments.

Those of MuJoCo follow Gymnasium's code, which is compared with what they were written after:
another version of it is called instead.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from windrow._lazy import gymnasium
from windrow._warnings import PerformanceWarning, warn_once
from windrow._windrow import EnvHandle, mujoco_arguments, mujoco_version, native_ids, native_info
from windrow.envs._recipe import Native

#: The beginning of the SHA-256 of each module of ``gymnasium.envs.mujoco`` that Rust follows, of
#: Gymnasium 1.4.0.
_SOURCES = {
    "ant_v4": "a27201f0fe07160848d7a6914fb4a85b",
    "ant_v5": "03be9596a1fbc17157b6969e3ee48291",
    "half_cheetah_v4": "4810409fe42f8d2dfbae969f1462703c",
    "half_cheetah_v5": "c6520e364985f4715d42016284f694f7",
    "hopper_v4": "2148f81627c28abf95d402aef36ddb74",
    "hopper_v5": "daa2951970f5f55853c7b0ec60b47e2c",
    "humanoid_v4": "7e309f094c6bfc266da0bb9c97fef219",
    "humanoid_v5": "53792f8fd48efbeeee652ff6b853a608",
    "humanoidstandup_v4": "4ddefc45628ead5d8824e0de38f586ee",
    "humanoidstandup_v5": "ff0524040964ebd69b0191d7fb045fff",
    "inverted_double_pendulum_v4": "43d80146560c39b8f3efa1760f15ba3d",
    "inverted_double_pendulum_v5": "a4ce6cadb4daf557b0181e0dc3b19ea0",
    "inverted_pendulum_v4": "201ae53714cd8e8986a4828fe0f8663a",
    "inverted_pendulum_v5": "860e8436475689a42ae10003638e5320",
    "mujoco_env": "77e8205c380d8e0d7dc68f6ad136cf19",
    "pusher_v5": "e51893fd93ab0e7275e6eabf7cd286fd",
    "reacher_v4": "a06022f166ef32bb6cf8f5149458701f",
    "reacher_v5": "be2f75d48b6b19e61757ec98c42a9173",
    "swimmer_v4": "b8698696c7ec5ac799320310746e5d23",
    "swimmer_v5": "5bdb513ea955bc2e9b4d2fdc881f00db",
    "walker2d_v4": "bc4b14f1c27d158415489169909a4b79",
    "walker2d_v5": "10219f0e6b5208d6f5b6d7fd1dce2606",
}

#: Arguments of ``gymnasium.make`` that change nothing here: the values with which that is so.
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "disable_env_checker": (True, False, None),
    "render_mode": (None,),
}


#: What environments observe their rewards as in double precision; no ``info`` has an entry of this
#: name.
EXACT_REWARD = "exact_reward"


class NotNative(ValueError):
    """Says why windrow does not step an environment itself."""


def arguments_of(env_name: object, kwargs: Mapping[str, Any], info: Sequence[str] = ()) -> str:
    """What windrow's own environment with this id is made with, as a recipe has it, where
    ``kwargs`` are given and the entries ``info`` are observed.

    Raises:
        NotNative: windrow has no such environment, or not with these arguments.
    """
    is_of_mujoco = isinstance(env_name, str) and env_name in mujoco_arguments()
    if not isinstance(env_name, str) or not (is_of_mujoco or env_name in native_ids()):
        raise NotNative(
            f"windrow has no {env_name!r} of its own; it has {', '.join([*native_ids(), *mujoco_arguments()])}"
        )
    if not {*info} - {EXACT_REWARD} <= native_info(env_name).keys():
        has = list(native_info(env_name)) or "nothing"
        raise NotNative(
            f'{env_name} observes {has} of info natively: other info_keys need backend="gymnasium"'
        )
    if "info" in kwargs:
        raise NotNative(f"{env_name} takes no argument info: info_keys are observed")
    kwargs = {
        name: value for name, value in kwargs.items() if value not in _WITHOUT_EFFECT.get(name, ())
    }
    if is_of_mujoco:
        return _of_mujoco(env_name, kwargs, info)
    if not kwargs and not info:
        return ""
    try:
        given = json.dumps({**kwargs, **({"info": list(info)} if info else {})}, allow_nan=False)
        # Whether it takes them shows when it is made.
        EnvHandle(Native(env_name, False, arguments=given))
    except (TypeError, ValueError) as error:
        raise NotNative(str(error)) from error
    return given


def tell_of_gymnasium(env_name: str, reason: NotNative) -> None:
    """Warns, once for each ``reason``, that Gymnasium steps an environment which Rust would step if
    it were made in another way.
    """
    if env_name in native_ids() or env_name in mujoco_arguments():
        warn_once(
            f"{env_name}: {reason}",
            f'{env_name} is stepped by Gymnasium, in Python, since {reason}: backend="gymnasium", or native=False in '
            "make_vec, says so without this warning",
            PerformanceWarning,
        )


def is_native(env_name: object) -> bool:
    """Whether windrow steps the environment with this id itself."""
    try:
        arguments_of(env_name, {})
    except NotNative:
        return False
    return True


def _of_mujoco(env_name: str, kwargs: Mapping[str, Any], info: Sequence[str]) -> str:
    try:
        spec = gymnasium.registry.get(env_name)
    except ImportError as error:
        raise NotNative(
            f"{env_name} has its model from Gymnasium, which is not installed"
        ) from error
    if spec is None or not isinstance(spec.entry_point, str) or spec.additional_wrappers:
        raise NotNative(f"{env_name} is registered as another environment than Gymnasium's")
    if (doubt := _doubt(spec.entry_point)) is not None:
        raise NotNative(f"{env_name}: {doubt}")
    given = {"max_episode_steps": spec.max_episode_steps, **spec.kwargs, **kwargs}
    known = {*mujoco_arguments()[env_name], "max_episode_steps"}
    plain = {}
    for name, value in given.items():
        if name not in known:
            raise NotNative(f"{env_name} does not take {name} natively")
        plain[name] = _plain(env_name, name, value)
    written = json.dumps({**plain, **({"info": list(info)} if info else {})})
    if kwargs and (refused := _refused(env_name, written)) is not None:
        raise NotNative(refused)
    return written


@cache
def _refused(env_name: str, arguments: str) -> str | None:
    """Why Rust does not take these arguments, which shows when an environment is made; None where
    it does.
    """
    try:
        EnvHandle(Native(env_name, False, arguments=arguments))
    except (RuntimeError, TypeError, ValueError) as error:
        return str(error)
    return None


@cache
def _doubt(entry_point: str) -> str | None:
    """Why Rust does not do what the class of Gymnasium does; None where it does."""
    module = entry_point.partition(":")[0].removeprefix("gymnasium.envs.mujoco.")
    library, models = mujoco_folders()
    if models is None or library is None:
        return "MuJoCo is not installed"
    for name in ("mujoco_env", module):
        if _SOURCES.get(name) != _digest(os.path.join(os.path.dirname(models), f"{name}.py")):
            return f"Gymnasium {gymnasium.__version__} has another {name}.py than the one that is followed"
    try:
        mujoco_version(library)
    except ValueError as error:
        return str(error)
    return None


def _digest(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()[:32]
    except OSError:
        return None


@cache
def mujoco_folders() -> tuple[str | None, str | None]:
    """Where MuJoCo's library and Gymnasium's models are in this process; None for what is not
    installed.
    """
    library, gymnasium_folder = _folder("mujoco"), _folder("gymnasium")
    return library, gymnasium_folder and os.path.join(gymnasium_folder, "envs", "mujoco", "assets")


def _folder(package: str) -> str | None:
    """Where a package is, without importing it."""
    try:
        found = importlib.util.find_spec(package)
    except ValueError:
        return None
    return None if found is None or found.origin is None else os.path.dirname(found.origin)


def _plain(env_name: str, name: str, value: Any) -> Any:
    """An argument as JSON can hold it. Numbers of NumPy count differently, in another precision."""
    if name == "xml_file" and isinstance(value, str):
        return _path(value)
    if isinstance(value, (bool, str)):
        return value
    if type(value) in (int, float) and not math.isnan(value):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (tuple, list)) and len(value) == 2:
        low, high = (_plain(env_name, name, bound) for bound in value)
        return [low, high]
    raise NotNative(f"{env_name} does not take {name}={value!r} natively")


def _path(file: str) -> str:
    """The path of a model, as Gymnasium reads it."""
    models = mujoco_folders()[1] or ""
    if file.startswith("~"):
        return os.path.expanduser(file)
    return os.path.abspath(file) if file.startswith((".", "/")) else os.path.join(models, file)
