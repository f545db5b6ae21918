"""TorchRL's transforms around windrow's environments, and in the place of windrow's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from tensordict import TensorDictBase

from torchrl import envs as theirs
from windrow._types import AnyTransform
from windrow._warnings import warn
from windrow._windrow import resize
from windrow.envs._base import Wrapped
from windrow.envs._described import FLAGS
from windrow.envs._picture_transforms import Resize
from windrow.envs._recipe import Adapted, Recipe
from windrow.envs._transform import Compose, Transform
from windrow.envs.transforms import Delta, Primer
from windrow.torchrl._adapter import Adapter

_told: set[tuple[str, str | None]] = set()
#: The attribute of a transform of TorchRL's that says why windrow's does not do the same.
_REFUSED = "refused_by_windrow"


def taken(transform: theirs.Transform) -> Any:
    """``transform``, or windrow's that does the same."""
    if isinstance(transform, theirs.TensorDictPrimer):
        try:
            return Primer(transform)
        except ValueError as error:
            return refused(transform, error)
    return Delta(transform) if isinstance(transform, theirs.NextObservationDelta) else transform


def refused(made: Any, error: ValueError | str) -> Any:
    """``made`` of TorchRL's, which remembers why windrow's class refused to do the same."""
    vars(made)[_REFUSED] = str(error)
    return made


def tell(transform: theirs.Transform) -> None:
    """Says once for each class and reason that a transform is TorchRL's, and what it costs."""
    name, reason = type(transform).__name__, vars(transform).get(_REFUSED)
    if (name, reason) not in _told:
        _told.add((name, reason))
        why = f" ({reason})" if reason else ""
        warn(
            f"{name} is a transform of TorchRL's, not of windrow's{why}: it runs in Python, around every step, which costs a few "
            "hundred microseconds for each, and keeps the environment from running without the interpreter"
        )


class Around:
    """Makes environments with ``transforms`` of TorchRL's around those of ``recipe``: with the
    transforms themselves if no other environment has them, otherwise with copies, as each process
    has.
    """

    def __init__(self, recipe: Recipe, transforms: list[Any]) -> None:
        self.recipe, self.transforms = recipe, transforms

    def __call__(self) -> Adapter:
        return Adapter(self._made())

    def _made(self) -> _Transformed:
        transforms = [
            transform if is_free else transform.clone()
            for transform, is_free in _singly(self.transforms)
        ]
        for transform in transforms:
            transform.reset_parent()
        recipe = self.recipe
        is_nested = (
            isinstance(recipe, Adapted) and isinstance(recipe.env, Around) and not recipe.transforms
        )
        # Transforms inside read what those around them write.
        inside = recipe.env._made() if is_nested else Inside(recipe)  # type: ignore[attr-defined]
        return _Transformed(inside, theirs.Compose(*transforms), auto_unwrap=False)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe,
            "transforms": [transform.clone() for transform in self.transforms],
        }


def _singly(
    transforms: Iterable[Any], around: theirs.Compose | None = None
) -> Iterator[tuple[Any, bool]]:
    """Each transform, also those in a ``Compose``, and whether no environment has it. TorchRL's
    transforms do not find the environment from within two.
    """
    for transform in transforms:
        # What has it, by a weak reference: `container` is the environment of that, and raises an
        # error where there is none.
        reference = vars(transform)["_container"]
        is_free = reference is None or reference() in (None, around)
        if isinstance(transform, theirs.Compose):
            yield from _singly(transform.transforms, transform if is_free else None)
        else:
            yield transform, is_free


class _Transformed(theirs.TransformedEnv):
    """Gives its transforms back when it is closed."""

    def close(self, *, raise_if_closed: bool = True) -> None:
        super().close(raise_if_closed=raise_if_closed)
        for transform in self.transform:
            transform.reset_parent()


class OfModels(theirs.TransformedEnv):
    """TorchRL's environment, which takes transforms of windrow too, and uses TorchRL's of the same
    names for them.
    """

    def __init__(
        self, env: theirs.EnvBase, transform: AnyTransform | None = None, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(env, of_torchrl(transform), *args, **kwargs)

    def append_transform(self, transform: AnyTransform) -> theirs.TransformedEnv:
        """Adds a transform around the others."""
        return super().append_transform(of_torchrl(transform))

    def insert_transform(self, index: int, transform: AnyTransform) -> theirs.TransformedEnv:
        """Adds a transform before the one at ``index``."""
        return super().insert_transform(index, of_torchrl(transform))


def of_torchrl(transform: Any) -> Any:
    """TorchRL's transform of the same name and arguments; one of TorchRL's as it is.

    Raises:
        TypeError: TorchRL has none, since the class is a user's, or for windrow's own use.
    """
    if not isinstance(transform, Transform):
        return transform
    if isinstance(transform, Compose):
        return theirs.Compose(*map(of_torchrl, transform.transforms))
    kind, (args, kwargs) = type(transform), transform._given
    is_ours = kind.__module__.partition(".")[0] == "windrow"
    if not is_ours or not hasattr(theirs, kind.__name__):
        raise TypeError(f"expected a transform of windrow.torchrl.envs, got {kind.__qualname__}")
    made = getattr(theirs, kind.__name__)(*args, **kwargs)
    if isinstance(transform, Resize):
        # Samples become what environments observe, to the last bit.
        sizes = {"w": transform.w, "h": transform.h, "interpolation": transform.interpolation}
        made._apply_transform = partial(_resized, made, sizes)
    return made


def read_inside(transform: Any) -> Any:
    """``transform`` as one of TorchRL's, whose entries the transforms inside can read."""
    made = of_torchrl(transform)
    if made is not transform:
        why = "with auto_unwrap=False, the transforms inside read what it writes"
        for one, _ in _singly([made]):
            refused(one, why)
    return made


def _resized(
    transform: theirs.Resize, described: dict[str, Any], pictures: torch.Tensor
) -> torch.Tensor:
    # There is nothing to be read where torch traces a module, to export it or to compile it.
    if (
        torch.compiler.is_compiling()
        or pictures.requires_grad
        or pictures.dtype in (torch.float16, torch.bfloat16)
    ):
        return type(transform)._apply_transform(transform, pictures)
    return resize(pictures, described).to(pictures.device)


def done_to(transform: Transform, tensordict: Any) -> Any:
    """Does to ``tensordict`` what ``transform`` does to environments."""
    made = vars(transform).get("_at_hand")
    if made is None:
        made = vars(transform)["_at_hand"] = of_torchrl(transform)
    return made(tensordict)


def called(function: Callable[[TensorDictBase], TensorDictBase]) -> theirs.Transform:
    """A function of a ``TensorDict`` as a transform."""
    return theirs.transforms.transforms._CallableTransform(function)


class Inside(theirs.EnvBase):
    """The environments of a recipe as TorchRL's transforms see them."""

    def __init__(self, recipe: Recipe) -> None:
        own = Wrapped(recipe)
        super().__init__(batch_size=own.batch_size)
        self.__dict__.update(_own=own, masks=own._known().masks, deltas=own._known().deltas)
        self.observation_spec = own.full_observation_spec
        self.action_spec = own.full_action_spec
        self.reward_spec = own.full_reward_spec
        self.done_spec = own.full_done_spec

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        if tensordict is not None:
            tensordict = tensordict.select(
                "_reset", *FLAGS, *self._own._known().primed, strict=False
            )
        return self._own.reset(tensordict)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._own.step(tensordict.select(*self._own.action_keys)).get("next")

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self._own.set_seed(seed)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Closes the environments."""
        super().close(raise_if_closed=raise_if_closed)
        self._own.close()
