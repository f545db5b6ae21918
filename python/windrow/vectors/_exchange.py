"""Vectors that answer for some of their environments while others are still stepping, as EnvPool's
do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from windrow._windrow import VectorCore
from windrow.vectors._base import Notes, VectorEnv


class Fold(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Folds notes of some environments into ``info``, whose arrays have a row for each of these."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs

    def of(self, notes: Notes) -> dict[str, Any]:
        """``info`` of notes, each with the row of its environment."""
        infos: dict[str, Any] = {}
        for row, info in notes:
            infos = self._add_info(infos, info, row)
        return infos


class Exchange(VectorEnv):
    """A vector whose environments can be stepped some at a time: :meth:`send` takes actions for
    some, and :meth:`recv` waits for ``batch_size`` environments, those first that are ready first.
    """

    _core: VectorCore
    #: Environments that one call of :meth:`recv` returns; None where it returns all.
    _batch: int | None = None
    #: Environments that are always together, such as those of a process.
    _each = 1

    def _exchange(self, batch: int | None) -> None:
        """Takes the number of environments that :meth:`recv` waits for.

        Raises:
            ValueError: there are fewer, or some that are always together would be torn apart.
        """
        if batch is not None and (batch > self.num_envs or batch % self._each):
            raise ValueError(
                f"batch_size must be a multiple of {self._each} up to the number of environments, {self.num_envs}, got {batch}"
            )
        self._batch = batch
        #: Environments that have begun, and whose first observations were not received yet.
        self._begun: list[int] = []
        self._first: Any = None

    def async_reset(self, *, seed: int | Sequence[int | None] | None = None) -> None:
        """Begins an episode in each environment. :meth:`recv` returns the first observations, some
        at a time.
        """
        self._needs_batch()
        self._first, _ = self.reset(seed=seed)
        self._begun = list(range(self.num_envs))

    def send(self, actions: Any, env_id: Any) -> None:
        """Has the environments ``env_id`` step by ``actions``, a row for each, and returns at
        once.
        """
        self._needs_batch()
        members = self._members_of(env_id)
        if len(actions) != len(members) * self._each:
            raise ValueError(
                f"expected an action for each of {len(members) * self._each} environments, got {len(actions)}"
            )
        self._core.send(members, (self._rows_of(members, actions),))

    def _rows_of(self, members: list[int], actions: Any) -> object:
        """``actions`` of ``members``, and zeros for the others behind them."""
        given = np.asarray(actions)
        rows = np.zeros((self.num_envs, *given.shape[1:]), given.dtype)
        rows[: len(given)] = given
        return rows

    def recv(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Waits for ``batch_size`` environments: what :meth:`step` returns of them, and their
        numbers as ``info["env_id"]``.
        """
        batch = self._needs_batch()
        if self._begun:
            envs, self._begun = self._begun[:batch], self._begun[batch:]
            none = np.zeros(len(envs), np.bool_)
            return (
                self._rows(self._first, envs),
                np.zeros(len(envs)),
                none,
                none.copy(),
                {"env_id": np.array(envs)},
            )
        members, stepped = self._core.recv(batch // self._each)
        envs = (members[:, None] * self._each + np.arange(self._each)).ravel()
        *returned, info = self._received(envs, stepped)
        return (*returned, {**info, "env_id": envs})

    def _received(self, envs: Any, stepped: Any) -> tuple[Any, ...]:
        """What a step returns of ``envs``, from what the engine returned."""
        raise NotImplementedError

    def _rows(self, seen: Any, envs: Any) -> object:
        """The rows of ``envs`` in observations of all, in arrays of their own."""
        if isinstance(seen, tuple):
            return tuple(self._rows(inner, envs) for inner in seen)
        return (
            {name: self._rows(inner, envs) for name, inner in seen.items()}
            if isinstance(seen, dict)
            else seen[envs]
        )

    def _members_of(self, env_id: Any) -> list[int]:
        """The members that ``env_id`` names, each by all of its environments."""
        envs = np.asarray(env_id).ravel()
        named = envs[:: self._each] // self._each
        members: list[int] = named.tolist()
        are_whole = np.array_equal(
            (named[:, None] * self._each + np.arange(self._each)).ravel(), envs
        )
        if (
            not are_whole
            or min(members, default=0) < 0
            or max(members, default=0) >= self.num_envs // self._each
        ):
            whole = "" if self._each == 1 else f", the {self._each} of a process side by side"
            raise ValueError(
                f"env_id: expected environments from 0 to {self.num_envs - 1}{whole}, got {envs.tolist()}"
            )
        return members

    def _needs_batch(self) -> int:
        if self._batch is None:
            raise RuntimeError(
                "send, recv and async_reset are of vectors that were made with a batch_size"
            )
        return self._batch
