"""Soft actor-critic, from the environment to a checkpoint, in one file.

    pip install '.[torch,gymnasium]' tensorboard python examples/python/sac.py python
    examples/python/sac.py --env HalfCheetah-v5 --frames 1000000 --checkpoint cheetah.pt --log
    runs/sac --video videos

A run that has a checkpoint goes on from it, as if it had not been interrupted. `--check` ends with
an error unless the policy has learned.
"""

from __future__ import annotations

import argparse
import copy
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from windrow.collectors import Collector, Evaluator
from windrow.data import LazyTensorStorage, ReplayBuffer
from windrow.envs import Compose, DoubleToFloat, GymEnv, RewardSum, TransformedEnv

GAMMA = 0.99
BATCH = 256
#: How far the target networks move towards the trained ones with each update.
TAU = 0.005
#: What a checkpoint holds of a training, in the order in which it is loaded: the collector's policy
#: is that of its last batch.
PARTS = ("collector", "actor", "critics", "targets", "buffer")
#: What `--check` asks of the mean return.
LEARNED = {"Pendulum-v1": -200.0, "HalfCheetah-v4": 3000.0, "HalfCheetah-v5": 3000.0}


def mlp(inputs: int, outputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, outputs),
    )


class Actor(nn.Module):
    """Draws actions from a normal distribution, squashed into the bounds of the actions by tanh."""

    loc: torch.Tensor
    scale: torch.Tensor

    def __init__(
        self, observations: int, low: torch.Tensor, high: torch.Tensor, width: int
    ) -> None:
        super().__init__()
        self.net = mlp(observations, 2 * len(low), width)
        self.register_buffer("loc", (high + low) / 2)
        self.register_buffer("scale", (high - low) / 2)

    def normal(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = self.net(observation).chunk(2, -1)
        return mean, (-5 + 3.5 * (torch.tanh(log_std) + 1)).exp()

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        mean, std = self.normal(observation)
        return torch.tanh(mean + std * torch.randn_like(mean)) * self.scale + self.loc

    def with_log_prob(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Actions through which gradients flow, and their log-probabilities, ``[rows, 1]``."""
        mean, std = self.normal(observation)
        noise = torch.randn_like(mean)
        raw = mean + std * noise
        # The logarithm of tanh's derivative, in a form that stays finite.
        squash = 2 * (0.6931472 - raw - functional.softplus(-2 * raw)) + self.scale.log()
        log_prob = (-0.5 * noise**2 - std.log() - 0.9189385 - squash).sum(-1, keepdim=True)
        return torch.tanh(raw) * self.scale + self.loc, log_prob


class Best(nn.Module):
    """The action in the middle of the actor's distribution, for evaluation."""

    def __init__(self, actor: Actor) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.actor.normal(observation)[0]) * self.actor.scale + self.actor.loc


class Critics(nn.Module):
    """Two estimates of the return after an action, of which the lower one counts."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.first, self.second = mlp(inputs, 1, width), mlp(inputs, 1, width)

    def forward(
        self, observation: torch.Tensor, action: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        both = torch.cat((observation, action), -1)
        return self.first(both), self.second(both)


def make_env(name: str) -> TransformedEnv:
    return TransformedEnv(GymEnv(name), Compose(DoubleToFloat(), RewardSum()))


class Training:
    """All that learns, and all that collects."""

    def __init__(self, arguments: argparse.Namespace, logger: Any) -> None:
        torch.manual_seed(arguments.seed)
        self.arguments, self.logger = arguments, logger
        env = make_env(arguments.env)
        low, high = env.action_spec.space.low, env.action_spec.space.high
        observations = env.observation_spec["observation"].shape[-1]
        self.actor = Actor(observations, low, high, arguments.width)
        self.critics = Critics(observations + len(low), arguments.width)
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.entropy = -float(len(low))
        self.optimizers = [
            torch.optim.Adam(self.critics.parameters(), lr=1e-3),
            torch.optim.Adam(self.actor.parameters(), lr=3e-4),
            torch.optim.Adam([self.log_alpha], lr=1e-3),
        ]
        self.buffer = ReplayBuffer(
            storage=LazyTensorStorage(arguments.frames), batch_size=BATCH, seed=arguments.seed
        )
        # An update takes a hundred times as long as a frame, so collecting in the background would
        # gain nothing.
        self.collector = Collector(
            env,
            self.actor,
            policy_backend="native",
            frames_per_batch=arguments.frames_per_batch,
            total_frames=arguments.frames,
            init_random_frames=arguments.random_frames,
            replay_buffer=self.buffer,
            logger=logger,
            seed=arguments.seed,
        )
        self.learn = torch.compile(self.update) if arguments.compile else self.update

    def update(self, sample: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """One step of gradient descent for the critics, the actor and the weight of the entropy;
        returns the losses of the first two.
        """
        of_critics, of_actor, of_alpha = self.optimizers
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            action, log_prob = self.actor.with_log_prob(sample["next", "observation"])
            value = (
                torch.minimum(*self.targets(sample["next", "observation"], action))
                - alpha * log_prob
            )
            goal = sample["next", "reward"] + GAMMA * value * ~sample["next", "terminated"]
        first, second = self.critics(sample["observation"], sample["action"])
        critic_loss = functional.mse_loss(first, goal) + functional.mse_loss(second, goal)
        of_critics.zero_grad()
        critic_loss.backward()
        of_critics.step()

        self.critics.requires_grad_(False)
        action, log_prob = self.actor.with_log_prob(sample["observation"])
        actor_loss = (
            alpha * log_prob - torch.minimum(*self.critics(sample["observation"], action))
        ).mean()
        of_actor.zero_grad()
        actor_loss.backward()
        of_actor.step()
        self.critics.requires_grad_(True)

        of_alpha.zero_grad()
        (-self.log_alpha.exp() * (log_prob.detach() + self.entropy).mean()).backward()
        of_alpha.step()
        with torch.no_grad():
            for target, trained in zip(
                self.targets.parameters(), self.critics.parameters(), strict=True
            ):
                target.lerp_(trained, TAU)
        return critic_loss.detach(), actor_loss.detach()

    def run(self) -> None:
        arguments = self.arguments
        if arguments.checkpoint and arguments.checkpoint.exists():
            self.load(torch.load(arguments.checkpoint))
        saved = time.monotonic()
        with self.collector:
            for _ in self.collector:
                frames = self.collector.stats()["frames"]
                if frames < arguments.random_frames:
                    continue
                losses = [
                    self.learn(self.buffer.sample()) for _ in range(arguments.frames_per_batch)
                ]
                if self.logger is not None and frames % 1000 < arguments.frames_per_batch:
                    for name, loss in zip(("critic", "actor"), losses[-1], strict=True):
                        self.logger.add_scalar(f"losses/{name}", loss.item(), frames)
                if arguments.checkpoint and time.monotonic() > saved + arguments.every:
                    self.save()
                    saved = time.monotonic()
            if arguments.checkpoint:
                self.save()

    def save(self) -> None:
        """Writes a checkpoint, which takes the place of the one before when it is whole."""
        state = {name: getattr(self, name).state_dict() for name in PARTS}
        state["optimizers"] = [optimizer.state_dict() for optimizer in self.optimizers]
        state["log_alpha"], state["generator"] = self.log_alpha.detach(), torch.get_rng_state()
        unfinished = self.arguments.checkpoint.with_suffix(".unfinished")
        with unfinished.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.arguments.checkpoint)

    def load(self, state: dict[str, Any]) -> None:
        for name in PARTS:
            getattr(self, name).load_state_dict(state[name])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        with torch.no_grad():
            self.log_alpha.copy_(state["log_alpha"])
        torch.set_rng_state(state["generator"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Learns with SAC.")
    parser.add_argument(
        "--env", default="Pendulum-v1", help="an id of Gymnasium with actions in a box"
    )
    parser.add_argument("--frames", type=int, default=10_000)
    parser.add_argument(
        "--frames-per-batch",
        type=int,
        default=1,
        help="frames between two rounds of as many updates",
    )
    parser.add_argument(
        "--random-frames",
        type=int,
        default=1000,
        help="frames with random actions, before the first update",
    )
    parser.add_argument(
        "--width", type=int, default=256, help="of the two hidden layers of each network"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile the update, which pays after some ten thousand updates",
    )
    parser.add_argument("--checkpoint", type=Path, help="the file to go on from")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two checkpoints")
    parser.add_argument("--log", help="a folder for TensorBoard")
    parser.add_argument("--video", help="a folder for videos of the evaluation")
    parser.add_argument(
        "--check",
        action="store_true",
        help="fail unless the mean return of the evaluation is what is expected",
    )
    arguments = parser.parse_args()
    if arguments.check and arguments.env not in LEARNED:
        parser.error(f"--check knows what to expect of {', '.join(LEARNED)}, got {arguments.env}")
    torch.set_num_threads(1)
    logger = None
    if arguments.log:
        from torch.utils.tensorboard import SummaryWriter

        logger = SummaryWriter(arguments.log)
    began = time.monotonic()
    training = Training(arguments, logger)
    training.run()
    print(f"{arguments.frames} frames in {time.monotonic() - began:.0f} s")
    with Evaluator(
        make_env(arguments.env),
        Best(training.actor),
        num_trajectories=10,
        seed=1000,
        video=arguments.video,
        logger=logger,
    ) as evaluator:
        result = evaluator.evaluate(step=arguments.frames)["eval/reward"]
    print(f"mean return: {result:.1f}")
    if arguments.check and result < LEARNED[arguments.env]:
        raise SystemExit(
            f"expected a mean return of at least {LEARNED[arguments.env]}, got {result:.1f}"
        )


if __name__ == "__main__":
    main()
