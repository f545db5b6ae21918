"""The buffer that takes any parts."""

from __future__ import annotations

import contextlib
import pickle
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, cast, overload

from windrow import _html, _needs
from windrow._arguments import takes, warn_ignored
from windrow._failure import Failure
from windrow._lazy import tensordict, torch
from windrow._numbers import whole_or_none
from windrow._windrow import ReplayBufferCore
from windrow.data._ahead import Prefetch
from windrow.data._arguments import (
    AnyBufferArguments,
    BufferArguments,
    either,
    seed_from,
)
from windrow.data._content import (
    GENERATION,
    drawn_frames,
    frames_of,
    is_frames,
    numbers,
    whole,
)
from windrow.data._datasets._sources import frames_of_dataset
from windrow.data._frames import FrameDataset
from windrow.data._items import (
    OBJECT,
    Objects,
    Orders,
    as_tree,
    batches,
    is_marked,
    map_tree,
    packed,
    packed_items,
    pinned,
    unpacked,
)
from windrow.data._limiters import RateLimiter
from windrow.data._part import Key, made
from windrow.data._states import from_plain, to_plain
from windrow.data._transforms import Inverted, Transform
from windrow.data.replay_buffers import _rows
from windrow.data.replay_buffers.samplers import (
    ConsumingSampler,
    RandomSampler,
    Sampler,
    SliceSampler,
    consuming,
    function_of_sample,
)
from windrow.data.replay_buffers.storages import (
    LazyTensorStorage,
    ListStorage,
    Storage,
    TensorStorage,
)
from windrow.data.replay_buffers.writers import RoundRobinWriter, Writer

__all__ = ["ReplayBuffer"]

T = TypeVar("T")


