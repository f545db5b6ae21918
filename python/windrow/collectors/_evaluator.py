import functools
import inspect
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from windrow import _html, _needs, _windrow, envs
from windrow._arguments import Arguments, Check, argument, ignored, replaces, takes, warn_ignored
from windrow._keys import Key
from windrow._lazy import module, tensordict, torch
from windrow._logger import log_to, loggable
from windrow._numbers import at_least
from windrow._types import Device, Env, Policy
from windrow._windrow import EvaluatorCore
from windrow.collectors import _statistics
from windrow.collectors._ending import ALIVE, Ending
from windrow.collectors._workers import device_of, policy_factories
from windrow.envs import _convert
from windrow.envs._factory import Factory, is_function
from windrow.envs._video import Video, filmed
from windrow.envs.libs.gym import env_of
from windrow.policies.choose import (
    Choice,
    Conditions,
    choose,
    copied_now,
    exploration_name,
    unfit,
)
from windrow.policies.weights import BESIDE, tensors_of, weights_by_id
from windrow.processes import setup, start
from windrow.processes.blame import held_weights
from windrow.processes.exceptions import refusal
from windrow.processes.pickling import Door, NoProcesses
from windrow.processes.proxy import RemoteEnv

_ray = module("windrow.ray._launcher")
T = TypeVar("T")
_EPISODES = "which is what episodes are made of here"


def _only(value: object, why: str) -> Check:
    """A check of an argument that has one value, which may be in a list."""
    accepted = [value, [value], list(value)] if isinstance(value, tuple) else [value]

    def check(name: str, given: object) -> object:
        if given not in accepted:
            raise ValueError(f"{name} must be {value!r}, {why}, got {given!r}")
        return value

    return check


def _backend(name: str, given: object) -> object:
    if given not in ("thread", "process", "ray"):
        raise ValueError(
            f'{name} must be "thread", "process" or "ray", where evaluators run, got {given!r}'
        )
    if given != "thread" and sys.platform != "linux":
        raise ValueError(f'backend="{given}" needs Linux: choose backend="thread"')
    return given


class _Evaluated(Arguments, group="What to evaluate"):
    env: Env = argument(
        "an environment, an id, or a function that returns one",
        more="the function is called once, where the evaluator runs: with the first evaluation if the policy comes from a function too, "
        "otherwise at once",
        kw_only=False,
    )
    policy: Policy | None = argument(
        "chooses actions; it is copied, and never touched again. None: random ones",
        default=None,
        kw_only=False,
    )
    policy_factory: Callable[..., Any] | None = argument(
        "makes a policy for the evaluator alone, where that runs",
        more="it is given the environment if it has a parameter without a default. For a process or an actor it is called here too, with an "
        "environment that is made for it and closed: what it makes here checks weights",
        default=None,
    )
    num_trajectories: int = argument(
        "episodes of each evaluation", default=10, check=at_least(1), engine=True
    )
    max_steps: int | None = argument(
        "truncate episodes after so many steps, which step_count then counts",
        more="or ``eval_step_count``, if the environment has a ``step_count``",
        default=None,
        check=at_least(1),
        engine=True,
    )
    exploration_type: "envs.ExplorationType | str | None" = argument(
        "as of collectors; the policy's best guess by default", default="deterministic"
    )
    seed: int | None = argument(
        "of the environment and of windrow's actions; torch's generator is left alone",
        default=None,
        engine=True,
    )


