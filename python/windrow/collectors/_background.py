from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from windrow._windrow import ReplayBufferCore

if TYPE_CHECKING:
    from windrow.collectors._base import BaseCollector


class Background:
    """A thread that iterates over a collector, whose batches go to its replay buffer.

    Attributes:
        error: what ended the thread before its time, until someone has seen it.
    """

    def __init__(self, collector: BaseCollector) -> None:
        self.error: BaseException | None = None
        self._collector = collector
        # Before the thread runs, so that who samples from now on waits for it.
        self._writer = _Writer(collector.replay_buffer)
        self._stopped = False
        self._held = False
        self._collecting = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="windrow-background", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while self._may_go_on():
                next(self._collector)
        except StopIteration:
            pass
        except BaseException as error:
            if not self._stopped:
                self.error = error
        finally:
            self._change(collecting=False)
            self._writer.detach(self.error)

    def _may_go_on(self) -> bool:
        """Waits while it is held; False once it is stopped."""
        self._change(collecting=False)
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or not self._held)
            self._collecting = not self._stopped
            return self._collecting

    def _change(self, **flags: bool) -> None:
        with self._changed:
            for name, flag in flags.items():
                setattr(self, f"_{name}", flag)
            self._changed.notify_all()

    def is_alive(self) -> bool:
        """Whether it still collects."""
        return self._thread.is_alive()

    def is_this_thread(self) -> bool:
        """Whether the thread itself asks."""
        return threading.current_thread() is self._thread

    def hold(self) -> None:
        """Waits until the batch that it is at is written, and keeps it from the next until :meth:`release`."""
        with self._changed:
            self._held = True
            self._changed.wait_for(lambda: not self._collecting)

    def release(self) -> None:
        """Lets it go on."""
        self._change(held=False)

    def stop(self, timeout: Any) -> None:
        """Lets it finish the batch that it is at.

        Raises:
            TimeoutError: it did not within ``timeout`` seconds.
        """
        if self.is_this_thread():
            return
        self._change(stopped=True)
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"collection in the background did not end within {timeout} s")


class _Writer:
    """Lets samples of a buffer of windrow wait for a thread; other buffers do not wait."""

    def __init__(self, buffer: Any) -> None:
        core = getattr(buffer, "_core", None)
        self._core = core if isinstance(core, ReplayBufferCore) else None
        self._id = 0 if self._core is None else self._core.attach()

    def detach(self, error: BaseException | None) -> None:
        if self._core is not None:
            self._core.detach(self._id, None if error is None else f"the collector failed: {error}")
