"""Observations of environments that a function makes: a guess, or those of one that is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from windrow.collectors import Collector


class OneHot(nn.Module):
    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(index, 16).float()


class Tall(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Observes a picture."""

    observation_space = gymnasium.spaces.Box(-9, 9, (1, 8, 8), np.float32)

    def observation(self, _: Any) -> Any:
        return np.zeros((1, 8, 8), np.float32)


#: Policies, each with the number of environments that tell what it reads.
POLICIES: dict[str, tuple[str, Callable[[], nn.Module], int]] = {
    "a layer of a vector": ("CartPole-v1", lambda: nn.Linear(4, 2), 0),
    "an embedding": ("FrozenLake-v1", lambda: nn.Embedding(16, 4), 1),
    "layers behind it": (
        "FrozenLake-v1",
        lambda: nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 4)),
        1,
    ),
    "an index": ("FrozenLake-v1", lambda: nn.Sequential(OneHot(), nn.Linear(16, 4)), 1),
    "a picture": (
        "CartPole-v1",
        lambda: nn.Sequential(nn.Flatten(-3), nn.Linear(64, 2)),
        1,
    ),
}


@pytest.mark.parametrize("kind", POLICIES)
def test_a_policy_is_native_where_a_function_makes_the_environment(kind: str) -> None:
    name, policy, looked_at = POLICIES[kind]
    made: list[Any] = []

    def make() -> Any:
        env = gymnasium.make(name)
        made.append(env)
        return Tall(env) if kind == "a picture" else env

    with Collector(make, policy(), frames_per_batch=4) as collector:
        assert collector.policy_backend == "native"
        assert len(made) == 1 + looked_at
        assert len(next(collector)) == 4


class Doubtful(nn.Linear):
    """Torch has to evaluate it."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        # A decision by numbers.
        assert not observation.isnan().any()
        return super().forward(observation)


@pytest.mark.filterwarnings("ignore:the policy is called in Python")
def test_no_environment_is_made_where_a_guess_was_right() -> None:
    made: list[Any] = []

    def make() -> Any:
        made.append(gymnasium.make("CartPole-v1"))
        return made[-1]

    with Collector(make, Doubtful(4, 2), frames_per_batch=4) as collector:
        assert collector.policy_backend == "torch"
        assert len(made) == 1


def test_weights_in_a_closure_act_again_as_they_were_before() -> None:
    net = nn.Linear(4, 2, bias=False)
    policy = TensorDictModule(lambda seen: net(seen), ["observation"], ["action"])
    with Collector("CartPole-v1", policy, frames_per_batch=4) as collector:
        for best in (0, 1, 0):
            with torch.no_grad():
                net.weight.zero_()[best] = torch.tensor([0.0, 1.0, 0.0, 1.0])
            batch = next(collector)
            assert torch.equal(batch["action"], net(batch["observation"]).argmax(-1))
