"""What the transforms of TorchRL's environments gather, in memory that several environments share,
also in several processes.
"""

from __future__ import annotations

import mmap
import os
import pickle
import tempfile
import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping
from multiprocessing.sharedctypes import Synchronized, synchronized
from multiprocessing.synchronize import Lock, RLock
from typing import TYPE_CHECKING, Any

from windrow._lazy import torch

if TYPE_CHECKING:
    from tensordict import TensorDictBase
    from torchrl.envs import EnvBase

Path = tuple[Any, ...]

#: The memory that the state of an environment lies in.
_OF: weakref.WeakKeyDictionary[Any, SharedState] = weakref.WeakKeyDictionary()
#: At the start of the memory: what tells it from any other file, and the length of the description
#: that follows.
_TOKEN, _LENGTH = 16, 8
_LINE = 64


def share_loaded(env: EnvBase) -> None:
    """Shares the state that ``env`` has loaded with all that shared its state before."""
    shared = _OF.get(env)
    if shared is not None:
        shared.give(env, adopt=False)


class SharedState:
    """The state of the environments that one function makes: tensors, and numbers and locks of
    ``multiprocessing``.

    It lies in a file without a name, which another process opens by its number in this one. The
    first environment settles what is in it. One lock, that of the file, takes the place of all
    locks in the environments.
    """

    #: Where the file is to be opened: a process, and the number of the file there. None once it is
    #: open here.
    _place: tuple[int, int] | None

    def __init__(self) -> None:
        self._token = os.urandom(_TOKEN)
        self._use(
            os.memfd_create("windrow-state")
            if hasattr(os, "memfd_create")
            else os.dup(tempfile.TemporaryFile().fileno())
        )
        os.pwrite(self._file, self._token, 0)

    def __getstate__(self) -> tuple[tuple[int, int], bytes]:
        return self._place or (os.getpid(), self._file), self._token

    def __setstate__(self, state: tuple[tuple[int, int], bytes]) -> None:
        self._place, self._token = state

    def _use(self, file: int) -> None:
        self._place = None
        self._file = file
        self._lock = FileLock(file)
        self._known: dict[str, Any] | None = None
        weakref.finalize(self, os.close, file)

    def _open(self) -> None:
        """Opens the file of another process."""
        if self._place is None:
            return
        process, number = self._place
        try:
            file = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise _refused(f"the memory of process {process} cannot be opened: {error}") from error
        if os.pread(file, _TOKEN, 0) != self._token:
            os.close(file)
            raise _refused(f"the creator in process {process} was freed")
        self._use(file)

    def give(self, env: EnvBase, *, adopt: bool = True) -> None:
        """Makes ``env`` use the shared state from now on, after it has loaded it; without
        ``adopt``, or where there is none yet, its own state becomes the shared one.

        Raises:
            RuntimeError: a part of its state cannot be shared.
        """
        self._open()
        with self._lock:
            length = int.from_bytes(os.pread(self._file, _LENGTH, _TOKEN), "little")
            is_first = length == 0
            if is_first:
                # Transforms have their state with the first step.
                env.rand_step(env.reset())
                length = self._settle(env)
            known = self._described(length)
            if adopt and not is_first:
                with warnings.catch_warnings():
                    # TorchRL warns that the state is not shared. It is going to be.
                    warnings.simplefilter("ignore")
                    try:
                        env.load_state_dict(self._values(known), strict=False)
                    except Exception as error:
                        raise _refused(
                            f"{type(env).__name__} does not take that of the first: {error}"
                        ) from error
            self._share_tensors(env, known, adopt and not is_first)
            self._share_numbers(env, known, adopt and not is_first)
            if is_first:
                # Whole from here on, even if this process dies.
                os.pwrite(self._file, length.to_bytes(_LENGTH, "little"), _TOKEN)
        _OF[env] = self

    def _described(self, length: int) -> dict[str, Any]:
        """What is in the memory, by a description of ``length`` bytes."""
        if self._known is None:
            self._known = pickle.loads(os.pread(self._file, length, _TOKEN + _LENGTH))
            self._memory = mmap.mmap(self._file, 0)
            self._begin = -(-(_TOKEN + _LENGTH + length) // _LINE) * _LINE
        return self._known

    def _settle(self, env: EnvBase) -> int:
        """Makes room for the state of ``env``, and describes it there; how many bytes that
        takes.
        """
        state = env.state_dict()
        for path, value in _tensors(state):
            if value.device.type != "cpu":
                raise _refused(
                    f"{_named(path)} of {type(env).__name__} is on {value.device}, expected the CPU"
                )
        tensors = {path: (value.dtype, tuple(value.shape)) for path, value in _tensors(state)}
        numbers = {
            path: type(value.get_obj())
            for path, *_, value in _synchronized(env)
            if isinstance(value, Synchronized)
        }
        described = pickle.dumps({"state": state, "tensors": tensors, "numbers": numbers})
        size = _TOKEN + _LENGTH + len(described) + _LINE
        size += sum(value.nbytes + _LINE for _, value in _tensors(state)) + len(numbers) * _LINE
        os.ftruncate(self._file, size)
        os.pwrite(self._file, described, _TOKEN + _LENGTH)
        self._known = None
        return len(described)

    def _shared(self, known: dict[str, Any]) -> tuple[dict[Path, torch.Tensor], dict[Path, Any]]:
        """The tensors and numbers in the memory."""
        at, tensors, numbers = self._begin, {}, {}
        for path, (dtype, shape) in known["tensors"].items():
            count = torch.Size(shape).numel()
            tensors[path] = (
                torch.frombuffer(self._memory, dtype=dtype, count=count, offset=at).reshape(shape)
                if count
                else None
            )
            at += -(-count * dtype.itemsize // _LINE) * _LINE
        for path, kind in known["numbers"].items():
            numbers[path] = kind.from_buffer(self._memory, at)
            at += _LINE
        return {path: tensor for path, tensor in tensors.items() if tensor is not None}, numbers

    def _values(self, known: dict[str, Any]) -> dict[str, Any]:
        """A copy of the shared state, in the form of a ``state_dict``."""
        state, (shared, _) = pickle.loads(pickle.dumps(known["state"])), self._shared(known)
        for path, value in _tensors(state):
            if path in shared:
                value.copy_(shared[path])
        return state

    def _share_tensors(self, env: EnvBase, known: dict[str, Any], adopt: bool) -> None:
        shared, _ = self._shared(known)
        own = dict(_tensors(env.state_dict(keep_vars=True)))
        described = {path: (value.dtype, tuple(value.shape)) for path, value in own.items()}
        for path in known["tensors"].keys() | described.keys():
            first, got = known["tensors"].get(path), described.get(path)
            if first != got:
                raise _refused(
                    f"{_named(path)} of {type(env).__name__} was {first} in the first environment, got {got}"
                )
        for path, value in shared.items():
            if not adopt:
                value.copy_(own[path].detach())
            own[path].data = value
        for path, found in _tensors(env.state_dict()):
            if path in shared and found.data_ptr() != shared[path].data_ptr():
                raise _refused(
                    f"{type(env).__name__} gives a copy of {_named(path)} in its state_dict"
                )

    def _share_numbers(self, env: EnvBase, known: dict[str, Any], adopt: bool) -> None:
        _, shared = self._shared(known)
        for path, owner, name, value in list(_synchronized(env)):
            if isinstance(value, (Lock, RLock, FileLock)):
                setattr(owner, name, self._lock)
            elif path in shared:
                if not adopt:
                    shared[path].value = value.value
                setattr(owner, name, synchronized(shared[path], self._lock))  # type: ignore[call-overload]


class FileLock:
    """A lock of all processes that have opened a file, with the methods of those of
    ``multiprocessing``. A thread may acquire it several times. The system releases it where a
    process dies.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._threads = threading.RLock()
        self._depth = 0

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Acquires the lock; returns whether it did. ``timeout`` bounds the wait for threads of
        this process alone.
        """
        import fcntl

        if not self._threads.acquire(
            block, -1 if timeout is None or not block else max(timeout, 0)
        ):
            return False
        try:
            if self._depth == 0:
                fcntl.flock(self._file, fcntl.LOCK_EX | (0 if block else fcntl.LOCK_NB))
        except BaseException as error:
            self._threads.release()
            if isinstance(error, BlockingIOError):
                return False
            raise
        self._depth += 1
        return True

    def release(self) -> None:
        """Releases the lock."""
        import fcntl

        self._depth -= 1
        if self._depth == 0:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._threads.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def _refused(why: str) -> RuntimeError:
    return RuntimeError(
        f"EnvCreator(share_memory=True) cannot share the state of environments: {why}. Choose share_memory=False"
    )


def _named(path: Path) -> str:
    return ".".join(map(str, path))


def _tensors(
    state: Mapping[str, Any] | TensorDictBase, path: Path = ()
) -> Iterator[tuple[Path, torch.Tensor]]:
    """The tensors in a ``state_dict``, by their places in it."""
    for name, value in state.items():
        if isinstance(value, Mapping) or hasattr(value, "batch_size"):
            yield from _tensors(value, (*path, name))
        elif isinstance(value, torch.Tensor):
            yield (*path, name), value


def _synchronized(env: torch.nn.Module, path: Path = ()) -> Iterator[tuple[Path, Any, str, Any]]:
    """Numbers and locks of ``multiprocessing`` in ``env``, its transforms and the environments in
    it: a place, its owner, its name there.
    """
    for name, value in vars(env).items():
        if isinstance(value, (Synchronized, Lock, RLock, FileLock)):
            yield (*path, name), env, name, value
    for name, part in env.named_children():
        yield from _synchronized(part, (*path, name))
