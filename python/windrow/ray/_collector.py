"""A collector whose workers are actors of Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from windrow._arguments import each_of, fields_of, refuse_unknown, signature_of, takes, warn_ignored
from windrow._warnings import warn
from windrow.collectors._arguments import CollectorArguments, RayArguments
from windrow.collectors._base import (
    BaseCollector,
    Collector,
    MultiAsyncCollector,
    MultiSyncCollector,
)
from windrow.policies.choose import Choice
from windrow.processes.blame import held_weights
from windrow.processes.pickling import Door, Unsendable
from windrow.ray._launcher import RayLauncher

T = TypeVar("T")

_CLASSES: dict[Any, Any] = {
    "single": Collector,
    "sync": MultiSyncCollector,
    "async": MultiAsyncCollector,
}

#: Arguments of which each actor may have its own.
_EACH = ("create_env_kwargs", "policy_factory", "frames_per_batch")


class RayCollector(BaseCollector):
    """A :class:`MultiSyncCollector` or a :class:`MultiAsyncCollector`, as ``sync`` says, whose
    workers are actors of Ray, on the machines of a cluster, or on this one where no Ray runs.

    It is one of these with a :class:`~windrow.ray.RayLauncher` as ``launcher``: rows and weights go
    over a connection of each worker to this process, and losses, seeds, states, hooks and profiles
    are what they are there. An actor that is lost, since its process or its machine dies, counts as
    a worker that is lost: see ``on_loss``.

    Where TorchRL has one actor with ``num_workers_per_collector`` workers, there are that many
    actors here, which share what it claims. Without ``sync``, a batch joins the first that many
    shares that are ready; with ``collector_class=MultiAsyncCollector`` it is one worker's.

    ``replay_buffer`` is any of this process, or a :class:`~windrow.data.RayReplayBuffer`: the
    collector writes to it.

    A Ray that the collector has started ends with it; one that runs already is left as it is.

    Raises:
        ImportError: Ray is not installed.
        TypeError: an argument is missing, unknown or of the wrong type, or cannot be sent to an
            actor.
        ValueError: an argument has a value that cannot be used.
        RuntimeError: Ray has too little for all actors.
    """

    _threads = True
    _single = False

    # As of `Collector`.
    __signature__ = signature_of(RayArguments)

    @takes(RayArguments)
    def __init__(self, arguments: RayArguments) -> None:
        _check(type(self).__name__, arguments)
        self._sync = bool(arguments.sync)  # type: ignore[misc]
        #: How many parts each worker had filled when weights were published last.
        self._parts: list[int] = []
        workers, configs, self._together = _as_workers(type(self).__name__, arguments)
        self._launcher = RayLauncher(
            configs,
            ray_init_config=arguments.ray_init_config,
            num_threads=None if arguments.num_sub_threads == 1 else arguments.num_sub_threads,
        )
        try:
            self._launcher.check_claims(len(configs))
            # Ray itself unpickles what actors send.
            self._build(workers.but(launcher=self._launcher, allow_pickle=True))
        except Unsendable as error:
            self._launcher.close()
            door = Door(f"a {type(self).__name__}", "each actor", instead="")
            raise TypeError(str(error.of(door))) from error.__cause__
        except BaseException:
            self._launcher.close()
            raise

    def _chosen_policy(self, arguments: CollectorArguments) -> Choice:
        choice = super()._chosen_policy(arguments)
        is_copied = isinstance(choice.core, list) and self._workers.factories is None
        held = held_weights(arguments.policy) if is_copied else None
        if held is not None:
            warn(
                f"policy{held}, whose new weights no copy of policy in an actor gets: make it an attribute of the policy"
            )
        return choice

    def _prepare(self) -> AbstractContextManager[None] | None:
        arguments: Any = self._arguments
        interval = 0 if arguments.update_after_each_batch else arguments.max_weight_update_interval
        if interval >= 0:
            parts = [worker["parts"] for worker in self._core.worker_stats()]
            before = self._parts or [0] * len(parts)
            if any(now - then > interval for now, then in zip(parts, before, strict=True)):
                self._parts = parts
                self.update_policy_weights_()
        return super()._prepare()

    @property
    def remote_collectors(self) -> list[Any]:
        """Handles of the actors, by the numbers of their workers. One that takes the place of
        another has its number.
        """
        return self._launcher.actors

    def stats(self, workers: str = "aggregate") -> dict[str, Any]:
        """As of other collectors; each worker also has the ``node`` of Ray that it is on."""
        figures = super().stats(workers)
        if workers != "aggregate":
            for worker, (pid, node) in enumerate(self._launcher.places()):
                figures |= {f"worker_{worker}/pid": pid, f"worker_{worker}/node": node}
        return figures

    def shutdown(
        self, timeout: float | None = None, close_env: bool = True, raise_on_error: bool = True
    ) -> None:
        """As of other collectors; ends the actors, and Ray where the collector has started it."""
        try:
            super().shutdown(timeout, close_env, raise_on_error)
        finally:
            if not self._core.is_within():
                self._launcher.close()

    def _leave(self, seconds: float) -> bool:
        ended = super()._leave(seconds)
        self._launcher.close()
        return ended

    def __del__(self) -> None:
        super().__del__()
        if (launcher := getattr(self, "_launcher", None)) is not None:
            launcher.close()


def _check(name: str, arguments: RayArguments) -> None:
    """Raises ValueError for arguments of other classes."""
    if arguments.launcher is not None:
        raise ValueError(
            f"{name} starts actors itself: leave launcher out, or take MultiSyncCollector or MultiAsyncCollector"
        )
    if arguments.num_workers is not None:
        raise ValueError(
            f"{name} has num_collectors, and num_workers_per_collector: leave num_workers out"
        )


def _as_workers(
    name: str, arguments: RayArguments
) -> tuple[RayArguments, list[dict[str, Any]], int]:
    """The arguments of a collector with an actor for each worker, the options of each actor, and
    how many workers make a batch where not all do.
    """
    envs = _environments(name, arguments)
    count = len(envs)
    own = _each("collector_kwargs", arguments.collector_kwargs, count)
    configs = _each("remote_configs", arguments.remote_configs, count)
    shared, each = _merged(own)
    per_actor = shared.pop("num_workers", arguments.num_workers_per_collector)
    is_joined = _joins(arguments, per_actor)
    checks = {field.name: field.metadata.get("check") for field in fields_of(arguments)}
    refuse_unknown("collector_kwargs", [*shared, *each], checks)
    # What stands there is of actors, where batches are on the CPU anyway.
    if (device := shared.pop("device", None)) is not None:
        shared.setdefault("policy_device", device)
    warn_ignored(
        "collector_kwargs['storing_device']",
        shared.pop("storing_device", None),
        "cpu",
        "batches come from actors on the CPU",
    )
    made: dict[str, Any] = {}
    for argument, value in shared.items():
        check = checks[argument]
        made[argument] = value if check is None or value is None else check(argument, value)
    for argument in _EACH:
        given = each.get(argument, made.get(argument, getattr(arguments, argument)))
        if isinstance(given, (list, tuple)):
            given = each_of(argument, given, count, "actors")
            split = _split if argument == "frames_per_batch" else _repeated
            made[argument] = [part for one in given for part in split(one, per_actor)]
    made["create_env_fn"] = [env for env in envs for _ in range(per_actor)]
    claims = [
        claim for config in configs for claim in [_shared_claims(config, per_actor)] * per_actor
    ]
    return arguments.but(**made), claims, per_actor if is_joined else 1


def _environments(name: str, arguments: RayArguments) -> list[Any]:
    """The environments of each actor."""
    given, count = arguments.create_env_fn, arguments.num_collectors
    if not isinstance(given, (list, tuple)):
        if count is None:
            raise TypeError(
                f"{name} needs a list of environments, one for each actor, or num_collectors"
            )
        return [given] * count
    if not given:
        raise ValueError(f"{name} needs an environment, got an empty list")
    if count not in (None, len(given)):
        raise ValueError(f"num_collectors={count}, but create_env_fn is a list of {len(given)}")
    return list(given)


def _each(
    name: str, given: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None, count: int
) -> list[dict[str, Any]]:
    """Options of each actor."""
    return [dict(entry or {}) for entry in each_of(name, given, count, "actors")]


def _merged(own: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The arguments that all entries of ``collector_kwargs`` have in common, and those of which
    each has its own.

    Raises:
        ValueError: they differ in an argument of the whole collector.
    """
    shared: dict[str, Any] = {}
    each: dict[str, list[Any]] = {}
    for name in dict.fromkeys(name for entry in own for name in entry):
        values = [entry.get(name) for entry in own]
        if all(value is values[0] or value == values[0] for value in values):
            shared[name] = values[0]
        elif name in _EACH:
            each[name] = values
        else:
            raise ValueError(
                f"collector_kwargs have several values of {name}, which all actors of a collector have in common: {values}"
            )
    return shared, each


