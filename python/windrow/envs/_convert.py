"""The recipe of anything that is an environment, and who keeps those of its values that no column holds."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from windrow import _fence
from windrow._lazy import gymnasium
from windrow.envs._gymnasium import of_id
from windrow.envs._recipe import Adapted, Call, Gymnasium, Many, Recipe, Vector
from windrow.envs._registry import adapted

if TYPE_CHECKING:
    from windrow._objects import Keeper


def of(env: Any, kwargs: dict[str, Any] | None = None, own: bool = True) -> Recipe:
    """The recipe of anything that is an environment: one of windrow, Gymnasium or TorchRL, an id, or a function that returns any
    of these.

    Choices are one-hot as in TorchRL, except under a bare id, which means what it does in Rust: there they are indices.

    Args:
        kwargs: passed to ``env`` where it is a function.
        own: whether it is the user's own object, which stays open; otherwise it was made to be stepped, and is closed in the end.
    """
    if isinstance(env, Recipe):
        return env
    # Asked of the type, since wrappers pass attributes that they do not have on to the environment inside.
    if hasattr(type(env), "_recipe"):
        return env._recipe()
    if isinstance(env, str):
        return of_id(env)
    # An object of a library was made by code that has imported it.
    if "gymnasium" in sys.modules:
        if isinstance(env, gymnasium.vector.VectorEnv):
            return Vector(env if own else Gift(env), own)
        if isinstance(env, gymnasium.Env):
            return Gymnasium(env if own else Gift(env), own)
    if (known := adapted(env)) is not None:
        is_port = hasattr(type(known), "describe")
        return Adapted(known if own else Gift(known), own) if is_port else of(known, None, own)
    if not callable(env):
        raise TypeError(f"expected an environment, its id, or a function that returns one, got {type(env).__name__}")
    return Call(env, kwargs)


#: Transforms that leave observations as they are, or out. Others might take numbers for what these stand for.
_INDIFFERENT = {
    "ActionDiscretizer",
    "ActionMask",
    "BinarizeReward",
    "ExcludeTransform",
    "FrameSkipTransform",
    "InitTracker",
    "NoopResetEnv",
    "RewardClipping",
    "RewardScaling",
    "RewardSum",
    "SelectTransform",
    "StepCounter",
}


def beside(recipe: Recipe, keeper: Keeper) -> Recipe:
    """The same environments, of which ``keeper`` keeps what no column holds, where it can."""
    if any(name not in _INDIFFERENT for name, _ in recipe.transforms):
        return recipe
    if isinstance(recipe, Adapted):
        return replace(recipe, env=recipe.env.beside(keeper) if recipe.own else _Kept(recipe.env, keeper))
    if isinstance(recipe, Call):
        return replace(recipe, function=_Kept(recipe.function, keeper))
    if type(recipe) is Many:
        return replace(recipe, members=tuple(beside(member, keeper) for member in recipe.members))
    return recipe


def with_keeper(env: Any, keeper: Keeper) -> Any:
    """``env`` as the engine takes it: what it makes or is, of which ``keeper`` keeps what no column holds."""
    if hasattr(type(env), "keeper"):
        env.keeper = keeper
        return env
    return env if isinstance(env, str) or _fence.loaded("envs") is None else Beside(env, keeper)


class Beside:
    """An environment, and what keeps values of it that no column holds; ``own`` as for :func:`of`."""

    def __init__(self, env: Any, keeper: Keeper, own: bool = True) -> None:
        self.env = env
        self._keeper = keeper
        self._own = own

    def _recipe(self) -> Recipe:
        return beside(of(self.env, own=self._own), self._keeper)


class _Kept:
    """Makes what ``make`` does, with a keeper."""

    def __init__(self, make: Any, keeper: Keeper) -> None:
        self._make = make
        self._keeper = keeper

    def __call__(self, **arguments: Any) -> Any:
        made = self._make(**arguments)
        # An adapter, or an environment.
        return made.beside(self._keeper) if hasattr(type(made), "beside") else Beside(made, self._keeper, own=False)


class _GivenAway:
    """An environment that was given away."""

    _env: Any = None
    _name = ""

    def __call__(self) -> Any:
        env, self._env = self._env, None
        if env is None:
            raise ValueError(f"{self._name} is one object, which cannot be made once more: give a function that makes an environment")
        self._name = repr(env)
        # Python drops a KeyboardInterrupt that it raises in __del__, as it does where a signal came just before.
        self.__class__ = _GivenAway
        return env


class Gift(_GivenAway):
    """Gives an environment away once, to the engine, which closes it in the end. It closes an environment that it still has."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def __del__(self) -> None:
        self._env.close()
