"""Environments of MuJoCo that Rust steps, beside Gymnasium's."""

from __future__ import annotations

import json
import sys
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

import certify
import windrow
from vectors.alike import MODES, run_beside, sync
from windrow._windrow import mujoco_arguments
from windrow.collectors import Collector, MultiSyncCollector
from windrow.envs import GymEnv, _native
from windrow.vectors._engine import EngineVector

pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install mujoco")
IDS = sorted(mujoco_arguments())
EXAMPLES = Path(__file__).parents[3] / "examples" / "python"

#: Arguments that are not the defaults.
ARGUMENTS = [(name, kwargs) for name in IDS for kwargs in certify.ARGUMENTS.get(name, [])]


@pytest.fixture(autouse=True)
def distances_as_with_avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np.linalg, "norm", certify.as_with_avx512(np.linalg.norm))


def run_beside_gymnasiums(
    env_name: str,
    steps: int,
    mode: AutoresetMode = AutoresetMode.SAME_STEP,
    vector: dict[str, Any] | None = None,
    **kwargs: Any,
) -> int:
    """Steps two native environments beside Gymnasium's vector and compares all that both return,
    ``info`` included; how many episodes have ended.
    """
    ours = windrow.make_vec(env_name, 2, autoreset_mode=mode, **(vector or {}), **kwargs)
    assert isinstance(ours, EngineVector)
    ended = run_beside(
        ours,
        sync(lambda: gymnasium.make(env_name, disable_env_checker=True, **kwargs), 2, mode),
        steps,
    )
    ours.close()
    return ended


@pytest.mark.parametrize(("env_name", "mode"), list(zip(IDS, cycle(MODES), strict=False)))
def test_episodes_are_gymnasiums_bit_by_bit(env_name: str, mode: AutoresetMode) -> None:
    ends = run_beside_gymnasiums(env_name, 130, mode)
    if env_name.startswith(("Hopper", "Walker", "Humanoid-", "Inverted", "Reacher")):
        assert ends > 2


@pytest.mark.parametrize("vector", [{}, {"workers": 2}])
@pytest.mark.parametrize("mode", MODES)
def test_info_of_resets_and_steps_is_told_apart_in_each_mode(
    mode: AutoresetMode, vector: dict[str, Any]
) -> None:
    for env_name in ("Hopper-v5", "Walker2d-v4", "InvertedPendulum-v5"):
        assert run_beside_gymnasiums(env_name, 90, mode, vector) > 2


