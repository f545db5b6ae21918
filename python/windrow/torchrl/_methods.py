"""Methods of collectors that exist for TorchRL's users: ways to the environments and policies of
workers.

A worker may be stepping an environment of Python while an attribute of it is read: call
:meth:`~BaseCollector.pause` before, where that matters.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, SupportsIndex

from windrow.policies.weights import check_model, weights_of
from windrow.processes.broadcast import BroadcastMethod, targets_of

if TYPE_CHECKING:
    import torch

    from windrow._types import Policy, Weights
    from windrow.collectors import BaseCollector

#: A name, or a key in brackets after one.
_STEP = re.compile(r"([A-Za-z_]\w*)|\[([^\]]+)\]")
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*|\[[^\]]+\])*")


def getattr_env(self: BaseCollector, attr: str) -> Any:
    """The attribute ``attr`` of the first worker's environment."""
    return getattr(self._workers.env(0), attr)


def getattr_policy(self: BaseCollector, attr: str) -> Any:
    """The attribute ``attr`` of the policy, or of what ``policy_factory`` has made for the first
    worker; raises AttributeError also where there is none.
    """
    policy = policy_of(self, 0)
    if policy is None:
        raise AttributeError(f"{attr}: the collector acts at random: there is no policy")
    return getattr(policy, attr)


def getattr_rb(self: BaseCollector, attr: str) -> Any:
    """The attribute ``attr`` of the replay buffer; raises AttributeError also where there is
    none.
    """
    if self.replay_buffer is None:
        raise AttributeError(f"{attr}: the collector has no replay buffer")
    return getattr(self.replay_buffer, attr)


def get_model(self: BaseCollector, model_id: str) -> Policy:
    """The model called ``model_id``: ``"policy"`` is the only one.

    Raises:
        KeyError: another one is asked for.
        ValueError: actions are random.
    """
    check_model(model_id)
    policy = policy_of(self, 0)
    if policy is None:
        raise ValueError("the collector acts at random: there is no policy")
    return policy


def get_distant_attr(self: BaseCollector, attr: str) -> Any:
    """Follows a path such as ``"env.batch_size"`` or ``"policy.layers[0].weight"``, also in a
    pause.

    A collector with one worker in the caller's thread follows it from itself. Others follow it from
    each worker, which has ``env``, ``policy``, ``replay_buffer``, ``worker_idx`` and ``stats()``,
    and return a list. Where a worker has several environments, the list has an entry for each of
    them, in the order of their numbers.

    Raises:
        AttributeError: the path leads nowhere.
        ValueError: it is not a path.
    """
    self._raise_background()
    if self._direct:
        return resolve(self, attr)
    return [resolve(target, attr) for target in _targets(self, attr)]


def cascade_execute(self: BaseCollector, attr_path: str, *args: Any, **kwargs: Any) -> Any:
    """Follows a path from the collector, such as ``"replay_buffer.empty"``, and calls what it
    finds, or returns it if it cannot be called.

    Raises:
        AttributeError: the path leads nowhere.
        ValueError: it is not a path, or arguments are given for what cannot be called.
    """
    found = resolve(self, attr_path)
    if callable(found):
        return found(*args, **kwargs)
    if args or kwargs:
        raise ValueError(
            f"{attr_path} cannot be called: expected no arguments, got {args} and {kwargs}"
        )
    return found


def map_fn(
    self: BaseCollector,
    method_name: str,
    list_of_args: Sequence[Sequence[Any]] | None = None,
    list_of_kwargs: Sequence[dict[str, Any]] | None = None,
) -> list[Any]:
    """Follows a path to a method, calls it once for each entry of the lists, and returns the
    results.

    In a collector with one worker in the caller's thread, the path begins at the collector. In
    others, entry ``i`` is for worker ``i``, which has ``update_policy_weights_(weights)`` and what
    :meth:`get_distant_attr` names.

    A path to a method of environments reaches all of them. If a worker has several, each of them
    gets the worker's entry; or the lists have an entry for each environment of all workers. Results
    come in the order of the environments' numbers.

    Args:
        method_name: such as ``"update_policy_weights_"`` or ``"env.render"``.
        list_of_args: arguments of each call.
        list_of_kwargs: arguments of each call, by name.

    Raises:
        ValueError: the lists differ in length, or do not have an entry for each worker.
        AttributeError: the path leads nowhere, or to what cannot be called.
    """
    self._check_answers()
    targets: list[Any] = [self] if self._direct else _targets(self, method_name)
    count = len(list_of_args or list_of_kwargs or targets)
    all_args = [()] * count if list_of_args is None else list(list_of_args)
    all_kwargs = [{}] * count if list_of_kwargs is None else list(list_of_kwargs)
    if len(all_args) != len(all_kwargs):
        raise ValueError(
            f"expected lists of one length, got {len(all_args)} args and {len(all_kwargs)} kwargs"
        )
    if not self._direct and count != len(targets):
        if count != (workers := self._workers.count):
            several = "" if len(targets) == workers else f", or of {len(targets)} environments"
            raise ValueError(
                f"expected an entry for each of {workers} workers{several}, got {count}"
            )
        # Each environment gets the entry of its worker.
        all_args = [all_args[target.worker_idx] for target in targets]
        all_kwargs = [all_kwargs[target.worker_idx] for target in targets]
    methods = [
        resolve(target, method_name) for target in (targets * count if self._direct else targets)
    ]
    if not all(map(callable, methods)):
        raise AttributeError(f"{method_name} cannot be called")
    results: list[Any] = []
    for method, args, kwargs in zip(methods, all_args, all_kwargs, strict=True):
        result = method(*args, **kwargs)
        results += result if isinstance(method, BroadcastMethod) else [result]
    return results


