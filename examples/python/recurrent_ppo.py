"""PPO (proximal policy optimization) for policies with a memory, from the environment to a
checkpoint, in one file.

By default the agent balances a pole without seeing any velocity.

    pip install '.[torch,gymnasium]' tensorboard
    python examples/python/recurrent_ppo.py
    python examples/python/recurrent_ppo.py --checkpoint pole.pt --log runs/ppo --video videos

A run ends when its policy has learned, since what goes on without an error left to learn from may
forget. One that has a checkpoint goes on from it, as if it had not been interrupted. `--check` ends
with an error unless the policy has learned.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional

import windrow
from windrow.collectors import Collector, Evaluator
from windrow.envs import Compose, DoubleToFloat, GymEnv, RewardSum, TransformedEnv

GAMMA, LAMBDA = 0.99, 0.95
#: How far the probability of an action may move within a batch, as a factor.
CLIP = 0.2
ENTROPY_WEIGHT, VALUE_WEIGHT = 0.0, 0.5
MAX_GRADIENT_NORM = 0.5
#: What a minibatch has of a batch.
READ = ("observation", "state", "action", "log_prob", "advantage", "target", ("collector", "mask"))
#: What a checkpoint holds of a training, in the order in which it is loaded: the collector's policy
#: is that of its last batch.
PARTS = ("collector", "agent", "optimizer")
#: What `--check` asks of the mean return.
LEARNED = {"CartPole-v1": 475.0, "Acrobot-v1": -100.0}
#: What the numbers of an observation are multiplied by, so that they reach from about -1 to 1:
#: velocities by zero, which hides them.
SEEN = {"CartPole-v1": (0.5, 0.0, 5.0, 0.0), "Acrobot-v1": (1.0, 1.0, 1.0, 1.0, 0.0, 0.0)}


class Agent(nn.Module):
    """Draws actions, and estimates the return of what follows, from what a state remembers. An
    episode begins with zeros as its state.
    """

    seen: torch.Tensor

    def __init__(
        self, observations: int, actions: int, width: int, seen: tuple[float, ...]
    ) -> None:
        super().__init__()
        self.memory = nn.GRU(observations, width, batch_first=True)
        self.actor, self.critic = nn.Linear(width, actions), nn.Linear(width, 1)
        for layer, gain in ((self.actor, 0.01), (self.critic, 1.0)):
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)
        self.register_buffer("seen", torch.tensor(seen))

    def states(self, observation: torch.Tensor, state: torch.Tensor | None) -> torch.Tensor:
        """The state after each of the steps, ``[rows, steps, width]``, from the one before the
        first, ``[rows, width]``.
        """
        return self.memory(observation * self.seen, None if state is None else state.unsqueeze(0))[
            0
        ]

    def forward(
        self, observation: torch.Tensor, state: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, ...]:
        """What the collector writes: actions, what the loss compares with, and the next state."""
        state = self.states(observation.unsqueeze(1), state).squeeze(1)
        choice = Categorical(logits=self.actor(state))
        action = choice.sample()
        return action, choice.log_prob(action), self.critic(state), state


class Best(nn.Module):
    """The most likely action, for evaluation, and the next state."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.agent = agent

    def forward(
        self, observation: torch.Tensor, state: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        state = self.agent.states(observation.unsqueeze(1), state).squeeze(1)
        return self.agent.actor(state).argmax(-1), state


def make_env(name: str, num_envs: int) -> TransformedEnv:
    return TransformedEnv(
        GymEnv(name, num_envs=num_envs, categorical_action_encoding=True),
        Compose(DoubleToFloat(), RewardSum()),
    )


class Training:
    """All that learns, and all that collects."""

    def __init__(self, arguments: argparse.Namespace, logger: Any) -> None:
        torch.manual_seed(arguments.seed)
        self.arguments, self.logger = arguments, logger
        env = make_env(arguments.env, arguments.num_envs)
        self.agent = Agent(
            env.observation_spec["observation"].shape[-1],
            env.action_spec.space.n,
            arguments.width,
            SEEN[arguments.env],
        )
        self.optimizer = torch.optim.Adam(
            self.agent.parameters(), lr=torch.tensor(arguments.lr), eps=1e-5, fused=True
        )
        # Rust runs the agent, a hundred times as fast as the loss is minimized: collecting in the
        # background would gain nothing.
        self.collector = Collector(
            env,
            TensorDictModule(
                self.agent,
                ["observation", "state"],
                ["action", "log_prob", "value", ("next", "state")],
            ),
            policy_backend="native",
            frames_per_batch=arguments.frames_per_batch,
            split_trajs=True,
            total_frames=arguments.frames,
            logger=logger,
            seed=arguments.seed,
        )
        #: Whether it is over.
        self.learned = False

    def update(self, episodes: Any) -> torch.Tensor:
        """A step of gradient descent through the steps of some pieces of episodes; returns the
        losses of policy and values, and the entropy.
        """
        mask = episodes["collector", "mask"]
        # States are computed anew, with the weights of today, from the one with which each piece
        # began.
        state = self.agent.states(episodes["observation"], episodes["state"][:, 0])[mask]
        action, old, advantage, target = (
            episodes[key][mask] for key in ("action", "log_prob", "advantage", "target")
        )
        log_probs = self.agent.actor(state).log_softmax(-1)
        ratio = (log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1) - old).exp()
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        policy_loss = -torch.minimum(
            advantage * ratio, advantage * ratio.clamp(1 - CLIP, 1 + CLIP)
        ).mean()
        value_loss = functional.mse_loss(self.agent.critic(state), target)
        entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
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
            for batch in () if self.learned else self.collector:
                frames = self.collector.stats()["frames"]
                # The rate falls to zero in a straight line.
                self.optimizer.param_groups[0]["lr"].fill_(
                    arguments.lr * (1 + (arguments.frames_per_batch - frames) / arguments.frames)
                )
                with torch.no_grad():
                    steps = torch.flatten(batch["next", "observation"], 0, 1).unsqueeze(1)
                    before = torch.flatten(batch["next", "state"], 0, 1)
                    state = self.agent.states(steps, before)
                    following = self.agent.critic(state).reshape(*batch.shape, 1)
                # Behind the end of a piece is padding, whose trajectory is none.
                batch["advantage"], batch["target"] = windrow.generalized_advantage_estimate(
                    GAMMA,
                    LAMBDA,
                    batch["value"],
                    following,
                    # Values are means of rewards, of which later ones count less, so that their
                    # loss does not drown that of the policy.
                    (1 - GAMMA) * batch["next", "reward"],
                    batch["next", "done"],
                    terminated=batch["next", "terminated"],
                    traj_ids=batch["collector", "traj_ids"],
                )
                batch["advantage"] = batch["advantage"].squeeze(-1)
                batch.auto_batch_size_(1)
                losses = [
                    self.update(episodes)
                    for episodes in windrow.minibatches(
                        batch, len(batch) // arguments.minibatches + 1, arguments.epochs, keys=READ
                    )
                ]
                if self.logger is not None:
                    for name, loss in zip(
                        ("policy", "value", "entropy"), losses[-1].tolist(), strict=True
                    ):
                        self.logger.add_scalar(f"losses/{name}", loss, frames)
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
        best = TensorDictModule(
            Best(self.agent), ["observation", "state"], ["action", ("next", "state")]
        )
        with Evaluator(
            make_env(self.arguments.env, 1),
            best,
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
    parser = argparse.ArgumentParser(description="Learns with PPO.")
    parser.add_argument("--env", default="CartPole-v1", choices=SEEN)
    parser.add_argument("--frames", type=int, default=327_680, help="frames at most")
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument(
        "--frames-per-batch",
        type=int,
        default=2048,
        help="frames of all environments between two rounds of updates",
    )
    parser.add_argument(
        "--evaluate-every", type=int, default=16_384, help="frames between two evaluations"
    )
    parser.add_argument("--minibatches", type=int, default=4, help="updates in a pass over a batch")
    parser.add_argument("--epochs", type=int, default=10, help="passes over a batch")
    parser.add_argument("--lr", type=float, default=2e-3, help="rate of learning at the start")
    parser.add_argument("--width", type=int, default=64, help="of the state")
    parser.add_argument("--seed", type=int, default=0)
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
