"""The base of all transforms of environments."""

from __future__ import annotations

import copy
from typing import Any

from windrow.envs._base import EnvBase
from windrow.envs._recipe import Described, Recipe
from windrow.envs._torchrl_compat import AskedByTorchRL


class Transform:
    """A transform of an environment, which the engine carries out.

    A subclass is a dataclass of its arguments, and says in ``_described`` which transforms of the engine it stands for.
    """

    #: The environment that this goes around, and the transforms between the two.
    _parent: tuple[EnvBase, list[Transform]] | None = None
    _check_batched_worker_compat = AskedByTorchRL()
    #: Whether a state can be loaded while environments are stepped.
    _takes_states = False

    @property
    def initialized(self) -> bool:
        """Whether the transform has everything that it works with."""
        return True

    def _described(self, plain: bool = False) -> list[Described]:
        """Names and arguments of the engine's transforms, the first nearest to the environment. ``plain`` ones have the right specs,
        but may observe other numbers.
        """
        raise NotImplementedError

    def _prepare(self, recipe: Recipe) -> Recipe:
        """``recipe``, of what this goes around, with what it has to observe for this."""
        return recipe

    def _inside(self) -> Recipe | None:
        """The recipe of what this goes around, where it goes around an environment."""
        if self._parent is None:
            return None
        base, before = self._parent
        return base._recipe().transformed(*(described for transform in before for described in transform._described()))

    def state_dict(self) -> dict[str, Any]:
        """What the transform has gathered, or was given as numbers: nothing."""
        return {}

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> None:
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

    def __call__(self, tensordict: Any) -> Any:
        raise TypeError(
            f"{type(self).__name__} of windrow.envs is done to environments, by the engine: what is done to the samples of a replay "
            "buffer has to be a transform of torchrl.envs.transforms"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
