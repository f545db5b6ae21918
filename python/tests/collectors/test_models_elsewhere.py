"""Weights for models that are not the policy: modules in transforms of environments and of replay
buffers.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torchrl.data import Unbounded
from torchrl.envs import Transform, TransformedEnv
from torchrl.testing.mocking_classes import ContinuousActionVecMockEnv

from windrow.collectors import Collector, MultiSyncCollector
from windrow.data import LazyTensorStorage, ReplayBuffer


class Embedded(Transform):
    """Writes what its module makes of an observation."""

    def __init__(self) -> None:
        super().__init__(in_keys=["observation"], out_keys=["embedded"])
        self.module = nn.Linear(7, 2)
        nn.init.zeros_(self.module.weight)
        nn.init.zeros_(self.module.bias)

    def _apply_transform(self, observation: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.module(observation)

    def _reset(self, tensordict: Any, tensordict_reset: Any) -> Any:
        return self._call(tensordict_reset)

    def transform_observation_spec(self, observation_spec: Any) -> Any:
        observation_spec["embedded"] = Unbounded((*observation_spec.shape, 2))
        return observation_spec


def make() -> TransformedEnv:
    return TransformedEnv(ContinuousActionVecMockEnv(), Embedded())


def biased(bias: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.zeros(2, 7), "bias": torch.full((2,), bias)}


def levels(batch: Any) -> set[float]:
    """All numbers that were embedded, but for those of the first step, which was taken before."""
    return set(batch["next", "embedded"].unique().tolist())


@pytest.mark.parametrize("by_name", [False, True])
def test_a_model_in_an_environment_is_loaded_where_the_environment_is(by_name: bool) -> None:
    path = "env.transform.module"
    given = (
        {"weights_dict": {path: biased(2.0)}}
        if by_name
        else {"model_id": path, "weights": biased(2.0)}
    )
    with Collector(make(), frames_per_batch=10) as collector:
        assert levels(next(collector)) == {0.0}
        collector.update_policy_weights_(**given)
        assert levels(next(collector)) == {2.0}
    with MultiSyncCollector([make, make], frames_per_batch=10, placement="processes") as collector:
        assert levels(next(collector)) == {0.0}
        collector.update_policy_weights_(**given)
        # Where workers run ahead, the first batches were begun before.
        assert levels([next(collector) for _ in range(4)][-1]) == {2.0}
        collector.update_policy_weights_(model_id=path, weights=biased(3.0), worker_ids=[1])
        assert levels([next(collector) for _ in range(4)][-1]) == {2.0, 3.0}


def test_a_model_in_a_replay_buffer_and_the_policy_are_loaded_at_once() -> None:
    policy = nn.Linear(4, 2)
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=4)
    buffer.append_transform(Embedded())
    new = {name: torch.ones_like(value) for name, value in policy.state_dict().items()}
    with Collector("CartPole-v1", policy, frames_per_batch=10, replay_buffer=buffer) as collector:
        collector.update_policy_weights_(
            weights_dict={"policy": new, "replay_buffer.transform[0].module": biased(5.0)}
        )
        assert collector.policy_version == 1 and torch.equal(policy.weight, torch.ones(2, 4))
    assert buffer.transform[0].module.bias.tolist() == [5.0, 5.0]


def test_models_that_there_are_not_are_errors_that_name_them() -> None:
    with Collector(make(), frames_per_batch=10) as collector:
        with pytest.raises(KeyError, match=r"no model is called 'env\.transform\.other'"):
            collector.update_policy_weights_(model_id="env.transform.other", weights=biased(1.0))
        with pytest.raises(RuntimeError, match="size mismatch"):
            collector.update_policy_weights_(
                model_id="env.transform.module",
                weights={"weight": torch.zeros(3, 7), "bias": torch.zeros(3)},
            )
        with pytest.raises(ValueError, match="there is no worker 3"):
            collector.update_policy_weights_(
                model_id="env.transform.module", weights=biased(1.0), worker_ids=3
            )
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=4)
    buffer.append_transform(Embedded())
    path, innocent = "env.transform.module", "replay_buffer.transform[0].module"
    with MultiSyncCollector(
        [make, make], frames_per_batch=10, placement="threads", replay_buffer=buffer
    ) as collector:
        with pytest.raises(
            ValueError,
            match='env.transform.module.* in environments that threads step meanwhile: choose placement="processes"',
        ):
            collector.update_policy_weights_(
                weights_dict={innocent: biased(1.0), path: biased(1.0)}
            )


@pytest.mark.parametrize(
    "more",
    [{"model_id": "env.transform.module"}, {"weights": biased(1.0)}],
    ids=["model_id", "weights"],
)
def test_weights_that_are_given_twice_are_refused_before_any_is_loaded(
    more: dict[str, Any],
) -> None:
    env = make()
    with (
        Collector(env, frames_per_batch=10) as collector,
        pytest.raises(ValueError, match="weights_dict names all weights"),
    ):
        collector.update_policy_weights_(weights_dict={"env.transform.module": biased(2.0)}, **more)
    assert not env.transform.module.bias.any()
