"""An environment of your own, whose observations are dictionaries, and a policy that learns in it.

pip install '.[torch,gymnasium]' torchrl
python examples/python/own_environment.py
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

import windrow
from windrow.collectors import MultiSyncCollector
from windrow.envs import GymWrapper, RewardSum, TransformedEnv

FRAMES_PER_BATCH = 2048
#: Entries of the observation: dictionaries within dictionaries become nested names.
OBSERVED = [("arm", "place"), ("arm", "speed"), "goal"]


class Reach(gym.Env[dict[str, Any], np.ndarray]):
    """Pushes a point on a plane, which has to come to a goal."""

    observation_space = gym.spaces.Dict(
        {
            "arm": gym.spaces.Dict(
                {"place": gym.spaces.Box(-4, 4, (2,)), "speed": gym.spaces.Box(-1, 1, (2,))}
            ),
            "goal": gym.spaces.Box(-1, 1, (2,)),
        }
    )
    action_space = gym.spaces.Box(-1, 1, (2,))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.speed = np.zeros(2), np.zeros(2)
        self.goal, self.steps = self.np_random.uniform(-1, 1, 2), 0
        return self.observe(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.speed = np.clip(0.8 * self.speed + 0.2 * action, -1, 1)
        self.place = np.clip(self.place + 0.2 * self.speed, -4, 4)
        self.steps += 1
        return (
            self.observe(),
            -float(np.linalg.norm(self.place - self.goal)),
            False,
            self.steps == 50,
            {},
        )

    def observe(self) -> dict[str, Any]:
        place, speed, goal = (
            value.astype(np.float32) for value in (self.place, self.speed, self.goal)
        )
        return {"arm": {"place": place, "speed": speed}, "goal": goal}


def make_env() -> TransformedEnv:
    return TransformedEnv(GymWrapper(Reach()), RewardSum())


class Joined(nn.Module):
    """A network of the joined entries of an observation."""

    def __init__(self, *last: nn.Module) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), *last
        )

    def forward(self, place: torch.Tensor, speed: torch.Tensor, goal: torch.Tensor) -> Any:
        return self.network(torch.cat([place, speed, goal], dim=-1))


def main() -> None:
    parser = argparse.ArgumentParser(description="Learns to reach a goal with PPO.")
    parser.add_argument(
        "--frames", type=int, default=100 * FRAMES_PER_BATCH, help="frames in all; a batch has 2048"
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)

    network = TensorDictModule(
        Joined(nn.Linear(64, 4), NormalParamExtractor()),
        in_keys=OBSERVED,
        out_keys=["loc", "scale"],
    )
    actor = ProbabilisticActor(
        network, in_keys=["loc", "scale"], distribution_class=TanhNormal, return_log_prob=True
    )
    critic = ValueOperator(Joined(nn.Linear(64, 1)), in_keys=OBSERVED)
    advantage = GAE(gamma=0.95, lmbda=0.95, value_network=critic, average_gae=True)
    loss_fn = ClipPPOLoss(actor, critic, entropy_coeff=1e-3)
    optimizer = torch.optim.Adam(loss_fn.parameters(), lr=1e-3)

    # Each of the two workers is a process of its own, since the environment is written in Python.
    collector = MultiSyncCollector(
        [make_env] * 2,
        actor,
        frames_per_batch=FRAMES_PER_BATCH,
        total_frames=max(arguments.frames // FRAMES_PER_BATCH, 1) * FRAMES_PER_BATCH,
        seed=arguments.seed,
    )
    returns: list[float] = []
    with collector:
        print(collector)
        for number, batch in enumerate(collector):
            ended = batch["next", "done"].squeeze(-1)
            returns.append(batch["next", "episode_reward"][ended].mean().item())
            advantage(batch)
            for minibatch in windrow.minibatches(batch, 256, epochs=5):
                losses = loss_fn(minibatch)
                optimizer.zero_grad()
                (
                    losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                ).backward()
                optimizer.step()
            collector.update_policy_weights_()
            if number % 10 == 0:
                print(
                    f"{(number + 1) * FRAMES_PER_BATCH} frames, return of an episode {returns[-1]:.1f}"
                )
    print(f"mean return: {returns[0]:.1f} at the start, {returns[-1]:.1f} at the end")


if __name__ == "__main__":
    main()
