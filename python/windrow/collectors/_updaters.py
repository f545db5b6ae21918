"""Weight updaters, by TorchRL's names: each publishes to the one store from which workers take the
newest weights.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, Self, SupportsIndex

from windrow import _needs, modules
from windrow._lazy import module, torch
from windrow._types import Weights
from windrow.policies.weights import copy_weights, weights_of, widened

# Data and buffers come with it.
_session = module("windrow.ray._session")


class Collecting(Protocol):
    """A collector of any class."""

    policy: Any

    def update_policy_weights_(
        self, policy_or_weights: Weights | None = None, *, worker_ids: Any = None
    ) -> None:
        """Gives the policy of the workers other weights."""
        ...


class WeightUpdaterBase:
    """What :meth:`BaseCollector.update_policy_weights_` goes through.

    Subclasses override what :meth:`push_weights` calls: ``_get_server_weights`` returns weights
    where none are given, ``_maybe_map_weights`` changes them, ``all_worker_ids`` and
    ``_skip_update`` choose workers, and ``_sync_weights_with_worker`` publishes to them.
    """

    # Made when first used, since not every subclass calls an `__init__` of this class.
    @cached_property
    def _collectors(self) -> weakref.WeakSet[Any]:
        return weakref.WeakSet()

    @cached_property
    def post_hooks(self) -> list[Callable[[], object]]:
        """What is called after weights were pushed."""
        return []

    def __getstate__(self) -> dict[str, Any]:
        # A copy serves no collector until it is given to one, and has pushed nothing.
        return {
            name: value
            for name, value in self.__dict__.items()
            if name not in ("_collectors", "_newest")
        }

    @classmethod
    def from_policy(cls, policy: torch.nn.Module) -> Self | None:
        """An updater for a policy; None where the class needs to know none."""
        return None

    def init(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing; a subclass may prepare itself here."""

    def register_collector(self, collector: Collecting) -> None:
        """Adds a collector, which weights are then published to."""
        self._collectors.add(collector)

    def register_post_hook(self, hook: Callable[[], object]) -> None:
        """Calls ``hook`` after weights were pushed."""
        self.post_hooks.append(hook)

    @property
    def collector(self) -> Collecting | None:
        """The collector that weights are published to; None before one is registered.

        Raises:
            ValueError: there are several.
        """
        if len(self._collectors) > 1:
            raise ValueError(f"the updater serves {len(self._collectors)} collectors: expected one")
        return next(iter(self._collectors), None)

    @property
    def collectors(self) -> list[Any]:
        """The collectors that weights are published to."""
        return list(self._collectors)

    def push_weights(
        self, policy_or_weights: Weights | None = None, worker_ids: object = None
    ) -> None:
        """Publishes weights to the workers of all collectors, or to ``worker_ids``, then calls the
        hooks.
        """
        self._push_weights(policy_or_weights=policy_or_weights, worker_ids=worker_ids)
        for hook in self.post_hooks:
            hook()

    __call__ = push_weights

    def increment_version(self) -> None:
        """Counts a new version of the weights in each collector."""
        for collector in self.collectors:
            collector.increment_version()

    def all_worker_ids(self) -> object:
        """The workers that weights are for; None: all."""
        return None

    def _push_weights(
        self, *, policy_or_weights: Weights | None = None, worker_ids: object = None
    ) -> None:
        weights = self._maybe_map_weights(
            self._get_server_weights() if policy_or_weights is None else policy_or_weights
        )
        workers = self.all_worker_ids() if worker_ids is None else worker_ids
        if workers is None:
            self._sync_weights_with_worker(server_weights=weights)
            return
        each = (
            workers
            if isinstance(workers, Iterable) and not isinstance(workers, SupportsIndex)
            else [workers]
        )
        for worker in each:
            if not self._skip_update(worker):
                self._sync_weights_with_worker(worker_id=worker, server_weights=weights)

    def _get_server_weights(self) -> Weights | None:
        """The weights that are pushed where none are given; None: those of the module that the
        collector was built with.
        """
        return None

    def _maybe_map_weights(self, policy_or_weights: Weights | None) -> Weights | None:
        """The weights to push in place of ``policy_or_weights``."""
        return policy_or_weights

    def _skip_update(self, worker_id: object) -> bool:
        """Whether a worker goes without these weights."""
        return False

    def _sync_weights_with_worker(
        self, *, worker_id: object = None, server_weights: Weights | None
    ) -> None:
        """Publishes weights to a worker, or to all."""
        for collector in self._local():
            collector._source.publish(server_weights, worker_id)

    def _local(self) -> list[Any]:
        """The collectors of this process."""
        return [collector for collector in self.collectors if hasattr(collector, "_source")]

    def _own(self) -> torch.nn.Module:
        """The module that a collector of this process takes weights from."""
        modules = (collector._source.module for collector in self._local())
        module = next((module for module in modules if module is not None), None)
        if module is None:
            raise RuntimeError(
                "no weights were given, and no collector has a module to take them from"
            )
        return module


