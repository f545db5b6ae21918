from __future__ import annotations

from typing import Any

from windrow._numbers import real, whole_or_none
from windrow._passed_over import pass_over
from windrow.data._arguments import OF_PRIORITIES, OF_SLICES

Key = str | tuple[str, ...]


def names_of(key: Any) -> list[str] | None:
    """The names that ``key`` consists of."""
    if key is None:
        return None
    return [key] if isinstance(key, str) else list(key)


class _Sampler:
    kind = "random"

    def _parts(self) -> dict[str, Any]:
        return {"kind": self.kind, "drop_last": False, "shuffle": True, "priorities": None, "slices": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class RandomSampler(_Sampler):
    """All frames alike, with replacement."""


class SamplerWithoutReplacement(_Sampler):
    """Every frame once before any comes again: iteration over the buffer ends when each had its turn.

    Args:
        drop_last: leave out what does not fill a last batch.
        shuffle: draw in random order, not in that of the buffer.
    """

    kind = "without_replacement"

    def __init__(self, drop_last: bool = False, shuffle: bool = True) -> None:
        self.drop_last = drop_last
        self.shuffle = shuffle

    def _parts(self) -> dict[str, Any]:
        return {**super()._parts(), "drop_last": self.drop_last, "shuffle": self.shuffle}


class SliceSampler(_Sampler):
    """Pieces of trajectories, end to end; none goes beyond its trajectory.

    Args:
        num_slices: pieces in a batch.
        slice_len: frames of each piece. One of these two is needed.
        end_key: the flag that ends an episode; ``("next", "done")`` where nothing is said.
        end_keys: the same as a list of one.
        traj_key: the id of the trajectory; ``("collector", "traj_ids")`` or ``"episode"`` where nothing is said.
        truncated_key: the flag that is set with the last frame of each piece; None leaves flags as they are.
        strict_length: whether only trajectories as long as a piece are drawn from. Otherwise shorter ones come whole.
        pad_output: whether short pieces are filled up by repeating their last frame, with ``("collector", "mask")``.
        span: how many steps a piece may begin before its trajectory, or end behind it: True for all but one, a number, or
            one of these for each side.
        cache_values: boundaries are always kept.
        without_effect: what TorchRL's samplers of slices can be told besides; a warning says why it has no effect.

    Raises:
        TypeError: both ``num_slices`` and ``slice_len`` are given, or neither is, or an argument that there is not.
        RuntimeError: both ``end_key`` and ``end_keys`` are given.
        ValueError: arguments that contradict each other.
    """

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        end_key: Key | None = None,
        end_keys: list[Key] | None = None,
        traj_key: Key | None = None,
        truncated_key: Key | None = ("next", "truncated"),
        strict_length: bool = True,
        pad_output: bool = False,
        span: Any = False,
        cache_values: bool = False,
        **without_effect: Any,
    ) -> None:
        pass_over(type(self).__name__, without_effect, OF_SLICES)
        if (num_slices is None) == (slice_len is None):
            raise TypeError("a SliceSampler needs either num_slices or slice_len")
        if end_keys is not None:
            if end_key is not None:
                raise RuntimeError("end_key and end_keys: expected one of them")
            if len(end_keys) != 1:
                raise ValueError(f"end_keys must have one entry, got {len(end_keys)}")
            end_key = end_keys[0]
        if pad_output and strict_length:
            raise ValueError("pad_output makes sense with strict_length=False only")
        sides = span if isinstance(span, (list, tuple)) else (span, span)
        self._slices = {
            "num_slices": whole_or_none("num_slices", num_slices, 1),
            "slice_len": whole_or_none("slice_len", slice_len, 1),
            "end_key": names_of(end_key),
            "traj_key": names_of(traj_key),
            "truncated_key": names_of(truncated_key),
            "strict_length": bool(strict_length),
            "pad_output": bool(pad_output),
            "span": tuple(None if side is True else int(side) for side in sides),
        }

    def _parts(self) -> dict[str, Any]:
        return {**super()._parts(), "slices": self._slices}


