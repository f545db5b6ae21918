"""Environments of MuJoCo that Rust steps, beside Gymnasium's."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import certify
import gymnasium
import numpy as np
import pytest
import torch
import windrow
from windrow._windrow import mujoco_arguments
from windrow.collectors import Collector, MultiSyncCollector
from windrow.envs import GymEnv
from windrow.envs import _native

pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install mujoco")
IDS = sorted(mujoco_arguments())

#: Arguments that are not the defaults.
ARGUMENTS = [(name, kwargs) for name in IDS for kwargs in certify.ARGUMENTS.get(name, [])]


def assert_equal_to_gymnasiums(env_name: str, steps: int, **kwargs: Any) -> tuple[int, int]:
    """Steps two native environments and two of Gymnasium with the same seeds and actions; how many episodes have terminated, and how many were truncated."""
    assert _native.arguments_of(env_name, kwargs)
    ours = windrow.make_vec(env_name, 2, autoreset_mode="SameStep", native=True, **kwargs)
    theirs = [gymnasium.make(env_name, disable_env_checker=True, **kwargs) for _ in range(2)]
    assert ours.single_observation_space == theirs[0].observation_space
    assert ours.single_action_space == theirs[0].action_space
    seen, _ = ours.reset(seed=5)
    for env in range(2):
        np.testing.assert_array_equal(seen[env], theirs[env].reset(seed=5 + env)[0])
    draws, space = np.random.default_rng(0), theirs[0].action_space
    assert isinstance(space, gymnasium.spaces.Box)
    ends = [0, 0]
    for _ in range(steps):
        actions = draws.uniform(space.low, space.high, (2, *space.shape)).astype(np.float32)
        seen, rewards, terminated, truncated, info = ours.step(actions)
        for env in range(2):
            expected, reward, is_terminated, is_truncated, _ = theirs[env].step(actions[env])
            assert (rewards[env], terminated[env], truncated[env]) == (np.float32(reward), is_terminated, is_truncated)
            if is_terminated or is_truncated:
                ends = [ends[0] + bool(is_terminated), ends[1] + bool(is_truncated)]
                np.testing.assert_array_equal(info["final_obs"][env], expected)
                expected, _ = theirs[env].reset()
            np.testing.assert_array_equal(seen[env], expected)
    ours.close()
    return ends[0], ends[1]


@pytest.mark.parametrize("env_name", IDS)
def test_episodes_are_gymnasiums_bit_by_bit(env_name: str) -> None:
    ends = assert_equal_to_gymnasiums(env_name, 130)
    if env_name.startswith(("Hopper", "Walker", "Humanoid-", "Inverted")):
        assert ends[0] > 2
    if env_name.startswith(("Reacher", "Pusher")):
        assert ends[1] > 1


@pytest.mark.parametrize(("env_name", "kwargs"), ARGUMENTS, ids=lambda value: value if isinstance(value, str) else "")
def test_arguments_mean_what_they_mean_in_gymnasium(env_name: str, kwargs: dict[str, Any]) -> None:
    assert_equal_to_gymnasiums(env_name, 60, **kwargs)


def test_an_id_is_native_in_environments_and_collectors_and_has_gymnasiums_frames() -> None:
    env = GymEnv("HalfCheetah-v5")
    theirs = GymEnv("HalfCheetah-v5", backend="gymnasium")
    assert (env.backend, theirs.backend) == ("native", "gymnasium")
    assert env.observation_spec["observation"].dtype == torch.float64
    batches = [next(Collector(made, frames_per_batch=50, seed=3)) for made in (env, theirs)]
    for key in ("observation", "action", ("next", "observation"), ("next", "reward")):
        assert torch.equal(batches[0][key], batches[1][key]), key
    plain = next(Collector("HalfCheetah-v5", frames_per_batch=50, seed=3))
    assert torch.equal(plain["observation"], batches[0]["observation"])


def test_workers_in_threads_and_in_processes_have_the_same_frames() -> None:
    def collect(placement: str) -> Any:
        env = partial(GymEnv, "Hopper-v5", ctrl_cost_weight=0.1)
        collector = MultiSyncCollector([env] * 2, frames_per_batch=40, seed=1, placement=placement)
        try:
            return next(collector)
        finally:
            collector.shutdown()

    threads, processes = collect("threads"), collect("processes")
    assert torch.equal(threads["next", "observation"], processes["next", "observation"])
    assert torch.equal(threads["next", "reward"], processes["next", "reward"])


@pytest.mark.parametrize("env_name", ["Ant-v5", "Reacher-v4", "HalfCheetah-v5"])
def test_a_resumed_run_is_the_same_run(env_name: str) -> None:
    def collector() -> Collector:
        return Collector(GymEnv(env_name, num_envs=2), frames_per_batch=60, seed=7)

    first, second = collector(), collector()
    next(first)
    next(first)
    state = first.state_dict()
    assert "simulators" in state
    second.load_state_dict(state)
    for _ in range(2):
        expected, resumed = next(first), next(second)
        for key in ("observation", "action", ("next", "observation"), ("next", "reward"), ("next", "done")):
            assert torch.equal(expected[key], resumed[key]), key


def test_what_rust_does_not_do_is_gymnasiums() -> None:
    with_pictures = GymEnv("Hopper-v5", render_mode="rgb_array")
    assert with_pictures.backend == "gymnasium"
    assert GymEnv("Hopper-v5", info_keys=["x_position"]).backend == "gymnasium"
    assert GymEnv("Hopper-v5", ctrl_cost_weight=np.float64(0.1)).backend == "gymnasium"
    for kwargs, reason in [
        ({"render_mode": "rgb_array"}, "does not take render_mode natively"),
        ({"ctrl_cost_weight": np.float64(0.1)}, "does not take ctrl_cost_weight=np.float64"),
        ({"ctrl_weight": 1.0}, "does not take ctrl_weight natively"),
    ]:
        with pytest.raises(ValueError, match=reason):
            GymEnv("Hopper-v5", backend="native", **kwargs)


def test_other_code_of_gymnasium_is_called_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_native._SOURCES, "hopper_v5", "0" * 32)
    _native._doubt.cache_clear()
    try:
        assert GymEnv("Hopper-v5").backend == "gymnasium"
        with pytest.raises(ValueError, match="has another hopper_v5.py than the one that is followed"):
            GymEnv("Hopper-v5", backend="native")
    finally:
        monkeypatch.undo()
        _native._doubt.cache_clear()
    assert GymEnv("Hopper-v5").backend == "native"


def test_without_mujoco_an_id_is_gymnasiums_which_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "mujoco_folders", lambda: (None, None))
    _native._doubt.cache_clear()
    try:
        assert GymEnv("Swimmer-v5").backend == "gymnasium"
        with pytest.raises(ValueError, match="Swimmer-v5: MuJoCo is not installed"):
            GymEnv("Swimmer-v5", backend="native")
    finally:
        monkeypatch.undo()
        _native._doubt.cache_clear()


def test_arguments_that_do_not_fit_are_errors_that_name_them() -> None:
    for kwargs, reason in [
        ({"healthy_z_range": 2.0}, "healthy_z_range of Hopper-v5: expected a lowest and a highest number"),
        ({"terminate_when_unhealthy": 1}, "terminate_when_unhealthy of Hopper-v5: expected true or false"),
        ({"max_episode_steps": -1}, "max_episode_steps of Hopper-v5: expected 1 step or more"),
        ({"xml_file": "nowhere.xml"}, "nowhere.xml was not found"),
        ({"xml_file": "inverted_pendulum.xml"}, "Hopper-v5 needs a model with 3 numbers or more in qpos, got 2"),
    ]:
        with pytest.raises(ValueError, match=reason):
            GymEnv("Hopper-v5", backend="native", **kwargs)
        assert GymEnv("Hopper-v5", **kwargs).backend == "gymnasium"


def test_infinite_numbers_reach_rust() -> None:
    written = json.loads(_native.arguments_of("Hopper-v5", {"healthy_z_range": (0.2, float("inf"))}))
    assert written["healthy_z_range"] == [0.2, "inf"]
    assert_equal_to_gymnasiums("Hopper-v5", 60, healthy_z_range=(0.2, float("inf")), healthy_state_range=(float("-inf"), 5))


def test_a_vector_has_the_info_of_gymnasium_unless_it_is_asked_to_run_in_rust() -> None:
    for native, has_info in [(None, True), (False, True), (True, False)]:
        envs = windrow.make_vec("HalfCheetah-v5", 2, native=native)
        envs.reset(seed=0)
        *_, info = envs.step(np.zeros((2, 6), np.float32))
        assert ("x_position" in info) == has_info
        envs.close()
