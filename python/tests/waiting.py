"""The threads that there are, and waiting for what is to come."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def threads() -> dict[str, str]:
    """Numbers and names of the threads of windrow that there are, where the system tells."""
    tasks = Path("/proc/self/task")
    found = {}
    for task in tasks.iterdir() if tasks.exists() else []:
        # One that has ended meanwhile has no name.
        with contextlib.suppress(OSError):
            found[task.name] = (task / "comm").read_text().strip()
    return {number: name for number, name in found.items() if name.startswith("windrow")}


def runs(pid: int) -> bool:
    """Whether a process has not ended. Its file may go away before it is opened, and before it is
    read.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def killed(pid: int | None) -> bool:
    """Kills a process; whether there was one. That of a worker may have ended since somebody has
    told its number.
    """
    with contextlib.suppress(ProcessLookupError):
        return pid is not None and os.kill(pid, signal.SIGKILL) is None
    return False


def until(is_so: Callable[[], Any]) -> None:
    """Waits until something is so."""
    assert comes(is_so)


def ends(pid: int) -> bool:
    """Whether a process ends, be it that nobody has waited for it yet."""
    return comes(lambda: not runs(pid))


def comes(is_so: Callable[[], Any], seconds: float = 60) -> bool:
    """Whether something is so within a time."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
