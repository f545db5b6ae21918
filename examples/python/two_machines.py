"""Workers that a command starts, each of which could be on another machine: here on two addresses
of this one. One is killed, and another takes its place; every row is computed again.

    pip install . torch tensordict
    python examples/python/two_machines.py

For real machines, the commands begin with ``ssh``, and ``address`` is one of this machine that they
can reach.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import torch

from windrow.collectors import MultiAsyncCollector

#: An address of this machine for each worker, as different machines would see it by different ones.
ADDRESSES = ("127.0.0.1", "127.0.0.2")


class Walk(gymnasium.Env[Any, Any]):
    """A walk on a line; what follows a row can be computed from it."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    place = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = float(self.np_random.integers(-3, 4))
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place += 2.0 * float(action) - 1.0
        return self.seen(), -abs(self.place), abs(self.place) >= 5, False, {}

    def seen(self) -> Any:
        return np.array([self.place], dtype=np.float32)


class Started:
    """A worker's command."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ended(self) -> str | None:
        status = self.process.poll()
        return None if status is None else f"its command ended with status {status}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Machines:
    """Starts each worker by the command of its machine. ``CommandLauncher`` does the same where one
    command serves all.
    """

    def __init__(self, command: list[str], address: str) -> None:
        self.command, self.address = command, f"{address}:0"
        self.started: list[tuple[int, subprocess.Popen[str]]] = []

    def start(self, invitation: str) -> Started:
        process = subprocess.Popen(self.command, stdin=subprocess.PIPE, text=True)
        assert process.stdin is not None
        # It holds a secret: the standard input is seen by nobody else.
        process.stdin.write(invitation + "\n")
        process.stdin.flush()
        self.started.append((process.pid, process))
        return Started(process)


def wrong_rows(batch: Any) -> int:
    """How many rows are not what follows from their observation and action."""
    moved = batch["observation"].squeeze(-1) + 2.0 * batch["action"] - 1.0
    right = batch["next", "observation"].squeeze(-1) == moved
    right &= batch["next", "reward"].squeeze(-1) == -moved.abs()
    right &= batch["next", "terminated"].squeeze(-1) == (moved.abs() >= 5)
    return int((~right).sum())


def collect(address: str, frames: int) -> tuple[int, int, int]:
    """Frames from two workers that connect to ``address``, of which one is killed; rows that are
    wrong, and workers that were started.
    """
    machines = Machines([sys.executable, "-m", "windrow.worker"], address)
    rows = wrong = 0
    collector = MultiAsyncCollector(
        [Walk, Walk],
        frames_per_batch=100,
        total_frames=frames,
        on_loss=3,
        launcher=machines,
        seed=0,
    )
    with collector:
        for number, batch in enumerate(collector):
            rows += batch.numel()
            wrong += wrong_rows(batch)
            if number == 3:
                machines.started[0][1].send_signal(signal.SIGKILL)
    return rows, wrong, len(machines.started)


def main() -> None:
    parser = argparse.ArgumentParser(description="Workers that a command starts.")
    parser.add_argument("--frames", type=int, default=4000, help="frames from each address")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for address in ADDRESSES:
        rows, wrong, started = collect(address, arguments.frames)
        print(f"{address}: {rows} rows, {wrong} wrong, {started} workers started")


if __name__ == "__main__":
    main()
