"""Environments that keep TorchRL's word where it differs from that of :mod:`windrow.envs`.

A :class:`SerialEnv` or :class:`ParallelEnv` of ``W`` environments that each are several, ``[B]``,
has the batch size ``[W, B]``, and so have batches of collectors.

:class:`EnvBase` and :class:`Transform` are derived from TorchRL's, for classes of your own. Where a
transform of windrow's refuses arguments that TorchRL's takes, such as ``CatFrames(4, -1,
as_inverse=True)``, TorchRL's is made, and a :class:`TransformedEnv` of TorchRL's around an
environment that steps any number of states (``batch_locked=False``), through which gradients flow.
Both are instances of the class that was called, as environments and transforms of either package
are instances of :class:`EnvBase` and :class:`Transform`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from windrow import envs
from windrow.envs import _batched, utils
from windrow.envs._described import Facts
from windrow.torchrl import _transforms
from windrow.torchrl._both import Both
from windrow.torchrl._names import register, stand_in

if TYPE_CHECKING:
    from windrow.envs import (
        EnvCreator as EnvCreator,
        GymEnv as GymEnv,
        GymWrapper as GymWrapper,
        register_adapter as register_adapter,
    )
    from windrow.envs.transforms import *
    from windrow.envs.utils import *
    from windrow.torchrl._bases import EnvBase as EnvBase, Transform as Transform
    from windrow.torchrl._pools import (
        AsyncEnvPool as AsyncEnvPool,
        ProcessorAsyncEnvPool as ProcessorAsyncEnvPool,
        ThreadingAsyncEnvPool as ThreadingAsyncEnvPool,
    )

register(
    __name__,
    {
        "windrow.envs.utils": utils.__all__,
        "windrow.envs": envs.__all__,
        "windrow.torchrl._pools": [
            "AsyncEnvPool",
            "ProcessorAsyncEnvPool",
            "ThreadingAsyncEnvPool",
        ],
        "windrow.torchrl._bases": ["EnvBase", "Transform"],
        "windrow.torchrl._transforms": [
            *_transforms.NAMES,
            *("GymEnv", "GymWrapper", "TransformedEnv"),
        ],
        __name__: ["ParallelEnv", "SerialEnv"],
    },
)
__getattr__, __dir__ = stand_in(__name__)

# A module has the same name. Were it imported later, `windrow.torchrl.envs.env_creator` would
# become the module.
importlib.import_module("windrow.torchrl.envs.env_creator")
env_creator = envs.env_creator


class _ByWorker(_batched.SerialEnv, metaclass=Both):
    """Environments in lockstep, with a dimension for workers before those of their environments."""

    def _dimensions(self, facts: Facts) -> tuple[int, ...]:
        each = facts.num_envs // self.num_workers
        return (self.num_workers, each) if each > 1 else (self.num_workers,)


class SerialEnv(_ByWorker):
    __doc__ = _batched.SerialEnv.__doc__


class ParallelEnv(_ByWorker, _batched.ParallelEnv):
    __doc__ = _batched.ParallelEnv.__doc__
