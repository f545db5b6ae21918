"""The arguments of collectors, each declared once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from windrow import collectors, envs
from windrow._arguments import Arguments, Check, argument, ignored, one_of, warn_ignored
from windrow._lazy import tensordict
from windrow._logger import NAMES, LogNames, loggable
from windrow._numbers import at_least, real
from windrow._types import Buffer, Envs, Policy, WorkerDevices
from windrow.collectors._interruptor import Interrupts
from windrow.collectors._launcher import CommandLauncher, Launcher


def frames(name: str, value: object) -> int | None:
    """A whole number of frames, such as ``1_000`` or ``1e3``; None and negative numbers mean no
    limit.
    """
    if value is None:
        return None
    try:
        number = int(value)  # type: ignore[call-overload]
        if isinstance(value, bool) or number != value:
            raise TypeError
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} must be a whole number of frames, got {value!r}") from None
    return number if number >= 0 else None


def frame_limit(name: str, value: object) -> int | None:
    """As :func:`frames`, where 0 means no limit either."""
    return frames(name, value) or None


def shares(name: str, value: object) -> int | list[int]:
    """Frames of a batch, or of each worker in it: at least 1."""
    return (
        [_share(name, entry) for entry in value]
        if isinstance(value, (list, tuple))
        else _share(name, value)
    )


def _share(name: str, value: object) -> int:
    if value is None:
        raise TypeError(f"{name} is missing: the number of frames in a batch")
    number = frame_limit(name, value)
    if number is None:
        raise ValueError(f"{name} must be a positive number, got {value!r}")
    return number


def function(name: str, value: object) -> object:
    """Something that can be called."""
    if not callable(value):
        raise TypeError(f"{name} must be a function, got {value!r}")
    return value


def env_arguments(name: str, value: object) -> dict[str, Any] | list[dict[str, Any] | None]:
    """Arguments of functions that make environments, of whatever kind of mapping: for all workers,
    or for each.
    """
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (list, tuple)) and all(
        entry is None or isinstance(entry, Mapping) for entry in value
    ):
        return [None if entry is None else dict(entry) for entry in value]
    raise TypeError(f"{name} must be a dictionary or several, got {value!r}")


def truth(name: str, value: object) -> bool:
    """Whether ``value`` asks for something."""
    return bool(value)


_VERSION = "write policy_version, the version of the weights that acted"
_VERSIONS = (
    'it is at the root and, in the same memory, under ``"next"``; -1 where the weights of a module that torch calls changed '
    "while a batch was collected"
)


def interrupts(name: str, value: object) -> object:
    """Something that says whether batches are cut short."""
    if not callable(getattr(value, "collection_stopped", None)):
        got = f"{type(value).__module__}.{type(value).__name__}"
        raise TypeError(
            f"expected something with a method collection_stopped() as {name}, got {got}"
        )
    return value


def schemes(name: str, value: Mapping[str, object]) -> Mapping[str, object]:
    """TorchRL's schemes, by the paths of what they keep up to date."""
    why = "each update_policy_weights_ publishes the weights of the policy, and no others"
    for path, scheme in dict(value).items():
        if (
            path.partition(".")[0] not in ("policy", "postproc", "replay_buffer")
            or type(scheme).__name__ == "NoWeightSyncScheme"
        ):
            warn_ignored(f"{name}[{path!r}]", scheme, None, why)
    return value


def for_several(allowed: tuple[Any, ...], classes: str) -> Check:
    """A check that refuses values other than ``allowed``, and names ``classes``, which take
    them.
    """

    def check(name: str, value: object) -> object:
        if value not in allowed:
            raise ValueError(f"{name}={value!r} is for several workers: use {classes}")
        return value

    return check


def seconds(name: str, value: object) -> float:
    """A time in seconds, 0 or more."""
    number = real(name, value)
    if not number >= 0:
        raise ValueError(f"{name} must be a number of seconds, 0 or more, got {value!r}")
    return number


