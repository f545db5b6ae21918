"""PPO on CartPole with an agent as CleanRL's scripts have it: windrow calls, or reads, its
`get_action_and_value`.

pip install . torch tensordict tqdm pillow
python examples/python/cleanrl_ppo.py
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from common import picture
from torch import nn
from torch.distributions.categorical import Categorical
from tqdm import tqdm

import windrow
from windrow.collectors import Collector
from windrow.envs import GymEnv, RewardSum, TransformedEnv

NUM_ENVS, NUM_STEPS = 8, 125
EPOCHS, MINIBATCH = 4, 250
GAMMA, LAMBDA, CLIP, ENTROPY, VALUE = 0.99, 0.95, 0.2, 0.01, 0.5


def layer(inputs: int, outputs: int, gain: float = np.sqrt(2)) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(
            layer(4, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0)
        )
        self.actor = nn.Sequential(
            layer(4, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 2, 0.01)
        )

    def get_value(self, x: torch.Tensor) -> torch.Tensor:
        return self.critic(x)

    def get_action_and_value(
        self, x: torch.Tensor, action: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, ...]:
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


def main() -> None:
    parser = argparse.ArgumentParser(description="Learns to balance with PPO.")
    parser.add_argument(
        "--frames", type=int, default=100_000, help="frames in all, a multiple of 1000"
    )
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)

    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3, eps=1e-5)
    env = TransformedEnv(
        GymEnv("CartPole-v1", categorical_action_encoding=True, num_envs=NUM_ENVS), RewardSum()
    )
    collector = Collector(
        env,
        agent.get_action_and_value,
        frames_per_batch=NUM_ENVS * NUM_STEPS,
        total_frames=arguments.frames,
        seed=arguments.seed,
    )
    print(collector)
    returns: list[tuple[int, float]] = []
    with collector, tqdm(total=arguments.frames, unit=" frames") as progress:
        for batch in collector:
            optimizer.param_groups[0]["lr"] = 1e-3 * (1 - progress.n / arguments.frames)
            # What the agent returns beside the action is in the batch: log_prob, entropy, value.
            with torch.no_grad():
                following = agent.get_value(batch["next", "observation"])
            columns = batch["value"], following, batch["next", "reward"], batch["next", "done"]
            batch["gain"], batch["goal"] = windrow.generalized_advantage_estimate(
                GAMMA, LAMBDA, *columns, terminated=batch["next", "terminated"]
            )
            for minibatch in windrow.minibatches(
                batch, MINIBATCH, EPOCHS, keys=["observation", "action", "log_prob", "gain", "goal"]
            ):
                _, new, entropy, value = agent.get_action_and_value(
                    minibatch["observation"], minibatch["action"]
                )
                ratio = (new - minibatch["log_prob"]).exp()
                gain = minibatch["gain"].squeeze(-1)
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                policy_loss = torch.max(
                    -gain * ratio, -gain * ratio.clamp(1 - CLIP, 1 + CLIP)
                ).mean()
                value_loss = 0.5 * (value - minibatch["goal"]).square().mean()
                optimizer.zero_grad()
                (policy_loss - ENTROPY * entropy.mean() + VALUE * value_loss).backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
            done = batch["next", "done"].squeeze(-1)
            returns += [
                (progress.n + NUM_ENVS * step, batch["next", "episode_reward"][env, step].item())
                for step, env in done.T.nonzero().tolist()
            ]
            progress.update(batch.numel())
            progress.set_postfix(episodes=len(returns), mean_return=f"{mean(returns[-20:]):.0f}")
    picture.save("cleanrl_ppo.png", returns, arguments.frames, "PPO on CartPole")
    print(
        f"mean return: {mean(returns[:20]):.0f} at the start, {mean(returns[-20:]):.0f} at the end: see cleanrl_ppo.png"
    )


def mean(returns: list[tuple[int, float]]) -> float:
    return sum(value for _, value in returns) / max(len(returns), 1)


if __name__ == "__main__":
    main()
