"""Environments by their id, and those of Gymnasium, where TorchRL has them."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from windrow import _fence
from windrow._arguments import one_of, warn_all_ignored
from windrow._keys import Key
from windrow._lazy import gymnasium, is_installed, module, torch
from windrow._numbers import whole_or_none
from windrow._types import Device, Environment
from windrow._warnings import warn
from windrow._windrow import EnvHandle, native_ids
from windrow.envs import _info
from windrow.envs._base import EnvBase
from windrow.envs._batched import ParallelEnv
from windrow.envs._factory import is_function
from windrow.envs._gymnasium import by_id, check_arguments, with_pixels
from windrow.envs._native import NotNative, arguments_of, tell_of_gymnasium
from windrow.envs._recipe import Entry, Gymnasium, Many, Native, Recipe, Vector
from windrow.envs._registry import adapted
from windrow.envs.transforms import primed_for

if TYPE_CHECKING:
    from windrow.envs._video import Video

__all__ = ["GymEnv", "GymWrapper"]

_adapters = module("windrow.envs._adapters")
_blame, _setup = module("windrow.processes.blame"), module("windrow.processes.setup")

BACKENDS = ("auto", "native", "gymnasium")
_NO_OPTIONS = 'native environments take no options: reset_options and reset(options=...) need backend="gymnasium"'
_NO_INFO = 'native environments observe entries of info by their names: other info_keys need backend="gymnasium"'


#: Arguments of TorchRL that have no effect: the value that holds, and why.
_IGNORED: dict[str, tuple[Any, str]] = {
    "allow_done_after_reset": (False, "an episode that has ended begins anew"),
    "auto_reset": (False, "an episode that has ended begins anew"),
    "auto_reset_replace": (True, "an episode that has ended begins anew"),
    "batch_size": ([], "num_envs is the number of environments"),
    "compile": (False, "nothing is compiled"),
    "convert_actions_to_numpy": (True, "environments get arrays"),
    "missing_obs_value": (None, "there is a value for each observation"),
    "native_autoreset": (False, "an episode that has ended begins anew"),
    "run_type_checks": (False, "values have the types of their specs"),
    "spec_locked": (True, "specs cannot be changed"),
}


def _made_with(kwargs: dict[str, Any]) -> dict[str, Any]:
    """What an environment of Gymnasium is made with, of ``kwargs``; warns of others."""
    given = {name: kwargs[name] for name in sorted(kwargs.keys() & _IGNORED)}
    if given.get("batch_size") is not None:
        given["batch_size"] = list(given["batch_size"])
    warn_all_ignored(given, _IGNORED)
    return {
        name: value
        for name, value in kwargs.items()
        if name not in _IGNORED and (name, value) != ("disable_env_checker", None)
    }


class ResetOptions:
    """The options of an environment's resets: ``given`` for all of them, or returned by that for
    each.
    """

    def __init__(
        self, given: Mapping[str, Any] | Callable[[], Mapping[str, Any] | None] | None
    ) -> None:
        if given is not None and not isinstance(given, Mapping) and not callable(given):
            raise TypeError(
                f"expected options of resets, or a function that returns them, as reset_options, got {given!r}"
            )
        self.given = given
        self._once: Mapping[str, Any] | None = None
        #: Whether there were any.
        self.is_used = given is not None
        self._warn_of_copies()

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._warn_of_copies()

    def _warn_of_copies(self) -> None:
        """Warns in a worker process if the function reads state that is only a copy there."""
        if not callable(self.given) or not _setup.worker.is_process:
            return
        if (held := _blame.held_state(self.given)) is not None:
            warn(
                f"reset_options{held}: a worker process has a copy of it, which no change in the process of the collector reaches. Store "
                'it in the environment and set it by collector.set_attr or collector.call, or choose placement="threads"'
            )

    def around(self, make: Any) -> gymnasium.Env[Any, Any]:
        """The environment ``make``, or that ``make()`` returns, whose resets have these options."""
        env = make() if is_function(make) else make
        if not self.is_around(env):
            env.reset = partial(self._reset, env.reset)
        return env

    @contextlib.contextmanager
    def used(self, options: Mapping[str, Any]) -> Iterator[None]:
        """In this context, resets have ``options``."""
        self._once, self.is_used = options, True
        try:
            yield
        finally:
            self._once = None

    def is_around(self, env: Any) -> bool:
        """Whether resets of ``env`` have these options."""
        return getattr(vars(env).get("reset"), "func", None) == self._reset

    def _reset(self, reset: Callable[..., Any], **arguments: Any) -> object:
        options = self._once
        if options is None:
            options = self.given() if callable(self.given) else self.given
        return reset(**arguments) if options is None else reset(**arguments, options=dict(options))


class _Ids:
    def __get__(self, env: object, owner: type) -> list[str]:
        try:
            return sorted({*native_ids(), *gymnasium.registry})
        except ImportError:
            return sorted(native_ids())


class GymEnv(EnvBase):
    """An environment by its id: windrow's own where it has one, Gymnasium's otherwise.

    An observation space that is no dictionary is observed as ``"observation"``, and as ``"pixels"``
    where it is a picture in colours, ``Box(0, 255, (height, width, 3))``. A number, ``Box`` of
    shape ``()``, is observed as ``[1]``, as in TorchRL.

    Args:
        env_name: an id such as ``"CartPole-v1"``; an environment of Gymnasium is taken as it is.
        categorical_action_encoding: give choices as indices (``int64 []``) instead of one-hot
            vectors (``int64 [n]``).
        frame_skip: how many times each action is taken; rewards add up.
        from_pixels: observe pictures of the environment as ``"pixels"``
            (``uint8 [height, width, 3]``), as it renders itself in the mode ``"rgb_array"``. One
            that observes pictures has them under this name in any case.
        pixels_only: with ``from_pixels``, observe nothing else.
        info_keys: observe these entries of what the environment returns in ``info``: names, tuples
            of names for what lies in a dictionary, such as ``[("episode", "r")]``; or a dictionary
            of such names, each with something that has the shape and dtype of the entry, such as a
            spec or an array. Without that they are taken from a reset and a first step, and what
            does not come there is a number (``float32``). Zeros stand where the environment returns
            none.
        num_workers: more than 1 makes a :class:`ParallelEnv` of so many.
        policy: a module; the environment, with transforms around it, observes what its recurrent
            states begin with, and where episodes do.
        reset_options: options of every ``reset`` of Gymnasium's environment, or a function that
            returns those of the next episode. The function is called where the environment is. A
            worker process has a copy of the function and of what it reads, and warns of that. To
            change options there, set attributes of the environments through ``collector.env``.
        num_envs: number of environments in lockstep, batch size ``[num_envs]``; None or 0 is a
            single one without that dimension.
        device: where tensors are put.
        backend: ``"native"``, ``"gymnasium"``, or None for the first of them that has the
            environment with these arguments.
        kwargs: passed to ``gymnasium.make``, or to windrow's own environment where it takes them.

    Raises:
        ValueError: there is no such backend, or it cannot make the environment, or draw it.

    Example:
        >>> from windrow.envs import GymEnv
        >>> env = GymEnv("CartPole-v1")
        >>> env.reset()["observation"].shape
        torch.Size([4])
    """

    #: Ids of environments, windrow's own and those that Gymnasium has registered.
    available_envs = _Ids()

    def __new__(
        cls,
        *args: Any,
        num_workers: int | None = None,
        policy: torch.nn.Module | None = None,
        **kwargs: Any,
    ) -> Any:
        """Several environments with ``num_workers``, each in a worker process."""
        if policy is not None:
            if num_workers is not None:
                kwargs["num_workers"] = num_workers
            return primed_for(policy, cls(*args, **kwargs))
        if num_workers is None or num_workers == 1:
            return super().__new__(cls)
        return ParallelEnv(num_workers, partial(cls, *args, **kwargs), device=kwargs.get("device"))

    def __init__(
        self,
        env_name: str | Environment,
        *,
        categorical_action_encoding: bool = False,
        frame_skip: int | None = None,
        from_pixels: bool = False,
        pixels_only: bool = True,
        info_keys: Sequence[Key] | Mapping[Key, Any] | None = None,
        num_workers: int | None = None,
        policy: torch.nn.Module | None = None,
        reset_options: Mapping[str, Any] | Callable[[], Mapping[str, Any] | None] | None = None,
        num_envs: int | None = None,
        device: Device | None = None,
        backend: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(device)
        if not isinstance(env_name, str) and not hasattr(env_name, "observation_space"):
            raise TypeError(
                f"expected the id of an environment or an environment of Gymnasium, got {env_name!r}"
            )
        self._name: Any = env_name
        self._kwargs = _made_with(kwargs)
        self._one_hot = not categorical_action_encoding
        self._frame_skip = whole_or_none("frame_skip", frame_skip, 1) or 1
        self._from_pixels, self._pixels_only = from_pixels, pixels_only
        #: None for all.
        self._info_wanted: _info.Wanted | None = (
            {} if info_keys is None else _info.wanted(info_keys)
        )
        #: Functions that make entries of info.
        self._readers: tuple[Any, ...] = ()
        #: None until they are asked for.
        self._info_entries: tuple[Entry, ...] | None = None if self._info_wanted else ()
        self._options = ResetOptions(reset_options)
        #: The video that an evaluator films it for.
        self._video: Any = None
        #: What a native environment is made with.
        self._arguments = ""
        self._given_backend = backend or "auto"
        self.backend = self._choose(self._given_backend)
        self._num_envs = whole_or_none("num_envs", num_envs, 0) or 0
        if self._num_envs and not isinstance(env_name, str):
            raise ValueError(f"num_envs={num_envs} needs an id: one object is one environment")

    def _opened(self) -> Any:
        """The environment of Gymnasium, which scripts reach for as ``_env``: from now on this one
        steps that object.
        """
        if isinstance(self._name, str):
            if self._num_envs or self._given_backend == "native":
                raise AttributeError(
                    f"{self!r} has no environment of Gymnasium, or several: GymEnv(id, backend='gymnasium') has one"
                )
            self.backend = "gymnasium"
            made: Any = self._single_recipe()
            self._name, self._from_pixels = made.env(), False
            self._source = self._handle = self._facts = None
        return self._name

    def __getattr__(self, name: str) -> Any:
        given = vars(self)
        if name == "_env" and "_num_envs" in given:
            return self._opened()
        # Other names with an underscore are asked for by the interpreter, by pickle and by windrow
        # itself.
        if name.startswith("_") or isinstance(given.get("_name", ""), str):
            raise _fence.lacking(self, name)
        return getattr(given["_name"], name)

    def _choose(self, backend: str) -> str:
        one_of(*BACKENDS)("backend", backend)
        if backend == "gymnasium":
            if isinstance(self._name, str):
                check_arguments(GymEnv, self._name, self._kwargs)
            return backend
        try:
            self._arguments = self._native_arguments()
        except NotNative as reason:
            if backend == "native":
                raise
            if isinstance(self._name, str):
                check_arguments(GymEnv, self._name, self._kwargs)
                tell_of_gymnasium(self._name, reason)
            return "gymnasium"
        return "native"

    def _native_arguments(self) -> str:
        """What windrow's own environment is made with, where it does what is asked for."""
        if self._from_pixels:
            raise NotNative(
                'native environments cannot be drawn: from_pixels needs backend="gymnasium"'
            )
        if self._options.given is not None:
            raise NotNative(_NO_OPTIONS)
        wanted = self._info_wanted
        if (
            self._readers
            or wanted is None
            or any(len(names) > 1 or spec is not None for names, spec in wanted.items())
        ):
            raise NotNative(_NO_INFO)
        return arguments_of(self._name, self._kwargs, [names[0] for names in wanted])

    def _new_recipe(self) -> Recipe:
        single = self._single_recipe()
        return Many((single,) * self._num_envs) if self._num_envs else single

    def _single_recipe(self) -> Recipe:
        if self.backend == "native":
            return Native(self._name, self._one_hot, self._frame_skip, self._arguments)
        own = not isinstance(self._name, str)
        if own:
            env = with_pixels(self._name, self._pixels_only) if self._from_pixels else self._name
        else:
            pixels = None if not self._from_pixels else "only" if self._pixels_only else "beside"
            env = by_id(self._name, self._kwargs, pixels)
        if self._readers:
            env = (
                _adapters.Reading(env, self._readers)
                if own
                else partial(_adapters.Reading.around, env, self._readers)
            )
        if not own:
            env = partial(self._options.around, env)
        elif self._options.is_used:
            env = self._options.around(env)
        if self._video is not None:
            env = self._video.around(env) if own else partial(self._video.around, env)
        return Gymnasium(env, own, self._one_hot, self._frame_skip, self._info_of(env, own))

    def _info_of(self, env: Any, own: bool) -> tuple[Entry, ...]:
        """The entries of ``info`` that are observed of ``env``, as in a recipe; it is stepped where
        nothing else tells what they are.
        """
        if self._info_entries is None:
            wanted, seen = self._info_wanted, {}
            if wanted is None or self._readers or any(spec is None for spec in wanted.values()):
                # No collector can step the user's own meanwhile.
                held = EnvHandle(env) if own else None
                made = env if own else env()
                seen = _info.seen_in_a_step(made)
                if wanted is not None and self._readers:
                    wanted = {**_info.wanted(sorted(made.read)), **wanted}
                del held
                if not own:
                    made.close()
            self._info_entries = tuple(_info.entries(wanted, seen))
        return self._info_entries

    def set_info_dict_reader(
        self, info_dict_reader: object = None, ignore_private: bool = True
    ) -> GymEnv:
        """This environment, which observes entries of ``info`` from now on.

        Args:
            info_dict_reader: a ``default_info_dict_reader`` of TorchRL, whose keys and specs are
                taken; a function of the info and of a TensorDict, to which it writes numbers, those
                that come with a reset and a first step being observed from now on; None for all
                numbers of info that come with these.
            ignore_private: True: what begins with an underscore is never observed.

        Raises:
            TypeError: it is no reader; or a function is to read the info of a vector.
            ValueError: there is no info to read, or it was ``ignore_private=False``.
        """
        if not ignore_private:
            raise ValueError(
                "ignore_private=False: entries of info that begin with an underscore are not observed"
            )
        keys, specs = (
            getattr(info_dict_reader, "keys", None),
            getattr(info_dict_reader, "info_spec", None),
        )
        if info_dict_reader is not None and not hasattr(info_dict_reader, "keys"):
            if not callable(info_dict_reader):
                raise TypeError(
                    f"expected a function of info and a TensorDict, got {type(info_dict_reader).__name__}"
                )
            if isinstance(self._name, gymnasium.vector.VectorEnv):
                raise TypeError(
                    "info of a vector is read by its names: expected a default_info_dict_reader, or None, got a function"
                )
            self._readers += (info_dict_reader,)
            keys = {} if specs is None else dict(specs.items())
        elif specs is not None:
            # A reader that was given names alone takes each for a number.
            keys = {
                key: spec if tuple(spec.shape) else None for key, spec in specs.items(True, True)
            }
        if keys is None or self._info_wanted is None:
            self._info_wanted = None
        else:
            self._info_wanted = {**self._info_wanted, **_info.wanted(keys)}
        if self.backend == "native":
            self.backend = self._choose(self._given_backend)
        self._info_entries = self._source = self._handle = self._facts = None
        return self

    def _with_options(self, options: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
        if self.backend == "native":
            raise ValueError(_NO_OPTIONS)
        if self._num_envs or hasattr(self._name, "num_envs"):
            return super()._with_options(options)
        if not self._options.is_used and not isinstance(self._name, str):
            # The engine has the reset of the object without them.
            self._source = self._handle = None
        return self._options.used(options)

    def _film_for(self, video: Video) -> None:
        """Lets itself be filmed; an environment that is made from an id is made with pictures."""
        if isinstance(self._name, str):
            if self._given_backend == "native":
                raise ValueError(
                    f'native environments cannot be drawn: video needs {self._name} with backend="gymnasium"'
                )
            self.backend, self._kwargs = "gymnasium", {"render_mode": "rgb_array", **self._kwargs}
        self._video = video

    @property
    def info_dict_reader(self) -> list[Any]:
        """The functions that read entries of ``info``."""
        return list(self._readers)

    def auto_register_info_dict(
        self, ignore_private: bool = True, *, info_dict_reader: object = None
    ) -> GymEnv:
        """The same as :meth:`set_info_dict_reader`."""
        return self.set_info_dict_reader(info_dict_reader, ignore_private)

    @property
    def from_pixels(self) -> bool:
        """Whether it observes pictures, as ``"pixels"``."""
        return "pixels" in self.observation_keys

    @property
    def spec(self) -> gymnasium.envs.registration.EnvSpec | None:
        """Gymnasium's ``EnvSpec`` of the environment, with the arguments that this one was made
        with, such as ``spec.max_episode_steps``; None if Gymnasium knows none of this id.
        """
        if not isinstance(self._name, str):
            return self._name.spec
        if not is_installed("gymnasium"):
            return None
        try:
            spec = copy.deepcopy(gymnasium.spec(self._name))
        except gymnasium.error.Error:
            return None
        given = {**self._kwargs}
        spec.max_episode_steps = given.pop("max_episode_steps", spec.max_episode_steps)
        spec.kwargs.update(given)
        return spec

    @property
    def env_name(self) -> str:
        """The id."""
        return self._name if isinstance(self._name, str) else self._known().id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r}, backend={self.backend!r})"


