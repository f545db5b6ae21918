"""Vectors of Gymnasium's environments, which Python steps, one after the other."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from windrow.vectors._base import Notes, Stepped, VectorEnv, refuse_unlike, reset_needed
from windrow.vectors._losses import LOST, Known, Losses

#: Spaces whose batched values are one array.
_ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class PythonVector(VectorEnv):
    """Environments of Gymnasium in this process. If they are a part of a larger vector, ``first``
    is the number of the first one there.

    Attributes:
        envs: the environments.
        losses: counts the environments that are lost.
    """

    #: Text that errors add after the number of an environment.
    _in_worker = ""

    def __init__(
        self,
        makers: Sequence[Callable[[], Any]],
        mode: AutoresetMode,
        wrap: Callable[[Any], Any] | None = None,
        form: str = "arrays",
        first: int = 0,
        on_loss: Literal["raise"] | int = "raise",
    ) -> None:
        self._makers, self._wrap = makers, wrap
        self.envs = [_environment(make) for make in makers]
        if len({id(env.unwrapped) for env in self.envs}) < len(self.envs):
            raise ValueError(
                f"expected functions that make a new environment at each call, got {self.envs[0]} more than once"
            )
        if wrap is not None:
            self.envs = [wrap(env) for env in self.envs]
        own = self.envs[0]
        for number, env in enumerate(self.envs, first):
            refuse_unlike(
                number,
                (own.observation_space, own.action_space),
                (env.observation_space, env.action_space),
                first,
            )
        super().__init__(
            len(self.envs), own.observation_space, own.action_space, mode, dict(own.metadata), form
        )
        self.render_mode, self._number = own.render_mode, first
        #: What each environment has observed last.
        self._seen: list[Any] = [None] * self.num_envs
        self._over = np.zeros(self.num_envs, np.bool_)
        self._arrays = Arrays(self.single_observation_space, self.num_envs)
        observed, acted = self.single_observation_space, self.action_space
        #: Shape and element type of observations that are copied as they are.
        self._observed = (observed.shape, observed.dtype) if type(observed) is spaces.Box else None
        self._acts_by_rows = type(acted) in _ARRAYS
        self.losses = Losses(on_loss, self.num_envs, self.num_envs, first)
        #: Seeds of the first episodes of environments that have replaced others.
        self._new: dict[int, int | None] = {}

    def _begin(
        self, envs: list[int], seeds: list[int | None], options: dict[str, Any] | None
    ) -> tuple[Any, Notes]:
        notes: Notes = []
        self.losses.begin(envs, seeds)
        for env, seed in zip(envs, seeds, strict=True):
            notes.append((env, self._first(env, seed, options)))
        self._over[envs] = False
        return self._observation(), notes

    def _first(
        self, number: int, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Begins an episode in an environment, and returns ``info``. Replaces the environment if
        its reset fails, as often as ``on_loss`` allows.
        """
        lost: dict[str, Any] = {}
        while True:
            new = self._new.pop(number, None)
            seed = new if seed is None else seed
            try:
                self._seen[number], info = self.envs[number].reset(seed=seed, options=options)
            except Exception as error:
                lost, seed = self._replace(number, error), None
            else:
                return {**info, **lost} if lost else info

    def _replace(self, number: int, error: Exception) -> dict[str, Any]:
        """Replaces an environment that has raised ``error`` by a new one. Returns an ``info`` with
        the reason.

        Raises:
            Exception: ``error`` if no more may be lost, or the exception of making the new one. A
                note names the environment.
        """
        if self.losses.left(0) <= 0:
            error.add_note(
                f"It was raised by environment {self._number + number}{self._in_worker}."
            )
            raise error
        with contextlib.suppress(Exception):
            self.envs[number].close()
        try:
            made = _environment(self._makers[number])
            self.envs[number] = made if self._wrap is None else self._wrap(made)
        except Exception as failed:
            failed.add_note(
                f"It was raised by environment {self._number + number}{self._in_worker}, when it was made again after {type(error).__name__}: {error}."
            )
            raise
        [self._new[number]] = self.losses.replace(0, [number])
        return {LOST: f"{type(error).__name__}: {error}"}

    def take_over(self, seeds: Sequence[int | None], known: Known | None) -> None:
        """Has all environments begin new episodes with ``seeds`` at their next step or reset, in a
        process in the place of another, of whose losses this is ``known``.
        """
        self._new = dict(enumerate(seeds))
        self._over[:] = True
        self.losses.take_over(0, known)

    def _stepped(self, actions: Any) -> Stepped:
        rewards, flags = np.zeros(self.num_envs), np.zeros((3, self.num_envs), np.bool_)
        terminated, truncated, lost = flags
        notes: Notes = []
        mode, over, seen = self.autoreset_mode, self._over.tolist(), self._seen
        if mode is AutoresetMode.DISABLED and any(over):
            raise reset_needed((np.flatnonzero(over) + self._number).tolist())
        each = (
            actions
            if self._acts_by_rows and type(actions) is np.ndarray
            else iterate(self.action_space, actions)
        )
        for number, (env, action) in enumerate(zip(self.envs, each, strict=True)):
            if over[number] and mode is AutoresetMode.NEXT_STEP:
                notes.append((number, self._first(number)))
                continue
            try:
                seen[number], rewards[number], terminated[number], truncated[number], info = (
                    env.step(action)
                )
            except Exception as error:
                info = self._replace(number, error)
                truncated[number] = lost[number] = True
            if mode is AutoresetMode.SAME_STEP and (terminated[number] or truncated[number]):
                notes.append((number, {"final_obs": seen[number], "final_info": info}))
                info = self._first(number)
            notes.append((number, info))
        self._over = terminated | truncated
        self.losses.end(slice(None), self._over & ~lost)
        return self._observation(), rewards, terminated, truncated, notes

    def _observation(self) -> object:
        """An array of what all environments have observed, or the structure of arrays that their
        space asks for.
        """
        into, seen = self._arrays.free(), self._seen
        if self._observed is None or any(
            type(one) is not np.ndarray or (one.shape, one.dtype) != self._observed for one in seen
        ):
            return concatenate(self.single_observation_space, seen, into)
        for row, one in enumerate(seen):
            into[row] = one
        return into

    def _called(
        self,
        envs: Sequence[int],
        name: str,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        found = [self.envs[env].get_wrapper_attr(name) for env in envs]
        return [one(*args, **(kwargs or {})) if callable(one) else one for one in found]

    def _set(self, envs: Sequence[int], name: str, values: Sequence[Any]) -> None:
        for env, value in zip(envs, values, strict=True):
            self.envs[env].set_wrapper_attr(name, value)

    def _are_wrapped(self, envs: Sequence[int], wrapper: type) -> list[bool]:
        return [is_wrapped(self.envs[env], wrapper) for env in envs]

    def close_extras(self, **kwargs: object) -> None:
        """Closes the environments."""
        for env in self.envs:
            env.close()


def _environment(make: Callable[[], Any]) -> gymnasium.Env[Any, Any]:
    made = make()
    if not isinstance(made, gymnasium.Env):
        raise TypeError(
            f"expected a function that makes an environment of Gymnasium, got {type(made).__name__} from {make!r}"
        )
    return made


class Counted(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gives ``info["episode"]`` at the end of an episode as a ``Monitor`` of Stable-Baselines3
    does, unless the environment gives its own.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._since, self._return, self._length = time.time(), 0.0, 0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self._return, self._length = 0.0, 0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        seen, reward, terminated, truncated, info = self.env.step(action)
        self._return, self._length = self._return + float(reward), self._length + 1
        if terminated or truncated:
            info.setdefault(
                "episode",
                {
                    "r": round(self._return, 6),
                    "l": self._length,
                    "t": round(time.time() - self._since, 6),
                },
            )
        return seen, reward, terminated, truncated, info


def is_wrapped(env: Any, wrapper: type) -> bool:
    """Whether ``env`` has this wrapper around it, at any depth."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, wrapper):
            return True
        env = env.env
    return False


def _holders(arrays: list[Any], place: int) -> int:
    return sys.getrefcount(arrays[place])


#: What an array counts that is in one list and nowhere else.
_ALONE = _holders([np.zeros(1)], 0)


class Arrays:
    """Arrays for the observations of ``num_envs`` environments, each used again once nobody else
    holds it. Observations that are no single array get new ones each time.
    """

    #: Arrays that are looked through before another is made.
    MOST = 4

    def __init__(self, space: Any, num_envs: int) -> None:
        self._space, self._num_envs = space, num_envs
        self._are_reused = type(space) in _ARRAYS
        self._made: list[Any] = []
        self._last = 0

    def free(self) -> Any:
        """One that nobody else holds."""
        if not self._are_reused:
            return create_empty_array(self._space, self._num_envs)
        for place in range(len(self._made)):
            if _holders(self._made, place) == _ALONE and self._is_as_made(self._made[place]):
                self._last = place
                return self._made[place]
        made = create_empty_array(self._space, self._num_envs)
        if len(self._made) < self.MOST:
            self._made.append(made)
            self._last = len(self._made) - 1
        else:
            # The oldest is left to whoever holds it.
            self._last = (self._last + 1) % self.MOST
            self._made[self._last] = made
        return made

    def _is_as_made(self, array: Any) -> bool:
        expected = (self._num_envs, *(self._space.shape or ()))
        return bool(
            array.shape == expected and array.flags.writeable and array.dtype == self._space.dtype
        )