class _Sources(Arguments, group="What to collect"):
    create_env_fn: Envs = argument(
        'an environment, an id such as "CartPole-v1", or a function; a list for several workers',
        kw_only=False,
    )
    policy: Policy | None = argument(
        "chooses actions: a module, a callable or the path of an ONNX file; None: random ones",
        more="a callable's parameters are named as observations are, or ``tensordict`` or ``td``; it may answer in arrays of any library, or "
        "name its outputs in a dictionary. Models of Stable-Baselines3 are policies, too. It must write the same entries at each "
        "step. Where it replaces an observation, batches hold its value at the root, and what the environment observed under "
        '``"next"``',
        default=None,
        kw_only=False,
    )
    policy_factory: Callable[[], Any] | Sequence[Callable[[], Any]] | None = argument(
        "makes the policy where it runs, or one for each worker",
        more="it takes no arguments. ``policy`` is then only where new weights come from",
        default=None,
    )
    create_env_kwargs: dict[str, Any] | Sequence[dict[str, Any]] | None = argument(
        "arguments of create_env_fn, for all workers, or a list with an entry for each",
        default=None,
        check=env_arguments,
    )
    seed: int | None = argument(
        "seed of everything random, see set_seed",
        more="without it, environments begin as their own ``set_seed`` left them; random actions in environments of other libraries then "
        "follow torch's generator",
        default=None,
    )
    max_frames_per_traj: int | float | None = argument(
        "truncate episodes after so many steps, which step_count then counts",
        default=None,
        check=frame_limit,
        engine=True,
    )
    init_random_frames: int | float | None = argument(
        "frames at the start with random actions, rounded up to whole batches",
        more="frames that the ``replay_buffer`` has taken in before count",
        default=None,
        check=frames,
    )
    exploration_type: "envs.ExplorationType | str | None" = argument(
        "whether actions are sampled (RANDOM) or the policy's best guess",
        more="RANDOM is the default; best guesses are MODE, MEAN and DETERMINISTIC",
        default=None,
    )
    exploration_mode: "envs.ExplorationType | str | None" = argument(
        "the old name of exploration_type", default=None
    )
    reset_at_each_iter: bool = argument(
        "begin each batch with new episodes", default=False, engine=True
    )
    reset_when_done: bool = argument(
        "True: an ended episode is always followed by a new one", default=True
    )
    trust_policy: bool | None = argument(
        "assume that the policy maps a TensorDict to a TensorDict, whatever its signature",
        default=False,
        check=truth,
    )
    auto_register_policy_transforms: bool | None = argument(
        "begin a recurrent policy's state as its modules say",
        more="environments observe ``is_init`` if the policy reads it, and its state begins as its modules' "
        "``make_tensordict_primer`` says. If False, the policy gets only what environments observe; its state is carried from "
        "step to step all the same",
        default=True,
    )


class _Workers(Arguments, group="Where workers run"):
    num_workers: int | None = argument(
        "workers that use create_env_fn, where it is not a list", default=None, check=at_least(1)
    )
    num_envs: int | None = argument(
        "environments of each worker, which step together and are a dimension of batches",
        default=None,
        check=at_least(1),
        engine=True,
    )
    placement: Literal["inline", "threads", "processes"] | None = argument(
        "in the thread that asks for batches, in threads or in processes (Linux)",
        more='``"inline"`` is in the thread that asks for batches. In ``"processes"``, environments in Python run side by side, and a crash '
        "ends one worker alone. By default, the worker of a ``Collector`` runs inline; several workers, or one in the background, are "
        "threads where all environments are known to be native, otherwise processes. What a worker process needs is pickled by "
        "cloudpickle, so environment objects, functions and what these refer to are copies there: give what changes as ``policy``. Where "
        "the default meets something that cannot be pickled, or a module with a function around another module, workers are threads, and "
        "a warning says why",
        default=None,
    )
    launcher: Launcher | CommandLauncher | None = argument(
        "starts the workers somewhere else, such as a CommandLauncher",
        more="workers on other machines connect to this process, and are worker processes in all else, see ``placement``",
        default=None,
    )
    allow_pickle: bool = argument(
        "unpickle objects that workers of a launcher send: these may then run any code here",
        more="without it, only data is read from them: numbers, text, tensors, lists and dictionaries; their errors arrive as built-in "
        "exceptions, or as a ``RuntimeError`` with their text. Workers on this machine and actors of ``RayCollector`` send objects in any case",
        default=False,
    )
    on_loss: Literal["raise", "continue"] | int = argument(
        "where a worker fails: raise, continue without it, or how often each is replaced",
        default="raise",
        engine=True,
    )
    step_timeout: float | None = argument(
        "seconds after which a worker process is taken for frozen and killed",
        more="neither its environment nor its policy has returned meanwhile. A loss as any other (``on_loss``), whose error shows the "
        'Python stack of the worker. Workers in ``"threads"`` cannot be killed',
        default=None,
        check=real,
        engine=True,
    )
    init_fn: Callable[[], object] | None = argument(
        "called before policies and environments are made, in each worker process",
        default=None,
        check=function,
    )
    num_sub_threads: int = argument(
        "threads that libraries such as torch use in each worker process",
        default=1,
        check=at_least(1),
    )
    worker_idx: int | None = argument("a number of your own for this collector", default=None)


