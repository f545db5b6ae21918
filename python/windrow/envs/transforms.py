"""What is done to environments: counted, summed, marked, normalised. The engine does it, not Python."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from windrow._windrow import EnvHandle, EnvRecipe
from windrow.envs._base import EnvBase, Key
from windrow.envs._theirs import of_torchrl

FRAMES_FOR_STATISTICS = 1000
"""Random frames that statistics are estimated from where none were given."""


class Transform:
    """One thing that is done to an environment."""

    _parent: _Parent | None = None

    def _around(self, recipe: EnvRecipe) -> EnvRecipe:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Parent:
    """What a transform is put around."""

    def __init__(self, base: EnvBase, before: Sequence[Transform]) -> None:
        self.base, self.before = base, list(before)

    def recipe(self) -> EnvRecipe:
        recipe = self.base._recipe()
        for transform in self.before:
            recipe = transform._around(recipe)
        return recipe


class StepCounter(Transform):
    """Counts the steps of each episode (``int64 [1]``), and may end it.

    An episode that is truncated ends here, so ``("next", "truncated")`` is True where it does. A flag of another name is
    observed besides, ``bool [1]``, and need not end the episode.

    Arguments:
        max_steps: truncates an episode after so many steps; None never does.
        truncated_key: name of the flag that is raised then.
        step_count_key: name of the count.
        update_done: whether the episode ends then; it always does with the flag ``"truncated"``.

    Raises:
        ValueError: ``max_steps`` is below 1, a key is no string, or an episode would go on although it is truncated.
    """

    def __init__(
        self,
        max_steps: int | None = None,
        truncated_key: str = "truncated",
        step_count_key: str = "step_count",
        update_done: bool = True,
    ) -> None:
        if max_steps is not None and max_steps < 1:
            raise ValueError(f"max_steps must be 1 or more, got {max_steps}")
        if not update_done and truncated_key == "truncated":
            raise ValueError(
                "update_done=False: an episode that is truncated ends, so a flag that does not end it needs another truncated_key"
            )
        self.max_steps = max_steps
        self.truncated_key = _name("truncated_key", truncated_key)
        self.step_count_key = _name("step_count_key", step_count_key)
        self.update_done = update_done

    def _around(self, recipe: EnvRecipe) -> EnvRecipe:
        recipe = recipe.step_counter(self.step_count_key, self.max_steps if self.update_done else None)
        if self.max_steps is not None and self.truncated_key != "truncated":
            recipe = recipe.limit_flag(self.truncated_key, self.max_steps)
        return recipe

    def __repr__(self) -> str:
        return f"StepCounter(max_steps={self.max_steps})"


class RewardSum(Transform):
    """Sums the rewards of each episode up (``float32 [1]``).

    Arguments:
        in_keys: ``["reward"]``, the only reward that there is.
        out_keys: name of the sum; ``["episode_reward"]`` unless given.
        reset_keys: ``["_reset"]``: sums begin anew with each episode.

    Raises:
        ValueError: one of the keys is unknown, or there is not one ``out_key``.
    """

    def __init__(
        self,
        in_keys: Sequence[Key] | None = None,
        out_keys: Sequence[Key] | None = None,
        reset_keys: Sequence[Key] | None = None,
    ) -> None:
        _only("in_keys", list(in_keys or ["reward"]), ["reward"])
        _only("reset_keys", list(reset_keys or ["_reset"]), ["_reset"])
        keys = ["episode_reward"] if out_keys is None else list(out_keys)
        if len(keys) != 1 or not keys[0]:
            raise ValueError(f"RewardSum sums one reward up: expected one of out_keys, got {keys}")
        self.out_key = tuple(_name("out_keys", name) for name in _path(keys[0]))

    def _around(self, recipe: EnvRecipe) -> EnvRecipe:
        return recipe.reward_sum(list(self.out_key))


class InitTracker(Transform):
    """Marks the first step of each episode (``bool [1]``).

    Arguments:
        init_key: name of the mark.

    Raises:
        ValueError: it is no string.
    """

    def __init__(self, init_key: str = "is_init") -> None:
        self.init_key = _name("init_key", init_key)

    def _around(self, recipe: EnvRecipe) -> EnvRecipe:
        return recipe.init_tracker(self.init_key)


class DoubleToFloat(Transform):
    """Narrows observations of ``float64`` to ``float32``, as networks take them: those in ``in_keys``, or all."""

    def __init__(
        self,
        in_keys: Sequence[Key] | None = None,
        out_keys: Sequence[Key] | None = None,
        in_keys_inv: Sequence[Key] | None = None,
        out_keys_inv: Sequence[Key] | None = None,
    ) -> None:
        _only("out_keys", list(out_keys or in_keys or []), list(in_keys or []))
        # Actions are cast to what the environment takes in any case.
        self.in_keys = None if in_keys is None else [_path(key) for key in in_keys]

    def _around(self, recipe: EnvRecipe) -> EnvRecipe:
        return recipe.double_to_float(None if self.in_keys is None else [list(key) for key in self.in_keys])


class ObservationNorm(Transform):
    """Scales and shifts observations: ``x * scale + loc``, or ``(x - loc) / scale`` when ``standard_normal``.

    Without ``loc`` and ``scale`` they are taken from :meth:`init_stats`; without that, estimated from 1000 random frames
    at first use, which is said once.

    Arguments:
        loc: a number, or one for each element.
        scale: the same.
        in_keys: observations that are normalised.
        out_keys: names of the results; those of ``in_keys`` unless given.
        standard_normal: how the numbers are meant, see above.
        eps: the smallest deviation that statistics may have.

    Raises:
        RuntimeError: there are no ``in_keys``.
        ValueError: one of ``loc`` and ``scale`` is given without the other, or ``out_keys`` are not as many.
    """

    def __init__(
        self,
        loc: Any = None,
        scale: Any = None,
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
            raise ValueError("ObservationNorm normalises observations only, got in_keys_inv or out_keys_inv")
        self.in_keys = [_path(key) for key in in_keys]
        self.out_keys = self.in_keys if out_keys is None else [_path(key) for key in out_keys]
        if len(self.out_keys) != len(self.in_keys):
            raise ValueError(f"{len(self.out_keys)} out_keys for {len(self.in_keys)} in_keys")
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            if out != key and len(out) != 1:
                raise ValueError(f"an out_key that is not its in_key has one name, got {out!r}")
        self.standard_normal, self.eps = standard_normal, eps
        self._loc = None if loc is None else {key: _numbers(loc) for key in self.in_keys}
        self._scale = None if scale is None else {key: _numbers(scale) for key in self.in_keys}

    @property
    def initialized(self) -> bool:
        """Whether there are numbers to normalise with."""
        return self._loc is not None

    @property
    def loc(self) -> Any:
        """What is added (or subtracted first), for the first of the keys; None before there is any."""
        return None if self._loc is None else _tensor(self._loc[self.in_keys[0]])

    @property
    def scale(self) -> Any:
        """The factor (or divisor), for the first of the keys; None before there is any."""
        return None if self._scale is None else _tensor(self._scale[self.in_keys[0]])

    def init_stats(
        self,
        num_iter: int,
        reduce_dim: int | tuple[int, ...] = 0,
        cat_dim: int | None = None,
        key: Key | None = None,
        keep_dims: tuple[int, ...] | None = None,
    ) -> None:
        """Takes mean and deviation of ``num_iter`` steps with random actions.

        Arguments:
            num_iter: steps; with several environments, each makes so many.
            reduce_dim: dimensions of ``[frames, *observation]`` that are averaged over; 0 has to be among them.
            cat_dim: accepted for TorchRL's sake: frames always follow each other.
            key: the observation that is looked at; each has its own statistics unless given.
            keep_dims: accepted for TorchRL's sake: what is averaged over keeps its dimension where it has to.

        Raises:
            RuntimeError: there are statistics already, or the transform belongs to no environment.
        """
        if self.initialized:
            raise RuntimeError("ObservationNorm has loc and scale already")
        if self._parent is None:
            raise RuntimeError("init_stats steps the environment: put ObservationNorm into a TransformedEnv first")
        handle = EnvHandle(self._parent.recipe())
        loc, scale = {}, {}
        for name, frames in _observe(handle, self.in_keys if key is None else [_path(key)], num_iter).items():
            dims = (reduce_dim,) if isinstance(reduce_dim, int) else tuple(reduce_dim)
            dims = tuple(dim % frames.ndim for dim in dims)
            if 0 not in dims:
                raise ValueError(f"reduce_dim must have 0 in it, the dimension of frames, got {reduce_dim}")
            full = frames.shape[1:]
            mean = _broadcast(frames.mean(axis=dims, keepdims=True)[0], full)
            deviation = _broadcast(frames.std(axis=dims, ddof=1, keepdims=True)[0].clip(self.eps), full)
            for target in self.in_keys if key is not None else [name]:
                loc[target] = mean if self.standard_normal else -mean / deviation
                scale[target] = deviation if self.standard_normal else 1 / deviation
        self._loc, self._scale = loc, scale

    def _around(self, recipe: EnvRecipe) -> EnvRecipe:
        if not self.initialized:
            warnings.warn(
                f"ObservationNorm has no statistics: estimating them from {FRAMES_FOR_STATISTICS} random frames",
                UserWarning,
                stacklevel=2,
            )
            handle_envs = EnvHandle(self._parent.recipe()).num_envs if self._parent else 1
            self.init_stats(-(-FRAMES_FOR_STATISTICS // handle_envs))
        assert self._loc is not None and self._scale is not None
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            loc, scale = self._loc[key], self._scale[key]
            if self.standard_normal:
                loc, scale = -loc / scale, 1 / scale
            name = None if out == key else out[0]
            recipe = recipe.observation_norm(list(key), loc.ravel().tolist(), scale.ravel().tolist(), name)
        return recipe

    def state_dict(self) -> dict[str, Any]:
        """The statistics, if there are any."""
        if self._loc is None or self._scale is None:
            return {}
        names = [".".join(key) for key in self.in_keys]
        return {
            "loc": {name: _tensor(self._loc[key]) for name, key in zip(names, self.in_keys, strict=True)},
            "scale": {name: _tensor(self._scale[key]) for name, key in zip(names, self.in_keys, strict=True)},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what :meth:`state_dict` gave."""
        if state_dict:
            self._loc = {key: _numbers(state_dict["loc"][".".join(key)]) for key in self.in_keys}
            self._scale = {key: _numbers(state_dict["scale"][".".join(key)]) for key in self.in_keys}

    def __repr__(self) -> str:
        keys = [".".join(key) for key in self.in_keys]
        return f"ObservationNorm(in_keys={keys}, initialized={self.initialized})"


