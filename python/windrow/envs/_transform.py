"""Transforms of environments, and environments with transforms around them."""

from __future__ import annotations

import contextlib
import copy
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, dataclass_transform

from windrow import _fence
from windrow._arguments import warn_ignored
from windrow._types import AnyTransform, Device, Env
from windrow._windrow import EnvHandle
from windrow.envs._base import EnvBase, OfInit, Wrapped
from windrow.envs._described import Facts
from windrow.envs._recipe import Adapted, Described, Recipe

T = TypeVar("T", bound=type)


@dataclass_transform(eq_default=False, field_specifiers=(field,))
def declared(cls: T) -> T:
    """Makes ``cls`` a dataclass of its arguments that others do not take for one: hydra would make
    a node of its configuration of it.
    """
    bases = [base for base in cls.__mro__[1:] if "_fields" in vars(base)]
    for base in bases:
        base.__dataclass_fields__ = vars(base)["_fields"]  # type: ignore[attr-defined]
    try:
        cls = dataclass(eq=False)(cls)  # type: ignore[assignment]
    finally:
        for base in bases:
            del base.__dataclass_fields__  # type: ignore[attr-defined]
    cls._fields = cls.__dataclass_fields__  # type: ignore[attr-defined]
    del cls.__dataclass_fields__  # type: ignore[attr-defined]
    return cls


class Transform:
    """A transform of an environment, which the engine carries out.

    A subclass is :func:`declared` by its arguments. It stands for the engine's transform of its
    name with ``_passed``, or for those that its ``_described`` says. A transform with methods of
    its own, which run in Python around every step, derives from
    :class:`windrow.torchrl.envs.Transform`.
    """

    #: Methods that TorchRL calls of a transform.
    _never_called: ClassVar[tuple[str, ...]] = (
        *("_apply_transform", "_call", "_inv_apply_transform", "_inv_call", "_reset", "_step"),
        *("forward", "inv", "transform_action_spec", "transform_done_spec", "transform_input_spec"),
        *("transform_observation_spec", "transform_reward_spec", "transform_state_spec"),
    )
    #: Arguments that it was made with.
    _given: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    #: The environment that this goes around, and the transforms between the two.
    _parent: tuple[EnvBase, list[Any]] | None = None
    #: The environment that this is a transform of.
    _container: weakref.ref[TransformedEnv] | None = None
    #: The arguments that the engine's transform has, too.
    _passed: ClassVar[tuple[str, ...]] = ()
    #: Whether a state can be loaded while environments are stepped.
    _takes_states = False
    #: Differs once what the transform was made with was changed in place.
    _version: Any = None
    __signature__ = OfInit()

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        _fence.check_derived(cls, Transform)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        made._given = args, kwargs
        return made

    def __init__(self) -> None:
        """A subclass has arguments."""

    @property
    def initialized(self) -> bool:
        """Whether the transform has everything that it works with."""
        return True

    @property
    def container(self) -> TransformedEnv | None:
        """The environment that this is a transform of, the first of several. None as long as there
        is no environment.
        """
        return None if self._container is None else self._container()

    @property
    def parent(self) -> TransformedEnv | None:
        """What this goes around: the environment with the transforms before this one. None as long
        as there is no environment.
        """
        if self._parent is None:
            return None
        base, before = self._parent
        return TransformedEnv(base, Compose(*before))

    def _described(self, plain: bool = False) -> list[Described]:
        """Names and arguments of the engine's transforms, the first nearest to the environment.
        ``plain`` ones have the right specs, but may observe other numbers.
        """
        own = next(kind for kind in type(self).__mro__ if kind.__module__.startswith("windrow."))
        return [(own.__name__, {name: getattr(self, name) for name in self._passed})]

    def _prepare(self, recipe: Recipe) -> Recipe:
        """``recipe``, of what this goes around, with what it has to observe for this."""
        return recipe

    def _inside(self) -> Recipe | None:
        """The recipe of what this goes around, where it goes around an environment."""
        if self._parent is None:
            return None
        base, before = self._parent
        return around(base._recipe(), before)

    def state_dict(self) -> dict[str, Any]:
        """What the transform has gathered, or was given as numbers: nothing."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Takes over what :meth:`state_dict` gave.

        Raises:
            KeyError: there is something in it, and ``strict``.
        """
        if state_dict and strict:
            raise KeyError(f"{type(self).__name__} has no state, got {sorted(state_dict)}")

    def clone(self) -> Transform:
        """The same for another environment, with a copy of what it works with."""
        copied = copy.copy(self)
        copied._parent = None
        return copy.deepcopy(copied)

    def __call__(self, tensordict: object) -> Any:
        """Does the same to a ``TensorDict``, such as a sample of a replay buffer.

        Raises:
            TypeError: torchrl, which does it, is not installed.
        """
        if not _fence.is_installed():
            raise TypeError(
                f"the engine does {type(self).__name__} to environments: to do it to a TensorDict needs {_fence.LIBRARY}, which is not "
                f"installed: pip install {_fence.LIBRARY}"
            )
        return _fence.around.done_to(self, tensordict)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise _fence.lacking(self, name)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_container"}

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def around(recipe: Recipe, transforms: Sequence[Any], plain: bool = False) -> Recipe:
    """What ``recipe`` makes with ``transforms`` around it, the first nearest to it. Those of
    TorchRL run as they are.
    """
    for transform in filter(is_own, transforms):
        recipe = transform._prepare(recipe)
    for own, group in itertools.groupby(transforms, is_own):
        if own:
            recipe = recipe.transformed(
                *(described for transform in group for described in transform._described(plain))
            )
        else:
            recipe = Adapted(_fence.around.Around(recipe, list(group)), False)
    return recipe


def is_own(transform: object) -> bool:
    return isinstance(transform, Transform)


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
            self._hold()
            self._handle = self._facts = None
            self._is_single = False

    def _hold(self) -> None:
        """Makes this the container of windrow's own transforms that no other environment has."""
        for transform in filter(is_own, (self._transforms, *self._transforms)):
            if transform.container is None:
                transform._container = weakref.ref(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._hold()

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
            raise _fence.lacking(self, name)
        return getattr(self.base_env, name)

    def __repr__(self) -> str:
        return f"TransformedEnv({self.base_env!r}, {self.transform!r})"


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
