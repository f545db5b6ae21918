"""Losses of a vector's environments: their number, their errors, and the seeds of the environments
that replace them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from windrow._arguments import replaces
from windrow._windrow import WorkerError

#: The key of ``info`` under which a lost environment has the reason.
LOST = "lost"


Known = tuple[int, list[int | None], list[int]]
"""Of a worker: its losses, and of each of its environments the seed that it was given last and the
episodes that have begun since.
"""

#: Checks ``on_loss`` as vectors take it.
checked = replaces("a vector keeps its number of environments")


class Losses:
    """Counts losses of environments, whose numbers begin with ``first``. Each worker has ``each``
    of them.

    Attributes:
        budget: the number of losses that each worker may have; None if the first is an error.
    """

    def __init__(
        self, on_loss: Literal["raise"] | int, num_envs: int, each: int, first: int = 0
    ) -> None:
        self.budget = None if on_loss == "raise" else on_loss
        self._first, self._each = first, each
        #: The number of losses of each worker.
        self._counts = [0] * (num_envs // each)
        #: The last seed of each environment, and the number of episodes that have begun since.
        self._seeds: list[int | None] = [None] * num_envs
        self._episodes = np.zeros(num_envs, np.int64)

    def begin(self, envs: Sequence[int], seeds: Sequence[int | None]) -> None:
        """Notes that a reset begins episodes in ``envs``, with ``seeds``; None is no new seed."""
        for env, seed in zip(envs, seeds, strict=True):
            self._episodes[env] += 1
            if seed is not None:
                self._seeds[env], self._episodes[env] = seed, 0

    def end(self, envs: Any, ended: Any) -> None:
        """Notes which of ``envs`` have ended an episode, as the flags ``ended`` say."""
        self._episodes[envs] += ended

    def left(self, worker: int) -> int:
        """The number of losses that ``worker`` may still have."""
        return 0 if self.budget is None else self.budget - self._counts[worker]

    def replace(self, worker: int, envs: Sequence[int]) -> list[int | None]:
        """Counts a loss of ``worker``, which ends the episodes of ``envs``: seeds for the new
        environments in their places, of the seed that each was given, its number and its episode.
        """
        self._counts[worker] += 1
        seeds = [self._new_seed(env) for env in envs]
        self.end(envs, True)
        return seeds

    def of(self, worker: int) -> Known | None:
        """All that a process in the place of ``worker`` has to know; None without replacement."""
        if self.budget is None:
            return None
        own = slice(worker * self._each, (worker + 1) * self._each)
        return self._counts[worker], self._seeds[own], self._episodes[own].tolist()

    def take_over(self, worker: int, known: Known | None) -> None:
        """Goes on where another has counted, of which :meth:`of` says this."""
        if known is not None:
            own = slice(worker * self._each, (worker + 1) * self._each)
            self._counts[worker], self._seeds[own], self._episodes[own] = known

    def _new_seed(self, env: int) -> int | None:
        if (seed := self._seeds[env]) is None:
            return None
        drawn = np.random.SeedSequence(
            (seed, self._first + env, int(self._episodes[env]) + 1)
        ).generate_state(1)
        return int(drawn[0])

    def error(self, worker: int, reason: str) -> WorkerError:
        """The error that says that ``worker`` is lost, for this ``reason``."""
        first = self._first + worker * self._each
        envs = (
            f"environment {first}"
            if self._each == 1
            else f"environments {first} to {first + self._each - 1}"
        )
        is_last = self.budget and self.left(worker) <= 0
        after = f"; it was replaced {self.budget} times, as on_loss says" if is_last else ""
        error = WorkerError(f"worker {worker}, {envs}: {reason}{after}")
        # Several environments are in the message alone.
        vars(error).update(
            worker=worker, env=first if self._each == 1 else None, episode=None, step=None
        )
        return error
