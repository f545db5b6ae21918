"""No batch is older than ``max_lag`` allows, and nobody waits for ever for that."""

from __future__ import annotations

import threading
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from windrow.collectors import AsyncCollector, Collector, MultiAsyncCollector, MultiSyncCollector
from windrow.data import LazyTensorStorage, ReplayBuffer


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


class Uneven(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole whose steps take longer or shorter."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.random = np.random.default_rng()

    def step(self, action: Any) -> Any:
        time.sleep(self.random.uniform(0, 0.0005))
        return self.env.step(action)


@pytest.mark.parametrize("env", ["CartPole-v1", Uneven])
@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_a_learner_that_publishes_between_batches_gets_no_older_weights(
    env: Any, max_lag: int
) -> None:
    policy = network()
    with MultiAsyncCollector(
        [env] * 3,
        policy,
        frames_per_batch=10,
        total_frames=400,
        max_lag=max_lag,
        track_policy_version=True,
    ) as collector:
        for batch in collector:
            assert int(batch["policy_version"].min()) >= collector.policy_version - max_lag
            collector.update_policy_weights_()
        assert collector.stats()["policy_age"] <= max_lag


def test_without_a_lag_an_async_collector_gives_the_bytes_of_a_collector() -> None:
    def run(kind: Any, **arguments: Any) -> list[torch.Tensor]:
        policy, batches = network(), []
        with kind(
            "CartPole-v1",
            policy,
            num_envs=2,
            frames_per_batch=40,
            total_frames=400,
            seed=5,
            **arguments,
        ) as collector:
            for batch in collector:
                batches += [batch["observation"].clone(), batch["action"].clone()]
                with torch.no_grad():
                    policy[0].weight += 0.1
                collector.update_policy_weights_()
        return batches

    expected = run(Collector)
    found = run(AsyncCollector, max_lag=0)
    assert all(torch.equal(*both) for both in zip(expected, found, strict=True))


@pytest.mark.parametrize("env", ["CartPole-v1", Uneven])
def test_weights_that_are_published_after_start_wait_for_older_shares(env: Any) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10_000), batch_size=32)
    policy = network()
    with MultiSyncCollector(
        [env] * 2, policy, frames_per_batch=20, max_lag=0, replay_buffer=buffer
    ) as collector:
        collector.start()
        while collector.stats()["batches"] < 20 or collector.policy_version < 10:
            collector.update_policy_weights_()
        assert collector.stats()["policy_age"] == 0


def test_another_thread_may_publish_while_a_batch_is_awaited() -> None:
    with MultiAsyncCollector([Uneven] * 2, network(), frames_per_batch=10, max_lag=1) as collector:
        is_over = threading.Event()

        def learn() -> None:
            while not is_over.is_set():
                collector.update_policy_weights_()

        learner = threading.Thread(target=learn)
        learner.start()
        while collector.stats()["batches"] < 30 or collector.policy_version < 10:
            next(collector)
        is_over.set()
        learner.join()
        assert collector.stats()["policy_age"] <= 1


def test_a_lag_that_is_no_number_of_batches_is_refused() -> None:
    with pytest.raises(ValueError, match="max_lag must be 0 or more, got -1"):
        Collector("CartPole-v1", frames_per_batch=10, max_lag=-1)
