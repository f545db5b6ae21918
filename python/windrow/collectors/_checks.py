"""Checks of collectors' arguments, each of one value: from what users may give to what is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windrow._arguments import Check


def frames(name: str, value: Any) -> int | None:
    """A whole number of frames, such as ``1_000`` or ``1e3``; None and negative numbers mean no limit."""
    if value is None:
        return None
    try:
        if isinstance(value, bool) or int(value) != value:
            raise TypeError
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} must be a whole number of frames, got {value!r}") from None
    return int(value) if value >= 0 else None


def frame_limit(name: str, value: Any) -> int | None:
    """As :func:`frames`, where 0 means no limit either."""
    return frames(name, value) or None


def shares(name: str, value: Any) -> Any:
    """Frames of a batch, or of each worker in it: at least 1."""
    if value is None:
        raise TypeError(f"{name} is missing: the number of frames in a batch")
    if isinstance(value, (list, tuple)):
        return [shares(name, entry) for entry in value]
    number = frame_limit(name, value)
    if number is None:
        raise ValueError(f"{name} must be a positive number, got {value!r}")
    return number


def truth(name: str, value: Any) -> bool:
    """Whether ``value`` asks for something."""
    return bool(value)


def for_several(allowed: tuple[Any, ...], classes: str) -> Check:
    """A check that refuses values other than ``allowed``, and names ``classes``, which take them."""

    def check(name: str, value: Any) -> Any:
        if value not in allowed:
            raise ValueError(f"{name}={value!r} is for several workers: use {classes}")
        return value

    return check


def concatenation(cat_results: Any, *, sync: bool) -> str:
    """How shares of workers are put together, by the engine's name. Without ``sync``, each batch is one worker's."""
    names = {None: "flat", 0: "flat", -1: "time", "stack": "stack"}
    if isinstance(cat_results, bool) or cat_results not in names:
        raise ValueError(f'cat_results must be "stack", 0 or -1, got {cat_results!r}')
    if not sync and cat_results is not None:
        raise ValueError("cat_results makes no sense where each batch is one worker's")
    return names[cat_results]


def model(model_id: str) -> None:
    """Raises KeyError where no model has this id."""
    if model_id != "policy":
        raise KeyError(f"no model is called {model_id!r}: the only one is 'policy'")


def weights_by_id(weights: Mapping[str, Any]) -> Any:
    """The weights of the only model; raises KeyError where ``weights`` names another one, or none."""
    for model_id in weights:
        model(model_id)
    return weights["policy"]
