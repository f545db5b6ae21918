"""Which environments windrow steps itself, and with which arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from windrow._windrow import EnvHandle, native_ids, native_info
from windrow.envs._recipe import Native


class NotNative(ValueError):
    """Says why windrow does not step an environment itself."""


def arguments_of(env_name: object, kwargs: Mapping[str, Any], info: Sequence[str] = ()) -> str:
    """What windrow's own environment with this id is made with, as a recipe has it, where ``kwargs`` are given and the entries ``info``
    are observed.

    Raises:
        NotNative: windrow has no such environment, or not with these arguments.
    """
    if not isinstance(env_name, str) or env_name not in native_ids():
        raise NotNative(f"windrow has no {env_name!r} of its own; it has {', '.join(native_ids())}")
    if not set(info) <= set(native_info(env_name)):
        has = native_info(env_name) or "nothing"
        raise NotNative(f'{env_name} observes {has} of info natively: other info_keys need backend="gymnasium"')
    if "info" in kwargs:
        raise NotNative(f"{env_name} takes no argument info: info_keys are observed")
    if not kwargs and not info:
        return ""
    try:
        given = json.dumps({**kwargs, **({"info": list(info)} if info else {})}, allow_nan=False)
        # Whether it takes them shows when it is made.
        EnvHandle(Native(env_name, False, arguments=given))
    except (TypeError, ValueError) as error:
        raise NotNative(str(error)) from error
    return given
