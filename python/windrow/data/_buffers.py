from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from windrow._windrow import ReplayBufferCore
from windrow.data._limiters import RateLimiter
from windrow.data._samplers import Key, PrioritizedSampler, RandomSampler
from windrow.data._storages import ListStorage
from windrow.data._writers import RoundRobinWriter

#: What a sampler says of the frames that it has drawn.
_INFO = ("index", "priority_weight")


class ReplayBuffer:
    """Keeps frames that collectors make, and gives learners samples of them.

    All methods may be called from several threads at once. A sample waits for collectors that are writing to the buffer,
    where there is not enough yet.

    Args:
        storage: where frames are kept; a list of 1000 where nothing is said.
        sampler: how they are chosen; all alike where nothing is said.
        writer: which rows they are written to; one after another where nothing is said.
        batch_size: frames in a sample that does not name a number.
        transform: called with each sample; what it returns is the sample. Where it has a method ``inv``, that is called with
            what is written.
        limiter: a :class:`RateLimiter` that says when samples and writes wait for each other; they do not where nothing is
            said.
        seed: what all choices follow from.
        sample_timeout: seconds that a sample waits for frames, and a write for samples where there is a limiter.
        shared: has no effect: threads share every buffer.

    Raises:
        ValueError: parts that make no sense together.

    Example:
        >>> from windrow.collectors import Collector
        >>> from windrow.data import LazyTensorStorage, ReplayBuffer
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=32)
        >>> for _ in Collector("CartPole-v1", frames_per_batch=100, total_frames=300, replay_buffer=buffer):
        ...     sample = buffer.sample()
        >>> len(buffer), sample.shape
        (300, torch.Size([32]))
    """

    _with_info: ClassVar[bool] = False

    def __init__(
        self,
        *,
        storage: Any = None,
        sampler: Any = None,
        writer: Any = None,
        batch_size: int | None = None,
        transform: Callable[[Any], Any] | None = None,
        limiter: RateLimiter | None = None,
        seed: int | None = None,
        sample_timeout: float = 60.0,
        shared: bool = False,
    ) -> None:
        self.storage = ListStorage(1000) if storage is None else storage
        self.sampler = RandomSampler() if sampler is None else sampler
        self.writer = RoundRobinWriter() if writer is None else writer
        parts: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "sample_timeout": sample_timeout}
        for name in ("storage", "sampler", "writer"):
            part = getattr(self, name)
            if not hasattr(part, "_parts"):
                raise TypeError(f"expected a {name} of windrow.data, got {type(part).__module__}.{type(part).__name__}")
            parts[name] = part._parts()
        if limiter is not None and not isinstance(limiter, RateLimiter):
            raise TypeError(f"expected a RateLimiter as limiter, got {type(limiter).__module__}.{type(limiter).__name__}")
        self.limiter = limiter
        parts["limiter"] = None if limiter is None else limiter._parts()
        self._batch_size = batch_size
        self._transforms: list[Callable[[Any], Any]] = [] if transform is None else [transform]
        self._iterator: Iterator[Any] | None = None
        self._core = ReplayBufferCore(parts)

    @property
    def batch_size(self) -> int | None:
        """Frames in a sample that does not name a number."""
        return self._batch_size

    @property
    def write_count(self) -> int:
        """Frames written since the buffer was last empty, those included that were overwritten."""
        return int(self.stats()["write_count"])

    def __len__(self) -> int:
        return self._core.len()

    @property
    def _takes_frames_as_they_are(self) -> bool:
        return not any(hasattr(transform, "inv") for transform in self._transforms)

    def append_transform(self, transform: Callable[[Any], Any]) -> ReplayBuffer:
        """Calls ``transform`` with samples, after those that there are."""
        self._transforms.append(transform)
        return self

    def extend(self, batch: Any) -> Any:
        """Writes the frames of a TensorDict, ``[time]`` or ``[..., time]``, and returns the rows of those that were kept.

        Raises:
            ValueError: they do not fit to those that were written before.
            RuntimeError: the limiter does not let them in, not within ``sample_timeout`` or never.
        """
        return self._core.extend(self._inverse(batch))

    def _extend_until(self, batch: Any, given_up: Callable[[], bool]) -> Any:
        """As :meth:`extend`, but waits until ``given_up`` is true, however long that takes."""
        return self._core.extend(self._inverse(batch), given_up)

    def add(self, frame: Any) -> int | None:
        """Writes one frame, a TensorDict without batch size, and returns its row, if it was kept.

        Raises:
            ValueError, RuntimeError: as :meth:`extend`.
        """
        return self._core.add(self._inverse(frame))

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """A batch of frames in fresh memory.

        Args:
            batch_size: how many; as the buffer was built where nothing is said.
            return_info: return a dictionary too, with ``"index"``, the rows that were drawn.

        Raises:
            RuntimeError: there are not enough frames, and nobody writes any, or the limiter has let none through within
                ``sample_timeout``; no batch size was given; a collector that wrote to the buffer has failed.
        """
        batch = self._core.sample(batch_size)
        info = {name: batch[name] for name in _INFO if name in batch.keys()}
        if not self._with_info:
            batch = batch.exclude(*info)
        if self.storage.device is not None:
            batch = batch.to(self.storage.device)
        for transform in self._transforms:
            batch = transform(batch)
        return (batch, info) if return_info else batch

    def __iter__(self) -> Iterator[Any]:
        """Samples: those of one pass over the frames where the sampler draws without replacement, and otherwise without end.

        A loop that is left early leaves the rest of the pass to the next. Frames that are written meanwhile take part.

        Raises:
            RuntimeError: the buffer has no batch size; as :meth:`sample`.
        """
        if self._batch_size is None:
            raise RuntimeError("cannot iterate over a buffer without a batch size: give it one when it is built")
        over = False
        while not over:
            batch = self.sample()
            over = self._core.pass_is_over()
            yield batch

    def next(self) -> Any:
        """The next sample of an iteration, or None at its end, after which another begins."""
        if self._iterator is None:
            self._iterator = iter(self)
        batch = next(self._iterator, None)
        if batch is None:
            self._iterator = None
        return batch

    def __getitem__(self, index: Any) -> Any:
        """Copies of frames by their rows: a number, a slice, or several numbers."""
        if isinstance(index, slice):
            if index == slice(None):
                return self._core.all()
            return self._core.get(list(range(*index.indices(len(self)))))
        if isinstance(index, int):
            return self._core.get([index + len(self) if index < 0 else index])[0]
        return self._core.get([int(row) for row in index])

    def empty(self) -> None:
        """Gives all frames up."""
        self._core.empty()

    def stats(self) -> dict[str, Any]:
        """What the buffer holds and has done, by name."""
        return self._core.stats()

    def update_priority(self, index: Any, priority: Any) -> None:
        """Takes priorities over for the rows in ``index``; one number is for all of them.

        Raises:
            RuntimeError: the sampler has no priorities.
            ValueError: they are negative, or not as many as rows.
        """
        rows = [int(row) for row in _flat(index)]
        priorities = [float(value) for value in _flat(priority)]
        self._core.update_priority(rows, priorities * len(rows) if len(priorities) == 1 else priorities)

    def set_beta(self, beta: float) -> None:
        """Changes the exponent of importance weights."""
        self._core.set_beta(beta)

    def state_dict(self) -> Any:
        """What it takes to go on later, frames included: a TensorDict."""
        return self._core.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """Goes on from a saved state.

        Raises:
            ValueError: it is the state of another kind of buffer.
        """
        self._core.load_state_dict(state_dict)

    def dumps(self, path: str | Path) -> None:
        """Writes a checkpoint into the folder ``path``."""
        self._core.save(Path(path))

    def loads(self, path: str | Path) -> None:
        """Reads a checkpoint."""
        self._core.load(Path(path))

    save, load = dumps, loads

    def _inverse(self, batch: Any) -> Any:
        for transform in reversed(self._transforms):
            inverse = getattr(transform, "inv", None)
            batch = batch if inverse is None else inverse(batch)
        return batch

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} frames, {self.storage!r}, {self.sampler!r}, batch_size={self.batch_size})"


