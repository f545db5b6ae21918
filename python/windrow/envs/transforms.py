"""Transforms of environments: they count, sum, mark and normalise. The engine carries them out, not
Python.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from windrow import _fence
from windrow._arguments import warn_ignored
from windrow._lazy import module, torch
from windrow._types import AnyTransform, Device, Env
from windrow._windrow import EnvHandle
from windrow.envs import _number_transforms, _picture_transforms, _shape_transforms
from windrow.envs._base import EnvBase
from windrow.envs._convert import of
from windrow.envs._described import Facts
from windrow.envs._number_transforms import *  # noqa: F403
from windrow.envs._number_transforms import keys_of
from windrow.envs._observation_norm import ObservationNorm
from windrow.envs._picture_transforms import *  # noqa: F403
from windrow.envs._recipe import Described, Recipe
from windrow.envs._shape_transforms import *  # noqa: F403
from windrow.envs._specs import Key, delta_type, path, short
from windrow.envs._transform import Transform, around, declared, is_own
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


class Compose(Transform):
    """Several transforms, the first nearest to the environment. Each can be one of TorchRL's, or a
    function of a ``TensorDict``.

    Args:
        several: the transforms, or lists of some.
        transforms: more of them, by name.

    Example:
        >>> from windrow.envs import Compose, GymEnv, RewardSum, StepCounter, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), Compose(StepCounter(), RewardSum()))
        >>> [type(transform).__name__ for transform in env.transform]
        ['StepCounter', 'RewardSum']
    """

    def __init__(
        self,
        *several: AnyTransform | list[AnyTransform] | tuple[AnyTransform, ...],
        transforms: Sequence[AnyTransform] = (),
    ) -> None:
        self.transforms: list[Any] = []
        for transform in (*several, *transforms):
            for one in transform if isinstance(transform, (list, tuple)) else [transform]:
                self.append(one)

    def append(self, transform: AnyTransform) -> None:
        """Adds a transform around the others."""
        self.insert(len(self.transforms), transform)

    def insert(self, index: int, transform: AnyTransform) -> None:
        """Adds a transform before the one at ``index``, nearer to the environment."""
        inner = transform.transforms if isinstance(transform, Compose) else [_checked(transform)]
        self.transforms[index:index] = inner

    def pop(self, index: int = -1) -> Any:
        """Takes the transform at ``index`` out."""
        return self.transforms.pop(index)

    def dump(self, **arguments: object) -> None:
        """Makes transforms write what they have gathered, such as the pictures of a
        ``VideoRecorder``.
        """
        for transform in self.transforms:
            if hasattr(transform, "dump"):
                transform.dump(**arguments)

    def clone(self) -> Compose:
        """The same for another environment."""
        return Compose(*(transform.clone() for transform in self.transforms))

    def __getitem__(self, index: int | slice) -> Any:
        found = self.transforms[index]
        return Compose(*found) if isinstance(index, slice) else found

    def __len__(self) -> int:
        return len(self.transforms)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.transforms)

    def __call__(self, tensordict: object) -> Any:
        """Applies the transforms to a ``TensorDict``, one after the other."""
        for transform in self.transforms:
            tensordict = transform(tensordict)
        return tensordict

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.transforms))})"


class TransformedEnv(EnvBase):
    """An environment with transforms around it.

    Args:
        base_env: an environment of windrow, or anything that :class:`GymWrapper` or a collector
            takes.
        transform: one transform, or a :class:`Compose` of several. Transforms of TorchRL are taken
            too. They run in Python, around every step, which a warning says once for each class.
        device: where tensors are put; where ``base_env`` puts them unless given.
        cache_specs: without effect: specs follow the transforms in any case.
        auto_unwrap: without effect: transforms of a ``base_env`` that has some stay around it.

    Raises:
        ValueError: ``base_env`` is an environment of TorchRL that steps any number of states
            (``batch_locked=False``), as models of the world do.

    Example:
        >>> from windrow.envs import Compose, GymEnv, RewardSum, StepCounter, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), Compose(StepCounter(max_steps=10), RewardSum()))
        >>> env.rollout(3)["step_count"].flatten()
        tensor([0, 1, 2])
    """

    base_env: Any

    def __init__(
        self,
        base_env: Env,
        transform: AnyTransform | None = None,
        device: Device | None = None,
        *,
        cache_specs: bool = True,
        auto_unwrap: bool | None = None,
    ) -> None:
        warn_ignored("cache_specs", cache_specs, True, "specs follow the transforms in any case")
        warn_ignored(
            "auto_unwrap", auto_unwrap, True, "transforms of an environment stay around it"
        )
        if not isinstance(base_env, EnvBase):
            if _fence.is_a(base_env, "EnvBase") and not getattr(base_env, "batch_locked", True):
                why = f"{type(base_env).__name__} steps any number of states (batch_locked=False), and the engine a fixed number"
                raise _fence.beyond(self, why)
            base_env = Wrapped(base_env)
        self.base_env = base_env
        super().__init__(device if device is not None else self.base_env._device)
        self._seeds, self.base_env._seeds = self.base_env._seeds, None
        self._transforms = Compose()
        #: Those that the environment is made with, and their versions then.
        self._arranged: list[Any] = []
        self._versions: list[Any] = []
        if transform is not None:
            self.append_transform(transform)
        self._is_single = transform is not None and not _is_several(transform)

    @property
    def transform(self) -> Any:
        """The transform, if this environment was made with a single one; otherwise all as a
        :class:`Compose`. One that is assigned takes the place of all of them.
        """
        return self._transforms[0] if self._is_single else self._transforms

    @transform.setter
    def transform(self, transform: AnyTransform) -> None:
        transforms = Compose()
        transforms.insert(0, transform)
        self._transforms = transforms
        self._arrange()
        self._is_single = not _is_several(transform)

    def append_transform(self, transform: AnyTransform) -> TransformedEnv:
        """Adds a transform around the others."""
        return self.insert_transform(len(self._transforms), transform)

    def insert_transform(self, index: int, transform: AnyTransform) -> TransformedEnv:
        """Adds a transform before the one at ``index``, nearer to the environment."""
        self._transforms.insert(index, transform)
        self._arrange()
        return self

    def _arrange(self) -> None:
        """Takes note of transforms that were added since, here or to the :class:`Compose`, and of
        what was changed in them.
        """
        transforms = self._transforms.transforms
        versions = [transform._version for transform in transforms if is_own(transform)]
        if versions != self._versions and transforms == self._arranged:
            self._handle = self._facts = None
        self._versions = versions
        if transforms != self._arranged:
            for index, transform in enumerate(transforms):
                if is_own(transform):
                    transform._parent = (self.base_env, transforms[:index])
                elif transform not in self._arranged:
                    _fence.around.tell(transform)
            self._arranged = list(transforms)
            self._handle = self._facts = None
            self._is_single = False

    def _made(self) -> EnvHandle:
        self._arrange()
        return super()._made()

    def _recipe(self, *, plain: bool = False) -> Recipe:
        self._arrange()
        self._handle = None
        return around(self.base_env._recipe(plain=plain), self._transforms.transforms, plain)

    def _is_settled(self) -> bool:
        return self.base_env._is_settled() and all(
            t.initialized for t in self._transforms if is_own(t)
        )

    def _known(self) -> Facts:
        self._arrange()
        return super()._known()

    def _dimensions(self, facts: Facts) -> tuple[int, ...]:
        return self.base_env._dimensions(facts)

    @property
    def _takes_states(self) -> bool:  # type: ignore[override]
        return all(
            getattr(t, "_takes_states", False)
            for t in self._with_states().values()
            if t.state_dict()
        )

    def _with_options(self, options: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
        before = self.base_env._source
        taken = self.base_env._with_options(options)
        if self.base_env._source is not before:
            self._handle = None
        return taken

    def apply(self, fn: Callable[[Any], Any]) -> EnvBase:
        """Calls ``fn`` with each transform and each environment, the innermost last."""
        for transform in self._transforms:
            fn(transform)
        self.base_env.apply(fn)
        return super().apply(fn)

    def train(self, mode: bool = True) -> EnvBase:
        """Sets the training mode of transforms and of the environment."""
        for transform in self._transforms:
            if hasattr(transform, "train"):
                transform.train(mode)
        self.base_env.train(mode)
        return self

    def _with_states(self) -> dict[str, Any]:
        """Transforms that can have a state, by their places."""
        return {str(i): t for i, t in enumerate(self._transforms) if hasattr(t, "load_state_dict")}

    def state_dict(self) -> dict[str, Any]:
        """Statistics of the transforms that have some, by their places; those of a single one as
        they are.
        """
        states = {
            number: transform.state_dict() for number, transform in self._with_states().items()
        }
        return (
            states.get("0", {})
            if self._is_single
            else {number: state for number, state in states.items() if state}
        )

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Takes over what :meth:`state_dict` gave, or that of TorchRL's environment with the same
        transforms.

        Raises:
            KeyError: a state belongs to no transform, and ``strict``.
        """
        having = self._with_states()
        for number, state in _by_transform(state_dict).items():
            if number in having:
                transform = having[number]
                transform.load_state_dict(state, strict)
                if not getattr(transform, "_takes_states", False):
                    self._handle = None
            elif strict:
                raise KeyError(
                    f"there is no transform {number} with a state in {self._transforms!r}"
                )

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Closes the environment inside too."""
        super().close()
        self.base_env.close()

    def __getattr__(self, name: str) -> Any:
        # Names with an underscore are asked for by the interpreter, by pickle and by windrow
        # itself.
        if name.startswith("_") or "base_env" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.base_env, name)

    def __repr__(self) -> str:
        return f"TransformedEnv({self.base_env!r}, {self.transform!r})"


class Wrapped(EnvBase):
    """An environment of another library, an id, or a function that makes an environment."""

    def __init__(self, env: object) -> None:
        super().__init__()
        self._env = env

    def _new_recipe(self) -> Recipe:
        return of(self._env)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not _fence.is_a(vars(self).get("_env"), "EnvBase"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._env, name)

    def __repr__(self) -> str:
        return repr(self._env)


def _by_transform(state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A state by the numbers of transforms, also where TorchRL has joined them to names, or has the
    state of the only one.
    """
    states: dict[str, dict[str, Any]] = {}
    for name, value in state.items():
        of, _, rest = name.removeprefix("transforms.").partition(".")
        number, own = (
            (of, {rest: value} if rest else value) if of.isdigit() else ("0", {name: value})
        )
        states.setdefault(number, {}).update(own)
    return states


def _checked(transform: object) -> object:
    if isinstance(transform, type):
        raise TypeError(
            f"expected a transform, got the class {transform.__name__}: write {transform.__name__}(...)"
        )
    if is_own(transform):
        return transform
    if _fence.is_a(transform, "Transform"):
        return _fence.around.taken(transform)
    if not callable(transform):
        raise TypeError(
            f"expected a transform, or a function of a TensorDict, got {type(transform).__name__}"
        )
    return _fence.around.called(transform)


def _is_several(transform: object) -> bool:
    return isinstance(transform, Compose) or _fence.is_a(transform, "Compose")


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
