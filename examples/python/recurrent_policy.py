"""A policy with a memory, which has to keep what it saw at the beginning of an episode.

    pip install '.[torch,gymnasium]'
    python examples/python/recurrent_policy.py
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import nn

from windrow.collectors import Collector
from windrow.envs import GymWrapper

STEPS = 8
HIDDEN = 32
EPISODES_PER_BATCH = 64


class Recall(gym.Env[np.ndarray, int]):
    """Shows 1 or -1 once, then nothing; the last of eight actions has to say which it was."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.cue, self.step_count = int(self.np_random.integers(2)), 0
        return np.array([2 * self.cue - 1, 0], np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.step_count += 1
        ended = self.step_count == STEPS
        reward = float(action == self.cue) if ended else 0.0
        return np.array([0, self.step_count / STEPS], np.float32), reward, ended, False, {}


def make_env() -> GymWrapper:
    # Actions are numbers, not one-hot vectors.
    return GymWrapper(Recall(), categorical_action_encoding=True)


class Memory(nn.Module):
    """Logits of the actions, and the next state. An episode begins with zeros as its state."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(2, HIDDEN), nn.Linear(HIDDEN, 2)

    def forward(self, observation: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        state = self.cell(observation, state)
        logits = self.head(state)
        return torch.distributions.Categorical(logits=logits).sample(), logits, state


def loss(memory: Memory, episodes: TensorDictBase) -> torch.Tensor:
    """Of the policy gradient, through all steps of each episode: the state is computed anew, with the weights of today."""
    state = torch.zeros(len(episodes), HIDDEN)
    log_prob = torch.zeros(len(episodes))
    for step in range(STEPS):
        _, logits, state = memory(episodes["observation"][:, step], state)
        chosen = episodes["action"][:, step].unsqueeze(-1)
        log_prob = log_prob + logits.log_softmax(-1).gather(-1, chosen).squeeze(-1)
    returns = episodes["next", "reward"].sum((1, 2))
    return -(log_prob * (returns - returns.mean())).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description="Learns to remember.")
    parser.add_argument("--frames", type=int, default=150_000, help="frames in all")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)

    memory = Memory()
    optimizer = torch.optim.Adam(memory.parameters(), lr=3e-3)
    # What is written under "next" comes back at the next step of the same environment, and begins anew with each episode.
    policy = TensorDictModule(memory, in_keys=["observation", "state"], out_keys=["action", "logits", ("next", "state")])
    returns: list[float] = []
    frames = EPISODES_PER_BATCH * STEPS
    collector = Collector(
        make_env,
        policy,
        num_envs=8,
        frames_per_batch=frames,
        total_frames=max(arguments.frames // frames, 1) * frames,
        trajs_per_batch=EPISODES_PER_BATCH,
        seed=arguments.seed,
    )
    with collector:
        print(collector)
        for episodes in collector:
            returns.append(episodes["next", "reward"].sum((1, 2)).mean().item())
            optimizer.zero_grad()
            loss(memory, episodes).backward()
            optimizer.step()
            collector.update_policy_weights_()
            if len(returns) % 50 == 0:
                print(f"{len(returns) * frames} frames, right in {returns[-1]:.0%} of the episodes")
    print(f"mean return: {returns[0]:.2f} at the start, {returns[-1]:.2f} at the end")


if __name__ == "__main__":
    main()
