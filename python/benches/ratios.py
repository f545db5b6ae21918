"""Ratios against bare loops and TorchRL, each timed beside windrow in one process:
``cargo xtask bench python``.

Each line is ``name  value  target  ok|short``, as the benchmarks in Rust print it. A ratio is the
time of the other side divided by windrow's, the median over alternating repeats.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

FRAMES = 1000
REPEATS = 7

Side = Callable[[], object]


def seconds(side: Side, least: float) -> float:
    """Seconds of one call of ``side``, repeated until ``least`` seconds are over."""
    calls, start = 0, time.perf_counter()
    while True:
        side()
        calls += 1
        past = time.perf_counter() - start
        if past >= least:
            return past / calls


def ratio(own: Side, other: Side, least: float) -> float:
    """How often ``own`` can be done while ``other`` is done once."""
    own(), other()
    pairs = [(seconds(own, least), seconds(other, least)) for _ in range(REPEATS)]
    return statistics.median(theirs / ours for ours, theirs in pairs)


def network() -> Any:
    """The network of the comparisons: 4-64-64-2 with tanh."""
    from torch import nn

    return nn.Sequential(
        nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)
    )


def batches(env: Any, policy: Any = None, **arguments: Any) -> Any:
    """A collector of windrow, endless."""
    from windrow.collectors import Collector

    return Collector(env, policy, **{"frames_per_batch": FRAMES, **arguments})


def bare_loop(policy: Any = None, env: Any = None) -> Side:
    """As many steps of Gymnasium's environment as a batch has frames, with a module called for each
    if there is one.
    """
    import gymnasium
    import torch

    env = env or gymnasium.make("CartPole-v1")
    action = np.random.default_rng(0).integers(0, 2, FRAMES)
    state = {"observation": env.reset(seed=0)[0]}

    def steps() -> None:
        observation = state["observation"]
        with torch.no_grad():
            for frame in range(FRAMES):
                if policy is None:
                    chosen = action[frame]
                else:
                    chosen = int(policy(torch.from_numpy(observation)).argmax())
                observation, _, terminated, truncated, _ = env.step(chosen)
                if terminated or truncated:
                    observation, _ = env.reset()
        state["observation"] = observation

    return steps


def torchrl_batches(policy: Any = None) -> Side:
    """Collects one batch of TorchRL."""
    from tensordict.nn import TensorDictModule
    from torchrl.collectors import Collector
    from torchrl.envs import GymEnv

    actor = policy and TensorDictModule(policy, in_keys=["observation"], out_keys=["action"])
    collector = Collector(GymEnv("CartPole-v1"), actor, frames_per_batch=FRAMES, total_frames=-1)
    iterator = iter(collector)
    return lambda: next(iterator)


def module_alone(policy: Any, rows: int, calls: int) -> Side:
    """So many calls of a module on so many rows."""
    import torch

    observations = torch.randn(rows, 4) * 0.1

    def evaluate() -> None:
        with torch.no_grad():
            for _ in range(calls):
                policy(observations)

    return evaluate


def import_ratio() -> float:
    """Time of ``import numpy`` over that of ``import windrow``, each in a fresh interpreter."""

    def of(module: str) -> float:
        program = f"import time; start = time.perf_counter(); import {module}; print(time.perf_counter() - start)"
        told = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        return float(told.stdout)

    return statistics.median(of("numpy") / of("windrow.collectors") for _ in range(REPEATS))


def gymnasium_cartpole() -> Any:
    """CartPole of Gymnasium, stepped by windrow."""
    from windrow.envs import GymEnv

    return GymEnv("CartPole-v1", backend="gymnasium")


def wrapped_cartpole() -> Any:
    """Gymnasium's CartPole, normalised and clipped as in CleanRL's scripts."""
    import gymnasium
    from gymnasium import wrappers

    env = wrappers.RecordEpisodeStatistics(
        wrappers.FlattenObservation(gymnasium.make("CartPole-v1"))
    )
    env = wrappers.TransformObservation(
        wrappers.NormalizeObservation(env), lambda obs: np.clip(obs, -10, 10), None
    )
    return wrappers.TransformReward(
        wrappers.NormalizeReward(env), lambda reward: np.clip(reward, -10, 10)
    )


def native_cartpole() -> Any:
    """CartPole of windrow."""
    from windrow.envs import GymEnv

    return GymEnv("CartPole-v1")


def minibatches(batch: Any, windrows: bool) -> Side:
    """Two passes over a batch in minibatches of 256 frames: windrow's, or indexed by random
    permutations.
    """
    import torch

    import windrow

    def drawn() -> None:
        for _ in windrow.minibatches(batch, 256, epochs=2):
            pass

    def indexed() -> None:
        flat = batch.reshape(-1)
        for _ in range(2):
            for rows in torch.randperm(len(flat)).split(256):
                flat[rows]

    return drawn if windrows else indexed


def looped(value: Any, following: Any, reward: Any, done: Any) -> None:
    """Advantages of arrays ``[env, time, 1]`` in a loop of NumPy."""
    found, last = np.zeros_like(value), np.zeros_like(value[:, 0])
    for step in reversed(range(value.shape[1])):
        goes_on = ~done[:, step]
        last = (
            reward[:, step]
            + 0.99 * following[:, step] * goes_on
            - value[:, step]
            + 0.99 * 0.95 * goes_on * last
        )
        found[:, step] = last


def advantages(side: str) -> Side:
    """Advantages of 8 environments and 256 steps: ``"windrow"``'s, ``"TorchRL"``'s, or those of a
    ``"loop"``.
    """
    import torch
    from torchrl.objectives.value.functional import vec_generalized_advantage_estimate

    import windrow

    given = [*(torch.randn(8, 256, 1) for _ in range(3)), torch.rand(8, 256, 1) < 0.05]
    arrays = [tensor.numpy() for tensor in given]
    return {
        "windrow": lambda: windrow.generalized_advantage_estimate(0.99, 0.95, *given),
        "TorchRL": lambda: vec_generalized_advantage_estimate(0.99, 0.95, *given),
        "loop": lambda: looped(*arrays),
    }[side]


def figures(least: float) -> list[tuple[str, Callable[[], float], float]]:
    """Name, measurement and target of each figure."""
    net = network()
    sides: dict[str, Callable[[], Side]] = {
        "random": lambda: batches(gymnasium_cartpole()).next,
        "lowered": lambda: batches(gymnasium_cartpole(), net, policy_backend="native").next,
        "module": lambda: batches(gymnasium_cartpole(), net, policy_backend="torch").next,
    }

    def against(own: Callable[[], Side], other: Callable[[], Side]) -> Callable[[], float]:
        return lambda: ratio(own(), other(), least)

    def python_against_rust() -> float:
        # The same collector without what it does for Python: the engine has a batch ready, and
        # drops it.
        collector, engine = (batches(native_cartpole(), net) for _ in range(2))
        engine._core.serve(None)
        return ratio(collector.next, engine._core.next, least)

    def microseconds() -> float:
        one = batches(native_cartpole(), frames_per_batch=1).next
        one()
        return 250e-6 / statistics.median(seconds(one, least) for _ in range(REPEATS))

    def wrapped() -> float:
        from windrow.envs import GymWrapper

        return ratio(
            batches(GymWrapper(wrapped_cartpole())).next, bare_loop(env=wrapped_cartpole()), least
        )

    def gathered() -> float:
        batch = batches(native_cartpole(), num_envs=8, frames_per_batch=2048).next()
        return ratio(minibatches(batch, True), minibatches(batch, False), least)

    vector = {"num_envs": 64, "frames_per_batch": 64 * 100, "policy_backend": "torch"}
    return [
        ("gymnasium, random / bare loop", against(sides["random"], bare_loop), 0.8),
        ("gymnasium, lowered net / bare random loop", against(sides["lowered"], bare_loop), 0.7),
        (
            "gymnasium, module / bare loop with it",
            against(sides["module"], lambda: bare_loop(net)),
            0.8,
        ),
        ("gymnasium in wrappers, random / bare loop", wrapped, 3.0),
        ("native, lowered net / the same in Rust", python_against_rust, 0.9),
        (
            "64 native, module / module alone",
            against(
                lambda: batches(native_cartpole(), net, **vector).next,
                lambda: module_alone(net, 64, 100),
            ),
            0.8,
        ),
        ("250 µs / making a batch", microseconds, 1.0),
        ("import numpy / import windrow", import_ratio, 1.0),
        ("gymnasium, random / TorchRL", against(sides["random"], torchrl_batches), 20.0),
        (
            "gymnasium, lowered net / TorchRL",
            against(sides["lowered"], lambda: torchrl_batches(net)),
            20.0,
        ),
        (
            "native, lowered net / TorchRL",
            against(lambda: batches(native_cartpole(), net).next, lambda: torchrl_batches(net)),
            20.0,
        ),
        ("minibatches / indexing", gathered, 1.4),
        (
            "advantages / a loop of NumPy",
            against(lambda: advantages("windrow"), lambda: advantages("loop")),
            10.0,
        ),
        (
            "advantages / TorchRL",
            against(lambda: advantages("windrow"), lambda: advantages("TorchRL")),
            10.0,
        ),
        (
            "gymnasium, module / TorchRL",
            against(sides["module"], lambda: torchrl_batches(net)),
            3.5,
        ),
    ]


def main() -> int:
    """Prints every figure; 1 when one falls short and ``--check`` was given."""
    parser = argparse.ArgumentParser(description="Ratios against bare loops and TorchRL.")
    parser.add_argument("--check", action="store_true", help="fail when a figure falls short")
    parser.add_argument(
        "--seconds",
        type=float,
        default=0.3,
        help="how long each side of a figure runs in each repeat; 0.3 unless given",
    )
    parser.add_argument("--only", default="", help="measure only figures whose names contain this")
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    short = False
    for name, measure, target in figures(arguments.seconds):
        if arguments.only not in name:
            continue
        value = measure()
        short |= value < target
        print(
            f"{name}  {value:.2f}  {target:.2f}  {'ok' if value >= target else 'short'}", flush=True
        )
    return int(short and arguments.check)


if __name__ == "__main__":
    sys.exit(main())
