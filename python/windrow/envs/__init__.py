"""Environments, native ones and those of Gymnasium and TorchRL.

``GymEnv("CartPole-v1")`` is an environment by its id; collectors also take a bare id, an
environment or vector of Gymnasium, an environment of TorchRL, or a function that returns any of
these.

Choices, in actions and observations, are indices in what is Gymnasium's: a bare id,
``gymnasium.make(...)``, a vector, or a function that returns one of these. :class:`GymEnv` and
:class:`GymWrapper` have one-hot vectors instead, as in TorchRL, unless
``categorical_action_encoding=True``. The innermost environment decides, whatever transforms or
:class:`ParallelEnv` are around it.

One object is one environment, also behind wrappers: a second worker, collector or evaluator refuses
it, since their steps would mix. Give each a function that makes one. All collectors of a process
call such functions one after the other, since those of TorchRL, and many others, use state of a
class or of a module meanwhile.

What an environment of Gymnasium returns in ``info`` is left out of batches, which a warning says
once, unless the argument ``info_keys`` of :class:`GymEnv` or :class:`GymWrapper` names it.

Of an environment of TorchRL, batches hold the rewards under their own names, those of agents as
``("next", "agents", "reward")``. ``("next", "reward")``, ``[..., 1]``, is the one called so, in the
element type of its spec, or else the sum of all as ``float32``. Those of Gymnasium are ``float32``.
Random actions are legal where specs of its actions have masks, or an ``ActionMask`` is around it; a
mask that is observed nowhere is found as ``"action_mask"`` beside the observations.

Where torchrl is installed, its transforms go around windrow's environments, in Python, and specs
are of its classes, since its modules and losses take no others. Names that only TorchRL has are in
:mod:`windrow.torchrl`, and so are :class:`windrow.torchrl.envs.EnvBase` and
:class:`windrow.torchrl.envs.Transform`, which environments and transforms of your own derive from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windrow._lazy import is_installed, listing, names_of

# A module has the same name. Were it imported later, `windrow.envs.env_creator` would become the
# module.
from windrow.envs.env_creator import env_creator

if TYPE_CHECKING:
    from windrow.envs._base import EnvBase
    from windrow.envs._batched import ParallelEnv, SerialEnv
    from windrow.envs._creator import EnvCreator
    from windrow.envs._pool import AsyncEnvPool, ProcessorAsyncEnvPool, ThreadingAsyncEnvPool
    from windrow.envs._registry import register_adapter
    from windrow.envs.libs.gym import GymEnv, GymWrapper
    from windrow.envs.transforms import (
        ActionDiscretizer,
        ActionMask,
        BinarizeReward,
        CatFrames,
        CatTensors,
        CenterCrop,
        ClipTransform,
        Compose,
        DoubleToFloat,
        DTypeCastTransform,
        EndOfLifeTransform,
        ExcludeTransform,
        FiniteTensorDictCheck,
        FlattenObservation,
        FrameSkipTransform,
        GrayScale,
        InitTracker,
        NoopResetEnv,
        ObservationNorm,
        PermuteTransform,
        RenameTransform,
        Resize,
        RewardClipping,
        RewardScaling,
        RewardSum,
        SelectTransform,
        SignTransform,
        SqueezeTransform,
        StepCounter,
        TargetReturn,
        TimeMaxPool,
        ToTensorImage,
        Transform,
        TransformedEnv,
        UnsqueezeTransform,
        VecNorm,
        VecNormV2,
    )
    from windrow.envs.utils import (
        ExplorationType,
        check_env,
        check_env_specs,
        exploration_type,
        set_exploration_type,
    )
    from windrow.modules import RandomPolicy

__all__ = [
    "ActionDiscretizer",
    "ActionMask",
    "AsyncEnvPool",
    "BinarizeReward",
    "ClipTransform",
    "CatFrames",
    "CatTensors",
    "CenterCrop",
    "Compose",
    "DTypeCastTransform",
    "DoubleToFloat",
    "EndOfLifeTransform",
    "EnvBase",
    "EnvCreator",
    "ExcludeTransform",
    "ExplorationType",
    "FiniteTensorDictCheck",
    "FlattenObservation",
    "FrameSkipTransform",
    "GrayScale",
    "GymEnv",
    "GymWrapper",
    "InitTracker",
    "NoopResetEnv",
    "ObservationNorm",
    "ParallelEnv",
    "PermuteTransform",
    "ProcessorAsyncEnvPool",
    "RandomPolicy",
    "RewardClipping",
    "RewardScaling",
    "RenameTransform",
    "Resize",
    "RewardSum",
    "SelectTransform",
    "SerialEnv",
    "SignTransform",
    "StepCounter",
    "TargetReturn",
    "ThreadingAsyncEnvPool",
    "Transform",
    "TransformedEnv",
    "VecNorm",
    "VecNormV2",
    "SqueezeTransform",
    "TimeMaxPool",
    "ToTensorImage",
    "UnsqueezeTransform",
    "check_env",
    "check_env_specs",
    "env_creator",
    "exploration_type",
    "register_adapter",
    "set_exploration_type",
]

#: Names of tensordict's.
_OF_TENSORDICT = ("ExplorationType", "exploration_type", "set_exploration_type")
if not is_installed("tensordict"):
    __all__ = [name for name in __all__ if name not in _OF_TENSORDICT]

#: The modules of all names that are no transforms.
_HOMES = {
    "AsyncEnvPool": "_pool",
    "EnvBase": "_base",
    "EnvCreator": "_creator",
    "ExplorationType": "utils",
    "GymEnv": "libs.gym",
    "GymWrapper": "libs.gym",
    "ParallelEnv": "_batched",
    "ProcessorAsyncEnvPool": "_pool",
    "RandomPolicy": "utils",
    "SerialEnv": "_batched",
    "ThreadingAsyncEnvPool": "_pool",
    "check_env": "utils",
    "check_env_specs": "utils",
    "exploration_type": "utils",
    "register_adapter": "_registry",
    "set_exploration_type": "utils",
}
__dir__ = listing(__name__, __all__)
if not TYPE_CHECKING:
    __getattr__ = names_of(__name__, dict.fromkeys(__all__, "transforms") | _HOMES)
