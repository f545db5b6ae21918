"""Collection in the background, pauses, and the errors of both. The engine does the work."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Self

from windrow._arguments import warn_ignored
from windrow._failure import Failure
from windrow._windrow import PATIENCE, CollectorCore
from windrow.collectors._ending import Ending


class Life(Ending, Iterator[Any]):
    """Starts, pauses and ends collection, and raises errors of the background."""

    _core: CollectorCore
    _replay_buffer: Any
    #: The error that ended the thread of :meth:`start`.
    _failure: Failure | None = None
    _paused: bool = False
    _ended: bool = False

    def start(self) -> None:
        """Collects into the replay buffer in a thread, up to ``total_frames``.

        Collection does not wait for samples: without a limiter it collects as fast as it can, and may overwrite frames, or reach its
        end, before a learner has seen many of them. ``ReplayBuffer(limiter=...)`` with :class:`~windrow.data.RateLimiter` ties
        writes to samples. The collector warns once when a whole buffer was overwritten and nothing sampled.

        Meanwhile you can update weights, seed and reset environments, read statistics and :meth:`pause`, but not ask for batches.

        An error ends the thread. The next call on the collector, or on a replay buffer of windrow, raises the error, once; a
        sample that waits for frames raises it at once. Frames that were written before stay in the buffer, which you can go on
        using. :meth:`shutdown` raises an error that no other call has raised.

        Raises:
            RuntimeError: there is no replay buffer, or the collector was started before or was shut down.
        """
        self._check_not_ended()
        self._raise_background()
        if self._replay_buffer is None:
            raise RuntimeError("start() collects into a replay buffer: build the collector with replay_buffer=")
        self._core.start()

    def is_running(self) -> bool:
        """Whether a thread collects into the replay buffer. The next call raises an error that has ended it; this one does not."""
        return self._core.is_running()

    def async_shutdown(self, timeout: float | None = None, close_env: bool = True, raise_on_error: bool = True) -> None:
        """As :meth:`shutdown`, under the name that goes with :meth:`start`."""
        self.shutdown(timeout, close_env, raise_on_error)

    def shutdown(self, timeout: float | None = None, close_env: bool = True, raise_on_error: bool = True) -> None:
        """Ends collection and waits for the workers. Batches stay valid. After :meth:`start`, the present batch is cut short at its
        next step, and written.

        While ``KeyboardInterrupt`` is being handled, or leaves a ``with`` statement, the shutdown waits for a fraction of a second
        only. It leaves a step that does not return behind with its thread, as a warning or a note of the exception says.

        The shutdown closes environments that were made for the collector, but no environment object that was given to it, which
        can be used again. Called by a function of the collector, such as ``post_collect_hook``, it does not wait, and the present
        batch is the last one.

        Args:
            timeout: seconds to wait for the thread of :meth:`start`; None waits as long as it takes.
            close_env: environments are closed, or given back, also where this is False; a warning says so.
            raise_on_error: raise an error of the background that no call has raised; otherwise no call raises it any more, on the
                replay buffer neither.

        Raises:
            TimeoutError: the thread of :meth:`start` did not end in time.
        """
        if not self._core.belongs_here():
            # Only the process that made a collector ends it.
            return
        warn_ignored("close_env", close_env, True, "environments that were made for the collector end with it")
        if timeout is None and self._leave_if_interrupted():
            return
        try:
            self._core.check_outside()
            self._ended = True
            self._core.shutdown(timeout)
            if raise_on_error:
                self._raise_background()
        except Exception:
            if raise_on_error:
                raise
        finally:
            if not raise_on_error and self._failure is not None:
                self._failure.silence()

    def _leave(self, seconds: float) -> bool:
        if not self._core.belongs_here():
            return True
        self._ended = True
        ended = self._core.leave(seconds)
        error = None if self._failure is None else self._failure.silence()
        if error is not None:
            # The message shows its name only.
            thread = threading.Thread(name="windrow-collector")
            told = (type(error), error, error.__traceback__, thread)
            threading.excepthook(threading.ExceptHookArgs(told))
        return ended

    @contextlib.contextmanager
    def pause(self) -> Iterator[Self]:
        """In this context, workers start nothing, after they have finished their present share, and batches cannot be asked for.
        After :meth:`start`, the present batch is written before the context begins, and nothing is written in it.

        Raises:
            RuntimeError: the collector is paused already; the replay buffer keeps a write waiting for long; a function that the
                collector calls asks for the pause, which would wait for that function.
        """
        self._surface()
        try:
            self._core.pause(PATIENCE)
        finally:
            # The thread of `start` may have failed with its last batch.
            self._raise_background()
        self._paused = True
        try:
            yield self
        finally:
            self._paused = False
            self._core.resume()

    def _end_with(self, error: BaseException) -> None:
        try:
            self.shutdown()
        except Exception as own:
            if own is not error:
                error.add_note(f"{type(self).__name__} had an error of its own: {type(own).__name__}: {own}")

    def _check_not_ended(self) -> None:
        if self._ended:
            raise RuntimeError("this was shut down; build a new one to go on")

    def _surface(self) -> None:
        """Raises an error during a pause, and an error of the background."""
        if self._paused:
            raise RuntimeError("the collector is paused: ask again after the pause")
        self._raise_background()

    @property
    def _asked(self) -> CollectorCore:
        """The engine's collector for calls of users, which first raise an error of the background."""
        self._raise_background()
        return self._core

    def _raise_background(self) -> None:
        """Raises an error of the background that no call has raised."""
        if self._failure is not None:
            self._failure.tell()

    def _fail(self, error: BaseException) -> None:
        """Keeps the error that has ended the thread of :meth:`start` for the next call on the collector or its buffer."""
        self._failure = Failure(error, self._core)
        failures = getattr(self._replay_buffer, "_failures", None)
        if failures is not None:
            failures.append(self._failure)