class SliceSamplerWithoutReplacement(SliceSampler):
    """Pieces of trajectories, one of every trajectory before any has another.

    A pass over the trajectories takes in what is written meanwhile and goes without what is overwritten. No batch has two
    pieces of one trajectory: where there are fewer trajectories than pieces in a batch, it is shorter. Where in its
    trajectory a piece begins is random. Iteration over the buffer ends with the pass.

    Args:
        drop_last: leave out trajectories at the end of a pass that do not fill a last batch.
        shuffle: draw trajectories in random order, not in that in which they were written.
        slices: the arguments of :class:`SliceSampler`.
    """

    kind = "without_replacement"

    def __init__(self, *, drop_last: bool = False, shuffle: bool = True, **slices: Any) -> None:
        super().__init__(**slices)
        self.drop_last = drop_last
        self.shuffle = shuffle

    def _parts(self) -> dict[str, Any]:
        return {**super()._parts(), "drop_last": self.drop_last, "shuffle": self.shuffle}


class PrioritizedSampler(_Sampler):
    """Frames in proportion to ``(priority + eps) ** alpha``, with ``"priority_weight"``.

    Args:
        max_capacity: frames of the buffer, in code that names them: the buffer knows.
        alpha: exponent of priorities.
        beta: exponent of weights.
        eps: what is added to priorities.
        dtype: has no effect: priorities are float32.
        reduction: how several priorities of a frame make one: ``"max"``, ``"min"``, ``"mean"``, ``"median"`` or ``"sum"``.
        without_effect: what TorchRL's sampler can be told besides; a warning says why it has no effect.

    Raises:
        ValueError: there is no such ``reduction``.
    """

    def __init__(
        self,
        max_capacity: int | None = None,
        alpha: float = 0.7,
        beta: float = 0.9,
        eps: float = 1e-8,
        dtype: Any = None,
        reduction: str = "max",
        **without_effect: Any,
    ) -> None:
        pass_over(type(self).__name__, {**without_effect, **_unusual(dtype)}, OF_PRIORITIES)
        self.max_capacity = max_capacity
        self.alpha, self.beta, self.eps = real("alpha", alpha), real("beta", beta), real("eps", eps)
        self.reduction = _known(reduction)

    def _parts(self) -> dict[str, Any]:
        return {**super()._parts(), "priorities": _priorities(self)}


class PrioritizedSliceSampler(SliceSampler):
    """Pieces of trajectories, each chosen by the priority of the frame that it begins with.

    Args:
        max_capacity: as of :class:`PrioritizedSampler`, as are the five that follow.
        alpha: exponent of priorities.
        beta: exponent of weights.
        eps: what is added to priorities.
        dtype: has no effect: priorities are float32.
        reduction: how several priorities of a frame make one.
        slices: the arguments of :class:`SliceSampler`.
    """

    def __init__(
        self,
        max_capacity: int | None = None,
        alpha: float = 0.7,
        beta: float = 0.9,
        eps: float = 1e-8,
        dtype: Any = None,
        reduction: str = "max",
        **slices: Any,
    ) -> None:
        of_priorities = {name: slices.pop(name) for name in OF_PRIORITIES if name in slices}
        pass_over(type(self).__name__, {**of_priorities, **_unusual(dtype)}, OF_PRIORITIES)
        super().__init__(**slices)
        self.max_capacity = max_capacity
        self.alpha, self.beta, self.eps = real("alpha", alpha), real("beta", beta), real("eps", eps)
        self.reduction = _known(reduction)

    def _parts(self) -> dict[str, Any]:
        return {**super()._parts(), "priorities": _priorities(self)}


def _priorities(sampler: PrioritizedSampler | PrioritizedSliceSampler) -> dict[str, Any]:
    """What a sampler says of priorities; the buffer adds the key that new frames have theirs under."""
    return {"exponents": (sampler.alpha, sampler.beta, sampler.eps), "key": None, "reduction": sampler.reduction}


def _unusual(dtype: Any) -> dict[str, Any]:
    """``dtype`` as an argument to warn of, unless it is what priorities have."""
    return {} if dtype is None or str(dtype) == "torch.float32" else {"dtype": dtype}


def _known(reduction: str) -> str:
    names = ("max", "min", "mean", "median", "sum")
    if reduction not in names:
        raise ValueError(f"reduction must be one of {', '.join(names)}, got {reduction!r}")
    return reduction
