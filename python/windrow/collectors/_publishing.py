"""How weights reach the workers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from windrow._policy import Choice
from windrow._weights import WeightSource
from windrow.collectors._life import Life
from windrow.collectors._updaters import WeightUpdaterBase


class Publishing(Life):
    """The way of weights from a module, or from whoever has them, to the workers."""

    _policy: Choice
    _source: WeightSource
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
        self._source.publish(given, worker_ids)

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
