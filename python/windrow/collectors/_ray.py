"""Collectors in actors of Ray."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from windrow import _fence, _needs, _ray
from windrow._arguments import fields_of, takes
from windrow._lazy import module
from windrow._warnings import warn
from windrow.collectors._arguments import RayArguments
from windrow.collectors._base import (
    BaseCollector,
    Collector,
    MultiAsyncCollector,
    MultiCollector,
    MultiSyncCollector,
    _concatenation,
    _drawn_by_torch,
)
from windrow.collectors._ending import ALIVE
from windrow.collectors._interruptor import follow
from windrow.collectors._ray_core import Plan, RayCore
from windrow.collectors._workers import Devices, policy_factories
from windrow.policies.choose import Choice, Conditions, Sent, choose, compiled, exploration_name
from windrow.processes import blame, setup
from windrow.processes.pickling import dumps

_postprocs = module("windrow.data._postprocs")
_CLASSES: dict[Any, Any] = {"single": Collector, "sync": MultiSyncCollector, "async": MultiAsyncCollector}

#: Arguments that an actor's collector is given as they are.
_PASSED = (
    "create_env_kwargs", "num_envs", "max_frames_per_traj", "reset_at_each_iter", "track_traj_ids", "set_truncated", "track_policy_version",
    "traj_format", "preemptive_threshold", "init_fn", "auto_register_policy_transforms", "placement", "step_timeout", "num_sub_threads",
)  # fmt: skip

#: Arguments that change batches where they are written: in actors, or in this process.
_WHERE_WRITTEN = ("postproc", "compact_obs", "split_trajs", "trajs_per_write")


class RayCollector(BaseCollector):
    """Collectors in actors of Ray, on the machines of a cluster, or on this one where no Ray runs.

    Each actor runs a local collector, of ``collector_class``. A batch has a share of every actor where ``sync``, collected after it was
    asked for; otherwise it is one actor's, whichever is ready first, and each actor goes on with the next two meanwhile. A batch is a
    copy, which you may write to.

    An actor that is lost, since its process or its machine dies or since its environment or policy raises, is dealt with as ``on_loss``
    says: ``"raise"``, ``"continue"`` without it, or how often an actor in each place is replaced. The new one has seeds, and ids of
    trajectories, that were not used before, and the newest weights. Frames count when they are delivered, or when a ``RayReplayBuffer``
    says that a lost actor has written them, so that nothing counts twice. ``stats()["unanswered_batches"]`` is how many batches actors
    had been asked for and have not delivered, since they were lost or did not answer a shutdown.

    A shutdown has actors cut short what they have under way. After :meth:`start` it is written, unless the write would have to wait;
    ``stats()["dropped_frames"]`` counts the rest.

    Actors act with the weights that :meth:`update_policy_weights_` gave them. An actor whose environments are native, or those of a library
    without torch, and whose policy the engine evaluates, does not import torch.

    ``replay_buffer`` is a :class:`~windrow.data.RayReplayBuffer`, to which actors write themselves, or a buffer of this process.

    A Ray that the collector has started ends with it; one that runs already is left as it is.

    Raises:
        ImportError: Ray is not installed.
        TypeError: an argument is missing, unknown or of the wrong type, or cannot be sent to an actor.
        ValueError: an argument has a value that cannot be used.
        RuntimeError: Ray has too little for all actors.
    """

    _threads = True
    _single = False

    @takes(RayArguments)
    def __init__(self, arguments: RayArguments) -> None:
        self._since: dict[int, int] = {}
        self._due: list[int] = []
        self._build(arguments)

    def _build(self, arguments: Any) -> None:
        name = type(self).__name__
        _needs.torch(name)
        _ray.needs_ray(name)
        self._arguments: Any = arguments
        self._sync = bool(arguments.sync)  # type: ignore[misc]
        self._placement = "ray"
        # Policies are evaluated on other machines, which have devices of their own.
        named = types.SimpleNamespace(
            env_device=arguments.env_device, policy_device=None, device=None, storing_device=arguments.storing_device
        )
        self._devices = Devices(named, 1)  # type: ignore[arg-type]
        self._exploration = exploration_name(arguments.exploration_type, arguments.exploration_mode)
        self.policy = arguments.policy
        self.pre_collect_hook, self.post_collect_hook = arguments.pre_collect_hook, arguments.post_collect_hook
        join = {"flat": (0, False), "time": (-1, False), "stack": (0, True)}[_concatenation(arguments.cat_results, sync=self._sync)]
        _check(name, arguments)
        envs = _environments(name, arguments)
        count = len(envs)
        self._workers: Any = types.SimpleNamespace(stateful=[], factories=None, count=count)
        in_buffer = callable(getattr(arguments.replay_buffer, "client", None))
        plans, choice = _plans(arguments, envs, self._exploration, in_buffer)
        total = arguments.total_frames
        per_batch = sum(plan.frames or 0 for plan in plans) if self._sync else None
        if total is not None and per_batch and not arguments.allow_partial_batch and total % per_batch:
            raise ValueError(
                f"total_frames={total} is not a multiple of frames_per_batch={per_batch}: use {total - total % per_batch or per_batch}, or "
                "allow_partial_batch=True"
            )
        ray, release = _ray.acquire(name, arguments.ray_init_config)
        core: Any = RayCore(
            ray,
            release,
            plans,
            sync=self._sync,
            join=join,
            seed=_drawn_by_torch() % 2**31 if arguments.seed is None else arguments.seed,
            total=total,
            on_loss=arguments.on_loss,
            device=self._devices.named,
            buffer=arguments.replay_buffer if in_buffer else None,
            # Who has weights sent after each batch, or after so many, wants the next ones to be acted with these.
            several=not (in_buffer or arguments.update_after_each_batch or arguments.max_weight_update_interval >= 0),
        )
        self._core: Any = core
        core.serve(self)
        ALIVE.add(self)
        self._source: Any = RaySource(core, choice)
        self._doubt = choice.doubt
        if arguments.interruptor is not None:
            follow(arguments.interruptor, self._core)
        self.weight_updater = arguments.weight_updater

    def _prepare(self) -> None:
        interval = 0 if self._arguments.update_after_each_batch else self._arguments.max_weight_update_interval
        if interval >= 0:
            due = [number for number in self._due if self._since[number] > interval]
            if due:
                self._since |= dict.fromkeys(due, 0)
                self.update_policy_weights_(worker_ids=None if self._sync else due)
        self._due = []
        super()._prepare()

    def _delivered_from(self, actors: list[int]) -> None:
        self._due = actors
        for number in actors:
            self._since[number] = self._since.get(number, 0) + 1

    def _processed(self, batch: Any) -> Any:
        if self._arguments.split_trajs:
            batch = _postprocs.split_trajectories(batch)
        return super()._processed(batch)

    @property
    def remote_collectors(self) -> list[Any]:
        """Handles of the actors, by number. One that takes the place of another has its number."""
        actors: list[Any] = self._core.actors
        return actors

    def state_dict(self) -> dict[str, Any]:
        """What a later run needs to go on: ``frames``, ``iter``, ``seed``, and under ``actors`` the state of each actor's collector."""
        self._raise_background()
        state: dict[str, Any] = self._core.state()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], **_: Any) -> None:
        """Goes on from a saved state, with new episodes in every environment.

        Raises:
            ValueError: the state is that of another number of actors, another policy or other environments.
        """
        self._raise_background()
        self._core.load(dict(state_dict))

    @property
    def env(self) -> Any:
        """Raises AttributeError: environments are in actors."""
        raise AttributeError("environments are in actors: ask get_distant_attr for what they have")

    def enable_profile(self, *_: Any, **__: Any) -> None:
        """Raises NotImplementedError: actors are not profiled."""
        raise NotImplementedError("a RayCollector is not profiled: profile a collector of an actor's class in this process")

    def get_distant_attr(self, attr: str) -> Any:
        """Follows a path such as ``"env.batch_size"`` from the collector of each actor; a list.

        Raises:
            AttributeError: the path leads nowhere.
        """
        self._raise_background()
        return self._core.ask("call", "get_distant_attr", attr)

    def map_fn(
        self,
        method_name: str,
        list_of_args: Sequence[Sequence[Any]] | None = None,
        list_of_kwargs: Sequence[dict[str, Any]] | None = None,
    ) -> list[Any]:
        """Follows a path to a method from the collector of each actor, calls it, and returns the results.

        Args:
            method_name: such as ``"update_policy_weights_"`` or ``"env.render"``.
            list_of_args: arguments, for each actor.
            list_of_kwargs: arguments by name, for each actor.

        Raises:
            ValueError: the lists do not have an entry for each actor.
            AttributeError: the path leads nowhere.
        """
        self._check_ready()
        count = self._workers.count
        args, kwargs = list_of_args or [()] * count, list_of_kwargs or [{}] * count
        if len(args) != count or len(kwargs) != count:
            raise ValueError(f"expected an entry for each of {count} actors, got {len(args)} args and {len(kwargs)} kwargs")
        calls = [(partial(_follow, method_name, tuple(own), named),) for own, named in zip(args, kwargs, strict=True)]
        answers: list[Any] = self._core.ask("apply", of=self._core._seats, each=calls)
        return answers


