from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from windrow._failure import Failure
from windrow._windrow import CollectorCore, ReplayBufferCore

#: Seconds for which a pause waits until a write is done.
_PATIENCE = 5.0


class Background:
    """A thread that iterates over a collector, whose batches go to its replay buffer.

    Attributes:
        failure: what ended the thread before its time.
    """

    def __init__(self, collector: Iterator[Any], core: CollectorCore, buffer: Any) -> None:
        self.failure: Failure | None = None
        self._collector = collector
        self._core = core
        self._buffer = buffer
        # Before the thread runs, so that who samples from now on waits for it.
        self._writer = _Writer(buffer)
        self._writing: float | None = None
        self._stopped = threading.Event()
        self._gate = threading.Condition()
        self._closed = False
        self._stands = False
        self._thread = threading.Thread(target=self._run, name="windrow-background", daemon=True)

    def start(self) -> None:
        """Begins to collect."""
        self._thread.start()

    def _run(self) -> None:
        try:
            while self._passes():
                next(self._collector)
                self._writer.warn_of_haste()
        except StopIteration:
            pass
        except BaseException as error:
            # Whoever ends the thread may have given a write up.
            if not (self._stopped.is_set() and type(error) is RuntimeError):
                self.failure = Failure(error, self._core.check_outside)
                self._writer.failed(self.failure)
        finally:
            with self._gate:
                self._stands = True
                self._gate.notify_all()
            # Only now, so that a sample that waits for frames finds out why there are none.
            self._writer.detach()

    def _passes(self) -> bool:
        """Waits between two batches while there is a pause; whether there is to be another batch."""
        with self._gate:
            self._stands = True
            self._gate.notify_all()
            self._gate.wait_for(lambda: not self._closed)
            self._stands = False
        return not self._stopped.is_set()

    def write(self, batch: Any, collector: int | None) -> None:
        """Writes a batch of the collector with this number. Waits until samples let it in, or until the thread is to end.

        Raises:
            RuntimeError: the thread is to end.
        """
        self._writing = time.monotonic()
        try:
            write(self._buffer, batch, collector, self._stopped.is_set)
        finally:
            self._writing = None

    def is_alive(self) -> bool:
        """Whether it still collects."""
        return self._thread.is_alive()

    def is_this_thread(self) -> bool:
        """Whether the thread itself asks."""
        return threading.current_thread() is self._thread

    def hold(self) -> None:
        """Lets the thread finish the batch that it is at, and keeps it from the next one.

        Raises:
            RuntimeError: the replay buffer keeps its write waiting.
        """
        asked = time.monotonic()
        with self._gate:
            self._closed = True
            try:
                while not self._gate.wait_for(lambda: self._stands, timeout=0.1):
                    self._check_write(asked)
            except BaseException:
                self.release()
                raise

    def _check_write(self, asked: float) -> None:
        now, since = time.monotonic(), self._writing
        waited = self._core.write_waits() if since is None else now - since
        if waited is not None and min(waited, now - asked) > _PATIENCE:
            raise RuntimeError(
                f"the replay buffer has kept a write waiting for {waited:.1f} s: its limiter waits for samples to be drawn"
            )

    def release(self) -> None:
        """Lets the thread go on."""
        with self._gate:
            self._closed = False
            self._gate.notify_all()

    def stop(self, timeout: Any) -> None:
        """Cuts the batch that it is at short, and does not let it wait for samples that would let it write.

        Raises:
            TimeoutError: it did not within ``timeout`` seconds.
        """
        if self.is_this_thread():
            return
        self._stopped.set()
        self._core.give_up()
        self._core.cut(True)
        self.release()
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"collection in the background did not end within {timeout} s")


def write(buffer: Any, batch: Any, collector: int | None, given_up: Callable[[], bool] | None = None) -> None:
    """Writes a batch to a buffer: one of windrow, to which the collector has this number, or any other."""
    if collector is None:
        buffer.extend(batch)
    else:
        buffer._extend_for(collector, batch, given_up)


class _Writer:
    """Lets samples of a buffer of windrow wait for a thread, and calls of it hear of the thread's failure; other buffers do
    neither."""

    def __init__(self, buffer: Any) -> None:
        core = getattr(buffer, "_core", None)
        self._core = core if isinstance(core, ReplayBufferCore) else None
        self._buffer = buffer
        self._id = 0 if self._core is None else self._core.attach()
        self._warned = False

    def warn_of_haste(self) -> None:
        """Warns, once, where all of a buffer was overwritten and nothing sampled meanwhile."""
        if self._core is None or self._warned:
            return
        stats = self._core.stats()
        self._warned = stats["overwritten"] >= stats["capacity"]
        if self._warned:
            warnings.warn(
                f"the {stats['capacity']} frames of the replay buffer were all overwritten since the last sample: start() does "
                "not wait for the learner. Give the buffer a limiter, such as RateLimiter.sample_to_insert_ratio, or collect by "
                "iterating",
                stacklevel=2,
            )

    def failed(self, failure: Failure) -> None:
        if self._core is not None:
            self._buffer._failures.append(failure)

    def detach(self) -> None:
        if self._core is not None:
            self._core.detach(self._id)
