"""Environments of other libraries."""

from __future__ import annotations

import sys
from typing import Any

from windrow._windrow import EnvRecipe
from windrow.envs._theirs import is_of_torchrl


def wrap(env: Any, own: bool) -> EnvRecipe | None:
    """How ``env`` is stepped: an id, an environment or vector of Gymnasium, or an environment of TorchRL. None otherwise.

    Choices are one-hot as in TorchRL, except under a bare id, which means what it does in Rust: there they are indices.

    Args:
        own: whether it is the user's own object, which stays open; otherwise it was made to be stepped.
    """
    if isinstance(env, str):
        from windrow.envs._gym import GymEnv

        return GymEnv(env, categorical_action_encoding=True)._recipe()
    # Whoever has an object of a library has imported it.
    if "gymnasium" in sys.modules:
        import gymnasium

        if isinstance(env, gymnasium.vector.VectorEnv):
            return EnvRecipe.vector(_lent(env, own), own, True)
        if isinstance(env, gymnasium.Env):
            return EnvRecipe.gymnasium(_lent(env, own), own, True, 1)
    if is_of_torchrl(env):
        from windrow.envs._torchrl import Adapter

        return EnvRecipe.foreign(_lent(Adapter(env), own), own)
    return None


def _lent(env: Any, own: bool) -> Any:
    """The object itself where it is the user's own, otherwise a function that gives it away."""
    return env if own else _Gift(env)


class _Gift:
    """Gives an environment away, once, to whoever steps it and closes it in the end. It is closed where nobody came."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def __call__(self) -> Any:
        env, self._env = self._env, None
        return env

    def __del__(self) -> None:
        if self._env is not None:
            self._env.close()