class _Batches(Arguments, group="Batches"):
    frames_per_batch: int | float | Sequence[int] = argument(
        "frames in each batch, over all workers and environments; a list: each worker's share",
        more="rounded up, with a warning, where environments that step together cannot share it evenly",
        check=shares,
        engine=True,
    )
    total_frames: int | float | None = argument(
        "frames in all, a multiple of frames_per_batch; negative or None: endless",
        default=-1,
        check=frames,
        engine=True,
    )
    allow_partial_batch: bool | None = argument(
        "whether batches may be short: the last one, and those without a lost worker",
        more='with None, ``total_frames`` has to be a multiple, and where ``on_loss="continue"`` goes on without a worker, batches lack its '
        "share. With False, the other workers fill that share too, in turn, so that batches keep their size",
        default=None,
        engine=True,
    )
    cat_results: Literal["stack", 0, -1] | None = argument(
        "how the shares of workers are put together, where a batch has several",
        more='``0`` (default): one after another along environments, ``-1``: along time, ``"stack"``: in a dimension of their own',
        default=None,
    )
    preemptive_threshold: float | None = argument(
        "cut the shares of slow workers short once this fraction of workers is ready",
        default=None,
        engine=True,
    )
    interruptor: Interrupts | None = argument(
        "an Interruptor, or what has a method collection_stopped(): cuts batches short",
        more="the latter is asked before each batch and every few milliseconds",
        default=None,
        check=interrupts,
    )
    set_truncated: bool = argument(
        "mark the last step of each batch as truncated", default=False, engine=True
    )
    compact_obs: bool = argument(
        'leave out all entries under "next" but rewards and flags', default=False
    )
    return_same_td: bool = argument(
        "deliver one TensorDict every time, whose values are overwritten", default=False
    )
    postproc: "Callable[[tensordict.TensorDictBase], tensordict.TensorDictBase] | None" = argument(
        "called with each batch; returns the batch to deliver",
        more="if it has a method ``to``, it is moved to the device of batches",
        default=None,
        check=function,
    )
    pre_collect_hook: Callable[[], object] | None = argument(
        "called before each batch is collected",
        more="in this process and the thread that asks for the batch, wherever workers run; :meth:`~BaseCollector.map_fn` reaches "
        "environments in workers",
        default=None,
        check=function,
    )
    post_collect_hook: "Callable[[tensordict.TensorDictBase], object] | None" = argument(
        "called with each batch as it is delivered", default=None, check=function
    )


class _Shown(Arguments, group="Progress and logs"):
    progress: bool = argument(
        "show a progress bar, by tqdm",
        more="of the frames collected: how many of ``total_frames``, frames a second, the mean return of the last 100 episodes, and how many "
        "versions behind the newest the weights are that acted last. The end of a loop closes it, by ``break`` too, and so does "
        ":meth:`~BaseCollector.shutdown`",
        default=False,
        check=truth,
    )
    logger: object = argument(
        "where figures are logged: the path of a CSV file, a SummaryWriter, a function, …",
        more="also a run of wandb or a ``Logger`` of TorchRL. A function is called with figures by name and the number of frames. Figures are the means of return and length over the last "
        "100 episodes, frames a second, seconds that the loop has waited for batches and has worked on them, the version of the weights and "
        "how far workers are behind it, frames in the replay buffer, and losses of workers",
        default=None,
        check=loggable,
    )
    log_names: LogNames = argument(
        "whose names for figures are used",
        more="``rollout/ep_rew_mean``, ``charts/episodic_return`` or ``train/reward``, and so on",
        default="sb3",
        check=one_of(*NAMES),
    )
    log_interval: float = argument(
        "seconds between two rows of figures, at least", default=1.0, check=seconds
    )


