"""None, or nothing at all, where an environment, a policy or a state is expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import pytest

from windrow.collectors import Collector
from windrow.envs import EnvCreator, GymEnv, SerialEnv


def cartpole() -> GymEnv:
    return GymEnv("CartPole-v1")


def collector() -> Collector:
    return Collector(cartpole(), None, frames_per_batch=4)


NOTHING: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "an environment": (
        lambda: SerialEnv(2, None).reset(),
        TypeError,
        "expected an environment, its id, or a function.*got NoneType",
    ),
    "a function": (
        lambda: EnvCreator(None),
        TypeError,
        "expected create_env_fn to be a function that makes an environment, got NoneType",
    ),
    "what a function makes": (
        lambda: EnvCreator(lambda: None).state_dict(),
        TypeError,
        "to make an environment of windrow or TorchRL.*got NoneType",
    ),
    "a state of environments": (
        lambda: EnvCreator(gymnasium.make, id="CartPole-v1").state_dict(),
        TypeError,
        "to make an environment of windrow or TorchRL.*got TimeLimit",
    ),
    "actions": (
        lambda: cartpole().step(None),
        TypeError,
        "expected a TensorDict with actions, got NoneType",
    ),
    "a policy": (
        lambda: collector().getattr_policy("training"),
        AttributeError,
        "training: the collector acts at random: there is no policy",
    ),
    "a state": (
        lambda: collector().load_state_dict(None),
        TypeError,
        r"expected what state_dict\(\) has returned, got NoneType",
    ),
}


@pytest.mark.parametrize("what", NOTHING)
def test_an_error_says_what_is_missing(what: str) -> None:
    do, kind, message = NOTHING[what]
    with pytest.raises(kind, match=message):
        do()
