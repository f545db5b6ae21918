from __future__ import annotations

import atexit
import inspect
import time
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from windrow import _needs, _policy, _weights
from windrow._exploration import name_of
from windrow._numbers import whole, whole_or_none
from windrow._passed_over import Fixed, outside, pass_over
from windrow._windrow import EvaluatorCore
from windrow.collectors import _arguments, _patience
from windrow.collectors._reach import Factory

if TYPE_CHECKING:
    from tensordict import TensorDictBase

_ALIVE: weakref.WeakSet[Evaluator] = weakref.WeakSet()

#: Arguments of TorchRL's evaluator that change nothing here.
_WITHOUT_EFFECT: dict[str, Fixed] = {
    "frames_per_batch": (None, "an evaluation takes as many frames as its episodes have"),
    "collector_cls": (None, "an evaluator collects by itself"),
    "collector_kwargs": (None, "an evaluator collects by itself"),
    "weight_sync_schemes": (None, "weights are copied when an evaluation is asked for"),
    "num_gpus": (0, "an evaluator is a thread of this process"),
    "ray_kwargs": (None, "an evaluator is a thread of this process"),
}


class Evaluator:
    """Plays whole episodes with a copy of a policy, in a thread of its own, while training goes on.

    Results are dictionaries: ``eval/reward`` is the mean return of the episodes, beside ``eval/reward_std``,
    ``eval/num_episodes``, ``eval/episode_length``, ``eval/fps``, ``eval/step`` and ``eval/policy_version``.

    An evaluation that fails has its error as its result, whether its environment, its policy or ``metrics_fn`` raised it. One
    whose result was not read raises it at the next call of :meth:`evaluate`, :meth:`trigger_eval` or :meth:`shutdown`; where
    there is none before the end of the evaluator, it is shown to ``sys.unraisablehook``. The next evaluation starts over.

    It uses statistics that its environment shares with those of training, such as TorchRL's ``VecNorm`` or Gymnasium's
    ``NormalizeObservation`` gather, and does not change them; those of an environment of its own stay what they were made
    with. A module acts in evaluation mode, as after ``module.eval()``.

    Args:
        env: an environment, an id, or a function that returns one, which is called once, in the thread of the evaluator: with
            the first evaluation where the policy has a function too, otherwise at once.
        policy: who acts; it is copied, and never touched again.
        policy_factory: a function that makes a policy for the evaluator alone, of the environment that will be evaluated in
            if it has a parameter without a default; it is called in the thread of the evaluator.
        num_trajectories: episodes of each evaluation.
        max_steps: truncate episodes after so many steps, which ``step_count`` then counts; ``eval_step_count`` where the
            environment counts them itself.
        log_prefix: what names of results begin with.
        exploration_type: as of collectors; the policy's best guess unless told otherwise.
        metrics_fn: more figures by name, from the TensorDict of all episodes.
        on_result: called with each result as a TensorDict, in the thread of the evaluator, which it must not wait for. An
            error of its own is shown to ``sys.unraisablehook``, and changes nothing.
        busy_policy: what becomes of an evaluation that is asked for during another: ``"skip"``, ``"error"`` or ``"queue"``.
        seed: of the environment, and of the actions that windrow draws itself; torch's generator goes on by itself.
        device: where a policy that torch evaluates is evaluated.
        policy_backend: as of collectors.
        trust_policy: as of collectors.
        backend: ``"thread"``.
        init_fn: called first of all.
        reward_keys: ``("next", "reward")``.
        done_keys: ``("next", "done")``.
        dump_video: False.
        shutdown_timeout: seconds that a shutdown waits for the step that is being taken; ``inf`` is no limit.
        others: what TorchRL's evaluator can be told besides; a warning says why it has no effect.

    Raises:
        ValueError: an argument makes no sense.
        TypeError: an argument is unknown.
    """

    def __init__(
        self,
        env: Any,
        policy: Any = None,
        *,
        policy_factory: Callable[..., Any] | None = None,
        num_trajectories: int = 10,
        max_steps: int | None = None,
        log_prefix: str = "eval",
        exploration_type: Any = "deterministic",
        metrics_fn: Callable[[Any], Mapping[str, float]] | None = None,
        on_result: Callable[[TensorDictBase], None] | None = None,
        busy_policy: str = "skip",
        seed: int | None = None,
        device: Any = None,
        policy_backend: str = "auto",
        trust_policy: bool = False,
        backend: str = "thread",
        init_fn: Callable[[], None] | None = None,
        shutdown_timeout: float = 5.0,
        reward_keys: Any = ("next", "reward"),
        done_keys: Any = ("next", "done"),
        dump_video: bool = False,
        **others: Any,
    ) -> None:
        # Whoever imports collectors needs no environments before there is one.
        from windrow.collectors import _statistics

        pass_over(type(self).__name__, others, _WITHOUT_EFFECT)
        _needs.torch(type(self).__name__)
        _key("reward_keys", reward_keys, ("next", "reward"))
        _key("done_keys", done_keys, ("next", "done"))
        if backend != "thread":
            raise ValueError(f'backend must be "thread", got {backend!r}')
        if (policy is None) == (policy_factory is None):
            raise ValueError("an evaluator needs a policy or a policy_factory, and not both")
        if dump_video:
            raise ValueError("dump_video: environments of windrow record no videos")
        if init_fn is not None:
            init_fn()
        exploration = name_of(exploration_type)
        if isinstance(env, str):
            from windrow.envs import GymEnv

            env = GymEnv(env, categorical_action_encoding=True)
        elif _arguments.is_function(env):
            env = Factory(_statistics.frozen(env))
        choice = _policy.choose(
            policy,
            _arguments.factories(_with_env(policy_factory, env), 1),
            backend=policy_backend,
            exploration_type=exploration,
            threads=True,
            device=_arguments.device_of("device", device),
            trust=trust_policy,
            env=env,
            evaluates=True,
        )
        self._source = choice.source
        self._step = 0
        self._undo = _statistics.freeze(env)
        try:
            self._core = EvaluatorCore(
                {
                    "env": env,
                    # What is the user's own may be another by the time that the evaluator's thread takes it.
                    "policy": choice.core if policy is None else _policy.copied_now(choice.core),
                    "num_trajectories": whole("num_trajectories", num_trajectories, 1),
                    "max_steps": whole_or_none("max_steps", max_steps, 1),
                    "seed": seed,
                    "exploration_type": exploration,
                    "busy_policy": busy_policy,
                    "log_prefix": log_prefix,
                    "metrics": None if metrics_fn is None else lambda batch: dict(metrics_fn(batch)),
                    "on_result": None if on_result is None else lambda result: on_result(_tensors(result)),
                    "shutdown_timeout": shutdown_timeout,
                    "lazy": isinstance(env, Factory) and policy is None,
                }
            )
        except BaseException:
            self._thaw()
            raise
        _ALIVE.add(self)

    def evaluate(
        self, weights: Any = None, step: int | None = None, *, weights_dict: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Evaluates, and waits for the result.

        Args:
            weights: a module, a TensorDict of parameters or a ``state_dict``; those that the policy has by now where there is
                nothing.
            step: what is reported as ``step``; evaluations are counted where there is nothing.
            weights_dict: ``{"policy": weights}``.

        Raises:
            WorkerError: the environment or the policy raised an error.
            RuntimeError: the evaluator was shut down.
            KeyError: there is no such model.
        """
        return self._core.evaluate(self._weights(weights, weights_dict), self._number(step))

    def trigger_eval(
        self, weights: Any = None, step: int | None = None, *, weights_dict: Mapping[str, Any] | None = None
    ) -> bool:
        """As :meth:`evaluate`, without waiting: whether the evaluation takes place.

        Raises:
            RuntimeError: another one is running, and ``busy_policy`` is ``"error"``.
        """
        return self._core.trigger(self._weights(weights, weights_dict), self._number(step))

    def poll(self, timeout: float = 0) -> dict[str, Any] | None:
        """The oldest result that was not read yet; None if there is none within ``timeout`` seconds, and at once where nothing
        is pending.

        Raises:
            ValueError: ``timeout`` is less than 0, or no number.
            WorkerError: the environment or the policy raised an error in this evaluation.
        """
        return self._core.wait(timeout)

    def wait(self, timeout: float | None = None) -> dict[str, Any] | None:
        """As :meth:`poll`, for as long as it takes. None where nothing is pending."""
        return self._core.wait(timeout)

    @property
    def pending(self) -> bool:
        """Whether an evaluation is running or waiting."""
        return self._core.pending()

    @staticmethod
    def extract_weights(module: Any) -> TensorDictBase:
        """A copy of the parameters and buffers of ``module``, on the CPU."""
        from tensordict import TensorDict

        tensors = _weights.tensors_of(module)
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
        """Ends what is running at its next step, and forgets what is waiting.

        Args:
            timeout: seconds that it may take; ``shutdown_timeout`` where nothing is said. While ``KeyboardInterrupt`` is being
                handled, or leaves a ``with`` statement, that is a fraction of a second: a step that does not come back is left
                behind with its thread, as a warning or a note of the exception says.

        Raises:
            RuntimeError: that took longer. The thread ends when it comes back.
        """
        try:
            if timeout is not None or not _patience.is_interrupted():
                self._core.shutdown(timeout)
            elif not self._core.end(_patience.IMPATIENCE):
                warnings.warn(_patience.left_behind(type(self).__name__), RuntimeWarning, stacklevel=outside())
        finally:
            self._thaw()

    def _thaw(self) -> None:
        """Lets an environment that was handed over gather statistics again, as before."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is None:
            self.shutdown()
            return
        # An error that leaves the context is the one to be seen.
        if not self._core.end(_patience.IMPATIENCE if isinstance(error, KeyboardInterrupt) else None):
            error.add_note(_patience.left_behind(type(self).__name__))
        self._thaw()

    def __getstate__(self) -> Any:
        raise TypeError(
            f"a {type(self).__name__} runs an environment, and can be neither copied nor pickled: make another one, or pass on a "
            "function that makes it"
        )

    def __del__(self) -> None:
        # Before the garbage collector takes an environment and a policy apart that refer to the evaluator. There is no core
        # where it could not be built.
        core = getattr(self, "_core", None)
        if core is not None:
            core.finalize()
            self._thaw()

    def __repr__(self) -> str:
        if not self._core.belongs_here():
            return "Evaluator(of another process)"
        return f"Evaluator({self._step} evaluations asked for, {'busy' if self.pending else 'idle'})"

    def _idle(self) -> None:
        if self.pending:
            raise RuntimeError("an evaluation is running: wait for it first")

    def _number(self, step: int | None) -> int:
        number = self._step if step is None else int(step)
        self._step = number + 1
        return number

    def _weights(self, weights: Any, by_id: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if by_id is not None:
            strange = sorted(set(by_id) - {"policy"})
            if strange:
                raise KeyError(f"no model is called {strange[0]!r}: there is 'policy' alone")
            weights = by_id.get("policy") if weights is None else weights
        if weights is None:
            weights = self._source
        return None if weights is None else _weights.widened(_weights.weights_of(weights))


def _tensors(result: dict[str, Any]) -> TensorDictBase:
    import torch
    from tensordict import TensorDict

    return TensorDict({name: torch.tensor(figure) for name, figure in result.items()})


def _with_env(factory: Any, env: Any) -> Any:
    """``factory`` as a function without arguments, which gives it the environment that was made before where it wants one."""
    if not callable(factory) or not _wants_argument(factory):
        return factory

    def make() -> Any:
        return factory(env.made if isinstance(env, Factory) else env)

    return make


def _wants_argument(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(parameter.kind in by_position and parameter.default is inspect.Parameter.empty for parameter in parameters)


def _key(name: str, given: Any, only: tuple[str, str]) -> None:
    if given not in (only, list(only), [only]):
        raise ValueError(f"{name} must be {only}, which is what episodes are made of here, got {given!r}")


@atexit.register
def _end_all() -> None:
    """Ends what is still alive: threads that need the interpreter must be through before it is."""
    deadline = time.monotonic() + _patience.at_exit()
    for evaluator in list(_ALIVE):
        evaluator._core.end(max(deadline - time.monotonic(), 0.1))
