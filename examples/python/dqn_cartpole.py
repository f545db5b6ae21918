"""DQN on CartPole: windrow collects into its replay buffer, the loss of torchrl learns.

    pip install . torch torchrl tqdm
    python examples/python/dqn_cartpole.py
"""

from __future__ import annotations

import argparse

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.data import Categorical
from torchrl.modules import EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate
from tqdm import tqdm

from windrow.collectors import Collector
from windrow.data import LazyTensorStorage, ReplayBuffer
from windrow.envs import Compose, GymEnv, RewardSum, TransformedEnv

FRAMES_PER_BATCH = 50
UPDATES_PER_BATCH = 25


def main() -> None:
    parser = argparse.ArgumentParser(description="Learns to balance with DQN.")
    parser.add_argument("--frames", type=int, default=30_000, help="frames in all, a multiple of 50")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)

    network = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    values = QValueActor(network, in_keys=["observation"], action_space="categorical")
    exploration = EGreedyModule(Categorical(2), eps_init=1.0, eps_end=0.05, annealing_num_steps=arguments.frames // 3)
    loss_fn = DQNLoss(values, action_space="categorical", delay_value=True)
    loss_fn.make_value_estimator(gamma=0.99)
    target = SoftUpdate(loss_fn, eps=0.99)
    optimizer = torch.optim.Adam(loss_fn.parameters(), lr=5e-4)

    env = TransformedEnv(GymEnv("CartPole-v1", categorical_action_encoding=True), Compose(RewardSum()))
    buffer = ReplayBuffer(storage=LazyTensorStorage(arguments.frames), batch_size=128, seed=arguments.seed)
    returns: list[float] = []
    collector = Collector(
        env,
        TensorDictSequential(values, exploration),
        frames_per_batch=FRAMES_PER_BATCH,
        total_frames=arguments.frames,
        init_random_frames=1000,
        seed=arguments.seed,
    )
    print(collector)
    with collector, tqdm(total=arguments.frames, unit=" frames") as progress:
        for batch in collector:
            buffer.extend(batch.select("observation", "action", "next"))
            exploration.step(batch.numel())
            ended = batch["next", "done"].squeeze(-1)
            returns += batch["next", "episode_reward"][ended].flatten().tolist()
            progress.update(batch.numel())
            if len(buffer) >= 1000:
                for _ in range(UPDATES_PER_BATCH):
                    loss = loss_fn(buffer.sample())["loss"]
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(loss_fn.parameters(), 10.0)
                    optimizer.step()
                    target.step()
            if returns:
                progress.set_postfix(episodes=len(returns), mean_return=f"{mean(returns[-20:]):.0f}")
    if len(returns) >= 2:
        some = min(20, len(returns) // 2)
        print(f"mean return: {mean(returns[:some]):.0f} at the start, {mean(returns[-some:]):.0f} at the end")


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


if __name__ == "__main__":
    main()