class TensorDictReplayBuffer(ReplayBuffer):
    """A buffer whose samples carry ``"index"``, and ``"priority_weight"`` where the sampler is prioritized.

    Args:
        priority_key: the entry that :meth:`update_tensordict_priority` takes priorities from.
        arguments: of :class:`ReplayBuffer`.
    """

    _with_info = True

    def __init__(self, *, priority_key: Key = "td_error", **arguments: Any) -> None:
        super().__init__(**arguments)
        self.priority_key = priority_key

    def update_tensordict_priority(self, data: Any) -> None:
        """Takes over the priorities that a sample was given.

        Raises:
            KeyError: it has none, or no ``"index"``.
        """
        priority = data[self.priority_key]
        self.update_priority(data["index"], priority.detach().reshape(len(data), -1).amax(-1))


class PrioritizedReplayBuffer(ReplayBuffer):
    """A buffer with a :class:`PrioritizedSampler`.

    Args:
        alpha: exponent of priorities.
        beta: exponent of weights.
        eps: what is added to priorities.
        arguments: of :class:`ReplayBuffer`.
    """

    def __init__(self, *, alpha: float, beta: float, eps: float = 1e-8, **arguments: Any) -> None:
        super().__init__(sampler=PrioritizedSampler(alpha=alpha, beta=beta, eps=eps), **arguments)


class TensorDictPrioritizedReplayBuffer(TensorDictReplayBuffer):
    """A :class:`TensorDictReplayBuffer` with a :class:`PrioritizedSampler`.

    Args:
        alpha: exponent of priorities.
        beta: exponent of weights.
        eps: what is added to priorities.
        arguments: of :class:`TensorDictReplayBuffer`.
    """

    def __init__(self, *, alpha: float, beta: float, eps: float = 1e-8, **arguments: Any) -> None:
        super().__init__(sampler=PrioritizedSampler(alpha=alpha, beta=beta, eps=eps), **arguments)


def _flat(values: Any) -> list[Any]:
    if hasattr(values, "reshape"):
        return values.reshape(-1).tolist()
    return list(values) if isinstance(values, (list, tuple)) else [values]