def _joins(arguments: RayArguments, per_actor: int) -> bool:
    """Whether the workers of an actor of TorchRL's make a batch together."""
    given = arguments.collector_class
    kind = _CLASSES.get(given, given) if isinstance(given, str) else given
    if kind is not None and kind not in _CLASSES.values():
        raise TypeError(
            'collector_class must be Collector, MultiSyncCollector, MultiAsyncCollector, "single", "sync" or "async": actors run workers of one '
            f"collector, and none of their own, got {given!r}"
        )
    if per_actor > 1 and kind is Collector:
        raise ValueError(
            f"num_workers_per_collector={per_actor}, but a Collector has one worker: use MultiSyncCollector"
        )
    if arguments.sync and kind is MultiAsyncCollector and per_actor > 1:
        raise ValueError(
            "collector_class=MultiAsyncCollector has batches of one worker each, with sync=True each has a share of all: leave one out"
        )
    return kind is not MultiAsyncCollector


def _split(frames: int, count: int) -> list[int]:
    """The share of each worker in ``frames``."""
    return [frames // count + (number < frames % count) for number in range(count)]


def _repeated(value: T, count: int) -> list[T]:
    return [value] * count


def _shared_claims(config: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Options of each of ``count`` actors that claim together what one with the options ``config``
    claims. Ray takes no fractions above 1.
    """

    def share(amount: float) -> float:
        part = amount / count
        return -(-amount // count) if part > 1 else part

    if count == 1:
        return dict(config)
    shares: dict[str, Any] = {"num_cpus": share(config.get("num_cpus", 1))}
    shares |= {name: share(config[name]) for name in ("num_gpus", "memory") if config.get(name)}
    if config.get("resources"):
        shares["resources"] = {name: share(amount) for name, amount in config["resources"].items()}
    return {**config, **shares}
