"""Recipes of environments: values that another process can make the same environments of."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
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
    _recipe,
)


def cartpole(**kwargs: Any) -> Any:
    return gymnasium.make("CartPole-v1", **kwargs)


def transformed(env: Any) -> TransformedEnv:
    norm = ObservationNorm(0.5, 2.0, in_keys=["observation"], standard_normal=True)
    return TransformedEnv(env, Compose(StepCounter(7, truncated_key="late"), norm, RewardSum(out_keys=[("sums", "reward")])))


WRITABLE = {
    "an id": lambda: "CartPole-v1",
    "a native environment": lambda: GymEnv("CartPole-v1", frame_skip=2),
    "an environment of Gymnasium": lambda: GymEnv("CartPole-v1", backend="gymnasium", max_episode_steps=9),
    "entries of info": lambda: GymEnv("CartPole-v1", backend="gymnasium", info_keys={("a", "b"): np.zeros(2)}),
    "several": lambda: GymEnv("Pendulum-v1", num_envs=2),
    "transforms": lambda: transformed(GymEnv("CartPole-v1")),
    "transforms around transforms": lambda: TransformedEnv(transformed(GymEnv("CartPole-v1")), InitTracker()),
    "several with transforms": lambda: transformed(SerialEnv(2, lambda: GymEnv("CartPole-v1"))._makers[0]()),
    "a function of a module": lambda: partial(gymnasium.make, "CartPole-v1", max_episode_steps=5),
    "several of a function": lambda: SerialEnv(2, cartpole, create_env_kwargs={"max_episode_steps": 4}),
}


def frames(env: Any) -> Any:
    with Collector(env, None, frames_per_batch=20, total_frames=20, seed=3) as collector:
        return next(collector)


@pytest.mark.parametrize("what", WRITABLE)
def test_what_was_written_down_makes_the_same_environment(what: str) -> None:
    recipe = _convert.of(WRITABLE[what]())
    read = _recipe.read(json.loads(json.dumps(recipe.write())))
    assert read.write() == recipe.write()
    expected, got = frames(recipe), frames(read)
    assert set(got.keys(True, True)) == set(expected.keys(True, True))
    assert all(torch.equal(got[key], expected[key]) for key in expected.keys(True, True))


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (lambda: cartpole(), r"^Gymnasium.env is <.*CartPole.*> which cannot be written down"),
        (lambda: lambda: cartpole(), r"^Call.function is <function <lambda>.*which cannot be written down"),
        (lambda: SerialEnv(2, [cartpole, lambda: cartpole()]), r"^Many.members\[1\].function is <function"),
        (lambda: GymEnv("Foo-v1", wrap=print, size=object()), r"^Gymnasium.env\['kwargs'\]\['size'\] is <object object"),
        (lambda: TransformedEnv(lambda: cartpole(), StepCounter()), r"^Call.function is"),
    ],
    ids=["an object", "a lambda", "a member", "an argument", "a lambda with transforms"],
)
def test_an_error_names_what_cannot_be_written_down(env: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message.replace("> which", ">+, which")):
        _convert.of(env()).write()


def test_functions_of_a_script_are_not_written_down() -> None:
    program = (
        "from windrow.envs import _convert\n"
        "def make(): ...\n"
        "try: _convert.of(make).write()\n"
        "except TypeError as error: print(error)\n"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert told.stdout.startswith("Call.function is <function make") and "cannot be written down" in told.stdout


@pytest.mark.parametrize("what", ["transforms", "an environment of Gymnasium", "several of a function"])
def test_recipes_are_pickled(what: str) -> None:
    recipe = _convert.of(WRITABLE[what]())
    assert pickle.loads(pickle.dumps(recipe)).write() == recipe.write()


def test_a_dictionary_of_arguments_is_not_taken_for_a_recipe() -> None:
    recipe = _recipe.Call(dict, {"kind": "native", "tuple": (1, [2]), "dict": {"import": None}})
    assert _recipe.read(json.loads(json.dumps(recipe.write()))) == recipe


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(TypeError, match="expected an environment, its id, or a function that returns one, got int"):
        _convert.of(3)
