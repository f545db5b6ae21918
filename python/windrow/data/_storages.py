from __future__ import annotations

from typing import Any, ClassVar


class _Storage:
    kind: ClassVar[str]

    def __init__(self, max_size: int, *, device: Any = "cpu", ndim: int = 1, scratch_dir: Any = None) -> None:
        if ndim < 1:
            raise ValueError(f"ndim must be 1 or more, got {ndim}")
        self.max_size = int(max_size)
        self.device = None if device is None or str(device) == "cpu" else device
        self.ndim = ndim
        self.scratch_dir = scratch_dir

    def _parts(self) -> dict[str, Any]:
        return {"kind": self.kind, "max_size": self.max_size, "directory": self.scratch_dir}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.max_size})"


class LazyTensorStorage(_Storage):
    """Frames in memory, laid out when the first come.

    Args:
        max_size: frames that there is room for.
        device: where samples go; frames themselves are kept in the memory of the CPU.
        ndim: leading dimensions that are frames, in code that names them: each frame has a row of its own, whatever the
            shape of the batch that it came in.
    """

    kind = "tensor"

    def __init__(self, max_size: int, *, device: Any = "cpu", ndim: int = 1) -> None:
        super().__init__(max_size, device=device, ndim=ndim)


class LazyMemmapStorage(_Storage):
    """Frames in a file that is mapped into memory, laid out when the first come.

    Args:
        max_size: frames that there is room for.
        scratch_dir: where the file is to be. What is there already is gone on with; without it, the file is removed at the
            end.
        device: where samples go.
        ndim: as of :class:`LazyTensorStorage`.
    """

    kind = "memmap"

    def __init__(self, max_size: int, *, scratch_dir: Any = None, device: Any = "cpu", ndim: int = 1) -> None:
        super().__init__(max_size, device=device, ndim=ndim, scratch_dir=scratch_dir)


class ListStorage(_Storage):
    """Frames one by one, for small things of unequal shape.

    Args:
        max_size: frames that there is room for.
    """

    kind = "list"

    def __init__(self, max_size: int) -> None:
        super().__init__(max_size)
