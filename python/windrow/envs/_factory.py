"""Functions that make environments and policies in workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeGuard


def is_function(env: object) -> TypeGuard[Callable[..., Any]]:
    """Whether ``env`` makes an environment, and is not one itself."""
    return callable(env) and (isinstance(env, type) or not hasattr(env, "step"))


class Factory:
    """Calls ``function`` to make environments or a policy for one worker, and keeps the last
    ``together`` of them, which step together; with ``first``, only the first that it ever made, not
    its replacements. ``number`` is the worker's.
    """

    #: See :func:`windrow.processes.blame.parts`.
    is_around_a_function = True

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        number: int = 0,
        together: int = 1,
        first: bool = False,
    ) -> None:
        self.number = number
        self.made_together: list[Any] = []
        self._function = function
        self._together = together
        self._first = first
        self._calls = 0

    def __call__(self, **arguments: object) -> Any:
        try:
            made = self._function(**arguments)
        except BaseException:
            # The next call makes the first of a new set.
            self._calls = 0
            raise
        if not self._first and self._calls % self._together == 0:
            self.made_together = []
        if len(self.made_together) < (1 if self._first else self._together):
            self.made_together.append(made)
        self._calls += 1
        return made

    @property
    def makes_random(self) -> bool:
        """Whether it makes random policies, whose actions are then those of the environment's
        space.
        """
        return isinstance(self._function, type) and self._function.__name__ == "RandomPolicy"

    @property
    def made(self) -> Any:
        """The first of what was made last; None before that."""
        return self.made_together[0] if self.made_together else None


class InTurn:
    """Makes the environments of a worker: each call the next one.

    Args:
        makers: functions that make them, or environments that can be made from what they are.
    """

    def __init__(self, makers: list[Any]) -> None:
        self.makers = makers
        self._left: Iterator[Any] = iter(())

    def __call__(self) -> Any:
        make = next(self._left, None)
        if make is None:
            self._left = iter(self.makers)
            make = next(self._left)
        try:
            return make() if callable(make) else make
        except BaseException:
            # All of them are made anew.
            self._left = iter(())
            raise
