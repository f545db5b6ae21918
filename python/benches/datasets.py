"""How fast data sets are written: ``cargo xtask bench datasets``.

Each line is ``name  value  target  ok|short``, as the benchmarks in Rust print it. Rows are
CartPole's, written in batches of a collector into files in memory, by one thread whose time counts:
a disk is as fast as it is. A video is of pictures that move, 640 by 480 at 30 a second.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from windrow.collectors import Collector
from windrow.data import LeRobotSink, ParquetSink, SafetensorsSink
from windrow.data._datasets._lerobot import encode
from windrow.envs import GymEnv

#: Least rows a second of processor time of a Parquet sink, and seconds of video in one.
ROWS, REAL_TIME = 1e6, 5.0
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


def batches(count: int) -> list[Any]:
    """Batches of CartPole's, each of 16,384 frames."""
    env = GymEnv("CartPole-v1", num_envs=16)
    with Collector(env, frames_per_batch=16_384, total_frames=16_384 * count, seed=0) as collector:
        return [batch.clone() for batch in collector]


def rows(make: Callable[..., Any], given: list[Any], repeats: int) -> float:
    """Rows a second of processor time, all threads together."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, make(folder) as sink:
        sink._write(given[0], None, 0)
        begun = time.process_time()
        for repeat in range(1, repeats + 1):
            for batch in given:
                # As another collector, since ids of episodes come again.
                sink._write(batch, None, repeat)
        sink.flush()
        return repeats * sum(batch.numel() for batch in given) / (time.process_time() - begun)


def video(frames: int) -> float:
    """Seconds of video that a second of processor time encodes."""
    down, right = np.mgrid[0:480, 0:640]
    pictures = np.stack(
        [
            np.stack([down + 3 * at, right - 2 * at, down * right // 64 + at], -1).astype(np.uint8)
            for at in range(frames)
        ]
    )
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        arguments = LeRobotSink(Path(folder) / "set")._target.arguments
        begun = time.process_time()
        encode(Path(folder) / "video.mp4", pictures, 30, arguments.codec, arguments.crf)
        return frames / 30 / (time.process_time() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast data sets are written.")
    parser.add_argument("--repeats", type=int, default=20, help="of 65,536 rows")
    parser.add_argument("--frames", type=int, default=300, help="of the video")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    given = batches(4)
    for name, make, target in (
        ("Parquet", ParquetSink, ROWS),
        ("safetensors", SafetensorsSink, None),
    ):
        value = rows(make, given, arguments.repeats)
        told = "-" if target is None else f">= {target / 1e6:g} million"
        print(
            f"{name}, rows a second  {value / 1e6:.2f} million  {told}  {'ok' if target is None or value >= target else 'short'}"
        )
    value = video(arguments.frames)
    print(
        f"video of LeRobot, seconds in a second  {value:.1f}  >= {REAL_TIME:g}  {'ok' if value >= REAL_TIME else 'short'}"
    )


if __name__ == "__main__":
    main()
