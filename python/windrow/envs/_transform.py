"""The base of all transforms of environments."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, dataclass_transform

from windrow import _fence, envs
from windrow.envs._base import EnvBase
from windrow.envs._counterpart import Counterpart, ReadByWrappers, is_windrows
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


class Transform(metaclass=Counterpart):
    """A transform of an environment, which the engine carries out.

    A subclass is :func:`declared` by its arguments. It stands for the engine's transform of its
    name with ``_passed``, or for those that its ``_described`` says.
    """

    _defers = True
    #: Arguments that it was made with.
    _given: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    #: The environment that this goes around, and the transforms between the two.
    _parent: tuple[EnvBase, list[Any]] | None = None
    _check_batched_worker_compat = ReadByWrappers()
    #: The arguments that the engine's transform has, too.
    _passed: ClassVar[tuple[str, ...]] = ()
    #: Whether a state can be loaded while environments are stepped.
    _takes_states = False
    #: Differs once what the transform was made with was changed in place.
    _version: Any = None

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

    def _class_of_theirs(self) -> type:
        """TorchRL's transform of this name.

        Raises:
            TypeError: torchrl is not installed, or has none.
        """
        theirs = type(self)._theirs()
        if theirs is None:
            raise TypeError(
                f"{type(self).__name__} of windrow.envs is done to environments, by the engine, and TorchRL, whose transform of this "
                "name could be done to a TensorDict, is not installed or has none"
            )
        return theirs

    def _as_theirs(self) -> Any:
        """TorchRL's transform of this name, made with the same arguments."""
        args, kwargs = self._given
        return self._class_of_theirs()(*args, **kwargs)

    def __call__(self, tensordict: object) -> Any:
        """Does the same to a ``TensorDict``, such as a sample of a replay buffer, by TorchRL's
        transform of this name.
        """
        theirs = vars(self).get("_at_hand")
        if theirs is None:
            theirs = vars(self)["_at_hand"] = self._as_theirs()
        return theirs(tensordict)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def around(recipe: Recipe, transforms: Sequence[Any], plain: bool = False) -> Recipe:
    """What ``recipe`` makes with ``transforms`` around it, the first nearest to it. Those of
    TorchRL run as they are.
    """
    for transform in filter(is_windrows, transforms):
        recipe = transform._prepare(recipe)
    for own, group in itertools.groupby(transforms, is_windrows):
        if own:
            recipe = recipe.transformed(
                *(described for transform in group for described in transform._described(plain))
            )
        else:
            recipe = Adapted(_fence.around.Around(recipe, list(group)), False)
    return recipe
