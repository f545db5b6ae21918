"""The base of all transforms of environments."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from windrow import _fence, envs
from windrow.envs._base import EnvBase, OfInit
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
    def parent(self) -> envs.TransformedEnv | None:
        """What this goes around: the environment with the transforms before this one. None as long
        as there is no environment.
        """
        if self._parent is None:
            return None
        base, before = self._parent
        return envs.TransformedEnv(base, envs.Compose(*before))

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
