"""What can be done to environments."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from windrow.envs._base import EnvBase
from windrow.envs._recipe import Recipe
from windrow.envs._torchrl_compat import AskedByTorchRL


Described = tuple[str, dict[str, Any]]
"""The name of a transform that the engine has, and its arguments."""


class Transform:
    """One thing that is done to an environment."""

    _parent: Parent | None = None
    _check_batched_worker_compat = AskedByTorchRL()

    @property
    def initialized(self) -> bool:
        """Whether there is all that it works with."""
        return True

    def _described(self) -> list[Described]:
        """Names and arguments of what the engine does, the first nearest to the environment."""
        raise NotImplementedError

    def _described_plainly(self) -> list[Described]:
        """As ``_described``, where it is enough that the specs are right."""
        return self._described()

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

    def recipe(self) -> Recipe:
        return self.base._recipe().transformed(*(value for transform in self.before for value in transform._described()))

