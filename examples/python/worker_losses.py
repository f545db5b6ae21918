"""Worker processes with a simulator that crashes, freezes and raises errors, and a collector that
goes on.

pip install '.[torch,gymnasium]' cloudpickle
python examples/python/worker_losses.py
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import gymnasium as gym
import numpy as np

from windrow.collectors import MultiSyncCollector

NUM_WORKERS = 3
FRAMES_PER_BATCH = 300


class Fragile(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole that ends its process, hangs or raises, each once in some thousand steps."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        # Seeded by the system: the environment of a replaced worker must not fail at the same step
        # again.
        self.chance = np.random.default_rng()

    def step(self, action: Any) -> Any:
        draw = self.chance.random()
        if draw < 1 / 3000:
            os.abort()
        if draw < 2 / 3000:
            time.sleep(3600)
        if draw < 3 / 3000:
            raise RuntimeError("the simulator diverged")
        return super().step(action)


def main() -> None:
    parser = argparse.ArgumentParser(description="Collects in spite of losses.")
    parser.add_argument(
        "--frames", type=int, default=30_000, help="frames in all, a multiple of 300"
    )
    arguments = parser.parse_args()
    frames = 0
    collector = MultiSyncCollector(
        [Fragile] * NUM_WORKERS,
        frames_per_batch=FRAMES_PER_BATCH,
        total_frames=arguments.frames,
        # A worker that is lost is replaced, up to so many times in all; "continue" would go on
        # without it.
        on_loss=1000,
        # Seconds: a step that takes longer is a loss, too.
        step_timeout=0.5,
    )
    with collector:
        for batch in collector:
            frames += batch.numel()
        losses = collector.losses()
    for loss in losses:
        # The first line says which worker, environment, episode and step; what follows has the
        # traceback or the last words.
        print(loss.splitlines()[0])
    print(
        f"{frames} frames, all there were to collect: {frames == arguments.frames}; {len(losses)} workers were replaced"
    )


if __name__ == "__main__":
    main()
