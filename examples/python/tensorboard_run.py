"""Deep Q-learning in the background, watched in TensorBoard: returns, frames a second, lag of the
policy, fill of the buffer, and the loss.

pip install '.[torch,gymnasium]' tensorboard
python examples/python/tensorboard_run.py
tensorboard --logdir runs
"""

from __future__ import annotations

import argparse
import copy

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from windrow.collectors import AsyncCollector, Evaluator
from windrow.data import LazyTensorStorage, RateLimiter, ReplayBuffer

BATCH = 128
FRAMES_PER_BATCH = 100
EPSILON = 0.1


class Greedy(nn.Module):
    """Takes the action of the highest value, and a random one now and then."""

    def __init__(self, values: nn.Module) -> None:
        super().__init__()
        self.values = values

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        best = self.values(observation).argmax(-1)
        return torch.where(torch.rand(best.shape) < EPSILON, torch.randint_like(best, 2), best)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=40_000)
    parser.add_argument("--folder", default="runs/dqn", help="where TensorBoard reads")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    values = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2))
    target = copy.deepcopy(values)
    policy = Greedy(values)
    optimizer = torch.optim.Adam(values.parameters(), lr=1e-3)
    # A frame is sampled 32 times, on average, so the collector waits for the learner.
    limiter = RateLimiter.sample_to_insert_ratio(
        32, min_size_to_sample=1000, error_buffer=32 * FRAMES_PER_BATCH
    )
    buffer = ReplayBuffer(storage=LazyTensorStorage(50_000), batch_size=BATCH, limiter=limiter)
    with SummaryWriter(arguments.folder) as writer:
        # The same object takes what the collector, the evaluator and the learner have to say.
        collector = AsyncCollector(
            "CartPole-v1",
            policy,
            frames_per_batch=FRAMES_PER_BATCH,
            total_frames=arguments.frames,
            init_random_frames=1000,
            replay_buffer=buffer,
            logger=writer,
            log_names="cleanrl",
            seed=0,
        )
        with (
            collector,
            Evaluator(
                "CartPole-v1", policy, num_trajectories=10, logger=writer, seed=1
            ) as evaluator,
        ):
            collector.start()
            updates = 0
            while collector.is_running():
                batch = buffer.sample()
                with torch.no_grad():
                    following = target(batch["next", "observation"]).max(-1).values
                    wanted = batch["next", "reward"].squeeze(-1) + 0.99 * following * ~batch[
                        "next", "terminated"
                    ].squeeze(-1)
                chosen = (
                    values(batch["observation"])
                    .gather(-1, batch["action"].unsqueeze(-1))
                    .squeeze(-1)
                )
                loss = nn.functional.smooth_l1_loss(chosen, wanted)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                updates += 1
                if updates % 500 == 0:
                    target.load_state_dict(values.state_dict())
                    writer.add_scalar("losses/td_loss", loss.item(), buffer.write_count)
                if updates % 10 == 0:
                    collector.update_policy_weights_()
                if updates % 2000 == 0:
                    evaluator.trigger_eval(policy, step=buffer.write_count)
            result = evaluator.evaluate(policy, step=buffer.write_count)
    print(
        f"{updates} updates, mean return: {result['eval/reward']:.1f}, logged in {arguments.folder}"
    )


if __name__ == "__main__":
    main()
