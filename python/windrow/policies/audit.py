"""A second look at policies that the engine evaluates: now and then, rows that were delivered are
compared with the user's module.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from tensordict import TensorDictBase

#: The share of a collector's life that may be spent on it.
SHARE = 0.01
#: Calls of one look where each has one observation alone.
ALONE = 4


class Audit:
    """Compares a few rows of some batches, whose observations nobody has chosen for the comparison:
    as many as torch would be called with. It begins with the first batch.

    Args:
        compare: takes observations by key, and the number of rows, or None for one observation
            without a dimension for rows; returns the first row that is wrong and what is, if any.
            See ``windrow.policies.lower``.
        keys: the observations that the policy is given. Batches may lack some.

    Attributes:
        envs: how many environments a worker has, and whether calls have a dimension for them.
    """

    def __init__(
        self,
        compare: Callable[[dict[Any, Any], int | None], tuple[int, str] | None],
        keys: list[Any],
    ) -> None:
        self._compare, self._keys = compare, keys
        self.envs = 1, False
        self._began, self._spent, self._last = time.monotonic(), 0.0, 0.0
        self._is_due = True
        # The program's own generators are left alone.
        self._random = random.Random(0)

    def be_due(self) -> None:
        """Has the next batch be looked at, however little time has passed."""
        self._is_due = True

    def look(self, batch: TensorDictBase) -> None:
        """Compares rows of ``batch``, if that takes no more than a small share of the time so far.

        Raises:
            RuntimeError: the module computes something else than the engine.
        """
        began = time.monotonic()
        is_over = self._spent + self._last > SHARE * (began - self._began)
        if (is_over and not self._is_due) or not batch.numel():
            return
        self._is_due = False
        count, is_batched = self.envs
        for _ in range(1 if is_batched else ALONE):
            self._look(batch, count if is_batched else None)
        self._last = time.monotonic() - began
        self._spent += self._last

    def _look(self, batch: TensorDictBase, rows: int | None) -> None:
        drawn = sorted(self._random.randrange(batch.numel()) for _ in range(rows or 1))
        places = np.unravel_index(drawn, tuple(batch.batch_size))
        found = {key: batch.get(key, None) for key in self._keys}
        given = {key: value[places].clone() for key, value in found.items() if value is not None}
        wrong = self._compare(given, rows)
        if wrong is not None:
            row, what = wrong
            raise RuntimeError(
                f"row {tuple(int(place[row]) for place in places)} of a batch: {what}. The policy reads something that windrow does not see: "
                "pass policy_backend='torch', which calls it, and please report the module"
            )
