"""Weight updaters, by TorchRL's names: each publishes to the one store from which workers take the newest weights."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cached_property
from typing import Any


class WeightUpdaterBase:
    """What :meth:`BaseCollector.update_policy_weights_` goes through.

    Subclasses override what :meth:`push_weights` calls: ``_get_server_weights`` returns weights where none are given,
    ``_maybe_map_weights`` changes them, ``all_worker_ids`` and ``_skip_update`` choose workers, and
    ``_sync_weights_with_worker`` publishes to them.
    """

    # Made when first used, since not every subclass calls an `__init__` of this class.
    @cached_property
    def _collectors(self) -> weakref.WeakSet[Any]:
        return weakref.WeakSet()

    @cached_property
    def _hooks(self) -> list[Callable[[], object]]:
        return []

    def __getstate__(self) -> dict[str, Any]:
        # A copy serves no collector until it is given to one.
        return {name: value for name, value in self.__dict__.items() if name != "_collectors"}

    def register_collector(self, collector: Any) -> None:
        """Adds a collector, which weights are then published to."""
        self._collectors.add(collector)

    def register_post_hook(self, hook: Callable[[], None]) -> None:
        """Calls ``hook`` after weights were pushed."""
        self._hooks.append(hook)

    @property
    def collector(self) -> Any:
        """The collector that weights are published to; None before one is registered.

        Raises:
            ValueError: there are several.
        """
        if len(self._collectors) > 1:
            raise ValueError(f"the updater serves {len(self._collectors)} collectors: expected one")
        return next(iter(self._collectors), None)

    def push_weights(self, policy_or_weights: Any = None, worker_ids: Any = None) -> None:
        """Publishes weights to the workers of all collectors, or to ``worker_ids``."""
        weights = self._weights_for(policy_or_weights)
        chosen = self.all_worker_ids() if worker_ids is None else worker_ids
        if chosen is None:
            self._sync_weights_with_worker(server_weights=weights)
        else:
            for worker in [chosen] if hasattr(chosen, "__index__") else chosen:
                if not self._skip_update(worker):
                    self._sync_weights_with_worker(worker_id=worker, server_weights=weights)
        for hook in self._hooks:
            hook()

    __call__ = push_weights

    def all_worker_ids(self) -> Any:
        """The workers that weights are for; None: all."""
        return None

    def _weights_for(self, given: Any) -> Any:
        return self._maybe_map_weights(self._get_server_weights() if given is None else given)

    def _get_server_weights(self) -> Any:
        """The weights that are pushed where none are given; None: those of the module that the collector was built with."""
        return None

    def _maybe_map_weights(self, policy_or_weights: Any) -> Any:
        """The weights to push in place of ``policy_or_weights``."""
        return policy_or_weights

    def _skip_update(self, worker_id: Any) -> bool:
        """Whether a worker goes without these weights."""
        return False

    def _sync_weights_with_worker(self, *, worker_id: Any = None, server_weights: Any) -> None:
        """Publishes weights to a worker, or to all."""
        for collector in self._collectors:
            collector._source.publish(server_weights, worker_id)


class VanillaWeightUpdater(WeightUpdaterBase):
    """Copies weights, as collectors do without an updater.

    Args:
        weight_getter: returns weights where none are given.
        policy_weights: the same, as a TensorDict of parameters.
    """

    def __init__(self, *, weight_getter: Callable[[], Any] | None = None, policy_weights: Any = None) -> None:
        super().__init__()
        self._getter = weight_getter
        self._weights = policy_weights

    def _get_server_weights(self) -> Any:
        return self._weights if self._getter is None else self._getter()


class MultiProcessedWeightUpdater(VanillaWeightUpdater):
    """Copies weights once for all workers.

    Args:
        get_server_weights: returns weights where none are given.
        policy_weights: no effect; in TorchRL, the weights of each device.
    """

    def __init__(self, *, get_server_weights: Callable[[], Any] | None = None, policy_weights: Any = None) -> None:
        super().__init__(weight_getter=get_server_weights)


class RemoteModuleWeightUpdater(WeightUpdaterBase):
    """Pushes the weights given with each call, and has none of its own."""

    def _get_server_weights(self) -> Any:
        raise ValueError("a RemoteModuleWeightUpdater needs the weights with each call")


class RayWeightUpdater(VanillaWeightUpdater):
    """Pushes weights to collectors that are actors of Ray, and waits until they have them.

    Args:
        policy_weights: weights to push where none are given.
        remote_collectors: handles of the actors. Without them, weights go to the collectors of this process.
        max_interval: no effect: every actor is pushed to.
    """

    def __init__(self, policy_weights: Any = None, remote_collectors: Any = None, max_interval: int = 0) -> None:
        super().__init__(policy_weights=policy_weights)
        self._actors = list(remote_collectors or [])

    def push_weights(self, policy_or_weights: Any = None, worker_ids: Any = None) -> None:
        """Pushes weights to the actors ``worker_ids``, or to all, and waits until they have them."""
        if not self._actors:
            super().push_weights(policy_or_weights, worker_ids)
            return
        import ray

        from windrow import _weights

        tensors = _weights.weights_of(self._weights_for(policy_or_weights))
        weights = {name: value.detach().cpu() for name, value in tensors.items()}
        chosen = range(len(self._actors)) if worker_ids is None else worker_ids
        ray.get([self._actors[worker].update_policy_weights_.remote(weights) for worker in chosen])
