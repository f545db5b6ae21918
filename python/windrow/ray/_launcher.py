"""Workers of collectors in actors of Ray."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from windrow import _needs
from windrow._lazy import module
from windrow._warnings import warn
from windrow.ray import _session

_worker_actor = module("windrow.ray._worker_actor")


class RayLauncher:
    """Starts each worker of a collector in an actor of Ray, on any machine of a cluster, as the
    argument ``launcher`` of :class:`~windrow.collectors.MultiSyncCollector` and others.

    A worker runs in its actor's process: whatever ends the actor ends the worker, which the
    collector notices at once, and an environment may use Ray. Batches and weights do not go through
    Ray but over a connection of each worker to the collector, encrypted between machines.

    Several collectors may use one launcher.

    Args:
        remote_configs: options of ``ray.remote``, such as ``num_cpus``, ``num_gpus``, ``memory``
            and ``resources``, for all actors or a list with an entry for each; by default each
            claims one CPU.
        ray_init_config: arguments of ``ray.init``, where Ray does not run yet. A Ray that was
            started here ends with :meth:`close`, or with the program.
        address: where the collector waits for workers, as ``"host:port"``; by default, a port of
            this machine at the address by which Ray knows it.
        patience: seconds from the start of a worker until it connects.
        num_threads: how many threads libraries such as torch use in each worker; by default Ray
            says, which is as many as the actor claims CPUs.

    Raises:
        ImportError: Ray is not installed.

    Example:
        >>> from windrow.collectors import MultiAsyncCollector
        >>> from windrow.ray import RayLauncher
        >>> launcher = RayLauncher({"num_cpus": 2})  # doctest: +SKIP
        >>> collector = MultiAsyncCollector([make_env] * 8, policy, frames_per_batch=1000, launcher=launcher)  # doctest: +SKIP
    """

    def __init__(
        self,
        remote_configs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        *,
        ray_init_config: Mapping[str, Any] | None = None,
        address: str | None = None,
        patience: float = _session.PATIENCE,
        num_threads: int | None = None,
    ) -> None:
        self._configs = remote_configs
        self._advice = "take fewer actors, or let each claim less by remote_configs"
        self._ray, self._release = _session.acquire(type(self).__name__, ray_init_config)
        self.address = f"{self._own_host()}:0" if address is None else address
        self._patience = patience
        self._threads = num_threads
        #: Handles of the actors, by the numbers of their workers. One that takes the place of
        #: another has its number; and so have those of another collector with this launcher, whose
        #: own go on.
        self.actors: list[Any] = []
        #: What each actor answers when it is asked where it is: the answer, or the reference to it.
        self._places: dict[int, Any] = {}
        self._lock = threading.Lock()

    def _own_host(self) -> str:
        host = self._ray.util.get_node_ip_address()
        return f"[{host}]" if ":" in host else host

    @property
    def patience(self) -> float:
        """Seconds from the start of a worker until it connects, and some more, in which its actor
        says why it does not.
        """
        return self._patience + _session.FAREWELL

    def options(self, worker: int) -> dict[str, Any]:
        """The options of worker ``worker``'s actor.

        Raises:
            ValueError: ``remote_configs`` has fewer entries.
        """
        given = self._configs
        if given is None or isinstance(given, Mapping):
            return dict(given or {})
        if worker >= len(given):
            raise ValueError(
                f"remote_configs has {len(given)} entries, and none for worker {worker}"
            )
        return dict(given[worker] or {})

    def check_claims(self, workers: int) -> None:
        """Raises RuntimeError where Ray has less than the actors of all ``workers`` claim together:
        they would wait for ever.
        """
        _session.check_claims(
            self._ray,
            [self.options(worker) for worker in range(workers)],
            self._advice,
        )

    def start(self, invitation: str) -> RunningActor:
        """Starts the actor of the worker that is to answer ``invitation``.

        Raises:
            RuntimeError: Ray has less than all actors claim together.
        """
        worker = int(json.loads(invitation)["worker"])
        self.check_claims(max(worker + 1, len(self.actors)))
        actor = _session.actor(self._ray, _worker_actor.WorkerActor, self.options(worker))
        # Answered before it works.
        place: object = actor.place.remote()
        with self._lock:
            self.actors += [None] * (worker + 1 - len(self.actors))
            self.actors[worker] = actor
            self._places[worker] = place
        return RunningActor(
            self, worker, actor, place, actor.work.remote(invitation, self._threads)
        )

    def places(self) -> list[tuple[int | None, str | None]]:
        """The process of each worker's actor, and the node that it is on; None where there is none,
        or where it has not answered yet.
        """
        with self._lock:
            for worker, place in self._places.items():
                if not isinstance(place, tuple):
                    with contextlib.suppress(self._ray.exceptions.RayError):
                        self._places[worker] = self._ray.get(place, timeout=0)
            found = [self._places.get(worker) for worker in range(len(self.actors))]
        return [place if isinstance(place, tuple) else (None, None) for place in found]

    def forget(self, worker: int, actor: object) -> None:
        """Notes that ``actor``, of worker ``worker``, has ended."""
        with self._lock:
            if self.actors[worker] is actor:
                self._places.pop(worker, None)

    def close(self) -> None:
        """Ends Ray, if this has started it and nobody else uses it. Actors end with their
        collector.
        """
        self._release()


def evaluator_launcher(
    name: str, num_gpus: float | None, ray_kwargs: Mapping[str, Any] | None
) -> RayLauncher:
    """The launcher of an evaluator, a ``name`` of windrow, whose actor claims ``num_gpus``, by
    default a GPU if Ray has any.

    Raises:
        ImportError: Ray is not installed.
        RuntimeError: Ray has less than the actor claims.
    """
    _needs.module(name, "ray", "ray")
    made = RayLauncher()
    try:
        if num_gpus is None:
            num_gpus = min(1, int(made._ray.cluster_resources().get("GPU", 0)))
        made._configs = {"num_gpus": num_gpus, **(ray_kwargs or {})}
        made._advice = "let it claim less by num_gpus and ray_kwargs"
        made.check_claims(1)
    except BaseException:
        made.close()
        raise
    return made


#: Actors that ended with their Ray. While that shuts down, dropping one of its references would end
#: the program.
_LEFT: list[RunningActor] = []


class RunningActor:
    """An actor whose worker was started."""

    def __init__(
        self, launcher: RayLauncher, worker: int, actor: object, place: object, working: object
    ) -> None:
        self._launcher, self._worker, self._actor, self._working = launcher, worker, actor, working
        #: What it answers first, until it has.
        self._place: Any = place
        self._began, self._is_told = time.monotonic(), False

    def ended(self) -> str | None:
        """How it ended, in words; None while it runs."""
        ray = self._launcher._ray
        if not ray.is_initialized():
            return "Ray was shut down, and its actor with it"
        if not ray.wait([self._working], timeout=0)[0]:
            return self._why_it_waits()
        try:
            return f"its actor returned with status {_session.get(self._working)}"
        except ray.exceptions.RayError as error:
            return f"its actor was lost: {_first_reason(error)}"
        except Exception as error:
            return f"its actor raised {type(error).__name__}: {error}"

    def _why_it_waits(self) -> str | None:
        """What the actor lacks, where Ray has not started it within the patience of its launcher; a
        warning says so before.
        """
        if self._place is not None and self._launcher._ray.wait([self._place], timeout=0)[0]:
            self._place = None
        waited, patience = time.monotonic() - self._began, self._launcher._patience
        if self._place is None or waited < min(patience, _session.TELL_AFTER):
            return None
        lacks = _session.wants(self._launcher._ray, self._launcher.options(self._worker))
        if waited >= patience:
            return f"Ray has not started its actor within {patience:g} s: {lacks}"
        if not self._is_told:
            self._is_told = True
            warn(f"Ray has not started the actor of worker {self._worker} yet: {lacks}")
        return None

    def kill(self) -> None:
        """Ends it."""
        if self._launcher._ray.is_initialized():
            _session.kill([self._actor])
            self._launcher.forget(self._worker, self._actor)
        else:
            _LEFT.append(self)


def _first_reason(error: Exception) -> str:
    """The line of Ray's message that says why an actor was lost."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reasons = [line for line in lines if line.startswith("The actor is dead because")]
    return (reasons or lines or [type(error).__name__])[0]
