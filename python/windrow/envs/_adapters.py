"""Environments of other libraries in the form of Gymnasium's, and around those of Gymnasium.
Imported where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from windrow._keys import path
from windrow._lazy import tensordict

if TYPE_CHECKING:
    import dm_env
    from stable_baselines3.common.vec_env import VecEnv

    from windrow._types import Array
    from windrow.envs._video import Recording, Video


class Reading(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose ``info`` has what ``readers`` make of it as well: functions of the info
    and of a TensorDict, to which they write, as TorchRL's ``set_info_dict_reader`` takes them.

    Attributes:
        read: the names of what they have made so far.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], readers: tuple[Any, ...]) -> None:
        super().__init__(env)
        self._readers = readers
        self.read: set[tuple[str, ...]] = set()

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**options)
        return observation, self._with_read(info)

    def step(self, action: object) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        *stepped, info = self.env.step(action)
        return (*stepped, self._with_read(info))

    def _with_read(self, info: dict[str, Any]) -> dict[str, Any]:
        made = tensordict.TensorDict({}, [])
        for reader in self._readers:
            returned = reader(info, made)
            made = made if returned is None else returned
        info = dict(info)
        for key, value in made.items(True, True):
            names = path(key)
            level = info
            for name in names[:-1]:
                level[name] = dict(level[name]) if isinstance(level.get(name), Mapping) else {}
                level = level[name]
            level[names[-1]] = value.detach().cpu().numpy()
            self.read.add(names)
        return info

    @classmethod
    def around(
        cls, make: Callable[[], gymnasium.Env[Any, Any]], readers: tuple[Any, ...]
    ) -> Reading:
        """One around what ``make()`` returns."""
        return cls(make(), readers)


class Film(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that films its first episode for ``video``, and the first after each
    :meth:`take`.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], video: Video) -> None:
        super().__init__(env)
        self._video = video
        video.add(self)
        self._recording: Any = None
        self._steps = 0
        self._is_over = False

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        began = self.env.reset(**options)
        # An episode without a step is none: environments are reset more than once before they
        # begin.
        self._is_over |= self._steps > 0
        if not self._is_over:
            self._recording = self._video.begin(self.env.metadata.get("render_fps", 30))
            self._film()
        return began

    def step(self, action: object) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        stepped = self.env.step(action)
        if self._recording is not None and not self._is_over:
            self._film()
            self._steps += 1
            self._is_over = bool(stepped[2] or stepped[3])
        return stepped

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._video.add(self)

    def _film(self) -> None:
        self._recording.add(np.asarray(self.env.render()))

    def take(self) -> Recording | None:
        """The recording, if there is one. The next episode begins another."""
        recording, self._recording = self._recording, None
        self._steps, self._is_over = 0, False
        return recording


class DmEnv(gymnasium.Env[Any, Any]):
    """A ``dm_env.Environment``."""

    def __init__(self, env: dm_env.Environment) -> None:
        self._env = env
        self.observation_space, self.action_space = (
            _space(env.observation_spec()),
            _space(env.action_spec()),
        )

    @property
    def unwrapped(self) -> dm_env.Environment:
        return self._env

    def reset(
        self, *, seed: int | None = None, options: object = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            # Where environments of dm_control have their generator.
            task = getattr(self._env, "task", None)
            owner, name = (
                (task, "_random") if hasattr(task, "_random") else (self._env, "_random_state")
            )
            if not hasattr(owner, name):
                raise ValueError(
                    f"{type(self._env).__name__} is seeded when it is made, as environments of dm_env are: expected no seed, got {seed}"
                )
            setattr(owner, name, np.random.RandomState(seed % 2**32))
        return self._env.reset().observation, {}

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time = self._env.step(action)
        terminated = time.last() and time.discount == 0
        return time.observation, time.reward or 0.0, terminated, time.last() and not terminated, {}

    def close(self) -> None:
        self._env.close()


def _space(spec: Any) -> spaces.Space[Any]:
    """The space of a spec of dm_env."""
    if isinstance(spec, Mapping):
        return spaces.Dict({name: _space(one) for name, one in spec.items()})
    if isinstance(spec, (list, tuple)):
        return spaces.Tuple([_space(one) for one in spec])
    if hasattr(spec, "num_values"):
        return spaces.Discrete(int(spec.num_values))
    if spec.dtype == bool:
        return spaces.MultiBinary(spec.shape)
    if spec.dtype.kind not in "fiu":
        return spaces.Text(1)
    integers = spec.dtype.kind in "iu"
    least, most = (
        (np.iinfo(spec.dtype).min, np.iinfo(spec.dtype).max) if integers else (-np.inf, np.inf)
    )
    low, high = getattr(spec, "minimum", least), getattr(spec, "maximum", most)
    return spaces.Box(
        np.full(spec.shape, low, spec.dtype),
        np.full(spec.shape, high, spec.dtype),
        spec.shape,
        spec.dtype.type,
    )


class _Vector(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A vector of another library, with one observation and one action space."""

    def __init__(
        self, inner: Any, num_envs: int, observation: spaces.Space[Any], action: spaces.Space[Any]
    ) -> None:
        self._inner, self.num_envs = inner, num_envs
        self.single_observation_space, self.single_action_space = observation, action
        self.observation_space, self.action_space = (
            batch_space(observation, num_envs),
            batch_space(action, num_envs),
        )

    @property
    def unwrapped(self) -> Any:
        return self._inner

    def close_extras(self, **kwargs: object) -> None:
        self._inner.close()