class _Trajectories(Arguments, group="Trajectories"):
    trajs_per_batch: int | None = argument(
        "deliver so many whole trajectories in each batch",
        default=None,
        check=at_least(1),
        engine=True,
    )
    traj_format: Literal["padded", "cat"] | None = argument(
        'whether whole trajectories are "padded", with a mask, or lie one after another ("cat")',
        more='``"padded"`` is the default of batches, and ``"cat"`` that of a ``replay_buffer``',
        default=None,
    )
    trajs_per_write: int | None = argument(
        "most of them in one write to the buffer; by default all that are complete",
        default=None,
        check=at_least(1),
        engine=True,
    )
    split_trajs: bool | None = argument(
        'a padded row for each piece of one, with ("collector", "mask")',
        default=False,
        check=truth,
        engine=True,
    )
    track_traj_ids: bool = argument('write ("collector", "traj_ids")', default=True, engine=True)


class _Replay(Arguments, group="Replay"):
    replay_buffer: Buffer | None = argument(
        "its method extend takes the batches; iteration then yields None for each",
        more="a replay buffer, or a sink that writes a data set, such as :class:`~windrow.data.ParquetSink`",
        default=None,
    )


class _Weights(Arguments, group="The policy's weights"):
    policy_backend: Literal["auto", "native", "torch"] = argument(
        "evaluate the policy in Rust, call it, or choose",
        more='``"native"`` evaluates it in Rust, ``"torch"`` calls it; ``"auto"`` chooses the former where a graph of what torch computes '
        "gives the same numbers; ``repr`` says why it does not",
        default="auto",
    )
    weight_updater: "collectors.WeightUpdaterBase | Callable[[], collectors.WeightUpdaterBase] | None" = argument(
        "what update_policy_weights_ goes through, or a function that makes it", default=None
    )
    max_lag: int | None = argument(
        "how many batches old the weights of a batch may be; by default any number",
        more="batches that were delivered, with new weights between them, since a worker began its share: 0 for shares that begin after "
        "the batch was asked for. Nothing is discarded: workers wait, and a batch waits for a share that would be too old in the next one. "
        "Weights that another thread publishes while a batch is awaited, or that are published after ``start()``, wait for shares that would be too old after "
        "them, for ``step_timeout`` at most; ``stats()`` has ``policy_age``, the greatest age so far",
        default=None,
        check=at_least(0),
        engine=True,
    )
    update_at_each_batch: bool = argument(
        "publish the policy's weights before each batch", default=False
    )
    track_policy_version: object = argument(
        _VERSION, more=_VERSIONS, default=False, check=truth, engine=True
    )
    compile_policy: bool | dict[str, Any] | None = argument(
        "compile it with torch.compile: True, or its arguments", default=None
    )
    cudagraph_policy: bool | dict[str, Any] | None = argument(
        'replay it as a CUDA graph: True, or {"warmup": calls before it is recorded}',
        more="what it does in Python happens only when it is recorded, as the collector is built; needs a CUDA ``policy_device``",
        default=None,
    )


class _Devices(Arguments, group="Devices"):
    device: WorkerDevices | None = argument(
        "the default of storing_device and policy_device", default=None
    )
    storing_device: WorkerDevices | None = argument(
        "where batches go",
        more="on the CPU they are views; they are copied to any other",
        default=None,
    )
    policy_device: WorkerDevices | None = argument(
        "where torch evaluates the policy; by default where its weights are", default=None
    )
    env_device: WorkerDevices | None = argument(
        "environments are stepped on the CPU; a warning says so for another", default=None
    )


