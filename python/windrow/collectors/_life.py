"""How collectors begin, pause and end."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from typing import Any, Self

from windrow._arguments import outside, warn_ignored
from windrow._failure import Failure
from windrow._windrow import CollectorCore
from windrow.collectors import _patience

_ALIVE: weakref.WeakSet[Life] = weakref.WeakSet()


class Life(Iterator[Any]):
    """Collection in the background, pauses, and the end: what the engine does, and where that is told."""

    _core: CollectorCore
    _replay_buffer: Any
    #: What ended the thread of :meth:`start` before its time.
    _failure: Failure | None = None
    _paused: bool = False
    _ended: bool = False

    def _begin(self) -> None:
        """Lets the engine call the collector's functions, and takes note that it is to be ended before the interpreter is."""
        self._core.serve(self)
        _ALIVE.add(self)

    def start(self) -> None:
        """Collects into the replay buffer in a thread, up to ``total_frames``.

        Collection does not wait for samples: without a limiter that makes it wait, it collects as fast as it can and may overwrite
        frames, or reach its end, before a learner has seen much of them. ``ReplayBuffer(limiter=...)`` with
        :class:`~windrow.data.RateLimiter` ties writes to samples. A warning tells once when a whole buffer was overwritten and
        nothing sampled.

        An error ends the thread. The next call on the collector, or on a replay buffer of windrow, raises it, once; a sample
        that waits for frames raises it at once. What was written before stays in the buffer, which can be used on. An error
        that nobody has heard of is raised by :meth:`shutdown`.

        Raises:
            RuntimeError: there is no replay buffer, or the collector runs already or was shut down.
        """
        self._check_not_ended()
        self._raise_background()
        if self._replay_buffer is None:
            raise RuntimeError("start() collects into a replay buffer: build the collector with replay_buffer=")
        self._core.start()

    def is_running(self) -> bool:
        """Whether a thread collects into the replay buffer. What has ended it is raised by the next call, not by this one."""
        return self._core.is_running()

    def async_shutdown(self, timeout: float | None = None, close_env: bool = True, raise_on_error: bool = True) -> None:
        """Ends what :meth:`start` began, and the collector."""
        self.shutdown(timeout, close_env, raise_on_error)

    def shutdown(self, timeout: float | None = None, close_env: bool = True, raise_on_error: bool = True) -> None:
        """Ends collection and waits for the workers. Batches that are held stay valid. After :meth:`start`, the batch that is
        under way is cut short at its next step, and written.

        While ``KeyboardInterrupt`` is being handled, or leaves a ``with`` statement, it waits for a fraction of a second only: a
        step that does not come back is left behind with its thread, as a warning or a note of the exception says.

        Environments that were made for the collector are closed. An object that was handed over is not: it can be used again.

        Args:
            timeout: seconds to wait for the thread of :meth:`start`; as long as it takes where it is None.
            close_env: environments are closed, or given back, also where this is False; a warning says so.
            raise_on_error: whether an error in the background is raised now, if it was not before; otherwise nobody is told of
                it any more, by the replay buffer neither.
        """
        if not self._core.belongs_here():
            # What belongs to another process is not this one's to end.
            return
        warn_ignored("close_env", close_env, True, "environments that were made for the collector end with it")
        if timeout is None and _patience.is_interrupted():
            if not self._leave(_patience.IMPATIENCE):
                warnings.warn(_patience.left_behind(type(self).__name__), RuntimeWarning, stacklevel=outside())
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
        """Ends collection where nobody waits to be told: whether that was through within ``seconds``. Errors that nobody has
        seen are shown as those of threads are."""
        if not self._core.belongs_here():
            return True
        self._ended = True
        ended = self._core.leave(seconds)
        error = None if self._failure is None else self._failure.silence()
        if error is not None:
            # Only its name is shown.
            thread = threading.Thread(name="windrow-collector")
            told = (type(error), error, error.__traceback__, thread)
            threading.excepthook(threading.ExceptHookArgs(told))
        return ended

    @contextlib.contextmanager
    def pause(self) -> Iterator[Self]:
        """Workers finish what they are at and start nothing in this context, where no batch can be asked for. After
        :meth:`start`, the batch that is under way is written before, and nothing is written in this context.

        Raises:
            RuntimeError: it is paused already; the replay buffer has kept a write waiting for long; a hook of the collector
                asks, which would wait for itself.
        """
        self._surface()
        self._core.pause(_patience.PATIENCE)
        self._paused = True
        try:
            # It may have failed at what it was at.
            self._raise_background()
            yield self
        finally:
            self._paused = False
            self._core.resume()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if isinstance(error, KeyboardInterrupt):
            if not self._leave(_patience.IMPATIENCE):
                error.add_note(_patience.left_behind(type(self).__name__))
            return
        try:
            self.shutdown()
        except Exception as own:
            if error is None:
                raise
            # An error that leaves the context is the one to be seen.
            if own is not error:
                error.add_note(f"{type(self).__name__} had an error of its own: {type(own).__name__}: {own}")

    def __getstate__(self) -> Any:
        raise TypeError(
            f"a {type(self).__name__} runs environments, and can be neither copied nor pickled: make another one, which goes "
            "on from its state_dict(), or pass on a function that makes it"
        )

    def __del__(self) -> None:
        # Before the garbage collector takes environments and policies apart that refer to the collector. There is no core
        # where it could not be built.
        core = getattr(self, "_core", None)
        if core is not None:
            core.finalize()

    def _check_not_ended(self) -> None:
        if self._ended:
            raise RuntimeError("this was shut down; build a new one to go on")

    def _surface(self) -> None:
        """Raises what cannot be asked in a pause, and what went wrong in the background."""
        if self._paused:
            raise RuntimeError("the collector is paused: nothing can be asked of it before the pause is over")
        self._raise_background()

    def _raise_background(self) -> None:
        """Raises what went wrong in the background, if nobody was told yet."""
        if self._failure is not None:
            self._failure.tell()

    def _fail(self, error: BaseException) -> None:
        """Takes note of what has ended the thread of :meth:`start`, for whoever asks the collector or its buffer next."""
        self._failure = Failure(error, self._core)
        failures = getattr(self._replay_buffer, "_failures", None)
        if failures is not None:
            failures.append(self._failure)


@atexit.register
def _end_all() -> None:
    """Ends what is still alive: threads that need the interpreter must be through before it is."""
    deadline = time.monotonic() + _patience.at_exit()
    for collector in list(_ALIVE):
        collector._leave(max(deadline - time.monotonic(), 0.0))
