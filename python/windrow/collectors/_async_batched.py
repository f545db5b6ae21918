"""The collector whose environments all ask one policy, and how it spreads them over workers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from windrow._arguments import takes
from windrow._numbers import cores
from windrow._warnings import warn
from windrow.collectors._arguments import AsyncBatchedArguments, CollectorArguments
from windrow.collectors._base import BaseCollector
from windrow.collectors._workers import Workers
from windrow.envs import _convert
from windrow.envs._batched import ParallelEnv
from windrow.envs._factory import InTurn, is_function
from windrow.envs._recipe import Recipe
from windrow.envs.libs.gym import env_of
from windrow.policies.choose import Choice
from windrow.policies.served import Figures
from windrow.processes.pickling import NoProcesses
from windrow.processes.setup import MEMBER

if TYPE_CHECKING:
    from tensordict import TensorDictBase

T = TypeVar("T")

#: Native environments that one thread steps: waking another takes longer than their steps, and so
#: does a call of the policy for each half.
_TOGETHER = 64


class AsyncBatchedCollector(BaseCollector):
    """Environments that run at their own pace and ask one policy, which answers those that wait in
    one call.

    ``create_env_fn`` is a list with an environment for each index, or one environment with
    ``num_workers``. Environments known to be native share threads of this process, up to 64 of them
    each; a function is called once more to see what it makes. Those written in Python have a
    process each, see ``backend``. The policy, one copy of the module or what ``policy_factory``
    makes, is called in a thread of this process with observations ``[rows, *shape]``, of any
    environments in any order; a state of the policy goes with its environment. A
    :class:`~windrow.modules.RemotePolicy` is asked by each thread or process by itself, since its
    server gathers observations. With ``cudagraph_policy``, each call has ``max_batch_size`` rows,
    of which those that are missing are copies of another. Where the engine evaluates it, results do
    not depend on who was asked together. New weights act from the next call on, and
    ``policy_version`` tells of each frame which.

    A batch has ``[frames_per_batch]`` frames of those environments that were ready first, each
    one's in the order of time, with ``("collector", "traj_ids")`` and ``env_index``, the place of
    the environment in the list. Otherwise it is as of :class:`MultiAsyncCollector`. An environment
    runs ahead by a batch at most: a slow learner stops them all.

    Raises:
        TypeError: an argument is missing, unknown or of the wrong type.
        ValueError: an argument has a value that cannot be used; the message says which can.
        WorkerError: an environment cannot be made, or the policy cannot be called.

    Example:
        >>> from windrow.collectors import AsyncBatchedCollector
        >>> collector = AsyncBatchedCollector(["CartPole-v1"] * 8, frames_per_batch=200, total_frames=400)
        >>> [batch.shape for batch in collector]
        [torch.Size([200]), torch.Size([200])]
        >>> collector.shutdown()
    """

    _sync = False
    _threads = True
    _single = False
    _inference = "served"

    @takes(AsyncBatchedArguments)
    def __init__(self, arguments: AsyncBatchedArguments) -> None:
        if (
            getattr(arguments.policy, "_remote_options", None) is not None
            and arguments.policy_factory is None
        ):
            for name in ("max_batch_size", "min_batch_size", "server_timeout"):
                if getattr(arguments, name) is not None:
                    raise ValueError(
                        f"{name}: the RemoteServer of the policy gathers observations, leave it out here"
                    )
            self._asks = "local"
        self._count, arguments = _spread(type(self).__name__, arguments)
        most = arguments.max_batch_size or self._count
        self._rows = most if arguments.cudagraph_policy else None
        self._figures = Figures(most)
        self._flat = not (arguments.split_trajs or arguments.trajs_per_batch is not None)
        self._build(arguments)

    def _default_placement(self) -> str:
        return "threads"

    def _make_core(self, arguments: CollectorArguments) -> Choice:
        choice = super()._make_core(arguments)
        envs = enumerate(self._workers.envs)
        self._workers.move_some(
            {
                worker: env._members
                for worker, env in envs
                if isinstance(env, _Alone) and env._members
            }
        )
        return choice

    def _shaped(self, batch: TensorDictBase) -> TensorDictBase:
        ids = batch.get(("collector", "traj_ids"), None)
        if ids is not None:
            # Trajectory `e` of environment `i` has the number `e * count + i`. Padding has negative
            # numbers.
            batch.set("env_index", ids.remainder(self._count).where(ids >= 0, ids))
        return batch

    def server_stats(self, *, reset: bool = False) -> dict[str, float | int]:
        """Figures of the calls of the policy: ``requests`` of workers and their ``rows``, one for
        each environment; ``batches`` of them, ``failed_batches`` among these, ``avg_batch_size`` in
        rows, and ``batch_fill``, its share of ``max_batch_size``; ``requests_per_s``,
        ``batches_per_s``; ``p50_queue_ms`` and ``p95_queue_ms`` of requests that wait for a call,
        ``p50_forward_ms`` and ``p95_forward_ms`` of calls, of the last 1024; ``clients``, and the
        ``policy_version`` that acted last. Those of a :class:`~windrow.modules.RemotePolicy` are at
        its server, and none are here.

        Args:
            reset: begin to count anew.
        """
        return self._figures.of(self._checked.server_stats() or {}, reset=reset)


class _Alone(ParallelEnv):
    """An environment of Python, in a process of its own."""

    _door = replace(MEMBER, instead='choose backend="threading"')


def _spread(name: str, arguments: AsyncBatchedArguments) -> tuple[int, AsyncBatchedArguments]:
    """The number of environments, and the arguments with an environment, or several as one, for
    each worker.
    """
    if arguments.num_envs is not None:
        raise ValueError(
            f"num_envs={arguments.num_envs}: {name} takes a list, with an entry for each environment"
        )
    if arguments.placement not in (None, "threads"):
        raise ValueError(
            f'placement="{arguments.placement}": workers of {name} are threads, which share a policy; backend="multiprocessing" puts '
            "environments into processes"
        )
    if arguments.launcher is not None:
        raise ValueError(
            f"workers of {name} are threads, which share a policy: leave launcher out, or take MultiAsyncCollector"
        )
    if arguments.backend == "multiprocessing" and sys.platform != "linux":
        raise ValueError('backend="multiprocessing" needs Linux: choose backend="threading"')
    given = Workers(name, arguments, single=False)
    if arguments.init_fn is not None:
        arguments.init_fn()
    together, workers = _workers_of(given, arguments)
    if arguments.step_timeout is not None and not any(
        isinstance(worker, _Alone) for worker in workers
    ):
        raise ValueError(
            f"step_timeout={arguments.step_timeout}: environments of {name} that are native or in threads cannot be killed: leave it out, or "
            "take MultiAsyncCollector"
        )
    completes = arguments.yield_completed_trajectories
    changes = {
        "create_env_fn": workers,
        "create_env_kwargs": None,
        "num_workers": None,
        "num_envs": together if together > 1 else None,
        "num_sub_threads": 1,
        "init_fn": None,
        # The processes of the environments get it instead.
        "step_timeout": None,
        "trajs_per_batch": 1 if completes else arguments.trajs_per_batch,
        "traj_format": "cat" if completes else arguments.traj_format,
    }
    return given.count, arguments.but(**changes)


def _workers_of(given: Workers, arguments: AsyncBatchedArguments) -> tuple[int, list[Any]]:
    """How many environments step together, and what makes them, for each worker."""
    envs = given.given * (given.count // len(given.given))
    kwargs = given.env_kwargs * (given.count // len(given.env_kwargs))
    makers = [
        partial(env, **own) if own else env if is_function(env) else env_of(env)
        for env, own in zip(envs, kwargs)
    ]
    known: dict[tuple[int, int], Recipe] = {}
    for env, own, make in zip(envs, kwargs, makers):
        if (id(env), id(own)) not in known:
            # What a function has made to be looked at is closed again.
            known[id(env), id(own)] = (
                _convert.of(make(), own=False) if is_function(make) else _convert.of(make)
            )
    recipes = [known[id(env), id(own)] for env, own in zip(envs, kwargs)]
    are_native = [recipe.is_native is True for recipe in recipes]
    if all(are_native):
        is_batched = any(recipe.is_batched for recipe in recipes)
        together = 1 if is_batched else _together(given.count, arguments)
        if together > 1:
            return together, [
                InTurn(makers[first : first + together])
                for first in range(0, given.count, together)
            ]
    elif arguments.backend != "threading" and sys.platform == "linux":
        makers = _in_processes(given, makers, are_native, arguments)
    return 1, makers


def _together(count: int, arguments: AsyncBatchedArguments) -> int:
    """How many environments of a worker step together: at most :data:`_TOGETHER`, or more where
    cores are few; and so many that batches are exact.
    """
    frames = arguments.frames_per_batch
    if not isinstance(frames, int):
        return 1
    exact = [number for number in (frames, arguments.total_frames) if number is not None]
    most = arguments.max_batch_size or count
    fewest = min(cores(), -(-count // _TOGETHER))
    shares = [count // workers for workers in range(fewest, count + 1) if count % workers == 0]
    return next(
        share for share in shares if share <= most and all(number % share == 0 for number in exact)
    )


def _in_processes(
    given: Workers, makers: list[Any], are_native: list[bool], arguments: AsyncBatchedArguments
) -> list[Any]:
    """``makers``, with those of Python in a process each."""
    given.check_distinct()
    threads, init_fn = arguments.num_sub_threads, arguments.init_fn
    moved: list[Any] = []
    for make, is_native in zip(makers, are_native):
        if is_native:
            moved.append(make)
            continue
        begun = make if init_fn is None or not is_function(make) else partial(_begun, init_fn, make)
        alone = _Alone(1, begun, num_sub_threads=threads, step_timeout=arguments.step_timeout)
        alone._is_quiet = any(isinstance(env, _Alone) for env in moved)
        moved.append(alone)
    try:
        for env in moved:
            _convert.of(env)
    except (TypeError, NoProcesses) as error:
        if arguments.backend is not None or arguments.step_timeout is not None:
            raise
        warn(f"environments run in threads, where Python code takes turns: {error}")
        return makers
    return moved


def _begun(init_fn: Callable[[], object], make: Callable[[], T]) -> T:
    init_fn()
    return make()
