"""Processes that write data sets are killed at any moment: every episode that a data set has is
whole, and it has those that were acknowledged.

``python -m killed_sinks --kills 200`` runs this for each format, or for those that are named.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from tensordict import TensorDict

from formats import LONGEST, length
from windrow import data

#: How many acknowledgements a process lives to tell, and seconds after that, at most.
_ACKNOWLEDGED, _FURTHER = 12, 0.03
#: Deaths of processes that write one data set.
_TOGETHER = 10

_MEMORY = "/dev/shm"

Sinks = dict[str, Callable[[Path], Any]]
SINKS: Sinks = {
    "parquet": lambda path: data.ParquetSink(path, rows_per_file=40),
    "safetensors": lambda path: data.SafetensorsSink(path, rows_per_file=40),
    "minari": lambda path: data.MinariSink(path, rows_per_file=40),
    "lerobot": lambda path: data.LeRobotSink(path, rows_per_file=40),
}


def batch(first: int, count: int) -> Any:
    """Episodes ``[time]``, whose values are their numbers and steps."""
    rows = [
        (episode, step)
        for episode in range(first, first + count)
        for step in range(length(episode))
    ]
    values = torch.tensor(rows, dtype=torch.float32)
    made = TensorDict({"observation": values, "action": values + 0.5}, [len(rows)])
    made["next", "observation"] = values + torch.tensor([0.0, 1.0])
    made["next", "reward"] = values[:, 1:]
    made["next", "done"] = torch.tensor([[step + 1 == length(episode)] for episode, step in rows])
    made["next", "truncated"] = made["next", "done"]
    made["collector", "traj_ids"] = values[:, 0].long()
    made["pixels"] = values.sum(1).to(torch.uint8)[:, None, None, None].expand(-1, 16, 16, 3)
    return made


def in_child(work: Callable[[int], None]) -> tuple[int, int]:
    """The process that does ``work``, and the end of a pipe to whose other end it writes."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return child, reader
    try:
        os.close(reader)
        work(writer)
    except BaseException:
        os.write(writer, traceback.format_exc().encode())
    os._exit(0)


def write(make: Callable[[Path], Any], path: Path, pipe: int) -> None:
    """Writes episodes without end, and says after each batch how many frames are acknowledged."""
    sink = make(path)
    for first in itertools.count(sink.num_episodes, 3):
        sink.extend(batch(first, 3))
        os.write(pipe, b"%d\n" % sink.num_rows)


def check(make: Callable[[Path], Any], path: Path, pipe: int) -> None:
    """Says how many frames can be read, after a look at all of them, and how many a sink
    acknowledges that goes on with them.
    """
    try:
        found = data.ReplayBuffer.from_dataset(path)[:]
    except ValueError as error:
        # The process was killed before its first episode.
        if "has no frames" not in str(error):
            raise
        os.write(pipe, b"0 %d" % make(path).num_rows)
        return
    rows = len(found)
    expected = batch(0, int(found["collector", "traj_ids"][-1]) + 1) if rows else found
    for key in ("observation", "action", ("next", "reward"), ("next", "done")):
        if rows and not torch.equal(found[key], expected[key]):
            raise AssertionError(
                f"{key}: expected {len(expected)} frames of whole episodes, got {rows} others"
            )
    os.write(pipe, b"%d %d" % (rows, make(path).num_rows))


def read(pipe: int) -> bytes:
    """All that is written to the other end."""
    with os.fdopen(pipe, "rb") as file:
        return file.read()


def life(make: Callable[[Path], Any], path: Path, random: random.Random) -> tuple[int, str | None]:
    """Lets a process write, kills it, and looks at what it has left: frames, and what is wrong."""
    child, pipe = in_child(lambda pipe: write(make, path, pipe))
    told, least = b"", random.randrange(1, _ACKNOWLEDGED)
    # The end of the pipe: the process failed.
    while told.count(b"\n") < least and (more := os.read(pipe, 100)):
        told += more
    time.sleep(random.random() * _FURTHER)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    told += read(pipe)
    *acknowledged, _ = told.split(b"\n")
    if not acknowledged or not acknowledged[-1].isdigit():
        return 0, f"the writer failed: {told.decode()}"
    least = int(acknowledged[-1])
    if not any(
        file.is_file()
        for pattern in ("data/*.parquet", "*.safetensors", "data/metadata.json", "meta/info.json")
        for file in path.glob(pattern)
    ):
        return 0, None if least == 0 else f"nothing is there of {least} frames"
    child, pipe = in_child(lambda pipe: check(make, path, pipe))
    os.waitpid(child, 0)
    found = read(pipe).decode()
    try:
        rows, counted = map(int, found.split())
    except ValueError:
        return 0, f"the data set cannot be read: {found}"
    # A file may have become visible that the process did not live to tell of.
    if rows != counted or rows < least or rows > least + 40 + 6 * LONGEST:
        return (
            rows,
            f"{rows} frames can be read, the sink counts {counted}, and the process has acknowledged {least}",
        )
    return rows, None


def run(name: str, make: Callable[[Path], Any], kills: int, seed: int) -> list[str]:
    """Kills processes that write data sets, several of them one after the other the same one; tells
    what came of it.
    """
    chance, violations, total = random.Random(seed), [], 0
    began = time.monotonic()
    # A kill harms files in memory as it does those on a disk, and writes take less time.
    with tempfile.TemporaryDirectory(dir=_MEMORY if os.path.isdir(_MEMORY) else None) as folder:
        for first in range(0, kills, _TOGETHER):
            rows = 0
            for _ in range(first, min(first + _TOGETHER, kills)):
                now, violation = life(make, Path(folder) / str(first), chance)
                if violation is None and now < rows:
                    violation = f"{now} frames can be read, and {rows} could before"
                rows = max(rows, now)
                if violation is not None:
                    violations.append(f"{name}: {violation}")
            total += rows
    if total == 0:
        violations.append(f"{name}: no process lived until it had written a file")
    print(
        f"{name}: {kills} kills, {total} frames readable, {len(violations)} violations, {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return violations


def main() -> int:
    """Tells what came of it; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description="Kills processes that write data sets.")
    parser.add_argument("--kills", type=int, default=50, help="of each format; 50 unless given")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("formats", nargs="*", help=f"of {', '.join(SINKS)}; all unless given")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for module in ("pyarrow.parquet", "safetensors.numpy", "minari", "av"):
        # Once, not in each process.
        importlib.import_module(module)
    pyarrow.array(np.zeros(1))
    violations = []
    for name in arguments.formats or SINKS:
        violations += run(name, SINKS[name], arguments.kills, arguments.seed)
    for violation in violations[:20]:
        print(f"violation: {violation}")
    print(f"seed {arguments.seed}")
    return int(bool(violations))


if __name__ == "__main__":
    sys.exit(main())
