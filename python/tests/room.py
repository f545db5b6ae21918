"""What this process holds of the system."""

from __future__ import annotations

import os
import time
from pathlib import Path

#: Seconds that the system may take to clear away what has ended.
PATIENCE = 60.0
#: Of Python and PyTorch: others that run beside this program come and go.
OTHERS = ("sem.mp-", "psm_", "torch_")


def room() -> dict[str, int]:
    """Counts of what has to be given back."""
    maps = Path("/proc/self/maps").read_text().count("/memfd:")
    shared = [name for name in os.listdir("/dev/shm") if not name.startswith(OTHERS)]
    return {
        "processes": children(),
        "threads": len(_threads()),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "segments": maps + len(shared),
    }


def back_to(before: dict[str, int]) -> dict[str, int]:
    """What is held once it is no more than ``before``, or after a while."""
    begun = time.monotonic()
    while (now := room()) != before and time.monotonic() - begun < PATIENCE:
        time.sleep(0.001)
    return now


def children() -> int:
    """Processes that this one, or the processes that fork for it, have started, also those that
    have ended and that nobody has waited for. Those that fork stay, and do not count.
    """
    parents: dict[str, str] = {}
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[process] = (
                Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1]
            )
        except OSError:
            continue
    own = {process for process, parent in parents.items() if parent == str(os.getpid())}
    forking = {process for process in own if _forks(process)}
    return len(own - forking) + sum(parent in forking for parent in parents.values())


def _forks(process: str) -> bool:
    try:
        return b"windrow.processes.nursery" in Path(f"/proc/{process}/cmdline").read_bytes().split(
            b"\0"
        )
    except OSError:
        return False


def _threads() -> list[str]:
    """The threads of windrow: those of torch stay."""
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            name = Path(f"/proc/self/task/{task}/comm").read_text()
        except OSError:
            continue
        found += [name] if name.startswith("windrow") else []
    return found
