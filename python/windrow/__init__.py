"""Reinforcement-learning data collection: a policy runs in many environments, batches of experience
come back.

    >>> from windrow.collectors import Collector
    >>> from windrow.envs import GymEnv
    >>> for batch in Collector(GymEnv("CartPole-v1"), frames_per_batch=200, total_frames=400):
    ...     print(batch["observation"].shape, batch["next", "reward"].shape)
    torch.Size([200, 4]) torch.Size([200, 1])
    torch.Size([200, 4]) torch.Size([200, 1])

Where to read on, with ``help``:

- :mod:`windrow.collectors`: ``Collector`` (one worker), ``MultiSyncCollector`` and
  ``MultiAsyncCollector`` (several), ``AsyncCollector`` (in the background),
  ``AsyncBatchedCollector`` (one policy evaluated for many environments), ``RayCollector``;
  ``Evaluator``; what passes weights on.
- :mod:`windrow.envs`: ``GymEnv``, ``SerialEnv``, ``ParallelEnv``, ``AsyncEnvPool``,
  ``TransformedEnv`` and transforms.
- :mod:`windrow.data`: ``ReplayBuffer``, its storages, samplers and writers; ``MultiStep``.
- :func:`windrow.minibatches` and :func:`windrow.generalized_advantage_estimate`: what a learner
  does with a batch before its losses.
- :func:`windrow.make_vec`: a vector of environments as Gymnasium has it, for a loop of your own;
  :mod:`windrow.sb3`, for Stable-Baselines3's.
- :mod:`windrow.modules`: ``InferenceServer`` and ``RemotePolicy``.
- :mod:`windrow.ray`: workers in actors of Ray.
- :mod:`windrow.torchrl`: the same, and all else that TorchRL has, for scripts that were written for
  it.

On the command line, ``windrow --help`` lists commands that collect, measure and look around.

Nothing here imports torch, tensordict or gymnasium before it is used.
"""

from __future__ import annotations

import atexit

from windrow import _needs, _windrow
from windrow._lazy import names_of
from windrow._warnings import PerformanceWarning, RenamedWarning, Warning
from windrow._windrow import WorkerError, __version__

_needs.fill(_windrow)
# `atexit` calls the first function that was registered last: collectors have ended by then.
atexit.register(_windrow.announce_end)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from windrow import (
        collectors as collectors,
    )
    from windrow import (
        data as data,
    )
    from windrow import (
        envs as envs,
    )
    from windrow import (
        modules as modules,
    )
    from windrow import (
        ray as ray,
    )
    from windrow import (
        torchrl as torchrl,
    )
    from windrow import (
        vectors as vectors,
    )
    from windrow._learning import (
        generalized_advantage_estimate as generalized_advantage_estimate,
    )
    from windrow._learning import (
        minibatches as minibatches,
    )
    from windrow.vectors import make_vec as make_vec
else:
    _HOMES = {
        "generalized_advantage_estimate": "_learning",
        "make_vec": "vectors._make",
        "minibatches": "_learning",
    }
    __getattr__ = names_of(__name__, _HOMES)

__all__ = [
    "PerformanceWarning",
    "RenamedWarning",
    "Warning",
    "WorkerError",
    "__version__",
    "generalized_advantage_estimate",
    "make_vec",
    "minibatches",
]


def __dir__() -> list[str]:
    return sorted(
        [*__all__, "collectors", "data", "envs", "modules", "ray", "sb3", "torchrl", "vectors"]
    )
