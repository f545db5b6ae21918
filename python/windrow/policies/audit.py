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
#: Rows of one look.
ROWS = 16


class Audit:
    """Compares a few rows of some batches, whose observations nobody has chosen for the comparison.

    Args:
        compare: takes observations by key, and returns the first row that is wrong and what is, if
            any; see ``windrow.policies.lower``.
        keys: the observations that the policy reads.
    """

    def __init__(
        self, compare: Callable[[dict[Any, Any]], tuple[int, str] | None], keys: list[Any]
    ) -> None:
        self._compare, self._keys = compare, keys
        self._began, self._spent, self._last = time.monotonic(), 0.0, 0.002
        # The program's own generators are left alone.
        self._random = random.Random(0)

    def look(self, batch: TensorDictBase) -> None:
        """Compares rows of ``batch``, if that takes no more than a small share of the time so far.

        Raises:
            RuntimeError: the module computes something else than the engine.
        """
        began = time.monotonic()
        if self._spent + self._last > SHARE * (began - self._began) or not batch.numel():
            return
        found = [batch.get(key, None) for key in self._keys]
        if any(value is None for value in found):
            return
        rows = sorted(self._random.randrange(batch.numel()) for _ in range(ROWS))
        places = np.unravel_index(rows, tuple(batch.batch_size))
        given = {key: value[places].clone() for key, value in zip(self._keys, found)}
        wrong = self._compare(given)
        self._last = time.monotonic() - began
        self._spent += self._last
        if wrong is not None:
            row, what = wrong
            raise RuntimeError(
                f"row {tuple(int(place[row]) for place in places)} of a batch: {what}. The policy reads something that windrow does not see: "
                "pass policy_backend='torch', which calls it, and please report the module"
            )
