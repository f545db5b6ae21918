"""Learns CartPole, while an evaluator in a process plays episodes with the newest policy and films
one of each evaluation.

pip install '.[torch,gymnasium,video]'
python examples/python/evaluator_video.py
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from windrow.collectors import Collector, Evaluator

EPISODES_PER_BATCH = 16
EVALUATE_EVERY = 20


class Actor(nn.Module):
    """Draws an action for each row of observations."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))

    def distribution(self, observation: torch.Tensor) -> torch.distributions.Categorical:
        return torch.distributions.Categorical(logits=self.net(observation))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.distribution(observation).sample()


def returns_to_go(reward: torch.Tensor, done: torch.Tensor, gamma: float = 0.99) -> torch.Tensor:
    """Discounted rewards from each frame to the end of its episode, ``[frames]``."""
    total, returns = torch.zeros(()), torch.empty_like(reward)
    for frame in range(len(reward) - 1, -1, -1):
        total = reward[frame] + gamma * total * ~done[frame]
        returns[frame] = total
    return returns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=200_000)
    parser.add_argument("--folder", default="videos", help="where videos go")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    policy = Actor()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    # Whole episodes, one after the other.
    collector = Collector(
        "CartPole-v1",
        policy,
        trajs_per_batch=EPISODES_PER_BATCH,
        traj_format="cat",
        frames_per_batch=200,
        total_frames=arguments.frames,
        seed=0,
    )
    evaluator = Evaluator(
        "CartPole-v1", policy, num_trajectories=5, seed=1, backend="process", video=arguments.folder
    )
    frames = 0
    with collector, evaluator:
        for number, batch in enumerate(collector):
            returns = returns_to_go(
                batch["next", "reward"].squeeze(-1), batch["next", "done"].squeeze(-1)
            )
            advantage = (returns - returns.mean()) / (returns.std() + 1e-6)
            loss = -(
                policy.distribution(batch["observation"]).log_prob(batch["action"]) * advantage
            ).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            collector.update_policy_weights_()
            frames += len(batch)
            if number % EVALUATE_EVERY == 0:
                # Learning goes on meanwhile. An evaluation that is still running is not asked for
                # again.
                evaluator.trigger_eval(policy, step=frames)
            if (result := evaluator.poll()) is not None:
                print(
                    f"after {result['eval/step']:7} frames: mean return {result['eval/reward']:.1f}"
                )
        while evaluator.pending:
            evaluator.wait()
        result = evaluator.evaluate(policy, step=frames)
    print(
        f"mean return: {result['eval/reward']:.1f}, filmed in {arguments.folder}/eval_{frames}.mp4"
    )


if __name__ == "__main__":
    main()
