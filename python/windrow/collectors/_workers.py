"""The environments and policies of a collector's workers, and the devices that they are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from windrow._arguments import each_of, warn_ignored
from windrow._codecs import codec
from windrow._lazy import module, torch
from windrow._types import WorkerDevices
from windrow._windrow import CollectorCore
from windrow.collectors._arguments import CollectorArguments
from windrow.envs import _convert
from windrow.envs._factory import Factory, InTurn, is_function
from windrow.envs._innermost import innermost
from windrow.envs._recipe import Recipe
from windrow.processes.broadcast import Broadcast, one_or_all
from windrow.processes.proxy import RemoteEnv

if TYPE_CHECKING:
    from windrow._windrow import ParallelMembers

_gym = module("windrow.envs.libs.gym")


class Workers:
    """The environments and policies of a collector's workers.

    Attributes:
        given: environments, ids and functions as the user gave them, one for each worker, or one
            for all.
        envs: the same, where functions keep what they make.
        count: number of workers.
        env_kwargs: arguments of functions in ``envs``, for each worker or one for all.
        repeated: how many workers use the only environment, where it is not a function.
        together: environments of each worker that functions make.
        factories: functions that make a policy, one for each worker; None without
            ``policy_factory``.
    """

    def __init__(self, name: str, arguments: CollectorArguments, *, single: bool) -> None:
        self._remote: list[Any] = []
        self._answers = codec(arguments.launcher is None or arguments.allow_pickle)
        self.given, repeated = _environments(name, arguments, single=single)
        self.count = repeated or len(self.given)
        self.together, makes = arguments.num_envs or 1, is_function(self.given[0])
        if self.together > 1:
            _check_many(self.given, self.together)
        envs = self.given * repeated if repeated is not None and makes else self.given
        numbered = enumerate(envs)
        self.envs = [
            Factory(env, number=number, together=self.together) if is_function(env) else env
            for number, env in numbered
        ]
        self.repeated = None if makes else repeated
        self.env_kwargs = _environment_arguments(arguments.create_env_kwargs, self.count, self.envs)
        policies = policy_factories(arguments.policy_factory, self.count)
        # The engine makes one policy more, to learn names and shapes of its weights.
        self.factories = (
            None if policies is None else [Factory(policy, first=True) for policy in policies]
        )

    @property
    def are_native(self) -> bool:
        """Whether the engine steps all environments, as far as that is known before a function is
        called.
        """
        return not any(is_function(env) or _is_python(env) for env in self.given)

    def check_distinct(self) -> None:
        """Raises ValueError where one environment object is given to several workers. Its copies in
        processes would draw the same random numbers.
        """
        seen: set[int] = set()
        for env in self.given * (self.repeated or 1):
            for inner in () if is_function(env) else _owned(_convert.of(env)):
                if id(inner) in seen:
                    raise ValueError(
                        f"{inner!r} is one object and already in use, by another worker: give each a function that makes an "
                        "environment of its own"
                    )
                seen.add(id(inner))

    def move(self, core: CollectorCore) -> None:
        """Notes that the workers of ``core`` are in processes of their own."""
        self._remote = [
            RemoteEnv(core, worker, answers=self._answers) for worker in range(self.count)
        ]

    def move_some(self, members: dict[int, ParallelMembers]) -> None:
        """Notes that the only environment of some workers, by number, is in a process of its
        own.
        """
        self._remote = [
            RemoteEnv(members[worker], 0) if worker in members else env
            for worker, env in enumerate(self.envs)
        ]

    @property
    def stateful(self) -> list[Any]:
        """Where states of environments are: an entry for each worker, or one for all."""
        return self._remote or self.envs

    def env(self, worker: int) -> Any:
        """The environment of ``worker``, as it was given or made, or as this process sees it. If
        the worker has several, one object that reaches all of them.
        """
        return one_or_all(self._of(worker))

    @property
    def all(self) -> Any:
        """The environments of all workers, as :meth:`env` returns those of one."""
        return one_or_all(self._each)

    @property
    def each(self) -> Broadcast:
        """The environments of all workers as one object, even where there is a single one."""
        return Broadcast(self._each)

    @property
    def _each(self) -> list[Any]:
        return [env for worker in range(self.count) for env in self._of(worker)]

    def _of(self, worker: int) -> list[Any]:
        """The environments of ``worker``."""
        env = self.envs[worker if len(self.envs) > 1 else 0]
        found = self._remote[worker] if self._remote else env
        if isinstance(found, Factory):
            return found.made_together or [None]
        if isinstance(found, RemoteEnv):
            return found.apart(self.together) if isinstance(env, Factory) else [found]
        return [_gym.env_of(found)]

    def own_seed(self) -> int | None:
        """The seed that ``set_seed`` of the first seeded environment was given, if no episode has
        begun since.

        Environments of other libraries keep theirs by themselves.
        """
        given = [
            env for one in self.given for env in (one.makers if isinstance(one, InTurn) else [one])
        ]
        seeds = [env._take_seed() for env in given if hasattr(type(env), "_take_seed")]
        return next((seed for seed in seeds if seed is not None), None)


class Devices:
    """The devices that ``arguments`` name for a number of ``workers``; None stands for the CPU.

    Attributes:
        storing: where batches go.
        policy: where torch evaluates the policy.
        named: what batches say that they are on: ``torch.device("cpu")`` if the user named it,
            otherwise nothing.
        acting: the same of what the policy is given.
    """

    def __init__(self, arguments: CollectorArguments, workers: int) -> None:
        env_device = device_of("env_device", arguments.env_device, workers=workers)
        warn_ignored("env_device", env_device, None, "environments are stepped on the CPU")
        self.storing = device_of(
            "storing_device", arguments.storing_device, arguments.device, workers=workers
        )
        # Workers elsewhere have devices of their own.
        is_here = arguments.launcher is None
        self.policy = device_of(
            "policy_device",
            arguments.policy_device,
            arguments.device,
            workers=workers,
            is_here=is_here,
        )
        is_named = arguments.storing_device is not None or arguments.device is not None
        self.named = torch.device("cpu") if is_named and self.storing is None else None
        is_named = arguments.policy_device is not None or arguments.device is not None
        self.acting = (self.policy or torch.device("cpu")) if is_named else None


def _is_python(env: object) -> bool:
    try:
        return not _convert.of(env).is_native
    except Exception:
        # Said where it is made.
        return False


def _check_many(given: list[Any], num_envs: int) -> None:
    """Raises ValueError where an entry of ``given`` is one object that ``num_envs`` environments
    would have to share.
    """
    for env in given:
        # Functions and ids make as many as are asked for. What is no environment is said where it
        # is made.
        is_env = not isinstance(env, str) and not is_function(env) and hasattr(env, "step")
        for inner in _owned(_convert.of(env)) if is_env else ():
            raise ValueError(
                f"num_envs={num_envs}: expected create_env_fn to be a function that makes an environment, or the id of one, which can be "
                f"made {num_envs} times; got one object, {inner!r}"
            )


def _owned(recipe: Recipe) -> list[Any]:
    """The user's own objects that are stepped in environments of ``recipe``."""
    if getattr(recipe, "own", False):
        return innermost(recipe.env)  # type: ignore[attr-defined]
    return [inner for member in getattr(recipe, "members", ()) for inner in _owned(member)]


