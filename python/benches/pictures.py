"""The stack of transforms for games of Atari beside TorchRL's, in one thread:
``cargo xtask bench pictures``.

Largest of two frames of 210 x 160 x 3 bytes, grey, 84 x 84, four at a time. The game shows frames
that are ready, so that transforms are what takes the time. Each line is
``name  value  target  ok|short``.
"""

from __future__ import annotations

import importlib
import itertools
import statistics
import sys
import time
from types import ModuleType
from typing import Any

import gymnasium
import numpy
import torch

from ratios import REPEATS, Side

FRAMES = 64
BATCHES = 5


class Game(gymnasium.Env[Any, Any]):
    """Shows 32 frames in turn, without an end."""

    action_space = gymnasium.spaces.Discrete(4)
    observation_space = gymnasium.spaces.Dict(
        {"pixels": gymnasium.spaces.Box(0, 255, (210, 160, 3), numpy.uint8)}
    )

    def __init__(self) -> None:
        frames = numpy.random.default_rng(0).integers(0, 256, (32, 210, 160, 3), dtype=numpy.uint8)
        self.frames = itertools.cycle(frames)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return {"pixels": next(self.frames)}, {}

    def step(self, action: Any) -> Any:
        return {"pixels": next(self.frames)}, 0.0, False, False, {}


def stack(envs: Any, own: Any) -> Any:
    """The transforms, of windrow or TorchRL."""
    steps = [
        envs.TimeMaxPool(["pixels"], T=2),
        envs.ToTensorImage(),
        envs.GrayScale(),
        envs.Resize(84),
        envs.CatFrames(N=4, dim=-3),
    ]
    return envs.TransformedEnv(own, envs.Compose(*steps))


def side(library: str, transformed: bool) -> Side:
    """Collects a batch of random actions, with the transforms or without."""
    envs, collectors = (
        importlib.import_module(f"{library}.{name}") for name in ("envs", "collectors")
    )
    env = envs.GymWrapper(Game())
    collector = collectors.Collector(
        stack(envs, env) if transformed else env, None, frames_per_batch=FRAMES, total_frames=-1
    )
    batches = iter(collector)
    return lambda: next(batches)


def seconds(one: Side) -> float:
    """Seconds of the processor for a frame, whatever else the machine does meanwhile."""
    start = time.process_time()
    for _ in range(BATCHES):
        one()
    return (time.process_time() - start) / (BATCHES * FRAMES)


def resizing() -> None:
    """TorchRL resizes by way of torchvision. Where it is not installed, what it calls of torch
    stands for it.
    """
    try:
        importlib.import_module("torchvision.transforms.functional")
        return
    except ImportError:
        pass
    observation: Any = importlib.import_module("torchrl.envs.transforms._observation")
    observation._has_tv = True
    functional: Any = ModuleType("torchvision.transforms.functional")

    def resize(image: Any, size: list[int], interpolation: str, antialias: bool) -> Any:
        options = {"mode": interpolation, "align_corners": False, "antialias": antialias}
        return torch.nn.functional.interpolate(image[None], size, **options)[0]

    functional.InterpolationMode, functional.resize = str, resize
    for name in ("torchvision", "torchvision.transforms"):
        sys.modules[name] = ModuleType(name)
    sys.modules[functional.__name__] = functional


def main() -> int:
    """Prints the figures; 1 when one falls short and ``--check`` was given."""
    torch.set_num_threads(1)
    resizing()
    kinds = [
        (library, transformed)
        for library in ("windrow", "torchrl")
        for transformed in (True, False)
    ]
    sides = {kind: side(*kind) for kind in kinds}
    times: dict[Any, list[float]] = {kind: [] for kind in kinds}
    for _ in range(REPEATS):
        for kind, one in sides.items():
            times[kind].append(seconds(one))
    ours, bare, theirs, their_bare = (statistics.median(times[kind]) for kind in kinds)
    figures = [
        ("Atari stack, with the environment / TorchRL", theirs / ours, 5.0),
        ("Atari stack alone / TorchRL", (theirs - their_bare) / (ours - bare), 5.0),
        ("200 µs / Atari stack of a frame", 200e-6 / (ours - bare), 1.0),
    ]
    for name, value, target in figures:
        print(
            f"{name}  {value:.2f}  {target:.2f}  {'ok' if value >= target else 'short'}", flush=True
        )
    return int("--check" in sys.argv and any(value < target for _, value, target in figures))


if __name__ == "__main__":
    sys.exit(main())
