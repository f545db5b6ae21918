"""Data sets on disk: sinks that write whole episodes, and what reads them back.

A sink takes batches as a replay buffer does: by hand, or as the ``replay_buffer`` of a collector.
``_episodes`` cuts them into episodes, ``_folder`` makes files visible when they are whole, and the
module of a format writes and reads its files.
"""

from windrow.data._datasets._lerobot import LeRobotSink
from windrow.data._datasets._minari import MinariSink
from windrow.data._datasets._parquet import ParquetSink
from windrow.data._datasets._safetensors import SafetensorsSink

__all__ = ["LeRobotSink", "MinariSink", "ParquetSink", "SafetensorsSink"]
