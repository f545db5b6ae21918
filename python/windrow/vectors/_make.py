"""Makes vectors of environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from windrow import _needs
from windrow._arguments import one_of
from windrow._lazy import gymnasium, module
from windrow._numbers import cores, seconds_or_none, whole_or_none
from windrow._types import AnyTransform
from windrow._windrow import VectorCore, mujoco_arguments, native_ids, native_info
from windrow.envs._convert import of
from windrow.envs._gymnasium import by_id, check_arguments
from windrow.envs._native import EXACT_REWARD, NotNative, arguments_of, tell_of_gymnasium
from windrow.envs._recipe import Call, Many, Native, Parallel, Recipe
from windrow.envs._transform import Compose, around
from windrow.vectors._losses import checked

if TYPE_CHECKING:
    from windrow.vectors import _base, _engine, _processes, _python
else:
    # Their classes are derived from Gymnasium's.
    _base, _engine, _processes, _python = (
        module(f"windrow.vectors.{name}") for name in ("_base", "_engine", "_processes", "_python")
    )


def make_vec(
    env: Any,
    num_envs: int | None = None,
    *,
    workers: int | None = None,
    transforms: AnyTransform | list[AnyTransform] | tuple[AnyTransform, ...] = (),
    autoreset_mode: gymnasium.vector.AutoresetMode | str = "NextStep",
    native: bool | None = None,
    episode_statistics: bool = False,
    final_info: str = "arrays",
    batch_size: int | None = None,
    on_loss: Literal["raise"] | int = "raise",
    step_timeout: float | None = None,
    **kwargs: Any,
) -> _base.VectorEnv:
    """A vector of environments as Gymnasium has it, stepped by windrow.

    Args:
        env: the id of an environment; a function that makes one of Gymnasium, or a list of such
            functions or ids, one for each; or an environment of :mod:`windrow.envs`, with its
            transforms.
        num_envs: how many, by default 1, or as many as the list has.
        workers: threads that step native environments, or processes that others run in; none by
            default: the environments step one after the other in the calling thread, which is
            fastest for those that step in microseconds.
        transforms: a transform of :mod:`windrow.envs` around each environment, or several, the
            first nearest to it. ``info`` of an environment of Gymnasium does not come through them.
        autoreset_mode: when an environment whose episode has ended begins another one: in its next
            step, in the same step, or when it is told to. See
            :class:`gymnasium.vector.AutoresetMode`.
        native: whether ids that windrow has itself run in Rust, as they do by default. With
            ``False``, or with arguments that Rust does not take, such as ``render_mode``, all are
            Gymnasium's.
        episode_statistics: whether ``info["episode"]`` has returns, lengths and seconds, ``"r"``,
            ``"l"`` and ``"t"``, of episodes that have ended, as ``RecordEpisodeStatistics`` around
            each environment gives them.
        final_info: ``"arrays"`` in ``info["final_info"]``, as Gymnasium has them since version 1;
            or one of ``"dictionaries"``, one for each environment that has ended and None for
            others, and ``"final_observation"`` beside ``"final_obs"``, as scripts for versions
            before read them; not with ``batch_size``.
        batch_size: how many environments are received at a time, those first that are ready first,
            as from EnvPool: ``async_reset()`` begins episodes, ``recv()`` returns what ``step``
            returns, of ``batch_size`` environments, and ``send(actions, info["env_id"])`` has them
            step.
        on_loss: handles an environment of Gymnasium that raises, or whose process ends or is
            frozen. ``"raise"`` raises an error that names it. A number says how often each worker
            replaces environments that it has lost. The row of a lost environment is its last
            observation, with the reward 0, truncated, and ``info["lost"]`` is the reason. The new
            environment begins another episode, as after any other end; its seed follows from the
            last seed, the number and the episode of the environment. It lacks values that
            ``set_attr`` has set. With ``autoreset_mode="SameStep"``, the reason is in
            ``info["final_info"]``. Any exception of ``step`` is a loss, also that of an action
            outside the space.
        step_timeout: seconds that a step or reset of a process's environments may take. A process
            that takes longer counts as frozen and is killed, which is a loss. Needs environments in
            processes.
        **kwargs: passed to ``gymnasium.make``, such as ``render_mode``, or to the native
            environment, for ids.

    Raises:
        TypeError: ``env`` is nothing that an environment can be made of.
        ValueError: an argument is out of range, or two of them contradict each other.
        WorkerError: the process of an environment has ended.

    Example:
        >>> import windrow
        >>> envs = windrow.make_vec("CartPole-v1", 3)
        >>> observation, info = envs.reset(seed=0)
        >>> observation, reward, terminated, truncated, info = envs.step(envs.action_space.sample())
        >>> observation.shape, reward
        ((3, 4), array([1., 1., 1.]))
    """
    _needs.module("make_vec", "gymnasium", "gymnasium")
    wrap = gymnasium.wrappers.RecordEpisodeStatistics if episode_statistics else None
    modes = gymnasium.vector.AutoresetMode
    mode = modes(
        one_of(*(mode.value for mode in modes))(
            "autoreset_mode", getattr(autoreset_mode, "value", autoreset_mode)
        )
    )
    wanted = Wanted(
        num_envs,
        mode,
        workers,
        transforms,
        native,
        wrap,
        final_info,
        batch_size,
        on_loss,
        step_timeout,
        kwargs,
    )
    return wanted.made_of(env)


@dataclass(frozen=True)
class Wanted:
    """What a vector is to be like: the arguments of :func:`make_vec`."""

    num_envs: int | None
    mode: gymnasium.vector.AutoresetMode
    workers: int | None = None
    transforms: AnyTransform | list[AnyTransform] | tuple[AnyTransform, ...] = ()
    native: bool | None = None
    #: What goes around each environment of Gymnasium to count episodes, which the engine does
    #: itself; None where nobody counts.
    wrap: Callable[[Any], Any] | None = None
    form: str = "arrays"
    batch_size: int | None = None
    on_loss: Literal["raise"] | int = "raise"
    step_timeout: float | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        one_of(*_base.FORMS)("final_info", self.form)
        for name in ("num_envs", "workers", "batch_size"):
            whole_or_none(name, getattr(self, name), 1)
        checked("on_loss", self.on_loss)
        seconds_or_none("step_timeout", self.step_timeout)
        if self.batch_size is not None and self.mode.name == "DISABLED":
            raise ValueError(
                "batch_size needs environments that begin another episode by themselves, got autoreset_mode DISABLED"
            )
        if self.batch_size is not None and self.form != "arrays":
            raise ValueError(
                f"final_info={self.form!r} is for vectors that are stepped as a whole: leave batch_size out, got {self.batch_size}"
            )

    def made_of(self, env: Any) -> _base.VectorEnv:
        """The vector of ``env``."""
        is_list = isinstance(env, (list, tuple))
        makers = list(env) if is_list else [env] * (self.num_envs or 1)
        if not makers or self.num_envs not in (None, len(makers)):
            raise ValueError(
                f"expected a list of {self.num_envs or 'one or more'} environments, as num_envs says, got {len(makers)}"
            )
        if self.on_loss != "raise" and (
            given := [maker for maker in makers if isinstance(maker, gymnasium.Env)]
        ):
            raise ValueError(
                f"on_loss={self.on_loss} makes new environments, got one object, {given[0]}: give a function that makes one"
            )
        if self.workers is None and not self.transforms:
            makers = _made_by_windrow(makers)
        vector: _base.VectorEnv
        are_ids = all(isinstance(maker, str) for maker in makers)
        # Transforms and windrow's own classes say what is observed.
        entries = (
            _entries(makers[0])
            if are_ids and self.native is not False and not self.transforms
            else {}
        )
        if (recipes := self._recipes(makers, entries)) is not None:
            if self.kwargs and not are_ids:
                raise TypeError(
                    f"arguments of gymnasium.make are for ids, got {sorted(self.kwargs)}"
                )
            self._check_killable(in_processes=False)
            if self.on_loss != "raise" and any(
                recipe.is_native is not True or isinstance(recipe, Parallel) for recipe in recipes
            ):
                raise ValueError(
                    f"on_loss={self.on_loss} replaces environments of functions and ids of Gymnasium, without transforms: wrap them in "
                    "the function instead, or leave on_loss out"
                )
            vector = _engine.EngineVector(
                self._core(recipes), self.mode, self.form, self.batch_size, entries
            )
        elif self.workers is None:
            if self.batch_size is not None:
                raise ValueError(
                    f"batch_size={self.batch_size} is for environments in threads or processes: workers is how many"
                )
            self._check_killable(in_processes=False)
            vector = _python.PythonVector(
                _functions(makers, self.kwargs),
                self.mode,
                self.wrap,
                self.form,
                on_loss=self.on_loss,
            )
        else:
            members = divides("workers", min(self.workers, len(makers)), len(makers))
            self._check_killable(in_processes=True)
            groups = _processes.sent(
                _functions(makers, self.kwargs), self.mode, self.wrap, members, self.on_loss
            )
            losses = (self.on_loss, self.step_timeout)
            vector = _processes.ProcessVector(
                groups, self.mode, self.form, len(makers) // members, self.batch_size, losses
            )
        if isinstance(env, str) and env in gymnasium.registry:
            vector.spec = gymnasium.spec(env)
        return vector

    def _check_killable(self, *, in_processes: bool) -> None:
        """Raises ValueError if there is a time-out but no process that it could kill."""
        if self.step_timeout is not None and not in_processes:
            raise ValueError(
                f"step_timeout={self.step_timeout} needs environments of Gymnasium in processes, which can be killed: workers is how many"
            )

    def _core(self, recipes: list[Recipe]) -> VectorCore:
        """What steps environments of the engine's."""
        counts, mode = self.wrap is not None, self.mode
        is_plain = all(isinstance(recipe, Native) and not recipe.transforms for recipe in recipes)
        if not is_plain and mode.name == "NEXT_STEP":
            # Each by itself: one that begins anew is left out of a step.
            recipes = [Many((recipe,)) for recipe in recipes]
        if self.workers is None and self.batch_size is None:
            return VectorCore([Many(tuple(recipes))], mode.value, None, False, counts)
        if any(recipe.is_native is not True for recipe in recipes):
            raise ValueError(
                "workers step native environments, and those of functions and ids of Gymnasium without transforms"
            )
        count, threads = len(recipes), self.workers or cores()
        members = (
            count if self.batch_size is not None else divides("workers", min(threads, count), count)
        )
        each = count // members
        groups = [Many(tuple(recipes[first : first + each])) for first in range(0, count, each)]
        return VectorCore(groups, mode.value, threads, False, counts)

    def _recipes(self, makers: list[Any], entries: Mapping[str, bool]) -> list[Recipe] | None:
        """Recipes of all environments, where the engine is to step them: windrow's own, which
        observe ``entries``, and others with transforms around them.
        """
        found = [self._recipe(makers[0], entries)]
        # Most are the same.
        found += [
            found[0] if maker is makers[0] else self._recipe(maker, entries) for maker in makers[1:]
        ]
        known = [recipes for recipes in found if recipes is not None]
        if known and len(known) < len(found):
            raise TypeError(
                "expected environments that are all native, or none of them: native=False runs Gymnasium's"
            )
        return [recipe for recipes in known for recipe in recipes] or None

    def _recipe(self, maker: Any, entries: Mapping[str, bool]) -> list[Recipe] | None:
        """The recipes of what one makes; None where the engine is not to step it."""
        recipe: Recipe | None = None
        if isinstance(maker, str):
            recipe = _native(maker, self.kwargs, entries) if self.native is not False else None
            if recipe is None and self.transforms:
                recipe = of(by_id(maker, self.kwargs))
        elif isinstance(maker, Recipe) or hasattr(type(maker), "_recipe") or self.transforms:
            recipe = of(maker)
        return (
            None
            if recipe is None
            else [
                around(single, Compose(self.transforms).transforms)
                for single in _singles(_by_index(recipe))
            ]
        )


