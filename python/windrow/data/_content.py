from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def frames_of(data: Any) -> Any:
    """Frames as a TensorDict, made of a TensorDict, a tensorclass, a dictionary of tensors, or a list of single frames.

    Raises:
        TypeError: it is none of these, or an entry is not a tensor, or of a type that cannot be kept.
    """
    if isinstance(data, (list, tuple)) and data:
        import torch

        return torch.stack([frame_of(frame) for frame in data])
    return frame_of(data, dims=1)


def frame_of(data: Any, *, dims: int = 0) -> Any:
    """As :func:`frames_of`, of one frame, or of frames with so many dimensions where ``data`` is a dictionary."""
    from tensordict import TensorDict, TensorDictBase, is_tensorclass

    if is_tensorclass(data):
        data = data.to_tensordict()
    elif isinstance(data, Mapping) and not isinstance(data, TensorDictBase):
        try:
            data = TensorDict(dict(data)).auto_batch_size_(dims)
        except ValueError:
            _check_entries(data, ())
            raise
    return checked(data)


def checked(data: Any) -> Any:
    """``data`` itself, a TensorDict that a buffer can keep.

    Raises:
        TypeError: it is not a TensorDict, or an entry is not a tensor, or of a type that cannot be kept.
    """
    from tensordict import TensorDictBase

    if not isinstance(data, TensorDictBase):
        raise TypeError(
            "expected a TensorDict, a tensorclass, a dictionary of tensors, or a list of frames that are one of these, "
            f"got {type(data).__module__}.{type(data).__qualname__}"
        )
    _check(data, ())
    return data


def _check_entries(data: Mapping[str, Any], prefix: tuple[str, ...]) -> None:
    """Raises TypeError for an entry of a dictionary that does not make a tensor."""
    from tensordict import TensorDict

    for name, value in data.items():
        key = (*prefix, name)
        if isinstance(value, Mapping):
            _check_entries(value, key)
            continue
        try:
            TensorDict({name: value})
        except ValueError:
            got = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
            raise TypeError(f"entry {'.'.join(key)}: expected a tensor, got {got}: give each tensor a name") from None


def _check(data: Any, prefix: tuple[str, ...]) -> None:
    """Raises TypeError for an entry that cannot be kept."""
    import torch
    from tensordict import is_non_tensor

    for name, value in data.items():
        key = (*prefix, name)
        if isinstance(value, torch.Tensor):
            if value.dtype in (torch.float16, torch.bfloat16) or value.is_complex():
                expected = "bool, an integer of at most 64 bits, float32 or float64"
                got = str(value.dtype).removeprefix("torch.")
                raise TypeError(f"entry {'.'.join(key)}: expected {expected}, got {got}")
        elif is_non_tensor(value):
            while getattr(value, "tensordicts", None):
                # One for each frame.
                value = value.tensordicts[0]
            got = type(getattr(value, "data", value)).__name__
            way_out = repr(name) if not prefix else repr(key)
            raise TypeError(
                f"entry {'.'.join(key)}: expected a tensor, got {got}: give it as numbers, or leave it out with "
                f"exclude({way_out})"
            )
        else:
            _check(value, key)
