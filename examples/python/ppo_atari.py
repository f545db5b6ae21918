"""PPO (proximal policy optimization) for Atari games, from ALE's own vector of environments to a
checkpoint, in one file.

    pip install '.[torch,gymnasium]' ale-py tensorboard python examples/python/ppo_atari.py python
    examples/python/ppo_atari.py --game pong --frames 2048000 --checkpoint pong.pt --log runs/ppo

A run that has a checkpoint goes on from its weights, with new episodes: ALE's vector has no states
to save. `--check` ends with an error unless the policy has learned.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
from ale_py.vector_env import AtariVectorEnv
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional

import windrow
from windrow.collectors import Collector, Evaluator
from windrow.envs import GymWrapper, RewardSum, TransformedEnv

GAMMA, LAMBDA = 0.99, 0.95
#: How far the probability of an action may move within a batch, as a factor.
CLIP = 0.1
ENTROPY_WEIGHT, VALUE_WEIGHT = 0.01, 0.5
MAX_GRADIENT_NORM = 0.5
#: What a minibatch has of a batch.
READ = ("observation", "action", "log_prob", "advantage", "target")
#: What a checkpoint holds of a training, in the order in which it is loaded: the collector's policy
#: is that of its last batch.
PARTS = ("collector", "agent", "optimizer")
#: What `--check` asks of the mean return.
LEARNED = {"breakout": 5.0}


class Agent(nn.Module):
    """Draws actions, and estimates the return of what follows, from four pictures,
    ``[..., 4, 84, 84]``, uint8. A small network, which learns without a GPU, too.
    """

    def __init__(self, actions: int) -> None:
        super().__init__()
        layers = [
            nn.Conv2d(4, 16, 8, 4),
            nn.Conv2d(16, 32, 4, 2),
            nn.Linear(2592, 256),
            nn.Linear(256, actions),
            nn.Linear(256, 1),
        ]
        for layer, gain in zip(layers, (2**0.5, 2**0.5, 2**0.5, 0.01, 1.0), strict=True):
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)
        self.features = nn.Sequential(
            layers[0], nn.ReLU(), layers[1], nn.ReLU(), nn.Flatten(), layers[2], nn.ReLU()
        )
        self.actor, self.critic = layers[3:]

    def seen(self, pixels: torch.Tensor) -> torch.Tensor:
        """Features of the pictures, for actor and critic, ``[..., 256]``."""
        flat = pixels.reshape(-1, *pixels.shape[-3:]).to(
            torch.float32, memory_format=torch.channels_last
        )
        found: torch.Tensor = self.features(flat / 255.0)
        return found.reshape(*pixels.shape[:-3], -1)

    def forward(self, observation: torch.Tensor) -> dict[str, torch.Tensor]:
        """What the collector writes: actions, and what the loss compares with."""
        seen = self.seen(observation)
        choice = Categorical(logits=self.actor(seen))
        action = choice.sample()
        return {"action": action, "log_prob": choice.log_prob(action), "value": self.critic(seen)}


def make_env(game: str, num_envs: int) -> TransformedEnv:
    return TransformedEnv(
        GymWrapper(AtariVectorEnv(game, num_envs), categorical_action_encoding=True), RewardSum()
    )


class Training:
    """All that learns, and all that collects."""

    def __init__(self, arguments: argparse.Namespace, logger: Any) -> None:
        torch.manual_seed(arguments.seed)
        self.arguments, self.logger = arguments, logger
        env = make_env(arguments.game, arguments.num_envs)
        device = arguments.device
        # Torch's convolutions are nearly twice as fast with channels last.
        self.agent = Agent(env.action_spec.space.n).to(device)
        self.agent.to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.Adam(
            self.agent.parameters(),
            lr=torch.tensor(arguments.lr, device=device),
            eps=1e-5,
            fused=True,
        )
        # Torch evaluates convolutions, with all processors: collecting in the background would only
        # take them from the loss.
        self.collector = Collector(
            env,
            self.agent,
            policy_backend="torch",
            device=device,
            cudagraph_policy=torch.device(device).type == "cuda",
            frames_per_batch=arguments.frames_per_batch,
            total_frames=arguments.frames,
            logger=logger,
            seed=arguments.seed,
        )
        self.learn = torch.compile(self.update) if arguments.compile else self.update

    def update(
        self,
        observation: torch.Tensor,
        action: torch.Tensor,
        old: torch.Tensor,
        advantage: torch.Tensor,
        target: torch.Tensor,
    ) -> torch.Tensor:
        """A step of gradient descent on a minibatch; returns the losses of policy and values, and
        the entropy.
        """
        seen = self.agent.seen(observation)
        log_probs = self.agent.actor(seen).log_softmax(-1)
        ratio = (log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1) - old).exp()
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        policy_loss = -torch.minimum(
            advantage * ratio, advantage * ratio.clamp(1 - CLIP, 1 + CLIP)
        ).mean()
        value_loss = functional.mse_loss(self.agent.critic(seen), target)
        entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
        self.optimizer.zero_grad()
        (policy_loss + VALUE_WEIGHT * value_loss - ENTROPY_WEIGHT * entropy).backward()
        nn.utils.clip_grad_norm_(self.agent.parameters(), MAX_GRADIENT_NORM)
        self.optimizer.step()
        return torch.stack((policy_loss, value_loss, entropy)).detach()

    def run(self) -> None:
        arguments = self.arguments
        if arguments.checkpoint and arguments.checkpoint.exists():
            self.load(torch.load(arguments.checkpoint, map_location=arguments.device))
        saved = time.monotonic()
        with self.collector:
            for batch in self.collector:
                frames = self.collector.stats()["frames"]
                # The rate falls to zero in a straight line.
                self.optimizer.param_groups[0]["lr"].fill_(
                    arguments.lr * (1 + (batch.numel() - frames) / arguments.frames)
                )
                # The next frame has the value of what follows, except at the ends of episodes and
                # of the batch.
                following = torch.roll(batch["value"], -1, 1)
                apart = batch["next", "done"].squeeze(-1).clone()
                apart[:, -1] = True
                with torch.no_grad():
                    following[apart] = self.agent.critic(
                        self.agent.seen(batch["next", "observation"][apart])
                    )
                batch["advantage"], batch["target"] = windrow.generalized_advantage_estimate(
                    GAMMA,
                    LAMBDA,
                    batch["value"],
                    following,
                    batch["next", "reward"],
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
                if self.logger is not None:
                    for name, loss in zip(
                        ("policy", "value", "entropy"), losses[-1].tolist(), strict=True
                    ):
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
        torch.set_rng_state(state["generator"].cpu())


def main() -> None:
    parser = argparse.ArgumentParser(description="Learns to play with PPO.")
    parser.add_argument(
        "--game", default="breakout", help="one of ALE's games, by the name of its file"
    )
    parser.add_argument("--frames", type=int, default=409_600)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument(
        "--frames-per-batch",
        type=int,
        default=1024,
        help="frames of all environments between two rounds of updates",
    )
    parser.add_argument("--minibatch", type=int, default=256, help="frames of an update")
    parser.add_argument("--epochs", type=int, default=3, help="passes over a batch")
    parser.add_argument("--lr", type=float, default=1e-3, help="rate of learning at the start")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="where the network and the batches are",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile the update, which pays after some thousand updates",
    )
    parser.add_argument("--checkpoint", type=Path, help="the file to go on from")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two checkpoints")
    parser.add_argument("--log", help="a folder for TensorBoard")
    parser.add_argument(
        "--check",
        action="store_true",
        help="fail unless the mean return of the evaluation is what is expected",
    )
    arguments = parser.parse_args()
    if arguments.check and arguments.game not in LEARNED:
        parser.error(f"--check knows what to expect of {', '.join(LEARNED)}, got {arguments.game}")
    logger = None
    if arguments.log:
        from torch.utils.tensorboard import SummaryWriter

        logger = SummaryWriter(arguments.log)
    began = time.monotonic()
    training = Training(arguments, logger)
    training.run()
    print(f"{arguments.frames} frames in {time.monotonic() - began:.1f} s")
    # It draws its actions: the most likely one may be to wait for ever.
    settings = {
        "policy_backend": "torch",
        "device": arguments.device,
        "num_trajectories": 40,
        "max_steps": 5000,
        "seed": 1000,
        "logger": logger,
    }
    with Evaluator(make_env(arguments.game, 8), training.agent, **settings) as evaluator:
        result = evaluator.evaluate(step=arguments.frames)["eval/reward"]
    print(f"mean return: {result:.1f}")
    if arguments.check and result < LEARNED[arguments.game]:
        raise SystemExit(
            f"expected a mean return of at least {LEARNED[arguments.game]}, got {result:.1f}"
        )


if __name__ == "__main__":
    main()
