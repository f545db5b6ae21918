"""What can be done to environments."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from windrow._windrow import EnvRecipe
from windrow.envs._base import EnvBase
from windrow.envs._described import Key
from windrow.envs._theirs import AskedByTorchRL


class Transform:
    """One thing that is done to an environment."""

    _parent: Parent | None = None
    _check_batched_worker_compat = AskedByTorchRL()

    @property
    def initialized(self) -> bool:
        """Whether there is all that it works with."""
        return True

    def _around(self, recipe: EnvRecipe) -> EnvRecipe:
        raise NotImplementedError

    def _plainly_around(self, recipe: EnvRecipe) -> EnvRecipe:
        """As ``_around``, where it is enough that the specs are right."""
        return self._around(recipe)

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


class Parent:
    """What a transform is put around."""

    def __init__(self, base: EnvBase, before: Sequence[Transform]) -> None:
        self.base, self.before = base, list(before)

    def recipe(self) -> EnvRecipe:
        recipe = self.base._recipe()
        for transform in self.before:
            recipe = transform._around(recipe)
        return recipe


def path(key: Key) -> tuple[str, ...]:
    """The names of a key, outermost first."""
    return (key,) if isinstance(key, str) else tuple(key)
