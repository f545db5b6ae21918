"""The same policy three times: read by windrow and run in Rust, called as a torch module, and at
random.

pip install . torch tensordict
python examples/python/native_policy.py
"""

from __future__ import annotations

import argparse
import time
from typing import Literal

import torch
from tensordict.nn import TensorDictModule
from torch import nn

from windrow.collectors import Collector
from windrow.envs import GymEnv

Backend = Literal["auto", "native", "torch"]


def make_policy() -> TensorDictModule:
    """Logits of CartPole's two actions: windrow takes the greater one."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)
    )
    return TensorDictModule(network, in_keys=["observation"], out_keys=["action"])


def collect(policy: TensorDictModule | None, policy_backend: Backend, frames: int) -> torch.Tensor:
    """Collects, says how fast that was, and returns the actions of the first 1000 frames."""
    env = GymEnv("CartPole-v1", categorical_action_encoding=True)
    with Collector(
        env, policy, frames_per_batch=1000, seed=0, policy_backend=policy_backend
    ) as collector:
        actions = next(collector)["action"].clone()
        start = time.perf_counter()
        batches = max(frames // 1000, 1)
        for _ in range(batches):
            next(collector)
        rate = 1000 * batches / (time.perf_counter() - start)
        print(f"{collector}\n    {rate:,.0f} frames a second")
    return actions


def main() -> None:
    parser = argparse.ArgumentParser(description="One policy in Rust and in torch.")
    parser.add_argument(
        "--frames",
        type=int,
        default=500_000,
        help="frames to collect in Rust; a 25th of them with torch",
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    policy = make_policy()
    native = collect(policy, "native", arguments.frames)
    called = collect(policy, "torch", arguments.frames // 25)
    collect(None, "auto", arguments.frames)
    print("the first two did the same:", torch.equal(native, called))

    # A collector acts with the weights that the module has when a batch is asked for.
    with Collector(GymEnv("CartPole-v1"), policy, frames_per_batch=1000, seed=0) as collector:
        before = next(collector)["action"][:, 1].float().mean()
        with torch.no_grad():
            policy.get_parameter("module.4.bias").add_(torch.tensor([0.0, 100.0]))
        after = next(collector)["action"][:, 1].float().mean()
        print(f"pushed to the right: {before:.2f} of the time, then {after:.2f}")


if __name__ == "__main__":
    main()
