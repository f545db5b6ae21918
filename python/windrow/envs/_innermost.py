"""The objects behind the wrappers of an environment."""

from __future__ import annotations

import sys
from typing import Any

from windrow.envs._torchrl_compat import HOMES, is_of_torchrl, without_transforms

#: Libraries whose environments hold no state: several can step one object.
_STATELESS = {"brax", "jumanji"}


def innermost(env: Any) -> list[Any]:
    """The objects that are stepped where ``env`` is: two wrappers around one environment have the same."""
    if is_of_torchrl(env):
        env = without_transforms(env)
        # What TorchRL's own wrappers, such as its GymWrapper, go around.
        wrapped = vars(env).get("_env")
        is_stateless = type(wrapped).__module__.partition(".")[0] in _STATELESS
        return [env] if wrapped is None or is_stateless else innermost(wrapped)
    # The adapter of such an environment, known by its module since that imports torchrl.
    if type(env).__module__ == HOMES["torchrl"][0]:
        return innermost(env._env)
    inner = getattr(env, "unwrapped", None)
    inner = env if inner is None else inner
    gymnasium = sys.modules.get("gymnasium")
    members = None
    if gymnasium is not None and isinstance(inner, gymnasium.vector.VectorEnv):
        # A vector that steps its environments itself has them.
        members = vars(inner).get("envs")
    members = members if isinstance(members, (list, tuple)) else ()
    return [inner, *(found for member in members for found in innermost(member))]
