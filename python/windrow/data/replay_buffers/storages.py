"""Where frames of a buffer are kept."""

from windrow.data._storages import (
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    TensorStorage,
)

__all__ = ["LazyMemmapStorage", "LazyStackStorage", "LazyTensorStorage", "ListStorage", "TensorStorage"]
