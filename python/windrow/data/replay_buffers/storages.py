"""Storages. Their classes declare arguments; the engine keeps frames."""

import os
from tempfile import TemporaryDirectory
from typing import Any

from windrow._arguments import argument, ignored
from windrow._numbers import at_least
from windrow._types import Device
from windrow.data._content import frames_of, is_frames
from windrow.data._items import as_tree
from windrow.data._part import Part

__all__ = [
    "LazyMemmapStorage",
    "LazyStackStorage",
    "LazyTensorStorage",
    "ListStorage",
    "TensorStorage",
]

_ROOM = "how many frames there is room for; a batch [4, 100] has 400"


def _dimensions() -> Any:
    return argument(
        "leading dimensions of a batch that are frames, in code that names them",
        more="all are, whatever is named: each frame has a row of its own, so that a sample, and ``buffer[:]``, is ``[frames]``",
        default=1,
        check=at_least(1),
    )


def _room(name: str, value: object) -> int:
    return 2**32 - 1 if value is None else int(at_least(1)(name, value))


def _zero(name: str, value: object) -> int:
    if value != 0:
        raise ValueError(f"{name} must be 0, got {value}")
    return 0


class Storage(Part):
    """Keeps frames, each in a row of its own. Indexed, it gives those of its buffer, as that
    does.
    """

    device: Device | None = argument(
        "where samples go; frames themselves are kept in the memory of the CPU", default="cpu"
    )
    compilable: bool = ignored("nothing is compiled", default=False)
    consolidated: bool = ignored("each frame lies in one piece", default=False)
    shared_init: bool = ignored("memory is laid out when the first frames come", default=False)
    cleanup_memmap: bool = ignored("files of a scratch_dir stay, others go", default=True)
    existsok: bool = ignored("files that are there already are used again", default=True)
    auto_cleanup: bool | None = ignored("files of a scratch_dir stay, others go", default=None)

    @property
    def _buffer(self) -> Any:
        if len(self._buffers) != 1:
            raise RuntimeError(
                f"expected a storage of one buffer, got one of {len(self._buffers)}: ask the buffer"
            )
        return self._buffers[0]

    @property
    def _storage(self) -> object:
        return self[:]

    def __len__(self) -> int:
        return len(self._buffer) if self._buffers else 0

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: object) -> Any:
        return self._buffer[index]

    def __setitem__(self, index: object, frames: object) -> None:
        self._buffer[index] = frames

    def get(self, index: object) -> Any:
        """The frames in rows."""
        return self[index]

    def set(self, index: object, frames: object) -> None:
        """Replaces the frames in rows."""
        self[index] = frames


class LazyTensorStorage(Storage, kind="LazyTensorStorage"):
    """Keeps frames in memory, which is laid out when the first come."""

    max_size: int = argument(_ROOM, kw_only=False, check=at_least(1))
    ndim: int = _dimensions()


class TensorStorage(Storage, kind="LazyTensorStorage"):
    """Keeps frames in memory, and begins with some."""

    storage: object = argument(
        "the first frames or items, as ReplayBuffer.extend takes them; they are copied",
        kw_only=False,
        check=lambda _, it: frames_of(it),
    )
    max_size: int | None = argument(
        _ROOM,
        more="as many as there are by default",
        default=None,
        kw_only=False,
        check=at_least(1),
    )
    ndim: int = _dimensions()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_size is None:
            self._settle(max_size=_count(self.storage))

    def __repr__(self) -> str:
        return f"TensorStorage({_count(self.storage)} frames, max_size={self.max_size})"


def _count(frames: object) -> int:
    return int((frames if is_frames(frames) else as_tree(frames, 1)).numel())


class LazyMemmapStorage(Storage, kind="LazyMemmapStorage"):
    """Keeps frames in a file that is mapped into memory, and is laid out when the first come."""

    max_size: int = argument(_ROOM, kw_only=False, check=at_least(1))
    scratch_dir: str | os.PathLike[str] | TemporaryDirectory[str] | None = argument(
        "the directory of the file, whose frames the buffer begins with if it exists",
        more="by default the file has no name, and disappears with its process, however that ends",
        default=None,
        # A TemporaryDirectory has the path as its name.
        check=lambda _, path: (
            path if isinstance(path, (str, os.PathLike)) else getattr(path, "name", path)
        ),
    )
    ndim: int = _dimensions()

    @property
    def _storage(self) -> object:
        frames = self[:]
        if self.scratch_dir is not None and is_frames(frames):
            # TorchRL's tensors know their files; here, all are in one.
            for value in frames.values(True, True):
                value.filename = os.path.join(self.scratch_dir, "rows.bin")  # type: ignore[arg-type]
        return frames


class ListStorage(Storage, kind="ListStorage"):
    """Keeps frames one by one, for small things of unequal shape, or any objects. Frames that are
    sampled together must be alike; objects that are not can be sampled with a ``collate_fn``.
    """

    max_size: int = argument(_ROOM, default=2**32 - 1, kw_only=False, check=_room)


class LazyStackStorage(ListStorage):
    """TorchRL's other name for the same storage: samples are one dense batch."""

    stack_dim: int = argument("0, the dimension of a sample's frames", default=0, check=_zero)
