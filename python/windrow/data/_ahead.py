"""Samples that are asked for before a learner needs them."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, Generic, TypeVar
from weakref import WeakMethod

from windrow._lazy import torch
from windrow.data._content import is_frames

T = TypeVar("T")

#: Bytes of a sample that takes longer to copy than a thread takes to hand it over.
_WORTH_A_THREAD = 2**20


class Ahead(Generic[T]):
    """Requests whose answers nobody has taken yet, the oldest first: ``count`` of them after each
    :meth:`next`. Threads may share it.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._asked: deque[T] = deque()
        self._lock = threading.Lock()

    def next(self, ask: Callable[[], T]) -> T:
        """Adds requests, which ``ask`` makes, and takes the oldest."""
        with self._lock:
            while len(self._asked) <= self.count:
                self._asked.append(ask())
            return self._asked.popleft()

    def pop(self) -> T | None:
        """Takes the oldest, if there is one, and adds none."""
        with self._lock:
            return self._asked.popleft() if self._asked else None

    def clear(self) -> list[T]:
        """Removes all requests, and returns them."""
        with self._lock:
            asked, self._asked = list(self._asked), deque()
        return asked


class Prefetch(Generic[T]):
    """Calls ``draw`` in a thread of its own, ``count`` times more than results were taken. Where
    there is nothing to draw, it returns None.

    It begins once a sample has shown that a learner gains by it.
    """

    def __init__(self, draw: WeakMethod[Callable[[], T | None]], count: int) -> None:
        self._draw, self._count = draw, count
        self._pays: bool | None = None
        self._begin()

    def _begin(self) -> None:
        # One thread: results have one order, and draws follow a seed.
        self._pool = ThreadPoolExecutor(1, "windrow-prefetch")
        self._ahead: Ahead[Future[T | None]] = Ahead(self._count)
        self._process, self._thread = os.getpid(), 0

    def _begin_in_fork(self) -> None:
        """A fork has no threads of its parent, whose results would never come."""
        if os.getpid() != self._process:
            self._begin()

    def _ask(self) -> Future[T | None]:
        return self._pool.submit(self._drawn, _stream())

    def _drawn(self, stream: Any) -> T | None:
        self._thread = threading.get_ident()
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            draw = self._draw()
            return None if draw is None else draw()

    def judge(self, sample: Any, takes_more: bool) -> None:
        """Begins after a sample that is large, is no TensorDict, or takes more than to be
        copied.
        """
        if self._pays is None:
            self._pays = takes_more or not is_frames(sample) or sample.bytes() >= _WORTH_A_THREAD

    def _is_here(self) -> bool:
        """Whether ``draw`` is what calls: it would wait for itself."""
        return threading.get_ident() == self._thread

    def next(self) -> T | None:
        """The next result, or its error; None where nothing was drawn."""
        if not self._pays or self._is_here():
            return None
        self._begin_in_fork()
        result = self._ahead.next(self._ask).result()
        while result is None and (future := self._ahead.pop()) is not None:
            result = future.result()
        return result

    def clear(self) -> None:
        """Forgets the results that nobody has taken, and waits for the call of ``draw`` that is
        under way.
        """
        self._pays = None
        self._begin_in_fork()
        asked = self._ahead.clear()
        for future in asked:
            future.cancel()
        if asked and not self._is_here():
            # The thread does this when it is free.
            self._pool.submit(int).result()

    def close(self) -> None:
        self.clear()
        self._pool.shutdown(wait=False)


def _stream() -> Any:
    """The stream of the calling thread, and with it its device, where a program uses a GPU: what is
    drawn is used there.
    """
    return torch.cuda.current_stream() if torch.cuda.is_initialized() else None