def _follow(path: str, args: tuple[Any, ...], kwargs: dict[str, Any], collector: Any) -> Any:
    return _fence.methods.resolve(collector, path)(*args, **kwargs)


class RaySource:
    """Where actors get their weights: stands for :class:`windrow.policies.weights.WeightSource`."""

    def __init__(self, core: RayCore, choice: Choice) -> None:
        self._core, self._choice = core, choice
        self.module = choice.source
        self._send = _ray.Sender()

    def publish(self, given: Any = None, workers: Any = None) -> None:
        """As :meth:`windrow.policies.weights.WeightSource.publish`."""
        if isinstance(given, dict) and given and all(isinstance(worker, int) for worker in given):
            self._chosen(given)
            for worker, weights in given.items():
                self.publish(weights, worker)
            return
        chosen = None if workers is None else self._chosen([workers] if hasattr(workers, "__index__") else workers)
        if given is None:
            if self.module is None:
                raise RuntimeError("no weights were given, and the collector has no module to take them from")
            given = self.module
        weights = self._choice.published(given)
        self._core.publish(self._send(weights), chosen)

    def renew(self) -> None:
        """As :meth:`windrow.policies.weights.WeightSource.renew`."""
        self._core.renew()

    def follow(self, **_: Any) -> None:
        """Does nothing: actors have copies."""

    def _chosen(self, workers: Any) -> list[int]:
        count, chosen = len(self._core.actors), [int(worker) for worker in workers]
        unknown = [worker for worker in chosen if not 0 <= worker < count]
        if unknown:
            raise ValueError(f"there is no worker {unknown[0]}: the collector has {count}")
        return chosen


