"""Transforms of names, shapes, frames and pictures, against TorchRL's own."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import torchrl.envs as theirs
from gymnasium.spaces import Box, Dict, Discrete
from torchrl.envs.transforms import _observation

import windrow.envs as ours
import windrow.torchrl.envs as stand_in
from transforms._compare import assert_same, compare, play

Make = Callable[[Any], Any]


class Robot(gymnasium.Env[Any, Any]):
    """Observes random vectors, pictures and counts; ends after 7 steps, or earlier."""

    action_space = Discrete(3)
    observation_space = Dict(
        {
            "body": Dict(
                {"speed": Box(-3, 3, (2,), np.float32), "angle": Box(-1, 1, (3,), np.float32)}
            ),
            "mass": Box(0, 1, (), np.float32),
            "pixels": Box(0, 255, (14, 11, 3), np.uint8),
            "grid": Box(-9, 9, (1, 4, 2), np.int64),
            "heat": Box(-2.0, 2.0, (2, 9, 8), np.float64),
        }
    )

    def __init__(self) -> None:
        self.steps = 0

    def seen(self) -> Any:
        draw = self.np_random
        vector = lambda low, high, n: draw.uniform(low, high, n).astype(np.float32)  # noqa: E731
        return {
            "body": {"speed": vector(-3, 3, 2), "angle": vector(-1, 1, 3)},
            "mass": np.float32(draw.random()),
            "pixels": draw.integers(0, 256, (14, 11, 3), dtype=np.uint8),
            "grid": draw.integers(-9, 10, (1, 4, 2)),
            "heat": draw.uniform(-2, 2, (2, 9, 8)),
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        ended = bool(self.np_random.random() < 0.1)
        return self.seen(), float(self.np_random.normal()), ended, self.steps >= 7, {}


class Mode(StrEnum):
    """Interpolations of torchvision."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"


