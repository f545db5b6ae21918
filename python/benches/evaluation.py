"""Rollouts and evaluations beside collection, and batched environments of TorchRL beside their own
loop: ``cargo xtask bench evaluation``.

Each line is ``name  value  target  ok|short``, as the benchmarks in Rust print it. Both sides have
the same environment, policy and number of frames. Ratios are medians over alternating repeats.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import nn

from ratios import Side, ratio

#: Steps of an episode of Pendulum, and of a rollout.
EPISODE, STEPS = 200, 1000


def policy() -> Any:
    """A network for Pendulum."""
    net = nn.Sequential(
        nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1), nn.Tanh()
    )
    return TensorDictModule(net, ["observation"], ["action"])


def pendulum() -> Any:
    """Pendulum with the transforms of most scripts."""
    from windrow.envs import Compose, GymEnv, RewardSum, StepCounter, TransformedEnv

    return TransformedEnv(GymEnv("Pendulum-v1"), Compose(RewardSum(), StepCounter()))


def collected(frames: int, actor: Any, env: Any) -> Side:
    """Batches of ``frames``."""
    from windrow.collectors import Collector

    return Collector(env, actor, frames_per_batch=frames).next


def rolled_out(steps: int, actor: Any) -> Side:
    """Rollouts of ``steps``."""
    env = pendulum()

    def rollout() -> None:
        with torch.no_grad():
            env.rollout(steps, actor, break_when_any_done=False)

    return rollout


def rollouts(steps: int, least: float) -> float:
    """Rollouts over collection."""
    actor = policy()
    return ratio(rolled_out(steps, actor), collected(steps, actor, pendulum()), least)


def evaluations(episodes: int, least: float) -> float:
    """Evaluations over collection."""
    from windrow.collectors import Evaluator

    actor = policy()
    with Evaluator(pendulum(), actor, num_trajectories=episodes, seed=0) as evaluator:
        return ratio(
            lambda: evaluator.evaluate(actor),
            collected(episodes * EPISODE, actor, pendulum()),
            least,
        )


def vmas(num_envs: int, least: float) -> float:
    """Collection in VMAS over a loop of its environment as TorchRL has it."""
    from torchrl.envs import VmasEnv

    def made() -> Any:
        return VmasEnv("balance", num_envs=num_envs, continuous_actions=True, n_agents=3, seed=0)

    env = made()
    state = {"root": env.reset()}

    def loop() -> None:
        for _ in range(20):
            state["root"] = env.step_and_maybe_reset(env.rand_action(state["root"]))[1]

    return ratio(collected(20 * num_envs, None, made()), loop, least)


def main() -> int:
    """Prints every figure; 1 when one falls short and ``--check`` was given."""
    parser = argparse.ArgumentParser(description="Rollouts and evaluations beside collection.")
    parser.add_argument("--check", action="store_true", help="fail when a figure falls short")
    parser.add_argument(
        "--seconds",
        type=float,
        default=0.3,
        help="how long each side of a figure runs in each repeat; 0.3 unless given",
    )
    parser.add_argument("--only", default="", help="measure only figures whose names contain this")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    figures: list[tuple[str, Callable[[float], float], float]] = [
        (f"rollout of {STEPS} steps / collector", lambda least: rollouts(STEPS, least), 0.8),
        (
            f"rollout of {5 * STEPS} steps / collector",
            lambda least: rollouts(5 * STEPS, least),
            0.8,
        ),
        ("Evaluator, 100 episodes / collector", lambda least: evaluations(100, least), 0.8),
    ]
    if (
        importlib.util.find_spec("torchrl") is not None
        and importlib.util.find_spec("vmas") is not None
    ):
        figures += [
            (
                f"VMAS, {number} environments / its own loop",
                lambda least, number=number: vmas(number, least),
                0.9,
            )
            for number in (1, 32)
        ]
    short = False
    for name, measure, target in figures:
        if arguments.only not in name:
            continue
        value = measure(arguments.seconds)
        short |= value < target
        print(
            f"{name}  {value:.2f}  >= {target}  {'ok' if value >= target else 'short'}", flush=True
        )
    return int(short and arguments.check)


if __name__ == "__main__":
    sys.exit(main())
