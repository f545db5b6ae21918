"""Calls, attributes and values that reach all environments of a collector."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from windrow.collectors import (
    AsyncBatchedCollector,
    AsyncCollector,
    Collector,
    MultiAsyncCollector,
    MultiSyncCollector,
)
from windrow.envs import GymWrapper, RewardSum, TransformedEnv


class Level(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-9, 99, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, level: int = 0) -> None:
        self.level = level
        self.inner = [self]

    def set_level(self, level: int) -> int:
        before, self.level = self.level, level
        return before

    def _seen(self) -> Any:
        return np.array([self.level], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        return self._seen(), 1.0, False, False, {}


#: Workers, environments of each, and where they run.
KINDS = [
    (1, 3, "inline"),
    (2, 3, "threads"),
    (2, 2, "processes"),
    (2, 1, "processes"),
    (2, 1, "threads"),
]


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind[0]}x{kind[1]}-{kind[2]}")
def collector(request: pytest.FixtureRequest) -> Any:
    workers, num_envs, placement = request.param
    options: dict[str, Any] = {"num_envs": num_envs, "frames_per_batch": 12, "placement": placement}
    if workers == 1:
        made: Any = Collector(lambda: Level(), **options)
    else:
        made = MultiSyncCollector([lambda: Level()] * workers, **options)
    with made:
        next(made)
        yield made


def levels(collector: Any) -> list[float]:
    next(collector)
    batch = next(collector)
    return batch["observation"][..., 0].reshape(collector.stats()["num_envs"], -1)[:, -1].tolist()


def test_a_method_reaches_every_environment_and_answers_in_their_order(collector: Any) -> None:
    count = collector.stats()["num_envs"]
    assert collector.env.set_level(7) == [0] * count
    assert collector.env.call("set_level", 8) == (7,) * count
    assert levels(collector) == [8.0] * count


def test_attributes_are_set_and_read_as_gymnasiums_vectors_do(collector: Any) -> None:
    count = collector.stats()["num_envs"]
    collector.env.set_attr("level", list(range(count)))
    assert collector.env.get_attr("level") == tuple(range(count))
    assert collector.env.level == list(range(count))
    assert levels(collector) == list(range(count))
    collector.env.level = 5
    assert levels(collector) == [5.0] * count
    with pytest.raises(ValueError, match=f"a value for each of {count} environments"):
        collector.env.set_attr("level", [1])


def test_what_describes_all_environments_alike_comes_once(collector: Any) -> None:
    assert collector.env.observation_space == Level.observation_space


def test_a_path_reaches_every_environment(collector: Any) -> None:
    count, workers = collector.stats()["num_envs"], collector.stats()["workers"]
    assert collector.map_fn("env.set_level", [(4,)] * workers) == [0] * count
    assert (
        collector.map_fn("env.inner[0].set_level", list_of_kwargs=[{"level": 6}] * workers)
        == [4] * count
    )
    assert collector.get_distant_attr("env.level") == [6] * count


def test_a_path_takes_arguments_for_each_environment() -> None:
    with MultiSyncCollector(
        [lambda: Level()] * 2, num_envs=2, frames_per_batch=8, placement="threads"
    ) as collector:
        collector.map_fn("env.set_level", [(level,) for level in range(4)])
        assert collector.get_distant_attr("env.level") == [0, 1, 2, 3]
        with pytest.raises(
            ValueError, match="an entry for each of 2 workers, or of 4 environments, got 3"
        ):
            collector.map_fn("env.set_level", [(1,)] * 3)


def test_a_single_environment_is_the_one_that_was_given() -> None:
    env = Level()
    with Collector(env, frames_per_batch=4) as collector:
        assert collector.env is env


def level() -> Level:
    return Level()


def wrapped() -> TransformedEnv:
    return TransformedEnv(GymWrapper(gymnasium.wrappers.TimeLimit(Level(), 50)), RewardSum())


@pytest.mark.parametrize("make", [level, wrapped])
@pytest.mark.parametrize(
    ("kind", "several", "arguments"),
    [
        (Collector, False, {}),
        (Collector, False, {"num_envs": 2}),
        (AsyncCollector, False, {"placement": "threads"}),
        (AsyncCollector, False, {"placement": "processes"}),
        (MultiSyncCollector, True, {"placement": "threads", "num_envs": 2}),
        (MultiAsyncCollector, True, {"placement": "processes"}),
        (AsyncBatchedCollector, True, {"backend": "threading"}),
        (AsyncBatchedCollector, True, {"backend": "multiprocessing"}),
    ],
)
def test_every_collector_calls_and_sets_as_gymnasiums_vectors_do(
    kind: Any, several: bool, arguments: dict[str, Any], make: Any
) -> None:
    envs = [make] * 2 if several else make
    with kind(envs, frames_per_batch=8, **arguments) as collector:
        count = collector.stats()["num_envs"]
        collector.set_attr("level", list(range(count)))
        assert collector.get_attr("level") == tuple(range(count))
        assert collector.call("set_level", 5) == tuple(range(count))
        assert collector.call("level") == (5,) * count


def test_an_environment_without_the_method_is_an_error() -> None:
    with (
        Collector("CartPole-v1", frames_per_batch=8) as collector,
        pytest.raises(AttributeError, match="'GymEnv' object has no attribute 'set_level'"),
    ):
        collector.call("set_level", 3)
