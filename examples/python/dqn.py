"""DQN (deep Q-learning), in which the trained network picks actions and a target network values
them, from the environment to a checkpoint, in one file.

    pip install '.[torch,gymnasium]' tensorboard python examples/python/dqn.py python
    examples/python/dqn.py --env Acrobot-v1 --checkpoint acrobot.pt --log runs/dqn --video videos

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

GAMMA = 0.97
#: How far the target network moves towards the trained one with each update.
TAU = 0.01
#: What actions are worth at the start, as a mean of the rewards to come: where an episode that does
#: not end earns 1 with each step, it takes far less time to learn what ends it than to count up how
#: long it lasts.
FIRST_VALUE = {"CartPole-v1": 1.0}
#: Probability of a random action at the start and at the end, and the share of all frames in which
#: it falls.
EPSILON, ANNEALING = (1.0, 0.05), 0.1
#: What a checkpoint holds of a training, in the order in which it is loaded: the collector's policy
#: is that of its last batch.
PARTS = ("collector", "policy", "target", "optimizer", "buffer")
#: The mean return at which a run ends, and that `--check` asks for.
LEARNED = {"CartPole-v1": 475.0, "Acrobot-v1": -100.0}


def mlp(inputs: int, outputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, outputs),
    )


class Greedy(nn.Module):
    """The action of the greatest value."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.network(observation).argmax(-1)


class Explorer(Greedy):
    """The same, or a random action with probability ``epsilon``."""

    epsilon: torch.Tensor

    def __init__(self, network: nn.Module, actions: int) -> None:
        super().__init__(network)
        self.actions = actions
        self.register_buffer("epsilon", torch.tensor(EPSILON[0]))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        best = super().forward(observation)
        is_random = torch.rand_like(observation[..., 0]) < self.epsilon
        return torch.where(is_random, torch.randint_like(best, self.actions), best)


def make_env(name: str) -> TransformedEnv:
    return TransformedEnv(
        GymEnv(name, categorical_action_encoding=True), Compose(DoubleToFloat(), RewardSum())
    )


