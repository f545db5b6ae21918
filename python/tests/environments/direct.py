"""Environments stepped by hand with the actions of a batch, to compare the two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

#: Names of batches that no space has.
BARE = ("observation", "pixels", "action")


def leaves(
    space: Any, value: Any, names: tuple[str, ...]
) -> dict[tuple[str, ...], np.ndarray[Any, Any]]:
    """The numbers of `value`, an element of `space`, under the names that batches have for them."""
    if isinstance(space, spaces.Dict):
        return {
            key: leaf
            for name, one in space.items()
            for key, leaf in leaves(one, value[name], (*names, name)).items()
        }
    if isinstance(space, spaces.Tuple):
        inner = enumerate(space.spaces)
        return {
            key: leaf
            for i, one in inner
            for key, leaf in leaves(one, value[i], (*names, str(i))).items()
        }
    if isinstance(space, spaces.Discrete):
        return {names: np.eye(int(space.n), dtype=np.int64)[int(value) - int(space.start)]}
    if not isinstance(space, (spaces.Box, spaces.MultiBinary)):
        return {}
    return {names: np.asarray(value)}


def observed(space: Any, value: Any) -> dict[tuple[str, ...], np.ndarray[Any, Any]]:
    """As :func:`leaves`, of an observation."""
    if isinstance(space, spaces.Dict):
        return leaves(space, value, ())
    is_picture = (
        isinstance(space, spaces.Box)
        and len(space.shape) == 3
        and space.shape[-1] == 3
        and space.dtype == np.uint8
    )
    return leaves(space, value, ("pixels" if is_picture else "observation",))


def acted(space: Any, value: torch.Tensor) -> Any:
    """The action of one environment as it takes it."""
    if isinstance(space, spaces.Discrete):
        index = int(value.argmax()) if value.dim() else int(value)
        return index + int(space.start)
    return value.numpy().astype(space.dtype).reshape(space.shape)


def agree(frame: Any, seen: Mapping[tuple[str, ...], Any], where: str) -> int:
    """Compares what is `seen` with a frame of a batch: every leaf, to the last bit. The number of
    values.
    """
    for names, expected in seen.items():
        got = frame[names].numpy()
        if got.ndim < expected.ndim or (got.ndim == 0 and expected.ndim == 1):
            # A single choice as an index.
            got = np.eye(expected.size, dtype=np.int64)[int(got)]
        np.testing.assert_array_equal(got.reshape(expected.shape), expected, f"{where}: {names}")
    return sum(expected.size for expected in seen.values())


def agree_on_step(
    frame: Any, seen: Any, reward: Any, terminated: Any, truncated: Any, where: str
) -> int:
    following = frame["next"]
    assert following["reward"].item() == np.float32(reward), f"{where}: reward"
    assert (following["terminated"].item(), following["truncated"].item()) == (
        bool(terminated),
        bool(truncated),
    ), where
    assert following["done"].item() == bool(terminated or truncated), where
    return 4 + agree(following, seen, f"{where}, next")


def compare_single(batch: Any, env: gymnasium.Env[Any, Any], seed: int) -> tuple[int, int]:
    """Steps `env`, which was just made, with the actions in `batch` `[T]`. The numbers of values
    and of ends.
    """
    space = env.observation_space
    observation, _ = env.reset(seed=seed)
    values, ends = 0, 0
    for step, frame in enumerate(batch.unbind(-1)):
        values += agree(frame, observed(space, observation), f"step {step}")
        observation, *outcome, _ = env.step(acted(env.action_space, frame["action"]))
        values += agree_on_step(frame, observed(space, observation), *outcome, f"step {step}")
        if outcome[1] or outcome[2]:
            ends += 1
            observation, _ = env.reset()
    env.close()
    return values, ends


def compare_vector(batch: Any, vector: Any, seed: int | None) -> tuple[int, int]:
    """As :func:`compare_single`, a vector that was just made, in its own autoreset mode, and
    `batch` `[N, T]`.

    In NEXT_STEP mode, an environment that has ended is reset by the next step instead of its frame:
    it then has fewer frames than the others, and is stepped on until it has all of them.
    """
    mode = vector.metadata["autoreset_mode"]
    space, action_space = vector.single_observation_space, vector.single_action_space
    # A function that makes a vector of one is not known to.
    batch = batch.reshape(vector.num_envs, -1)
    num_envs, steps = batch.shape
    observation, _ = vector.reset() if seed is None else vector.reset(seed=seed)
    at, resets = [0] * num_envs, np.zeros(num_envs, bool)
    values, ends = 0, 0
    while min(at) < steps:
        frames = [batch[env, min(at[env], steps - 1)] for env in range(num_envs)]
        wanted = [env for env in range(num_envs) if not resets[env] and at[env] < steps]
        for env in wanted:
            values += agree(
                frames[env],
                observed(space, one(observation, env)),
                f"environment {env}, step {at[env]}",
            )
        actions = np.stack([acted(action_space, frame["action"]) for frame in frames])
        observation, reward, terminated, truncated, info = vector.step(actions)
        for env in np.flatnonzero(resets):
            assert (reward[env], terminated[env], truncated[env]) == (0, False, False)
        over = np.logical_or(terminated, truncated)
        for env in wanted:
            last = (
                info["final_obs"] if over[env] and mode == AutoresetMode.SAME_STEP else observation
            )
            outcome = reward[env], terminated[env], truncated[env]
            where = f"environment {env}, step {at[env]}"
            values += agree_on_step(frames[env], observed(space, one(last, env)), *outcome, where)
            ends += int(over[env])
        at = [at[env] + int(not resets[env]) for env in range(num_envs)]
        resets = over & (mode == AutoresetMode.NEXT_STEP)
        if over.any() and mode == AutoresetMode.DISABLED:
            observation, _ = vector.reset(options={"reset_mask": over})
    vector.close()
    return values, ends


def one(observation: Any, env: int) -> Any:
    """What one environment of a vector observes."""
    if isinstance(observation, Mapping):
        return {name: one(value, env) for name, value in observation.items()}
    if isinstance(observation, tuple):
        return tuple(one(value, env) for value in observation)
    return observation[env]
