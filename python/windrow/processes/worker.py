"""A worker process: ``python -m windrow.processes.worker``, which collectors start."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from typing import NoReturn

from windrow._windrow import run_worker
from windrow.processes import setup


def main() -> None:
    """Runs a worker that was started, and ends the process with it."""
    # What this process starts finds its modules as if the collector's had started it.
    path = os.environ.pop("WINDROW_PYTHONPATH", "")
    if path:
        os.environ["PYTHONPATH"] = path
    else:
        os.environ.pop("PYTHONPATH", None)
    serve()


def serve(invitation: str | None = None) -> NoReturn:
    """Runs this process as a worker, of the collector elsewhere that has sent an ``invitation`` if
    there is one, and ends it.
    """
    # A crash leaves the stack in the last words of this process.
    faulthandler.enable()
    if hasattr(signal, "SIGUSR2"):
        faulthandler.register(signal.SIGUSR2, chain=False)
    # The collector's process handles it, and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    setup.worker.is_process = True
    status = run_worker(invitation)
    if status is None:
        sys.exit("windrow.processes.worker is started by collectors of windrow, which talk to it")
    # Locks that environments have made are freed: multiprocessing prints a warning of those that
    # are left.
    if util := sys.modules.get("multiprocessing.util"):
        util._run_finalizers(0)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            # Environments may have put anything in its place, None too.
            pass
    # Environments are closed. Handlers at the exit belong to the program that the collector is in.
    os._exit(status)


if __name__ == "__main__":
    # Under its own name, by which warnings are filtered.
    from windrow.processes import worker

    worker.main()
