"""The actor of Ray that runs a worker of a collector. It imports torch only if its environments or
its policy do.
"""

from __future__ import annotations

import os

import ray
from windrow._windrow import run_worker
from windrow.processes.start import THREADS


class WorkerActor:
    """The process of a worker. It has no groups of threads: what is called runs in its main thread,
    as environments may expect.
    """

    def place(self) -> tuple[int, str]:
        """This process, and the node that it is on."""
        return os.getpid(), ray.get_runtime_context().get_node_id()

    def work(self, invitation: str, threads: int | None) -> int | None:
        """Works for the collector that has sent ``invitation`` until that ends, with libraries that
        use ``threads`` threads. Returns the exit status.
        """
        if threads is not None:
            os.environ.update(dict.fromkeys(THREADS, str(threads)))
        return run_worker(invitation)
