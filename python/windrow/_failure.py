"""Errors of the background, kept for the next call."""

from __future__ import annotations

import threading

from windrow._windrow import CollectorCore, collects


class Failure:
    """The error that ended a collector in the background. The next call on the collector, or on its
    replay buffer, raises it.

    Args:
        error: the error.
        core: the collector; calls in its own threads do not raise the error.
    """

    def __init__(self, error: BaseException, core: CollectorCore) -> None:
        self._error: BaseException | None = error
        self._core = core
        self._lock = threading.Lock()

    @property
    def is_told(self) -> bool:
        """Whether a call has raised the error."""
        return self._error is None

    def tell(self) -> None:
        """Raises the error, unless another call has, or the calling thread collects: the error
        would end its own collection, and the user would not see it.
        """
        if self._error is None or collects() or self._core.is_within():
            return
        error = self.silence()
        if error is not None:
            try:
                raise error
            finally:
                # The traceback refers to this frame, which must not refer to it.
                del error

    def silence(self) -> BaseException | None:
        """Takes the error away, so that no call raises it any more."""
        with self._lock:
            error, self._error = self._error, None
        return error