class Training:
    """All that learns, and all that collects."""

    def __init__(self, arguments: argparse.Namespace, logger: Any) -> None:
        torch.manual_seed(arguments.seed)
        self.arguments, self.logger = arguments, logger
        env = make_env(arguments.env)
        actions = env.action_spec.space.n
        self.network = mlp(env.observation_spec["observation"].shape[-1], actions, arguments.width)
        nn.init.constant_(self.network.get_parameter("4.bias"), FIRST_VALUE.get(arguments.env, 0.0))
        self.target = copy.deepcopy(self.network).requires_grad_(False)
        self.policy = Explorer(self.network, actions)
        self.optimizer = torch.optim.Adam(
            self.network.parameters(), lr=torch.tensor(arguments.lr), fused=True
        )
        self.buffer = ReplayBuffer(
            storage=LazyTensorStorage(min(arguments.frames, 100_000)),
            batch_size=arguments.minibatch,
            seed=arguments.seed,
        )
        # Rust runs the policy, a hundred times as fast as the loss is minimized: collecting in the
        # background would gain nothing.
        self.collector = Collector(
            env,
            self.policy,
            policy_backend="native",
            frames_per_batch=arguments.frames_per_batch,
            total_frames=arguments.frames,
            init_random_frames=arguments.random_frames,
            replay_buffer=self.buffer,
            logger=logger,
            seed=arguments.seed,
        )
        self.learned = False
        self.learn = torch.compile(self.update) if arguments.compile else self.update

    def update(
        self,
        observation: torch.Tensor,
        action: torch.Tensor,
        after: torch.Tensor,
        reward: torch.Tensor,
        terminated: torch.Tensor,
    ) -> torch.Tensor:
        """A step of gradient descent on a sample, after which the target follows; returns the
        loss.
        """
        with torch.no_grad():
            best = self.network(after).argmax(-1, keepdim=True)
            # Values are means of rewards, of which later ones count less.
            goal = (1 - GAMMA) * reward + GAMMA * self.target(after).gather(-1, best) * ~terminated
        value = self.network(observation).gather(-1, action.unsqueeze(-1))
        loss = functional.mse_loss(value, goal)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for target, trained in zip(
                self.target.parameters(), self.network.parameters(), strict=True
            ):
                target.lerp_(trained, TAU)
        return loss.detach()

    def run(self) -> None:
        arguments = self.arguments
        if arguments.checkpoint and arguments.checkpoint.exists():
            self.load(torch.load(arguments.checkpoint))
        saved, updates = time.monotonic(), round(arguments.frames_per_batch * arguments.ratio)
        with self.collector:
            for _ in () if self.learned else self.collector:
                frames = self.collector.stats()["frames"]
                done = frames / arguments.frames
                self.policy.epsilon.fill_(
                    EPSILON[0] + (EPSILON[1] - EPSILON[0]) * min(done / ANNEALING, 1.0)
                )
                if frames < arguments.random_frames:
                    continue
                # The rate falls to zero in a straight line.
                self.optimizer.param_groups[0]["lr"].fill_(arguments.lr * (1 - done))
                losses: list[torch.Tensor] = []
                for _ in range(updates):
                    sample = self.buffer.sample()
                    losses.append(
                        self.learn(
                            sample["observation"],
                            sample["action"],
                            sample["next", "observation"],
                            sample["next", "reward"],
                            sample["next", "terminated"],
                        )
                    )
                if self.logger is not None and frames % 1000 < arguments.frames_per_batch:
                    self.logger.add_scalar("losses/value", losses[-1].item(), frames)
                due = frames % arguments.evaluate_every < arguments.frames_per_batch
                # A policy that was picked for being good was lucky more often than not: only other
                # episodes can confirm it.
                self.learned = due and all(
                    self.evaluate(seed, frames) >= LEARNED[arguments.env] for seed in (1000, 2000)
                )
                if self.learned:
                    break
                if arguments.checkpoint and time.monotonic() > saved + arguments.every:
                    self.save()
                    saved = time.monotonic()
            if arguments.checkpoint:
                self.save()

    def evaluate(self, seed: int, frames: int, **more: Any) -> float:
        """The mean return of 100 episodes without exploration."""
        with Evaluator(
            make_env(self.arguments.env),
            Greedy(self.network),
            num_trajectories=100,
            seed=seed,
            logger=self.logger,
            **more,
        ) as evaluator:
            result: float = evaluator.evaluate(step=frames)["eval/reward"]
        return result

    def save(self) -> None:
        """Writes a checkpoint, which takes the place of the one before when it is whole."""
        state = {name: getattr(self, name).state_dict() for name in PARTS}
        state["generator"], state["learned"] = torch.get_rng_state(), self.learned
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
        self.learned = state["learned"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Learns with DQN.")
    parser.add_argument("--env", default="CartPole-v1", choices=LEARNED)
    parser.add_argument("--frames", type=int, default=100_000, help="frames at most")
    parser.add_argument(
        "--frames-per-batch", type=int, default=250, help="frames between two rounds of updates"
    )
    parser.add_argument("--ratio", type=float, default=0.5, help="updates for a frame")
    parser.add_argument(
        "--random-frames",
        type=int,
        default=1000,
        help="frames with random actions, before the first update",
    )
    parser.add_argument(
        "--evaluate-every", type=int, default=1000, help="frames between two evaluations"
    )
    parser.add_argument("--minibatch", type=int, default=128, help="frames of an update")
    parser.add_argument("--lr", type=float, default=2e-3, help="rate of learning at the start")
    parser.add_argument(
        "--width", type=int, default=64, help="of the two hidden layers of the network"
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
    torch.set_num_threads(1)
    logger = None
    if arguments.log:
        from torch.utils.tensorboard import SummaryWriter

        logger = SummaryWriter(arguments.log)
    began = time.monotonic()
    training = Training(arguments, logger)
    training.run()
    frames = training.collector.stats()["frames"]
    print(f"{frames} frames in {time.monotonic() - began:.1f} s")
    result = training.evaluate(2000, frames, video=arguments.video)
    print(f"mean return: {result:.1f}")
    if arguments.check and result < LEARNED[arguments.env]:
        raise SystemExit(
            f"expected a mean return of at least {LEARNED[arguments.env]}, got {result:.1f}"
        )


if __name__ == "__main__":
    main()
