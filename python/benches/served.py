"""Native CartPoles that ask one torch policy, with TorchRL and Gymnasium beside: the second half of
``cargo xtask bench served``.

Each line is ``name  value  target  ok|short``, as the benchmarks in Rust print it; a target of
``-`` is none. A ratio is that of frames a second, the median over alternating repeats of both
sides.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from processes import Side, ratio

ENVS = 64
STEPS = 100


class Actor(nn.Module):
    """Samples actions: 4-64-64-2 with tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)
        )

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.multinomial(self.net(observation).softmax(-1), 1).squeeze(-1)


def module_alone(actor: Actor) -> Side:
    """Calls of the module on as many observations, and nothing else."""
    observations = torch.randn(ENVS, 4) * 0.1

    def calls() -> int:
        with torch.no_grad():
            for _ in range(STEPS):
                actor(observations)
        return ENVS * STEPS

    return calls


def gymnasium_vector(actor: Actor) -> Side:
    """Gymnasium's vector of CartPoles in numpy, with the module."""
    import gymnasium

    envs = gymnasium.make_vec("CartPole-v1", num_envs=ENVS, vectorization_mode="vector_entry_point")
    state = [envs.reset(seed=0)[0]]

    def steps() -> int:
        observed = state[0]
        with torch.no_grad():
            for _ in range(STEPS):
                observed = envs.step(actor(torch.from_numpy(observed)).numpy())[0]
        state[0] = observed
        return ENVS * STEPS

    return steps


@contextmanager
def windrow_collecting(actor: Actor) -> Iterator[tuple[Side, Any]]:
    from windrow.collectors import AsyncBatchedCollector
    from windrow.envs import GymEnv

    def make() -> Any:
        return GymEnv("CartPole-v1", categorical_action_encoding=True)

    with AsyncBatchedCollector(
        [make] * ENVS, actor, frames_per_batch=ENVS * STEPS, policy_backend="torch"
    ) as collector:
        yield lambda: next(collector).numel(), collector


@contextmanager
def torchrl_collecting(actor: Actor) -> Iterator[Side]:
    from tensordict.nn import TensorDictModule
    from torchrl.collectors import AsyncBatchedCollector
    from torchrl.envs import GymEnv

    def make() -> Any:
        return GymEnv("CartPole-v1", categorical_action_encoding=True)

    policy = TensorDictModule(actor, in_keys=["observation"], out_keys=["action"])
    collector = AsyncBatchedCollector(
        [make] * ENVS, policy=policy, frames_per_batch=ENVS, max_batch_size=ENVS
    )
    batches = iter(collector)
    try:
        yield lambda: next(batches).numel()
    finally:
        collector.shutdown()


def main() -> int:
    """Prints every figure; 1 when one falls short and ``--check`` was given."""
    parser = argparse.ArgumentParser(
        description="A served torch policy, with TorchRL and Gymnasium beside."
    )
    parser.add_argument("--check", action="store_true", help="fail when a figure falls short")
    parser.add_argument(
        "--seconds",
        type=float,
        default=0.3,
        help="how long each side of a figure runs in each repeat; 0.3 unless given",
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    actor, short = Actor(), False

    def show(name: str, value: float, target: float | None) -> None:
        nonlocal short
        verdict = "ok" if target is None or value >= target else "short"
        short |= verdict == "short"
        print(
            f"{name}  {value:.2f}  {'-' if target is None else f'{target:.2f}'}  {verdict}",
            flush=True,
        )

    with windrow_collecting(actor) as (own, collector):
        show(
            f"{ENVS} native, served torch policy / module alone",
            ratio(own, module_alone(actor), arguments.seconds),
            0.8,
        )
        show(
            f"{ENVS} native, served torch policy / Gymnasium's vector",
            ratio(own, gymnasium_vector(actor), arguments.seconds),
            1.0,
        )
        figures = collector.server_stats()
        show("fill of its batches", figures["batch_fill"], None)
        print(
            f"queue {figures['p50_queue_ms']:.3f} ms, forward {figures['p50_forward_ms']:.3f} ms, medians"
        )
        with torchrl_collecting(actor) as other:
            show(
                f"{ENVS} native, served torch policy / TorchRL",
                ratio(own, other, arguments.seconds),
                100.0,
            )
    return int(short and arguments.check)


if __name__ == "__main__":
    sys.exit(main())
