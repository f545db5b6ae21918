"""How long new weights take to workers: ``cargo xtask bench weights``.

Each line is ``name  value  target  ok|short``, as the benchmarks in Rust print it; a target of
``-`` is none. Values are milliseconds, the median of repeats, from the call until it returns:
actors of Ray have taken the weights up by then, and workers of a collector of this machine take
them up with their next share of a batch. The first pushes do not count: while Ray's store gives
each another part of its memory, it writes 100 MB in 50 ms in place of 10, since the system makes
memory when it is first written.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

#: Widths of a hidden layer of CartPole's policy by the number of its parameters, and how often
#: weights are sent.
POLICIES = {"5 thousand": ([64, 64], 200), "25 million": ([4990, 4990], 50)}
#: Pushes before those that are counted.
UNCOUNTED = 20
#: Most milliseconds to two actors of Ray.
TARGETS = {"5 thousand": 3.0, "25 million": 80.0}


def network(hidden: list[int]) -> nn.Module:
    """CartPole's policy with these hidden layers."""
    first, second = hidden
    return nn.Sequential(
        nn.Linear(4, first), nn.Tanh(), nn.Linear(first, second), nn.Tanh(), nn.Linear(second, 2)
    )


def milliseconds(push: Callable[[], object], repeats: int) -> float:
    """The median time of a call."""

    def once() -> float:
        start = time.perf_counter()
        push()
        return (time.perf_counter() - start) * 1e3

    for _ in range(UNCOUNTED):
        once()
    return statistics.median(once() for _ in range(repeats))


def local(placement: str, hidden: list[int], repeats: int) -> float:
    """To two workers on this machine."""
    from windrow.collectors import MultiSyncCollector

    with MultiSyncCollector(
        ["CartPole-v1"] * 2, network(hidden), frames_per_batch=20, placement=placement
    ) as collector:
        return milliseconds(collector.update_policy_weights_, repeats)


class Collecting:
    """What an actor runs."""

    def __init__(self, hidden: list[int]) -> None:
        from windrow.collectors import Collector

        torch.set_num_threads(1)
        self.collector = Collector("CartPole-v1", network(hidden), frames_per_batch=20)

    def update_policy_weights_(self, weights: Any) -> None:
        self.collector.update_policy_weights_(weights)

    def policy_version(self) -> int:
        return self.collector.policy_version


def to_actors(ray: Any, hidden: list[int], repeats: int) -> float:
    """To two actors of Ray."""
    from windrow.collectors import RayWeightUpdater

    actors = [ray.remote(Collecting).remote(hidden) for _ in range(2)]
    updater = RayWeightUpdater(network(hidden), actors)
    median = milliseconds(updater.push_weights, repeats)
    versions = ray.get([actor.policy_version.remote() for actor in actors])
    assert versions == [repeats + UNCOUNTED] * 2, versions
    for actor in actors:
        ray.kill(actor)
    return median


def main() -> int:
    """Prints every figure; 1 when one falls short and ``--check`` was given."""
    parser = argparse.ArgumentParser(
        description="Weights to workers in threads and in processes, and to actors of Ray."
    )
    parser.add_argument("--check", action="store_true", help="fail when a figure falls short")
    arguments = parser.parse_args()
    import ray

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )
    short = False

    def show(name: str, value: float, target: float | None = None) -> None:
        nonlocal short
        verdict = "ok" if target is None or value <= target else "short"
        short |= verdict == "short"
        print(
            f"{name}  {value:.3f}  {'-' if target is None else f'<= {target:.0f}'}  {verdict}",
            flush=True,
        )

    for size, (hidden, repeats) in POLICIES.items():
        for placement in ("threads", "processes"):
            show(
                f"{size} parameters to 2 workers in {placement}, ms",
                local(placement, hidden, repeats),
            )
        show(
            f"{size} parameters to 2 actors of Ray, ms",
            to_actors(ray, hidden, repeats),
            TARGETS[size],
        )
    ray.shutdown()
    return int(short and arguments.check)


if __name__ == "__main__":
    sys.exit(main())
