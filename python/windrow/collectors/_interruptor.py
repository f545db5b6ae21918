from __future__ import annotations

import threading
import time
import weakref
from typing import Any, Protocol

from windrow._windrow import CollectorCore


class Interrupts(Protocol):
    """Says whether batches are cut short."""

    def collection_stopped(self) -> bool:
        """Whether they are, for now."""
        ...


class Interruptor:
    """Cuts batches short, from any thread: those of the collectors that were built with it.

    A batch that is being collected ends at its next step; those that follow have one step for each
    environment, until :meth:`start_collection`. A batch of one worker, or of workers side by side,
    keeps its shape: where no frame was recorded, trajectory ids are -1 and
    ``("collector", "mask")`` is False.
    """

    def __init__(self) -> None:
        self._stopped = False
        self._cores: weakref.WeakSet[CollectorCore] = weakref.WeakSet()

    def __getstate__(self) -> dict[str, Any]:
        # A copy cuts nothing short until it is given to a collector.
        return {"_stopped": self._stopped}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _cores=weakref.WeakSet())

    def register(self, core: CollectorCore) -> None:
        """Adds a collector."""
        self._cores.add(core)
        core.cut(self._stopped)

    def stop_collection(self) -> None:
        """Cuts batches short."""
        self._set(True)

    def start_collection(self) -> None:
        """Collects whole batches again."""
        self._set(False)

    def collection_stopped(self) -> bool:
        """Whether batches are cut short."""
        return self._stopped

    def _set(self, stopped: bool) -> None:
        self._stopped = stopped
        for core in self._cores:
            core.cut(stopped)


#: TorchRL's name.
_Interruptor = Interruptor


def follow(interruptor: Interrupts, core: CollectorCore) -> None:
    """Cuts the batches of a collector short whenever an interruptor says so. A thread polls
    anything but an :class:`Interruptor`, and ends with the collector.
    """
    if isinstance(interruptor, Interruptor):
        interruptor.register(core)
        return

    found = weakref.ref(core)

    def ask() -> None:
        while (collector := found()) is not None and not collector.is_ending():
            collector.cut(bool(interruptor.collection_stopped()))
            del collector
            time.sleep(0.005)

    threading.Thread(target=ask, name="windrow-interruptor", daemon=True).start()
