"""How collectors, evaluators and servers end: with their context, with the last reference to them,
or before the interpreter does.
"""

from __future__ import annotations

import atexit
import sys
import time
import weakref
from types import TracebackType
from typing import Any, NoReturn, Self

from windrow._warnings import warn
from windrow._windrow import (
    IMPATIENCE,
    PATIENCE,
    CollectorCore,
    EvaluatorCore,
    RemoteServerCore,
    ServerCore,
    announce_exit,
)

#: What has to end before the interpreter does.
ALIVE: weakref.WeakSet[Any] = weakref.WeakSet()


class Ending:
    """Owns threads of the engine, which end with it."""

    _core: CollectorCore | EvaluatorCore | RemoteServerCore | ServerCore

    def shutdown(self) -> None:
        """Ends the threads, and raises errors that no call has raised."""
        raise NotImplementedError

    def _leave(self, seconds: float) -> bool:
        """Ends the threads, and shows errors that no call has raised. Returns whether all threads
        ended within ``seconds``.
        """
        raise NotImplementedError

    def _end_with(self, error: BaseException) -> None:
        """Ends the threads while ``error`` leaves the context. It stays the error that is
        raised.
        """
        raise NotImplementedError

    def _leave_if_interrupted(self) -> bool:
        """Ends the threads at once if the caller is handling ``KeyboardInterrupt``, in an
        ``except`` or ``finally``, and warns of a thread that is still busy. Returns whether the
        caller is handling one.
        """
        if not isinstance(sys.exc_info()[1], KeyboardInterrupt):
            return False
        if not self._leave(IMPATIENCE):
            warn(self._left_behind())
        return True

    def _left_behind(self) -> str:
        return (
            f"{type(self).__name__} was left with a step of its environment, or a call of its policy, that has not returned: its "
            "thread ends when it does"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.shutdown()
        elif not isinstance(error, KeyboardInterrupt):
            self._end_with(error)
        elif not self._leave(IMPATIENCE):
            error.add_note(self._left_behind())

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} runs environments, and can be neither copied nor pickled: make another one, which goes "
            "on from its state_dict(), or pass on a function that makes it"
        )

    def __del__(self) -> None:
        # Before the garbage collector takes apart environments and policies that refer to this
        # object. One that could not be built has no core.
        core = getattr(self, "_core", None)
        if core is not None:
            core.finalize()


@atexit.register
def _end_all() -> None:
    """Ends all of them: threads that need the interpreter must end before it does."""
    announce_exit()
    was_interrupted = isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)
    deadline = time.monotonic() + (IMPATIENCE if was_interrupted else PATIENCE)
    for one in list(ALIVE):
        one._leave(max(deadline - time.monotonic(), 0.1))
