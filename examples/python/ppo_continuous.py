"""PPO (proximal policy optimization) for continuous actions, from the environment to a checkpoint,
in one file.

    pip install '.[torch,gymnasium]' tensorboard python examples/python/ppo_continuous.py python
    examples/python/ppo_continuous.py --env HalfCheetah-v4 --checkpoint cheetah.pt --log runs/ppo
    --video videos

A run that has a checkpoint goes on from it, as if it had not been interrupted. `--check` ends with
an error unless the policy has learned.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import windrow
from windrow.collectors import Collector, Evaluator
from windrow.envs import Compose, DoubleToFloat, GymEnv, RewardSum, TransformedEnv

LAMBDA = 0.95
#: How far the probability of an action may move within a batch, as a factor.
CLIP = 0.2
ENTROPY_WEIGHT, VALUE_WEIGHT = 0.0, 0.5
MAX_GRADIENT_NORM = 0.5
#: What a minibatch has of a batch.
READ = ("normalized", "drawn", "log_prob", "advantage", "target")
LOSSES = ("policy", "value", "entropy")
#: What a checkpoint holds of a training, in the order in which it is loaded: the collector's policy
#: is that of its last batch.
PARTS = ("collector", "agent", "optimizer")
#: Defaults of the options for an environment, where they are others.
SETTINGS: dict[str, dict[str, Any]] = {
    "Pendulum-v1": {
        "frames": 204_800,
        "num_envs": 16,
        "minibatch": 128,
        "epochs": 8,
        "lr": 1e-3,
        "gamma": 0.9,
    },
}
#: What `--check` asks of the mean return.
LEARNED = {"Pendulum-v1": -200.0, "HalfCheetah-v4": 1500.0, "HalfCheetah-v5": 1500.0}


def mlp(inputs: int, outputs: int, width: int, gain: float) -> nn.Sequential:
    """Two hidden layers; ``gain`` is that of the last one."""
    layers = [nn.Linear(inputs, width), nn.Linear(width, width), nn.Linear(width, outputs)]
    for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


class Agent(nn.Module):
    """Draws actions from a normal distribution, and estimates the return of what follows."""

    low: torch.Tensor
    high: torch.Tensor
    loc: torch.Tensor
    scale: torch.Tensor
    count: torch.Tensor

    def __init__(
        self, observations: int, low: torch.Tensor, high: torch.Tensor, width: int
    ) -> None:
        super().__init__()
        self.actor = mlp(observations, len(low), width, 0.01)
        self.critic = mlp(observations, 1, width, 1.0)
        self.log_std = nn.Parameter(torch.zeros(len(low)))
        self.register_buffer("low", low)
        self.register_buffer("high", high)
        self.register_buffer("loc", torch.zeros(observations))
        self.register_buffer("scale", torch.ones(observations))
        #: How many frames ``loc`` and ``scale`` are of.
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def normalized(self, observation: torch.Tensor) -> torch.Tensor:
        return ((observation - self.loc) / self.scale).clamp(-10, 10)

    def forward(self, observation: torch.Tensor) -> dict[str, torch.Tensor]:
        """What the collector writes: actions, what was drawn before they were cut to their bounds,
        and what the loss compares with.
        """
        observation = self.normalized(observation)
        mean = self.actor(observation)
        noise = torch.randn_like(mean)
        drawn = mean + self.log_std.exp() * noise
        log_prob = (-0.5 * noise**2 - self.log_std - 0.9189385).sum(-1)
        action = torch.minimum(torch.maximum(drawn, self.low), self.high)
        return {
            "action": action,
            "drawn": drawn,
            "log_prob": log_prob,
            "value": self.critic(observation),
        }

    @torch.no_grad()
    def look(self, observation: torch.Tensor) -> None:
        """Takes mean and deviation of these observations into account from now on."""
        rows = observation.reshape(-1, observation.shape[-1])
        variance, mean = torch.var_mean(rows, 0, correction=0)
        share = len(rows) / (self.count + len(rows)).float()
        distance = mean - self.loc
        old = self.scale**2 if self.count > 0 else variance
        self.scale.copy_(
            (old + share * (variance - old) + share * (1 - share) * distance**2)
            .sqrt()
            .clamp_min(1e-4)
        )
        self.loc.add_(share * distance)
        self.count.add_(len(rows))


class Best(nn.Module):
    """The action in the middle of the agent's distribution, for evaluation."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.agent = agent

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        action = self.agent.actor(self.agent.normalized(observation))
        return torch.minimum(torch.maximum(action, self.agent.low), self.agent.high)


def make_env(name: str, num_envs: int) -> TransformedEnv:
    return TransformedEnv(GymEnv(name, num_envs=num_envs), Compose(DoubleToFloat(), RewardSum()))