class VanillaWeightUpdater(WeightUpdaterBase):
    """Copies weights, as collectors do without an updater.

    Args:
        weight_getter: returns weights where none are given.
        policy_weights: a TensorDict of parameters, which gets the weights too, and has them where
            none are given.
    """

    def __init__(
        self,
        *,
        weight_getter: Callable[[], Any] | None = None,
        policy_weights: Weights | None = None,
    ) -> None:
        self.weight_getter = weight_getter
        self.policy_weights = policy_weights

    @classmethod
    def from_policy(cls, policy: torch.nn.Module) -> Self | None:
        from tensordict import TensorDict

        return cls(policy_weights=TensorDict.from_module(policy))

    def _get_server_weights(self) -> Weights | None:
        return self.policy_weights if self.weight_getter is None else self.weight_getter()

    def _sync_weights_with_worker(
        self, *, worker_id: object = None, server_weights: Weights | None
    ) -> None:
        super()._sync_weights_with_worker(worker_id=worker_id, server_weights=server_weights)
        if worker_id is None and self.policy_weights is not None:
            self._copy(server_weights, self.policy_weights)

    def _copy(self, weights: Weights | None, to: Weights) -> None:
        """Copies weights, by default those of the collector's module, into a TensorDict of
        parameters.
        """
        given = weights_of(self._own() if weights is None else weights)
        copy_weights(weights_of(to), given)


class MultiProcessedWeightUpdater(VanillaWeightUpdater):
    """Copies weights once for all workers.

    Args:
        get_server_weights: returns weights where none are given.
        policy_weights: TensorDicts of parameters, by device, which get the weights too, such as
            those that processes of your own share. ``worker_ids`` may name such devices: the
            collector's workers then keep the weights that they have.
    """

    def __init__(
        self,
        *,
        get_server_weights: Callable[[], Any] | None = None,
        policy_weights: Mapping[Any, Any] | None = None,
    ) -> None:
        super().__init__(weight_getter=get_server_weights)
        self._copies = dict(policy_weights or {})

    @classmethod
    def from_policy(cls, policy: torch.nn.Module) -> Self | None:
        return None

    def _sync_weights_with_worker(
        self, *, worker_id: object = None, server_weights: Weights | None
    ) -> None:
        if worker_id is not None and not hasattr(worker_id, "__index__"):
            if worker_id not in self._copies:
                raise ValueError(
                    f"there is no device {worker_id}: policy_weights has {[*map(str, self._copies)] or 'none'}"
                )
            self._copy(server_weights, self._copies[worker_id])
            return
        super()._sync_weights_with_worker(worker_id=worker_id, server_weights=server_weights)
        for copied in self._copies.values() if worker_id is None else ():
            self._copy(server_weights, copied)


class RemoteModuleWeightUpdater(WeightUpdaterBase):
    """Pushes the weights given with each call, and has none of its own.

    Args:
        server: the :class:`~windrow.modules.RemotePolicy` of a server, or its address, which
            weights are then pushed to as well. Collectors that act with a ``RemotePolicy`` have
            weights nowhere else.
        arguments: those of a ``RemotePolicy``, where ``server`` is an address.
    """

    #: The version that the server gave the weights that were pushed last; None before, or without a
    #: server.
    version: int | None = None

    def __init__(self, server: str | modules.RemotePolicy | None = None, **arguments: Any) -> None:
        if isinstance(server, str):
            server, arguments = modules.RemotePolicy(server, **arguments), {}
        if arguments:
            raise TypeError(
                f"{', '.join(arguments)}: expected an address as server, got {server!r}"
            )
        self.server: Any = server

    def _sync_weights_with_worker(
        self, *, worker_id: object = None, server_weights: Weights | None
    ) -> None:
        if server_weights is None:
            raise RuntimeError(
                "a RemoteModuleWeightUpdater needs the weights with each call, got none"
            )
        if self.server is not None:
            if worker_id is not None:
                raise ValueError(
                    f"worker_ids={worker_id}: the server has one policy for all workers"
                )
            self.version = self.server.update_policy_weights_(server_weights)
        super()._sync_weights_with_worker(worker_id=worker_id, server_weights=server_weights)

    def _local(self) -> list[Any]:
        return [
            collector
            for collector in super()._local()
            if self.server is None or not hasattr(collector.policy, "_remote_options")
        ]


