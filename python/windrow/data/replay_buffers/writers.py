"""Writers. Their classes declare arguments; the engine writes frames."""

from typing import NoReturn

from windrow import _fence
from windrow._arguments import argument, ignored
from windrow.data._part import Key, Part

__all__ = ["RoundRobinWriter", "TensorDictMaxValueWriter", "TensorDictRoundRobinWriter"]


class Writer(Part):
    """Decides which rows frames are written to."""

    compilable: bool = ignored("nothing is compiled", default=False)

    def register_storage(self, storage: object) -> NoReturn:
        """Refuses to be a writer of a buffer that windrow does not make."""
        # TorchRL's ensembles call it first, and would take the parts of windrow's buffers for their
        # own.
        raise TypeError(
            f"expected buffers of {_fence.LIBRARY}.data in an ensemble of TorchRL's, got one of windrow's, with {self!r}: sample each buffer and "
            "torch.stack the samples, or let OfflineToOnlineReplayBuffer mix two"
        )


class RoundRobinWriter(Writer, kind="RoundRobinWriter"):
    """Writes one row after another; the oldest frames are overwritten when all rows are full."""


class TensorDictRoundRobinWriter(RoundRobinWriter):
    """TorchRL's other name for the same writer."""


class TensorDictMaxValueWriter(Writer, kind="TensorDictMaxValueWriter"):
    """Keeps the frames with the highest values of an entry."""

    rank_key: Key | None = argument(
        "the entry; None stands for the reward",
        default=("next", "reward"),
        kw_only=False,
        check=lambda _, key: ("next", "reward") if key is None else key,
    )
    reduction: str = argument(
        'how several values of one row make one: "sum", "mean", "max", "min" or "median"',
        default="sum",
        kw_only=False,
    )