class _Results(Arguments, group="Results"):
    busy_policy: Literal["skip", "error", "queue"] = argument(
        "what happens to an evaluation that is asked for during another",
        default="skip",
        engine=True,
    )
    log_prefix: str = argument("what names of results begin with", default="eval", engine=True)
    metrics_fn: "Callable[[tensordict.TensorDictBase], Mapping[str, float]] | None" = argument(
        "returns more figures by name, from the TensorDict of all episodes",
        more="called in a thread of this process",
        default=None,
        check=lambda _, metrics: lambda batch: dict(metrics(batch)),
        engine=True,
    )
    on_result: "Callable[[tensordict.TensorDictBase], object] | None" = argument(
        "called with each result as a TensorDict",
        more="in a thread of this process; it must not wait for the evaluator. Its own errors go to ``sys.unraisablehook``, and change "
        "nothing",
        default=None,
        check=lambda _, on_result: lambda result: on_result(_tensors(result)),
        engine=True,
    )
    dump_video: bool = argument(
        "save what recorders among the environment's transforms saw, after each evaluation",
        more="``dump(step=...)`` of recorders such as TorchRL's ``VideoRecorder`` is called where they are, and an error in that is the error "
        "of the evaluation",
        default=True,
    )
    video: str | os.PathLike[str] | None = argument(
        "a folder, where each evaluation films its first episode",
        more="as ``<log_prefix>_<step>.mp4``. The environment is one of Gymnasium: an id, a ``GymEnv``, or an object that was made with "
        '``render_mode="rgb_array"``. Where it is, ffmpeg writes the video, and an error in that is the error of the evaluation',
        default=None,
    )
    logger: object = argument(
        "logs results over their step, as of collectors", default=None, check=loggable
    )
    reward_keys: Key | Sequence[Key] = argument(
        '("next", "reward")', default=("next", "reward"), check=_only(("next", "reward"), _EPISODES)
    )
    done_keys: Key | Sequence[Key] = argument(
        '("next", "done")', default=("next", "done"), check=_only(("next", "done"), _EPISODES)
    )


class _Place(Arguments, group="Where it runs"):
    backend: Literal["thread", "process", "ray"] | None = argument(
        "in a thread, a process or an actor of Ray",
        more="by default in a thread where the environment is native or an object that exists, which is then the one that is stepped, where "
        "``policy_factory`` wants the environment, and where something cannot be sent to a process; otherwise in a process",
        default=None,
        check=_backend,
    )
    device: Device | None = argument(
        "where torch evaluates the policy; by default where its weights are", default=None
    )
    policy_backend: Literal["auto", "native", "torch"] = argument(
        "as of collectors", default="auto"
    )
    trust_policy: bool | None = argument("as of collectors", default=False)
    init_fn: Callable[[], object] | None = argument(
        "called first of all, where the evaluator runs", default=None
    )
    on_loss: Literal["raise"] | int = argument(
        '``"raise"``, or how often an environment that fails is made anew',
        more="an environment also fails when its process ends or is frozen. With a number, the evaluation plays other episodes in place of those "
        "that were lost, and :meth:`losses` returns the errors",
        default="raise",
        check=replaces("an evaluator has one worker"),
    )
    step_timeout: float | None = argument(
        "seconds after which the process is taken for frozen and killed",
        more="counted from the start of a step. The loss is handled as ``on_loss`` says, and its error has the stack. Needs a process or an "
        "actor",
        default=None,
        engine=True,
    )
    shutdown_timeout: float = argument(
        "seconds that a shutdown waits for the running step; inf is no limit",
        more="a process or an actor is then killed",
        default=5.0,
        engine=True,
    )
    num_gpus: float | None = argument(
        "GPUs that the actor claims; by default one if Ray has any", default=None
    )
    ray_kwargs: dict[str, Any] | None = argument(
        "options of ray.remote, such as num_cpus; by default the actor claims one CPU", default=None
    )


