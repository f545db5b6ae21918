"""Errors of what runs in the background, on their way to whoever asks next."""

from __future__ import annotations

import threading

from windrow._windrow import CollectorCore, collects


class Failure:
    """What ended a collector in the background before its time: raised once, for the first who asks.

    Args:
        error: what was raised.
        core: the collector, whose own threads are not told.
    """

    def __init__(self, error: BaseException, core: CollectorCore) -> None:
        self._error: BaseException | None = error
        self._core = core
        self._lock = threading.Lock()

    @property
    def is_told(self) -> bool:
        """Whether somebody has heard of it."""
        return self._error is None

    def tell(self) -> None:
        """Raises the error, unless somebody has heard of it, or the calling thread collects: that would end the collection
        that is under way, and whoever waits for the other would not hear of it."""
        if self._error is None or collects() or self._core.is_within():
            return
        error = self.silence()
        if error is not None:
            try:
                raise error
            finally:
                # The traceback refers to this call, which is not to refer to it.
                del error

    def silence(self) -> BaseException | None:
        """Takes the error away, so that nobody is told any more."""
        with self._lock:
            error, self._error = self._error, None
        return error
