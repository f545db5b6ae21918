from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any


def frames_of(data: Any) -> Any:
    """Frames as a TensorDict: what is one already, a tensorclass, a dictionary of tensors, or a list of single frames.

    Raises:
        TypeError: it is none of these, or an entry is of a type that cannot be kept.
    """
    if isinstance(data, (list, tuple)) and data:
        import torch

        return torch.stack([frame_of(frame) for frame in data])
    return _tensordict_of(data, 1)


def frame_of(data: Any) -> Any:
    """As :func:`frames_of`, of one frame."""
    return _tensordict_of(data, 0)


def _tensordict_of(data: Any, dims: int) -> Any:
    from tensordict import TensorDict, TensorDictBase, is_tensorclass

    if is_tensorclass(data):
        data = data.to_tensordict()
    elif isinstance(data, Mapping) and not isinstance(data, TensorDictBase):
        data = TensorDict(dict(data)).auto_batch_size_(dims)
    if not isinstance(data, TensorDictBase):
        raise TypeError(
            "expected a TensorDict, a tensorclass, a dictionary of tensors, or a list of frames that are one of these, "
            f"got {type(data).__module__}.{type(data).__qualname__}"
        )
    others = list(_checked(data, ()))
    if not others:
        return data
    for key in others:
        warnings.warn(f"entry {'.'.join(key)} is no tensor and is not written", UserWarning, stacklevel=4)
    return data.exclude(*others)


def _checked(data: Any, prefix: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The keys of entries that are no tensors."""
    import torch
    from tensordict import is_non_tensor

    for name, value in data.items():
        if isinstance(value, torch.Tensor):
            if value.dtype in (torch.float16, torch.bfloat16) or value.is_complex():
                key, got = ".".join((*prefix, name)), str(value.dtype).removeprefix("torch.")
                raise TypeError(f"entry {key}: expected bool, an integer of at most 64 bits, float32 or float64, got {got}")
        elif is_non_tensor(value):
            yield (*prefix, name)
        else:
            yield from _checked(value, (*prefix, name))
