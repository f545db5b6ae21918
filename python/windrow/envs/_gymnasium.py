"""Environments of Gymnasium by their ids, and with pictures."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from windrow import _needs
from windrow._arguments import refuse_unknown
from windrow._lazy import gymnasium
from windrow._windrow import EnvHandle
from windrow.envs._native import NotNative, arguments_of, tell_of_gymnasium
from windrow.envs._recipe import Gymnasium, Native, Recipe


def check_arguments(maker: Callable[..., Any], env_name: str, kwargs: Iterable[str]) -> None:
    """Checks that the environment of Gymnasium with this id takes arguments of these names, which
    ``maker``, a class or function of windrow, passes on.

    Raises:
        TypeError: it does not; the message says what each may have been meant to be, of the
            arguments of the environment and of ``maker``.
    """
    if not kwargs:
        return
    try:
        entry: Any = gymnasium.registry[env_name].entry_point
        creator = entry if callable(entry) else gymnasium.envs.registration.load_env_creator(entry)
        taken = inspect.signature(creator).parameters
    except Exception:
        # Its error comes when it is made.
        return
    if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values()):
        passing = [inspect.signature(one).parameters for one in (gymnasium.make, maker)]
        known = {"render_mode", *taken, *passing[0], *passing[1]}
        refuse_unknown(f"{maker.__name__}({env_name!r})", kwargs, known)


def of_id(env_name: str) -> Recipe:
    """The recipe of the environment with this id: windrow's own where it has one, Gymnasium's
    otherwise. Choices are indices.
    """
    try:
        return Native(env_name, False, arguments=arguments_of(env_name, {}))
    except NotNative as reason:
        tell_of_gymnasium(env_name, reason)
        return Gymnasium(by_id(env_name), own=False, one_hot=False)


def by_id(
    env_name: str, kwargs: dict[str, Any] | None = None, pixels: str | None = None
) -> Callable[[], gymnasium.Env[Any, Any]]:
    """A function that makes the environment with this id, see :func:`make`."""
    # Observations are checked as they are read.
    return partial(
        make,
        env_name=env_name,
        kwargs={"disable_env_checker": True, **(kwargs or {})},
        pixels=pixels,
    )


def make(
    env_name: str, kwargs: dict[str, Any], pixels: str | None = None
) -> gymnasium.Env[Any, Any]:
    """An environment of Gymnasium; where it has none, the error names environments of windrow with
    a similar id. ``pixels`` is ``"only"`` to observe pictures of the environment, and ``"beside"``
    to observe what it does too.
    """
    try:
        create = gymnasium.make
    except ImportError as error:
        raise _unknown(
            env_name, f"and Gymnasium is not installed: {_needs.install('gymnasium')}"
        ) from error
    if env_name.startswith(("ALE/", "ale_py:")):
        # It registers its ids when it is imported.
        with contextlib.suppress(ImportError):
            importlib.import_module("ale_py")
    try:
        made = create(env_name, **{**({"render_mode": "rgb_array"} if pixels else {}), **kwargs})
    except gymnasium.error.VersionNotFound as error:
        raise _unknown(env_name, f"Gymnasium: {error}") from error
    except gymnasium.error.UnregisteredEnv as error:
        raise ValueError(
            f"no environment is called {env_name!r}: {str(error).rstrip('.')}. Ids of a package are known once it has been imported, "
            'and some packages are registered by a call, too: gymnasium.register_envs(ale_py). "module:id" imports the module first'
        ) from error
    return with_pixels(made, pixels == "only") if pixels else made


def with_pixels(env: gymnasium.Env[Any, Any], pixels_only: bool) -> gymnasium.Env[Any, Any]:
    if _observes_pixels(env.observation_space):
        return env
    try:
        # It draws the environment once, to see how large pictures are.
        seen = gymnasium.wrappers.AddRenderObservation(
            env, render_only=False, render_key="pixels", obs_key="observation"
        )
    except Exception as error:
        raise ValueError(
            f"from_pixels: {env} cannot be drawn: {error or type(error).__name__}"
        ) from error
    return gymnasium.wrappers.FilterObservation(seen, ["pixels"]) if pixels_only else seen


def _observes_pixels(space: gymnasium.Space[Any]) -> bool:
    if isinstance(space, gymnasium.spaces.Dict):
        return "pixels" in space.spaces
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 3 or space.shape[-1] != 3:
        return False
    return bool((space.low == 0).all() and (space.high == 255).all())


def _unknown(env_name: str, more: str) -> ValueError:
    try:
        EnvHandle(Native(env_name, False))
    except ValueError as error:
        return ValueError(f"{error} ({more})")
    return ValueError(f"{env_name!r} needs Gymnasium here: {more}")
