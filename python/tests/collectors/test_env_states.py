"""What transforms have gathered, in states of collectors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchrl.envs import (
    Compose as TheirCompose,
    GymEnv as TheirGymEnv,
    SerialEnv as TheirSerialEnv,
    StepCounter as TheirStepCounter,
    TransformedEnv as TheirTransformedEnv,
    VecNormV2,
)

from cartpole import cartpole, in_threads
from waiting import until
from windrow.collectors import AsyncCollector, Collector, MultiAsyncCollector, MultiSyncCollector
from windrow.envs import EnvCreator, GymEnv, ObservationNorm, TransformedEnv


def normed() -> Any:
    return TheirTransformedEnv(
        TheirGymEnv("CartPole-v1"),
        TheirCompose(VecNormV2(in_keys=["observation"]), TheirStepCounter(20)),
    )


def count(env: Any) -> int:
    return int(env.transform[0].state_dict()["_extra_state"]["count.-|-.observation"])


@pytest.mark.parametrize("kind", [Collector, AsyncCollector])
def test_statistics_of_torchrls_environments_are_saved_with_a_collector(kind) -> None:
    env, other = normed(), normed()
    with (
        kind(env, None, frames_per_batch=50, **in_threads(kind)) as collector,
        kind(other, None, frames_per_batch=50, **in_threads(kind)) as fresh,
    ):
        for _ in range(4):
            next(collector)
        state = collector.state_dict()
        saved = dict(state["env_state_dict"])
        assert saved.keys() == env.state_dict().keys()
        fresh.load_state_dict(state)
        # More than it has gathered in the batches that it may have ahead.
        loaded = count(other)
        assert loaded >= 200
        until(lambda: next(collector).numel() == 50 and count(env) > loaded)


@pytest.mark.parametrize("kind", [MultiSyncCollector, MultiAsyncCollector])
def test_each_worker_has_the_statistics_of_its_environment(kind) -> None:
    with kind([normed] * 2, None, frames_per_batch=50, placement="threads") as collector:
        while (
            min(collector.stats("per_worker")[f"worker_{worker}/frames"] for worker in (0, 1)) < 300
        ):
            next(collector)
        state = collector.state_dict()
        assert state["env_state_dict"].keys() == {"worker0", "worker1"}
        with kind([normed] * 2, None, frames_per_batch=50, placement="threads") as fresh:
            # More than each has gathered in the batches that they may have ahead.
            assert all(count(env) < 300 for env in fresh.get_distant_attr("env"))
            fresh.load_state_dict(state)
            assert all(count(env) >= 300 for env in fresh.get_distant_attr("env"))
        with (
            kind([normed] * 3, None, frames_per_batch=50, placement="threads") as fresh,
            pytest.raises(ValueError, match="of other environments"),
        ):
            fresh.load_state_dict(state)


@pytest.mark.parametrize(
    "arguments",
    [{"create_env_fn": TheirSerialEnv(2, normed)}, {"create_env_fn": normed, "num_envs": 2}],
)
def test_environments_that_step_together_have_a_state_each(arguments) -> None:
    with Collector(**arguments, frames_per_batch=50) as collector:
        next(collector)
        state = collector.state_dict()
        assert state["env_state_dict"].keys() == {"worker0", "worker1"}
        next(collector)
        collector.load_state_dict(state)
        again = collector.state_dict()["env_state_dict"]
        assert "count" in str(again) and str(again) == str(state["env_state_dict"])
        next(collector)
        assert str(again) == str(state["env_state_dict"])


def test_environments_without_a_state_have_an_empty_one() -> None:
    for env in ("CartPole-v1", cartpole, cartpole(), TheirGymEnv("CartPole-v1")):
        with Collector(env, frames_per_batch=5) as collector:
            state = collector.state_dict()
            assert dict(state["env_state_dict"]) == {}
            collector.load_state_dict(state)


def test_numbers_that_the_engine_has_taken_over_have_to_be_the_same() -> None:
    def scaled(scale: float) -> TransformedEnv:
        return TransformedEnv(
            GymEnv("CartPole-v1"), ObservationNorm(loc=0.0, scale=scale, in_keys=["observation"])
        )

    with Collector(scaled(2.0), frames_per_batch=5) as collector:
        state = collector.state_dict()
        assert float(state["env_state_dict"]["scale"]) == 2.0
    with Collector(scaled(2.0), frames_per_batch=5) as same:
        same.load_state_dict(state)
    with Collector(scaled(3.0), frames_per_batch=5) as other:
        next(other)
        with pytest.raises(
            ValueError,
            match="env_state_dict has other numbers than .*before the collector is built",
        ):
            other.load_state_dict(state)
        assert other.stats()["frames"] == 5
    env = scaled(3.0)
    env.load_state_dict(state["env_state_dict"])
    with Collector(env, frames_per_batch=5) as loaded:
        loaded.load_state_dict(state)


def test_statistics_stay_when_a_state_cannot_be_loaded() -> None:
    env = normed()
    with Collector(env, torch.nn.Linear(4, 2), frames_per_batch=50) as collector:
        next(collector)
        state = collector.state_dict()
        next(collector)
        before = str(env.state_dict())
        with pytest.raises(Exception, match="frames"):
            collector.load_state_dict(
                {name: value for name, value in state.items() if name != "frames"}
            )
        assert str(env.state_dict()) == before


@pytest.mark.parametrize("share_memory", [True, False])
def test_environments_of_one_creator_share_what_they_gather(share_memory) -> None:
    creator = EnvCreator(normed, share_memory=share_memory)
    with MultiSyncCollector(
        [creator] * 2, None, placement="threads", frames_per_batch=100
    ) as collector:
        next(collector)
        first, second = (count(env) for env in collector.get_distant_attr("env"))
        assert (first == second and first > 100) if share_memory else max(first, second) < 100
    with MultiSyncCollector(
        [EnvCreator(cartpole)] * 2, None, placement="threads", frames_per_batch=100
    ) as collector:
        assert next(collector).numel() == 100
