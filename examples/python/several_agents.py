"""Two agents of PettingZoo, each with a network of its own, of which one learns to beat the other.

pip install '.[torch,gymnasium]' torchrl 'pettingzoo[classic]'
python examples/python/several_agents.py
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from pettingzoo.classic import rps_v2
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import nn

from windrow.collectors import MultiSyncCollector

FRAMES_PER_BATCH = 600


def make_game() -> Any:
    """Rock, paper, scissors: an agent observes what the other has just shown."""
    return rps_v2.parallel_env(max_cycles=15)


class Players(nn.Module):
    """Actions of both players, from what each observes: ``[..., 2, 4]`` to ``[..., 2]``."""

    def __init__(self) -> None:
        super().__init__()
        self.networks = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3)) for _ in range(2)
        )
        # The second one does not learn, and likes rocks.
        self.networks[1].requires_grad_(False)
        self.networks[1].get_parameter("2.bias").copy_(torch.tensor([2.0, 0.0, 0.0]))

    def logits(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.stack(
            [network(observation[..., i, :]) for i, network in enumerate(self.networks)], dim=-2
        )

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Categorical(logits=self.logits(observation.float())).sample()


def learn(players: Players, optimizer: torch.optim.Optimizer, batch: TensorDictBase) -> None:
    """A step of the policy gradient for the first player."""
    reward = batch["next", "player", "reward"].squeeze(-1)
    log_probs = players.logits(batch["player", "observation"].float()).log_softmax(-1)
    chosen = log_probs.gather(-1, batch["player", "action"].unsqueeze(-1)).squeeze(-1)
    optimizer.zero_grad()
    (-(chosen * (reward - reward.mean()))[..., 0].mean()).backward()
    optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description="Learns to win against a player that likes rocks.")
    parser.add_argument("--frames", type=int, default=24_000, help="frames in all")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)

    players = Players()
    optimizer = torch.optim.Adam(players.parameters(), lr=1e-2)
    # Entries of agents lie in a dictionary, named after their group, which has a dimension of its
    # own.
    policy = TensorDictModule(
        players, in_keys=[("player", "observation")], out_keys=[("player", "action")]
    )
    collector = MultiSyncCollector(
        [make_game] * 2,
        policy,
        frames_per_batch=FRAMES_PER_BATCH,
        total_frames=max(arguments.frames // FRAMES_PER_BATCH, 1) * FRAMES_PER_BATCH,
        seed=arguments.seed,
    )
    rewards: list[list[float]] = []
    with collector:
        print(collector)
        for batch in collector:
            rewards.append(batch["next", "player", "reward"].reshape(-1, 2).mean(0).tolist())
            learn(players, optimizer, batch)
            collector.update_policy_weights_()
            if len(rewards) % 10 == 0:
                print(
                    f"{len(rewards) * FRAMES_PER_BATCH} frames, rewards of a round {rewards[-1][0]:+.2f} and {rewards[-1][1]:+.2f}"
                )
    print(
        f"mean reward of the one that learns: {rewards[0][0]:+.2f} at the start, {rewards[-1][0]:+.2f} at the end"
    )


if __name__ == "__main__":
    main()
