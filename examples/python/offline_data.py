"""Offline data: a policy that somebody has written balances the pole and leaves a data set, and a
network learns to do the same from it.

pip install ".[parquet,gymnasium]"
python examples/python/offline_data.py
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torch.utils.data import DataLoader

from windrow.collectors import Collector
from windrow.data import ParquetSink, ReplayBuffer
from windrow.envs import GymEnv


def env(num_envs: int) -> GymEnv:
    return GymEnv("CartPole-v1", num_envs=num_envs, categorical_action_encoding=True)


def expert() -> TensorDictModule:
    """Pushes the cart to where the pole is falling, and back to the middle."""
    network = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.1, 0.3, 4.0, 1.0]]))
    return TensorDictModule(network, in_keys=["observation"], out_keys=["action"])


def mean_return(policy: TensorDictModule, frames: int) -> float:
    """That of episodes as long as they last within so many frames."""
    with Collector(env(8), policy, frames_per_batch=8 * (frames // 8), seed=1) as collector:
        batch = next(collector)
    episodes = batch["collector", "traj_ids"].unique().numel()
    return float(batch["next", "reward"].sum()) / episodes


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn from a data set.")
    parser.add_argument("--frames", type=int, default=100_000, help="frames of the data set")
    parser.add_argument("--path", help="where to keep it; it is not kept unless given")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    with tempfile.TemporaryDirectory() as folder:
        path = arguments.path or folder
        with ParquetSink(path) as sink:
            for _ in Collector(
                env(8),
                expert(),
                frames_per_batch=800,
                total_frames=arguments.frames,
                seed=0,
                replay_buffer=sink,
            ):
                pass
        print(sink)

        # Anybody can read it: datasets.load_dataset(path), pyarrow.parquet.read_table(path +
        # "/data"), …
        frames = ReplayBuffer.from_dataset(path).as_dataset()

    network = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
    policy = TensorDictModule(network, in_keys=["observation"], out_keys=["action"])
    before = mean_return(policy, 4000)
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(2):
        for batch in DataLoader(frames, batch_size=100, shuffle=True, collate_fn=frames.collate):
            loss = nn.functional.cross_entropy(
                network(batch["observation"]), batch["action"].flatten()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(
        f"mean return: {before:.0f} before, {mean_return(policy, 4000):.0f} after learning from the data set"
    )


if __name__ == "__main__":
    main()