def _check(name: str, arguments: RayArguments) -> None:
    """Raises ValueError for arguments that no collector in actors can heed."""
    if arguments.launcher is not None:
        raise ValueError(f"{name} starts actors itself: leave launcher out, or take MultiSyncCollector or MultiAsyncCollector")
    if arguments.num_workers is not None:
        raise ValueError(f"{name} has num_collectors, and num_workers_per_collector: leave num_workers out")
    if arguments.trajs_per_write is not None and not callable(getattr(arguments.replay_buffer, "client", None)):
        raise ValueError("trajs_per_write is for actors that write themselves: give a RayReplayBuffer as replay_buffer, or leave it out")
    padded = arguments.trajs_per_batch is not None and arguments.traj_format != "cat"
    if arguments.sync and padded:
        raise ValueError('trajs_per_batch with sync needs traj_format="cat": actors pad to different lengths')


def _environments(name: str, arguments: RayArguments) -> list[Any]:
    """The environments of each actor."""
    given, count = arguments.create_env_fn, arguments.num_collectors
    if not isinstance(given, (list, tuple)):
        if count is None:
            raise TypeError(f"{name} needs a list of environments, one for each actor, or num_collectors")
        return [given] * count
    if not given:
        raise ValueError(f"{name} needs an environment, got an empty list")
    if count not in (None, len(given)):
        raise ValueError(f"num_collectors={count}, but create_env_fn is a list of {len(given)}")
    return list(given)


def _each(name: str, given: Any, count: int) -> list[dict[str, Any]]:
    """Options of each actor."""
    each = list(given) if isinstance(given, (list, tuple)) else [given] * count
    if len(each) != count:
        raise ValueError(f"{name} has {len(each)} entries for {count} actors")
    return [dict(entry or {}) for entry in each]


