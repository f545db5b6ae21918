"""The arguments that a class accepts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_args


def accepted_by(kind: Callable[..., Any]) -> set[str]:
    """Names of all arguments of ``kind``, with those that have no effect."""
    known = dict(inspect.signature(kind).parameters)
    legacy = known.pop("legacy", None)
    return {*known, *(legacy_of(legacy) if legacy else ())}


def legacy_of(parameter: inspect.Parameter) -> set[str]:
    """Names in the ``Unpack[TypedDict]`` of ``parameter``."""
    return set(get_args(parameter.annotation)[0].__annotations__)
