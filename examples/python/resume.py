"""DQN on CartPole that can be killed at any moment, and started again as if nothing had happened.

The program plays both parts. It runs its own training without a break first, then again in a process that it kills five times by
signal 9, each time at a random moment, and starts again. The weights at the end are the same, to the last bit.

    pip install . torch
    python examples/python/resume.py
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from windrow.collectors import Collector
from windrow.data import LazyTensorStorage, ReplayBuffer
from windrow.envs import GymEnv, StepCounter, TransformedEnv

FRAMES_PER_BATCH = 50
BATCHES_PER_CHECKPOINT = 10
KILLS = 5

#: A fork has imported torch already.
PROCESSES: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


class EGreedy(nn.Module):
    """The best action, or a random one with probability ``eps``."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("eps", torch.tensor(1.0))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        best = self.network(observation).argmax(-1)
        is_random = torch.rand_like(observation[..., 0]) < self.eps
        return torch.where(is_random, torch.randint_like(best, 2), best)


class Training:
    """All that learns, and all that collects."""

    def __init__(self, frames: int, folder: Path) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.frames, self.checkpoint, self.ledger = frames, folder / "checkpoint.pt", folder / "collected.txt"
        self.network = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
        self.target = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
        self.target.load_state_dict(self.network.state_dict())
        self.policy = EGreedy(self.network)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-3)
        self.buffer = ReplayBuffer(storage=LazyTensorStorage(20_000), batch_size=128, seed=0)
        self.lengths: list[int] = []
        env = TransformedEnv(GymEnv("CartPole-v1", categorical_action_encoding=True), StepCounter())
        self.collector = Collector(
            env, self.policy, frames_per_batch=FRAMES_PER_BATCH, total_frames=frames, init_random_frames=1000, seed=0
        )

    def state(self) -> dict[str, Any]:
        return {
            "collector": self.collector.state_dict(),
            "buffer": self.buffer.state_dict(),
            "target": self.target.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "policy": self.policy.state_dict(),
            "generator": torch.get_rng_state(),
            "lengths": self.lengths,
        }

    def save(self) -> None:
        """Writes a checkpoint. Under its name there is a whole one at any moment: the one before, then this one."""
        unfinished = self.checkpoint.with_suffix(".unfinished")
        with unfinished.open("wb") as file:
            torch.save(self.state(), file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.checkpoint)

    def load(self) -> None:
        state = torch.load(self.checkpoint)
        # With the weights that have collected the last batch; those of the learner are newer.
        self.collector.load_state_dict(state["collector"])
        self.policy.load_state_dict(state["policy"])
        self.target.load_state_dict(state["target"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.buffer.load_state_dict(state["buffer"])
        self.lengths = state["lengths"]
        torch.set_rng_state(state["generator"])

    def run(self) -> None:
        if self.checkpoint.exists():
            self.load()
        with self.collector, self.ledger.open("a") as ledger:
            for number, batch in enumerate(self.collector, start=1):
                end = self.collector.stats()["frames"]
                ledger.write(f"{end - batch.numel()}\n")
                ledger.flush()
                self.learn(batch, end)
                if number % BATCHES_PER_CHECKPOINT == 0:
                    self.save()
            self.save()

    def learn(self, batch: Any, frames: int) -> None:
        self.buffer.extend(batch.select("observation", "action", "next"))
        ended = batch["next", "done"].flatten()
        self.lengths += batch["next", "step_count"].flatten()[ended].tolist()
        self.policy.eps.fill_(max(0.02, 1 - 2 * frames / self.frames))
        if frames < 1000:
            return
        for _ in range(12):
            sample = self.buffer.sample()
            following = sample["next"]
            with torch.no_grad():
                best = self.network(following["observation"]).argmax(-1, keepdim=True)
                value = self.target(following["observation"]).gather(-1, best)
                goal = following["reward"] + 0.99 * value * ~following["terminated"]
            value = self.network(sample["observation"]).gather(-1, sample["action"].reshape(-1, 1))
            loss = nn.functional.smooth_l1_loss(value, goal)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(self.target.parameters(), self.network.parameters(), strict=True):
                    slow.lerp_(fast, 0.01)


def train(frames: int, folder: Path) -> None:
    Training(frames, folder).run()


def started(frames: int, folder: Path) -> Any:
    """The training in a process of its own."""
    process = PROCESSES.Process(target=train, args=(frames, folder))
    process.start()
    return process


def finish(process: Any) -> None:
    process.join()
    if process.exitcode != 0:
        raise SystemExit("the training failed")


def saved(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(folder / "checkpoint.pt")
    return state


def again(folder: Path) -> int:
    """How many frames were collected again although a checkpoint had them."""
    starts = [int(line) for line in (folder / "collected.txt").read_text().split()]
    every = FRAMES_PER_BATCH * BATCHES_PER_CHECKPOINT
    frames = 0
    for before, start in zip(starts, starts[1:], strict=False):
        if start <= before:
            # A new process: it goes on from the last checkpoint, which has all frames up to a multiple of its distance.
            frames += max(0, before // every * every - start)
    return frames


def compare(frames: int, folder: Path) -> None:
    whole, cut = folder / "whole", folder / "cut"
    whole.mkdir()
    cut.mkdir()
    began = time.monotonic()
    finish(started(frames, whole))
    seconds = time.monotonic() - began
    kills = 0
    for _ in range(KILLS):
        process = started(frames, cut)
        time.sleep(random.uniform(0.3, 1.0) * seconds / KILLS)
        kills += process.is_alive()
        process.kill()
        process.join()
    finish(started(frames, cut))
    one, other = saved(whole), saved(cut)
    same = all(torch.equal(value, other["policy"][name]) for name, value in one["policy"].items())
    lengths = one["lengths"]
    some = max(1, min(20, len(lengths) // 2))
    print(f"mean return: {sum(lengths[:some]) / some:.0f} at the start, {sum(lengths[-some:]) / some:.0f} at the end, in {seconds:.0f} s")
    print(f"killed {kills} times; frames before a checkpoint that were collected again: {again(cut)}")
    print(f"the weights are the same: {same and lengths == other['lengths']}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Learns with DQN, is killed, and goes on.")
    parser.add_argument("--frames", type=int, default=20_000, help="frames in all, a multiple of 50")
    parser.add_argument("--folder", type=Path, help="train only, with the checkpoint in this folder")
    arguments = parser.parse_args()
    if arguments.folder is not None:
        return train(arguments.frames, arguments.folder)
    with tempfile.TemporaryDirectory() as folder:
        compare(arguments.frames, Path(folder))


if __name__ == "__main__":
    main()
