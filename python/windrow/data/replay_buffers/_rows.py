"""Rows of a buffer, and its state as another process reads it."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from windrow._lazy import tensordict, torch
from windrow._warnings import warn
from windrow.data._content import (
    is_frames,
    is_key,
    rows_of,
)
from windrow.data._items import (
    batches,
    map_tree,
    stacked,
)
from windrow.data.replay_buffers.storages import (
    ListStorage,
)

if TYPE_CHECKING:
    from windrow.data.replay_buffers._buffer import ReplayBuffer

#: In the place of frames that a transform keeps from being written, and of a sample whose frames
#: are missing.
NOTHING: Any = object()


def read(buffer: ReplayBuffer, index: object) -> Any:
    """Frames as :meth:`ReplayBuffer.__getitem__` returns them."""
    if is_key(index):
        return buffer[:][index]
    with buffer._objects:
        rows: torch.Tensor | None
        frames: Any
        if isinstance(index, slice) and index == slice(None):
            rows, frames = None, buffer._unpacked(buffer._checked.all())
        else:
            rows = rows_of(index, len(buffer))
            frames = buffer._unpacked(buffer._core.get(rows.flatten().tolist()))
    if isinstance(buffer.storage, ListStorage) and not is_frames(frames):
        return frames[0] if rows is not None and rows.ndim == 0 else collated(buffer, frames)
    if rows is None or rows.ndim == 1:
        return frames
    if rows.ndim == 0:
        return map_tree(lambda value: value[0], frames)
    return map_tree(lambda value: value.reshape((*rows.shape, *value.shape[1:])), frames)


def collated(buffer: ReplayBuffer, batch: Any) -> object:
    """A batch of the sampled frames ``batch``, which are collated unless they are one already."""
    if not isinstance(buffer.storage, ListStorage):
        return batch if buffer.collate_fn is None else buffer.collate_fn(batch)
    if buffer.collate_fn is not None:
        return buffer.collate_fn(list(batch.unbind(0)) if is_frames(batch) else batch)
    return batch if is_frames(batch) else stacked(batch)


def replace(buffer: ReplayBuffer, index: object, frames: object) -> None:
    """Replaces frames as :meth:`ReplayBuffer.__setitem__` does."""
    if is_key(index):
        index, frames = slice(None), buffer[:].set(index, frames)
        rows = rows_of(index, len(buffer))
    else:
        rows = rows_of(index, len(buffer))
        frames = buffer._inverted(frames, 0 if isinstance(frames, Mapping) else min(rows.ndim, 1))
    if frames is NOTHING:
        return
    if is_frames(frames) and frames.ndim > rows.ndim:
        frames = batches(frames, rows.ndim)
    if is_frames(frames):
        got, expected = list(frames.batch_size), list(rows.shape)
        try:
            frames = frames.expand(rows.shape)
        except RuntimeError:
            raise ValueError(
                f"expected frames {expected}, as there are rows, or one for all of them, got {got}"
            ) from None
    core, numbers = buffer._checked, rows.flatten().tolist()

    def replaced(frames: tensordict.TensorDictBase) -> list[int]:
        core.set(numbers, frames)
        return numbers

    kept = buffer._packed(frames, min(rows.ndim, 1)).reshape(-1)
    if len(kept) != len(numbers):
        raise ValueError(f"expected {len(numbers)} items, as there are rows, got {len(kept)}")
    buffer._put(kept, replaced)


def sent(buffer: ReplayBuffer) -> dict[str, Any]:
    """The state of a buffer that is copied or sent to another process.

    Raises:
        TypeError: the buffer has files of its own.
    """
    if (where := getattr(buffer.storage, "scratch_dir", None)) is not None:
        raise TypeError(
            f"cannot copy a buffer in {where}, which one buffer has for itself: use dumps and loads"
        )
    state = {
        name: value
        for name, value in buffer.__dict__.items()
        if name not in ("_core", "_iterator", "_failures", "_collecting", "_prefetch")
    }
    spawning = getattr(
        sys.modules.get("multiprocessing.context"), "get_spawning_popen", lambda: None
    )
    if spawning() is not None:
        warn(
            f"a {type(buffer).__name__} that is sent to another process is a copy there: what either process writes, the other does not "
            "see. Let a collector with workers in processes write (replay_buffer=), or exchange batches"
        )
    # In bytes: multiprocessing sends descriptors of tensors, and these are gone before it does.
    return {**state, "_state": pickle.dumps(buffer._core.state_dict())}


def shown(buffer: ReplayBuffer) -> dict[str, Any]:
    """A buffer's row of a table in a notebook."""
    # Raises no failure of a collector.
    stats = buffer._core.stats()
    return {
        "frames": f"{buffer._core.len():,} of {buffer._core.capacity():,}",
        "frames written": stats["write_count"],
        "storage": repr(buffer.storage),
        "sampler": repr(buffer.sampler),
        "writer": repr(buffer.writer),
        "limiter": buffer.limiter and repr(buffer.limiter),
        "frames in a sample": buffer.batch_size,
        "transforms": ", ".join(type(transform).__name__ for transform in buffer._transforms)
        or None,
    }


class Closed:
    """In the place of the engine's buffer, after its end."""

    @staticmethod
    def error() -> RuntimeError:
        return RuntimeError("the replay buffer was closed; build a new one")

    def __getattr__(self, name: str) -> Any:
        raise self.error()
