"""Methods of collectors that exist for TorchRL's users: ways to the environments and policies of workers."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from windrow.collectors._control import Control
from windrow.policies.weights import check_model, weights_of

#: A name, or a key in brackets after one.
_STEP = re.compile(r"([A-Za-z_]\w*)|\[([^\]]+)\]")
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*|\[[^\]]+\])*")


class TorchRLMethods(Control):
    """Ways to environments and policies.

    A worker may be stepping an environment of Python while an attribute of it is read: call :meth:`pause` before, where that
    matters.
    """

    #: Whether paths begin at the collector itself, not at each of its workers.
    _direct: ClassVar[bool] = False

    policy: Any
    post_collect_hook: Callable[[Any], object] | None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Arguments have the names of TorchRL's attributes.
            arguments = self.__dict__.get("_arguments")
            if name.startswith("_") or not hasattr(arguments, name):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return getattr(arguments, name)

    @property
    def init_random_frames(self) -> int:
        """Frames at the start with random actions."""
        return max(0, int(self._arguments.init_random_frames or 0))

    @property
    def closed(self) -> bool:
        """Whether the collector was shut down."""
        return self._ended

    @property
    def env(self) -> Any:
        """The environment of the first worker, as it was given or made."""
        return self._workers.env(0)

    def getattr_env(self, attr: str) -> Any:
        """The attribute ``attr`` of the first worker's environment."""
        return getattr(self.env, attr)

    def getattr_policy(self, attr: str) -> Any:
        """The attribute ``attr`` of the policy, or of what ``policy_factory`` has made for the first worker; raises AttributeError also
        where there is none."""
        policy = self._policy_of(0)
        if policy is None:
            raise AttributeError(f"{attr}: the collector acts at random: there is no policy")
        return getattr(policy, attr)

    def getattr_rb(self, attr: str) -> Any:
        """The attribute ``attr`` of the replay buffer; raises AttributeError also where there is none."""
        if self.replay_buffer is None:
            raise AttributeError(f"{attr}: the collector has no replay buffer")
        return getattr(self.replay_buffer, attr)

    def get_model(self, model_id: str) -> Any:
        """The model called ``model_id``: ``"policy"`` is the only one.

        Raises:
            KeyError: another one is asked for.
            ValueError: actions are random.
        """
        check_model(model_id)
        policy = self._policy_of(0)
        if policy is None:
            raise ValueError("the collector acts at random: there is no policy")
        return policy

    def get_distant_attr(self, attr: str) -> Any:
        """Follows a path such as ``"env.batch_size"`` or ``"policy.layers[0].weight"``, also in a pause.

        A collector with one worker in the caller's thread follows it from itself. Others follow it from each worker, which has
        ``env``, ``policy``, ``replay_buffer``, ``worker_idx`` and ``stats()``, and return a list.

        Raises:
            AttributeError: the path leads nowhere.
            ValueError: it is not a path.
        """
        self._raise_background()
        if self._direct:
            return _resolve(self, attr)
        return [_resolve(worker, attr) for worker in self._each_worker()]

    def cascade_execute(self, attr_path: str, *args: Any, **kwargs: Any) -> Any:
        """Follows a path from the collector, such as ``"replay_buffer.empty"``, and calls what it finds, or returns it if it
        cannot be called.

        Raises:
            AttributeError: the path leads nowhere.
            ValueError: it is not a path, or arguments are given for what cannot be called.
        """
        found = _resolve(self, attr_path)
        if callable(found):
            return found(*args, **kwargs)
        if args or kwargs:
            raise ValueError(f"{attr_path} cannot be called: expected no arguments, got {args} and {kwargs}")
        return found

    def map_fn(
        self,
        method_name: str,
        list_of_args: Sequence[Sequence[Any]] | None = None,
        list_of_kwargs: Sequence[dict[str, Any]] | None = None,
    ) -> list[Any]:
        """Follows a path to a method, calls it once for each entry of the lists, and returns the results.

        In a collector with one worker in the caller's thread, the path begins at the collector. In others, entry ``i`` is for
        worker ``i``, which has ``update_policy_weights_(weights)`` and what :meth:`get_distant_attr` names.

        Args:
            method_name: such as ``"update_policy_weights_"`` or ``"env.render"``.
            list_of_args: arguments of each call.
            list_of_kwargs: arguments of each call, by name.

        Raises:
            ValueError: the lists differ in length, or do not have an entry for each worker.
            AttributeError: the path leads nowhere, or to what cannot be called.
        """
        self._check_answers()
        workers = [self] if self._direct else self._each_worker()
        count = len(list_of_args or list_of_kwargs or workers)
        all_args = [()] * count if list_of_args is None else list(list_of_args)
        all_kwargs = [{}] * count if list_of_kwargs is None else list(list_of_kwargs)
        if len(all_args) != len(all_kwargs):
            raise ValueError(f"expected lists of one length, got {len(all_args)} args and {len(all_kwargs)} kwargs")
        if not self._direct and count != len(workers):
            raise ValueError(f"expected an entry for each of {len(workers)} workers, got {count}")
        methods = [_resolve(target, method_name) for target in (workers * count if self._direct else workers)]
        if not all(map(callable, methods)):
            raise AttributeError(f"{method_name} cannot be called")
        return [method(*args, **kwargs) for method, args, kwargs in zip(methods, all_args, all_kwargs, strict=True)]

    def receive_weights(self, policy_or_weights: Any = None, *, weights: Any = None, policy: Any = None) -> None:
        """The same as :meth:`update_policy_weights_`: sender and receiver are in one process."""
        self.update_policy_weights_(policy_or_weights, weights=weights, policy=policy)

    def increment_version(self) -> None:
        """Counts a new version of the weights that were published last."""
        self._check_answers()
        self._source.renew()

    def set_post_collect_hook(self, hook: Callable[[Any], object] | None) -> None:
        """Calls ``hook`` with each batch as it is delivered, in place of the present one."""
        self.post_collect_hook = hook

    def _load_models(self, models: Mapping[str, Any], workers: Any) -> None:
        """Loads weights into modules that are found by their paths from the collector.

        Raises:
            ValueError: a module is in an environment that a thread steps meanwhile, or there is no such worker.
            KeyError: a path leads to no module.
            RuntimeError: the weights belong to another module.
        """
        everybody = range(int(self._core.stats()["workers"]))
        chosen = [workers] if hasattr(workers, "__index__") else list(everybody if workers is None else workers)
        unknown = [worker for worker in chosen if worker not in everybody]
        if unknown:
            raise ValueError(f"there is no worker {unknown[0]}: the collector has {len(everybody)}")
        if self._placement == "threads" and any(path.startswith("env.") for path in models):
            raise ValueError(
                f"the model {next(iter(models))!r} is in environments that threads step meanwhile: choose placement=\"processes\", where it is "
                "loaded between two parts"
            )
        for path, given in models.items():
            state = weights_of(given)
            roots = [self] if self._direct or not path.startswith("env.") else [self._each_worker()[worker] for worker in chosen]
            try:
                methods = [_resolve(root, f"{path}.load_state_dict") for root in roots]
            except (AttributeError, LookupError) as error:
                raise KeyError(f"no model is called {path!r}: {error}") from error
            for method in methods:
                method(state)

    def _each_worker(self) -> list[Any]:
        return [_Worker(self, worker) for worker in range(self._workers.count)]

    def _policy_of(self, worker: int) -> Any:
        factories = self._workers.factories
        return self.policy if factories is None else factories[worker].made


@dataclass
class _Worker:
    """One worker, as paths see it."""

    _collector: TorchRLMethods
    worker_idx: int

    def __post_init__(self) -> None:
        self.policy = self._collector._policy_of(self.worker_idx)
        self.replay_buffer = self._collector.replay_buffer

    @property
    def env(self) -> Any:
        return self._collector._workers.env(self.worker_idx)

    def stats(self) -> dict[str, Any]:
        return self._collector._core.worker_stats()[self.worker_idx]

    def update_policy_weights_(self, policy_or_weights: Any = None, **source: Any) -> None:
        self._collector.update_policy_weights_(policy_or_weights, **source, worker_ids=self.worker_idx)


def _resolve(target: Any, path: str) -> Any:
    """Follows ``path`` from ``target``: names with dots between them, and keys in brackets."""
    if not _PATH.fullmatch(path):
        raise ValueError(f"expected a path such as 'env.transform[0]', got {path!r}")
    for name, key in _STEP.findall(path):
        try:
            index = None if name else ast.literal_eval(key)
        except (SyntaxError, ValueError):
            raise ValueError(f"expected a number or a quoted name in brackets, got {key!r} in {path!r}") from None
        target = getattr(target, name) if name else target[index]
    return target