@pytest.mark.parametrize(
    ("env_name", "kwargs"), ARGUMENTS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_arguments_mean_what_they_mean_in_gymnasium(env_name: str, kwargs: dict[str, Any]) -> None:
    run_beside_gymnasiums(env_name, 60, **kwargs)


@pytest.mark.parametrize(
    "env_name", ["Ant-v5", "Hopper-v4", "Humanoid-v5", "InvertedDoublePendulum-v5", "Walker2d-v5"]
)
def test_a_whole_number_as_an_argument_is_one_in_info(env_name: str) -> None:
    run_beside_gymnasiums(env_name, 40, healthy_reward=2)


def test_episodes_are_counted_with_rewards_in_double_precision() -> None:
    ours = windrow.make_vec("Hopper-v5", 2, autoreset_mode="SameStep", episode_statistics=True)
    theirs = sync(
        "Hopper-v5", 2, AutoresetMode.SAME_STEP, gymnasium.wrappers.RecordEpisodeStatistics
    )
    assert run_beside(ours, theirs, 90) > 2


def test_environments_that_are_received_say_what_they_say_in_steps() -> None:
    envs = windrow.make_vec("InvertedPendulum-v5", 4, batch_size=2, workers=2)
    envs.async_reset(seed=0)
    begun = 0
    over = np.zeros(4, bool)
    for received in range(60):
        _, rewards, terminated, truncated, info = envs.recv()
        assert rewards.dtype == np.float64 and rewards.shape == (2,)
        ids = info["env_id"]
        if received > 1:
            says = info.get("_reward_survive", np.zeros(2, bool))
            assert (says == ~over[ids]).all()
            begun += int(over[ids].sum())
        over[ids] = terminated | truncated
        envs.send(np.ones((2, 1), np.float32), ids)
    assert begun > 2
    envs.close()


def test_entries_of_info_are_observed_natively() -> None:
    def batch(backend: str) -> Any:
        keys = ["x_position", "reward_ctrl", "reward_survive", "tendon_length"]
        env = GymEnv("Humanoid-v5", info_keys=keys, backend=backend)
        assert [env.observation_spec[key].dtype for key in keys] == [
            torch.float64,
            torch.float64,
            torch.float64,
            torch.float64,
        ]
        return next(Collector(env, frames_per_batch=80, seed=2))

    ours, theirs = batch("native"), batch("gymnasium")
    assert ours["next", "done"].any()
    for key in theirs.keys(True, True):
        assert torch.equal(ours[key], theirs[key]), key
    cheetah = GymEnv("HalfCheetah-v4", info_keys=["reward_ctrl"])
    assert (cheetah.backend, cheetah.observation_spec["reward_ctrl"].dtype) == (
        "native",
        torch.float32,
    )
    with pytest.raises(ValueError, match="HalfCheetah-v4 observes .*reward_run.* of info natively"):
        GymEnv("HalfCheetah-v4", info_keys=["reward_forward"], backend="native")


def test_a_vector_of_sb3_has_the_infos_of_its_own() -> None:
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.env_util import make_vec_env

    from windrow.sb3 import VecEnv

    ours, theirs = VecEnv("Hopper-v5", 2), make_vec_env("Hopper-v5", 2)
    ours.seed(3), theirs.seed(3)
    assert (ours.reset() == theirs.reset()).all() and ours.reset_infos == theirs.reset_infos
    draws, ends = np.random.default_rng(0), 0
    for _ in range(130):
        actions = draws.uniform(-1, 1, (2, 3)).astype(np.float32)
        seen, expected = ours.step(actions), theirs.step(actions)
        assert all((one == other).all() for one, other in zip(seen[:3], expected[:3], strict=True))
        for info, like in zip(seen[3], expected[3], strict=True):
            last = [one.pop("terminal_observation", np.zeros(0)) for one in (info, like)]
            assert np.array_equal(*last)
            for one in (info, like):
                one.get("episode", {}).pop("t", None)
            assert info == like
        assert ours.reset_infos == theirs.reset_infos
        ends += expected[2].sum()
    assert ends > 1


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
        for key in (
            "observation",
            "action",
            ("next", "observation"),
            ("next", "reward"),
            ("next", "done"),
        ):
            assert torch.equal(expected[key], resumed[key]), key


def test_what_rust_does_not_do_is_gymnasiums() -> None:
    with_pictures = GymEnv("Hopper-v5", render_mode="rgb_array")
    assert with_pictures.backend == "gymnasium"
    assert GymEnv("Hopper-v5", info_keys={"x_position": np.zeros(())}).backend == "gymnasium"
    assert not isinstance(windrow.make_vec("Hopper-v5", render_mode="rgb_array"), EngineVector)
    assert not isinstance(windrow.make_vec("Hopper-v5", native=False), EngineVector)
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
        with pytest.raises(
            ValueError, match="has another hopper_v5.py than the one that is followed"
        ):
            GymEnv("Hopper-v5", backend="native")
    finally:
        monkeypatch.undo()
        _native._doubt.cache_clear()
    assert GymEnv("Hopper-v5").backend == "native"


def test_without_mujoco_an_id_is_gymnasiums_which_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
        (
            {"healthy_z_range": 2.0},
            "healthy_z_range of Hopper-v5: expected a lowest and a highest number",
        ),
        (
            {"terminate_when_unhealthy": 1},
            "terminate_when_unhealthy of Hopper-v5: expected true or false",
        ),
        ({"max_episode_steps": -1}, "max_episode_steps of Hopper-v5: expected 1 step or more"),
        ({"xml_file": "nowhere.xml"}, "nowhere.xml was not found"),
        (
            {"xml_file": "inverted_pendulum.xml"},
            "Hopper-v5 needs a model with 3 numbers or more in qpos, got 2",
        ),
    ]:
        with pytest.raises(ValueError, match=reason):
            GymEnv("Hopper-v5", backend="native", **kwargs)
        assert GymEnv("Hopper-v5", **kwargs).backend == "gymnasium"


def test_infinite_numbers_reach_rust() -> None:
    written = json.loads(
        _native.arguments_of("Hopper-v5", {"healthy_z_range": (0.2, float("inf"))})
    )
    assert written["healthy_z_range"] == [0.2, "inf"]
    run_beside_gymnasiums(
        "Hopper-v5", 60, healthy_z_range=(0.2, float("inf")), healthy_state_range=(float("-inf"), 5)
    )


def test_ppo_on_halfcheetah_has_the_frames_of_gymnasiums() -> None:
    sys.path.insert(0, str(EXAMPLES))
    try:
        from ppo_halfcheetah import make_actor, make_env
    finally:
        sys.path.remove(str(EXAMPLES))

    def batches(backend: str) -> list[Any]:
        torch.manual_seed(0)
        collector = Collector(
            make_env(backend), make_actor(), frames_per_batch=1000, total_frames=2000, seed=0
        )
        return list(collector)

    ours, theirs = batches("native"), batches("gymnasium")
    assert ours[1]["next", "done"].any()
    for one, other in zip(ours, theirs, strict=True):
        assert sorted(map(str, one.keys(True, True))) == sorted(map(str, other.keys(True, True)))
        for key in other.keys(True, True):
            assert torch.equal(one[key], other[key]), key
