"""Transforms of numbers: they scale, clip, cast, normalise and count down. The engine carries them
out, not Python.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from enum import IntEnum
from typing import Any, ClassVar, SupportsInt

from windrow import _fence
from windrow._keys import Key, path, short
from windrow._lazy import torch
from windrow.envs._recipe import Described
from windrow.envs._transform import Transform, declared

__all__ = [
    "ActionDiscretizer",
    "ActionMask",
    "BinarizeReward",
    "ClipTransform",
    "DTypeCastTransform",
    "RewardClipping",
    "RewardScaling",
    "SignTransform",
    "TargetReturn",
]

Keys = Sequence[Key] | None


def keys_of(name: str, given: Key | Sequence[Key] | None) -> list[Key] | None:
    """Keys as a list; one key stands for a list of it."""
    if given is None:
        return None
    keys: list[Key] = [given] if isinstance(given, (str, tuple)) else list(given)
    for key in keys:
        if not key or not all(isinstance(part, str) and part for part in path(key)):
            raise ValueError(f"{name} has to be a list of names, got {key!r} in it")
    return [short(path(key)) for key in keys]


def number(name: str, given: object) -> float:
    """A number as TorchRL keeps it, which is of float32 where it is no tensor of another type."""
    value = torch.as_tensor(given)
    if value.numel() != 1:
        raise TypeError(f"{name} has to be one number, got {given!r}")
    return float(value)


@declared
class _Keyed(Transform):
    """A transform of ``in_keys``, or those that are its default, to ``out_keys``."""

    _default: ClassVar[tuple[Key, ...]] = ("reward",)
    #: Arguments of the engine's transform that are numbers or None.
    _numbers: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        self._settle_keys(self._default)

    def _settle_keys(self, default: Keys, only: tuple[str, ...] = ()) -> None:
        own: Any = self
        own.in_keys = keys_of("in_keys", default if own.in_keys is None else own.in_keys)
        own.out_keys = keys_of("out_keys", own.in_keys if own.out_keys is None else own.out_keys)
        if len(own.in_keys) != len(own.out_keys):
            raise ValueError(
                f"expected as many out_keys as in_keys, {len(own.in_keys)}, got {len(own.out_keys)}"
            )
        for name in only:
            own.in_keys_inv = keys_of("in_keys_inv", own.in_keys_inv) or []
            if keys_of("out_keys_inv", own.out_keys_inv) not in (None, [], own.in_keys_inv):
                why = f"{name} has the names of in_keys_inv, {own.in_keys_inv}, got {own.out_keys_inv}"
                raise _fence.beyond(self, why)

    def _keys(self) -> dict[str, Any]:
        own: Any = self
        return {
            "in_keys": own.in_keys,
            "out_keys": None if own.out_keys == own.in_keys else own.out_keys,
        }

    def _described(self, plain: bool = False) -> list[Described]:
        [(name, arguments)] = super()._described(plain)
        numbers = _numbers({name: getattr(self, name) for name in self._numbers})
        return [(name, {**arguments, **numbers, **self._keys()})]


@declared
class RewardScaling(_Keyed):
    """Scales and shifts rewards: ``reward * scale + loc``, or ``(reward - loc) / scale`` where
    ``standard_normal``.

    Args:
        loc: what is added, or subtracted first.
        scale: the factor, or divisor; 1e-6 where it is less.
        in_keys: the rewards; ``["reward"]`` unless given.
        out_keys: names of the results; those of ``in_keys`` unless given.
        standard_normal: how the numbers are meant.

    Example:
        >>> from windrow.envs import GymEnv, RewardScaling, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), RewardScaling(loc=0.0, scale=0.5))
        >>> env.rollout(3)["next", "reward"].flatten()
        tensor([0.5000, 0.5000, 0.5000])
    """

    loc: float | torch.Tensor
    scale: float | torch.Tensor
    in_keys: Keys = None
    out_keys: Keys = None
    standard_normal: bool = False
    _numbers = ("loc", "scale")
    _passed = ("standard_normal",)


@declared
class RewardClipping(_Keyed):
    """Clips rewards to the numbers between two.

    Args:
        clamp_min: the least reward; None for no such bound.
        clamp_max: the greatest reward; None for no such bound.
        in_keys: the rewards; ``["reward"]`` unless given.
        out_keys: names of the results; those of ``in_keys`` unless given.

    Example:
        >>> from windrow.envs import GymEnv, RewardClipping, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), RewardClipping(-0.5, 0.5))
        >>> env.rollout(3)["next", "reward"].flatten()
        tensor([0.5000, 0.5000, 0.5000])
    """

    clamp_min: float | torch.Tensor | None = None
    clamp_max: float | torch.Tensor | None = None
    in_keys: Keys = None
    out_keys: Keys = None
    _numbers = ("clamp_min", "clamp_max")


@declared
class ClipTransform(_Keyed):
    """Clips observations, rewards and actions to the numbers between ``low`` and ``high``.

    Args:
        in_keys: observations, or ``"reward"``.
        out_keys: names of the results; those of ``in_keys`` unless given.
        in_keys_inv: actions that are clipped before the environment takes them.
        out_keys_inv: those of ``in_keys_inv``.
        low: the least number; None for no such bound.
        high: the greatest number; None for no such bound.

    Raises:
        TypeError: there is neither ``low`` nor ``high``, or one is no number.
        ValueError: ``low`` is not below ``high``.

    Example:
        >>> from windrow.envs import ClipTransform, GymEnv, TransformedEnv
        >>> env = GymEnv("CartPole-v1")
        >>> env = TransformedEnv(env, ClipTransform(in_keys=["observation"], low=-0.01, high=0.01))
        >>> env.rollout(3)["observation"].abs().max() <= 0.01
        tensor(True)
    """

    in_keys: Keys = None
    out_keys: Keys = None
    in_keys_inv: Keys = None
    out_keys_inv: Keys = None
    low: float | torch.Tensor | None = field(default=None, kw_only=True)
    high: float | torch.Tensor | None = field(default=None, kw_only=True)
    _numbers = ("low", "high")
    _passed = ("in_keys_inv",)

    def __post_init__(self) -> None:
        self._settle_keys([], ("out_keys_inv",))
        bounds = _numbers({"low": self.low, "high": self.high})
        if not bounds:
            raise TypeError("ClipTransform needs low, high or both")
        if not bounds.get("low", -math.inf) < bounds.get("high", math.inf):
            raise ValueError(f"low has to be below high, got low={self.low} and high={self.high}")


@declared
class SignTransform(_Keyed):
    """Turns observations, rewards and actions into their signs: -1, 0 or 1.

    Args:
        in_keys: observations, or ``"reward"``.
        out_keys: names of the signs; those of ``in_keys`` unless given.
        in_keys_inv: actions of which the environment takes the sign.
        out_keys_inv: those of ``in_keys_inv``.

    Example:
        >>> from windrow.envs import GymEnv, SignTransform, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), SignTransform(in_keys=["reward"]))
        >>> env.rollout(3)["next", "reward"].flatten()
        tensor([1., 1., 1.])
    """

    in_keys: Keys = None
    out_keys: Keys = None
    in_keys_inv: Keys = None
    out_keys_inv: Keys = None
    _passed = ("in_keys_inv",)

    def __post_init__(self) -> None:
        self._settle_keys([], ("out_keys_inv",))


@declared
class DTypeCastTransform(_Keyed):
    """Casts observations and rewards from one dtype to another, as tensors are.

    Args:
        dtype_in: that of the environment.
        dtype_out: that of the results.
        in_keys: what is cast; all observations and rewards of ``dtype_in`` unless given.
        out_keys: names of the results; those of ``in_keys`` unless given.
        in_keys_inv: without effect: actions are cast to what the environment takes in any case.
        out_keys_inv: without effect, too.

    Example:
        >>> import torch
        >>> from windrow.envs import DTypeCastTransform, GymEnv, TransformedEnv
        >>> env = GymEnv("CartPole-v1")
        >>> env = TransformedEnv(env, DTypeCastTransform(torch.float32, torch.float64))
        >>> env.rollout(3)["observation"].dtype
        torch.float64
    """

    dtype_in: torch.dtype
    dtype_out: torch.dtype
    in_keys: Keys = None
    out_keys: Keys = None
    in_keys_inv: Keys = None
    out_keys_inv: Keys = None

    def __post_init__(self) -> None:
        if self.in_keys is not None:
            self._settle_keys(None)
        elif self.out_keys is not None:
            raise ValueError(
                "out_keys need in_keys: nobody knows in which order all of a dtype are cast"
            )

    def _described(self, plain: bool = False) -> list[Described]:
        dtypes = {"dtype_in": _dtype(self.dtype_in), "dtype_out": _dtype(self.dtype_out)}
        return [("DTypeCastTransform", {**dtypes, **self._keys()})]


@declared
class BinarizeReward(_Keyed):
    """Turns rewards into 1, where they are greater than 0, or 0 (``int8``).

    Args:
        in_keys: the rewards; ``["reward"]`` unless given.
        out_keys: names of the results; those of ``in_keys`` unless given.

    Example:
        >>> from windrow.envs import BinarizeReward, GymEnv, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), BinarizeReward())
        >>> env.rollout(3)["next", "reward"].flatten()
        tensor([1, 1, 1], dtype=torch.int8)
    """

    in_keys: Keys = None
    out_keys: Keys = None


@declared
class TargetReturn(Transform):
    """Observes the return that is still to be earned.

    Args:
        target_return: what is observed after a reset.
        mode: ``"reduce"`` subtracts each reward from it, ``"constant"`` leaves it as it is.
        in_keys: the rewards; ``["reward"]`` unless given.
        out_keys: names of the targets; ``"target_return"`` beside each reward unless given.
        reset_key: ``"_reset"``: targets begin anew with each episode.

    Raises:
        ValueError: there is no such mode or reset key, or ``out_keys`` are not as many as
            ``in_keys``.

    Example:
        >>> from windrow.envs import GymEnv, TargetReturn, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), TargetReturn(10.0))
        >>> env.rollout(3)["next", "target_return"].flatten()
        tensor([9., 8., 7.])
    """

    target_return: float
    mode: str = "reduce"
    in_keys: Keys = None
    out_keys: Keys = None
    reset_key: Key | None = None
    _passed = ("target_return", "mode", "in_keys", "out_keys")

    def __post_init__(self) -> None:
        self.target_return = float(self.target_return)
        if self.mode not in ("reduce", "constant"):
            raise ValueError(f"mode can be 'reduce' or 'constant', got {self.mode!r}")
        if self.reset_key not in (None, "_reset"):
            raise _fence.beyond(self, f"reset_key can only be '_reset', got {self.reset_key!r}")
        self.in_keys = keys_of("in_keys", self.in_keys or ["reward"]) or []
        beside = [short((*path(key)[:-1], "target_return")) for key in self.in_keys]
        self.out_keys = keys_of("out_keys", self.out_keys or beside) or []
        if len(self.in_keys) != len(self.out_keys) or len({*self.out_keys}) != len(self.out_keys):
            raise ValueError(
                f"expected a name for each of {self.in_keys}, got out_keys={self.out_keys}"
            )


@declared
class ActionMask(Transform):
    """Restricts random actions to legal ones: those whose element of an observation is set.

    Args:
        action_key: the action, of choices.
        mask_key: the observation, an element for each choice.

    Raises:
        ValueError: one of the two is no key.

    Example:
        >>> from windrow.envs import ActionMask, GymEnv, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Taxi-v4", info_keys=["action_mask"]), ActionMask())
        >>> env.rollout(2)["action_mask"].shape
        torch.Size([2, 6])
    """

    action_key: Key = "action"
    mask_key: Key = "action_mask"
    _passed = ("action_key", "mask_key")

    def __post_init__(self) -> None:
        for name in ("action_key", "mask_key"):
            if not isinstance(getattr(self, name), (str, tuple)):
                raise ValueError(
                    f"{name} has to be a name or a tuple of names, got {getattr(self, name)!r}"
                )


class ActionDiscretizer(Transform):
    """Takes choices of intervals in place of bounded real actions.

    Args:
        num_intervals: how many intervals each element of the action is cut into: a number, or a
            tensor with one for each.
        action_key: the action that the environment takes.
        out_action_key: name of the choices; ``action_key`` unless given. Batches then have the
            choices alone, not the numbers that they stand for.
        sampling: which number of its interval a choice stands for, of
            :class:`ActionDiscretizer.SamplingStrategy`; ``MEDIAN`` unless given.
        categorical: whether choices are indices; otherwise they are one-hot.

    Example:
        >>> from windrow.envs import ActionDiscretizer, GymEnv, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), ActionDiscretizer(num_intervals=3))
        >>> env.rollout(3)["action"].shape
        torch.Size([3, 1])
    """

    class SamplingStrategy(IntEnum):
        """Which number of its interval a choice stands for."""

        MEDIAN = 0
        LOW = 1
        HIGH = 2
        RANDOM = 3

    def __init__(
        self,
        num_intervals: int | Sequence[int] | torch.Tensor,
        action_key: Key = "action",
        out_action_key: Key | None = None,
        sampling: SupportsInt | None = None,
        categorical: bool = True,
    ) -> None:
        self.num_intervals = num_intervals
        self.action_key = action_key
        self.out_action_key = action_key if out_action_key is None else out_action_key
        self.sampling = self.SamplingStrategy(0 if sampling is None else int(sampling))
        self.categorical = categorical

    def _described(self, plain: bool = False) -> list[Described]:
        numbers = torch.as_tensor(self.num_intervals).flatten().tolist()
        keys = {"action_key": self.action_key, "out_action_key": self.out_action_key}
        how = {"sampling": self.sampling.name.lower(), "one_hot": not self.categorical}
        return [("ActionDiscretizer", {"num_intervals": [int(n) for n in numbers], **keys, **how})]

    def __repr__(self) -> str:
        return f"ActionDiscretizer({self.num_intervals!r}, sampling={self.sampling.name}, categorical={self.categorical})"


def _numbers(given: dict[str, Any]) -> dict[str, float]:
    return {name: number(name, value) for name, value in given.items() if value is not None}


def _dtype(dtype: object) -> str:
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"expected a torch.dtype, got {dtype!r}")
    return str(dtype).removeprefix("torch.")