def _native(env_name: str, kwargs: dict[str, Any], entries: Mapping[str, bool]) -> Native | None:
    """Windrow's own environment with this id, where it has one that takes these arguments."""
    try:
        return Native(env_name, False, arguments=arguments_of(env_name, kwargs, list(entries)))
    except NotNative as reason:
        check_arguments(make_vec, env_name, kwargs)
        tell_of_gymnasium(env_name, reason)
        return None


def _entries(env_name: str) -> dict[str, bool]:
    """What the environment of this id tells in ``info``, where it is native, and whether resets do,
    too.
    """
    is_of_mujoco = env_name in mujoco_arguments()
    entries = native_info(env_name) if is_of_mujoco or env_name in native_ids() else {}
    # Those of MuJoCo and tables, whose rewards may be no numbers of single precision.
    return {**entries, EXACT_REWARD: False} if is_of_mujoco or "prob" in entries else entries


def _made_by_windrow(makers: list[Any]) -> list[Any]:
    """``makers``, where functions make environments of windrow the environments. What the first
    function makes tells; an environment of Gymnasium is kept for the first place.
    """
    first = makers[0]
    if isinstance(first, (str, Recipe)) or hasattr(first, "step") or not callable(first):
        return makers
    made = first()
    if hasattr(type(made), "_recipe"):
        return [made, *(maker() for maker in makers[1:])]
    kept = [made]
    # If the kept environment is lost, a new one replaces it.
    return [lambda: kept.pop() if kept else first(), *makers[1:]]


