"""CartPoles that run free and ask one torch policy, which answers all that wait in one call. It
learns by REINFORCE.

pip install . torch tensordict tqdm
python examples/python/async_batched.py
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from windrow.collectors import AsyncBatchedCollector
from windrow.envs import GymEnv

NUM_ENVS = 64


class Actor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """An action for each of the environments that wait. ``[rows]``"""
        return torch.multinomial(self.net(observation).softmax(-1), 1).squeeze(-1)


def make_env() -> GymEnv:
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def shown(collector: AsyncBatchedCollector) -> dict[str, str]:
    """How full the calls of the policy are, how long observations wait for one, and how long it
    takes.
    """
    stats = collector.server_stats(reset=True)
    queue, forward = (
        f"{1e3 * stats['p50_queue_ms']:.0f} us",
        f"{1e3 * stats['p50_forward_ms']:.0f} us",
    )
    return {"fill": f"{stats['batch_fill']:.0%}", "queue": queue, "forward": forward}


def learn(actor: Actor, optimizer: torch.optim.Optimizer, trajectories: list[Any]) -> None:
    """A step of the policy gradient."""
    returns = torch.cat(
        [
            trajectory["next", "reward"].flatten().flip(0).cumsum(0).flip(0)
            for trajectory in trajectories
        ]
    )
    observations, actions = (
        torch.cat([trajectory[key] for trajectory in trajectories])
        for key in ("observation", "action")
    )
    chosen = actor.net(observations).log_softmax(-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    optimizer.zero_grad()
    (-chosen * (returns - returns.mean()) / (returns.std() + 1e-6)).mean().backward()
    optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description="Many environments and one policy.")
    parser.add_argument(
        "--frames", type=int, default=400_000, help="frames of each of the two parts"
    )
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)
    actor = Actor()
    frames = max(arguments.frames // 6400, 1) * 6400
    options: dict[str, Any] = {
        "frames_per_batch": 6400,
        "total_frames": frames,
        "policy_backend": "torch",
        "seed": arguments.seed,
    }

    print("batches of frames, by arrival:")
    with (
        AsyncBatchedCollector([make_env] * NUM_ENVS, actor, **options) as collector,
        tqdm(total=frames, unit=" frames") as progress,
    ):
        for batch in collector:
            progress.update(batch.numel())
            progress.set_postfix(shown(collector), envs=batch["env_index"].unique().numel())

    print("whole trajectories, one by one, while the policy learns:")
    optimizer = torch.optim.Adam(actor.parameters(), lr=1e-2)
    lengths, gathered = [], []
    collector = AsyncBatchedCollector(
        [make_env] * NUM_ENVS,
        actor,
        yield_completed_trajectories=True,
        **{**options, "frames_per_batch": 640},
    )
    with collector, tqdm(total=frames, unit=" frames") as progress:
        for trajectory in collector:
            progress.update(len(trajectory))
            lengths.append(len(trajectory))
            gathered.append(trajectory)
            if len(gathered) == 64:
                learn(actor, optimizer, gathered)
                collector.update_policy_weights_()
                gathered = []
                progress.set_postfix(
                    shown(collector),
                    steps=f"{mean(lengths[-64:]):.0f}",
                    version=collector.policy_version,
                )
    print(
        f"mean steps: {mean(lengths[:64]):.0f} at the start, {mean(lengths[-64:]):.0f} at the end"
    )


def mean(values: list[int]) -> float:
    return sum(values) / max(len(values), 1)


if __name__ == "__main__":
    main()
