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

from __future__ import annotations

import importlib
import sys

from windrow._warnings import RenamedWarning, Warning
from windrow._windrow import WorkerError, __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["RenamedWarning", "Warning", "WorkerError", "__version__"]


class _Finder:
    """Finds, after all others, modules that only TorchRL has: ``windrow.weight_update``, and those below ``windrow.collectors``,
    ``windrow.data`` and ``windrow.envs``, such as ``windrow.envs.libs.vmas``."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, *rest = name.split(".")
        known = rest == ["weight_update"] or (len(rest) > 1 and rest[0] in ("collectors", "data", "envs"))
        if package != "windrow" or not known or any(n.startswith("_") for n in rest):
            return None
        # What answers takes longer to import than all of windrow.
        found: ModuleSpec | None = importlib.import_module("windrow._fence").names.spec_of_first_door(name)
        return found


sys.meta_path.append(_Finder())
