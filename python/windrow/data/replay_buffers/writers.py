"""Which rows of a buffer frames are written to."""

from windrow.data._writers import RoundRobinWriter, TensorDictMaxValueWriter, TensorDictRoundRobinWriter

__all__ = ["RoundRobinWriter", "TensorDictMaxValueWriter", "TensorDictRoundRobinWriter"]
