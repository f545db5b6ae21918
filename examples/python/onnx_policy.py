"""A policy as an ONNX file: written from a module, then run in Rust, by onnxruntime, and by
onnxruntime alone.

pip install '.[onnx]'
python examples/python/onnx_policy.py
"""

from __future__ import annotations

import argparse
import time
from typing import Literal

import numpy as np
import onnxruntime
import torch
from torch import nn

from windrow.collectors import Collector
from windrow.modules import export_onnx

FILE = "policy.onnx"
Backend = Literal["auto", "native", "torch"]


def collect(policy_backend: Backend, frames: int) -> tuple[np.ndarray, np.ndarray]:
    """Collects with the file as policy, says how fast that was, and returns the observations and
    actions of the first 1000 frames.
    """
    with Collector(
        "CartPole-v1",
        FILE,
        num_envs=10,
        frames_per_batch=1000,
        seed=0,
        policy_backend=policy_backend,
    ) as collector:
        first = next(collector).reshape(-1)
        start = time.perf_counter()
        batches = max(frames // 1000, 1)
        for _ in range(batches):
            next(collector)
        rate = 1000 * batches / (time.perf_counter() - start)
        print(f"{collector}\n    {rate:,.0f} frames a second")
        return np.asarray(first["observation"]), np.asarray(first["action"])


def main() -> None:
    parser = argparse.ArgumentParser(description="A policy as an ONNX file.")
    parser.add_argument(
        "--frames",
        type=int,
        default=200_000,
        help="frames to collect in Rust; a 25th of them by onnxruntime",
    )
    arguments = parser.parse_args()
    torch.manual_seed(0)
    export_onnx(nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2)), FILE)

    observations, native = collect("native", arguments.frames)
    _, called = collect("torch", arguments.frames // 25)
    # Any other program may use the file.
    (scores,) = onnxruntime.InferenceSession(FILE).run(None, {"observation": observations})
    print(
        "all three did the same:",
        np.array_equal(native, called) and np.array_equal(native, np.asarray(scores).argmax(-1)),
    )


if __name__ == "__main__":
    main()