class Compose(Transform):
    """Several transforms, the first nearest to the environment."""

    def __init__(self, *transforms: Transform) -> None:
        self.transforms: list[Transform] = []
        for transform in transforms:
            self.append(transform)

    def append(self, transform: Transform) -> None:
        """Adds a transform around the others."""
        self.transforms += transform.transforms if isinstance(transform, Compose) else [_checked(transform)]

    def __getitem__(self, index: int) -> Transform:
        return self.transforms[index]

    def __len__(self) -> int:
        return len(self.transforms)

    def __iter__(self) -> Iterator[Transform]:
        return iter(self.transforms)

    def _around(self, recipe: EnvRecipe) -> EnvRecipe:
        for transform in self.transforms:
            recipe = transform._around(recipe)
        return recipe

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.transforms))})"


class TransformedEnv(EnvBase):
    """An environment with transforms around it.

    Arguments:
        env: an environment of windrow, or anything that :class:`GymWrapper` or a collector takes.
        transform: one transform, or a :class:`Compose` of several.
        device: where tensors are put; where ``env`` puts them unless given.
    """

    def __init__(self, env: Any, transform: Transform | None = None, device: Any = None) -> None:
        self.base_env = env if isinstance(env, EnvBase) else _Wrapped(env)
        super().__init__(device if device is not None else self.base_env._device)
        self._seeds, self.base_env._seeds = self.base_env._seeds, None
        self.transform = Compose()
        if transform is not None:
            self.append_transform(transform)

    def append_transform(self, transform: Transform) -> TransformedEnv:
        """Adds a transform around the others."""
        for single in transform.transforms if isinstance(transform, Compose) else [transform]:
            _checked(single)._parent = _Parent(self.base_env, self.transform.transforms)
            self.transform.append(single)
        self._handle = self._facts = None
        return self

    def _make_recipe(self) -> EnvRecipe:
        return self.transform._around(self.base_env._recipe())

    def state_dict(self) -> dict[str, Any]:
        """Statistics of the transforms that have some."""
        states = {str(i): t.state_dict() for i, t in enumerate(self.transform) if isinstance(t, ObservationNorm)}
        return {number: state for number, state in states.items() if state}

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Takes over what :meth:`state_dict` gave.

        Raises:
            KeyError: a state belongs to no transform, and ``strict``.
        """
        for number, state in state_dict.items():
            transform = self.transform[int(number)] if int(number) < len(self.transform) else None
            if isinstance(transform, ObservationNorm):
                transform.load_state_dict(state)
            elif strict:
                raise KeyError(f"there is no transform {number} with a state in {self.transform!r}")
        self._handle = None

    def close(self) -> None:
        """Closes the environment inside too."""
        super().close()
        self.base_env.close()

    def __repr__(self) -> str:
        return f"TransformedEnv({self.base_env!r}, {self.transform!r})"


class _Wrapped(EnvBase):
    """Anything else that is an environment."""

    def __init__(self, env: Any) -> None:
        super().__init__()
        self._env = env
        self._source: EnvRecipe | None = None

    def _make_recipe(self) -> EnvRecipe:
        if self._source is None:
            self._source = EnvRecipe.of(self._env)
        return self._source

    def __repr__(self) -> str:
        return repr(self._env)


def __getattr__(name: str) -> Any:
    return of_torchrl(name, __name__, "torchrl.envs.transforms")


def _checked(transform: Any) -> Transform:
    if not isinstance(transform, Transform):
        raise TypeError(
            f"expected a transform of windrow.envs, got {type(transform).__name__}: transforms of TorchRL go around its own "
            f"environments, torchrl.envs.TransformedEnv(torchrl.envs.GymEnv(...), {type(transform).__name__}(...)), which "
            "collectors take as well"
        )
    return transform


def _only(name: str, given: Any, there_is: Any) -> None:
    if given != there_is:
        raise ValueError(f"{name} can only be {there_is!r}, got {given!r}")


def _name(argument: str, given: Any) -> str:
    if not isinstance(given, str) or not given:
        raise ValueError(f"{argument} has to be a name, got {given!r}")
    return given


def _path(key: Key) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)


def _numbers(values: Any) -> Any:
    import numpy

    values = values.detach().cpu().numpy() if hasattr(values, "detach") else values
    return numpy.atleast_1d(numpy.asarray(values, dtype=numpy.float64))


def _tensor(values: Any) -> Any:
    import torch

    return torch.tensor(values, dtype=torch.float32)


def _broadcast(values: Any, shape: tuple[int, ...]) -> Any:
    import numpy

    return numpy.broadcast_to(values, shape)


def _observe(handle: EnvHandle, keys: list[tuple[str, ...]], steps: int) -> dict[tuple[str, ...], Any]:
    """What is observed under ``keys`` in ``steps`` steps with random actions, ``[frames, *shape]`` each. The same for
    every environment that is made alike.
    """
    import numpy

    from windrow.envs import _specs

    names = [path for path, _ in _specs.leaves(handle.observation, "observation")]
    for key in keys:
        if key not in names:
            raise KeyError(f"{handle.id} has no observation {key!r}, it has {names}")
    wanted = {key: names.index(key) for key in keys}
    drawn = numpy.random.default_rng(0)
    actions = [leaf for _, leaf in _specs.leaves(handle.action, "action")]
    which = list(range(handle.num_envs))
    handle.reset(which, list(which))
    seen: dict[tuple[str, ...], list[Any]] = {key: [] for key in keys}
    for _ in range(steps):
        arrays, _, terminated, truncated = handle.step([_draw(drawn, leaf, handle.num_envs) for leaf in actions])
        for key, place in wanted.items():
            seen[key].append(arrays[place].astype(numpy.float64))
        ended = [env for env in which if terminated[env] or truncated[env]]
        if ended:
            handle.reset(ended, [None] * len(ended))
    return {key: numpy.concatenate(frames) for key, frames in seen.items()}


def _draw(drawn: Any, leaf: Any, num_envs: int) -> Any:
    """Random actions of one leaf, ``[num_envs, *shape]``."""
    import numpy

    kind, *rest = leaf
    if kind == "discrete":
        return drawn.integers(0, rest[0], num_envs)
    if kind == "multi_discrete":
        return drawn.integers(0, rest[0], (num_envs, len(rest[0])))
    if kind == "one_hot":
        eyes = [numpy.eye(n, dtype=numpy.int64)[drawn.integers(0, n, num_envs)] for n in rest[0]]
        return numpy.concatenate(eyes, -1)
    if kind == "binary":
        return drawn.integers(0, 2, (num_envs, *rest[0])).astype(numpy.int8)
    shape = (num_envs, *rest[1])
    if kind == "unbounded":
        return drawn.standard_normal(shape).astype(rest[0])
    low, high = (numpy.clip(bound, -1e6, 1e6).reshape(rest[1]) for bound in rest[2:4])
    if not rest[0].startswith("float"):
        return drawn.integers(low, high, shape, endpoint=True).astype(rest[0])
    return drawn.uniform(low, high, shape).astype(rest[0])
