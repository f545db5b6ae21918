"""Errors of what runs in the background, on their way to whoever asks next."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Collecting(threading.local):
    """A context for code that collects: in it nobody is told of another collector's failure. It would end the collection that
    is under way, and whoever waits for the other would not hear of it."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *raised: object) -> None:
        self.depth -= 1


COLLECTING = Collecting()


class Failure:
    """What ended a collector in the background before its time: raised once, for the first who asks.

    Args:
        error: what was raised.
        check_outside: raises RuntimeError in threads of the collector itself, which are not told.
    """

    def __init__(self, error: BaseException, check_outside: Callable[[], None]) -> None:
        self._error: BaseException | None = error
        self._check_outside = check_outside
        self._lock = threading.Lock()

    @property
    def is_told(self) -> bool:
        """Whether somebody has heard of it."""
        return self._error is None

    def tell(self) -> None:
        """Raises the error, unless somebody has heard of it, or the calling thread collects."""
        if self._error is None or COLLECTING.depth:
            return
        try:
            self._check_outside()
        except RuntimeError:
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
