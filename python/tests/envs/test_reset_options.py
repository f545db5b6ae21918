"""Options of resets."""

from __future__ import annotations

import itertools
import math
from typing import Any

import gymnasium
import pytest

from windrow.collectors import Collector, MultiSyncCollector
from windrow.envs import GymEnv, GymWrapper, ParallelEnv, StepCounter, TransformedEnv

#: Gymnasium's CartPole begins with numbers between these.
HIGH = {"low": 0.5, "high": 0.6}


def begins_high(observation: Any) -> bool:
    return bool(((observation >= 0.5) & (observation <= 0.6)).all())


def gym_env() -> GymEnv:
    return GymEnv("CartPole-v1", backend="gymnasium")


@pytest.mark.parametrize(
    "env",
    [
        gym_env(),
        GymWrapper(gymnasium.make("CartPole-v1")),
        TransformedEnv(gym_env(), StepCounter()),
        TransformedEnv(GymWrapper(gymnasium.make("CartPole-v1")), StepCounter()),
    ],
    ids=["id", "object", "transformed id", "transformed object"],
)
def test_a_reset_has_options_once(env: Any) -> None:
    assert not begins_high(env.reset()["observation"])
    assert begins_high(env.reset(options=HIGH)["observation"])
    assert not begins_high(env.reset()["observation"])


def test_options_leave_the_generator_alone() -> None:
    plain, other = gym_env(), gym_env()
    plain.set_seed(3), other.set_seed(3)
    for env in (plain, other):
        env.reset()
    plain.reset(), other.reset(options={"low": -0.05, "high": 0.05})
    assert (plain.reset()["observation"] == other.reset()["observation"]).all()


def test_each_episode_has_the_options_of_a_function() -> None:
    lows = itertools.count()
    env = GymEnv(
        "CartPole-v1",
        reset_options=lambda: {"low": (low := 0.01 * next(lows)), "high": low + 0.001},
    )
    assert env.backend == "gymnasium"
    with Collector(env, frames_per_batch=200, total_frames=200, seed=0) as collector:
        batch = next(collector)
    ids = batch["collector", "traj_ids"]
    first = [batch["observation"][ids == number][0] for number in ids.unique()]
    assert len(first) > 5
    begun = [round(observation.min().item() * 100 - 0.05) for observation in first]
    assert begun == sorted(set(begun)), "each began higher than the one before"


@pytest.mark.parametrize("placement", ["inline", "threads", "processes"])
def test_options_of_all_episodes_go_along_to_workers(placement: Any) -> None:
    make = lambda: GymEnv("CartPole-v1", reset_options=HIGH)  # noqa: E731
    with MultiSyncCollector(
        [make] * 2, frames_per_batch=40, total_frames=40, placement=placement
    ) as collector:
        batch = next(collector)
    ids = batch["collector", "traj_ids"]
    assert all(begins_high(batch["observation"][ids == number][0]) for number in ids.unique())


def test_what_takes_no_options_says_so() -> None:
    with pytest.raises(
        ValueError, match='native environments take no options: .* need backend="gymnasium"'
    ):
        GymEnv("CartPole-v1").reset(options=HIGH)
    with pytest.raises(ValueError, match="native environments take no options"):
        GymEnv("CartPole-v1", backend="native", reset_options=HIGH)
    with pytest.raises(
        ValueError, match="resets of .* take no options, those of a GymEnv of one environment do"
    ):
        ParallelEnv(2, gym_env).reset(options=HIGH)
    with pytest.raises(
        TypeError,
        match="expected options of resets, or a function that returns them, as reset_options, got 3",
    ):
        GymEnv("CartPole-v1", reset_options=3)  # type: ignore[arg-type]


#: A curriculum, which the trainer changes.
LEVEL = {"low": 0.0, "high": 0.01}


@pytest.mark.parametrize("made_there", [False, True], ids=["sent", "made there"])
def test_a_worker_process_says_that_it_has_a_copy_of_what_options_are_read_from(
    made_there: bool, capfd: Any
) -> None:
    env: Any = lambda: GymEnv("CartPole-v1", backend="gymnasium", reset_options=lambda: LEVEL)  # noqa: E731
    with MultiSyncCollector(
        [env if made_there else env()] * 1, frames_per_batch=8, placement="processes"
    ) as collector:
        next(collector)
    told = " ".join(capfd.readouterr().err.split())
    assert "reset_options uses LEVEL: a worker process has a copy of it" in told
    assert "collector.set_attr" in told


def test_options_that_read_nothing_from_outside_are_not_warned_of(capfd: Any) -> None:
    def options() -> dict[str, float]:
        return {"low": math.sin(0.1), "high": 0.2}

    env = lambda: GymEnv("CartPole-v1", backend="gymnasium", reset_options=options)  # noqa: E731
    with MultiSyncCollector([env], frames_per_batch=8, placement="processes") as collector:
        next(collector)
    assert "reset_options" not in capfd.readouterr().err