class EvaluatorArguments(
    _Place,
    _Results,
    _Evaluated,
    common=(
        "env",
        "policy",
        "num_trajectories",
        "max_steps",
        "seed",
        "busy_policy",
        "video",
        "logger",
        "backend",
        "device",
    ),
):
    """What an evaluator takes."""

    @property
    def listener(self) -> Callable[[dict[str, Any]], object] | None:
        """Called with each result, as a dictionary: the logger and ``on_result``."""
        on_result, step = self.on_result, f"{self.log_prefix}/step"
        if self.logger is None:
            return on_result
        log = log_to("logger", self.logger)

        def told(result: dict[str, Any]) -> None:
            log({name: figure for name, figure in result.items() if name != step}, result[step])
            if on_result is not None:
                on_result(result)

        return told

    frames_per_batch: int | None = ignored(
        "an evaluation takes as many frames as its episodes have", default=None
    )
    collector_cls: object = ignored("an evaluator collects by itself", default=None)
    collector_kwargs: object = ignored("an evaluator collects by itself", default=None)
    weight_sync_schemes: object = ignored(
        "weights are copied when an evaluation is asked for", default=None
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy is not None and self.policy_factory is not None:
            raise ValueError("an evaluator takes a policy or a policy_factory, got both")
        if self.backend == "thread" and self.step_timeout is not None:
            raise ValueError('step_timeout needs backend="process" or "ray", got backend="thread"')
        if self.backend != "ray":
            warn_ignored(
                "num_gpus",
                self.num_gpus,
                None,
                "evaluators on this machine use the GPU that device names",
            )
            warn_ignored("ray_kwargs", self.ray_kwargs, None, 'it is for backend="ray"')


class Evaluator(Ending):
    """Plays whole episodes with a copy of a policy, in a process, a thread or an actor of Ray,
    while training goes on.

    Results are dictionaries: ``eval/reward`` is the mean return of the episodes, beside
    ``eval/reward_std``, ``eval/num_episodes``, ``eval/episode_length``, ``eval/fps``, ``eval/step``
    and ``eval/policy_version``.

    If the environment, the policy or ``metrics_fn`` raises an error, that error is the result. If
    nobody reads the result, the next call of :meth:`evaluate`, :meth:`trigger_eval` or
    :meth:`shutdown` raises it; without such a call, the end of the evaluator passes it to
    ``sys.unraisablehook``. The next evaluation starts over.

    The evaluator uses statistics that its environment shares with training environments, such as
    those of TorchRL's ``VecNorm`` or Gymnasium's ``NormalizeObservation``, but does not change
    them; statistics of its own environment stay as they were made. An environment in a process
    shares those of an :class:`~windrow.envs.EnvCreator` that makes the training environments too,
    and no others. A module acts in evaluation mode, as after ``module.eval()``.

    Results are the same in a process, a thread and an actor. A process that dies is the error of an
    evaluation, which names signal or exit status; the next evaluation starts another one, with the
    newest weights. An actor is such a process, as those of :class:`~windrow.ray.RayCollector` are.
    A Ray that the evaluator has started ends with it.

    Raises:
        ImportError: ``backend="ray"``, and Ray is not installed.
        ValueError: an argument has a value that cannot be used; the message says which can.
        TypeError: an argument is unknown.

    Example:
        >>> from torch import nn
        >>> from windrow.collectors import Evaluator
        >>> policy = nn.Linear(4, 2)
        >>> with Evaluator("CartPole-v1", policy, num_trajectories=3) as evaluator:
        ...     evaluator.evaluate(policy, step=1000)["eval/num_episodes"]
        3
    """

    _core: EvaluatorCore
    _backend: str
    #: Starts the process somewhere else, where that is not on this machine.
    _launcher: Any = None
    #: Functions that let the user's environment gather statistics again.
    _undo: Sequence[Callable[[], None]] = ()
    #: What a notebook shows of the arguments.
    _shown: Mapping[str, Any]

    @takes(EvaluatorArguments)
    def __init__(self, arguments: EvaluatorArguments) -> None:
        _needs.torch(type(self).__name__)
        self._step = 0
        self._shown = {
            "episodes of each": arguments.num_trajectories,
            "where busy": arguments.busy_policy,
            "names begin with": arguments.log_prefix,
        }
        given = arguments.env
        if arguments.video is not None:
            given, self._undo = filmed(
                given, Video(Path(arguments.video).absolute(), arguments.log_prefix)
            )
        # A factory makes the environment where the evaluator runs.
        env = _statistics.FrozenFactory(given) if is_function(given) else env_of(given)
        try:
            if arguments.backend == "ray":
                self._launcher = _ray.evaluator_launcher(
                    type(self).__name__, arguments.num_gpus, arguments.ray_kwargs
                )
            with setup.sending() as environments:
                self._make(arguments, env)
                if self._backend == "thread":
                    environments.keep()
        except BaseException:
            self._let_go()
            raise
        self._choice.tell()
        ALIVE.add(self)

    def _make(self, arguments: EvaluatorArguments, env: Any, doubt: str | None = None) -> None:
        """Makes the engine's evaluator; with a ``doubt``, which says why its process has refused
        the graph of the policy, it calls that.
        """
        exploration = exploration_name(arguments.exploration_type)
        apart = _wants_process(env, arguments)
        backend = arguments.policy_backend if doubt is None else "torch"
        choice = _chosen(env, arguments, exploration, backend, apart=apart)
        if doubt is None:
            self._undo = [*self._undo, *_statistics.freeze(env)]
        try:
            sent = _sent(env, choice.core, arguments) if apart else None
            if apart and sent is None:
                choice = _chosen(env, arguments, exploration, backend, apart=False)
            if doubt is not None:
                choice = replace(choice, doubt=doubt, surprise="once")
            self._source, self._choice = choice.source, choice
            self._backend = "thread" if sent is None else arguments.backend or "process"
            if sent is None and arguments.init_fn is not None:
                arguments.init_fn()
            options = _options(arguments, env, sent, choice, exploration)
            self._core = EvaluatorCore({**options, "launcher": self._launcher})
        except Exception as error:
            refused = refusal(error)
            if refused is None:
                raise
            return self._make(arguments, env, unfit(refused))
        if sent is not None:
            # The process has a copy of the environment.
            self._thaw()
        elif choice.beside is not None:
            # Its policy may be called from the beginning.
            choice.beside.begin_attributes()
        _statistics.thaw_recipes(env)

    @property
    def backend(self) -> str:
        """Where environment and policy run: ``"thread"``, ``"process"`` or ``"ray"``."""
        return self._backend

    def evaluate(
        self,
        weights: object = None,
        step: int | None = None,
        *,
        weights_dict: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Evaluates, and waits for the result.

        Args:
            weights: a module, a TensorDict of parameters or a ``state_dict``; by default those that
                the policy has now.
            step: the ``step`` of the result; by default a count of evaluations.
            weights_dict: ``{"policy": weights}``.

        Raises:
            WorkerError: the environment or the policy raised an error.
            RuntimeError: the evaluator was shut down.
            ValueError: weights were given twice, or belong to another policy.
            KeyError: there is no such model.
        """
        return self._core.evaluate(self._weights(weights, weights_dict), self._number(step))

    def trigger_eval(
        self,
        weights: object = None,
        step: int | None = None,
        *,
        weights_dict: Mapping[str, Any] | None = None,
    ) -> bool:
        """As :meth:`evaluate`, without waiting; returns whether the evaluation takes place.

        Raises:
            RuntimeError: another one is running, and ``busy_policy`` is ``"error"``.
        """
        return self._core.trigger(self._weights(weights, weights_dict), self._number(step))

    def poll(self, timeout: float = 0) -> dict[str, Any] | None:
        """Waits for the oldest unread result, for ``timeout`` seconds; returns None after that, or
        at once if nothing is pending.

        Raises:
            ValueError: ``timeout`` is negative or not a number.
            WorkerError: the environment or the policy raised an error in this evaluation.
        """
        return self._core.wait(timeout)

    def wait(self, timeout: float | None = None) -> dict[str, Any] | None:
        """As :meth:`poll`, but waits as long as it takes by default."""
        return self._core.wait(timeout)

    def losses(self) -> list[str]:
        """Errors of environments that were lost and made anew, since the last call; see
        ``on_loss``.
        """
        return self._core.take_losses()

    @property
    def pending(self) -> bool:
        """Whether an evaluation is running or waiting."""
        return self._core.pending()

    @staticmethod
    def extract_weights(module: "torch.nn.Module") -> "tensordict.TensorDictBase":
        """A copy of the parameters and buffers of ``module``, on the CPU."""
        from tensordict import TensorDict

        tensors = tensors_of(module)
        copies = {name: value.detach().cpu().clone() for name, value in tensors.items()}
        return TensorDict(copies, batch_size=[]).unflatten_keys(".")

    def state_dict(self) -> dict[str, Any]:
        """The count of evaluations.

        Raises:
            RuntimeError: an evaluation is running.
        """
        self._idle()
        return {"step": self._step}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Counts on from a saved state.

        Raises:
            RuntimeError: an evaluation is running.
        """
        self._idle()
        self._step = int(state_dict["step"])

    def shutdown(self, timeout: float | None = None) -> None:
        """Ends the running evaluation at its next step, and drops waiting ones.

        Args:
            timeout: seconds that it may take; ``shutdown_timeout`` by default. While
                ``KeyboardInterrupt`` is being handled, or leaves a ``with`` statement, that is a
                fraction of a second: a step that does not return is left behind with its thread,
                and a warning or a note of the exception says so. A process or an actor is killed
                then, and none is left.

        Raises:
            RuntimeError: it took longer, in a thread, which ends when the step returns.
        """
        try:
            if timeout is not None or not self._leave_if_interrupted():
                self._core.shutdown(timeout)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Ends what an evaluator has beside its engine's."""
        self._thaw()
        if self._launcher is not None:
            self._launcher.close()

    def _thaw(self) -> None:
        """Lets the user's environment gather statistics again."""
        undo, self._undo = self._undo, ()
        for each in reversed(undo):
            each()

    def _leave(self, seconds: float | None) -> bool:
        ended = self._core.end(seconds)
        self._let_go()
        return ended

    def _end_with(self, error: BaseException) -> None:
        if not self._leave(None):
            error.add_note(self._left_behind())

    def __del__(self) -> None:
        super().__del__()
        self._let_go()

    @_html.table
    def _repr_html_(self) -> dict[str, Any]:
        state = {
            "runs in": self._backend,
            "now": "busy" if self.pending else "idle",
            "evaluations asked for": self._step,
        }
        return {
            **state,
            **self._shown,
            "policy": self._choice.reason and f"torch: {self._choice.reason}",
        }

    def __repr__(self) -> str:
        if not self._core.belongs_here():
            return "Evaluator(of another process)"
        return f"Evaluator({self._backend}, {self._step} evaluations asked for, {'busy' if self.pending else 'idle'})"

    def _idle(self) -> None:
        if self.pending:
            raise RuntimeError("an evaluation is running: wait for it first")

    def _number(self, step: int | None) -> int:
        number = self._step if step is None else int(step)
        self._step = number + 1
        return number

    def _weights(self, weights: object, by_id: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if by_id is not None:
            if weights is not None:
                raise ValueError("weights_dict names all weights: leave other weights out")
            weights = weights_by_id(by_id)
        if weights is None or weights is self._source:
            # A function in a thread is the user's own, and its weights are those of now.
            weights = {} if self._choice.shared else self._source
        if weights is None:
            return None
        beside = self._choice.beside
        if beside is None:
            return self._choice.published(weights)
        before = beside.leaf.clone()
        published = self._choice.published(weights)
        # What has no weights, and has not changed, keeps its version.
        is_same = list(published) == [BESIDE] and torch.equal(before, beside.leaf)
        return None if is_same else published


def _chosen(
    env: object, arguments: EvaluatorArguments, exploration: str, backend: str, *, apart: bool
) -> Choice:
    """The policy in the form that the engine takes; ``apart`` for one that a process gets."""
    is_here = arguments.backend != "ray"
    return choose(
        arguments.policy,
        policy_factories(_with_env(arguments.policy_factory, env), 1),
        Conditions(
            exploration,
            threads=True,
            apart=apart,
            device=device_of("device", arguments.device, is_here=is_here),
            named=None if arguments.device is None else torch.device(arguments.device),
            is_here=is_here,
            trust=bool(arguments.trust_policy),
            evaluates=True,
        ),
        backend=backend,
        env=env,
    )


def _options(
    arguments: EvaluatorArguments, env: Any, sent: object, choice: Choice, exploration: str
) -> dict[str, Any]:
    """The arguments of the engine's evaluator."""
    options = {
        **arguments.for_engine(),
        "on_result": arguments.listener,
        "write_recordings": None,
        "restarts": None if arguments.on_loss == "raise" else arguments.on_loss,
        "env": env,
        "sent": sent,
        "process": None if sent is None else _windrow.EvaluatorProcess(),
        "metrics_fn": arguments.metrics_fn,
        # The user may change the policy before the evaluator's thread takes it.
        "policy": choice.core if arguments.policy_factory is not None else copied_now(choice.core),
        "exploration_type": exploration,
        "lazy": isinstance(env, Factory) and arguments.policy_factory is not None,
    }
    if (arguments.dump_video or arguments.video) and (
        isinstance(env, Factory) or any(_statistics.recorders(env))
    ):
        options["write_recordings"] = (
            (lambda step: _statistics.dump(env.made if isinstance(env, Factory) else env, step))
            if sent is None
            else RemoteEnv(options["process"], 0).dump
        )
    return options


def _tensors(result: dict[str, Any]) -> "tensordict.TensorDictBase":
    import torch
    from tensordict import TensorDict

    return TensorDict({name: torch.tensor(figure) for name, figure in result.items()})


def _sent(env: object, core: object, arguments: EvaluatorArguments) -> dict[str, Any] | None:
    """What a process gets, by the engine's names; None where it can get none, and nobody has asked
    for a process.

    Raises:
        NoProcesses: a process was asked for, and something cannot be sent to it; the error names
            it.
    """
    if (
        arguments.backend is None
        and isinstance(core, list)
        and arguments.policy is not None
        and held_weights(arguments.policy) is not None
    ):
        return None
    try:
        sent = {
            "env": setup.environments(env, None, arguments.init_fn),
            "policy": setup.policy(core),
        }
        seed = secrets.randbits(63) if arguments.seed is None else arguments.seed
        return {**sent, "seed": seed, "warm": start.uses_torch(core, (env, arguments.init_fn))}
    except NoProcesses as error:
        if arguments.backend is None and arguments.step_timeout is None:
            return None
        to = "its actor" if arguments.backend == "ray" else "its process"
        who = f'backend="{arguments.backend or "process"}"'
        raise error.of(Door(who, to, 'choose backend="thread"', "env")) from error


def _wants_process(env: object, arguments: EvaluatorArguments) -> bool:
    """Whether the evaluator is to run in a process, on this machine or in an actor."""
    if arguments.backend is not None:
        return arguments.backend != "thread"
    return not _stays(env, arguments)


def _stays(env: object, arguments: EvaluatorArguments) -> bool:
    """Whether the evaluator runs in a thread if the user does not say where."""
    if sys.platform != "linux" or _wants_env(arguments.policy_factory):
        return True
    if isinstance(env, Factory) or arguments.step_timeout is not None:
        return False
    recipe = _convert.of(env)
    return recipe.is_native is True or getattr(recipe, "own", True)


def _wants_env(factory: Callable[..., object] | None) -> bool:
    """Whether a ``policy_factory`` requires an environment."""
    if factory is None:
        return False
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return False
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(
        parameter.kind in by_position and parameter.default is inspect.Parameter.empty
        for parameter in parameters
    )


def _with_env(factory: Callable[..., T] | None, env: object) -> Callable[..., T] | None:
    """``factory`` as a function without arguments, which passes the environment on if ``factory``
    requires one.
    """
    return factory if factory is None or not _wants_env(factory) else _OfEnv(factory, env)


class _OfEnv:
    """Calls ``factory`` with the environment that is stepped in the same process; where that is
    another one, with an environment that is made for the call.
    """

    #: See :func:`windrow.processes.blame.parts`.
    is_around_a_function = True

    def __init__(self, factory: Callable[..., Any], env: Any) -> None:
        self.factory, self._env = factory, env

    def __call__(self) -> Any:
        env = self._env
        if not isinstance(env, Factory):
            return self.factory(env)
        if env.made is not None:
            return self.factory(env.made)
        try:
            made = env()
        except Exception as error:
            error.add_note(
                "policy_factory has a parameter, so an environment is made here too: without one, it needs none"
            )
            raise
        try:
            return self.factory(made)
        finally:
            made.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (_of_env, self.factory)


def _of_env(factory: Callable[..., T]) -> T:
    """What ``factory`` makes for the environment of this worker process."""
    env = setup.worker.environment
    return factory(env.made if isinstance(env, Factory) else env)
