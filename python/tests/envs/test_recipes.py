"""Recipes of environments: values that another process can make the same environments of."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from windrow.collectors import Collector
from windrow.envs import (
    Compose,
    GymEnv,
    InitTracker,
    ObservationNorm,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    _convert,
)


def cartpole(**kwargs: Any) -> Any:
    return gymnasium.make("CartPole-v1", **kwargs)


def transformed(env: Any) -> TransformedEnv:
    norm = ObservationNorm(0.5, 2.0, in_keys=["observation"], standard_normal=True)
    return TransformedEnv(
        env,
        Compose(
            StepCounter(7, truncated_key="late"), norm, RewardSum(out_keys=[("sums", "reward")])
        ),
    )


ENVIRONMENTS = {
    "an id": lambda: "CartPole-v1",
    "a native environment": lambda: GymEnv("CartPole-v1", frame_skip=2),
    "an environment of Gymnasium": lambda: GymEnv(
        "CartPole-v1", backend="gymnasium", max_episode_steps=9
    ),
    "entries of info": lambda: GymEnv(
        "CartPole-v1", backend="gymnasium", info_keys={("a", "b"): np.zeros(2)}
    ),
    "several": lambda: GymEnv("Pendulum-v1", num_envs=2),
    "transforms": lambda: transformed(GymEnv("CartPole-v1")),
    "transforms around transforms": lambda: TransformedEnv(
        transformed(GymEnv("CartPole-v1")), InitTracker()
    ),
    "several with transforms": lambda: transformed(
        SerialEnv(2, lambda: GymEnv("CartPole-v1"))._makers[0]()
    ),
    "a function of a module": lambda: partial(gymnasium.make, "CartPole-v1", max_episode_steps=5),
    "several of a function": lambda: SerialEnv(
        2, cartpole, create_env_kwargs={"max_episode_steps": 4}
    ),
}


def frames(env: Any) -> Any:
    with Collector(env, None, frames_per_batch=20, total_frames=20, seed=3) as collector:
        return next(collector)


@pytest.mark.parametrize("what", ENVIRONMENTS)
def test_a_recipe_that_was_pickled_makes_the_same_environment(what: str) -> None:
    recipe = _convert.of(ENVIRONMENTS[what]())
    read = pickle.loads(pickle.dumps(recipe))
    assert type(read) is type(recipe) and read.transforms == recipe.transforms
    expected, got = frames(recipe), frames(read)
    assert set(got.keys(True, True)) == set(expected.keys(True, True))
    assert all(torch.equal(got[key], expected[key]) for key in expected.keys(True, True))


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(
        TypeError, match="expected an environment, its id, or a function that returns one, got int"
    ):
        _convert.of(3)
