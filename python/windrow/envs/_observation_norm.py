"""Observations that are scaled and shifted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windrow import _fence
from windrow._keys import Key, path, short
from windrow._lazy import numpy, torch
from windrow._types import Array, Numbers
from windrow._warnings import warn
from windrow._windrow import EnvHandle
from windrow.envs._described import Facts
from windrow.envs._recipe import Described
from windrow.envs._transform import Transform

Stats = dict[tuple[str, ...], tuple[Any, Any]]

FRAMES_FOR_STATISTICS = 1000
"""Random frames that statistics are estimated from where none were given."""


class ObservationNorm(Transform):
    """Scales and shifts observations: ``x * scale + loc``, or ``(x - loc) / scale`` when
    ``standard_normal``.

    Without ``loc`` and ``scale`` they are taken from :meth:`init_stats`; without that, estimated
    from 1000 random frames at first use, which a warning says once.

    Args:
        loc: a number, or one for each element.
        scale: the same.
        in_keys: observations that are normalised.
        out_keys: names of the results; those of ``in_keys`` unless given.
        in_keys_inv: None: actions are not normalised.
        out_keys_inv: None.
        standard_normal: how the numbers are meant, see above.
        eps: the smallest deviation that statistics may have.

    Raises:
        RuntimeError: there are no ``in_keys``.
        ValueError: one of ``loc`` and ``scale`` is given without the other, or ``out_keys`` are not
            as many.

    Example:
        >>> from windrow.envs import GymEnv, ObservationNorm, TransformedEnv
        >>> env = GymEnv("CartPole-v1")
        >>> env = TransformedEnv(env, ObservationNorm(loc=0.0, scale=2.0, in_keys=["observation"]))
        >>> env.rollout(3)["observation"].shape
        torch.Size([3, 4])
    """

    def __init__(
        self,
        loc: Numbers | None = None,
        scale: Numbers | None = None,
        in_keys: Sequence[Key] | None = None,
        out_keys: Sequence[Key] | None = None,
        in_keys_inv: Sequence[Key] | None = None,
        out_keys_inv: Sequence[Key] | None = None,
        standard_normal: bool = False,
        eps: float = 1e-6,
    ) -> None:
        if not in_keys:
            raise RuntimeError("ObservationNorm needs in_keys: the observations to be normalised")
        if (loc is None) != (scale is None):
            raise ValueError("ObservationNorm takes both loc and scale, or neither")
        if in_keys_inv or out_keys_inv:
            why = "ObservationNorm normalises observations only, got in_keys_inv or out_keys_inv"
            raise _fence.beyond(self, why)
        self.in_keys = [path(key) for key in in_keys]
        self.out_keys = self.in_keys if out_keys is None else [path(key) for key in out_keys]
        if len(self.out_keys) != len(self.in_keys):
            raise ValueError(
                f"expected as many out_keys as in_keys, {len(self.in_keys)}, got {len(self.out_keys)}"
            )
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            if out != key and len(out) != 1:
                why = f"an out_key that is not its in_key has one name, got {out!r}"
                raise _fence.beyond(self, why)
        self.standard_normal, self.eps = bool(standard_normal), eps
        #: What is added and the factor, or, where ``standard_normal``, mean and deviation, for each
        #: of the keys.
        self._stats: Stats | None = (
            None if loc is None else dict.fromkeys(self.in_keys, (_numbers(loc), _numbers(scale)))
        )

    @property
    def initialized(self) -> bool:
        """Whether there are numbers to normalise with."""
        return self._stats is not None

    @property
    def loc(self) -> torch.Tensor | None:
        """What is added (or subtracted first), for the first of the keys; None before there is
        any.
        """
        return self._first(0)

    @property
    def scale(self) -> torch.Tensor | None:
        """The factor (or divisor), for the first of the keys; None before there is any."""
        return self._first(1)

    def _first(self, place: int) -> torch.Tensor | None:
        return None if self._stats is None else _tensor(self._stats[self.in_keys[0]][place])

    def init_stats(
        self,
        num_iter: int,
        reduce_dim: int | tuple[int, ...] = 0,
        cat_dim: int | None = None,
        key: Key | None = None,
        keep_dims: tuple[int, ...] | None = None,
    ) -> None:
        """Takes mean and deviation of ``num_iter`` steps with random actions.

        Args:
            num_iter: steps of each environment.
            reduce_dim: dimensions of ``[*batch, time, *observation]`` that are averaged over: those
                of the environments and of time have to be among them, which 0 alone stands for.
            cat_dim: accepted for TorchRL's sake, one of ``reduce_dim``: steps always follow each
                other in time.
            key: the observation that is looked at, also as ``("next", ...)``; each has its own
                statistics unless given.
            keep_dims: accepted for TorchRL's sake: what is averaged over keeps its dimension where
                it has to.

        Raises:
            RuntimeError: there are statistics already, or the transform belongs to no environment.
            ValueError: ``reduce_dim`` leaves out environments or time, or has no such dimension as
                an observation, or ``cat_dim`` is none of it.
        """
        if self.initialized:
            raise RuntimeError(
                "ObservationNorm has loc and scale already: they were given, taken before, or estimated when the environment was "
                "first reset or given to a collector; call init_stats before that"
            )
        inside = self._inside()
        if inside is None:
            raise RuntimeError(
                "init_stats steps the environment: put ObservationNorm into a TransformedEnv first"
            )
        handle = EnvHandle(inside)
        facts = Facts(handle)
        stats: Stats = {}
        wanted = [short(name) for name in self.in_keys] if key is None else [key]
        for name, frames in _observe(facts, handle, wanted, num_iter).items():
            dims = _reduced(reduce_dim, cat_dim, len(facts.batch) + 1, frames.ndim - 1)
            full = frames.shape[1:]
            mean = numpy.broadcast_to(frames.mean(axis=dims, keepdims=True)[0], full)
            deviation = numpy.broadcast_to(
                frames.std(axis=dims, ddof=1, keepdims=True)[0].clip(self.eps), full
            )
            pair = (mean, deviation) if self.standard_normal else (-mean / deviation, 1 / deviation)
            stats.update(dict.fromkeys([path(name)] if key is None else self.in_keys, pair))
        self._stats = stats

    def _described(self, plain: bool = False) -> list[Described]:
        if not self.initialized and not plain:
            warn(
                f"ObservationNorm has no statistics: estimating them from {FRAMES_FOR_STATISTICS} random frames"
            )
            inside = self._inside()
            num_envs = 1 if inside is None else EnvHandle(inside).describe()["num_envs"]
            self.init_stats(-(-FRAMES_FOR_STATISTICS // num_envs))
        described: list[Described] = []
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            loc, scale = (
                (_numbers(1), _numbers(1)) if plain or self._stats is None else self._stats[key]
            )
            if self.standard_normal:
                loc, scale = -loc / scale, 1 / scale
            numbers = {"loc": loc.ravel().tolist(), "scale": scale.ravel().tolist()}
            described.append(
                (
                    "ObservationNorm",
                    {"in_key": short(key), "out_key": None if out == key else out[0], **numbers},
                )
            )
        return described

    def state_dict(self) -> dict[str, Any]:
        """The statistics, if there are any, as TorchRL has them: one ``loc`` and one ``scale``, or
        a dictionary of them where observations have different ones.
        """
        if self._stats is None:
            return {}
        state: dict[str, Any] = {
            "standard_normal": torch.tensor(self.standard_normal, device="cpu")
        }
        for place, part in enumerate(("loc", "scale")):
            values = {".".join(key): _tensor(pair[place]) for key, pair in self._stats.items()}
            first, *others = values.values()
            state[part] = (
                values if any(not torch.equal(first, other) for other in others) else first
            )
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Takes over what :meth:`state_dict` gave, here or in TorchRL."""
        if state_dict:
            loc, scale = (
                {
                    key: _numbers(given[".".join(key)] if isinstance(given, dict) else given)
                    for key in self.in_keys
                }
                for given in (state_dict["loc"], state_dict["scale"])
            )
            self._stats = {key: (loc[key], scale[key]) for key in self.in_keys}
            self.standard_normal = bool(state_dict.get("standard_normal", self.standard_normal))

    def __repr__(self) -> str:
        keys = [".".join(key) for key in self.in_keys]
        return f"ObservationNorm(in_keys={keys}, initialized={self.initialized})"


