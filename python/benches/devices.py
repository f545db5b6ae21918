"""A policy on a GPU in each of the ways that a collector calls one, as multiples of calling it
without more, and a learner whose samples are drawn ahead, as a multiple of one that waits for them:
``cargo xtask bench devices``.

Each line is ``name  value  target  ok|short``, as the benchmarks in Rust print it. A ratio is that
of frames a second, the median over alternating repeats of both sides; frames a second themselves
are on standard error. TorchRL's collector stands beside where it is installed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, TensorDictModule, TensorDictSequential
from torch import nn
from torch.distributions import Categorical

from ratios import Side, ratio, seconds

STEPS = 32
#: By name: what a collector is told, and how many times as fast as a plain policy on the GPU it has
#: to be with 64 environments.
WAYS: dict[str, tuple[dict[str, Any], float | None]] = {
    "rust": ({"policy_device": None}, None),
    "compiled": ({"compile_policy": True}, None),
    "recorded": ({"cudagraph_policy": True}, 3.0),
    "compiled_and_recorded": ({"compile_policy": True, "cudagraph_policy": True}, 3.0),
}


def drawn() -> TensorDictSequential:
    """A policy that draws its actions: 4-256-256-2 with tanh."""
    net = nn.Sequential(
        nn.Linear(4, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 2)
    )
    return TensorDictSequential(
        TensorDictModule(net, ["observation"], ["logits"]),
        ProbabilisticTensorDictModule(
            ["logits"], ["action"], distribution_class=Categorical, return_log_prob=True
        ),
    )


def collecting(envs: int, told: dict[str, Any]) -> Side:
    from windrow.collectors import Collector

    given = {"policy_device": "cuda", "num_envs": envs, "frames_per_batch": envs * STEPS, **told}
    collector = Collector("CartPole-v1", drawn(), **given)
    return lambda: next(collector).numel()


def torchrl_collecting(envs: int) -> Side:
    from torchrl.envs import GymEnv, SerialEnv

    try:
        from torchrl.collectors import Collector
    except ImportError:
        from torchrl.collectors import SyncDataCollector as Collector
    env = SerialEnv(envs, lambda: GymEnv("CartPole-v1", categorical_action_encoding=True))
    devices = {"policy_device": "cuda", "env_device": "cpu", "storing_device": "cpu"}
    frames = iter(
        Collector(
            env, drawn().to("cuda"), frames_per_batch=envs * STEPS, total_frames=-1, **devices
        )
    )
    return lambda: next(frames).numel()


def learning(ahead: bool) -> Side:
    """Twenty steps of a learner on the GPU, whose samples are 256 stacks of four images and those
    that follow.
    """
    from windrow.data import LazyTensorStorage, ReplayBuffer

    rows = 2048
    images = torch.randint(0, 255, (rows, 4, 84, 84), dtype=torch.uint8)
    arguments: dict[str, Any] = {"prefetch": 3, "pin_memory": True} if ahead else {}
    buffer = ReplayBuffer(storage=LazyTensorStorage(rows), batch_size=256, **arguments)
    buffer.extend(
        TensorDict({"observation": images, "next": {"observation": images.flip(0)}}, [rows])
    )
    net = nn.Sequential(
        nn.Conv2d(4, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(5184, 512),
        nn.ReLU(),
    )
    net = net.to("cuda")
    optimizer = torch.optim.Adam(net.parameters(), fused=True)

    def steps() -> int:
        for _ in range(20):
            sample = buffer.sample().to("cuda", non_blocking=ahead)
            now, then = (net(one["observation"].float() / 255) for one in (sample, sample["next"]))
            loss = (now - then.detach()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        # What is queued has yet to be computed.
        torch.cuda.synchronize()
        return 20

    return steps


def show(name: str, value: float, target: float | None) -> bool:
    """Prints a line, and returns whether the target is reached."""
    reached = target is None or value >= target
    print(
        f"{name}  {value:.2f}  {'-' if target is None else f'{target:.2f}'}  {'ok' if reached else 'short'}",
        flush=True,
    )
    return reached


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a target is missed")
    parser.add_argument("--seconds", type=float, default=0.3, help="the least time of a repeat")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing to compare")
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", file=sys.stderr)
    warnings.simplefilter("ignore")
    missed = 0
    for envs in (64, 4096):
        plain = collecting(envs, {})
        rates = [envs * STEPS / seconds(plain, arguments.seconds) for _ in range(3)]
        print(f"called_{envs}: {statistics.median(rates):,.0f} frames/s", file=sys.stderr)
        for name, (told, target) in WAYS.items():
            value = ratio(collecting(envs, told), plain, arguments.seconds)
            missed += not show(f"{name}_{envs}", value, target if envs == 64 else None)
    missed += not show(
        "learning_ahead", ratio(learning(True), learning(False), arguments.seconds), 1.3
    )
    try:
        theirs = torchrl_collecting(64)
    except ImportError:
        return missed if arguments.check else 0
    missed += not show(
        "recorded_64/torchrl",
        ratio(collecting(64, WAYS["recorded"][0]), theirs, arguments.seconds),
        10.0,
    )
    return missed if arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
