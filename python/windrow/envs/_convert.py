"""The recipe of anything that is an environment."""

from __future__ import annotations

import sys
from typing import Any

from windrow._lazy import gymnasium
from windrow.envs._gymnasium import of_id
from windrow.envs._recipe import Adapted, Call, Gymnasium, Recipe, Vector
from windrow.envs._registry import adapted


def of(env: Any, kwargs: dict[str, Any] | None = None, own: bool = True) -> Recipe:
    """The recipe of anything that is an environment: one of windrow, Gymnasium or TorchRL, an id,
    or a function that returns any of these.

    Choices are as in the library that the environment is of: indices in Gymnasium and under an id,
    one-hot vectors in TorchRL, also where windrow has a class of a name of TorchRL's.

    Args:
        kwargs: passed to ``env`` where it is a function.
        own: whether it is the user's own object, which stays open; otherwise it was made to be
            stepped, and is closed in the end.
    """
    if isinstance(env, Recipe):
        return env
    # Asked of the type, since wrappers pass attributes that they do not have on to the environment
    # inside.
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
        raise TypeError(
            f"expected an environment, its id, or a function that returns one, got {type(env).__name__}"
        )
    return Call(env, kwargs)


class _GivenAway:
    """An environment that was given away."""

    _env: Any = None
    _name = ""

    def __call__(self) -> object:
        env, self._env = self._env, None
        if env is None:
            raise ValueError(
                f"{self._name} is one object, which cannot be made once more: give a function that makes an environment"
            )
        self._name = repr(env)
        # Python drops a KeyboardInterrupt that it raises in __del__, as it does where a signal came
        # just before.
        self.__class__ = _GivenAway
        return env


class Gift(_GivenAway):
    """Gives an environment away once, to the engine, which closes it in the end. It closes an
    environment that it still has.
    """

    def __init__(self, env: object) -> None:
        self._env = env

    def __del__(self) -> None:
        self._env.close()
