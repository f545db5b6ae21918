"""``make_vec`` and ``windrow.sb3.VecEnv``, with the vectors of Gymnasium, EnvPool and
Stable-Baselines3 beside: ``cargo xtask bench vectors``.

Each line is ``name  value  target  ok|short``, as the benchmarks in Rust print it; a target of
``-`` is none. NumPy goes in and comes out. A ratio is how many steps windrow takes while the other
takes one: the median over alternating repeats. ``in envs.step`` counts the time inside this call
alone, in a loop whose agent acts by a network as the script's does.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import warnings
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

import windrow
from processes import Side, cheetah, pace, ratio


def stepping(envs: Any, calls: int = 50) -> Side:
    """Steps ``envs`` by actions that were drawn before."""
    envs.reset()
    actions = [envs.action_space.sample() for _ in range(16)]

    def step() -> int:
        for call in range(calls):
            envs.step(actions[call % 16])
        return calls

    return step


def in_envpool(num_envs: int, calls: int = 50) -> Side:
    """Steps EnvPool's vector by actions that were drawn before."""
    import envpool

    envs = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=num_envs)
    envs.reset()
    actions = np.random.default_rng(0).integers(0, 2, (16, num_envs))

    def step() -> int:
        for call in range(calls):
            envs.step(actions[call % 16])
        return calls

    return step


def in_script(envs: Any, steps: int) -> float:
    """Seconds inside ``envs.step`` where an agent acts, as in CleanRL's ``ppo.py``."""
    torch.manual_seed(0)
    agent = nn.Sequential(
        nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)
    )
    seen, inside = envs.reset(seed=1)[0], 0.0
    for _ in range(steps):
        with torch.no_grad():
            actions = (
                torch.distributions.Categorical(logits=agent(torch.Tensor(seen))).sample().numpy()
            )
        start = time.perf_counter()
        seen, *_ = envs.step(actions)
        inside += time.perf_counter() - start
    return inside


def in_ppo(env: Any, steps: int) -> tuple[float, float]:
    """Seconds inside the vector's ``step`` where PPO of Stable-Baselines3 learns, and in all."""
    from stable_baselines3 import PPO

    inside = 0.0
    own = env.step

    def step(actions: Any) -> Any:
        nonlocal inside
        start = time.perf_counter()
        returned = own(actions)
        inside += time.perf_counter() - start
        return returned

    env.step = step
    start = time.perf_counter()
    PPO("MlpPolicy", env, n_steps=128, batch_size=256, device="cpu", seed=1).learn(steps)
    return inside, time.perf_counter() - start


def cleanrl(ours: bool) -> Any:
    """The vector of ``ppo.py``: CleanRL's, or that of the changed line."""
    if ours:
        return windrow.make_vec(
            "CartPole-v1",
            4,
            autoreset_mode="SameStep",
            episode_statistics=True,
            final_info="dictionaries",
        )
    make = [lambda: gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))] * 4
    return gymnasium.vector.SyncVectorEnv(
        make, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP
    )


def main() -> int:
    """Prints every figure; 1 when one falls short and ``--check`` was given."""
    parser = argparse.ArgumentParser(
        description="Vectors for loops of one's own, with Gymnasium's, EnvPool's and SB3's beside."
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
    short = False

    def show(name: str, value: float, target: float | None) -> None:
        nonlocal short
        verdict = "ok" if target is None or value >= target else "short"
        short |= verdict == "short"
        print(
            f"{name}  {value:.2f}  {'-' if target is None else f'{target:.2f}'}  {verdict}",
            flush=True,
        )

    own = stepping(windrow.make_vec("CartPole-v1", 64))
    print(f"64 CartPoles: {1e6 / pace(own, arguments.seconds):.1f} µs a step")
    show(
        "64 CartPoles / Gymnasium's own vector",
        ratio(own, stepping(gymnasium.make_vec("CartPole-v1", 64)), arguments.seconds),
        10.0,
    )
    try:
        show("64 CartPoles / EnvPool", ratio(own, in_envpool(64), arguments.seconds), 5.0)
    except ImportError as error:
        print(f"EnvPool is not timed: {error}")

    ours = windrow.make_vec(cheetah, 8, workers=2)
    theirs = gymnasium.vector.AsyncVectorEnv([cheetah] * 8)
    show(
        "8 HalfCheetahs in 2 processes / AsyncVectorEnv",
        ratio(stepping(ours, 20), stepping(theirs, 20), arguments.seconds),
        2.0,
    )
    ours.close(), theirs.close()
    lakes = [
        windrow.make_vec("FrozenLake-v1", 8, native=False),
        gymnasium.make_vec("FrozenLake-v1", 8, vectorization_mode="sync"),
    ]
    show(
        "8 FrozenLakes, stepped by Python / SyncVectorEnv",
        ratio(*map(stepping, lakes), arguments.seconds),
        None,
    )

    pairs = [(in_script(cleanrl(True), 1500), in_script(cleanrl(False), 1500)) for _ in range(3)]
    show(
        "CleanRL's ppo.py, in envs.step, original / ours",
        statistics.median(theirs / ours for ours, theirs in pairs),
        1 / 0.15,
    )
    from stable_baselines3.common.env_util import make_vec_env

    from windrow.sb3 import VecEnv

    runs = [
        (in_ppo(VecEnv("CartPole-v1", 8), 4096), in_ppo(make_vec_env("CartPole-v1", 8), 4096))
        for _ in range(3)
    ]
    show(
        "SB3's PPO, in env.step, original / ours",
        statistics.median(theirs[0] / ours[0] for ours, theirs in runs),
        1 / 0.15,
    )
    show(
        "SB3's PPO, in all, original / ours",
        statistics.median(theirs[1] / ours[1] for ours, theirs in runs),
        None,
    )
    return int(short and arguments.check)


if __name__ == "__main__":
    # EnvPool's threads would otherwise outlive the last line.
    status = main()
    sys.stdout.flush()
    os._exit(status)
