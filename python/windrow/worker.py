"""A worker somewhere else: ``python -m windrow.worker``, which a launcher starts.

It reads the invitation of its collector from the standard input, connects to it, and works for it
until the collector ends.
"""

from __future__ import annotations

import os
import sys

from windrow.processes import worker
from windrow.processes.start import THREADS


def main() -> None:
    """Works for the collector whose invitation stands on the standard input."""
    invitation = sys.stdin.readline()
    if not invitation.strip():
        sys.exit(
            "python -m windrow.worker is started by a launcher, which writes the invitation of a collector to its standard input"
        )
    for name in THREADS:
        os.environ.setdefault(name, "1")
    worker.serve(invitation)


if __name__ == "__main__":
    main()