class Training:
    """All that learns, and all that collects."""

    def __init__(self, arguments: argparse.Namespace, logger: Any) -> None:
        torch.manual_seed(arguments.seed)
        self.arguments, self.logger = arguments, logger
        env = make_env(arguments.env, arguments.num_envs)
        low, high = env.action_spec.space.low, env.action_spec.space.high
        low, high = low.reshape(-1, low.shape[-1])[0], high.reshape(-1, high.shape[-1])[0]
        self.agent = Agent(
            env.observation_spec["observation"].shape[-1], low, high, arguments.width
        )
        self.optimizer = torch.optim.Adam(
            self.agent.parameters(), lr=torch.tensor(arguments.lr), eps=1e-5, fused=True
        )
        # Rust runs the agent, a hundred times as fast as the loss is minimized: collecting in the
        # background would gain nothing.
        self.collector = Collector(
            env,
            self.agent,
            policy_backend="native",
            frames_per_batch=arguments.frames_per_batch,
            total_frames=arguments.frames,
            logger=logger,
            seed=arguments.seed,
        )
        self.learn = torch.compile(self.update) if arguments.compile else self.update

    def update(
        self,
        observation: torch.Tensor,
        drawn: torch.Tensor,
        old: torch.Tensor,
        advantage: torch.Tensor,
        target: torch.Tensor,
    ) -> torch.Tensor:
        """A step of gradient descent on a minibatch; returns the losses of policy and values, and
        the entropy.
        """
        log_std = self.agent.log_std
        noise = (drawn - self.agent.actor(observation)) * (-log_std).exp()
        ratio = ((-0.5 * noise**2 - log_std - 0.9189385).sum(-1) - old).exp()
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        policy_loss = -torch.minimum(
            advantage * ratio, advantage * ratio.clamp(1 - CLIP, 1 + CLIP)
        ).mean()
        value_loss = functional.mse_loss(self.agent.critic(observation), target)
        entropy = (log_std + 1.4189385).sum()
        self.optimizer.zero_grad()
        (policy_loss + VALUE_WEIGHT * value_loss - ENTROPY_WEIGHT * entropy).backward()
        nn.utils.clip_grad_norm_(self.agent.parameters(), MAX_GRADIENT_NORM)
        self.optimizer.step()
        return torch.stack((policy_loss, value_loss, entropy)).detach()

    def run(self) -> None:
        arguments = self.arguments
        if arguments.checkpoint and arguments.checkpoint.exists():
            self.load(torch.load(arguments.checkpoint))
        saved = time.monotonic()
        with self.collector:
            for batch in self.collector:
                frames = self.collector.stats()["frames"]
                # The rate falls to zero in a straight line.
                self.optimizer.param_groups[0]["lr"].fill_(
                    arguments.lr * (1 + (batch.numel() - frames) / arguments.frames)
                )
                with torch.no_grad():
                    batch["normalized"] = self.agent.normalized(batch["observation"])
                    after = self.agent.normalized(batch["next", "observation"])
                    following = self.agent.critic(after)
                batch["advantage"], batch["target"] = windrow.generalized_advantage_estimate(
                    arguments.gamma,
                    LAMBDA,
                    batch["value"],
                    following,
                    arguments.reward_scale * batch["next", "reward"],
                    batch["next", "done"],
                    terminated=batch["next", "terminated"],
                )
                batch["advantage"] = batch["advantage"].squeeze(-1)
                losses = [
                    self.learn(*(minibatch[key] for key in READ))
                    for minibatch in windrow.minibatches(
                        batch, arguments.minibatch, arguments.epochs, keys=READ
                    )
                ]
                # Only now, since the loss compares with what was normalized as the collector did.
                self.agent.look(batch["observation"])
                if self.logger is not None:
                    for name, loss in zip(LOSSES, losses[-1].tolist(), strict=True):
                        self.logger.add_scalar(f"losses/{name}", loss, frames)
                if arguments.checkpoint and time.monotonic() > saved + arguments.every:
                    self.save()
                    saved = time.monotonic()
            if arguments.checkpoint:
                self.save()

    def save(self) -> None:
        """Writes a checkpoint, which takes the place of the one before when it is whole."""
        state = {name: getattr(self, name).state_dict() for name in PARTS}
        state["generator"] = torch.get_rng_state()
        unfinished = self.arguments.checkpoint.with_suffix(".unfinished")
        with unfinished.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.arguments.checkpoint)

    def load(self, state: dict[str, Any]) -> None:
        for name in PARTS:
            getattr(self, name).load_state_dict(state[name])
        torch.set_rng_state(state["generator"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Learns with PPO.")
    parser.add_argument(
        "--env", default="Pendulum-v1", help="an id of Gymnasium with actions in a box"
    )
    parser.add_argument("--frames", type=int, default=1_024_000)
    parser.add_argument("--num-envs", type=int, default=1)
    parser.add_argument(
        "--frames-per-batch",
        type=int,
        default=2048,
        help="frames of all environments between two rounds of updates",
    )
    parser.add_argument("--minibatch", type=int, default=64, help="frames of an update")
    parser.add_argument("--epochs", type=int, default=10, help="passes over a batch")
    parser.add_argument("--lr", type=float, default=3e-4, help="rate of learning at the start")
    parser.add_argument("--gamma", type=float, default=0.99, help="discount of later rewards")
    parser.add_argument(
        "--reward-scale",
        type=float,
        default=0.1,
        help="what the critic's rewards are multiplied by",
    )
    parser.add_argument(
        "--width", type=int, default=64, help="of the two hidden layers of each network"
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
    parser.set_defaults(**SETTINGS.get(parser.parse_known_args()[0].env, {}))
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
    print(f"{arguments.frames} frames in {time.monotonic() - began:.1f} s")
    with Evaluator(
        make_env(arguments.env, 1),
        Best(training.agent),
        num_trajectories=100,
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
