"""Transforms of environments: they count, sum, mark and normalise. The engine carries them out, not
Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windrow import _fence
from windrow._keys import Key, path, short
from windrow._lazy import module, torch
from windrow._types import Env
from windrow.envs import _number_transforms, _picture_transforms, _shape_transforms
from windrow.envs._base import EnvBase
from windrow.envs._number_transforms import *  # noqa: F403
from windrow.envs._number_transforms import keys_of
from windrow.envs._observation_norm import ObservationNorm
from windrow.envs._picture_transforms import *  # noqa: F403
from windrow.envs._recipe import Described
from windrow.envs._shape_transforms import *  # noqa: F403
from windrow.envs._specs import delta_type
from windrow.envs._transform import Compose, Transform, TransformedEnv, declared
from windrow.envs._vec_norm import VecNorm, VecNormV2

__all__ = [
    "Compose",
    "DoubleToFloat",
    "FiniteTensorDictCheck",
    "InitTracker",
    "ObservationNorm",
    "RewardSum",
    "StepCounter",
    "Transform",
    "TransformedEnv",
    "VecNorm",
    "VecNormV2",
]
__all__ += _number_transforms.__all__
__all__ += _picture_transforms.__all__
__all__ += _shape_transforms.__all__

_recurrent = module("windrow.policies.recurrent")
#: Modules of TorchRL's package of this name are found below this one.
__path__: list[str] = []


@declared
class StepCounter(Transform):
    """Counts the steps of each episode (``int64 [1]``), and may end it.

    A truncated episode ends, so ``("next", "truncated")`` is True there. A flag of another name is
    an observation of its own, ``bool [1]``, and need not end the episode.

    Args:
        max_steps: truncates an episode after this number of steps; None never does.
        truncated_key: name of the flag that is raised then.
        step_count_key: name of the count.
        update_done: whether the episode ends then; it always does with the flag ``"truncated"``.

    Raises:
        ValueError: ``max_steps`` is below 1, a key is no string, or an episode would go on although
            it is truncated.

    Example:
        >>> from windrow.envs import GymEnv, StepCounter, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=3))
        >>> env.rollout(9)["next", "step_count"].flatten()
        tensor([1, 2, 3])
    """

    max_steps: int | None = None
    truncated_key: str = "truncated"
    step_count_key: str = "step_count"
    update_done: bool = True

    def __post_init__(self) -> None:
        if self.max_steps is not None and self.max_steps < 1:
            raise ValueError(f"max_steps must be 1 or more, got {self.max_steps}")
        _name("truncated_key", self.truncated_key)
        _name("step_count_key", self.step_count_key)
        if not self.update_done and self.truncated_key == "truncated":
            why = "update_done=False: an episode that is truncated ends, so a flag that does not end it needs another truncated_key"
            raise _fence.beyond(self, why)

    def _described(self, plain: bool = False) -> list[Described]:
        limit = self.max_steps if self.update_done else None
        described: list[Described] = [
            ("StepCounter", {"step_count_key": self.step_count_key, "max_steps": limit})
        ]
        if self.max_steps is not None and self.truncated_key != "truncated":
            described.append(
                ("LimitFlag", {"key": self.truncated_key, "max_steps": self.max_steps})
            )
        return described


@declared
class RewardSum(Transform):
    """Sums the rewards of each episode up.

    Args:
        in_keys: the rewards; ``["reward"]``, that of the step, unless given.
        out_keys: names of the sums; ``"episode_reward"`` beside each reward unless given.
        reset_keys: flags called ``"_reset"``, for TorchRL's sake: sums begin anew with each
            episode.

    Raises:
        ValueError: a key is no name, there are not as many ``out_keys`` as ``in_keys``, or other
            ``reset_keys``.

    Example:
        >>> from windrow.envs import GymEnv, RewardSum, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), RewardSum())
        >>> env.rollout(3)["next", "episode_reward"].flatten()
        tensor([1., 2., 3.])
    """

    in_keys: Sequence[Key] | None = None
    out_keys: Sequence[Key] | None = None
    reset_keys: Sequence[Key] | None = None

    def __post_init__(self) -> None:
        if any(path(key)[-1] != "_reset" for key in self.reset_keys or ()):
            why = f"reset_keys are called '_reset', got {self.reset_keys}: sums begin anew with each episode"
            raise _fence.beyond(self, why)
        self.in_keys = keys_of("in_keys", self.in_keys) or ["reward"]
        beside = [short((*path(key)[:-1], "episode_reward")) for key in self.in_keys]
        self.out_keys = (
            keys_of("out_keys", beside if self.out_keys is None else self.out_keys) or []
        )
        if len(self.out_keys) != len(self.in_keys):
            raise ValueError(
                f"RewardSum needs a name for each of {self.in_keys}: got out_keys={self.out_keys}"
            )

    def _described(self, plain: bool = False) -> list[Described]:
        pairs = zip(self.in_keys or (), self.out_keys or (), strict=True)
        return [("RewardSum", {"in_key": key, "out_key": out}) for key, out in pairs]


@declared
class InitTracker(Transform):
    """Marks the first step of each episode (``bool [1]``).

    Args:
        init_key: name of the mark.

    Raises:
        ValueError: it is no string.

    Example:
        >>> from windrow.envs import GymEnv, InitTracker, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), InitTracker())
        >>> env.rollout(3)["is_init"].flatten()
        tensor([ True, False, False])
    """

    init_key: str = "is_init"
    _passed = ("init_key",)

    def __post_init__(self) -> None:
        _name("init_key", self.init_key)


@declared
class DoubleToFloat(Transform):
    """Narrows observations of ``float64`` to ``float32``, as networks take them.

    Args:
        in_keys: the observations; all unless given.
        out_keys: the same as ``in_keys``.
        in_keys_inv: without effect: actions are cast to what the environment takes in any case.
        out_keys_inv: without effect, too.

    Raises:
        ValueError: ``out_keys`` are others than ``in_keys``.

    Example:
        >>> from windrow.envs import DoubleToFloat, GymEnv, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), DoubleToFloat())
        >>> env.rollout(3)["observation"].dtype
        torch.float32
    """

    in_keys: Sequence[Key] | None = None
    out_keys: Sequence[Key] | None = None
    in_keys_inv: Sequence[Key] | None = None
    out_keys_inv: Sequence[Key] | None = None

    def __post_init__(self) -> None:
        if self.out_keys and list(self.out_keys) != list(self.in_keys or []):
            why = f"out_keys can only be in_keys, {self.in_keys!r}, got {self.out_keys!r}"
            raise _fence.beyond(self, why)

    def _described(self, plain: bool = False) -> list[Described]:
        return [
            ("DoubleToFloat", {"in_keys": None if self.in_keys is None else list(self.in_keys)})
        ]


@declared
class FiniteTensorDictCheck(Transform):
    """Fails as soon as an observation or a reward is infinite or not a number; the error says which
    one, and where.

    Observations of other transforms are checked where they come before this one.

    Example:
        >>> from windrow.envs import FiniteTensorDictCheck, GymEnv, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), FiniteTensorDictCheck())
        >>> env.rollout(3).shape
        torch.Size([3])
    """

    def _described(self, plain: bool = False) -> list[Described]:
        return [("FiniteCheck", {})]


class Primer(Transform):
    """Observes the first values of a policy's states, as a ``TensorDictPrimer`` of TorchRL gives
    them.

    Args:
        primer: such as ``make_tensordict_primer()`` of a recurrent module gives. Each of its states
            is ``float32``, and a number at first.

    Raises:
        ValueError: a state is of another dtype, or drawn at random.
    """

    def __init__(self, primer: Any) -> None:
        batch = len(primer.primers.shape)
        self._states = [
            (path(key), list(spec.shape[batch:]), _first(key, spec, primer))
            for key, spec in primer.primers.items(include_nested=True, leaves_only=True)
        ]

    def _described(self, plain: bool = False) -> list[Described]:
        return [
            ("Primer", {"key": names, "shape": shape, "value": value})
            for names, shape, value in self._states
        ]

    def __repr__(self) -> str:
        return f"Primer({', '.join('.'.join(names) for names, _, _ in self._states)})"


class Delta(Transform):
    """Replaces the next observation by its difference to the one before, under
    ``("next", "delta")``.

    Args:
        of: a ``NextObservationDelta`` of TorchRL, which does the opposite where it is a transform
            of a replay buffer.
    """

    def __init__(self, of: Any) -> None:
        # Without an environment, it has the keys that it was given.
        keys = None if of.in_keys is None else [path(key) for key in of.in_keys]
        floats = [
            name
            for name in ("float32", "float64")
            if f"torch.{name}" in map(str, of.excluded_dtypes)
        ]
        self._arguments = {"keys": keys, "excluded": floats, "dtype": delta_type(of)}

    def _described(self, plain: bool = False) -> list[Described]:
        return [("NextObservationDelta", self._arguments)]

    def __repr__(self) -> str:
        return f"Delta(keys={self._arguments['keys']}, dtype={self._arguments['dtype']})"


def primed_for(policy: object, env: Env) -> EnvBase:
    """``env``, which observes where episodes begin, and the first values of the states of
    ``policy``.
    """
    return TransformedEnv(env, Compose(InitTracker(), *_recurrent.primers_of(policy, torch.Size())))


def _name(argument: str, given: object) -> str:
    if not isinstance(given, str) or not given:
        raise ValueError(f"{argument} has to be a name, got {given!r}")
    return given


def _first(key: Key, spec: Any, primer: Any) -> float:
    """The number that the state ``key`` begins with."""
    if primer.random:
        raise ValueError(
            f"the state {key!r} begins with random numbers, expected a number as default_value"
        )
    if str(spec.dtype) != "torch.float32":
        raise ValueError(f"the state {key!r} is {spec.dtype}, expected torch.float32")
    values = primer.default_value
    value = values if primer.single_default_value else values[key]
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"the state {key!r} begins with {value!r}, expected a number as default_value"
        ) from None
