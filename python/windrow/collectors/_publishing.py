"""How weights reach the workers."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from windrow import _weights
from windrow._policy import Choice
from windrow.collectors._life import Life
from windrow.collectors._updaters import WeightUpdaterBase


class Publishing(Life):
    """The way of weights from a module, or from whoever has them, to the workers."""

    _policy: Choice
    _follows: bool
    _calls_source: bool
    _slots: list[tuple[dict[str, Any], str, Any]] | None
    _anatomy: _weights.Anatomy | None
    _updater: Any

    def update_policy_weights_(
        self,
        policy_or_weights: Any = None,
        *,
        weights: Any = None,
        policy: Any = None,
        worker_ids: Any = None,
        model_id: str | None = None,
        weights_dict: Mapping[str, Any] | None = None,
        policy_weights: Any = None,
    ) -> None:
        """Publishes weights as a new version, which each worker takes up with its next share of a batch.

        Args:
            policy_or_weights: a module, a TensorDict of parameters, a ``state_dict``, or a dictionary from workers to these;
                the module that the collector was built with where there is nothing.
            weights: the same, by name.
            policy: a module.
            worker_ids: the only workers that are to take these weights: numbers, or one.
            model_id: ``"policy"``, the only model there is.
            weights_dict: the weights of each model by its id.
            policy_weights: what ``weights`` was called once.

        Raises:
            ValueError: weights were given twice, or are another policy's; there is no such worker.
            KeyError: there is no such model.
            RuntimeError: there are no weights to be published; the module, which windrow has read, was changed in other ways
                than by its weights.
        """
        self._surface()
        given = _single_source(policy_or_weights, weights, policy, policy_weights, model_id, weights_dict)
        if self._updater is not None:
            if model_id is not None or weights_dict is not None:
                raise ValueError("a weight_updater knows one model: model_id and weights_dict make no sense with it")
            self._updater.push_weights(given, worker_ids)
            return
        self._publish(given, worker_ids)

    def receive_weights(self, policy_or_weights: Any = None, *, weights: Any = None, policy: Any = None) -> None:
        """The same as :meth:`update_policy_weights_`: whoever sends weights and whoever receives them are in one process."""
        self.update_policy_weights_(policy_or_weights, weights=weights, policy=policy)

    def _publish(self, given: Any, worker_ids: Any = None) -> None:
        if isinstance(given, dict) and given and all(isinstance(worker, int) for worker in given):
            self._check_workers(given)
            for worker, weights in given.items():
                self._core.publish(_weights.widened(_weights.weights_of(weights)), worker)
            return
        if hasattr(worker_ids, "__index__"):
            worker_ids = [worker_ids]
        self._check_workers(worker_ids or [])
        if given is None:
            given = self._policy.source
            if self._anatomy is not None:
                self._anatomy.check()
        if given is None:
            raise RuntimeError("no weights were given, and the collector has no module to take them from")
        weights = _weights.weights_of(given)
        if self._follows:
            _weights.copy(_weights.tensors_of(self._policy.source), weights)
        if self._slots is not None:
            self._follow_policy(in_any_case=True)
            return
        if self._calls_source:
            weights = {}
        weights = _weights.widened(weights)
        for worker in [None] if worker_ids is None else worker_ids:
            self._core.publish(weights, worker)

    def _check_workers(self, workers: Iterable[int]) -> None:
        number = int(self._core.stats()["workers"])
        strange = [worker for worker in workers if not 0 <= worker < number]
        if strange:
            raise ValueError(f"there is no worker {strange[0]}: the collector has {number}")

    def _follow_policy(self, in_any_case: bool = False) -> None:
        """Takes up weights that changed since the last batch, for a policy that was read out of the user's module: who
        collects and learns in turn need not publish them. ``in_any_case`` makes a version of weights that did not change, as
        whoever publishes them expects."""
        if self._slots is None:
            return
        if self._anatomy is not None:
            self._anatomy.check()
        for owner, name, tensor in self._slots:
            if owner.get(name) is not tensor:
                self._watch_source()
                break
        self._core.follow(in_any_case)

    def _watch_source(self) -> None:
        self._slots = _weights.slots_of(self._policy.source)
        self._core.set_source(_weights.tensors_of(self._policy.source))

    @property
    def policy_version(self) -> int:
        """Version of the weights that were published last; 0 are those that the policy came with."""
        self._raise_background()
        return int(self._core.stats()["policy_version"])

    @property
    def weight_updater(self) -> Any:
        """What :meth:`update_policy_weights_` goes through, if it is not the collector itself."""
        return self._updater

    @weight_updater.setter
    def weight_updater(self, updater: Any) -> None:
        if callable(updater) and not isinstance(updater, WeightUpdaterBase):
            updater = updater()
        if updater is not None and not isinstance(updater, WeightUpdaterBase):
            kind = f"{type(updater).__module__}.{type(updater).__name__}"
            raise TypeError(f"expected a WeightUpdaterBase of windrow.collectors as weight_updater, got {kind}")
        self._updater = updater
        if updater is not None:
            updater.register_collector(self)


def _single_source(
    positional: Any, weights: Any, policy: Any, policy_weights: Any, model_id: str | None, by_id: Mapping[str, Any] | None
) -> Any:
    given = [source for source in (positional, weights, policy, policy_weights) if source is not None]
    if by_id is not None:
        if given or model_id is not None:
            raise ValueError("weights_dict says all: leave model_id and other weights out")
        strange = sorted(set(by_id) - {"policy"})
        if strange:
            raise KeyError(f"no model is called {strange[0]!r}: there is 'policy' alone")
        return by_id["policy"]
    if len(given) > 1:
        raise ValueError(f"expected weights from one source, got {len(given)}")
    if model_id not in (None, "policy"):
        raise KeyError(f"no model is called {model_id!r}: there is 'policy' alone")
    if policy_weights is not None:
        warnings.warn("policy_weights is called weights now", DeprecationWarning, stacklevel=3)
    return given[0] if given else None
