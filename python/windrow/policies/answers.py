"""What a policy answers, as tensors: from arrays of any library, numbers and lists, under the names
that the answer gives them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from windrow._keys import Key, path, short
from windrow._values import public
from windrow.policies import recurrent


def tensor_of(key: Key, given: Any, batch: torch.Size) -> torch.Tensor:
    """``given``, the output ``key`` for a batch of these dimensions, as a tensor. Numbers of Python
    have the types that NumPy gives them, and float32 stands for narrower floats of other libraries.

    Raises:
        TypeError: it is no array, number or list of these.
    """
    if isinstance(given, torch.Tensor):
        return given
    tensor = _converted(key, given, batch)
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def _converted(key: Key, given: Any, batch: torch.Size) -> torch.Tensor:
    if isinstance(given, (bool, int, float, np.generic)):
        # One environment alone may be in a batch of one.
        shape = batch if batch.numel() == 1 else ()
        return _of_numpy(key, np.full(shape, given))
    if isinstance(given, np.ndarray):
        return _of_numpy(key, given)
    if isinstance(given, (list, tuple)):
        return _of_list(key, given)
    if hasattr(given, "__dlpack__"):
        try:
            return torch.from_dlpack(given)
        except (BufferError, RuntimeError, TypeError):
            # Such as an array that may not be written, which NumPy takes.
            if not hasattr(given, "__array__"):
                raise
    if hasattr(given, "__array__"):
        return _of_numpy(key, np.asarray(given))
    raise TypeError(
        f"the policy's output {public(key)!r}: expected a tensor, an array, a number or a list of numbers, got {type(given).__name__}"
    )


def _of_numpy(key: Key, array: np.ndarray[Any, Any]) -> torch.Tensor:
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"the policy's output {public(key)!r}: expected numbers, got an array of {array.dtype}"
        )
    if (
        not array.flags.writeable
        or not array.dtype.isnative
        or any(stride < 0 for stride in array.strides)
    ):
        array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(array)


def _of_list(key: Key, given: Sequence[Any]) -> torch.Tensor:
    if all(isinstance(one, (bool, int, float)) for one in given):
        return _of_numpy(key, np.asarray(given))
    rows = [tensor_of(key, one, torch.Size()) for one in given]
    if len({(row.shape, row.dtype) for row in rows}) != 1:
        shapes = sorted({f"{row.dtype} {list(row.shape)}" for row in rows})
        raise TypeError(
            f"the policy's output {public(key)!r}: expected rows of one shape and type in a list, got {', '.join(shapes)}"
        )
    return torch.stack(rows)


def named(answer: Any, action_keys: Sequence[Key]) -> dict[Key, Any] | None:
    """The outputs by name, where ``answer`` names them: a dictionary, a TensorDict, or an object
    with fields such as a dataclass. None for an array, and for a tuple, whose outputs have an
    order. A named tuple names them if one of its fields is the action. Fields that are None are
    left out, and so are those whose names begin with an underscore.

    Raises:
        KeyError: the action is not among them.
        TypeError: a name is no string.
    """
    fields = _fields(answer, action_keys)
    if fields is None:
        return None
    found = {short(names): value for names, value in _leaves(fields)}
    missing = [key for key in action_keys if key not in found]
    if len(missing) == len(action_keys):
        # A dictionary of actions, of an environment that takes one.
        below = {
            short((path(action_keys[0])[0], *path(key))): value for key, value in found.items()
        }
        if below.keys() == set(action_keys):
            return below
    if missing:
        raise KeyError(
            f"the policy writes {list(found)}, but no {public(missing[0])!r}, which the environment takes"
        )
    following = next((key for key in found if path(key)[0] == "next"), None)
    if following is not None:
        raise TypeError(
            f"the policy writes {following!r}, the state of its next step: wrap it in a tensordict.nn.TensorDictModule, whose states windrow "
            "keeps"
        )
    return {key: value for key, value in found.items() if not recurrent.is_private(key)}


#: What a tuple holds beside the action, by the name of the method: CleanRL's.
_ORDERS = {"get_action_and_value": ("log_prob", "entropy", "value")}


def ordered(
    policy: object, action_keys: Sequence[Key], count: int, observed: Sequence[Key]
) -> list[Key]:
    """Names of the ``count`` outputs of a tuple: the actions, then those that are known of the
    method or that the policy has as ``_order``, unless one is ``observed``; otherwise ``"output1"``
    and so on.
    """
    known = _ORDERS.get(getattr(policy, "__name__", ""), ())
    names: tuple[str, ...] = getattr(policy, "_order", known)
    others = count - len(action_keys)
    if len(action_keys) != 1 or len(names) != others or {*names} & {*observed}:
        names = tuple(f"output{number}" for number in range(1, others + 1))
    return [*action_keys, *names]


def _fields(answer: Any, action_keys: Sequence[Key] = ()) -> Mapping[Any, Any] | None:
    """What ``answer`` has by name; None where it names nothing."""
    if isinstance(answer, Mapping):
        return answer
    if isinstance(answer, TensorDictBase):
        return dict(answer.items())
    if isinstance(answer, tuple) and hasattr(answer, "_fields"):
        is_named = not action_keys or any(path(key)[0] in answer._fields for key in action_keys)
        return dict(zip(answer._fields, answer)) if is_named else None
    if isinstance(answer, (torch.Tensor, np.ndarray, np.generic, tuple, list, type)) or hasattr(
        answer, "__dlpack__"
    ):
        return None
    if dataclasses.is_dataclass(answer):
        return {field.name: getattr(answer, field.name) for field in dataclasses.fields(answer)}
    held = getattr(answer, "__dict__", {})
    return held if any(path(key)[0] in held for key in action_keys) else None


def _leaves(
    fields: Mapping[Any, Any], before: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in fields.items():
        names = (name,) if isinstance(name, str) else name
        if not isinstance(names, tuple) or not all(isinstance(one, str) for one in names):
            raise TypeError(
                f"expected names of outputs that are strings, or tuples of strings, got {name!r}"
            )
        inner = None if value is None else _fields(value)
        if inner is not None:
            yield from _leaves(inner, (*before, *names))
        elif value is not None:
            yield (*before, *names), value