class ReplayBuffer:
    """Keeps frames that collectors make, and gives learners samples of them.

    All methods may be called from several threads at once. A sample that lacks frames waits for
    collectors that are writing to the buffer.

    When a collector that was started has failed, the next call on the buffer or on the collector
    raises its error, once. The buffer keeps the frames written before, and stays usable.

    Raises:
        ValueError: parts do not suit each other.
        TypeError: a part is of another library, two arguments exclude each other, or one is
            unknown.

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
    #: Draws samples ahead; None where nothing does.
    _prefetch: Prefetch[tuple[Any, bool]] | None = None
    #: The entry that holds the priorities of new frames.
    priority_key: Key | None

    @takes(BufferArguments)
    def __init__(self, arguments: BufferArguments) -> None:
        self._begin(arguments)

    def _begin(self, arguments: AnyBufferArguments) -> None:
        _needs.torch(type(self).__name__)
        self.priority_key = getattr(arguments, "priority_key", None)
        self.storage: Storage = made("storage", Storage, arguments.storage, ListStorage(1000))
        self._sampler: Sampler = made("sampler", Sampler, arguments.sampler, RandomSampler())
        if arguments.consume_after_n_samples is not None:
            self._sampler = consuming(self._sampler, arguments.consume_after_n_samples)
        self.writer: Writer = made("writer", Writer, arguments.writer, RoundRobinWriter())
        self.limiter: RateLimiter | None = made("limiter", RateLimiter | None, arguments.limiter)
        self.collate_fn = arguments.collate_fn
        self._pins_memory, self._count_ahead = arguments.pin_memory, arguments.prefetch
        self._batch_size = arguments.batch_size
        transform = either("transform", arguments, "transform_factory", lambda make: make())
        #: Samples go through them in order, written frames through their ``inv`` in the opposite
        #: order.
        self._transforms: list[Transform] = []
        if transform is not None:
            self.append_transform(transform)
        seed = either("seed", arguments, "generator", seed_from)
        self._choices = {"seed": seed, "sample_timeout": arguments.sample_timeout}
        self._objects = Objects()
        self._orders: Orders = {}
        self._build()
        self._is_packed = self._has_packed()
        if isinstance(self.storage, TensorStorage):
            self._put(self._packed(self.storage.storage, 1), self._core.extend)

    def _build(self) -> None:
        """Builds the engine's buffer of the parts."""
        self.storage._attach(self)
        self._sampler._attach(self)
        self._iterator: Iterator[Any] | None = None
        #: Whether the last sample ended a pass over the frames; only where samples are drawn ahead,
        #: since the engine tells of the last one drawn.
        self._ends_pass = False
        if self._count_ahead:
            # A buffer that nobody has any more ends at once, and with it the use of its files.
            self._prefetch = Prefetch(weakref.WeakMethod(self._sampled_ahead), self._count_ahead)
        #: Failures of collectors that wrote to this buffer in the background.
        self._failures: list[Failure] = []
        #: Collectors that were started with this buffer. It keeps them alive.
        self._collecting: set[Any] = set()
        self._core = ReplayBufferCore(
            {
                "storage": self.storage._options(),
                "sampler": self._sampler_options(self._sampler),
                "writer": self._writer_options(),
                "limiter": None if self.limiter is None else self.limiter._options(),
                "batch_size": self._batch_size,
                # Items of a list keep what they say of themselves.
                "device": None if isinstance(self.storage, ListStorage) else torch.device("cpu"),
                **self._choices,
            }
        )

    def _writer_options(self) -> dict[str, Any]:
        reuses = isinstance(self._sampler, ConsumingSampler) and isinstance(
            self.writer, RoundRobinWriter
        )
        return {"kind": "ReuseWriter"} if reuses else self.writer._options()

    def _sampler_options(self, sampler: Sampler) -> dict[str, Any]:
        return {**sampler._options(), "priority_key": self.priority_key}

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        *,
        keys: Mapping[str, Key] | None = None,
        storage: Any = None,
        **arguments: Any,
    ) -> Any:
        """A buffer with the frames of a data set.

        Those that a sink has written, such as :class:`ParquetSink`, come as they were; their
        ``("collector", "traj_ids")`` are the numbers of episodes in the data set. Columns of others
        have the entries that their names stand for: ``observations``, ``actions``, ``rewards``,
        ``terminations``, ``episode_id`` and similar ones are windrow's ``"observation"``,
        ``"action"``, ``("next", "reward")``, …; ``next.reward`` is ``("next", "reward")``; any
        other name is that of the entry, and so is that of a second column for one entry.

        Args:
            dataset: the folder, or file, of a data set of Parquet or safetensors files, of Minari
                or of LeRobot; or an object: a ``datasets.Dataset``, a ``minari.MinariDataset``, a
                ``LeRobotDataset``, a ``pyarrow.Table``, or a dictionary of arrays ``[rows, ...]``.
            keys: the entries of columns, by the columns' names, where the above is not meant.
            storage: with room for all frames; in memory by default.
            arguments: others of the buffer.

        Raises:
            FileNotFoundError: there is no data set at the path.
            ValueError: a column is not of numbers, its rows differ in shape, or two are one entry;
                the storage has no room for all frames.
            TypeError: it is no data set; an argument is unknown.
            ImportError: a package is missing that reads it; the message names the extra that brings
                it.

        Example:
            >>> import torch
            >>> from windrow.data import ReplayBuffer
            >>> offline = {"observations": torch.zeros(5, 3), "actions": torch.zeros(5, 1), "episode_id": torch.tensor([0, 0, 0, 1, 1])}
            >>> ReplayBuffer.from_dataset(offline, batch_size=2).sample()["observation"].shape
            torch.Size([2, 3])
        """
        _needs.torch(f"{cls.__name__}.from_dataset")
        pieces = list(frames_of_dataset(dataset, keys))
        rows = sum(map(len, pieces))
        buffer = cls(
            storage=LazyTensorStorage(max(rows, 1)) if storage is None else storage, **arguments
        )
        if (room := buffer._core.capacity()) < rows:
            raise ValueError(
                f"the data set has {rows} frames, and the storage has room for {room}: give it more"
            )
        for piece in pieces:
            buffer.extend(piece)
        return buffer

    @property
    def _checked(self) -> ReplayBufferCore:
        """The engine's buffer for calls of users, which first raise the failures of collectors."""
        for failure in tuple(self._failures):
            failure.tell()
            if failure.is_told:
                # Another thread may remove it at this moment.
                with contextlib.suppress(ValueError):
                    self._failures.remove(failure)
        if isinstance(self._core, _rows.Closed):
            raise _rows.Closed.error()
        return self._core

    @property
    def sampler(self) -> Any:
        """The sampler; another can be set."""
        return self._sampler

    @sampler.setter
    def sampler(self, sampler: Sampler | Callable[[], Sampler]) -> None:
        self.set_sampler(sampler)

    def set_sampler(self, sampler: Sampler | Callable[[], Sampler]) -> Sampler:
        """Replaces the sampler by one that begins with all frames of the buffer; returns the one
        before.

        Raises:
            RuntimeError: the sampler needs trajectories, and the frames do not say where these end.
            ValueError: an argument of the sampler is invalid, or the writer does not suit it.
            TypeError: it is not a sampler of windrow.
        """
        new: Sampler = made("sampler", Sampler, sampler)
        self._forget_ahead()
        self._checked.set_sampler(self._sampler_options(new))
        before, self._sampler = self._sampler, new
        before._detach(self)
        new._attach(self)
        return before

    @property
    def transform(self) -> tuple[Transform, ...]:
        """The transforms that samples go through, in this order."""
        return tuple(self._transforms)

    # Names of TorchRL's attributes, which scripts read.
    _storage = property(lambda self: self.storage)
    _writer = property(lambda self: self.writer)
    _transform = property(lambda self: self.transform)
    _collate_fn = property(lambda self: self.collate_fn)

    @property
    def batch_size(self) -> int | None:
        """Frames of a sample that does not name a number."""
        return self._batch_size

    @property
    def write_count(self) -> int:
        """Frames written since the buffer was last empty, those included that were overwritten."""
        return int(self.stats()["write_count"])

    def __len__(self) -> int:
        return self._checked.len()

    @property
    def _takes_frames_as_they_are(self) -> bool:
        return not (
            self._keeps_batches or any(hasattr(transform, "inv") for transform in self._transforms)
        )

    @property
    def _keeps_batches(self) -> bool:
        """Whether samples are cropped in time, and no sampler makes trajectories of single frames:
        then what is written has time in it.
        """
        each = (
            one
            for transform in self._transforms
            for one in getattr(transform, "transforms", [transform])
        )
        return not isinstance(self._sampler, SliceSampler) and any(
            hasattr(one, "sub_seq_len") for one in each
        )

    def append_transform(self, transform: Transform, *, invert: bool = False) -> ReplayBuffer:
        """Adds a transform that is called with samples, after the others.

        Args:
            invert: call it with written frames instead, and its method ``inv`` with samples.
        """
        return self.insert_transform(len(self._transforms), transform, invert=invert)

    def insert_transform(
        self, index: int, transform: Transform, *, invert: bool = False
    ) -> ReplayBuffer:
        """As :meth:`append_transform`, but before the transform in place ``index``."""
        if isinstance(transform, torch.nn.Module):
            # Buffers use modules, and train none.
            transform.eval()
        given = (
            transform if hasattr(transform, "inv") else function_of_sample("transform", transform)
        )
        self._transforms.insert(index, Inverted(given) if invert else given)
        self._forget_ahead()
        return self

    def share(self, shared: bool = True) -> ReplayBuffer:
        """The buffer itself: threads share every buffer."""
        return self

    def extend(self, batch: object) -> torch.Tensor:
        """Writes frames, and returns the rows of those that were kept.

        Every frame has a row of its own, whatever the shape of the batch: ``[envs, time]`` is
        written environment by environment, and ``capacity`` counts frames. So ``[4, 100]`` is 400
        frames, and a sample of 32 is ``[32]``. Only where the buffer has TorchRL's
        ``RandomCropTensorDict`` and no :class:`SliceSampler`, ``[4, 100]`` is 4 items, each a batch
        ``[100]`` as of :meth:`add`: there would be no time to crop in a sample of single frames.

        A trajectory continues in the next batch ``[time]`` if that begins with the same id or,
        without ids, if the same thread writes it, up to the flag that ends the episode. It never
        continues in a collector's frames, nor after a state was loaded. Batches of several
        collectors use the same ids for different trajectories: let the collectors write them
        (``replay_buffer=``), or give them ids of your own.

        Args:
            batch: a TensorDict, a tensorclass or a dictionary of tensors, ``[time]`` or
                ``[..., time]``, or a list of single frames. Entries that are no tensors are kept as
                the objects they are. Or a tensor or a tuple of tensors, each ``[items, ...]``, or a
                list of items that are one of these; samples are then what was given, with as many
                items. A :class:`ListStorage` takes a list of any objects. The buffer takes the
                values at the time of the call, however long the limiter makes the write wait.

        Raises:
            TypeError: it is something else.
            ValueError: the frames do not fit those that were written before.
            RuntimeError: the limiter does not let the frames in within ``sample_timeout``, or never
                will.
        """
        _ = self._checked
        return self._write(batch)

    def _write(
        self,
        batch: object,
        given_up: Callable[[], bool] | None = None,
        collector: int | None = None,
    ) -> torch.Tensor:
        """As :meth:`extend`, for the collector with this number. With ``given_up``, waits without
        limit until that returns true.
        """
        frames = self._written(batch, 1)
        if frames is _rows.NOTHING:
            return torch.zeros(0, dtype=torch.int64, device="cpu")
        return self._put(frames, lambda frames: self._core.extend(frames, given_up, collector))

    def _written(self, data: object, dims: int) -> Any:
        """The frames that are written when ``data`` is given, of one item or of several."""
        data = self._inverted(data, dims)
        return data if data is _rows.NOTHING else self._packed(data, dims)

    def _inverted(self, data: object, dims: int) -> object:
        """What transforms make of what is written."""
        data = frames_of(data, dims=dims)
        for transform in reversed(self._transforms):
            inverse = getattr(transform, "inv", None)
            data = data if inverse is None else inverse(data)
            if inverse is not None and data is None:
                return _rows.NOTHING
        return data

    def _packed(self, data: object, dims: int) -> tensordict.TensorDictBase:
        """Frames as the engine keeps them."""
        if is_frames(data):
            frames = (
                batches(data, dims)
                if data.ndim > dims and (dims == 0 or self._keeps_batches)
                else data
            )
            frames = packed(frames, self._plain)
        elif isinstance(self.storage, ListStorage):
            frames = (
                packed_items(data, self._objects)
                if dims
                else packed_items([data], self._objects)[0]
            )
        else:
            frames = as_tree(data, dims, self._orders)
            frames = packed(frames, self._plain)
        self._is_packed = self._is_packed or frames is not data
        return frames

    def _put(self, frames: tensordict.TensorDictBase, write: Callable[[Any], T]) -> T:
        """The result of ``write``, and the items kept that the frames stand for."""
        if not self._is_packed or OBJECT not in frames.keys():
            return write(frames)
        return self._objects.write(
            frames[OBJECT].flatten().tolist(), lambda: write(frames), self._core.get
        )

    @property
    def _plain(self) -> frozenset[tuple[str, ...]]:
        """The entries that the engine reads as numbers."""
        keys = (self.priority_key, getattr(self.writer, "rank_key", None))
        return frozenset(
            (key,) if isinstance(key, str) else tuple(key) for key in keys if key is not None
        )

    def add(self, frame: object) -> int | None:
        """Writes one frame, of batch size ``[]``, or one item, otherwise as :meth:`extend`; returns
        its row, if it was kept.

        A TensorDict ``[10]`` is one item too: it takes one row, and samples of the buffer are
        ``[items, 10]``. All items of a buffer have the same shape. Samplers see no trajectories in
        them, and an entry of the sampler is repeated along the item.

        Raises:
            TypeError, ValueError, RuntimeError: as :meth:`extend`.
        """
        core = self._checked
        written = self._written(frame, 0)
        return (
            None
            if written is _rows.NOTHING
            else self._put(written, lambda written: core.add(written))
        )

    @overload
    def sample(
        self, batch_size: int | None = None, return_info: Literal[False] = False
    ) -> tensordict.TensorDictBase: ...

    @overload
    def sample(
        self, batch_size: int | None = None, *, return_info: Literal[True]
    ) -> tuple[tensordict.TensorDictBase, dict[Key, torch.Tensor]]: ...

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """A batch of frames in fresh memory, as they were written.

        Args:
            batch_size: number of frames; by default that of the buffer.
            return_info: return a dictionary too, with ``"index"``, the rows that were drawn, and
                the other entries that the sampler adds: ``"priority_weight"`` and
                ``"index_generation"`` where it has priorities, and of slices
                ``("next", "truncated")``, ``("next", "done")`` and ``"is_init"``.

        Raises:
            RuntimeError: there are not enough frames and no collector writes any, or the limiter
                has let none through within ``sample_timeout``; no batch size was given.
            Exception: the error that ended a collector that was writing to the buffer.
        """
        return self._sampled(batch_size, return_info, self._with_info)

    def _sampled(self, batch_size: int | None, return_info: bool, with_info: bool) -> Any:
        batch_size = whole_or_none("batch_size", batch_size, 1)
        if (
            self._prefetch is None
            or batch_size is not None
            or return_info
            or with_info != self._with_info
        ):
            return self._sampled_now(batch_size, return_info, with_info)
        _ = self._checked
        ahead = self._prefetch.next()
        if ahead is None:
            ahead = self._sampled_now(None, False, with_info), self._core.ran_out()
            self._prefetch.judge(
                ahead[0], bool(self._transforms or self.collate_fn or self._pins_memory)
            )
        elif is_frames(ahead[0]) and {"index", GENERATION} <= set(ahead[0].keys()):
            rows, generations = drawn_frames(ahead[0])
            self._core.hand_out(rows, generations or [])
        batch, self._ends_pass = ahead
        return batch

    def _sampled_ahead(self) -> tuple[Any, bool] | None:
        """A sample, and whether it ends a pass over the frames; None where it would have to wait
        for frames.
        """
        batch = self._sampled_now(None, False, self._with_info, waits=False)
        return None if batch is _rows.NOTHING else (batch, self._core.ran_out())

    def _sampled_now(
        self, batch_size: int | None, return_info: bool, with_info: bool, waits: bool = True
    ) -> Any:
        """A sample. If frames are missing, waits for them or returns ``_rows.NOTHING``."""
        changes = self._sampler._changes_samples
        if with_info and not (return_info or self._is_packed or changes):
            batch = self._drawn(ReplayBufferCore.sample, batch_size, waits)
            return _rows.NOTHING if batch is None else self._finished(batch)
        with self._objects:
            drawn = self._drawn(ReplayBufferCore.sample_apart, batch_size, waits)
            if drawn is None:
                return _rows.NOTHING
            batch, info = self._unpacked(drawn[0]), drawn[1]
        if changes:
            batch, info = self._sampler._changed(batch, info, batch_size or self._batch_size or 0)
        if with_info:
            if not is_frames(batch):
                raise RuntimeError(
                    f"a {type(self).__name__} adds entries to samples, which must be TensorDicts: use a ReplayBuffer"
                )
            # Along items that are batches, too.
            shape = batch.shape
            added = (
                info
                if len(shape) == 1
                else info.apply(
                    lambda it: tensordict.utils.expand_right(it, shape), batch_size=shape
                )
            )
            batch = batch.update(added)
        batch = self._finished(batch)
        return (
            (batch, dict(info.items(include_nested=True, leaves_only=True)))
            if return_info
            else batch
        )

    def _drawn(
        self,
        draw: Callable[[ReplayBufferCore, int | None, bool], T],
        batch_size: int | None,
        waits: bool,
    ) -> T:
        if not waits:
            # A thread that draws ahead leaves the failures of collectors to the next call of the
            # user.
            return draw(self._core, batch_size, False)
        core = self._checked
        try:
            return draw(core, batch_size, True)
        except RuntimeError:
            # The sample may have waited for a collector, whose own error says why there are no
            # frames.
            _ = self._checked
            raise

    def _unpacked(self, frames: tensordict.TensorDictBase) -> object:
        """What was given, of frames of the engine."""
        return unpacked(frames, self._objects, self._orders) if self._is_packed else frames

    def _has_packed(self) -> bool:
        """Whether frames that the buffer has begun with may have to be unpacked."""
        # Of no rows there are all entries.
        return self._core.len() > 0 and (
            isinstance(self.storage, ListStorage) or is_marked(self._core.get([]))
        )

    def _finished(self, batch: Any) -> object:
        """The sample that a batch of frames becomes."""
        device = self.storage.device
        if device is not None and str(device) != "cpu":
            batch = map_tree(lambda value: value.to(device), batch)
        batch = _rows.collated(self, batch)
        for transform in self._transforms:
            batch = transform(batch)
        return pinned(batch) if self._pins_memory and torch.cuda.is_available() else batch

    def __iter__(self) -> Iterator[tensordict.TensorDictBase]:
        """Yields the samples of one pass over the frames if the sampler draws without replacement,
        and otherwise never ends.

        A loop that is left early leaves the rest of the pass to the next loop. Frames that are
        written meanwhile take part.

        Raises:
            RuntimeError: the buffer has no batch size; as :meth:`sample`.
        """
        if self._batch_size is None:
            raise RuntimeError(
                "cannot iterate over a buffer without a batch size: give it one when it is built"
            )
        over = False
        while not over:
            batch = self.sample()
            over = self._core.ran_out() if self._prefetch is None else self._ends_pass
            yield batch

    def next(self) -> tensordict.TensorDictBase | None:
        """The next sample of an iteration; None at its end, after which another begins."""
        if self._iterator is None:
            self._iterator = iter(self)
        batch = next(self._iterator, None)
        if batch is None:
            self._iterator = None
        return batch

    def __getitem__(self, index: object) -> Any:
        """Copies of frames as they were written.

        Args:
            index: a row or several, of any shape, a slice or a mask of rows; all are ``[frames]``,
                also if they were written in batches ``[envs, time]``. Or the key of an entry, for
                its values in all rows.

        Raises:
            IndexError: a row holds no frame, or a mask has another size.
        """
        return _rows.read(self, index)

    def __setitem__(self, index: object, frames: object) -> None:
        """Replaces frames by others, which take over their order and priorities.

        Args:
            index: rows as of :meth:`__getitem__`; with a key, ``frames`` are the entry's values for
                all rows.
            frames: as many as rows, or one for all of them.

        Raises:
            IndexError: as :meth:`__getitem__`.
            ValueError: the frames do not fit, or would end trajectories elsewhere, which the
                sampler relies on.
        """
        _rows.replace(self, index, frames)

    def as_dataset(self) -> FrameDataset:
        """The frames at this moment as a data set of torch, for a ``torch.utils.data.DataLoader``;
        a copy in shared memory.

        Raises:
            TypeError: the buffer has items that are no TensorDicts.

        Example:
            >>> import torch
            >>> from windrow.data import ReplayBuffer
            >>> buffer = ReplayBuffer.from_dataset({"observation": torch.zeros(10, 3)})
            >>> frames = buffer.as_dataset()
            >>> loader = torch.utils.data.DataLoader(frames, batch_size=4, shuffle=True, collate_fn=frames.collate)
            >>> [batch.shape[0] for batch in loader]
            [4, 4, 2]
        """
        return FrameDataset(self[:])

    def empty(self, empty_write_count: bool = True) -> None:
        """Removes all frames. The next ones may have other entries and shapes.

        Args:
            empty_write_count: True: frames are counted from 0 again.
        """
        warn_ignored("empty_write_count", empty_write_count, True, "an empty buffer counts from 0")
        self._objects.clear(self._checked.empty)
        self._forget_ahead()
        self._is_packed = False

    def stats(self) -> dict[str, Any]:
        """Counts of frames, samples and writers, by name."""
        return self._checked.stats()

    def update_priority(self, index: object, priority: object, generation: object = None) -> int:
        """Sets the priorities of the rows in ``index``. Returns the number of priorities set.

        A row whose frame was overwritten or removed after it was sampled is skipped, so that no
        other frame gets the priority.

        Args:
            index: rows of the buffer, as ``"index"`` of a sample.
            priority: a number for each row, or one for all of them.
            generation: ``"index_generation"`` of the sample, which says which frames the rows held.
                Without it, a row stands for the frame that was sampled last from it, or for its
                present one if none was sampled yet. Give it where several samples are in use at
                once.

        Raises:
            IndexError: the buffer does not have a row.
            RuntimeError: the sampler has no priorities.
            TypeError: rows are no whole numbers, or priorities no numbers.
            ValueError: priorities are negative, or not as many as rows.
        """
        rows, priorities = numbers("index", index, whole), numbers("priority", priority, float)
        each = priorities * len(rows) if len(priorities) == 1 else priorities
        return self._checked.update_priority(
            rows, each, None if generation is None else numbers("generation", generation, whole)
        )

    def set_beta(self, beta: float) -> None:
        """Changes the exponent of importance weights, as setting ``beta`` of the sampler does."""
        # The engine refuses it where there are no priorities.
        self._checked.set_beta(beta)
        self._sampler._set("beta", beta)

    def state_dict(self) -> dict[str, Any]:
        """The state of the buffer, frames included: dictionaries of tensors, which ``torch.load``
        reads by default. Objects are in it as they are: ``torch.load`` reads numbers and strings by
        default, and others with ``weights_only=False``.
        """
        with self._objects:
            state = to_plain(self._checked.state_dict())
            if self._is_packed and OBJECT in state.get("frames", {}):
                numbers = state["frames"][OBJECT].tolist()
                state["objects"] = dict(zip(numbers, self._objects.of(numbers), strict=True))
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continues from a saved state.

        Raises:
            ValueError: it is the state of another kind of buffer. Nothing is changed then.
        """
        plain = from_plain(state_dict)
        self._forget_ahead()
        self._checked.load_state_dict(plain)
        self._sampler._follow(self._core)
        frames = plain.get("frames", {})
        numbers = frames[OBJECT].tolist() if OBJECT in frames.keys() else []
        self._objects.restore(
            state_dict.get("objects", {}), dict(zip(plain["rows"].tolist(), numbers))
        )
        self._is_packed = "frames" in plain.keys() and is_marked(frames)

    def dumps(self, path: str | Path) -> None:
        """Writes a checkpoint into the folder ``path``.

        Raises:
            RuntimeError: items of the buffer are objects, which are in no checkpoint.
        """
        if self._objects.are_in(self._core.get):
            raise RuntimeError(
                "objects are not written to a checkpoint: save the buffer's state_dict() with torch.save"
            )
        self._checked.save(Path(path))

    def loads(self, path: str | Path) -> None:
        """Reads a checkpoint."""
        self._forget_ahead()
        self._objects.clear(lambda: self._checked.load(Path(path)))
        self._sampler._follow(self._core)
        self._is_packed = self._has_packed()

    save, dump, load = dumps, dumps, loads

    def _forget_ahead(self) -> None:
        if self._prefetch is not None:
            self._prefetch.clear()

    def close(self) -> None:
        """Lets go of the frames, as the end of a ``with`` statement does: those in memory are freed
        once no collector writes to the buffer, and the files of a mapped storage stay. Any other
        call raises ``RuntimeError`` from then on, and so do samples and writes that wait.
        """
        self._sampler._detach(self)
        if not isinstance(self._core, _rows.Closed):
            self._core.close()
        self._core = cast("ReplayBufferCore", _rows.Closed())
        self._iterator, self._objects = None, Objects()
        if self._prefetch is not None:
            self._prefetch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return _rows.sent(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = pickle.loads(state.pop("_state"))
        self.__dict__.update(state)
        self._build()
        self._core.load_state_dict(saved)

    @_html.table
    def _repr_html_(self) -> dict[str, Any]:
        return _rows.shown(self)

    def __repr__(self) -> str:
        if isinstance(self._core, _rows.Closed):
            return f"{type(self).__name__}(closed)"
        # Raises no failure of a collector.
        return f"{type(self).__name__}({self._core.len()} frames, {self.storage!r}, {self.sampler!r}, batch_size={self.batch_size})"
