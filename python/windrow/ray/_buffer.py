"""A replay buffer that an actor of Ray owns."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from windrow._arguments import one_of
from windrow._failure import Failure
from windrow._lazy import tensordict as td, torch
from windrow._numbers import at_least
from windrow.data._ahead import Ahead
from windrow.data._content import GENERATION, is_frames
from windrow.data.replay_buffers.replay_buffers import ReplayBuffer
from windrow.data.replay_buffers.samplers import Sampler
from windrow.ray import _session

if TYPE_CHECKING:
    from ray.actor import ActorHandle

    from ray import ObjectRef
    from windrow._types import Array
    from windrow.collectors import BaseCollector

__all__ = ["RayReplayBuffer"]

#: Calls that the actor serves at a time. A sample that waits for frames keeps a thread, and the
#: writers that bring them have others.
_THREADS = {"write": 16, "sample": 16, "ask": 4, "writers": 1}

#: Seconds between two looks of a waiting call at its own process, and after which a write that
#: waits for samples asks again.
_LOOK, _ASK_AGAIN = 0.1, 1.0

#: Seconds between a writer's signs of life, and of silence after which it counts as dead.
_BEAT, _SILENCE = 1.0, 30.0

Author = tuple[str, int]
"""A handle, and a collector or a thread that writes through it."""

#: Threads that write as one of another process did last.
_HANDS = 64


class _Owner:
    """The actor. It has the buffer, and knows which collectors are writing to it."""

    def __init__(self) -> None:
        #: By the engine's number of each collector, it tells apart ids of trajectories.
        self._authors: dict[Author, int] = {}
        #: A thread for each thread elsewhere: what one writes continues what it wrote before.
        self._hands: OrderedDict[Author, ThreadPoolExecutor] = OrderedDict()
        #: The engine's number of each collector that is writing, and when it was last heard of.
        self._writers: dict[Author, tuple[int, float]] = {}
        self._lost = 0
        self._lock, self._iterating = threading.Lock(), threading.Lock()

    def open(
        self, make: Callable[..., ReplayBuffer], arguments: dict[str, Any], silence: float
    ) -> dict[str, Any]:
        self._buffer = make(**arguments)
        threading.Thread(target=self._listen, args=(silence,), daemon=True).start()
        return {name: getattr(self._buffer, name, None) for name in ("batch_size", "priority_key")}

    def call(self, name: str, *args: Any, **kwargs: Any) -> object:
        return _sent(getattr(self._buffer, name)(*map(_received, args), **kwargs))

    def tell(self, name: str, *args: Any, **kwargs: Any) -> None:
        """As :meth:`call`, for what returns parts of the buffer."""
        getattr(self._buffer, name)(*args, **kwargs)

    def sample(self, name: str, *args: Any, **kwargs: Any) -> object:
        try:
            with self._iterating if name == "next" else contextlib.nullcontext():
                return self.call(name, *args, **kwargs)
        except RuntimeError as error:
            if self._lost:
                error.add_note(
                    f"collectors of {self._lost} processes that wrote to the buffer have fallen silent"
                )
            raise

    def extend(self, batch: object, author: Author) -> Array:
        """The rows of the frames."""
        with self._lock:
            hand = self._hands.pop(author, None) or ThreadPoolExecutor(1)
            self._hands[author] = hand
            writing = hand.submit(self._buffer.extend, self._frames(batch))
            if len(self._hands) > _HANDS:
                self._hands.popitem(last=False)[1].shutdown(wait=False)
        return writing.result().numpy()

    def _frames(self, batch: object) -> object:
        # The engine copies frames that nothing in Python looks at.
        return _received(batch, copy=not self._buffer._takes_frames_as_they_are)

    def write(self, batch: object, author: Author, patient: bool) -> Array | None:
        """As :meth:`extend`, for a collector; None if a ``patient`` write has to be asked for
        again.
        """
        until = time.monotonic() + _ASK_AGAIN

        def is_over() -> bool:
            return time.monotonic() > until

        try:
            return self._buffer._write(
                self._frames(batch), is_over if patient else None, self._number(author)
            ).numpy()
        except RuntimeError as error:
            if patient and type(error) is RuntimeError and is_over():
                return None
            raise

    def _number(self, author: Author) -> int:
        with self._lock:
            if author not in self._authors:
                self._authors[author] = self._buffer._core.collector()
            return self._authors[author]

    def add_writer(self, author: Author) -> None:
        """Notes that a collector is writing; samples then wait for its frames."""
        with self._lock:
            number = (
                self._writers[author][0] if author in self._writers else self._buffer._core.attach()
            )
            self._writers[author] = number, time.monotonic()

    def remove_writer(self, author: Author, error: BaseException | None = None) -> None:
        """Notes that a collector writes no more. A waiting sample raises ``error``, otherwise the
        next call.
        """
        if error is not None:
            self._buffer._failures.append(Failure(error, _NOWHERE))
        with self._lock:
            number, _ = self._writers.pop(author, (None, 0.0))
        if number is not None:
            self._buffer._core.detach(number)

    def _listen(self, silence: float) -> None:
        while True:
            time.sleep(_BEAT)
            limit = time.monotonic() - silence
            for author, (_, heard) in list(self._writers.items()):
                if heard < limit:
                    self._lost += 1
                    self.remove_writer(author)


def _owner(remote_config: dict[str, Any] | None) -> ActorHandle[Any]:
    import ray

    return _session.actor(
        ray, _Owner, {"concurrency_groups": _THREADS, "num_cpus": 0, **(remote_config or {})}
    )


class _Nowhere:
    """Stands for a collector of another process."""

    def is_within(self) -> bool:
        return False


_NOWHERE: Any = _Nowhere()


def _forwarded(name: str, *, forgets: bool = False) -> Callable[..., Any]:
    """A method that is called in the actor. One that ``forgets`` drops samples that were asked for
    before.
    """

    def method(self: RayReplayBuffer, *args: Any, **kwargs: Any) -> object:
        result = self._call(name, *args, **kwargs)
        if forgets:
            self._ahead.clear()
        return result

    method.__name__, method.__doc__ = name, f"As :meth:`ReplayBuffer.{name}`, in the actor."
    return method


class RayReplayBuffer:
    """A replay buffer in an actor of Ray: collectors and learners on all machines of a cluster
    write to it and sample from it.

    Methods are those of :class:`ReplayBuffer`, arguments and errors too. Frames travel as one block
    of memory. Samples are in memory of their own. A path, as of :meth:`dumps`, is one of the
    actor's machine.

    Copies by pickle, which other actors and tasks are given, use the same buffer. It ends with
    :meth:`shutdown`, or when no copy is left.

    A sample waits for collectors that were started into the buffer, in any process. A collector
    whose process has died counts as one of them for up to 30 s; the sample then fails, if no other
    is left. An error that ended a collector is raised as by other buffers.

    Args:
        replay_buffer_cls: the class of the buffer.
        ray_init_config: arguments of ``ray.init``, if no Ray is running.
        remote_config: options of the actor, such as ``{"num_cpus": 1, "memory": 2**30}``. By
            default, it claims no processor.
        transport: ``"ray"``; ``"auto"`` is the same.
        prefetch: samples that are asked for ahead, where neither a size nor ``return_info`` is
            given. They do not follow frames and priorities that were written since. Another sampler
            or transform, :meth:`empty` and a state that is loaded drop those of this handle; other
            handles keep theirs.
        arguments: of the buffer. Parts, such as a storage, are values or functions that make them.

    Raises:
        ImportError: Ray is not installed.
        ValueError: ``transport`` is another one, ``prefetch`` is negative, or the class of the
            buffer refuses an argument.

    Example:
        >>> from windrow.data import LazyTensorStorage, RayReplayBuffer
        >>> buffer = RayReplayBuffer(storage=LazyTensorStorage(100_000), batch_size=256)  # doctest: +SKIP
        >>> collector = RayCollector([make_env] * 2, policy, replay_buffer=buffer, frames_per_batch=200)  # doctest: +SKIP
        >>> collector.start()  # doctest: +SKIP
        >>> sample = buffer.sample()  # doctest: +SKIP
    """

    _tells_writers_apart = True
    _is_owner = False
    #: Failures of collectors of this process; None where another process samples.
    _failures: list[Failure] | None = None

    def __init__(
        self,
        *,
        replay_buffer_cls: Callable[..., ReplayBuffer] = ReplayBuffer,
        ray_init_config: dict[str, Any] | None = None,
        remote_config: dict[str, Any] | None = None,
        transport: str = "auto",
        prefetch: int | None = None,
        **arguments: Any,
    ) -> None:
        one_of("auto", "ray")("transport", transport)
        count = at_least(0)("prefetch", prefetch or 0)
        _, self._release = _session.acquire(type(self).__name__, ray_init_config)
        self._begin(_owner(remote_config), {}, count)
        self._is_owner, self._failures = True, []
        try:
            self._known = self._get(self._actor.open.remote(replay_buffer_cls, arguments, _SILENCE))
        except BaseException:
            self.shutdown()
            raise

    def _begin(self, actor: ActorHandle[Any], known: dict[str, Any], prefetch: int) -> None:
        self._actor, self._known = actor, known
        self._name = uuid.uuid4().hex
        self._ahead: Ahead[Any] = Ahead(prefetch)

    def __reduce__(self) -> tuple[Callable[..., RayReplayBuffer], tuple[Any, ...]]:
        return _handle, (type(self), self._actor, self._known, self._ahead.count)

    def client(self) -> RayReplayBuffer:
        """Another handle of the buffer, as a copy by pickle is one."""
        return _handle(type(self), self._actor, self._known, self._ahead.count)

    def clients(self, num_clients: int) -> list[RayReplayBuffer]:
        """``num_clients`` handles of the buffer."""
        return [self.client() for _ in range(num_clients)]

    def shutdown(self, timeout: float | None = None) -> None:
        """Ends the actor, and Ray if the buffer has started it. Frames are lost.

        Raises:
            RuntimeError: another process has made the buffer, or another handle.
        """
        if not self._is_owner:
            raise RuntimeError("only the handle that made a RayReplayBuffer ends it")
        _session.kill([self._actor])
        self._release()

    close = shutdown

    def __enter__(self) -> RayReplayBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    # Calls

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self._get(self._remote("call", "ask", name, *map(_sent, args), **kwargs))

    def _remote(self, method: str, group: str, *args: Any, **kwargs: Any) -> ObjectRef[Any]:
        return getattr(self._actor, method).options(concurrency_group=group).remote(*args, **kwargs)

    def _get(self, reference: ObjectRef[Any]) -> Any:
        """What the actor returned, or raised. Raises the error of a collector in this process
        meanwhile.
        """
        import ray

        while True:
            self._tell()
            try:
                return _received(_session.get(reference, _LOOK))
            except ray.exceptions.GetTimeoutError:
                continue
            except RuntimeError:
                self._tell()
                raise

    def _tell(self) -> None:
        for failure in tuple(self._failures or ()):
            failure.tell()

    # Writes

    def extend(self, batch: object) -> torch.Tensor:
        """As :meth:`ReplayBuffer.extend`; threads of different processes are different threads."""
        return torch.tensor(
            self._get(
                self._remote("extend", "write", _sent(batch), (self._name, threading.get_ident()))
            ),
            device="cpu",
        )

    def add(self, frame: object) -> int | None:
        """As :meth:`ReplayBuffer.add`."""
        if not is_frames(frame):
            added: int | None = self._call("add", frame)
            return added
        rows = self.extend(frame.unsqueeze(0))
        return int(rows[0]) if len(rows) else None

    def _write(
        self,
        batch: object,
        given_up: Callable[[], bool] | None = None,
        collector: int | None = None,
    ) -> torch.Tensor:
        """As :meth:`ReplayBuffer._write`, for a collector."""
        import ray

        sent = _sent(batch)
        while True:
            rows = self._get(
                self._remote(
                    "write", "write", sent, (self._name, collector or 0), given_up is not None
                )
            )
            if rows is not None:
                return torch.tensor(rows, device="cpu")
            if given_up is not None and given_up():
                raise RuntimeError("the collector ended while a write waited for samples")
            if not isinstance(sent, ray.ObjectRef):
                sent = ray.put(sent)

    def _accompany(self, collector: BaseCollector) -> None:
        """Makes samples wait for a collector that was started, until it ends."""
        author = self._name, id(collector)
        self._get(self._remote("add_writer", "writers", author))
        threading.Thread(target=self._follow, args=(collector, author), daemon=True).start()

    def _follow(self, collector: BaseCollector, author: Author) -> None:
        # Ray may end before the collector does.
        with contextlib.suppress(Exception):
            heard = time.monotonic()
            while collector.is_running():
                time.sleep(_LOOK)
                if time.monotonic() - heard > _BEAT:
                    heard = time.monotonic()
                    self._remote("add_writer", "writers", author)
            failure = collector._failure if self._failures is None else None
            self._remote("remove_writer", "writers", author, failure and failure._error)

    # Reads

    def sample(
        self, batch_size: int | None = None, return_info: bool = False, **others: Any
    ) -> Any:
        """As :meth:`ReplayBuffer.sample`."""
        if self._ahead.count and batch_size is None and not return_info and not others:
            return self._sample_ahead()
        return self._get(
            self._remote("sample", "sample", "sample", batch_size, return_info, **others)
        )

    def _sample_ahead(self) -> object:
        try:
            return self._get(self._ahead.next(lambda: self._remote("sample", "sample", "sample")))
        except RuntimeError:
            # Asked for when the buffer had too few frames, perhaps.
            self._ahead.clear()
            return self._get(self._remote("sample", "sample", "sample"))

    def next(self) -> Any:
        """As :meth:`ReplayBuffer.next`; all handles share one iteration."""
        return self._get(self._remote("sample", "sample", "next"))

    def __iter__(self) -> Iterator[Any]:
        while (batch := self.next()) is not None:
            yield batch

    def __len__(self) -> int:
        return int(self._call("__len__"))

    @property
    def batch_size(self) -> int | None:
        """Frames of a sample that does not name a number."""
        return self._known["batch_size"]

    @property
    def write_count(self) -> int:
        """As :attr:`ReplayBuffer.write_count`."""
        return int(self.stats()["write_count"])

    def update_tensordict_priority(self, data: td.TensorDictBase) -> int:
        """As :meth:`TensorDictReplayBuffer.update_tensordict_priority`."""
        sent = data.select(self._known["priority_key"], "index", GENERATION, strict=False)
        return int(self._call("update_tensordict_priority", sent))

    def share(self, shared: bool = True) -> RayReplayBuffer:
        """The buffer itself."""
        return self

    __getitem__, __setitem__ = _forwarded("__getitem__"), _forwarded("__setitem__")
    stats, set_beta, update_priority = map(_forwarded, ("stats", "set_beta", "update_priority"))
    empty = _forwarded("empty", forgets=True)
    state_dict, load_state_dict = (
        _forwarded("state_dict"),
        _forwarded("load_state_dict", forgets=True),
    )
    dumps, loads = _forwarded("dumps"), _forwarded("loads", forgets=True)
    save, dump, load = dumps, dumps, loads

    def set_sampler(self, sampler: Sampler | Callable[[], Sampler]) -> None:
        """As :meth:`ReplayBuffer.set_sampler`; returns nothing."""
        self._get(self._remote("tell", "ask", "set_sampler", sampler))
        self._ahead.clear()

    def append_transform(
        self, transform: Callable[[Any], Any], *, invert: bool = False
    ) -> RayReplayBuffer:
        """As :meth:`ReplayBuffer.append_transform`."""
        self._get(self._remote("tell", "ask", "append_transform", transform, invert=invert))
        self._ahead.clear()
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._actor})"


def _handle(
    kind: type[RayReplayBuffer], actor: ActorHandle[Any], known: dict[str, Any], prefetch: int
) -> RayReplayBuffer:
    made = kind.__new__(kind)
    made._begin(actor, known, prefetch)
    return made


class _Packed(tuple[Any]):
    """Frames as one block of memory."""

    __slots__ = ()


def _sent(value: object) -> object:
    """What Ray sends of a value: a TensorDict as one array where that can be."""
    if is_frames(value):
        with contextlib.suppress(TypeError):
            return _Packed((_session.pack(value),))
    return value


def _received(value: object, copy: bool = True) -> object:
    return _session.unpack(value[0], copy=copy) if isinstance(value, _Packed) else value