class _OfTorchRL(Arguments, group="Of TorchRL"):
    weight_sync_schemes: Mapping[str, object] | None = argument(
        "schemes by what they are for; none is called",
        more="the weights of ``policy`` travel through one store, and ``postproc`` and ``replay_buffer`` are in this process. A warning "
        "says so for anything else",
        default=None,
        check=schemes,
    )
    weight_recv_schemes: object = ignored("weights travel through one store", default=None)
    use_buffers: bool | None = ignored("batches are always written in place", default=True)
    no_cuda_sync: bool = ignored("nothing is copied without waiting for it", default=False)
    local_init_rb: bool | None = ignored(
        "a buffer is always initialised where it was made", default=True
    )
    num_threads: int | None = ignored("the number of threads of torch is left alone", default=None)
    collector_class: object = ignored("there is one collector", default=None)
    extend_buffer: bool = ignored("batches are always written as a whole", default=True)


class CollectorArguments(
    _OfTorchRL,
    _Devices,
    _Weights,
    _Replay,
    _Trajectories,
    _Shown,
    _Batches,
    _Workers,
    _Sources,
    common=(
        "create_env_fn",
        "policy",
        "frames_per_batch",
        "total_frames",
        "num_workers",
        "num_envs",
        "replay_buffer",
        "device",
        "seed",
        "progress",
    ),
):
    """What every collector takes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.reset_when_done:
            raise ValueError(
                "reset_when_done=False: an ended episode is always followed by a new one"
            )
        if self.replay_buffer is not None and not hasattr(self.replay_buffer, "extend"):
            raise TypeError(
                f"expected a replay_buffer with a method extend, got {type(self.replay_buffer).__name__}"
            )
        if self.replay_buffer is not None and self.return_same_td:
            raise TypeError(
                "return_same_td is for batches that are delivered: leave it out, or leave replay_buffer out"
            )
        if self.traj_format is not None and self.trajs_per_batch is None:
            raise ValueError(
                f"traj_format={self.traj_format!r} needs trajs_per_batch, which was not given"
            )
        if self.launcher is not None and self.placement not in (None, "processes"):
            raise ValueError(f"placement={self.placement!r}: what a launcher starts are processes")
        if (
            self.policy is not None
            and self.policy_factory is not None
            and not hasattr(self.policy, "state_dict")
        ):
            raise TypeError(
                "policy and policy_factory: expected one of them, or a module as source of weights"
            )


class SingleArguments(CollectorArguments, group="Several workers"):
    """What a collector with one worker takes, and what makes it one with several."""

    backend: Literal["direct", "process", "ray"] | None = argument(
        "one worker here, several in processes, or a RayCollector",
        more='``"direct"``: one worker. ``"process"``, as with ``num_collectors``: a :class:`MultiSyncCollector` or '
        ':class:`MultiAsyncCollector`, as ``sync`` says. ``"ray"``: a :class:`RayCollector`',
        default=None,
        check=for_several(
            (None, "direct"), "Collector itself, MultiSyncCollector or MultiAsyncCollector"
        ),
    )
    num_collectors: int | None = argument(
        "how many workers; by default as many as create_env_fn has entries",
        default=None,
        check=for_several((None, 1), "Collector itself, MultiSyncCollector or MultiAsyncCollector"),
    )
    sync: bool | None = argument(
        "whether each batch of several workers has a share of every one; by default it has not",
        default=None,
        check=for_several((None,), "Collector itself with num_collectors, or MultiCollector"),
    )
    backend_options: dict[str, Any] | None = argument(
        "more arguments of a collector with several workers",
        default=None,
        check=for_several((None,), "Collector itself with num_collectors, or MultiCollector"),
    )


class RayArguments(CollectorArguments, group="Actors"):
    """What a collector in actors of Ray takes."""

    num_collectors: int | None = argument(
        "groups of actors, where create_env_fn is not a list with an entry for each",
        default=None,
        check=at_least(1),
    )
    collector_class: type | str | None = argument(
        "which collector's batches are delivered where sync is not asked for",
        more='of one worker with :class:`MultiAsyncCollector` or ``"async"``; of ``num_workers_per_collector`` workers otherwise',
        default=None,
    )
    collector_kwargs: dict[str, Any] | Sequence[dict[str, Any]] | None = argument(
        "more arguments of this collector, for all groups or a list with an entry for each",
        default=None,
    )
    num_workers_per_collector: int = argument(
        "actors of each group, which share what it claims of Ray", default=1, check=at_least(1)
    )
    sync: bool = argument(
        "whether each batch has a share of every actor, or is that of the first that is ready",
        default=False,
    )
    ray_init_config: dict[str, Any] | None = argument(
        "arguments of ``ray.init``, where Ray does not run yet", default=None
    )
    remote_configs: dict[str, Any] | Sequence[dict[str, Any]] | None = argument(
        "options of ray.remote, for all groups or a list with an entry for each",
        more="such as ``num_cpus``, ``num_gpus``, ``memory`` and ``resources``; by default each group claims one CPU",
        default=None,
    )
    update_after_each_batch: bool = argument(
        "publish the weights of the policy after each batch",
        more="to the actor that it came from, or to all where ``sync``",
        default=False,
    )
    max_weight_update_interval: int = argument(
        "batches that an actor may deliver with old weights; -1: any number",
        more="then those of the policy are published to it",
        default=-1,
    )
    use_env_creator: bool = ignored("each actor makes its environments itself", default=False)


class MultiArguments(CollectorArguments, group="Several workers"):
    """What a collector with several workers takes."""

    sync: bool | None = argument("whether each batch has a share of every worker", default=None)


_BACKENDS = one_of("threading", "multiprocessing")


class AsyncBatchedArguments(CollectorArguments, group="One policy for all"):
    """What a collector takes whose environments ask one policy."""

    max_batch_size: int | None = argument(
        "most observations in one call of the policy; by default those of all environments",
        default=None,
        check=at_least(1),
        engine=True,
    )
    min_batch_size: int | None = argument(
        "observations that a call waits for, up to server_timeout; by default 1",
        more="in any case it waits for those that are about to come, as far as that is known of their last steps",
        default=None,
        check=at_least(1),
        engine=True,
    )
    server_timeout: float | None = argument(
        "seconds that an observation waits for others at most; by default 0.01",
        default=None,
        check=real,
        engine=True,
    )
    yield_completed_trajectories: bool = argument(
        "deliver each trajectory by itself, [steps], as it ends",
        more="``frames_per_batch`` is then what a worker collects at once",
        default=False,
    )
    backend: Literal["threading", "multiprocessing"] | None = argument(
        "where environments written in Python run",
        more='``"multiprocessing"``, each in a process of its own, or ``"threading"``, where they take turns. By default in processes, '
        "unless something cannot be pickled: a warning then says what. Native environments are in threads, and so is the policy, in any "
        "case",
        default=None,
        check=_BACKENDS,
    )
    env_backend: Literal["threading", "multiprocessing"] | None = argument(
        "the same as backend", default=None, check=_BACKENDS
    )
    track_policy_version: object = argument(
        _VERSION, more=_VERSIONS, default=True, check=truth, engine=True
    )
    policy_version_key: Literal["policy_version"] | None = argument(
        "None: the same as track_policy_version=False",
        default="policy_version",
        check=one_of("policy_version", None),
    )
    transport: Any = ignored("requests go through memory of this process", default=None)
    weight_sync: Any = ignored("weights travel through one store", default=None)
    weight_sync_model_id: str = ignored("there is one policy", default="policy")
    policy_version: int = ignored("versions begin at 0, or where a loaded state ended", default=0)
    verbose: bool = ignored("stats() and server_stats() tell", default=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.policy_factory, (list, tuple)):
            raise TypeError(
                f"policy_factory must be a function, since one policy acts for all, got a list of {len(self.policy_factory)}"
            )
        if self.yield_completed_trajectories and self.trajs_per_batch is not None:
            raise ValueError(
                "yield_completed_trajectories delivers one by one: leave trajs_per_batch out"
            )
        self._settle(backend=self.env_backend or self.backend)
        if self.policy_version_key is None:
            self._settle(track_policy_version=False)