class RayWeightUpdater(WeightUpdaterBase):
    """Pushes weights to collectors that are actors of Ray, and waits until all of them have taken
    them up.

    Weights of less than 100 kB go with the call to each actor; larger ones are put into Ray's
    object store once, for all. An actor is called as ``update_policy_weights_(weights)``; weights
    are there as bytes of one array, which collectors of windrow read. Collectors of this process
    that the updater was given to get weights that are for all.

    Args:
        policy_weights: a TensorDict of parameters, or a module, to push where no weights are given;
            by default those of the module of a collector in this process.
        remote_collectors: the actors, by the numbers that ``worker_ids`` has; by default those of a
            :class:`RayCollector` that the updater is given to. The list is looked at with each
            push.
        max_interval: how many pushes an actor may go without: it gets every
            ``max_interval + 1``-th.
    """

    #: What was pushed last to actors that are no workers of a collector here.
    _newest: Any = None

    def __init__(
        self,
        policy_weights: Weights | None = None,
        remote_collectors: Sequence[Any] | None = None,
        max_interval: int = 0,
    ) -> None:
        self.policy_weights = policy_weights
        self.remote_collectors: Any = [] if remote_collectors is None else remote_collectors
        self.max_interval = max(0, max_interval)
        self._missed: dict[object, int] = {}
        self._packed = _session.Sender()
        self._answers: dict[Any, Any] = {}

    def register_collector(self, collector: Collecting) -> None:
        super().register_collector(collector)
        if not self.remote_collectors:
            self.remote_collectors = getattr(collector, "remote_collectors", self.remote_collectors)

    def _get_server_weights(self) -> Weights | None:
        return self.policy_weights

    def all_worker_ids(self) -> object:
        """The numbers of the actors; None without any."""
        return list(range(len(self.remote_collectors))) or None

    def _skip_update(self, worker_id: object) -> bool:
        missed = self._missed.get(worker_id, 0) + 1
        skips = missed <= self.max_interval
        self._missed[worker_id] = missed if skips else 0
        return skips

    def _push_weights(
        self, *, policy_or_weights: Weights | None = None, worker_ids: object = None
    ) -> None:
        if not self.remote_collectors:
            super()._push_weights(policy_or_weights=policy_or_weights, worker_ids=worker_ids)
            return
        weights = self._maybe_map_weights(
            self._get_server_weights() if policy_or_weights is None else policy_or_weights
        )
        workers = self.all_worker_ids() if worker_ids is None else worker_ids
        workers = list(workers) if isinstance(workers, Iterable) else [workers]
        unknown = [worker for worker in workers if worker not in range(len(self.remote_collectors))]
        if unknown:
            raise ValueError(
                f"there is no worker {unknown[0]}: the updater has {len(self.remote_collectors)} actors"
            )
        chosen = [worker for worker in workers if not self._skip_update(worker)]
        owners = [
            collector
            for collector in self._local()
            if getattr(collector, "remote_collectors", None) is self.remote_collectors
        ]
        for collector in self._local() if worker_ids is None else ():
            if collector not in owners:
                collector._source.publish(weights)
        if chosen and owners:
            # One version for all, where these are all.
            owners[0]._source.publish(
                weights, None if len(chosen) == len(self.remote_collectors) else chosen
            )
        elif chosen:
            named = weights_of(self._own() if weights is None else weights)
            # The one before is freed in Ray's store once no actor reads it.
            self._newest = self._packed(widened(named))
            self._send(chosen)

    def _send(self, workers: list[object]) -> None:
        """Sends actors what was pushed last, and waits until they have taken it."""
        ray = _needs.module("RayWeightUpdater", "ray", "ray")
        answers: dict[Any, Any] = {}
        self._answers = answers
        for worker in workers:
            self._sync_weights_with_worker(worker_id=worker, server_weights=self._newest)
        lost: dict[Any, Exception] = {}
        failed: Exception | None = None
        while answers:
            worker, answer = answers.popitem()
            try:
                _session.get(answer)
            except ray.exceptions.RayActorError as error:
                lost[worker] = error
            except Exception as error:
                failed = error
        if failed is not None:
            raise failed
        if lost:
            numbers = ", ".join(map(str, sorted(lost)))
            raise RuntimeError(
                f"actors that have ended did not take the weights, all others did: {numbers}"
            ) from lost[min(lost)]

    def _sync_weights_with_worker(
        self, *, worker_id: object = None, server_weights: Weights | None
    ) -> None:
        if not self.remote_collectors:
            super()._sync_weights_with_worker(worker_id=worker_id, server_weights=server_weights)
            return
        self._answers[worker_id] = self.remote_collectors[worker_id].update_policy_weights_.remote(
            server_weights
        )
