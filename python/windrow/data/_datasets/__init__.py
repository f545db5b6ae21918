"""Data sets on disk: sinks that write whole episodes, and what reads them back.

A sink takes batches as a replay buffer does: by hand, or as the ``replay_buffer`` of a collector.
``_episodes`` cuts them into episodes, ``_folder`` makes files visible when they are whole, and the
module of a format writes and reads its files.
"""

from windrow.data._datasets._lerobot import LEROBOT, LeRobotSink
from windrow.data._datasets._minari import MINARI, MinariSink
from windrow.data._datasets._parquet import PARQUET, ParquetSink
from windrow.data._datasets._safetensors import SAFETENSORS, SafetensorsSink

__all__ = ["LeRobotSink", "MinariSink", "ParquetSink", "SafetensorsSink"]

#: The formats that buffers read. Those whose folders have files of another one come first.
FORMATS = (LEROBOT, MINARI, PARQUET, SAFETENSORS)
