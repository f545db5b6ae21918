"""Observations and rewards normalised by running statistics, which environments share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windrow import _fence
from windrow._keys import Key, path, short
from windrow._lazy import numpy, tensordict as td, torch
from windrow._types import Array
from windrow._windrow import Statistics
from windrow.envs._number_transforms import Keys, keys_of
from windrow.envs._observation_norm import ObservationNorm
from windrow.envs._recipe import Described
from windrow.envs._transform import Compose, Transform

Parts = dict[Key, list[Any]]


def _read(statistics: Statistics) -> Parts | None:
    """Two arrays and a count for each key; None as long as no environment has begun."""
    gathered = statistics.read()
    if gathered is None:
        return None
    parts: Parts = {}
    numbers = numpy.frombuffer(gathered[1], numpy.float64)
    for names, dtype, shape in gathered[0]:
        size = int(numpy.prod(shape, dtype=int))
        first, second, steps, numbers = numpy.split(numbers, [size, 2 * size, 2 * size + 1])
        parts[short(tuple(names))] = [
            *(half.reshape(shape).astype(dtype) for half in (first, second)),
            float(steps[0]),
        ]
    return parts


def _write(statistics: Statistics, rule: str, parts: Parts) -> None:
    """Puts other numbers in their place.

    Raises:
        ValueError: the environments have statistics of something else.
    """
    columns = [
        (list(path(key)), str(first.dtype), list(first.shape))
        for key, (first, _, _) in parts.items()
    ]
    numbers = [
        numpy.concatenate([first.ravel(), second.ravel(), [count]])
        for first, second, count in parts.values()
    ]
    statistics.write(rule, columns, numpy.concatenate(numbers).astype(numpy.float64).tobytes())


class Running(Transform):
    """Normalises by running statistics. All environments that are made from this object share them,
    also in the workers of a collector; and in members of a :class:`ParallelEnv`; copies have their
    own, and so have objects that are sent to another process in other ways.
    """

    #: Name of the engine's transform.
    _rule: str
    _takes_states = True
    #: Whether environments that are made now leave the statistics as they are.
    _evaluates = False
    #: Whether this follows the statistics of another one, and its environments never change them.
    _follows = False

    def _begin(self, in_keys: Keys, out_keys: Keys, decay: float, eps: float) -> None:
        self.in_keys = keys_of("in_keys", in_keys) or []
        self.out_keys = keys_of("out_keys", out_keys) or list(self.in_keys)
        if len(self.in_keys) != len(self.out_keys):
            raise ValueError(
                f"expected as many out_keys as in_keys, {len(self.in_keys)}, got {len(self.out_keys)}"
            )
        self.decay, self.eps = decay, eps
        self._statistics = Statistics()

    def _described(self, plain: bool = False) -> list[Described]:
        out_keys = None if self.out_keys == self.in_keys else self.out_keys
        numbers = {
            "decay": float(self.decay),
            "eps": float(self.eps),
            "frozen": self._evaluates or self._follows,
        }
        shared = None if plain else self._statistics.written()
        return [
            (
                self._rule,
                {"in_keys": self.in_keys, "out_keys": out_keys, **numbers, "statistics": shared},
            )
        ]

    @property
    def frozen(self) -> bool:
        """Whether the statistics are used, but not changed."""
        return self._follows or self._statistics.frozen

    def freeze(self) -> Running:
        """Keeps the statistics as they are: at once, and in workers of a collector with their next
        shares.
        """
        if not self._follows:
            self._statistics.frozen = True
        return self

    def unfreeze(self) -> Running:
        """Goes on to gather statistics. What has followed those of another one gathers in a copy
        from now on.
        """
        if self._follows:
            parts, self._statistics, self._follows = _read(self._statistics), Statistics(), False
            if parts:
                _write(self._statistics, self._rule, parts)
        self._statistics.frozen = False
        return self

    def clone(self) -> Running:
        """The same for another environment, with a copy of the statistics."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__getstate__(), _statistics=Statistics(), _follows=False)
        if parts := _read(self._statistics):
            _write(other._statistics, self._rule, parts)
        return other.freeze() if self.frozen else other

    def __deepcopy__(self, memo: object) -> Running:
        return self.clone()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_parent": None}

    def frozen_copy(self) -> Running:
        """A copy that keeps its statistics as they are.

        Raises:
            RuntimeError: there are none.
        """
        self._gathered()
        return self.clone().freeze()

    def _gathered(self) -> Parts:
        parts = _read(self._statistics)
        if parts is None:
            raise RuntimeError(
                f"{type(self).__name__} has no statistics yet: step its environment, or load some"
            )
        return parts

    def _loc_scale(self, part: list[Any]) -> tuple[Any, Any]:
        raise NotImplementedError

    def _numbers(self, place: int) -> td.TensorDict:
        numbers = {key: self._loc_scale(part)[place] for key, part in self._gathered().items()}
        return td.TensorDict(
            {key: torch.as_tensor(value, device="cpu") for key, value in numbers.items()}
        )

    @property
    def loc(self) -> td.TensorDict:
        """Means by key, a TensorDict."""
        return self._numbers(0)

    @property
    def scale(self) -> td.TensorDict:
        """Deviations by key, a TensorDict."""
        return self._numbers(1)

    @property
    def standard_normal(self) -> bool:
        """How they are meant: ``(x - loc) / scale``."""
        return True

    def denorm(self, tensordict: td.TensorDictBase) -> td.TensorDictBase:
        """``tensordict`` with what was normalised, under ``in_keys``."""
        loc, scale, tensordict = self.loc, self.scale, tensordict.copy()
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            if (value := tensordict.get(out, None)) is not None:
                tensordict.set(key, value * scale.get(key) + loc.get(key))
        return tensordict

    def to_observation_norm(self) -> Transform:
        """An :class:`ObservationNorm` with the statistics of now, or several of them in a
        :class:`Compose`.
        """
        loc, scale = self.loc, self.scale
        norms = [
            ObservationNorm(
                loc.get(key), scale.get(key), in_keys=[key], out_keys=[out], standard_normal=True
            )
            for key, out in zip(self.in_keys, self.out_keys, strict=True)
        ]
        return norms[0] if len(norms) == 1 else Compose(*norms)

    def _saved(self, parts: Parts) -> dict[str, Any]:
        raise NotImplementedError

    def _loaded(self, saved: dict[str, Any]) -> Parts:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """The statistics, as TorchRL's transform of this name saves them."""
        parts = _read(self._statistics)
        return {"_extra_state": self._saved(parts) if parts else None}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Goes on with statistics that this transform or TorchRL's has saved, also in environments
        that are stepped already.

        Raises:
            KeyError: there are none in it, but some here.
            ValueError: they are statistics of something else.
        """
        saved = state_dict.get("_extra_state")
        if saved:
            _write(self._statistics, self._rule, self._loaded(saved))
        elif self._statistics.read() is not None:
            raise KeyError(f"no statistics in the state of {type(self).__name__}, which has some")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(decay={self.decay}, eps={self.eps}, in_keys={self.in_keys}, out_keys={self.out_keys})"


class VecNorm(Running):
    """Normalises observations and rewards by running statistics: sums, sums of squares and a count,
    from which older steps fade.

    Each step of environments in lockstep changes the statistics once, also in collectors of one
    worker. In those of several, each environment normalises by the statistics from the beginning of
    its share of a batch and what it has gathered since; what all have gathered is merged when the
    batch is delivered, in the order of environments. Members of a :class:`ParallelEnv` normalise by
    what all of them had gathered before the step, and their own row. Evaluators leave statistics as
    they are.

    Args:
        in_keys: observations, or ``"reward"``; ``["observation", "reward"]`` unless given.
        out_keys: names of the results; those of ``in_keys`` unless given.
        shared_td: None: environments share statistics by this object.
        lock: accepted for TorchRL's sake, without effect.
        decay: what is left of older steps after each step.
        eps: the least variance, and the least deviation.
        shapes: None: those of the environment.
        new_api: make a :class:`VecNormV2` instead.

    Raises:
        ValueError: ``shared_td`` or ``shapes`` are given, or ``out_keys`` are not as many as
            ``in_keys``.

    Example:
        >>> from windrow.envs import GymEnv, TransformedEnv, VecNorm
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), VecNorm(in_keys=["observation"]))
        >>> env.rollout(3)["observation"].shape
        torch.Size([3, 4])
    """

    _rule = "VecNorm"
    SEP = "-<.>-"

    def __init__(
        self,
        in_keys: Keys = None,
        out_keys: Keys = None,
        shared_td: object = None,
        lock: object = None,
        decay: float = 0.9999,
        eps: float = 1e-4,
        shapes: object = None,
        new_api: bool | None = None,
    ) -> None:
        if new_api:
            self.__class__ = VecNormV2  # type: ignore[assignment]
            VecNormV2.__init__(
                self,  # type: ignore[arg-type]
                ["observation", "reward"] if in_keys is None else in_keys,
                out_keys,
                decay=decay,
                eps=eps,
            )
            return
        if shared_td is not None or shapes is not None:
            why = "VecNorm has the shapes of its environment and shares statistics by itself, got shared_td or shapes"
            raise _fence.beyond(self, why)
        self._begin(["observation", "reward"] if in_keys is None else in_keys, out_keys, decay, eps)

    def frozen_copy(self) -> Running:
        """A copy that follows these statistics, and whose environments never change them.

        Raises:
            RuntimeError: there are none.
        """
        self._gathered()
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__getstate__(), _follows=True)
        return other

    def _loc_scale(self, part: list[Any]) -> tuple[Any, Any]:
        total, squares, count = part
        loc = total / count
        return loc, numpy.sqrt(numpy.maximum(squares / count - loc**2, self.eps))

    def _saved(self, parts: Parts) -> dict[str, Any]:
        saved: dict[str, Any] = {}
        for key, part in parts.items():
            for suffix, value in zip(("sum", "ssq", "count"), part, strict=True):
                value = torch.as_tensor([value] if suffix == "count" else value, device="cpu")
                saved[f"{self.SEP.join(path(key))}_{suffix}"] = value
        return saved

    def _loaded(self, saved: dict[str, Any]) -> Parts:
        def part(key: Key, suffix: str) -> Array:
            return torch.as_tensor(saved[f"{self.SEP.join(path(key))}_{suffix}"]).cpu().numpy()

        return {
            key: [part(key, "sum"), part(key, "ssq"), float(part(key, "count")[0])]
            for key in self.in_keys
        }


class VecNormV2(Running):
    """Normalises observations and rewards by running means of them and of their squares.

    Environments in lockstep that this is around at once have statistics each, unless
    ``reduce_batch_dims``; those that a collector of one worker makes of one environment take turns.
    In collectors of several workers, each environment normalises by the statistics from the
    beginning of its share of a batch and what it has gathered since; what all have gathered is
    merged when the batch is delivered, in the order of environments. Evaluators leave them as they
    are.

    Args:
        in_keys: observations, or ``"reward"``.
        out_keys: names of the results; those of ``in_keys`` unless given.
        lock: accepted for TorchRL's sake, without effect.
        stateful: True: statistics are no entries of frames.
        decay: what is left of older steps after each step; 1 weighs all steps alike.
        eps: the least deviation.
        shared_data: None: environments share statistics by this object.
        reduce_batch_dims: whether environments in lockstep have statistics together, of the means
            of their values.

    Raises:
        ValueError: ``stateful`` is False, ``shared_data`` is given, or ``out_keys`` are not as many
            as ``in_keys``.

    Example:
        >>> from windrow.envs import GymEnv, TransformedEnv, VecNormV2
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), VecNormV2(in_keys=["observation"]))
        >>> env.rollout(3)["observation"].shape
        torch.Size([3, 4])
    """

    _rule = "VecNormV2"
    SEP = ".-|-."

    def __init__(
        self,
        in_keys: Keys,
        out_keys: Keys = None,
        *,
        lock: object = None,
        stateful: bool = True,
        decay: float = 0.9999,
        eps: float = 1e-4,
        shared_data: object = None,
        reduce_batch_dims: bool = False,
    ) -> None:
        if not stateful or shared_data is not None:
            why = "VecNormV2 keeps statistics and shares them by itself, got stateful=False or shared_data"
            raise _fence.beyond(self, why)
        self.stateful, self.reduce_batch_dims = True, reduce_batch_dims
        self._begin(in_keys, out_keys, decay, eps)

    def _described(self, plain: bool = False) -> list[Described]:
        ((name, arguments),) = super()._described(plain)
        batched = self._parent is not None and bool(self._parent[0]._recipe(plain=True).is_batched)
        lockstep = "mean" if self.reduce_batch_dims else "apart" if batched else "turns"
        return [(name, {**arguments, "lockstep": lockstep})]

    def _loc_scale(self, part: list[Any]) -> tuple[Any, Any]:
        loc, square, count = part
        kept = loc.dtype.type(1)
        if self.decay != 1:
            # In float32, as TorchRL does it.
            kept = loc.dtype.type(
                1 - numpy.exp(numpy.float32(count) * numpy.float32(numpy.log(self.decay)))
            )
        return loc / kept, numpy.sqrt(numpy.maximum((square - loc**2) / kept, 0)).clip(self.eps)

    def state_dict(self) -> dict[str, Any]:
        """The statistics, as TorchRL's transform of this name saves them."""
        saved = super().state_dict()["_extra_state"]
        return {
            "initialized": torch.tensor(saved is not None, device="cpu"),
            "_extra_state": saved or {},
        }

    def _saved(self, parts: Parts) -> dict[str, Any]:
        def named(kind: str, place: int) -> dict[str, Any]:
            return {
                self.SEP.join((kind, *path(key))): torch.as_tensor(part[place], device="cpu")
                for key, part in parts.items()
            }

        counts = {name: value.to(torch.int64) for name, value in named("count", 2).items()}
        return {**named("loc", 0), **named("var", 1), **counts}

    def _loaded(self, saved: dict[str, Any]) -> Parts:
        def part(kind: str, key: Key) -> Array:
            return torch.as_tensor(saved[self.SEP.join((kind, *path(key)))]).cpu().numpy()

        return {
            key: [part("loc", key), part("var", key), float(part("count", key))]
            for key in self.in_keys
        }
