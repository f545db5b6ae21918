"""Writers. Their classes declare arguments; the engine writes frames."""

from typing import ClassVar

from windrow._arguments import argument, ignored
from windrow.data._part import Key, Part

__all__ = ["RoundRobinWriter", "TensorDictMaxValueWriter"]


class Writer(Part):
    """Decides which rows frames are written to."""


class RoundRobinWriter(Writer):
    """Writes one row after another; the oldest frames are overwritten when all rows are full."""

    kind: ClassVar[str] = "RoundRobinWriter"

    compilable: bool = ignored("nothing is compiled", default=False)


class TensorDictMaxValueWriter(Writer):
    """Keeps the frames with the highest values of an entry."""

    kind: ClassVar[str] = "TensorDictMaxValueWriter"

    rank_key: Key | None = argument('the entry; None stands for the reward, ("next", "reward")', default=None, kw_only=False)
    reduction: str = argument(
        'how several values of one row make one: "sum", "mean", "max", "min" or "median"', default="sum", kw_only=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank_key is None:
            object.__setattr__(self, "rank_key", ("next", "reward"))