@pytest.fixture(autouse=True)
def pictures(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """TorchRL resizes and crops by way of torchvision. Where it is not installed, what it calls of
    torch stands for it.
    """
    try:
        import torchvision.transforms.functional  # noqa: F401
    except ImportError:
        functional = ModuleType("torchvision.transforms.functional")
        for name, value in (
            ("InterpolationMode", Mode),
            ("resize", _resize),
            ("center_crop", _center_crop),
        ):
            setattr(functional, name, value)
        names = ("torchvision", "torchvision.transforms")
        for name, module in (
            *((name, ModuleType(name)) for name in names),
            (functional.__name__, functional),
        ):
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(_observation, "_has_tv", True)
    return


def _resize(
    image: torch.Tensor, size: list[int], interpolation: str, antialias: bool
) -> torch.Tensor:
    whole, kind = not image.is_floating_point(), image.dtype
    batch = (image.float() if whole else image)[(None,) * (4 - image.ndim)]
    smooth = interpolation in ("bilinear", "bicubic")
    flags = {"align_corners": False, "antialias": antialias} if smooth else {}
    resized = torch.nn.functional.interpolate(batch, size, mode=interpolation, **flags)
    if kind == torch.uint8:
        resized = resized.clamp(0, 255)
    return (resized.round() if whole else resized).to(kind).reshape(*image.shape[:-2], *size)


def _center_crop(image: torch.Tensor, size: list[int]) -> torch.Tensor:
    pads: list[int] = []
    for have, want in zip(image.shape[:-3:-1], size[::-1], strict=True):
        pads += [max(want - have, 0) // 2, (max(want - have, 0) + 1) // 2]
    image = torch.nn.functional.pad(image, pads)
    top, left = (
        round((have - want) / 2.0) for have, want in zip(image.shape[-2:], size, strict=True)
    )
    return image[..., top : top + size[0], left : left + size[1]]


SPEED, ANGLE = ("body", "speed"), ("body", "angle")

EXACT: dict[str, Make] = {
    "CatTensors": lambda e: e.CatTensors([SPEED, ANGLE]),
    "CatTensors, nested": lambda e: e.CatTensors(
        [SPEED, ANGLE], ("body", "all"), sort=False, del_keys=False
    ),
    "CatTensors, found": lambda e: e.CatTensors(),
    "CatTensors, mixed": lambda e: e.Compose(
        e.ToTensorImage(in_keys=["heat"], out_keys=["warm"]),
        e.PermuteTransform((-2, -1, -3), ["warm"]),
        e.CatTensors(["heat", "warm"], "both", dim=-3),
    ),
    "CatTensors, unsqueezed": lambda e: e.CatTensors([SPEED, "mass"], "all", unsqueeze_if_oor=True),
    "CatFrames": lambda e: e.CatFrames(4, -1, [SPEED, "grid"]),
    "CatFrames, constant": lambda e: e.CatFrames(
        3, -3, ["pixels", "grid"], padding="constant", padding_value=2.5
    ),
    "CatFrames, named": lambda e: e.CatFrames(
        N=2, dim=-2, in_keys=["heat"], out_keys=[("stack", "heat")]
    ),
    "TimeMaxPool": lambda e: e.TimeMaxPool(["pixels", "grid", "heat", ANGLE], T=3),
    "TimeMaxPool, named": lambda e: e.TimeMaxPool([SPEED], ["fastest"], T=2),
    "TimeMaxPool of one": lambda e: e.TimeMaxPool([SPEED]),
    "FlattenObservation": lambda e: e.FlattenObservation(-3, -1),
    "FlattenObservation, named": lambda e: e.FlattenObservation(
        -2, -1, ["grid"], [("flat", "grid")]
    ),
    "FlattenObservation, positive": lambda e: e.FlattenObservation(
        0, 1, ["heat"], allow_positive_dim=True
    ),
    "UnsqueezeTransform": lambda e: e.UnsqueezeTransform(-1, in_keys=[SPEED, "grid"]),
    "UnsqueezeTransform, named": lambda e: e.UnsqueezeTransform(
        0, allow_positive_dim=True, in_keys=["grid"], out_keys=["more"]
    ),
    "SqueezeTransform": lambda e: e.SqueezeTransform(-3, in_keys=["grid"]),
    "SqueezeTransform, in vain": lambda e: e.SqueezeTransform(-1, in_keys=["grid"]),
    "PermuteTransform": lambda e: e.PermuteTransform((-1, -3, -2), in_keys=["pixels", "grid"]),
    "PermuteTransform, named": lambda e: e.PermuteTransform(
        [-1, -2], ["heat"], [("turned", "heat")]
    ),
    "RenameTransform": lambda e: e.RenameTransform(["grid", SPEED], [("map", "grid"), "speed"]),
    "RenameTransform, copied": lambda e: e.RenameTransform(["grid"], ["map"], create_copy=True),
    "SelectTransform": lambda e: e.SelectTransform("grid", SPEED),
    "ExcludeTransform": lambda e: e.ExcludeTransform("pixels", ANGLE),
    "ToTensorImage": lambda e: e.ToTensorImage(),
    "ToTensorImage, named": lambda e: e.ToTensorImage(
        in_keys=["pixels"], out_keys=["picture"], unsqueeze=True
    ),
    "ToTensorImage of doubles": lambda e: e.ToTensorImage(
        True, dtype=torch.float64, in_keys=["heat", "pixels", "grid"]
    ),
    "ToTensorImage, unscaled": lambda e: e.ToTensorImage(
        from_int=False, shape_tolerant=True, in_keys=["grid", "pixels"]
    ),
    "GrayScale of bytes": lambda e: e.Compose(
        e.PermuteTransform((-1, -3, -2), in_keys=["pixels"]), e.GrayScale()
    ),
    "GrayScale": lambda e: e.Compose(
        e.ToTensorImage(), e.GrayScale(in_keys=["pixels"], out_keys=["grey"])
    ),
    "CenterCrop": lambda e: e.CenterCrop(5, 3, in_keys=["heat"]),
    "CenterCrop, padded": lambda e: e.CenterCrop(4, 17, in_keys=["grid", "heat"]),
    "Resize, nearest": lambda e: e.Resize(5, 20, interpolation="nearest", in_keys=["heat"]),
    "Resize, nearest-exact": lambda e: e.Resize(
        20, 5, interpolation="nearest-exact", in_keys=["heat"]
    ),
}


#: Sums of several terms, which PyTorch may add in another order.
CLOSE: dict[str, Make] = {
    "Resize": lambda e: e.Resize(5, 3, in_keys=["heat"]),
    "Resize, larger": lambda e: e.Resize(20, interpolation="bicubic", in_keys=["heat"]),
    "Resize, single": lambda e: e.Compose(
        e.ToTensorImage(), e.Resize(6, 20, in_keys=["pixels"], out_keys=["small"])
    ),
    "Atari": lambda e: e.Compose(
        e.TimeMaxPool(["pixels"], T=2),
        e.ToTensorImage(),
        e.GrayScale(),
        e.Resize(8),
        e.CatFrames(N=4, dim=-3),
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_observes_what_torchrl_does(name: str) -> None:
    compare(EXACT[name](ours), EXACT[name](theirs), Robot)


@pytest.mark.parametrize("name", CLOSE)
def test_observes_nearly_what_torchrl_does(name: str) -> None:
    compare(CLOSE[name](ours), CLOSE[name](theirs), Robot, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("arguments", [{}, {"interpolation": "bicubic"}])
def test_resized_bytes_differ_where_halves_are_rounded_only(arguments: dict[str, Any]) -> None:
    worlds = Robot(), Robot()
    envs = []
    for library, world in zip((ours, theirs), worlds, strict=True):
        permute, resize = (
            library.PermuteTransform((-1, -3, -2), in_keys=["pixels"]),
            library.Resize([6, 9], **arguments),
        )
        envs.append(
            library.TransformedEnv(library.GymWrapper(world), library.Compose(permute, resize))
        )
    mine, others = play(*envs, worlds)
    assert_same(mine, others, atol=1)
    differ = mine["pixels"] != others["pixels"]
    assert differ.sum() < 0.005 * differ.numel()


class Counting(Robot):
    """Never ends before ``length`` steps, and has a life less after each second one, as games of
    Atari tell.
    """

    def __init__(self, length: int = 6) -> None:
        super().__init__()
        self.length, self.ale = length, self
        self.observation_space = Dict(
            {"count": Box(0, 99, (1,), np.float32), "draw": Box(0, 1, (2,), np.float64)}
        )

    def lives(self) -> int:
        return 3 - self.steps // 2

    def seen(self) -> Any:
        return {"count": np.array([self.steps], np.float32), "draw": self.np_random.random(2)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0], {"lives": self.lives()}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return (
            self.seen(),
            float(self.np_random.normal()),
            False,
            self.steps >= self.length,
            {"lives": self.lives()},
        )


STEPPING: dict[str, Make] = {
    "FrameSkipTransform": lambda e: e.Compose(
        e.CatFrames(2, -1, ["count"]), e.FrameSkipTransform(3), e.RewardSum()
    ),
    "FrameSkipTransform of one": lambda e: e.FrameSkipTransform(),
    "NoopResetEnv": lambda e: e.Compose(e.NoopResetEnv(4, random=False), e.StepCounter()),
    "EndOfLifeTransform": lambda e: e.EndOfLifeTransform(),
    "EndOfLifeTransform, named": lambda e: e.EndOfLifeTransform(
        ("game", "eol"), ("game", "lives"), "truncated"
    ),
}


@pytest.mark.parametrize("name", STEPPING)
def test_steps_as_torchrl_does(name: str) -> None:
    compare(STEPPING[name](ours), STEPPING[name](theirs), Counting, rtol=1e-6)


def test_each_of_several_environments_skips_frames_and_begins_by_itself() -> None:
    lengths = iter([4, 9])
    base = ours.SerialEnv(2, lambda: ours.GymWrapper(Counting(next(lengths))))
    env = ours.TransformedEnv(
        base,
        ours.Compose(
            ours.NoopResetEnv(1, random=False), ours.FrameSkipTransform(4), ours.StepCounter()
        ),
    )
    root = env.reset()
    assert root["count"].flatten().tolist() == [1, 1]
    frame = env.rand_step(root)
    assert frame["next", "count"].flatten().tolist() == [4, 5]
    assert frame["next", "done"].flatten().tolist() == [True, False]
    assert frame["next", "step_count"].flatten().tolist() == [1, 1]


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_samples_are_resized_to_what_environments_observe(interpolation: str) -> None:
    from tensordict import TensorDict

    def resize(library: Any = ours, **arguments: Any) -> Any:
        return library.Resize(5, 6, interpolation=interpolation, **arguments)

    keys: Any = {
        "in_keys": ["pixels", ("next", "pixels")],
        "out_keys": ["small", ("next", "small")],
    }
    env = ours.TransformedEnv(
        ours.GymWrapper(Robot()),
        ours.Compose(ours.ToTensorImage(), resize(in_keys=["pixels"], out_keys=["small"])),
    )
    frames = env.rollout(4)
    seen = TensorDict(
        {"pixels": frames["pixels"], "next": {"pixels": frames["next", "pixels"]}}, frames.shape
    )
    chain = ours.Compose(resize(**keys))
    chain(seen.clone())
    small = pickle.loads(pickle.dumps(chain))(seen.clone())
    assert torch.equal(small["small"], frames["small"]) and torch.equal(
        small["next", "small"], frames["next", "small"]
    )
    torch.testing.assert_close(
        small["small"], resize(theirs, **keys)(seen.clone())["small"], rtol=1e-5, atol=1e-6
    )
    trained = seen.apply(lambda value: value.clone().requires_grad_())
    assert resize(**keys)(trained)["small"].requires_grad


def test_collectors_take_a_stack_of_pictures() -> None:
    from windrow.collectors import Collector

    stack = [ours.ToTensorImage(), ours.GrayScale(), ours.Resize(8), ours.CatFrames(N=4, dim=-3)]
    env = ours.TransformedEnv(ours.GymWrapper(Robot()), ours.Compose(*stack))
    assert env.observation_spec["pixels"].shape == (4, 8, 8)
    with Collector(env, frames_per_batch=20, total_frames=40) as collector:
        batches = [batch["pixels"].clone() for batch in collector]
    assert [(batch.shape, batch.dtype) for batch in batches] == [((20, 4, 8, 8), torch.float32)] * 2
    assert 0 < batches[0].min() and batches[0].max() < 1


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: ours.CatFrames(4, 1), "dim below 0"),
        (lambda: ours.CatFrames(4, -1, padding="zeros"), '"same" or "constant"'),
        (lambda: ours.CatTensors(dim=0), "without in_keys"),
        (lambda: ours.TimeMaxPool(T=0), "T of 1 or more"),
        (lambda: ours.FlattenObservation(0, -1), "counted from the end"),
        (lambda: ours.PermuteTransform((0, 1)), "-2 to -1 once"),
        (lambda: ours.RenameTransform(["a"], ["a"]), "in common"),
        (lambda: ours.RenameTransform(["a"], ["b", "c"]), "as many out_keys"),
        (lambda: ours.FrameSkipTransform(0), "1 or more"),
        (lambda: ours.Resize(4, interpolation="cubic"), '"nearest-exact"'),
        (lambda: around_cart_pole(ours.CatTensors(["none"])), "no observation"),
    ],
)
def test_what_does_not_fit_is_an_error(make: Callable[[], Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        make()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda of: of.CatFrames(4, -1, as_inverse=True), "replay buffers"),
        (lambda of: of.CatFrames(4, -1, done_key=("agents", "done")), "'done'"),
        (
            lambda of: of.RenameTransform(["reward"], ["r"], create_copy=True),
            "changes observations",
        ),
        (lambda of: of.SelectTransform("a", keep_dones=False), "collectors need them"),
        (lambda of: of.ExcludeTransform("truncated"), "collectors need"),
        (lambda of: of.EndOfLifeTransform(eol_attribute="lives"), "lives_key"),
    ],
)
def test_what_torchrl_alone_can_do_is_left_to_the_stand_in(
    make: Callable[[Any], Any], why: str
) -> None:
    made = make(stand_in)
    assert type(made) is getattr(theirs, type(made).__name__)
    assert isinstance(made, getattr(stand_in, type(made).__name__))
    with pytest.raises(
        ValueError, match=rf"{why}.*; windrow\.torchrl\.envs\.{type(made).__name__}"
    ):
        make(ours)


def around_cart_pole(transform: Any) -> None:
    """Makes an environment with ``transform`` around it."""
    ours.TransformedEnv(ours.GymEnv("CartPole-v1"), transform).reset()


def test_a_module_that_resizes_can_be_exported() -> None:
    from tensordict.nn import TensorDictModule, TensorDictSequential

    chain = ours.Compose(ours.Resize(5, 6, in_keys=["pixels"]))
    policy = TensorDictSequential(
        chain, TensorDictModule(torch.nn.Flatten(0), in_keys=["pixels"], out_keys=["action"])
    )
    policy.select_out_keys("action")
    pixels = torch.rand(3, 8, 8)
    exported = torch.export.export(
        policy, args=(), kwargs={"pixels": pixels}, strict=False
    ).module()
    torch.testing.assert_close(exported(pixels=pixels), policy(pixels=pixels), rtol=1e-5, atol=1e-6)
