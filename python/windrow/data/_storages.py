from __future__ import annotations

from typing import Any, ClassVar

from windrow._numbers import whole
from windrow._passed_over import pass_over
from windrow.data._arguments import OF_STORAGES


class _Storage:
    kind: ClassVar[str]
    #: Frames to begin with.
    content: Any = None

    def __init__(
        self, max_size: int, *, device: Any = "cpu", ndim: int = 1, scratch_dir: Any = None, **without_effect: Any
    ) -> None:
        pass_over(type(self).__name__, without_effect, OF_STORAGES)
        self.max_size = whole("max_size", max_size, 1)
        self.device = None if device is None or str(device) == "cpu" else device
        self.ndim = whole("ndim", ndim, 1)
        self.scratch_dir = scratch_dir

    def _parts(self) -> dict[str, Any]:
        return {"kind": self.kind, "max_size": self.max_size, "directory": self.scratch_dir}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.max_size})"


class LazyTensorStorage(_Storage):
    """Frames in memory, laid out when the first come.

    Args:
        max_size: frames that there is room for. Frames are counted, whatever the shape of the batches that they come in: one
            of shape ``[4, 100]`` takes 400 rows, not 4.
        device: where samples go; frames themselves are kept in the memory of the CPU.
        ndim: leading dimensions of a batch that are frames, in code that names them. All are, whatever is named here: each
            frame has a row of its own, so that a sample, and ``buffer[:]``, is ``[frames]``.
        without_effect: what TorchRL's storages can be told besides; a warning says why it has no effect.
    """

    kind = "tensor"

    def __init__(self, max_size: int, *, device: Any = "cpu", ndim: int = 1, **without_effect: Any) -> None:
        super().__init__(max_size, device=device, ndim=ndim, **without_effect)


class TensorStorage(LazyTensorStorage):
    """Frames in memory, of which there are some to begin with.

    Args:
        storage: the frames, as :meth:`ReplayBuffer.extend` takes them; they are copied.
        max_size: frames that there is room for; as many as there are where nothing is said.
        arguments: of :class:`LazyTensorStorage`.
    """

    def __init__(self, storage: Any, max_size: int | None = None, **arguments: Any) -> None:
        from windrow.data._content import frames_of

        self.content = frames_of(storage)
        super().__init__(self.content.numel() if max_size is None else max_size, **arguments)


class LazyMemmapStorage(_Storage):
    """Frames in a file that is mapped into memory, laid out when the first come.

    Args:
        max_size: frames that there is room for, counted as of :class:`LazyTensorStorage`.
        scratch_dir: where the file is to be. What is there already is gone on with; without it, the file has no name, and is
            gone with its process, whichever way that ends.
        device: where samples go.
        ndim: as of :class:`LazyTensorStorage`.
        without_effect: as of :class:`LazyTensorStorage`.
    """

    kind = "memmap"

    def __init__(
        self, max_size: int, *, scratch_dir: Any = None, device: Any = "cpu", ndim: int = 1, **without_effect: Any
    ) -> None:
        super().__init__(max_size, device=device, ndim=ndim, scratch_dir=scratch_dir, **without_effect)


class ListStorage(_Storage):
    """Frames one by one, for small things of unequal shape. Those that are sampled together must be alike.

    Args:
        max_size: frames that there is room for, counted as of :class:`LazyTensorStorage`.
        device: where samples go.
        without_effect: as of :class:`LazyTensorStorage`.
    """

    kind = "list"

    def __init__(self, max_size: int, *, device: Any = "cpu", **without_effect: Any) -> None:
        super().__init__(max_size, device=device, **without_effect)


class LazyStackStorage(ListStorage):
    """The same under another name: samples are one dense batch.

    Args:
        max_size: as of :class:`ListStorage`.
        stack_dim: 0, where a sample has its frames.
        arguments: of :class:`ListStorage`.

    Raises:
        ValueError: ``stack_dim`` is another.
    """

    def __init__(self, max_size: int, *, stack_dim: int = 0, **arguments: Any) -> None:
        if stack_dim != 0:
            raise ValueError(f"stack_dim must be 0, got {stack_dim}")
        super().__init__(max_size, **arguments)
