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

from windrow._passed_over import Fixed, outside, pass_over
from windrow._windrow import CollectorCore, ReplayBufferCore
from windrow.collectors import _patience
from windrow.collectors._background import Background, write

_ALIVE: weakref.WeakSet[Life] = weakref.WeakSet()

#: Arguments of TorchRL's ``shutdown`` that change nothing here.
_WITHOUT_EFFECT: dict[str, Fixed] = {"close_env": (True, "environments that were made for the collector end with it")}


class EndedByErrors:
    """A context in which an error, which is one of the user's own functions, ends a collector.

    A class, since one made by contextlib would cost as much as a tenth of making a batch.
    """

    def __init__(self, collector: Life) -> None:
        self._collector = collector

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        if not isinstance(error, Exception):
            return
        self._collector.shutdown(raise_on_error=False)
        if isinstance(error, StopIteration):
            # It would pass for the end of the batches.
            name = type(self._collector).__name__
            raise RuntimeError(f"a function that was given to {name} raised StopIteration") from error


class Life(Iterator[Any]):
    """Collection in the background, pauses, and the end."""

    _core: CollectorCore
    _replay_buffer: Any
    _background: Background | None
    _paused: bool
    _lock: threading.RLock
    _taken: list[Any]
    _ended: bool = False
    _number: int | None = None

    def _begin(self) -> None:
        """Takes note of a collector that is to be ended before the interpreter is."""
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
        self._core.check_outside()
        if self.is_running():
            raise RuntimeError("the collector was started already")
        self._background = Background(self, self._core, self._replay_buffer)
        self._background.start()

    def is_running(self) -> bool:
        """Whether a thread collects into the replay buffer. What has ended it is raised by the next call, not by this one."""
        return self._background is not None and self._background.is_alive()

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
        pass_over("shutdown", {"close_env": close_env}, _WITHOUT_EFFECT)
        if timeout is None and _patience.is_interrupted():
            if not self._leave(_patience.IMPATIENCE):
                warnings.warn(_patience.left_behind(type(self).__name__), RuntimeWarning, stacklevel=outside())
            return
        try:
            self._core.check_outside()
            self._ended = True
            if self._background is not None:
                self._background.stop(timeout)
            self._core.shutdown()
            self._taken.clear()
            if raise_on_error:
                self._raise_background()
        except Exception:
            if raise_on_error:
                raise
        finally:
            if not raise_on_error and self._background is not None and self._background.failure is not None:
                self._background.failure.silence()

    def _leave(self, seconds: float) -> bool:
        """Ends collection where nobody waits to be told: whether that was through within ``seconds``. Errors that nobody has
        seen are shown as those of threads are."""
        if not self._core.belongs_here():
            return True
        deadline = time.monotonic() + seconds
        self._ended, ended = True, True
        background = self._background
        if background is not None:
            try:
                background.stop(seconds)
            except TimeoutError:
                ended = False
            failure = background.failure
            error = None if failure is None else failure.silence()
            if error is not None:
                told = (type(error), error, error.__traceback__, background._thread)
                threading.excepthook(threading.ExceptHookArgs(told))
        # Where others have used the time up, what comes back at once is still given that.
        ended &= self._core.leave(max(deadline - time.monotonic(), 0.1))
        self._taken.clear()
        return ended

    @contextlib.contextmanager
    def pause(self) -> Iterator[Self]:
        """Workers finish what they are at and start nothing in this context, where no batch can be asked for. After
        :meth:`start`, the batch that is under way is written before, and nothing is written in this context.

        Raises:
            RuntimeError: it is paused already; the replay buffer has kept a write waiting for long; a hook of the background
                asks, which would wait for itself.
        """
        self._core.check_outside()
        self._surface()
        with self._background_held():
            self._core.pause()
            self._paused = True
            try:
                yield self
            finally:
                self._paused = False
                self._core.resume()

    @contextlib.contextmanager
    def _background_held(self) -> Iterator[None]:
        background = self._background
        if background is None:
            yield
            return
        if background.is_this_thread():
            raise RuntimeError("the thread that collects in the background cannot pause the collector")
        background.hold()
        try:
            # It may have failed at what it was at.
            self._raise_background()
            yield
        finally:
            background.release()

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
        background = self._background
        if background is not None and background.failure is not None:
            background.failure.tell()

    def _is_in_background(self) -> bool:
        """Whether the thread of :meth:`start` asks."""
        return self._background is not None and self._background.is_this_thread()

    def _write(self, batch: Any) -> None:
        """Writes a batch to the replay buffer. In the background that waits as long as it takes."""
        background = self._background
        if background is not None and background.is_this_thread():
            background.write(batch, self._number_there())
        else:
            write(self._replay_buffer, batch, self._number_there())

    def _number_there(self) -> int | None:
        """What a replay buffer of windrow tells this collector's trajectories from those of others by."""
        if self._number is None:
            core = getattr(self._replay_buffer, "_core", None)
            if isinstance(core, ReplayBufferCore):
                self._number = core.collector()
        return self._number


@atexit.register
def _end_all() -> None:
    """Ends what is still alive: threads that need the interpreter must be through before it is."""
    deadline = time.monotonic() + _patience.at_exit()
    for collector in list(_ALIVE):
        collector._leave(max(deadline - time.monotonic(), 0.0))
