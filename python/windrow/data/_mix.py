"""Samples of a data set and of what collectors write, mixed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from windrow._arguments import Arguments, argument, takes
from windrow._lazy import torch
from windrow._numbers import at_least, share, whole_or_none
from windrow.data._content import GENERATION, is_frames
from windrow.data._part import Key
from windrow.data.replay_buffers.replay_buffers import ReplayBuffer
from windrow.data.replay_buffers.storages import LazyTensorStorage

__all__ = ["OfflineToOnlineReplayBuffer"]


class MixArguments(Arguments):
    """Arguments of a mix."""

    offline_dataset: Any = argument(
        "a buffer, or a data set as ReplayBuffer.from_dataset takes it", kw_only=False
    )
    online_storage: Any = argument("the storage of what is written", default=None)
    online_capacity: int | None = argument(
        "frames of a storage in memory, in place of online_storage", default=None, check=at_least(1)
    )
    online_buffer: Any = argument("the buffer that is written to, in place of both", default=None)
    offline_fraction: float = argument(
        "share of each sample that comes from the data set", default=0.5, check=share
    )
    batch_size: int | None = argument(
        "frames of a sample that does not name a number", default=None, check=at_least(1)
    )
    transform: Callable[[Any], Any] | None = argument(
        "called with each sample; what it returns is the sample", default=None
    )


class OfflineToOnlineReplayBuffer:
    """Samples of which a fixed share comes from a data set, and the rest from what is written: for
    learning that begins offline and goes on online.

    Each sample has ``round(offline_fraction * batch_size)`` frames of the data set, which come
    first; as long as nothing was written, all are. A sample has the entries that both have, but not
    ``"index"`` and ``"index_generation"``: each buffer numbers its own frames. New frames go
    to :attr:`online_buffer`, by :meth:`extend` or by a collector (``replay_buffer=``). Attributes
    and methods that are not listed here are those of :attr:`online_buffer`.

    Raises:
        TypeError: several or none of ``online_storage``, ``online_capacity`` and ``online_buffer``
            are given.
        ValueError: the share is none.

    Example:
        >>> import torch
        >>> from windrow.collectors import Collector
        >>> from windrow.data import OfflineToOnlineReplayBuffer
        >>> offline = {"observation": torch.zeros(100, 4)}
        >>> buffer = OfflineToOnlineReplayBuffer(offline, online_capacity=1000, batch_size=32)
        >>> for _ in Collector("CartPole-v1", frames_per_batch=100, total_frames=300, replay_buffer=buffer):
        ...     sample = buffer.sample()
        >>> sample.shape, len(buffer)
        (torch.Size([32]), 400)
    """

    @takes(MixArguments)
    def __init__(self, arguments: MixArguments) -> None:
        offline = arguments.offline_dataset
        #: The buffer of the data set.
        self.offline_buffer = (
            offline if hasattr(offline, "sample") else ReplayBuffer.from_dataset(offline)
        )
        given = {
            name: getattr(arguments, name)
            for name in ("online_storage", "online_capacity", "online_buffer")
        }
        if len(named := [name for name, value in given.items() if value is not None]) != 1:
            raise TypeError(
                f"expected one of {', '.join(given)}, got {' and '.join(named) or 'none'}"
            )
        capacity = arguments.online_capacity
        storage = arguments.online_storage if capacity is None else LazyTensorStorage(capacity)
        #: The buffer that is written to.
        self.online_buffer = (
            ReplayBuffer(storage=storage)
            if arguments.online_buffer is None
            else arguments.online_buffer
        )
        self._first = self._fraction = arguments.offline_fraction
        self._batch_size, self._transform = arguments.batch_size, arguments.transform

    def __getattr__(self, name: str) -> Any:
        # What collectors ask of a buffer that they write to.
        if name == "online_buffer":
            raise AttributeError(name)
        return getattr(self.online_buffer, name)

    @property
    def batch_size(self) -> int | None:
        """Frames of a sample that does not name a number."""
        return self._batch_size

    @property
    def offline_fraction(self) -> float:
        """The share of a sample that comes from the data set at present."""
        return self._fraction

    def anneal(self, step: int, total_steps: int) -> None:
        """Lowers the share of the data set from what it was at first to nothing: at ``step`` of
        ``total_steps``, in a line.

        Raises:
            ValueError: ``step`` is below 0, or ``total_steps`` below 1.
        """
        for name, value, least in (("step", step, 0), ("total_steps", total_steps, 1)):
            if not value >= least:
                raise ValueError(f"{name} must be {least} or more, got {value}")
        self._fraction = self._first * max(0.0, 1.0 - step / total_steps)

    def extend(self, batch: Any) -> Any:
        """Writes frames; see :meth:`ReplayBuffer.extend`."""
        return self.online_buffer.extend(batch)

    def sample(self, batch_size: int | None = None) -> Any:
        """A batch of frames, ``[batch_size]``.

        Raises:
            RuntimeError: no batch size was given; as of :meth:`ReplayBuffer.sample`.
            ValueError: an entry has another shape in the data set than in what was written.
        """
        count = whole_or_none("batch_size", batch_size, 1) or self._batch_size
        if count is None:
            raise RuntimeError("expected a batch size: give sample() or the buffer one")
        offline = round(self._fraction * count) if len(self.online_buffer) else count
        shares = ((self.offline_buffer, offline), (self.online_buffer, count - offline))
        parts = [_without_index(buffer.sample(many)) for buffer, many in shares if many]
        sample = parts[0] if len(parts) == 1 else _joined(*parts)
        return sample if self._transform is None else self._transform(sample)

    def __len__(self) -> int:
        return len(self.offline_buffer) + len(self.online_buffer)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._fraction:g} of {self.offline_buffer!r}, {self.online_buffer!r}, batch_size={self._batch_size})"


def _without_index(sample: Any) -> Any:
    # The rows of one buffer would be taken for those of the other, for instance by an update of
    # priorities.
    return sample.exclude("index", GENERATION) if is_frames(sample) else sample


def _joined(offline: Any, online: Any) -> Any:
    """Both samples, with the entries that both have."""
    if not is_frames(offline) or not is_frames(online):
        raise TypeError("expected samples that are TensorDicts from both buffers")
    theirs = set(online.keys(True, True))
    common: list[Key] = [key for key in offline.keys(True, True) if key in theirs]
    for key in common:
        kinds = [(str(part[key].dtype), list(part[key].shape[1:])) for part in (offline, online)]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"entry {key!r}: the data set has {' '.join(map(str, kinds[0]))}, what was written {' '.join(map(str, kinds[1]))}"
            )
    return torch.cat([offline.select(*common), online.select(*common)])
