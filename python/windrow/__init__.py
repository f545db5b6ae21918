"""Reinforcement-learning data collection: a policy runs in many environments, batches of experience come back.

The modules mirror those of TorchRL: :mod:`windrow.collectors`, :mod:`windrow.envs`, :mod:`windrow.data` and
:mod:`windrow.modules`. Nothing here imports torch, tensordict or gymnasium before it is used.
"""

from windrow import _names as _names
from windrow._windrow import WorkerError, __version__

__all__ = ["WorkerError", "__version__"]