def receive_weights(
    self: BaseCollector,
    policy_or_weights: Weights | None = None,
    *,
    weights: Weights | None = None,
    policy: torch.nn.Module | None = None,
) -> None:
    """The same as :meth:`update_policy_weights_`: sender and receiver are in one process."""
    self.update_policy_weights_(policy_or_weights, weights=weights, policy=policy)


def increment_version(self: BaseCollector) -> None:
    """Counts a new version of the weights that were published last."""
    self._check_answers()
    self._source.renew()


def set_post_collect_hook(self: BaseCollector, hook: Callable[[Any], object] | None) -> None:
    """Calls ``hook`` with each batch as it is delivered, in place of the present one."""
    self.post_collect_hook = hook


def load_models(
    self: BaseCollector,
    models: Mapping[str, Any],
    workers: SupportsIndex | Iterable[SupportsIndex] | None,
) -> None:
    """Loads weights into modules that are found by their paths from the collector.

    Raises:
        ValueError: a module is in an environment that a thread steps meanwhile, or there is no such
            worker.
        KeyError: a path leads to no module.
        RuntimeError: the weights belong to another module.
    """
    everybody = range(int(self._core.stats()["workers"]))
    chosen = (
        [workers]
        if isinstance(workers, SupportsIndex)
        else list(everybody if workers is None else workers)
    )
    unknown = [worker for worker in chosen if worker not in everybody]
    if unknown:
        raise ValueError(f"there is no worker {unknown[0]}: the collector has {len(everybody)}")
    stepped = next((path for path in models if path.startswith("env.")), None)
    if self._placement == "threads" and stepped is not None:
        raise ValueError(
            f'the model {stepped!r} is in environments that threads step meanwhile: choose placement="processes", where it is '
            "loaded between two parts"
        )
    for path, given in models.items():
        state = weights_of(given)
        roots = (
            [self]
            if self._direct or not path.startswith("env.")
            else [_each_worker(self)[worker] for worker in chosen]
        )
        try:
            methods = [resolve(root, f"{path}.load_state_dict") for root in roots]
        except (AttributeError, LookupError) as error:
            raise KeyError(f"no model is called {path!r}: {error}") from error
        for method in methods:
            method(state)


def _each_worker(self: BaseCollector) -> list[Any]:
    return [_Worker(self, worker) for worker in range(self._workers.count)]


def _targets(self: BaseCollector, path: str) -> list[Any]:
    """The objects at which ``path`` begins: each environment of each worker if the path leads to
    environments, otherwise each worker.
    """
    workers = _each_worker(self)
    if path.partition(".")[0].partition("[")[0] != "env":
        return workers
    return [replace(worker, own=env) for worker in workers for env in targets_of(worker.env)]


def policy_of(self: BaseCollector, worker: int) -> Policy | None:
    """The policy of a worker; None where actions are random."""
    factories = self._workers.factories
    return self.policy if factories is None else factories[worker].made


@dataclass
class _Worker:
    """A worker, at which paths begin; with ``own``, only that one of its environments."""

    _collector: BaseCollector
    worker_idx: int
    own: Any = None

    def __post_init__(self) -> None:
        self.policy = policy_of(self._collector, self.worker_idx)
        self.replay_buffer = self._collector.replay_buffer

    @property
    def env(self) -> Any:
        return self._collector._workers.env(self.worker_idx) if self.own is None else self.own

    def stats(self) -> dict[str, Any]:
        return self._collector._core.worker_stats()[self.worker_idx]

    def update_policy_weights_(
        self, policy_or_weights: Weights | None = None, **source: Any
    ) -> None:
        self._collector.update_policy_weights_(
            policy_or_weights, **source, worker_ids=self.worker_idx
        )


def resolve(target: Any, path: str) -> Any:
    """Follows ``path`` from ``target``: names with dots between them, and keys in brackets."""
    if not _PATH.fullmatch(path):
        raise ValueError(f"expected a path such as 'env.transform[0]', got {path!r}")
    for name, key in _STEP.findall(path):
        try:
            index = None if name else ast.literal_eval(key)
        except (SyntaxError, ValueError):
            raise ValueError(
                f"expected a number or a quoted name in brackets, got {key!r} in {path!r}"
            ) from None
        target = getattr(target, name) if name else target[index]
    return target
