from __future__ import annotations

from typing import Any

from windrow.data._samplers import Key, names_of


class RoundRobinWriter:
    """One row after another; the oldest frames are overwritten when all are full."""

    def _parts(self) -> dict[str, Any] | None:
        return None


class TensorDictRoundRobinWriter(RoundRobinWriter):
    """The same under another name."""


class TensorDictMaxValueWriter:
    """Keeps the frames with the highest values of an entry.

    Args:
        rank_key: the entry; the reward where nothing is said.
        reduction: how several values of one row make one: ``"sum"``, ``"mean"``, ``"max"``, ``"min"`` or ``"median"``.
    """

    def __init__(self, rank_key: Key | None = None, reduction: str = "sum") -> None:
        self.rank_key: Key = rank_key if rank_key is not None else ("next", "reward")
        self.reduction = reduction

    def _parts(self) -> dict[str, Any] | None:
        return {"key": names_of(self.rank_key), "reduction": self.reduction}
