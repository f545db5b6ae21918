"""SAC on Pendulum over Ray: actors collect into a replay buffer of its own actor, this program
learns from samples of it.

pip install ".[ray]" torch tensordict torchrl tqdm
python examples/python/ray_offpolicy.py --check
python examples/python/ray_offpolicy.py --address auto --actors 100     # on a cluster
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
import time
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.modules import ProbabilisticActor, TanhNormal
from tqdm import tqdm

import ray
from windrow.collectors import Collector, MultiAsyncCollector, RayCollector, RayWeightUpdater
from windrow.data import LazyTensorStorage, RandomSampler, RateLimiter, RayReplayBuffer

MINIBATCH = 256
#: Frames with random actions, before learning begins.
WARM_UP = 1000
#: Frames of one worker that are written at a time.
FRAMES_PER_BATCH = 40
#: The limiter holds collection to so many frames for each update, and lets it be so many ahead or
#: behind.
FRAMES_PER_UPDATE, SLACK = 2, 200
UPDATES_PER_PUBLICATION = 25
#: Mean return of a rod that is swung up at once and kept there.
GOAL = -200.0


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs)
    )


class Learner:
    """Soft actor-critic, with an entropy bonus that it tunes itself."""

    def __init__(self) -> None:
        self.actor = nn.Sequential(network(3, 2), NormalParamExtractor())
        self.critics = nn.ModuleList([network(4, 1), network(4, 1)])
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.optimizers = [
            torch.optim.Adam(parameters, lr=1e-3, fused=True)
            for parameters in (self.actor.parameters(), self.critics.parameters(), [self.log_alpha])
        ]

    def act(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Actions within -2 and 2, and their log-probabilities. ``[rows, 1]``"""
        loc, scale = self.actor(observation)
        raw = loc + scale * torch.randn_like(loc)
        action = raw.tanh()
        log_prob = -0.5 * ((raw - loc) / scale) ** 2 - scale.log() - 0.5 * math.log(2 * math.pi)
        return 2.0 * action, log_prob - torch.log(2.0 * (1.0 - action**2) + 1e-6)

    def learn(self, frames: TensorDict) -> None:
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            action, log_prob = self.act(frames["next", "observation"])
            value = least(self.targets, frames["next", "observation"], action) - alpha * log_prob
            target = 0.1 * frames["next", "reward"] + 0.99 * ~frames["next", "terminated"] * value
        pairs = torch.cat([frames["observation"], frames["action"]], -1)
        critic_loss = sum(nn.functional.mse_loss(critic(pairs), target) for critic in self.critics)
        self.step(1, critic_loss)
        action, log_prob = self.act(frames["observation"])
        self.critics.requires_grad_(False)
        self.step(0, (alpha * log_prob - least(self.critics, frames["observation"], action)).mean())
        self.critics.requires_grad_(True)
        # One action: an entropy of -1 is the usual aim.
        self.step(2, -(self.log_alpha * (log_prob.detach().mean() - 1.0)))
        with torch.no_grad():
            for target, trained in zip(
                self.targets.parameters(), self.critics.parameters(), strict=True
            ):
                target.lerp_(trained, 0.005)

    def step(self, which: int, loss: Any) -> None:
        self.optimizers[which].zero_grad()
        loss.backward()
        self.optimizers[which].step()


def least(critics: nn.ModuleList, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    pairs = torch.cat([observation, action], -1)
    return torch.minimum(*(critic(pairs) for critic in critics))


def main() -> None:
    parser = argparse.ArgumentParser(description="Learns to swing a rod up, with actors of Ray.")
    parser.add_argument(
        "--address", help="a Ray cluster; by default, one with 2 CPUs is started here"
    )
    parser.add_argument(
        "--actors", type=int, default=2, help="actors, each with a collector of its own"
    )
    parser.add_argument("--workers", type=int, default=1, help="workers of each actor's collector")
    parser.add_argument("--frames", type=int, default=12_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--kill", action="store_true", help="kill an actor in the middle; another takes its place"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help=f"exit with status 1 unless the mean return reaches {GOAL:.0f}",
    )
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)
    here = (
        {}
        if arguments.address
        else {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 2**27}
    )
    ray.init(address=arguments.address, log_to_driver=False, **here)
    try:
        reached = learn(arguments)
    finally:
        ray.shutdown()
    print(f"mean return: {reached:.0f} over 20 episodes without exploration")
    if arguments.check and reached < GOAL:
        sys.exit(f"expected a mean return of {GOAL:.0f}")


def learn(arguments: argparse.Namespace) -> float:
    """The mean return after learning."""
    learner = Learner()
    policy = ProbabilisticActor(
        TensorDictModule(learner.actor, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": -2.0, "high": 2.0},
    )
    samples_per_frame = MINIBATCH / FRAMES_PER_UPDATE
    buffer = RayReplayBuffer(
        storage=LazyTensorStorage(100_000),
        sampler=RandomSampler(),
        limiter=RateLimiter.sample_to_insert_ratio(
            samples_per_frame, WARM_UP, SLACK * samples_per_frame
        ),
        batch_size=MINIBATCH,
        prefetch=2,
        seed=arguments.seed,
    )
    collector = RayCollector(
        ["Pendulum-v1"] * arguments.actors,
        policy,
        collector_class=MultiAsyncCollector,
        num_workers_per_collector=arguments.workers,
        sync=False,
        frames_per_batch=FRAMES_PER_BATCH,
        total_frames=-1,
        init_random_frames=WARM_UP,
        replay_buffer=buffer,
        weight_updater=RayWeightUpdater,
        on_loss=3,
        seed=arguments.seed,
    )
    updates = (arguments.frames - WARM_UP) // FRAMES_PER_UPDATE
    began = time.monotonic()
    with buffer, collector, tqdm(total=updates, unit=" updates") as progress:
        collector.start()
        for update in range(updates):
            learner.learn(buffer.sample())
            if update % UPDATES_PER_PUBLICATION == 0:
                collector.update_policy_weights_()
                progress.update(UPDATES_PER_PUBLICATION)
            if arguments.kill and update == updates // 2:
                ray.kill(collector.remote_collectors[0])
        frames = buffer.write_count
    print(f"{frames} frames, {updates} updates in {time.monotonic() - began:.0f} s")
    return evaluate(policy, arguments.seed)


def evaluate(policy: Any, seed: int) -> float:
    """Mean return of 20 episodes, each of 200 steps, without exploration."""
    collector = Collector(
        "Pendulum-v1",
        policy,
        num_envs=20,
        frames_per_batch=4000,
        total_frames=4000,
        exploration_type="deterministic",
        seed=seed + 1000,
    )
    with collector:
        return float(next(iter(collector))["next", "reward"].sum() / 20)


if __name__ == "__main__":
    main()
