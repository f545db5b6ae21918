"""Names that exist only for code written for TorchRL."""

from typing import Any

from windrow._arguments import argument
from windrow.data._storages import ListStorage
from windrow.data._writers import RoundRobinWriter

__all__ = ["LazyStackStorage", "TensorDictRoundRobinWriter"]

#: Classes of TorchRL's own that its package of this name has.
SPECS = frozenset(
    {"Binary", "Bounded", "Categorical", "Composite", "MultiCategorical", "MultiOneHot", "OneHot", "TensorSpec", "Unbounded"}
)


def spec_class(name: str) -> Any:
    """TorchRL's class of specs of this name.

    Raises:
        ImportError: TorchRL is not installed.
    """
    try:
        import torchrl.data
    except ImportError as error:
        raise ImportError(f"{name} is a class of TorchRL: install torchrl to use it") from error
    return getattr(torchrl.data, name)


class TensorDictRoundRobinWriter(RoundRobinWriter):
    """TorchRL's other name for the same writer."""


class LazyStackStorage(ListStorage):
    """TorchRL's other name for the same storage: samples are one dense batch.

    Raises:
        ValueError: ``stack_dim`` is not 0.
    """

    stack_dim: int = argument("0, the dimension of a sample's frames", default=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stack_dim != 0:
            raise ValueError(f"stack_dim must be 0, got {self.stack_dim}")
