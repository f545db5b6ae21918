"""windrow's environments in the loop of Stable-Baselines3."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

sb3 = pytest.importorskip("stable_baselines3")

from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

from vectors.talkative import Commanded, Talkative
from windrow.sb3 import VecEnv


def cut(length: int = 12) -> Any:
    return gymnasium.wrappers.TimeLimit(gymnasium.make("CartPole-v1").unwrapped, length)


def told(infos: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Infos as plain values, without seconds."""
    plain = [
        {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in info.items()
        }
        for info in infos
    ]
    for info in plain:
        info.get("episode", {}).pop("t", None)
    return plain


@pytest.mark.parametrize(
    "ours", [{}, {"native": False}, {"native": False, "workers": 2}, {"workers": 2}]
)
def test_all_that_sb3s_vector_returns_is_returned(ours: dict[str, Any]) -> None:
    env, theirs = VecEnv("CartPole-v1", 4, **ours), make_vec_env("CartPole-v1", 4)
    assert (
        env.observation_space == theirs.observation_space
        and env.action_space == theirs.action_space
    )
    env.seed(3), theirs.seed(3)
    assert (env.reset() == theirs.reset()).all()
    ends = 0
    for step in range(60):
        actions = np.array([step % 2, 0, 1, step // 2 % 2])
        seen, expected = env.step(actions), theirs.step(actions)
        for one, other in zip(seen[:3], expected[:3], strict=True):
            assert one.dtype == other.dtype and (one == other).all()
        assert told(seen[3]) == told(expected[3])
        ends += expected[2].sum()
    assert ends > 5
    env.close()


def test_cut_episodes_are_told_from_ended_ones() -> None:
    env, theirs = VecEnv(cut, 2), DummyVecEnv([lambda: Monitor(cut())] * 2)
    env.seed(0), theirs.seed(0)
    env.reset(), theirs.reset()
    cuts = 0
    for step in range(40):
        actions = np.array([step % 2, 0])
        seen, expected = env.step(actions)[3], theirs.step(actions)[3]
        assert told(seen) == told(expected)
        cuts += sum(info["TimeLimit.truncated"] for info in seen)
    assert cuts > 1


def test_environments_are_reached_through_the_vector() -> None:
    env = VecEnv(Talkative, 3)
    env.set_options({"a": 1})
    env.seed(0)
    env.reset()
    assert [info["options"] for info in env.reset_infos] == ["{'a': 1}"] * 3
    env.set_options([{"a": 2}, {}, {"b": 3}])
    env.reset()
    assert [info["options"] for info in env.reset_infos] == ["{'a': 2}", "None", "{'b': 3}"]
    env.set_attr("weight", 4, indices=[0, 2])
    assert env.get_attr("weight") == [4, 1, 4] and env.get_attr("weight", 1) == [1]
    assert env.env_method("weigh", 2, indices=[2, -2]) == [8, 2]
    assert [one.get_wrapper_attr("weight") for one in env.envs] == [4, 1, 4]
    assert env.env_is_wrapped(Monitor) == [True] * 3 and env.env_is_wrapped(
        gymnasium.wrappers.TimeLimit, 0
    ) == [False]
    assert [picture.shape for picture in env.get_images()] == [(2, 2, 3)] * 3
    assert env.render().shape[-1] == 3


@pytest.mark.parametrize("workers", [None, 2])
def test_actions_with_parts_are_a_list_with_one_for_each_environment(workers: int | None) -> None:
    env = VecEnv(Commanded, 2, workers=workers)
    env.seed(0)
    env.reset()
    rewards = env.step([{"by": np.float32(0.5), "to": 1}, {"by": np.float32(-0.25), "to": -1}])[1]
    assert rewards.tolist() == pytest.approx([0.5, -1.25 / 3])
    env.close()


def test_native_environments_count_as_monitored() -> None:
    assert VecEnv("CartPole-v1", 2).env_is_wrapped(Monitor) == [True, True]
    assert VecEnv("CartPole-v1", 2, monitor=False).env_is_wrapped(Monitor) == [False, False]


def test_a_model_learns_the_same_as_with_sb3s_vector() -> None:
    parameters = []
    for env in (VecEnv("CartPole-v1", 2), make_vec_env("CartPole-v1", 2)):
        model = sb3.PPO("MlpPolicy", env, n_steps=32, n_epochs=1, device="cpu", seed=1).learn(128)
        assert len(model.ep_info_buffer) > 2 and {"r", "l", "t"} == set(model.ep_info_buffer[0])
        parameters.append(
            np.concatenate(
                [values.detach().numpy().ravel() for values in model.policy.parameters()]
            )
        )
    assert (parameters[0] == parameters[1]).all()


def test_wrappers_of_sb3_go_around_it() -> None:
    env = VecNormalize(VecFrameStack(VecEnv("CartPole-v1", 2), 3))
    assert env.reset().shape == (2, 12)
    assert env.step(np.array([0, 1]))[0].shape == (2, 12)
