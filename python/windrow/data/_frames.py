"""The frames of a buffer for a ``torch.utils.data.DataLoader``."""

from __future__ import annotations

from typing import Any

from windrow._lazy import tensordict, torch
from windrow.data._content import is_frames, kind_of

__all__ = ["FrameDataset"]


class FrameDataset:
    """Frames as a data set of torch, which :meth:`ReplayBuffer.as_dataset` makes.

    They are in shared memory: processes of a ``DataLoader`` have them without a copy, whether they
    are forked or spawned. Indexed by a number, it gives a frame; by several, a batch of them.

    Args:
        frames: a TensorDict ``[frames]``, whose memory becomes shared.
    """

    def __init__(self, frames: Any) -> None:
        if not is_frames(frames):
            raise TypeError(
                f"expected a buffer of TensorDicts, got items that are {kind_of(frames)}"
            )
        self._frames = frames.share_memory_()

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, index: Any) -> Any:
        return self._frames[torch.as_tensor(index) if isinstance(index, (list, tuple)) else index]

    def __getitems__(self, indices: list[int]) -> Any:
        # A DataLoader asks for all frames of a batch at once.
        return self[indices]

    @staticmethod
    def collate(frames: Any) -> torch.Tensor | tensordict.TensorDictBase:
        """The ``collate_fn`` of a ``DataLoader``: a batch is one TensorDict ``[batch_size]``."""
        return frames if is_frames(frames) else torch.stack(frames)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} frames)"
