"""One environment object where several would step it: refused, by whatever door it comes in."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

import windrow.envs as ours
from windrow.collectors import Collector, Evaluator, MultiAsyncCollector, MultiSyncCollector
from windrow.envs import _convert

pytestmark = pytest.mark.filterwarnings("ignore:environments written in Python share")


class Count(gymnasium.Env[Any, Any]):
    """Observes how many steps its episode has lasted."""

    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return np.array([self.count], np.float32), 1.0, False, False, {}


def torchrl_around(env: Any) -> Any:
    return pytest.importorskip("torchrl.envs").GymWrapper(env)


def torchrl_transformed(env: Any) -> Any:
    theirs = pytest.importorskip("torchrl.envs")
    return theirs.TransformedEnv(theirs.GymWrapper(env), theirs.StepCounter())


def vector(env: Any) -> Any:
    return gymnasium.vector.SyncVectorEnv([lambda: env])


#: What can be around an environment of Gymnasium; all of it is that environment.
AROUND = {
    "nothing": lambda env: env,
    "a wrapper of Gymnasium": lambda env: gymnasium.wrappers.TimeLimit(env, 100),
    "a vector of Gymnasium": vector,
    "GymWrapper": ours.GymWrapper,
    "TransformedEnv": lambda env: ours.TransformedEnv(ours.GymWrapper(env), ours.StepCounter()),
    "SerialEnv": lambda env: ours.SerialEnv(1, env),
    "TorchRL's GymWrapper": torchrl_around,
    "TorchRL's TransformedEnv": torchrl_transformed,
}

#: Where one object would be stepped by two.
WHERE = {
    "two workers": lambda make: MultiSyncCollector(
        [make(), make()], None, placement="threads", frames_per_batch=20
    ),
    "two workers that run ahead": lambda make: MultiAsyncCollector(
        [make(), make()], None, placement="threads", frames_per_batch=20
    ),
    "two environments in lockstep": lambda make: Collector(
        ours.SerialEnv(2, [make(), make()]), None, frames_per_batch=20
    ),
    "a collector and an evaluator": lambda make: (
        Collector(make(), None, frames_per_batch=20),
        Evaluator(make(), lambda observation: observation),
    ),
    "two collectors": lambda make: (
        Collector(make(), None, frames_per_batch=20),
        Collector(make(), None, frames_per_batch=20),
    ),
}

REFUSED = (
    "is one object and already in use.*give each a function that makes an environment of its own"
)


@pytest.mark.parametrize("around", AROUND)
def test_two_workers_do_not_share_what_is_around_one_environment(around: str) -> None:
    env = Count()
    with pytest.raises(ValueError, match=REFUSED):
        MultiSyncCollector(
            [AROUND[around](env), AROUND["nothing"](env)],
            None,
            placement="threads",
            frames_per_batch=20,
        )


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("around", ["nothing", "GymWrapper", "TorchRL's GymWrapper"])
def test_one_object_is_stepped_in_one_place(where: str, around: str) -> None:
    env = AROUND[around](Count())
    with pytest.raises(ValueError, match=REFUSED):
        WHERE[where](lambda: env)


@pytest.mark.parametrize("placement", ["inline", "threads", "processes"])
@pytest.mark.parametrize("around", AROUND)
def test_one_object_cannot_be_several_environments(around: str, placement: str) -> None:
    expected = r"num_envs=2: expected create_env_fn to be a function that makes an environment, or the id of one.*got one object, .*(Count|Sync)"
    with pytest.raises(ValueError, match=expected):
        MultiSyncCollector(
            [AROUND[around](Count())], None, frames_per_batch=20, num_envs=2, placement=placement
        )


def test_an_object_that_was_given_away_is_not_given_once_more() -> None:
    gift = _convert.Gift(Count())
    gift()
    with pytest.raises(
        ValueError,
        match="Count object.* is one object, which cannot be made once more: give a function",
    ):
        gift()


@pytest.mark.parametrize("around", ["nothing", "TorchRL's GymWrapper"])
def test_a_function_that_returns_one_object_again_and_again_is_told(around: str) -> None:
    env = AROUND[around](Count())
    again = "a function returned .* already in use.*must make a new environment at each call"
    for make in (lambda: env, ours.EnvCreator(lambda: env)):
        with pytest.raises(ValueError, match=again):
            MultiSyncCollector([make] * 2, None, placement="threads", frames_per_batch=20)
        with pytest.raises(ValueError, match=again):
            Collector(make, None, frames_per_batch=20, num_envs=2)


@pytest.mark.parametrize("around", AROUND)
def test_an_object_can_be_stepped_by_one_after_the_other(around: str) -> None:
    env = Count()
    for _ in range(2):
        with Collector(AROUND[around](env), None, frames_per_batch=20) as collector:
            batch = next(collector)
            rises = batch["next", "observation"] - batch["observation"]
            assert rises.flatten().tolist() == [1] * 20
