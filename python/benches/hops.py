"""The costs of each hop over a local Ray: ``python python/benches/hops.py``.

Each line is ``name: number``. A cost is the time that one call in ten stays below, which other
programs on the machine change least. ``docs/scaling.md`` says what they mean.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import ray
from windrow.collectors import Collector, RayCollector
from windrow.data import LazyTensorStorage, RayReplayBuffer
from windrow.envs import GymEnv
from windrow.ray import _session

FRAMES = 1000
CALLS = 200


def cartpole() -> GymEnv:
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def gymnasium_cartpole() -> Any:
    import gymnasium

    return gymnasium.make("CartPole-v1")


def policy() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)
    )


class Source:
    """Returns a batch that it has, and takes weights."""

    def __init__(self, batch: Any) -> None:
        self.batch = np.array(batch)

    def nothing(self) -> None:
        pass

    def next(self) -> Any:
        return self.batch

    def take(self, weights: Any) -> int:
        return len(np.array(weights))

    def busy(self) -> float:
        """Processor time of this process."""
        return time.process_time()


def said(name: str, value: float, unit: str = "") -> None:
    print(f"{name}: {value:.6g} {unit}".rstrip(), flush=True)


def cost(work: Callable[[], object], calls: int = CALLS) -> float:
    """Seconds that a call takes."""
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.quantiles(times, n=10)[0]


def rate(collector: Any, batches: int) -> float:
    """Frames a second."""
    began = time.perf_counter()
    for _ in range(batches):
        next(collector)
    return batches * FRAMES / (time.perf_counter() - began)


def calls(batch: Any) -> None:
    """The costs of a call and of a batch, to a learner and to an actor."""
    sources = [ray.remote(num_cpus=0)(Source).remote(batch) for _ in range(2)]
    ray.get([source.nothing.remote() for source in sources])
    said(
        "call_us",
        1e6 * cost(lambda: ray.get(sources[0].nothing.remote())),
        "a call that does nothing, and its answer",
    )
    said(
        "batch_us",
        1e6 * cost(lambda: _session.unpack(ray.get(sources[0].next.remote()))),
        "a batch, not asked for ahead",
    )
    busy = ray.get(sources[0].busy.remote())
    ray.get([sources[0].next.remote() for _ in range(CALLS)])
    said(
        "actor_call_us",
        1e6 * (ray.get(sources[0].busy.remote()) - busy) / CALLS,
        "of processor time in the actor, for each batch",
    )
    for name, count in (("5k", 5_000), ("1m", 1_000_000), ("25m", 25_000_000)):
        weights = np.zeros(4 * count, np.uint8)

        def push(weights: Any = weights) -> None:
            sent = weights if weights.nbytes < _session.INLINE else ray.put(weights)
            ray.get([source.take.remote(sent) for source in sources])

        said(f"weights_{name}_us", 1e6 * cost(push, 20), "parameters to two actors")
    began = time.perf_counter()
    for _ in range(CALLS):
        [source.take.remote(np.zeros(8, np.uint8)) for source in sources]
    said(
        "weights_call_us",
        1e6 * (time.perf_counter() - began) / CALLS / 2,
        "of the learner's thread, for each actor",
    )
    _session.kill(sources)


def copies() -> None:
    block = np.ones(2**26, np.uint8)
    seconds = cost(lambda: ray.put(block), 10)
    said("copy_gb_s", block.nbytes / seconds / 1e9, "into the object store")


def buffer(batch: Any) -> None:
    with RayReplayBuffer(storage=LazyTensorStorage(100_000), batch_size=256) as there:
        there.extend(batch)
        said("extend_us", 1e6 * cost(lambda: there.extend(batch)), f"{FRAMES} frames into a buffer")
        said("sample_us", 1e6 * cost(there.sample), "256 frames of a buffer")
    with RayReplayBuffer(storage=LazyTensorStorage(100_000), batch_size=256, prefetch=4) as there:
        there.extend(batch)
        said("sample_ahead_us", 1e6 * cost(there.sample), "the same, asked for ahead")


def collected(name: str, env: Any) -> Any:
    """What two actors bring, and what the learner spends on it; a batch."""
    with Collector(env, policy(), frames_per_batch=FRAMES, total_frames=-1) as collector:
        batch = next(collector).clone()
        said(f"{name}_frame_us", 1e6 / max(rate(collector, 20) for _ in range(10)), "of a core")
    options: dict[str, Any] = {
        "frames_per_batch": FRAMES,
        "total_frames": -1,
        "sync": False,
        "remote_configs": {"num_cpus": 0.5},
    }
    with RayCollector([env] * 2, policy(), **options) as actors:
        rate(actors, 20)
        thread, process = time.thread_time(), time.process_time()
        rate(actors, 100)
        said(
            f"{name}_learner_call_us",
            1e4 * (time.thread_time() - thread),
            "of the learner's thread, for each batch",
        )
        said(
            f"{name}_learner_process_us",
            1e4 * (time.process_time() - process),
            "of processor time, with the threads of Ray",
        )
        said(f"{name}_two_actors_frames_s", max(rate(actors, 20) for _ in range(20)))
    return batch


def main() -> None:
    torch.set_num_threads(1)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=2**29)
    try:
        said("cores", len(os.sched_getaffinity(0)))
        said("frames_per_batch", FRAMES)
        collected("gymnasium", gymnasium_cartpole)
        batch = collected("native", cartpole)
        packed = _session.pack(batch)
        said("frame_bytes", len(packed) / FRAMES)
        said("pack_us", 1e6 * cost(lambda: _session.pack(batch)), "a batch as one array")
        said("unpack_us", 1e6 * cost(lambda: _session.unpack(packed)))
        calls(packed)
        copies()
        buffer(batch)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
