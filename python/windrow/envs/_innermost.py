"""The objects behind the wrappers of an environment."""

from __future__ import annotations

import sys
from typing import Any

from windrow import _fence


def innermost(env: object) -> list[Any]:
    """The objects that are stepped where ``env`` is: two wrappers around one environment have the
    same.
    """
    if _fence.is_a(env, "EnvBase"):
        env, wrapped = _fence.adapter.innermost(env)
        return [env] if wrapped is None else innermost(wrapped)
    inner = getattr(env, "unwrapped", None)
    inner = env if inner is None else inner
    # An adapter.
    if hasattr(type(env), "describe") and inner is not env:
        return innermost(inner)
    gymnasium = sys.modules.get("gymnasium")
    members = None
    if gymnasium is not None and isinstance(inner, gymnasium.vector.VectorEnv):
        # A vector that steps its environments itself has them.
        members = vars(inner).get("envs")
    members = members if isinstance(members, (list, tuple)) else ()
    return [inner, *(found for member in members for found in innermost(member))]
