"""PPO on HalfCheetah: windrow collects, the losses of torchrl learn.

pip install ".[mujoco]" torch torchrl tqdm
python examples/python/ppo_halfcheetah.py --frames 200000
"""

from __future__ import annotations

import argparse

import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE
from tqdm import tqdm

import windrow
from windrow.collectors import Collector
from windrow.envs import Compose, DoubleToFloat, GymEnv, ObservationNorm, RewardSum, TransformedEnv

FRAMES_PER_BATCH = 2000
EPOCHS = 10
MINIBATCH = 250


def network(outputs: int) -> nn.Sequential:
    layers = nn.Sequential(
        nn.Linear(17, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, 1.0)
            nn.init.zeros_(layer.bias)
    with torch.no_grad():
        layers.get_parameter("4.weight").mul_(0.01 if outputs > 1 else 1.0)
    return layers


def make_actor() -> ProbabilisticActor:
    parameters = TensorDictModule(
        nn.Sequential(network(12), NormalParamExtractor()),
        in_keys=["observation"],
        out_keys=["loc", "scale"],
    )
    return ProbabilisticActor(
        parameters,
        in_keys=["loc", "scale"],
        out_keys=["action"],
        distribution_class=TanhNormal,
        return_log_prob=True,
    )


def make_env(backend: str | None = None) -> TransformedEnv:
    return TransformedEnv(
        GymEnv("HalfCheetah-v4", backend=backend),
        Compose(
            DoubleToFloat(),
            ObservationNorm(in_keys=["observation"], standard_normal=True),
            RewardSum(),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Learns to run with PPO.")
    parser.add_argument(
        "--frames", type=int, default=200_000, help="frames in all, a multiple of 2000"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--backend",
        choices=["native", "gymnasium"],
        help="who steps the simulation, by default windrow: frames are the same",
    )
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)

    actor, critic = make_actor(), ValueOperator(network(1), in_keys=["observation"])
    loss_fn = ClipPPOLoss(
        actor_network=actor, critic_network=critic, entropy_coeff=1e-3, normalize_advantage=True
    )
    advantage_fn = GAE(value_network=critic, gamma=0.99, lmbda=0.95)
    optimizer = torch.optim.Adam(loss_fn.parameters(), lr=3e-4, eps=1e-5)

    returns: list[float] = []
    collector = Collector(
        make_env(arguments.backend),
        actor,
        frames_per_batch=FRAMES_PER_BATCH,
        total_frames=arguments.frames,
        seed=arguments.seed,
    )
    print(collector)
    with collector, tqdm(total=arguments.frames, unit=" frames") as progress:
        for batch in collector:
            ended = batch["next", "done"].squeeze(-1)
            returns += batch["next", "episode_reward"][ended].squeeze(-1).tolist()
            with torch.no_grad():
                advantage_fn(batch)
            for minibatch in windrow.minibatches(batch, MINIBATCH, EPOCHS):
                losses = loss_fn(minibatch)
                total = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                optimizer.zero_grad()
                total.backward()
                nn.utils.clip_grad_norm_(loss_fn.parameters(), 0.5)
                optimizer.step()
            progress.update(batch.numel())
            if returns:
                progress.set_postfix(
                    episodes=len(returns), mean_return=f"{mean(returns[-10:]):.0f}"
                )
    if len(returns) >= 2:
        tenth = min(10, len(returns) // 2)
        print(
            f"mean return: {mean(returns[:tenth]):.0f} at the start, {mean(returns[-tenth:]):.0f} at the end"
        )


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