def _shares(arguments: RayArguments, count: int) -> list[int]:
    """Frames of each actor in a batch."""
    frames: Any = arguments.frames_per_batch
    if isinstance(frames, list):
        if len(frames) != count:
            raise ValueError(f"frames_per_batch has {len(frames)} entries for {count} actors")
        return frames
    if not arguments.sync:
        return [frames] * count
    if frames < count or (frames % count and arguments.cat_results in ("stack", -1)):
        raise ValueError(f"frames_per_batch={frames} cannot be shared by {count} actors: use a multiple of {count}")
    return [frames // count + (number < frames % count) for number in range(count)]


def _plans(
    arguments: RayArguments, envs: list[Any], exploration: str, in_buffer: bool
) -> tuple[list[Plan], Choice]:
    """What each actor is made of, and the policy that the weights come from."""
    count, per_actor = len(envs), arguments.num_workers_per_collector
    kind = _class(arguments.collector_class, per_actor)
    several = issubclass(kind, MultiCollector)
    own, options = _each("collector_kwargs", arguments.collector_kwargs, count), _each("remote_configs", arguments.remote_configs, count)
    factories = policy_factories(arguments.policy_factory, count)
    choices = [_choice(arguments, env, exploration, factory, per_actor) for env, factory in _distinct(envs, factories)]
    policies = [setup.policy(choice.core) for choice in choices]
    around = setup.surroundings()
    random, shares = max(0, int(arguments.init_random_frames or 0)), _shares(arguments, count)
    trajs = arguments.trajs_per_batch
    if trajs is not None and arguments.sync:
        if trajs % count:
            raise ValueError(f"trajs_per_batch={trajs} cannot be shared by {count} actors: use a multiple of {count}")
        trajs //= count
    passed = {name: getattr(arguments, name) for name in (*_PASSED, *(_WHERE_WRITTEN if in_buffer else ()))}
    defaults = {field.name: field.default for field in fields_of(RayArguments)}
    passed = {name: value for name, value in passed.items() if value is not defaults[name]}
    # Batches are on the CPU, and get there packed.
    own = [{name: value for name, value in one.items() if name not in ("device", "storing_device") or str(value) != "cpu"} for one in own]
    plans = []
    for number, env in enumerate(envs):
        given = {
            **passed,
            "policy": Sent(policies[number % len(policies)]),
            "exploration_type": exploration,
            "frames_per_batch": shares[number],
            "init_random_frames": -(-random // count),
            "trajs_per_batch": trajs,
            **({"num_workers": per_actor} if several else {}),
            **own[number],
        }
        buffer = arguments.replay_buffer.client() if in_buffer else None
        sent = dumps((around, _pickled((kind, env, given, buffer), env, given)))
        workers = given.get("num_workers") or 1
        frames = None if given["trajs_per_batch"] is not None or issubclass(kind, MultiAsyncCollector) else shares[number]
        plans.append(Plan(sent, options[number], frames, workers * (arguments.num_envs or 1)))
    return plans, choices[0]


def _class(given: Any, per_actor: int) -> Any:
    if given is None:
        return Collector if per_actor == 1 else MultiSyncCollector
    kind = _CLASSES.get(given, given) if isinstance(given, str) else given
    if not isinstance(kind, type) or not issubclass(kind, BaseCollector) or kind._inference == "served":
        raise TypeError(f'collector_class must be a collector of windrow, "single", "sync" or "async", got {given!r}')
    if per_actor > 1 and kind._single:
        raise ValueError(f"num_workers_per_collector={per_actor}, but a {kind.__name__} has one worker: use MultiSyncCollector")
    return kind


def _distinct(envs: list[Any], factories: list[Callable[[], Any]] | None) -> list[tuple[Any, Any]]:
    """An environment, and a function that makes a policy, for each policy that is sent."""
    return [(envs[0], None)] if factories is None else list(zip(envs, factories, strict=True))


def _choice(arguments: RayArguments, env: Any, exploration: str, factory: Any, per_actor: int) -> Choice:
    device: Any = next((device for device in (arguments.policy_device, arguments.device) if device is not None), None)
    if device is not None:
        import torch

        device = torch.device(device)
        device = None if device.type == "cpu" else device
    choice = choose(
        compiled(arguments.policy, arguments.compile_policy, arguments.cudagraph_policy, device),
        None if factory is None else [factory] * per_actor,
        Conditions(
            exploration,
            threads=True,
            device=device,
            trust=bool(arguments.trust_policy),
            register=arguments.auto_register_policy_transforms is not False,
        ),
        backend=arguments.policy_backend,
        env=env,
    )
    held = blame.held_weights(arguments.policy) if isinstance(choice.core, list) and factory is None else None
    if held is not None:
        warn(f"policy{held}, whose new weights no copy of policy in an actor gets: give the module itself as policy")
    return choice


def _pickled(value: Any, env: Any, given: dict[str, Any]) -> bytes:
    """``value`` as bytes.

    Raises:
        TypeError: a part cannot be pickled; the error names it.
    """
    try:
        return blame.pickled(value, {"create_env_fn": env, "collector_kwargs": given})
    except TypeError as error:
        told = str(error).replace('placement="processes" sends', "a RayCollector sends").replace("each worker", "each actor")
        raise TypeError(told.replace(', or choose placement="threads"', "")) from error.__cause__
