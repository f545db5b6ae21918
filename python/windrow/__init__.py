"""Reinforcement-learning data collection: a policy runs in many environments, batches of experience come back.

    >>> from windrow.collectors import Collector
    >>> from windrow.envs import GymEnv
    >>> for batch in Collector(GymEnv("CartPole-v1"), frames_per_batch=200, total_frames=400):
    ...     print(batch["observation"].shape, batch["next", "reward"].shape)
    torch.Size([200, 4]) torch.Size([200, 1])
    torch.Size([200, 4]) torch.Size([200, 1])

Where to read on, with ``help``:

- :mod:`windrow.collectors`: ``Collector`` (one worker), ``MultiSyncCollector`` and ``MultiAsyncCollector`` (several),
  ``AsyncCollector`` (in the background), ``AsyncBatchedCollector`` (one policy evaluated for many environments), ``RayCollector``;
  ``Evaluator``; what passes weights on.
- :mod:`windrow.envs`: ``GymEnv``, ``SerialEnv``, ``ParallelEnv``, ``AsyncEnvPool``, ``TransformedEnv`` and transforms.
- :mod:`windrow.data`: ``ReplayBuffer``, its storages, samplers and writers; ``MultiStep``.
- :mod:`windrow.modules`: ``InferenceServer`` and ``RemotePolicy``.
- :mod:`windrow.torchrl`: the same, and all else that TorchRL has, for scripts that were written for it.

Nothing here imports torch, tensordict or gymnasium before it is used.
"""

from windrow import _names as _names
from windrow._windrow import WorkerError, __version__

__all__ = ["WorkerError", "__version__"]
