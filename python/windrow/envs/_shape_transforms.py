"""Transforms of names, shapes, frames and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, ClassVar

from windrow import _fence
from windrow._arguments import one_of
from windrow._keys import Key, path, short
from windrow.envs._recipe import Described, Gymnasium, Many, Recipe
from windrow.envs._transform import Transform, declared

__all__ = [
    "CatFrames",
    "CatTensors",
    "EndOfLifeTransform",
    "ExcludeTransform",
    "FlattenObservation",
    "FrameSkipTransform",
    "NoopResetEnv",
    "PermuteTransform",
    "RenameTransform",
    "SelectTransform",
    "SqueezeTransform",
    "TimeMaxPool",
    "UnsqueezeTransform",
]

Keys = Sequence[Key] | Key | None

#: What stands for the reward and the flags of a step, which are no observations.
_OF_STEPS = {("reward",), ("done",), ("terminated",), ("truncated",)}


def _listed(keys: Keys) -> list[Key]:
    """Keys as a list: a string or a tuple of strings is a single one."""
    single = isinstance(keys, str) or (
        isinstance(keys, tuple) and all(isinstance(name, str) for name in keys)
    )
    several: Any = [keys] if single else keys or ()
    return [short(path(key)) for key in several]


class Keyed(Transform):
    """A transform with ``in_keys`` and ``out_keys``, which are the same unless given."""

    in_keys: Keys
    out_keys: Keys
    _default: ClassVar[tuple[Key, ...]] = ()

    def __post_init__(self) -> None:
        self.in_keys = _listed(self._default if self.in_keys is None else self.in_keys)
        self.out_keys = list(self.in_keys) if self.out_keys is None else _listed(self.out_keys)
        name = type(self).__name__
        if len(self.out_keys) != len(self.in_keys):
            raise ValueError(
                f"{name}: expected as many out_keys as in_keys, {len(self.in_keys)}, got {len(self.out_keys)}"
            )
        for key in self.in_keys:
            if path(key) in _OF_STEPS:
                why = f"{name} changes observations, got {key!r}: the reward and the flags of a step keep name and shape"
                raise _fence.beyond(self, why)

    def _described(self, plain: bool = False) -> list[Described]:
        [(name, arguments)] = super()._described(plain)
        pairs = [
            [key, out]
            for key, out in zip(_listed(self.in_keys), _listed(self.out_keys), strict=True)
        ]
        # Several of the engine's where one reads what another writes.
        chained = any(pair[0] == out for i, pair in enumerate(pairs) for _, out in pairs[:i])
        groups = [[pair] for pair in pairs] if chained else [pairs]
        described: list[Described] = [
            (name, {**arguments, "keys": group}) for group in groups if group
        ]
        inside, outside = (
            _listed(getattr(self, keys, None)) for keys in ("in_keys_inv", "out_keys_inv")
        )
        if inside:
            inverse = [list(pair) for pair in zip(inside, outside or inside, strict=True)]
            described.append((name, {**arguments, "keys": [], "keys_inv": inverse}))
        return described


class Pictures(Keyed):
    """A transform of pictures, unless other keys are given."""

    _default = ("pixels",)


@declared
class CatTensors(Transform):
    """Concatenates observations.

    Args:
        in_keys: the observations; all of one dimension unless given.
        out_key: name of the result.
        dim: the dimension along which they are concatenated, of one environment's observations;
            negative ones count from the end.
        del_keys: whether the observations are left out then.
        unsqueeze_if_oor: whether observations without this dimension are given it, with size one.
        sort: whether they are taken in the order of their names, and not as given.

    Raises:
        ValueError: ``dim`` is not -1 where there are no ``in_keys``.

    Example:
        >>> from windrow.envs import CatTensors, Compose, GymEnv, StepCounter, TransformedEnv
        >>> first = StepCounter()
        >>> second = CatTensors(["observation"], out_key="vector", del_keys=False)
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), Compose(first, second))
        >>> env.rollout(3)["vector"].shape
        torch.Size([3, 4])
    """

    in_keys: Sequence[Key] | None = None
    out_key: Key = "observation_vector"
    dim: int = -1
    del_keys: bool = field(default=True, kw_only=True)
    unsqueeze_if_oor: bool = field(default=False, kw_only=True)
    sort: bool = field(default=True, kw_only=True)
    _passed = ("in_keys", "out_key", "dim", "del_keys", "unsqueeze_if_oor", "sort")

    def __post_init__(self) -> None:
        if self.in_keys is None and self.dim != -1:
            raise ValueError(f"CatTensors: without in_keys, dim is -1, got {self.dim}")
        if self.in_keys is not None:
            keys = _listed(
                list(self.in_keys)
                if isinstance(self.in_keys, tuple) and self.sort
                else self.in_keys
            )
            self.in_keys = (
                sorted(keys, key=lambda key: "_-|-_".join(path(key))) if self.sort else keys
            )

    @property
    def out_keys(self) -> list[Key]:
        """Name of the result, as a list."""
        return [self.out_key]


@declared
class CatFrames(Pictures):
    """Observes the last ``N`` observations as one, the newest last.

    Args:
        N: number of observations.
        dim: the dimension along which they are concatenated, counted from the end.
        in_keys: the observations; ``["pixels"]`` unless given.
        out_keys: names of the results, the same unless given.
        padding: what stands for observations before the first one of an episode: ``"same"``, the
            first one, or ``"constant"``.
        padding_value: the number of ``"constant"``.
        as_inverse: False: the other way round is done to replay buffers only.
        reset_key: None or ``"_reset"``.
        done_key: None or ``"done"``.
        future: False: environments do not know what is to come.
        mask_key: None, for the same reason.

    Raises:
        ValueError: ``N``, ``dim`` or ``padding`` is none of those, or another argument is used that
            replay buffers only know.

    Example:
        >>> from windrow.envs import CatFrames, GymEnv, TransformedEnv
        >>> env = GymEnv("CartPole-v1")
        >>> env = TransformedEnv(env, CatFrames(N=4, dim=-1, in_keys=["observation"]))
        >>> env.rollout(3)["observation"].shape
        torch.Size([3, 16])
    """

    N: int
    dim: int
    in_keys: Keys = None
    out_keys: Keys = None
    padding: str = "same"
    padding_value: float = 0
    as_inverse: bool = False
    reset_key: Key | None = None
    done_key: Key | None = None
    future: bool = False
    mask_key: Key | None = None
    _passed = ("N", "dim", "padding", "padding_value")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.N < 1 or self.dim >= 0:
            raise ValueError(
                f"CatFrames: expected N of 1 or more, and dim below 0, got N={self.N} and dim={self.dim}"
            )
        one_of("same", "constant")("padding", self.padding)
        if self.as_inverse or self.future or self.mask_key is not None:
            why = (
                "as_inverse, future and mask_key are of use to replay buffers, not to environments"
            )
            raise _fence.beyond(self, why)
        _root(self)


@declared
class TimeMaxPool(Keyed):
    """Observes the largest value of each element over the last ``T`` observations. Zeros stand for
    those before the first one.

    Args:
        in_keys: the observations; ``["observation"]`` unless given.
        out_keys: names of the results, the same unless given.
        T: number of observations.
        reset_key: None or ``"_reset"``.

    Raises:
        ValueError: ``T`` is below 1.

    Example:
        >>> from windrow.envs import GymEnv, TimeMaxPool, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), TimeMaxPool(T=2))
        >>> env.rollout(3)["observation"].shape
        torch.Size([3, 4])
    """

    in_keys: Keys = None
    out_keys: Keys = None
    T: int = 1
    reset_key: Key | None = None
    _default = ("observation",)
    _passed = ("T",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.T < 1:
            raise ValueError(f"TimeMaxPool: expected T of 1 or more, got {self.T}")
        _root(self)


@declared
class FlattenObservation(Pictures):
    """Makes one dimension of several.

    Args:
        first_dim: first of the dimensions, counted from the end.
        last_dim: last of them.
        in_keys: the observations; ``["pixels"]`` unless given.
        out_keys: names of the results, the same unless given.
        allow_positive_dim: whether dimensions may be counted from the first one of an environment's
            observation.

    Raises:
        ValueError: a dimension is not negative, without ``allow_positive_dim``.

    Example:
        >>> from windrow.envs import FlattenObservation, GymEnv, TransformedEnv, UnsqueezeTransform
        >>> env = TransformedEnv(GymEnv("CartPole-v1"))
        >>> env = env.append_transform(UnsqueezeTransform(-1, in_keys=["observation"]))
        >>> env = env.append_transform(FlattenObservation(-2, -1, in_keys=["observation"]))
        >>> env.rollout(3)["observation"].shape
        torch.Size([3, 4])
    """

    first_dim: int
    last_dim: int
    in_keys: Keys = None
    out_keys: Keys = None
    allow_positive_dim: bool = False
    _passed = ("first_dim", "last_dim")

    def __post_init__(self) -> None:
        super().__post_init__()
        for dim in (self.first_dim, self.last_dim):
            _negative(self, dim, ValueError)


@declared
class UnsqueezeTransform(Keyed):
    """Adds a dimension of size one.

    Args:
        dim: its place in the new shape, counted from the end.
        allow_positive_dim: whether it may be counted from the first one of an environment's
            observation.
        in_keys: the observations.
        out_keys: names of the results, the same unless given.
        in_keys_inv: actions that a policy gives with the dimension, and the environment takes
            without it.
        out_keys_inv: their names outside; those of ``in_keys_inv`` unless given.

    Raises:
        RuntimeError: ``dim`` is not negative, without ``allow_positive_dim``.

    Example:
        >>> from windrow.envs import GymEnv, TransformedEnv, UnsqueezeTransform
        >>> env = GymEnv("CartPole-v1")
        >>> env = TransformedEnv(env, UnsqueezeTransform(-1, in_keys=["observation"]))
        >>> env.rollout(3)["observation"].shape
        torch.Size([3, 4, 1])
    """

    dim: int
    allow_positive_dim: bool = field(default=False, kw_only=True)
    in_keys: Keys = field(default=None, kw_only=True)
    out_keys: Keys = field(default=None, kw_only=True)
    in_keys_inv: Keys = field(default=None, kw_only=True)
    out_keys_inv: Keys = field(default=None, kw_only=True)
    _passed = ("dim",)

    def __post_init__(self) -> None:
        super().__post_init__()
        _negative(self, self.dim, RuntimeError)


class SqueezeTransform(UnsqueezeTransform):
    """Removes a dimension, where its size is one. Arguments are those of
    :class:`UnsqueezeTransform`, of which it is the opposite.

    Example:
        >>> from windrow.envs import GymEnv, SqueezeTransform, TransformedEnv, UnsqueezeTransform
        >>> env = TransformedEnv(GymEnv("CartPole-v1"))
        >>> env = env.append_transform(UnsqueezeTransform(-1, in_keys=["observation"]))
        >>> env = env.append_transform(SqueezeTransform(-1, in_keys=["observation"]))
        >>> env.rollout(3)["observation"].shape
        torch.Size([3, 4])
    """


@declared
class PermuteTransform(Keyed):
    """Permutes the last dimensions.

    Args:
        dims: the dimensions in their new order, each of ``-len(dims)`` to -1 once.
        in_keys: the observations.
        out_keys: names of the results, the same unless given.
        in_keys_inv: None: actions are not permuted.
        out_keys_inv: None.

    Raises:
        ValueError: ``dims`` are others, or actions are named.

    Example:
        >>> from windrow.envs import GymEnv, PermuteTransform, TransformedEnv, UnsqueezeTransform
        >>> env = TransformedEnv(GymEnv("CartPole-v1"))
        >>> env = env.append_transform(UnsqueezeTransform(-1, in_keys=["observation"]))
        >>> env = env.append_transform(PermuteTransform([-1, -2], in_keys=["observation"]))
        >>> env.rollout(3)["observation"].shape
        torch.Size([3, 1, 4])
    """

    dims: Sequence[int]
    in_keys: Keys = None
    out_keys: Keys = None
    in_keys_inv: Keys = None
    out_keys_inv: Keys = None
    _passed = ("dims",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.dims = list(self.dims)
        if sorted(self.dims) != list(range(-len(self.dims), 0)):
            raise ValueError(f"dims must be each of {-len(self.dims)} to -1 once, got {self.dims}")
        if self.in_keys_inv or self.out_keys_inv:
            why = "PermuteTransform permutes observations only, got in_keys_inv or out_keys_inv"
            raise _fence.beyond(self, why)


@declared
class RenameTransform(Keyed):
    """Observes entries under other names.

    Args:
        in_keys: the observations; a key that holds others stands for all of them.
        out_keys: their new names.
        in_keys_inv: actions of the environment.
        out_keys_inv: their names outside.
        create_copy: whether the observations stay under their old names too.

    Raises:
        ValueError: keys are not as many, or one is both old and new.

    Example:
        >>> from windrow.envs import GymEnv, RenameTransform, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), RenameTransform(["observation"], ["state"]))
        >>> env.rollout(3)["state"].shape
        torch.Size([3, 4])
    """

    in_keys: Keys
    out_keys: Keys
    in_keys_inv: Keys = None
    out_keys_inv: Keys = None
    create_copy: bool = False
    _passed = ("create_copy",)

    def __post_init__(self) -> None:
        super().__post_init__()
        both = {path(key) for key in _listed(self.in_keys)} & {
            path(key) for key in _listed(self.out_keys)
        }
        if both:
            raise ValueError(
                f"in_keys and out_keys have {sorted(map(short, both), key=str)} in common: use one transform after another"
            )


class SelectTransform(Transform):
    """Leaves out all observations but some.

    Args:
        selected_keys: the observations that stay; those that there are not are passed over.
        keep_rewards: True: rewards stay.
        keep_dones: True: ``done``, ``terminated`` and ``truncated`` stay.

    Raises:
        ValueError: rewards or flags shall not stay.

    Example:
        >>> from windrow.envs import Compose, GymEnv, SelectTransform, StepCounter, TransformedEnv
        >>> env = GymEnv("CartPole-v1")
        >>> env = TransformedEnv(env, Compose(StepCounter(), SelectTransform("observation")))
        >>> "step_count" in env.rollout(3)
        False
    """

    _passed = ("selected_keys",)

    def __init__(
        self, *selected_keys: Key, keep_rewards: bool = True, keep_dones: bool = True
    ) -> None:
        self.selected_keys = [short(path(key)) for key in selected_keys]
        kept = {path(key) for key in self.selected_keys}
        if not (keep_rewards or ("reward",) in kept) or not (
            keep_dones or kept >= _OF_STEPS - {("reward",)}
        ):
            why = "rewards, done, terminated and truncated stay: collectors need them"
            raise _fence.beyond(self, why)
        self.keep_rewards, self.keep_dones = keep_rewards, keep_dones


class ExcludeTransform(Transform):
    """Leaves out observations.

    Args:
        excluded_keys: the observations.
        inverse: False: what a policy writes beside actions stays.

    Raises:
        ValueError: a reward or a flag shall be left out, or ``inverse``.

    Example:
        >>> from windrow.envs import Compose, ExcludeTransform, GymEnv, StepCounter, TransformedEnv
        >>> env = GymEnv("CartPole-v1")
        >>> env = TransformedEnv(env, Compose(StepCounter(), ExcludeTransform("step_count")))
        >>> "step_count" in env.rollout(3)
        False
    """

    def __init__(self, *excluded_keys: Key, inverse: bool = False) -> None:
        self.excluded_keys = [short(path(key)) for key in excluded_keys]
        of_steps = [key for key in self.excluded_keys if path(key) in _OF_STEPS]
        if of_steps or inverse:
            got = "inverse=True" if inverse else repr(of_steps)
            why = f"ExcludeTransform leaves out observations, got {got}: collectors need rewards, flags and actions"
            raise _fence.beyond(self, why)
        self.inverse = inverse

    def _described(self, plain: bool = False) -> list[Described]:
        return (
            [("ExcludeTransform", {"excluded_keys": self.excluded_keys})]
            if self.excluded_keys
            else []
        )


@declared
class FrameSkipTransform(Transform):
    """Takes every action several times, or until the episode ends: rewards add up, and the last
    observation is seen.

    Transforms inside see every step, a :class:`StepCounter` counts it; those outside see every
    action.

    Args:
        frame_skip: how often.

    Raises:
        ValueError: it is below 1.

    Example:
        >>> from windrow.envs import FrameSkipTransform, GymEnv, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), FrameSkipTransform(4))
        >>> env.rollout(1)["next", "reward"].flatten()
        tensor([4.])
    """

    frame_skip: int = 1

    def __post_init__(self) -> None:
        if self.frame_skip < 1:
            raise ValueError(f"frame_skip should be 1 or more, got {self.frame_skip}")

    def _described(self, plain: bool = False) -> list[Described]:
        return (
            [("FrameSkipTransform", {"frame_skip": self.frame_skip})] if self.frame_skip > 1 else []
        )


@declared
class NoopResetEnv(Transform):
    """Begins each episode with steps under random actions, which nobody sees.

    A reset fails where 11 episodes have ended within these steps. The numbers follow from the
    environment's seed.

    Args:
        noops: number of steps.
        random: whether the number is drawn, from 0 to ``noops - 1``.

    Example:
        >>> from windrow.envs import GymEnv, NoopResetEnv, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), NoopResetEnv(3))
        >>> env.rollout(3).shape
        torch.Size([3])
    """

    noops: int = 30
    random: bool = True
    _passed = ("noops", "random")


@declared
class EndOfLifeTransform(Transform):
    """Observes the lives of a game (``int64 []``), and whether a step has cost one or ended the
    episode (``bool [1]``).

    Args:
        eol_key: name of the flag.
        lives_key: name of the lives, which are read from the entry ``"lives"`` of ``info``, or
            observed already.
        done_key: ``"done"``, ``"terminated"`` or ``"truncated"``.
        eol_attribute: where a game has its lives; those of the Arcade Learning Environment are in
            ``info``, too.

    Raises:
        ValueError: a key is none of those, or the attribute is another one.

    Example:
        >>> from windrow.envs import EndOfLifeTransform, GymEnv, TransformedEnv
        >>> env = TransformedEnv(GymEnv("ALE/Breakout-v5"), EndOfLifeTransform())
        >>> env.rollout(2)["end-of-life"].shape
        torch.Size([2, 1])
    """

    eol_key: Key = "end-of-life"
    lives_key: Key = "lives"
    done_key: str = "done"
    eol_attribute: str = "unwrapped.ale.lives"

    def __post_init__(self) -> None:
        if isinstance(self.done_key, tuple):
            why = f"done_key has to be a flag of the whole environment, got {self.done_key!r}"
            raise _fence.beyond(self, why)
        one_of("done", "terminated", "truncated")("done_key", self.done_key)
        if self.eol_attribute != "unwrapped.ale.lives":
            why = (
                f"lives are read from info['lives'] where eol_attribute is 'unwrapped.ale.lives', got {self.eol_attribute!r}: "
                "observe them, and name them by lives_key"
            )
            raise _fence.beyond(self, why)

    def _prepare(self, recipe: Recipe) -> Recipe:
        if isinstance(recipe, Many):
            return replace(recipe, members=tuple(map(self._prepare, recipe.members)))
        if isinstance(recipe, Gymnasium) and ("lives",) not in {
            path(key) for key, _, _ in recipe.info
        }:
            return replace(recipe, info=(*recipe.info, ("lives", "int64", ())))
        return recipe

    def _described(self, plain: bool = False) -> list[Described]:
        names = {name: getattr(self, name) for name in ("eol_key", "lives_key", "done_key")}
        renamed: list[Described] = [("RenameTransform", {"keys": [["lives", self.lives_key]]})]
        return [
            *(renamed if path(self.lives_key) != ("lives",) else []),
            ("EndOfLifeTransform", names),
        ]

    def register_keys(self, loss_or_advantage: Any) -> None:
        """Tells a loss module that the flag ends episodes."""
        loss_or_advantage.set_keys(done=self.eol_key, terminated=self.eol_key)


def _root(transform: CatFrames | TimeMaxPool) -> None:
    """Fails where resets or flags other than those of the whole environment are named."""
    for name, there_is in (("reset_key", "_reset"), ("done_key", "done")):
        given = getattr(transform, name, None)
        if given is not None and path(given) != (there_is,):
            raise _fence.beyond(transform, f"{name} can only be {there_is!r}, got {given!r}")


def _negative(
    transform: FlattenObservation | UnsqueezeTransform, dim: int, error: type[Exception]
) -> None:
    if dim >= 0 and not transform.allow_positive_dim:
        raise error(
            f"{type(transform).__name__}: a dimension is counted from the end, got {dim}: or set allow_positive_dim"
        )