def _reduced(
    given: int | tuple[int, ...], cat_dim: int | None, lead: int, own: int
) -> tuple[int, ...]:
    """The dimensions of ``[frames, *observation]`` that are averaged over, where ``given`` are
    those of TorchRL, with ``lead`` dimensions for environments and time in place of frames, and
    ``own`` of the observation.
    """
    dims = (given,) if isinstance(given, int) else tuple(given)
    outside = [dim for dim in dims if not -lead - own <= dim < lead + own]
    if outside:
        raise ValueError(
            f"reduce_dim={given}: observations have {lead + own} dimensions, environments and time included"
        )
    reduced = {dim % (lead + own) for dim in dims}
    if cat_dim is not None and cat_dim % (lead + own) not in reduced:
        raise ValueError(f"cat_dim must be one of reduce_dim={given}, got {cat_dim}")
    missing = set(range(lead)) - reduced
    if missing and dims != (0,):
        needed = tuple(range(lead))
        raise ValueError(
            f"reduce_dim must have {', '.join(map(str, needed))} in it, environments and time, got {given}"
        )
    return (0, *sorted(dim - lead + 1 for dim in reduced if dim >= lead))


def _numbers(values: object) -> Array:
    values = values.detach().cpu().numpy() if hasattr(values, "detach") else values
    return numpy.atleast_1d(numpy.asarray(values, dtype=numpy.float64))


def _tensor(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device="cpu")


def _observe(facts: Facts, handle: EnvHandle, keys: list[Key], steps: int) -> dict[Key, Any]:
    """Observations ``keys`` of ``steps`` steps with random actions, ``[frames, *shape]`` each: the
    same for all environments of one recipe.
    """
    observed = {leaf.key: place for place, leaf in enumerate(facts.observation)}
    places: dict[Key, int] = {}
    for key in keys:
        # After a step, an observation is under "next".
        own = short(path(key)[1:]) if path(key)[0] == "next" else key
        if own not in observed:
            raise KeyError(f"{facts.id} has no observation {own!r}, it has {list(observed)}")
        places[key] = observed[own]
    noise = numpy.random.default_rng(0)
    which = list(range(facts.num_envs))
    arrays = handle.reset(which, list(which))
    seen: dict[Key, list[Any]] = {key: [] for key in keys}
    for _ in range(steps):
        masks = {action: arrays[observed[mask]] for action, mask in facts.masks.items()}
        taken = [facts.draw_action(leaf, noise, masks.get(leaf.key)) for leaf in facts.action]
        arrays, _, terminated, truncated = handle.step(taken)
        for key, frames in seen.items():
            frames.append(arrays[places[key]].astype(numpy.float64))
        ended = [env for env in which if terminated[env] or truncated[env]]
        if ended:
            arrays = handle.reset(ended, [None] * len(ended))
    return {key: numpy.concatenate(frames) for key, frames in seen.items()}