class DmPool(_Vector):
    """An EnvPool of dm_env's form. Its time steps do not tell a time limit from an end, and the
    pool does.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, pool: Any) -> None:
        super().__init__(
            pool, len(pool), pool.spec.gymnasium_observation_space, pool.spec.gymnasium_action_space
        )

    def reset(self, env_id: Array | None = None, **kwargs: object) -> tuple[Any, dict[str, Any]]:
        self._inner._reset(self._inner.all_env_ids if env_id is None else env_id)
        return self._received()[0], {}

    def step(self, actions: object) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self._inner.send(actions)
        observation, values = self._received()
        return observation, values["reward"], values["done"] & ~values["trunc"], values["trunc"], {}

    def _received(self) -> tuple[Any, dict[str, Any]]:
        values = dict(zip(self._inner._state_keys, self._inner._recv(), strict=True))
        seen: dict[str, Any] = {}
        for key, value in values.items():
            if key.startswith("obs"):
                *groups, last = key.removeprefix("obs:").replace(":", ".").split(".")
                level = seen
                for group in groups:
                    level = level.setdefault(group, {})
                level[last] = value
        observation: Any = seen
        while isinstance(observation, dict) and not isinstance(
            self.single_observation_space, spaces.Dict
        ):
            (observation,) = observation.values()
        return observation, values


class Sb3Vector(_Vector):
    """A ``VecEnv`` of Stable-Baselines3."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, vector: VecEnv) -> None:
        super().__init__(vector, vector.num_envs, vector.observation_space, vector.action_space)

    def reset(
        self, *, seed: int | None = None, options: object = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._inner.seed(seed)
        return self._inner.reset(), {}

    def step(self, actions: Array) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, done, infos = self._inner.step(actions)
        cut = np.array([bool(info.get("TimeLimit.truncated")) for info in infos]) & done
        final = [info.get("terminal_observation") for info in infos]
        return observation, reward, done & ~cut, cut, {"final_obs": final, "final_info": infos}


def of_dm_env(env: object) -> DmPool | DmEnv | None:
    """An environment of dm_env, or an EnvPool of that form, in the form of Gymnasium; None for
    another object.
    """
    from dm_env import Environment

    if not isinstance(env, Environment):
        return None
    return DmPool(env) if hasattr(env, "async_reset") else DmEnv(env)


def of_sb3(env: object) -> Sb3Vector | None:
    """A ``VecEnv`` in the form of Gymnasium; None for another object."""
    from stable_baselines3.common.vec_env import VecEnv

    return Sb3Vector(env) if isinstance(env, VecEnv) else None