def policy_factories(
    policy_factory: Callable[[], Any] | Sequence[Callable[[], Any]] | None, workers: int
) -> list[Callable[[], Any]] | None:
    """Functions that make a policy, one for each worker."""
    if policy_factory is None:
        return None
    given = each_of("policy_factory", policy_factory, workers, "workers")
    for factory in given:
        if not callable(factory):
            raise TypeError(f"policy_factory must be a function, got {type(factory).__name__}")
    return given


def device_of(
    name: str, *candidates: WorkerDevices | None, workers: int = 1, is_here: bool = True
) -> torch.device | None:
    """The first given device, or entry of a list for all workers; None for the CPU. Another machine
    may have one that this one, which it ``is_here``, has not.

    Raises:
        RuntimeError: torch finds no such device here, or a list does not have an entry for each
            worker.
        ValueError: workers have several.
    """
    given: Any = next((candidate for candidate in candidates if candidate is not None), None)
    if isinstance(given, (list, tuple)):
        if len(given) != workers:
            raise RuntimeError(f"{name} has {len(given)} entries for {workers} workers")
        if len({str(entry) for entry in given}) != 1:
            raise ValueError(
                f"{name} must be one device for all workers, got {list(map(str, given))}"
            )
        given = given[0]
    if given is None:
        return None
    device = torch.device(given)
    if device.type == "cpu":
        return None
    if device.type == "cuda" and is_here and not torch.cuda.is_available():
        raise RuntimeError(f"{name}={device}: torch finds no CUDA device on this machine")
    return device


def _environments(
    name: str, arguments: CollectorArguments, *, single: bool
) -> tuple[list[Any], int | None]:
    """The environments as a list, and the number of workers where it is not the length of that
    list.
    """
    given, workers = arguments.create_env_fn, arguments.num_workers
    envs: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given]
    if not envs:
        raise ValueError(f"{name} needs an environment, got an empty list")
    if single:
        if len(envs) != 1 or workers not in (None, 1):
            got = len(envs) if len(envs) != 1 else workers
            raise ValueError(
                f"{name} has one worker, got {got}: use MultiSyncCollector or MultiAsyncCollector"
            )
        return envs, None
    if isinstance(given, (list, tuple)):
        if workers not in (None, len(envs)):
            raise ValueError(f"num_workers={workers}, but create_env_fn is a list of {len(envs)}")
        return envs, None
    if workers is None:
        raise TypeError(f"{name} needs a list of environments, one for each worker, or num_workers")
    return envs, workers


def _environment_arguments(
    given: dict[str, Any] | Sequence[dict[str, Any]] | None, workers: int, envs: list[Any]
) -> list[dict[str, Any] | None]:
    """Arguments of the functions that make environments, for each worker."""
    if given is None or isinstance(given, dict):
        each = [given or None]
    elif len(given) != workers:
        raise ValueError(f"create_env_kwargs has {len(given)} entries for {workers} workers")
    else:
        each = [entry or None for entry in given]
    made = next((env for env in envs if not is_function(env)), None)
    if made is not None and any(each):
        kind = repr(made) if isinstance(made, str) else type(made).__name__
        raise RuntimeError(
            f"create_env_kwargs are arguments of a function that makes an environment, got {kind}"
        )
    return each
