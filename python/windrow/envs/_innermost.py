"""What is behind the wrappers of an environment."""

from __future__ import annotations

import sys
from typing import Any

from windrow.envs._torchrl_compat import is_of_torchrl


#: Libraries whose environments hold no state: several can step one object.
_STATELESS = {"brax", "jumanji"}


def innermost(env: Any) -> list[Any]:
    """The objects that are stepped where ``env`` is: two wrappers around one environment have the same."""
    if is_of_torchrl(env):
        return _of_torchrl(env)
    adapted = vars(env).get("_env") if _is_adapter(env) else None
    if adapted is not None:
        return innermost(adapted)
    inner = getattr(env, "unwrapped", None)
    inner = env if inner is None else inner
    members = vars(inner).get("envs") if hasattr(inner, "__dict__") else None
    # A vector of Gymnasium that steps its environments itself has them.
    if isinstance(members, (list, tuple)) and members and _is_vector(inner):
        return [inner, *(found for member in members for found in innermost(member))]
    return [inner]


def _of_torchrl(env: Any) -> list[Any]:
    from torchrl.envs import TransformedEnv

    while isinstance(env, TransformedEnv):
        env = env.base_env
    # What TorchRL's own wrappers, such as its GymWrapper, go around.
    wrapped = vars(env).get("_env")
    is_stateless = type(wrapped).__module__.partition(".")[0] in _STATELESS
    return [env] if wrapped is None or is_stateless else innermost(wrapped)


def _is_adapter(env: Any) -> bool:
    module = sys.modules.get("windrow.envs._torchrl")
    return module is not None and isinstance(env, module.Adapter)


def _is_vector(env: Any) -> bool:
    module = sys.modules.get("gymnasium")
    return module is not None and isinstance(env, module.vector.VectorEnv)
