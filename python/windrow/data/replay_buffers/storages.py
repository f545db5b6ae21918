"""Storages. Their classes declare arguments; the engine keeps frames."""

from typing import Any

from windrow._arguments import argument, ignored
from windrow._numbers import at_least
from windrow.data._content import frames_of
from windrow.data._part import Part

__all__ = ["LazyMemmapStorage", "LazyStackStorage", "LazyTensorStorage", "ListStorage", "TensorStorage"]

_ROOM = "how many frames there is room for, whatever the shape of the batches that they come in: a batch [4, 100] takes 400 rows"
_DIMENSIONS = (
    "leading dimensions of a batch that are frames, in code that names them. All are, whatever is named: each frame has a row "
    "of its own, so that a sample, and buffer[:], is [frames]"
)


def _zero(name: str, value: Any) -> int:
    if value != 0:
        raise ValueError(f"{name} must be 0, got {value}")
    return 0


class Storage(Part):
    """Keeps frames, each in a row of its own."""

    device: Any = argument("where samples go; frames themselves are kept in the memory of the CPU", default="cpu")
    compilable: bool = ignored("nothing is compiled", default=False)
    consolidated: bool = ignored("each frame lies in one piece", default=False)
    shared_init: bool = ignored("memory is laid out when the first frames come", default=False)
    cleanup_memmap: bool = ignored("files of a scratch_dir stay, others go", default=True)
    existsok: bool = ignored("files that are there already are used again", default=True)
    auto_cleanup: bool | None = ignored("files of a scratch_dir stay, others go", default=None)


class LazyTensorStorage(Storage, kind="LazyTensorStorage"):
    """Keeps frames in memory, which is laid out when the first come."""

    max_size: int = argument(_ROOM, kw_only=False, check=at_least(1))
    ndim: int = argument(_DIMENSIONS, default=1, check=at_least(1))


class TensorStorage(Storage, kind="LazyTensorStorage"):
    """Keeps frames in memory, and begins with some."""

    storage: Any = argument(
        "the first frames, as ReplayBuffer.extend takes them; they are copied", kw_only=False, check=lambda _, it: frames_of(it)
    )
    max_size: int | None = argument(f"{_ROOM}; as many as there are by default", default=None, kw_only=False, check=at_least(1))
    ndim: int = argument(_DIMENSIONS, default=1, check=at_least(1))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_size is None:
            object.__setattr__(self, "max_size", self.storage.numel())

    def __repr__(self) -> str:
        return f"TensorStorage({self.storage.numel()} frames, max_size={self.max_size})"


class LazyMemmapStorage(Storage, kind="LazyMemmapStorage"):
    """Keeps frames in a file that is mapped into memory, and is laid out when the first come."""

    max_size: int = argument(_ROOM, kw_only=False, check=at_least(1))
    scratch_dir: Any = argument(
        "the directory of the file, whose frames the buffer begins with if it exists. By default the file has no name, and "
        "disappears with its process, however that ends",
        default=None,
    )
    ndim: int = argument(_DIMENSIONS, default=1, check=at_least(1))


class ListStorage(Storage, kind="ListStorage"):
    """Keeps frames one by one, for small things of unequal shape. Frames that are sampled together must be alike."""

    max_size: int = argument(_ROOM, kw_only=False, check=at_least(1))


class LazyStackStorage(ListStorage):
    """TorchRL's other name for the same storage: samples are one dense batch."""

    stack_dim: int = argument("0, the dimension of a sample's frames", default=0, check=_zero)
