"""What actors of Ray cost beside local processes: ``cargo xtask bench ray``.

Each line is ``name  value  target  ok|short``, as the benchmarks in Rust print it; a target of
``-`` is none. Ratios are medians over alternating repeats of both sides. Everything runs on one Ray
on this machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

import ray
from windrow.collectors import MultiAsyncCollector, MultiSyncCollector, RayCollector
from windrow.ray import _session

#: Frames that an actor or a process brings to each batch.
SHARE = 1000


def cartpole() -> Any:
    """CartPole of Gymnasium."""
    import gymnasium

    return gymnasium.make("CartPole-v1")


def network() -> nn.Module:
    """The network of the comparisons."""
    return nn.Sequential(
        nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)
    )


def seconds(side: Callable[[], object], least: float) -> float:
    """Seconds of a call, over ``least`` seconds."""
    calls, start = 0, time.perf_counter()
    while (past := time.perf_counter() - start) < least:
        side()
        calls += 1
    return past / calls


def ratio(
    own: Callable[[], object], other: Callable[[], object], least: float, repeats: int
) -> float:
    """How long a call of ``own`` takes, in calls of ``other``."""
    own(), other()
    return statistics.median(seconds(own, least) / seconds(other, least) for _ in range(repeats))


def pace(sync: bool, least: float, repeats: int) -> float:
    """Frames of two actors while two processes make one."""
    frames = SHARE * (2 if sync else 1)
    options: dict[str, Any] = {
        "frames_per_batch": frames,
        "total_frames": -1,
        "policy_backend": "native",
    }
    kind = MultiSyncCollector if sync else MultiAsyncCollector
    local = kind([cartpole] * 2, network(), placement="processes", **options)
    remote = RayCollector(
        [cartpole] * 2, network(), sync=sync, remote_configs={"num_cpus": 0.5}, **options
    )
    try:
        # Those that wait for their consumer do not take turns with the others. What they have
        # collected before is taken first.
        def one(collector: Any) -> float:
            seconds(lambda: next(collector), least / 3)
            return 1 / seconds(lambda: next(collector), least)

        return statistics.median(one(remote) / one(local) for _ in range(repeats))
    finally:
        remote.shutdown(), local.shutdown()


def learner(repeats: int) -> float:
    """Processor time of the thread that takes batches of two actors, in calls of an actor that does
    nothing.
    """
    sender = _session.actor(ray, Sender, {"num_cpus": 0}, 1)
    batches = 50

    def spent(work: Callable[[], object]) -> float:
        began = time.thread_time()
        for _ in range(batches):
            work()
        return time.thread_time() - began

    options: dict[str, Any] = {
        "frames_per_batch": SHARE,
        "total_frames": -1,
        "policy_backend": "native",
        "remote_configs": {"num_cpus": 0.5},
    }
    try:
        with RayCollector(["CartPole-v1"] * 2, network(), sync=False, **options) as collector:
            spent(lambda: next(collector))
            return statistics.median(
                spent(lambda: next(collector)) / spent(lambda: ray.get(sender.nothing.remote()))
                for _ in range(repeats)
            )
    finally:
        _session.kill([sender])


class Sender:
    """An actor that has a batch, and an array of as many bytes."""

    def __init__(self, frames: int) -> None:
        import numpy

        torch.set_num_threads(1)
        columns = {
            "observation": torch.rand(frames, 4),
            "action": torch.rand(frames, 2),
            "next": {"observation": torch.rand(frames, 4)},
        }
        flags = {
            name: torch.zeros(frames, 1, dtype=torch.bool)
            for name in ("done", "terminated", "truncated")
        }
        columns["next"] |= {**flags, "reward": torch.ones(frames, 1)}
        self._batch = TensorDict(
            {**columns, **flags, "collector": {"traj_ids": torch.arange(frames)}}, [frames]
        )
        self._array = numpy.ones(_session.pack(self._batch).nbytes, numpy.uint8)

    def batch(self) -> Any:
        """The batch, packed for each call."""
        return _session.pack(self._batch)

    def nothing(self) -> None:
        """Does nothing."""

    def array(self) -> Any:
        """A new array for each call."""
        return self._array.copy()


def transport(frames: int, least: float, repeats: int) -> float:
    """How long a batch takes, until it is a TensorDict that can be written to, in arrays of as many
    bytes.
    """
    sender = _session.actor(ray, Sender, None, frames)
    try:
        return ratio(
            lambda: _session.unpack(ray.get(sender.batch.remote())),
            lambda: ray.get(sender.array.remote()),
            least,
            repeats,
        )
    finally:
        _session.kill([sender])


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--least", type=float, default=1.0, help="seconds that each side is timed for at least"
    )
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=256 << 20,
    )
    least, repeats = given.least, given.repeats
    figures: list[tuple[str, Callable[[], float], float | None, bool]] = [
        (
            "frames of 2 actors, first come, over 2 processes",
            lambda: pace(False, least, repeats),
            0.8,
            True,
        ),
        (
            "frames of 2 actors, synchronous, over 2 processes",
            lambda: pace(True, least, repeats),
            None,
            True,
        ),
        (
            "the learner's thread for a batch over a call of an actor",
            lambda: learner(repeats),
            1.0,
            False,
        ),
        (
            "a batch of 1,000 frames over an array of as many bytes",
            lambda: transport(1000, least / 2, repeats),
            1.5,
            False,
        ),
        (
            "a batch of 20,000 frames over an array of as many bytes",
            lambda: transport(20_000, least / 2, repeats),
            None,
            False,
        ),
    ]
    for name, measure, target, more in figures:
        value = measure()
        enough = target is None or (value >= target if more else value <= target)
        wanted = "-" if target is None else f"{'≥' if more else '≤'} {target}"
        print(f"{name}  {value:.3f}  {wanted}  {'ok' if enough else 'short'}", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
