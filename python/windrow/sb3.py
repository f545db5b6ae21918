"""windrow's environments for the loop of Stable-Baselines3 (SB3):
``PPO("MlpPolicy", windrow.sb3.VecEnv("CartPole-v1", 8))``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array
from stable_baselines3.common import vec_env
from stable_baselines3.common.monitor import Monitor

from windrow.vectors._base import VectorEnv
from windrow.vectors._engine import EngineVector
from windrow.vectors._make import Wanted
from windrow.vectors._python import Counted, PythonVector, is_wrapped

__all__ = ["VecEnv"]


class VecEnv(vec_env.VecEnv):
    """Environments in the form that models of SB3 take, stepped by windrow.

    Observations are arrays over memory that is used again once nobody holds them: what you keep
    never changes. ``infos`` have ``"terminal_observation"``, ``"TimeLimit.truncated"`` and, at the
    end of an episode, ``"episode"`` as SB3's ``Monitor`` gives it.

    Args:
        env: as for :func:`windrow.make_vec`: an id, a function that makes an environment of
            Gymnasium or a list of these, or an environment of windrow.
        n_envs: how many, by default 1, or as many as the list has.
        monitor: whether infos have ``"episode"``; environments that have a ``Monitor`` of their own
            need no other.
        **kwargs: ``workers``, ``transforms``, ``native``, ``on_loss`` and ``step_timeout`` as of
            :func:`windrow.make_vec`; others are passed to ``gymnasium.make``.

    Raises:
        TypeError: ``env`` is nothing that an environment can be made of.

    Example:
        >>> from stable_baselines3 import PPO
        >>> from windrow.sb3 import VecEnv
        >>> model = PPO("MlpPolicy", VecEnv("CartPole-v1", 8), n_steps=64, device="cpu")
        >>> model.learn(1024).num_timesteps
        1024
    """

    def __init__(
        self, env: Any, n_envs: int | None = None, *, monitor: bool = True, **kwargs: Any
    ) -> None:
        known = {"workers", "transforms", "native", "on_loss", "step_timeout"}
        given = {name: kwargs.pop(name) for name in known & kwargs.keys()}
        # A process of environments needs neither SB3 nor torch.
        wrap = None if not monitor else _monitored if given.get("workers") is None else Counted
        wanted = Wanted(n_envs, mode=AutoresetMode.SAME_STEP, wrap=wrap, kwargs=kwargs, **given)
        self._vector: VectorEnv = wanted.made_of(env)
        #: When episodes began to be counted, where the engine counts them.
        self._counted_since = (
            time.time() if monitor and isinstance(self._vector, EngineVector) else None
        )
        #: Whether episodes are counted by something that is no ``Monitor``.
        self._is_counted = monitor and not isinstance(self._vector, PythonVector)
        self._actions: Any = None
        vector = self._vector
        super().__init__(
            vector.num_envs, vector.single_observation_space, vector.single_action_space
        )
        self.metadata = vector.metadata

    def reset(self) -> Any:
        """Begins an episode in each environment, with the seeds and options that were set: the
        observations.
        """
        options = self._options if any(self._options) else None
        every = list(range(self.num_envs))
        if options is None or all(one == options[0] for one in options):
            seen, notes = self._vector._begin(
                every, list(self._seeds), options[0] if options else None
            )
        else:
            notes = []
            for env in every:
                seen, more = self._vector._begin([env], [self._seeds[env]], options[env] or None)
                notes += more
        self.reset_infos = [{} for _ in every]
        for env, info in notes:
            self.reset_infos[env] = info
        # They hold for one reset.
        self._reset_seeds()
        self._reset_options()
        return seen

    def step_async(self, actions: np.ndarray) -> None:
        """Takes the actions of a step."""
        self._actions = actions

    def step_wait(self) -> Any:
        """Steps all environments by them: observations, rewards, whether episodes have ended, and
        infos.
        """
        seen, rewards, terminated, truncated, notes = self._vector._stepped(
            self._batched(self._actions)
        )
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": False} for _ in range(self.num_envs)]
        # Notes tell of each end, so that without one there is nothing to look for in the flags.
        dones = terminated
        for env, info in notes:
            if "final_obs" in info:
                is_cut = bool(truncated[env]) and not terminated[env]
                last = self._with_episode(info["final_info"])
                infos[env] = {
                    **last,
                    "terminal_observation": info["final_obs"],
                    "TimeLimit.truncated": is_cut,
                }
                dones = terminated | truncated
            elif "terminal_observation" in infos[env]:
                self.reset_infos[env] = info
            else:
                infos[env] = {**info, "TimeLimit.truncated": False}
        return seen, rewards.astype(np.float32, copy=False), dones, infos

    def _batched(self, actions: Any) -> Any:
        """Actions in the structure that Gymnasium's vectors take, where they are a list with one
        for each environment.
        """
        if isinstance(actions, np.ndarray) or not isinstance(
            self.action_space, (spaces.Dict, spaces.Tuple)
        ):
            return np.asarray(actions)
        into: Any = create_empty_array(self.action_space, self.num_envs)
        return concatenate(self.action_space, actions, into)

    def _with_episode(self, info: dict[str, Any]) -> dict[str, Any]:
        """``info`` with the episode as a ``Monitor`` gives it."""
        if self._counted_since is None:
            return info
        episode = info["episode"]
        return {
            **info,
            "episode": {
                **episode,
                "r": round(episode["r"], 6),
                "t": round(time.time() - self._counted_since, 6),
            },
        }

    def close(self) -> None:
        """Closes the environments."""
        self._vector.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """The attribute of each of the environments ``indices``, or of all."""
        return self._vector._called(self._indices(indices), attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Sets an attribute of each of the environments ``indices``, or of all."""
        envs = self._indices(indices)
        self._vector._set(envs, attr_name, [value] * len(envs))

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """What the method of each of the environments ``indices``, or of all, returns."""
        return self._vector._called(self._indices(indices), method_name, method_args, method_kwargs)

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: Any = None
    ) -> list[bool]:
        """Whether each of the environments ``indices``, or of all, has this wrapper around it. Of
        those whose episodes are counted in Rust or in processes, ``Monitor`` is one.
        """
        envs = self._indices(indices)
        if self._is_counted and issubclass(Monitor, wrapper_class):
            return [True for _ in envs]
        return self._vector._are_wrapped(envs, wrapper_class)

    def _indices(self, indices: Any) -> list[int]:
        # Those below 0 count from the end.
        return [range(self.num_envs)[index] for index in self._get_indices(indices)]

    @property
    def envs(self) -> list[Any]:
        """The environments, where they are objects in this process."""
        return self._vector.envs  # type: ignore[attr-defined]

    def get_images(self) -> Sequence[np.ndarray | None]:
        """The picture of each environment."""
        return list(self._vector.render() or [])


def _monitored(env: Any) -> Any:
    """``env`` with a ``Monitor`` around it, if it has none."""
    return env if is_wrapped(env, Monitor) else Monitor(env)
