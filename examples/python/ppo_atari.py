"""PPO on an Atari game: ALE's own vector of environments, a network that torch calls, the losses of torchrl.

    pip install ".[gymnasium]" torch torchrl ale-py tqdm pillow
    python examples/python/ppo_atari.py --frames 20000
"""

from __future__ import annotations

import argparse

import torch
from ale_py.vector_env import AtariVectorEnv
from common import picture
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical
from torchrl.modules import ActorValueOperator, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE
from tqdm import tqdm

import windrow
from windrow.collectors import Collector
from windrow.envs import GymWrapper, RewardSum, TransformedEnv

NUM_ENVS = 8
FRAMES_PER_BATCH = 1000
EPOCHS, MINIBATCH = 2, 250


class Scaled(nn.Module):
    """Bytes as numbers from 0 to 1; dimensions before those of a picture are one batch."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        found = self.layers(pixels.reshape(-1, *pixels.shape[-3:]).float() / 255)
        return found.reshape(*pixels.shape[:-3], -1)


def make_operator(actions: int) -> ActorValueOperator:
    """A small network, for processors without a GPU."""
    features = nn.Sequential(
        nn.Conv2d(4, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(2592, 256), nn.ReLU()
    )
    logits, value = nn.Linear(256, actions), nn.Linear(256, 1)
    for head, gain in ((logits, 0.01), (value, 1.0)):
        nn.init.orthogonal_(head.weight, gain)
        nn.init.zeros_(head.bias)
    return ActorValueOperator(
        TensorDictModule(Scaled(features), in_keys=["observation"], out_keys=["features"]),
        ProbabilisticActor(
            TensorDictModule(logits, in_keys=["features"], out_keys=["logits"]),
            in_keys=["logits"],
            distribution_class=Categorical,
            return_log_prob=True,
        ),
        ValueOperator(value, in_keys=["features"]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Learns to play with PPO.")
    parser.add_argument("--game", default="breakout")
    parser.add_argument("--frames", type=int, default=100_000, help="frames in all, a multiple of 1000")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)

    vector = AtariVectorEnv(arguments.game, NUM_ENVS)
    operator = make_operator(int(vector.single_action_space.n))
    actor, critic = operator.get_policy_operator(), operator.get_value_operator()
    loss_fn = ClipPPOLoss(actor, critic, clip_epsilon=0.1, entropy_coeff=0.01, critic_coeff=0.5, normalize_advantage=True)
    advantage_fn = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    optimizer = torch.optim.Adam(loss_fn.parameters(), lr=5e-4, eps=1e-5)

    env = TransformedEnv(GymWrapper(vector, categorical_action_encoding=True), RewardSum())
    collector = Collector(
        env, actor, frames_per_batch=FRAMES_PER_BATCH, total_frames=arguments.frames, seed=arguments.seed
    )
    print(collector)
    returns: list[tuple[int, float]] = []
    with collector, tqdm(total=arguments.frames, unit=" frames") as progress:
        for batch in collector:
            # The features are in the way of the loss, which computes them anew.
            batch = batch.exclude("features", "logits")
            with torch.no_grad():
                advantage_fn(batch)
            for minibatch in windrow.minibatches(batch, MINIBATCH, EPOCHS):
                losses = loss_fn(minibatch)
                total = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                optimizer.zero_grad()
                total.backward()
                nn.utils.clip_grad_norm_(loss_fn.parameters(), 0.5)
                optimizer.step()
            after = batch["next"]
            done = after["done"].squeeze(-1)
            ends = [(progress.n + NUM_ENVS * step, after["episode_reward"][env, step].item()) for step, env in done.T.nonzero().tolist()]
            returns += ends
            progress.update(batch.numel())
            progress.set_postfix(episodes=len(returns), mean_return=f"{mean(returns[-20:]):.1f}")
    vector.close()
    picture.save("ppo_atari.png", returns, arguments.frames, f"PPO on {arguments.game}")
    print(f"mean return: {mean(returns[:20]):.1f} at the start, {mean(returns[-20:]):.1f} at the end: see ppo_atari.png")


def mean(returns: list[tuple[int, float]]) -> float:
    return sum(value for _, value in returns) / max(len(returns), 1)


if __name__ == "__main__":
    main()
