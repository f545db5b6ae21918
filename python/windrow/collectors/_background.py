from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

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
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="windrow-background", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for _ in self._collector:
                if self._stopped.is_set():
                    return
        except BaseException as error:
            if not self._stopped.is_set():
                self.error = error

    def is_alive(self) -> bool:
        """Whether it still collects."""
        return self._thread.is_alive()

    def is_this_thread(self) -> bool:
        """Whether the thread itself asks."""
        return threading.current_thread() is self._thread

    def stop(self, timeout: Any) -> None:
        """Lets it finish the batch that it is at.

        Raises:
            TimeoutError: it did not within ``timeout`` seconds.
        """
        self._stopped.set()
        if self.is_this_thread():
            return
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"collection in the background did not end within {timeout} s")
