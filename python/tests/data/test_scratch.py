"""Frames in a file, where nobody says in which."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from windrow.data import LazyMemmapStorage, ReplayBuffer

PROGRAM = """
import time
import torch
from tensordict import TensorDict
from windrow.data import LazyMemmapStorage, ReplayBuffer

buffer = ReplayBuffer(storage=LazyMemmapStorage(1000), batch_size=10)
buffer.extend(TensorDict({"number": torch.arange(100)}, [100]))
buffer.empty()
# Others, so that a file of another layout takes its place.
buffer.extend(TensorDict({"other": torch.arange(100.0)}, [100]))
assert buffer.sample()["other"].max() < 100
print("filled", flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="files that are open have names there")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_stays_behind_when_the_process_is_killed(
    tmp_path: Path, end: signal.Signals
) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert program.stdout.readline() == "filled\n"
        program.send_signal(end)
        assert program.wait(timeout=60) != 0
    finally:
        program.kill()
    assert [
        path.name
        for path in tmp_path.iterdir()
        if path.name.startswith((".windrow", "windrow", ".tmp"))
    ] == []


def test_entries_name_the_file_that_they_are_in(tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=LazyMemmapStorage(10, scratch_dir=tmp_path))
    buffer.extend(TensorDict({"number": torch.arange(3), ("b", "c"): torch.zeros(3)}, [3]))
    kept = buffer._storage._storage
    assert kept["number"].filename == kept["b", "c"].filename
    assert Path(kept["number"].filename).stat().st_size > 0 and kept["number"].tolist() == [0, 1, 2]
