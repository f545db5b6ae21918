"""Starting workers somewhere else."""

from __future__ import annotations

from typing import Protocol

from windrow._windrow import CommandLauncher as CommandLauncher


class Launched(Protocol):
    """A worker that was started somewhere else."""

    def ended(self) -> str | None:
        """How it ended, in words that follow "the worker was started, but"; None while it runs."""

    def kill(self) -> None:
        """Ends it, if it has not ended."""


class Launcher(Protocol):
    """Starts the workers of a collector somewhere else, given as its argument ``launcher``.

    Each worker connects to its collector, and is then a worker as one in a process of this machine:
    its losses count, and another one is started in its place. Attributes ``address`` (where the
    collector waits, as ``"host:port"``; ``"127.0.0.1:0"`` without it) and ``patience`` (seconds
    from the start of a worker until it connects; 60 without it) are read once.
    """

    def start(self, invitation: str) -> Launched:
        """Starts a worker that is to answer ``invitation``, one line of JSON with its number
        (``worker``), the collector's ``address``, a secret ``token`` and, where the connection is
        encrypted, the collector's ``certificate``: ``python -m windrow.worker`` reads it from its
        standard input. Called in a thread of its own, which may wait.
        """
        ...
