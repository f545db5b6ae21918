"""What users give to buffers, and index them by: frames as TensorDicts, rows as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windrow._lazy import tensordict, torch


def frames_of(data: Any) -> Any:
    """Frames as a TensorDict, made of a TensorDict, a tensorclass, a dictionary of tensors, or a list of single frames.

    Raises:
        TypeError: it is none of these, or an entry is not a tensor, or of a type that cannot be kept.
    """
    if isinstance(data, (list, tuple)) and data:
        return torch.stack([frame_of(frame) for frame in data])
    return frame_of(data, dims=1)


def frame_of(data: Any, *, dims: int = 0) -> Any:
    """As :func:`frames_of`, of one frame, or of frames with so many dimensions where ``data`` is a dictionary."""
    if tensordict.is_tensorclass(data):
        data = data.to_tensordict()
    elif isinstance(data, Mapping) and not isinstance(data, tensordict.TensorDictBase):
        try:
            data = tensordict.TensorDict(dict(data)).auto_batch_size_(dims)
        except ValueError:
            _check_entries(data, ())
            raise
    return checked(data)


def checked(data: Any) -> Any:
    """``data`` itself, a TensorDict that a buffer can keep; otherwise raises what :func:`frames_of` does."""
    if not isinstance(data, tensordict.TensorDictBase):
        raise TypeError(
            "expected a TensorDict, a tensorclass, a dictionary of tensors, or a list of frames that are one of these, "
            f"got {kind_of(data)}"
        )
    _check(data, ())
    return data


def kind_of(value: Any) -> str:
    """The class of ``value`` with its module, as errors name it."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _check_entries(data: Mapping[str, Any], prefix: tuple[str, ...]) -> None:
    """Raises TypeError for an entry of a dictionary that does not make a tensor."""
    for name, value in data.items():
        key = (*prefix, name)
        if isinstance(value, Mapping):
            _check_entries(value, key)
            continue
        try:
            tensordict.TensorDict({name: value})
        except ValueError:
            got = kind_of(value).removeprefix("builtins.")
            raise TypeError(f"entry {'.'.join(key)}: expected a tensor, got {got}: give each tensor a name") from None


def _check(data: Any, prefix: tuple[str, ...]) -> None:
    """Raises TypeError for an entry that cannot be kept."""
    for name, value in data.items():
        key = (*prefix, name)
        if isinstance(value, torch.Tensor):
            if value.dtype in (torch.float16, torch.bfloat16) or value.is_complex():
                expected = "bool, an integer of at most 64 bits, float32 or float64"
                got = str(value.dtype).removeprefix("torch.")
                raise TypeError(f"entry {'.'.join(key)}: expected {expected}, got {got}")
        elif tensordict.is_non_tensor(value):
            while getattr(value, "tensordicts", None):
                # One for each frame.
                value = value.tensordicts[0]
            got = type(getattr(value, "data", value)).__name__
            way_out = f"give it as numbers, or leave it out with exclude({(key if prefix else name)!r})"
            raise TypeError(f"entry {'.'.join(key)}: expected a tensor, got {got}: {way_out}")
        else:
            _check(value, key)


def is_key(index: Any) -> bool:
    """Whether ``index`` is the key of an entry, not rows."""
    return isinstance(index, str) or (isinstance(index, tuple) and bool(index) and all(isinstance(name, str) for name in index))


def rows_of(index: Any, count: int) -> Any:
    """The rows that ``index`` picks of ``count``, as a tensor of the shape that the frames shall have.

    Raises:
        IndexError: a mask has another size.
        TypeError: it is not an index of rows.
    """
    given = index
    if isinstance(index, tuple) and len(index) == 1:
        index = index[0]
    if index is Ellipsis:
        index = slice(None)
    if isinstance(index, slice):
        return torch.tensor(range(*index.indices(count)), dtype=torch.int64)
    if isinstance(index, (list, range)):
        index = torch.tensor(index) if len(index) else torch.zeros(0, dtype=torch.int64)
    try:
        index = None if isinstance(index, tuple) else torch.as_tensor(index)
    except (TypeError, ValueError, RuntimeError):
        index = None
    if index is None or index.is_floating_point() or index.is_complex():
        raise TypeError(f"expected a row, several, a slice, a mask or a key, got {given!r}")
    if index.dtype != torch.bool:
        rows = index.to("cpu", torch.int64)
        return torch.where((rows < 0) & (rows >= -count), rows + count, rows)
    if index.shape != (count,):
        raise IndexError(f"expected a mask of {count} rows, as the buffer holds frames, got shape {list(index.shape)}")
    return index.cpu().nonzero().squeeze(-1)


def flat(values: Any) -> list[Any]:
    """The numbers of a tensor, an array, a list or a tuple in their order, or of a number alone."""
    if hasattr(values, "reshape"):
        return list(values.reshape(-1).tolist())
    return list(values) if isinstance(values, (list, tuple)) else [values]
