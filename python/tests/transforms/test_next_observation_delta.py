"""Next observations as differences, beside TorchRL's collectors and buffers."""

from __future__ import annotations

import sys
import time
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import torchrl.collectors
import torchrl.data
import torchrl.envs
from tensordict import TensorDict
from torchrl.envs import NextObservationDelta

import windrow.collectors
import windrow.data
import windrow.envs
from windrow.envs import check_env_specs


class Drifting(gym.Env):
    """Episodes of 7 steps, in which numbers grow: those of two element types, and a count."""

    observation_space = gym.spaces.Dict(
        {
            "place": gym.spaces.Box(-np.inf, np.inf, (3,), np.float32),
            "body": gym.spaces.Dict({"speed": gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)}),
            "count": gym.spaces.Box(0, 100, (1,), np.int64),
        }
    )
    action_space = gym.spaces.Discrete(2)

    def _seen(self) -> dict[str, Any]:
        t = self.t
        speed = np.array([t / 3, -t])
        return {
            "place": np.array([t**2, t / 7, 1], np.float32),
            "body": {"speed": speed},
            "count": np.array([t]),
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.t = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._seen(), 1.0, self.t == 7, False, {}


def theirs(**arguments: Any) -> Any:
    return torchrl.envs.TransformedEnv(
        torchrl.envs.GymWrapper(Drifting()), NextObservationDelta(**arguments)
    )


def ours(**arguments: Any) -> Any:
    return windrow.envs.TransformedEnv(
        windrow.envs.GymWrapper(Drifting()), NextObservationDelta(**arguments)
    )


def of_both(**arguments: Any) -> Any:
    """An environment of TorchRL inside of one of windrow."""
    return windrow.envs.TransformedEnv(
        torchrl.envs.GymWrapper(Drifting()), NextObservationDelta(**arguments)
    )


def outside(**arguments: Any) -> Any:
    """A transform of TorchRL's runs in Python around the differences."""
    env = ours(**arguments)
    env.append_transform(
        torchrl.envs.TensorDictPrimer(state=torchrl.data.Unbounded((1,)), random=True)
    )
    return env


PROCESSES = pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"delta_dtype": torch.bfloat16},
    {"in_keys": ["place"]},
    {"in_keys": [("body", "speed"), "count"]},
    {"excluded_dtypes": (torch.float64,)},
]


def without_state(batch: TensorDict) -> TensorDict:
    return batch.exclude("state", ("next", "state"), "action", ("collector", "traj_ids"))


def assert_same(got: TensorDict, expected: TensorDict) -> None:
    got, expected = without_state(got), without_state(expected)
    assert set(got.keys(True, True)) == set(expected.keys(True, True))
    for key in expected.keys(True, True):
        assert got[key].dtype == expected[key].dtype and torch.equal(got[key], expected[key]), key


def first(library: Any, make: Any, **options: Any) -> TensorDict:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collector = library.Collector(make, frames_per_batch=20, total_frames=40, **options)
        try:
            return next(iter(collector)).clone()
        finally:
            collector.shutdown()


@pytest.mark.parametrize("make", [ours, theirs, of_both, outside])
@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_batches_are_those_of_torchrl(make: Any, arguments: dict[str, Any]) -> None:
    expected = first(torchrl.collectors, lambda: theirs(**arguments))
    assert_same(first(windrow.collectors, lambda: make(**arguments)), expected)
    assert_same(first(windrow.collectors, make(**arguments)), expected)


def test_compact_batches_keep_differences() -> None:
    expected = first(torchrl.collectors, theirs, compact_obs=True)
    got = first(windrow.collectors, ours, compact_obs=True)
    assert ("next", "count") not in got.keys(True)
    assert_same(got, expected)


@pytest.mark.parametrize("make", [ours, theirs])
@pytest.mark.parametrize("placement", ["threads", pytest.param("processes", marks=PROCESSES)])
def test_several_workers_deliver_differences(make: Any, placement: str) -> None:
    expected = first(torchrl.collectors, theirs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collector = windrow.collectors.MultiSyncCollector(
            [make] * 2, None, frames_per_batch=40, placement=placement
        )
    with collector:
        assert_same(next(collector), torch.cat([expected, expected]))
        fake = collector.fake_tensordict()
        assert fake["next", "delta", "place"].dtype == torch.float16 and (
            "next",
            "place",
        ) not in fake.keys(True)
        assert ("next", "delta", "place") in collector.rollout().keys(True)


@pytest.mark.parametrize("in_background", [False, True])
def test_a_buffer_has_differences_and_its_samples_what_followed(in_background: bool) -> None:
    keys: Any = ["place", ("body", "speed")]
    buffer = windrow.data.ReplayBuffer(
        storage=windrow.data.LazyTensorStorage(40),
        sampler=windrow.data.SamplerWithoutReplacement(shuffle=False),
        transform=NextObservationDelta(in_keys=keys),
        batch_size=40,
    )
    collector = windrow.collectors.Collector(
        ours, replay_buffer=buffer, frames_per_batch=20, total_frames=40
    )
    if in_background:
        collector.start()
        while buffer.write_count < 40:
            time.sleep(0.001)
        collector.shutdown()
    else:
        assert list(collector) == [None, None]
    stored = buffer[:]
    assert stored["next", "delta", "place"].dtype == torch.float16 and (
        "next",
        "place",
    ) not in stored.keys(True)
    sample = buffer.sample()
    now = sample["place"]
    following = torch.stack(
        [torch.arange(1, 8.0) ** 2, torch.arange(1, 8.0) / 7, torch.ones(7)], -1
    ).repeat(6, 1)[:40]
    assert torch.allclose(sample["next", "place"], following, atol=1e-3)
    assert torch.equal(sample["next", "place"], now + (following - now).half().float())
    assert sample["next", "body", "speed"].dtype == torch.float64 and (
        "next",
        "delta",
        "place",
    ) not in sample.keys(True, True)


def test_an_environment_that_is_stepped_by_hand_gives_what_torchrl_gives() -> None:
    env, other = ours(), theirs()
    action = torch.tensor([1, 0])
    steps = [each.step(each.reset().set("action", action)) for each in (env, other)]
    assert_same(*steps)
    (stepped, root), (expected, expected_root) = (
        each.step_and_maybe_reset(each.reset().set("action", action)) for each in (env, other)
    )
    assert_same(stepped, expected)
    assert_same(root, expected_root)
    assert_same(
        env.rollout(20, break_when_any_done=False), other.rollout(20, break_when_any_done=False)
    )
    assert_same(env.rollout(20), other.rollout(20))
    assert_same(env.fake_tensordict(), other.fake_tensordict())
    check_env_specs(env)


def test_native_environments_stay_native() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = windrow.envs.TransformedEnv(
            windrow.envs.GymEnv("CartPole-v1"), NextObservationDelta()
        )
        batch = next(windrow.collectors.Collector(env, frames_per_batch=50))
    assert env._recipe().is_native and "NextObservationDelta" in str(env._recipe())
    delta, seen = batch["next", "delta", "observation"], batch["observation"]
    same = ~batch["next", "done"][:-1, 0]
    assert delta.dtype == torch.float16 and torch.equal(
        delta[:-1][same], (seen[1:] - seen[:-1])[same].half()
    )
