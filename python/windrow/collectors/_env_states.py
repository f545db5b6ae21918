"""States of environments: what their transforms have gathered, such as statistics for normalising
observations.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from typing import Any

from windrow import _fence
from windrow.processes.proxy import RemoteEnv


def states_of(envs: list[Any]) -> dict[str, Any]:
    """A copy of the state of each worker's environments, under ``"worker<i>"`` where there are
    several workers. Environments without a state have an empty one.

    Args:
        envs: for each worker an environment, or a factory, whose environments are
            ``made_together``; or where they are in a process.
    """
    return _numbered(
        [
            entry.states()
            if isinstance(entry, RemoteEnv)
            else _numbered([_state_of(env) for env in _made(entry)])
            for entry in envs
        ]
    )


def load(envs: list[Any], states: Mapping[str, Any]) -> None:
    """Gives environments states that :func:`states_of` returned. An empty state changes nothing.

    Raises:
        ValueError: they are states of other environments.
    """
    entries = _paired(envs, states)
    for entry, own in entries:
        if isinstance(entry, RemoteEnv):
            entry.load_states(own)
    each = [
        pair
        for entry, own in entries
        if not isinstance(entry, RemoteEnv)
        for pair in _paired(_made(entry), own)
    ]
    for env, state in each:
        if not state:
            continue
        if not hasattr(env, "load_state_dict"):
            raise ValueError(
                f"env_state_dict of other environments: {env!r} has no state, got {sorted(state)}"
            )
        if getattr(env, "_takes_states", True):
            # Transforms keep the tensors that they are given.
            env.load_state_dict(copy.deepcopy(dict(state)))
            if sharing := sys.modules.get(_fence.HOMES["sharing"]):
                sharing.share_loaded(env)
        elif not _alike(env.state_dict(), state):
            # The engine took the numbers over when the collector was built.
            raise ValueError(
                f"env_state_dict has other numbers than {env!r}: call its load_state_dict with it before the collector is built"
            )


def _made(entry: object) -> list[Any]:
    return getattr(entry, "made_together", None) or [entry]


def _numbered(states: list[dict[str, Any]]) -> dict[str, Any]:
    if len(states) == 1:
        return states[0]
    return {f"worker{number}": state for number, state in enumerate(states)} if any(states) else {}


def _paired(envs: list[Any], states: Mapping[str, Any]) -> list[tuple[Any, Mapping[str, Any]]]:
    if len(envs) == 1 or not states:
        return [(env, states) for env in envs]
    names = [f"worker{number}" for number in range(len(envs))]
    if sorted(states) != sorted(names):
        raise ValueError(
            f"env_state_dict of other environments: expected {names}, got {sorted(states)}"
        )
    return [(env, states[name]) for env, name in zip(envs, names, strict=True)]


def _state_of(env: Any) -> dict[str, Any]:
    return copy.deepcopy(dict(env.state_dict())) if hasattr(env, "load_state_dict") else {}


def _alike(own: Any, other: Any) -> bool:
    if isinstance(own, Mapping) and isinstance(other, Mapping):
        return own.keys() == other.keys() and all(_alike(own[key], other[key]) for key in own)
    return bool(own.shape == other.shape and (own == other).all())
