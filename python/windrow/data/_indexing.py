from __future__ import annotations

from typing import Any


def is_key(index: Any) -> bool:
    """Whether ``index`` is the key of an entry, not rows."""
    return isinstance(index, str) or (isinstance(index, tuple) and bool(index) and all(isinstance(name, str) for name in index))


def rows_of(index: Any, count: int) -> Any:
    """The rows that ``index`` picks of ``count``, as a tensor of the shape that the frames shall have.

    Raises:
        IndexError: a mask has another size.
        TypeError: it is not an index of rows.
    """
    import torch

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
        raise TypeError("expected a row, several, a slice, a mask or a key")
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
