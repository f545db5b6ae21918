"""What users give to buffers, and index them by: frames as TensorDicts, rows as tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard, TypeVar

from windrow._lazy import tensordict, torch

T = TypeVar("T")

#: The entry of samples that says which frames their rows held. Only samplers with priorities add
#: it.
GENERATION = "index_generation"


def frames_of(data: object, *, dims: int = 1) -> object:
    """Frames as a TensorDict, made of a TensorDict, a tensorclass, a dictionary of tensors, or a
    list of single frames that are one of these. Anything else stays as it is.

    Args:
        dims: 0 for a single frame.
    """
    if isinstance(data, tensordict.TensorDictBase):
        return data
    if tensordict.is_tensorclass(data):
        return data.to_tensordict()  # type: ignore[attr-defined]
    if isinstance(data, Mapping) and not _has_tree(data):
        try:
            return tensordict.TensorDict(dict(data)).auto_batch_size_(dims)
        except (ValueError, TypeError):
            # A key is no string.
            return data
    if dims and isinstance(data, (list, tuple)) and data and is_frames(frames_of(data[0], dims=0)):
        frames: list[Any] = [frames_of(frame, dims=0) for frame in data]
        return torch.stack(frames) if all(map(is_frames, frames)) else data
    return data


def _has_tree(data: Mapping[Any, Any]) -> bool:
    """Whether tensors in a dictionary are in lists or tuples, which a TensorDict would make one
    tensor of.
    """
    for value in data.values():
        if isinstance(value, Mapping) and not is_frames(value):
            if _has_tree(value):
                return True
        elif isinstance(value, (list, tuple)) and any(
            isinstance(entry, (torch.Tensor, Mapping, list, tuple)) for entry in value
        ):
            return True
    return False


def is_frames(data: object) -> TypeGuard[tensordict.TensorDictBase]:
    """Whether ``data`` is a TensorDict."""
    return isinstance(data, tensordict.TensorDictBase)


def kind_of(value: object) -> str:
    """The class of ``value`` with its module, as errors name it."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def is_key(index: object) -> bool:
    """Whether ``index`` is the key of an entry, not rows."""
    return isinstance(index, str) or (
        isinstance(index, tuple) and bool(index) and all(isinstance(name, str) for name in index)
    )


def rows_of(index: object, count: int) -> torch.Tensor:
    """The rows that ``index`` picks of ``count``, as a tensor of the shape that the frames shall
    have.

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
        return torch.tensor(range(*index.indices(count)), dtype=torch.int64, device="cpu")
    if isinstance(index, (list, range)):
        index = torch.tensor(index, dtype=None if len(index) else torch.int64, device="cpu")
    try:
        index = None if isinstance(index, tuple) else torch.as_tensor(index, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        index = None
    if index is None or index.is_floating_point() or index.is_complex():
        raise TypeError(f"expected a row, several, a slice, a mask or a key, got {given!r}")
    if index.dtype != torch.bool:
        rows = index.to(torch.int64)
        return torch.where((rows < 0) & (rows >= -count), rows + count, rows)
    if index.shape != (count,):
        raise IndexError(
            f"expected a mask of {count} rows, as the buffer holds frames, got shape {list(index.shape)}"
        )
    return index.nonzero().squeeze(-1)


def flat(values: object) -> list[Any]:
    """The numbers of a tensor, an array, a list or a tuple in their order, or of a number alone."""
    if hasattr(values, "reshape"):
        return list(values.reshape(-1).tolist())
    return list(values) if isinstance(values, (list, tuple)) else [values]


def numbers(name: str, values: object, kind: Callable[[Any], T]) -> list[T]:
    """As :func:`flat`, each as ``kind`` takes it.

    Raises:
        TypeError: ``kind`` does not take one of them.
    """
    try:
        return [kind(value) for value in flat(values)]
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be {'whole numbers' if kind is whole else 'numbers'}, got {values!r}"
        ) from None


def whole(value: Any) -> int:
    """A whole number; a truth value is none, since a mask is no list of rows."""
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def drawn_frames(sample: tensordict.TensorDictBase) -> tuple[list[int], list[int] | None]:
    """The rows of a sample and, if it has them, the numbers that identify their frames."""
    both = (sample.get(name, None) for name in ("index", GENERATION))
    if sample.ndim > 1:
        # Where items are batches, both are repeated along their dimensions.
        both = (entry if entry is None else entry.reshape(len(sample), -1)[:, 0] for entry in both)
    rows, generations = (entry if entry is None else entry.flatten().tolist() for entry in both)
    if rows is None:
        raise KeyError('expected a sample with an entry "index"')
    return rows, generations