class GymWrapper(GymEnv):
    """An environment of Gymnasium that was made already, or a vector of them.

    Args:
        env: a ``gymnasium.Env`` or a ``gymnasium.vector.VectorEnv``, in any of its autoreset modes,
            an EnvPool, an environment of ``dm_env``, or a ``VecEnv`` of Stable-Baselines3.

    The other arguments are those of :class:`GymEnv`, but for ``num_envs``, ``num_workers``,
    ``backend`` and those of ``gymnasium.make``. An environment that ``from_pixels`` draws was made
    with ``render_mode="rgb_array"``. Vectors take neither ``frame_skip`` nor ``from_pixels``, and
    the shapes of their ``info_keys`` are those of one environment.
    """

    def __init__(
        self,
        env: Environment,
        *,
        categorical_action_encoding: bool = False,
        frame_skip: int | None = None,
        from_pixels: bool = False,
        pixels_only: bool = True,
        info_keys: Sequence[Key] | Mapping[Key, Any] | None = None,
        policy: torch.nn.Module | None = None,
        reset_options: Mapping[str, Any] | Callable[[], Mapping[str, Any] | None] | None = None,
        device: Device | None = None,
    ) -> None:
        made = adapted(env)
        env = made if hasattr(made, "observation_space") else env
        super().__init__(
            env,
            categorical_action_encoding=categorical_action_encoding,
            frame_skip=frame_skip,
            from_pixels=from_pixels,
            pixels_only=pixels_only,
            info_keys=info_keys,
            reset_options=reset_options,
            device=device,
            backend="gymnasium",
        )

    def _new_recipe(self) -> Recipe:
        if not isinstance(self._name, gymnasium.vector.VectorEnv):
            return super()._new_recipe()
        if self._frame_skip != 1:
            raise ValueError(f"a vector takes every action once, got frame_skip={self._frame_skip}")
        if self._from_pixels:
            raise ValueError("a vector cannot be drawn: give from_pixels to single environments")
        return Vector(self._name, True, self._one_hot, self._info_of(self._name, True))


def env_of(given: object) -> Any:
    """The environment that an id stands for; an environment stays as it is."""
    return GymEnv(given, categorical_action_encoding=True) if isinstance(given, str) else given
