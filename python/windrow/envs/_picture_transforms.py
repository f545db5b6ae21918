"""Transforms of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from windrow._arguments import one_of
from windrow._lazy import torch
from windrow.envs._shape_transforms import Keys, Pictures
from windrow.envs._transform import declared

__all__ = [
    "CenterCrop",
    "GrayScale",
    "Resize",
    "ToTensorImage",
]


@declared
class ToTensorImage(Pictures):
    """Turns pictures of height, width and channels into such of channels, height and width, and
    bytes into numbers up to 1.

    Args:
        from_int: whether values are divided by 255; None for all but real numbers.
        unsqueeze: whether pictures of three dimensions are given another one in front.
        dtype: ``torch.float32`` or ``torch.float64``; torch's default unless given.
        in_keys: the pictures; ``["pixels"]`` unless given.
        out_keys: names of the results, the same unless given.
        shape_tolerant: whether pictures that have not three channels keep their layout.

    Example:
        >>> from windrow.envs import GymEnv, ToTensorImage, TransformedEnv
        >>> env = GymEnv("CartPole-v1", backend="gymnasium", from_pixels=True)
        >>> env = TransformedEnv(env, ToTensorImage())
        >>> env.rollout(2)["pixels"].shape
        torch.Size([2, 3, 400, 600])
    """

    from_int: bool | None = None
    unsqueeze: bool = False
    dtype: torch.dtype | str | None = None
    in_keys: Keys = field(default=None, kw_only=True)
    out_keys: Keys = field(default=None, kw_only=True)
    shape_tolerant: bool = field(default=False, kw_only=True)
    _passed = ("from_int", "unsqueeze", "dtype", "shape_tolerant")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.dtype = str(
            torch.get_default_dtype() if self.dtype is None else self.dtype
        ).removeprefix("torch.")


@declared
class GrayScale(Pictures):
    """Turns pictures of red, green and blue, ``[3, height, width]``, into such of grey,
    ``[1, height, width]``.

    Args:
        in_keys: the pictures; ``["pixels"]`` unless given.
        out_keys: names of the results, the same unless given.

    Example:
        >>> from windrow.envs import Compose, GrayScale, GymEnv, ToTensorImage, TransformedEnv
        >>> env = GymEnv("CartPole-v1", backend="gymnasium", from_pixels=True)
        >>> env = TransformedEnv(env, Compose(ToTensorImage(), GrayScale()))
        >>> env.rollout(2)["pixels"].shape
        torch.Size([2, 1, 400, 600])
    """

    in_keys: Keys = None
    out_keys: Keys = None


@declared
class CenterCrop(Pictures):
    """Cuts the middle out of pictures, ``[..., w, h]``. Zeros stand around those that are smaller.

    Args:
        w: size of the second dimension from the end.
        h: size of the last one; ``w`` unless given.
        in_keys: the pictures; ``["pixels"]`` unless given.
        out_keys: names of the results, the same unless given.

    Example:
        >>> from windrow.envs import CenterCrop, Compose, GymEnv, ToTensorImage, TransformedEnv
        >>> env = GymEnv("CartPole-v1", backend="gymnasium", from_pixels=True)
        >>> env = TransformedEnv(env, Compose(ToTensorImage(), CenterCrop(200)))
        >>> env.rollout(2)["pixels"].shape
        torch.Size([2, 3, 200, 200])
    """

    w: int
    h: int | None = None
    in_keys: Keys = None
    out_keys: Keys = None
    _passed = ("w", "h")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.h = self.h or self.w


@declared
class Resize(Pictures):
    """Resizes pictures to ``[..., w, h]``, as torchvision does with ``antialias=True``.

    Args:
        w: size of the second dimension from the end, or both sizes.
        h: size of the last one; ``w`` unless given.
        interpolation: ``"bilinear"``, ``"bicubic"``, ``"nearest"`` or ``"nearest-exact"``.
        in_keys: the pictures; ``["pixels"]`` unless given.
        out_keys: names of the results, the same unless given.

    Raises:
        ValueError: there is no such interpolation.

    Example:
        >>> from windrow.envs import Compose, GymEnv, Resize, ToTensorImage, TransformedEnv
        >>> env = GymEnv("CartPole-v1", backend="gymnasium", from_pixels=True)
        >>> env = TransformedEnv(env, Compose(ToTensorImage(), Resize(84)))
        >>> env.rollout(2)["pixels"].shape
        torch.Size([2, 3, 84, 84])
    """

    w: int | Sequence[int]
    h: int | None = None
    interpolation: Any = "bilinear"
    in_keys: Keys = None
    out_keys: Keys = None
    _passed = ("w", "h", "interpolation")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.w, int):
            self.w, self.h = self.w
        self.h = self.h or self.w
        self.interpolation = getattr(self.interpolation, "value", self.interpolation)
        one_of("bilinear", "bicubic", "nearest", "nearest-exact")(
            "interpolation", self.interpolation
        )
