"""A few deaths of processes that write; ``cargo xtask formats`` has more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_process_that_is_killed_leaves_whole_episodes_and_all_that_it_acknowledged() -> None:
    # In a process of its own, which forks and has no other threads.
    command = [sys.executable, "-m", "killed_sinks", "--kills", "5"]
    told = subprocess.run(
        command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert told.stdout.count(" 5 kills, ") == 4 and told.stdout.count(", 0 violations") == 4
