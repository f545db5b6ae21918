"""Kills a training at random moments, starts it again, and compares: the weights at the end are
those of a run without a break.

    pip install '.[torch,gymnasium]'
    python examples/python/resume.py
    python examples/python/resume.py sac.py --frames 5000 --kills 20

The training is one of the programs beside this one that take `--checkpoint`. It runs once without a
break, then in a process that is killed by signal 9 and goes on from its last checkpoint, until it
is done.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import runpy
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

#: A fork has imported torch already.
PROCESSES: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


def train(script: str, frames: int, checkpoint: Path) -> None:
    # Checkpoints are as close as possible, so that there is one to go on from after each kill.
    sys.argv = [script, "--frames", str(frames), "--checkpoint", str(checkpoint), "--every", "0.1"]
    runpy.run_path(script, run_name="__main__")


def started(*arguments: Any) -> Any:
    """The training in a process of its own."""
    process = PROCESSES.Process(target=train, args=arguments)
    process.start()
    return process


def finish(process: Any) -> None:
    process.join()
    if process.exitcode != 0:
        raise SystemExit("the training failed")


def tensors(state: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors of a checkpoint, with their places."""
    entries = (
        state.items()
        if hasattr(state, "items")
        else enumerate(state)
        if isinstance(state, (list, tuple))
        else ()
    )
    for key, value in entries:
        yield from (
            [(f"{name}{key}", value)]
            if isinstance(value, torch.Tensor)
            else tensors(value, f"{name}{key}.")
        )


def compare(script: str, frames: int, kills: int, folder: Path) -> None:
    whole, cut = folder / "whole.pt", folder / "cut.pt"
    began = time.monotonic()
    finish(started(script, frames, whole))
    seconds = time.monotonic() - began
    killed = 0
    for _ in range(kills):
        process = started(script, frames, cut)
        time.sleep(random.uniform(0.3, 1.0) * seconds / kills)
        killed += process.is_alive()
        process.kill()
        process.join()
    print(f"killed {killed} times", flush=True)
    finish(started(script, frames, cut))
    one, other = (
        dict(tensors({key: value for key, value in torch.load(path).items() if key != "collector"}))
        for path in (whole, cut)
    )
    # An episode that goes on after a checkpoint counts as two in the buffer.
    different = [
        name
        for name, value in one.items()
        if not name.startswith("buffer.runs.") and not torch.equal(value, other[name])
    ]
    print(
        f"{len(one)} tensors of weights, optimizers and generators; different: {', '.join(different) or 'none'}"
    )
    print(f"the weights are the same: {not different}")
    if different:
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Kills a training, which goes on.")
    parser.add_argument(
        "script",
        nargs="?",
        default="dqn.py",
        help="the training, one of the programs beside this one",
    )
    parser.add_argument("--frames", type=int, default=20_000, help="frames of the training")
    parser.add_argument("--kills", type=int, default=5)
    arguments = parser.parse_args()
    script = str(Path(__file__).with_name(arguments.script))
    with tempfile.TemporaryDirectory() as folder:
        compare(script, arguments.frames, arguments.kills, Path(folder))


if __name__ == "__main__":
    main()
