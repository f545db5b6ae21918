"""Which rows of a buffer frames are written to."""

from windrow.data._torchrl_compat import TensorDictRoundRobinWriter as TensorDictRoundRobinWriter
from windrow.data._writers import *
