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

``windrow.Collector``, the other collectors, ``Evaluator``, ``GymEnv`` and ``ReplayBuffer`` are
found here, too. On the command line, ``windrow --help`` lists commands that collect, measure and
look around.

Nothing here imports torch, tensordict or gymnasium before it is used.
"""

from __future__ import annotations

import atexit

from windrow import _fence, _needs, _windrow
from windrow._lazy import names_of
from windrow._warnings import PerformanceWarning, RenamedWarning, Warning
from windrow._windrow import WorkerError, __version__

_needs.fill(_windrow)
# The modules of windrow.torchrl that the rest may call: each is imported when it is first needed.
_fence.HOMES.update(
    adapter="windrow.torchrl._adapter",
    around="windrow.torchrl._around",
    methods="windrow.torchrl._methods",
    schedulers="windrow.torchrl._schedulers",
    sharing="windrow.torchrl._sharing",
    specs="windrow.torchrl._specs",
)
_fence.ADAPTERS.update(
    pettingzoo="windrow.torchrl._libraries:of_pettingzoo",
    torchrl="windrow.torchrl._adapter:of",
    vmas="windrow.torchrl._libraries:of_vmas",
)
# `atexit` calls the first function that was registered last: collectors have ended by then.
atexit.register(_windrow.announce_end)

#: Classes that are found here, too, since this is where people look first.
_COLLECTORS = (
    "AsyncBatchedCollector",
    "AsyncCollector",
    "Collector",
    "Evaluator",
    "MultiAsyncCollector",
    "MultiCollector",
    "MultiSyncCollector",
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from windrow import (
        collectors as collectors,
        data as data,
        envs as envs,
        modules as modules,
        ray as ray,
        torchrl as torchrl,
        vectors as vectors,
    )
    from windrow._learning import (
        generalized_advantage_estimate as generalized_advantage_estimate,
        minibatches as minibatches,
    )
    from windrow.collectors import (
        AsyncBatchedCollector as AsyncBatchedCollector,
        AsyncCollector as AsyncCollector,
        Collector as Collector,
        Evaluator as Evaluator,
        MultiAsyncCollector as MultiAsyncCollector,
        MultiCollector as MultiCollector,
        MultiSyncCollector as MultiSyncCollector,
    )
    from windrow.data import ReplayBuffer as ReplayBuffer
    from windrow.envs import GymEnv as GymEnv
    from windrow.vectors import make_vec as make_vec
else:
    _HOMES = {
        **dict.fromkeys(_COLLECTORS, "collectors"),
        "GymEnv": "envs",
        "ReplayBuffer": "data",
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
    modules = ("collectors", "data", "envs", "modules", "ray", "sb3", "torchrl", "vectors")
    return sorted([*__all__, *_COLLECTORS, "GymEnv", "ReplayBuffer", *modules])