def _singles(recipe: Recipe) -> list[Recipe]:
    """The environments of ``recipe``, each by itself where nothing is around several."""
    if type(recipe) is not Many or recipe.transforms:
        return [recipe]
    return [single for member in recipe.members for single in _singles(member)]


def _by_index(recipe: Recipe) -> Recipe:
    """The same with choices as indices, as Gymnasium's spaces have them."""
    if isinstance(recipe, Many):
        return replace(recipe, members=tuple(map(_by_index, recipe.members)))
    if isinstance(recipe, Call):
        return replace(recipe, function=partial(_called, recipe.function))
    return replace(recipe, one_hot=False) if hasattr(recipe, "one_hot") else recipe  # type: ignore[call-arg]


def _called(function: Callable[..., Any], **kwargs: Any) -> Recipe:
    """The recipe of what ``function`` makes, with choices as indices."""
    return _by_index(of(function(**kwargs), None, False))


def divides(name: str, number: int, count: int) -> int:
    """``number``, which divides ``count``."""
    if count % number:
        raise ValueError(f"{name}={number} must divide the number of environments, {count}")
    return number


def _itself(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    return env


def _functions(makers: list[Any], kwargs: dict[str, Any]) -> list[Callable[[], Any]]:
    """Functions that make the environments of Gymnasium."""
    functions = []
    for maker in makers:
        if isinstance(maker, str):
            check_arguments(make_vec, maker, kwargs)
            functions.append(by_id(maker, kwargs))
        elif isinstance(maker, gymnasium.Env):
            if len(makers) > 1 or kwargs:
                raise TypeError(
                    f"{maker} is one object, which cannot be {len(makers)} environments: give a function that makes one"
                )
            functions.append(partial(_itself, maker))
        elif callable(maker):
            if kwargs:
                raise TypeError(
                    f"arguments of gymnasium.make are for ids, got {sorted(kwargs)} and a function"
                )
            functions.append(maker)
        else:
            raise TypeError(
                f"expected the id of an environment, or a function that makes one, got {type(maker).__name__}"
            )
    return functions
