"""States of Gymnasium's environments: of simulators, their generators, and the wrappers around
them.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from windrow._lazy import gymnasium

#: Methods that give a state, each with the one that takes it.
_METHODS = ("get_state", "set_state"), ("state_dict", "load_state_dict")

#: Attributes of wrappers that say how they were made, and do not change from step to step.
_MADE_WITH = {
    "env",
    "_action_space",
    "_observation_space",
    "_metadata",
    "_reward_range",
    "_cached_spec",
    "_saved_kwargs",
}


class _NotSaved(Exception):
    """Says why a state cannot be saved."""


def env_state(env: Any, may_pickle: bool) -> bytes | str:
    """The state of ``env`` and its wrappers, or the reason why it cannot be saved. The environment
    inside of all wrappers has methods for its state, or is pickled where it ``may_pickle``.
    """
    layers = _layers(env)
    try:
        states = [_wrapper(layer) for layer in layers[:-1]]
        return _written([*states, _innermost(layers[-1], may_pickle)], layers)
    except _NotSaved as reason:
        return str(reason)


def load_env_state(env: Any, state: bytes) -> None:
    """Gives ``env`` and its wrappers a state that :func:`env_state` returned for an environment
    that was made in the same way.

    Raises:
        ValueError: the environment has other wrappers.
    """
    layers = _layers(env)
    states = _read(state, layers)
    got, expected = [kind for kind, _, _ in states], [type(layer).__name__ for layer in layers]
    if got != expected:
        raise ValueError(f"the state is one of other wrappers: expected {expected}, got {got}")
    for layer, (_, method, values) in zip(layers, states, strict=True):
        if method in dict(_METHODS):
            inner, generator = values
            getattr(layer, dict(_METHODS)[method])(inner)
            if generator is not None:
                layer._np_random = generator
        else:
            # In place: the engine shares the dictionaries of wrappers.
            vars(layer).update(values)


def _layers(env: Any) -> list[Any]:
    """``env`` and what is inside of it, from the outside in."""
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    return layers


def _wrapper(layer: Any) -> tuple[str, str, Any]:
    values = {
        name: value
        for name, value in vars(layer).items()
        if name not in _MADE_WITH and not _is_fixed(value)
    }
    return type(layer).__name__, "wrapper", values


def _is_fixed(value: Any) -> bool:
    return callable(value) or isinstance(
        value, (gymnasium.spaces.Space, gymnasium.envs.registration.EnvSpec)
    )


def _innermost(env: Any, may_pickle: bool) -> tuple[str, str, Any]:
    kind = type(env)
    for gives, takes in _METHODS:
        if hasattr(kind, gives) and hasattr(kind, takes):
            return kind.__name__, gives, (getattr(env, gives)(), vars(env).get("_np_random"))
    if not isinstance(env, gymnasium.Env):
        raise _NotSaved(
            f"the state of {_name(env)} cannot be saved: windrow saves those of Gymnasium's environments and its own"
        )
    if may_pickle:
        return kind.__name__, "pickle", dict(vars(env))
    raise _NotSaved(
        f"the state of {_name(env)} cannot be saved: give it get_state and set_state, or state_dict and load_state_dict, "
        "or have it pickled by state_dict(pickle=True)"
    )


def _name(env: Any) -> str:
    spec = getattr(env, "spec", None)
    return str(getattr(spec, "id", None) or getattr(env, "id", None) or type(env).__name__)


class _Pickler(pickle.Pickler):
    """Writes environments of the stack by their number in it."""

    def __init__(self, file: io.BytesIO, layers: list[Any]) -> None:
        super().__init__(file)
        self._numbers = {id(layer): number for number, layer in enumerate(layers)}

    def persistent_id(self, value: Any) -> int | None:
        return self._numbers.get(id(value))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, layers: list[Any]) -> None:
        super().__init__(file)
        self._layers = layers

    def persistent_load(self, number: int) -> Any:
        return self._layers[number]


def _written(states: list[tuple[str, str, Any]], layers: list[Any]) -> bytes:
    file = io.BytesIO()
    try:
        _Pickler(file, layers).dump(states)
    except Exception as error:
        raise _NotSaved(
            f"the state of {_name(layers[0])} cannot be saved, since a part of it cannot be pickled: {error}"
        ) from error
    return file.getvalue()


def _read(state: bytes, layers: list[Any]) -> list[tuple[str, str, Any]]:
    read: list[tuple[str, str, Any]] = _Unpickler(io.BytesIO(state), layers).load()
    return read
