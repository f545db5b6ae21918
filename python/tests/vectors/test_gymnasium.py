"""Environments of Gymnasium as vectors of windrow, in this process and in others: what Gymnasium's
own vector returns, to the bit.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import RecordEpisodeStatistics

import windrow
from vectors.alike import MODES, assert_alike, run_beside, sync
from vectors.talkative import Commanded, Measured, Mortal, Numerical, Tabled, Talkative


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "env", ["FrozenLake-v1", "Blackjack-v1", Talkative, Commanded, Tabled, Numerical, Measured]
)
def test_all_that_gymnasiums_vector_returns_is_returned(
    env: Any, mode: AutoresetMode, workers: int | None
) -> None:
    ours = windrow.make_vec(env, 4, workers=workers, autoreset_mode=mode, native=False)
    try:
        assert run_beside(ours, sync(env, 4, mode), 40) > 3
    finally:
        ours.close()


def test_statistics_of_episodes_come_from_gymnasiums_wrapper() -> None:
    ours = windrow.make_vec(Talkative, 2, autoreset_mode="SameStep", episode_statistics=True)
    assert run_beside(
        ours, sync(Talkative, 2, AutoresetMode.SAME_STEP, RecordEpisodeStatistics), 20
    )


@pytest.fixture(params=[None, 2])
def talkative(request: pytest.FixtureRequest) -> Iterator[Any]:
    envs = windrow.make_vec(Talkative, 4, workers=request.param)
    yield envs
    envs.close()


def test_environments_are_reached_through_the_vector(talkative: Any) -> None:
    observation, info = talkative.reset(seed=3, options={"a": 1})
    assert info["options"].tolist() == ["{'a': 1}"] * 4
    assert talkative.call("weigh", 3) == (3, 3, 3, 3)
    talkative.set_attr("weight", [1, 2, 3, 4])
    assert talkative.get_attr("weight") == (1, 2, 3, 4) and talkative.call("weigh", by=2) == (
        2,
        4,
        6,
        8,
    )
    talkative.set_attr("weight", 5)
    assert talkative.get_attr("weight") == (5, 5, 5, 5)
    with pytest.raises(ValueError, match="a value for each of 4"):
        talkative.set_attr("weight", [1])
    assert talkative.np_random_seed == (3, 4, 5, 6)
    assert [picture.shape for picture in talkative.render()] == [(2, 2, 3)] * 4
    assert talkative.metadata["render_fps"] == 4 and talkative.render_mode == "rgb_array"


def test_an_exception_of_an_environment_is_raised(talkative: Any) -> None:
    talkative.reset(seed=0)
    talkative.set_attr("weight", "heavy")
    with pytest.raises(TypeError, match="multiply"):
        talkative.call("weigh", 0.5)


def test_only_the_masked_environments_are_reset_with_their_seeds(talkative: Any) -> None:
    theirs = sync(Talkative, 4, AutoresetMode.NEXT_STEP)
    mask = np.array([False, True, True, False])
    for envs in (talkative, theirs):
        envs.reset(seed=1)
        envs.step(np.zeros((4, 2), np.float32))
    assert_alike(
        *(
            envs.reset(seed=[0, 8, None, 0], options={"reset_mask": mask.copy(), "b": 2})
            for envs in (talkative, theirs)
        )
    )


def test_what_a_caller_keeps_of_arrays_never_changes() -> None:
    envs = windrow.make_vec("CartPole-v1", 2, native=False)
    kept = [envs.reset(seed=0)[0]]
    copies = [kept[0].copy()]
    for _ in range(12):
        kept.append(envs.step(np.array([0, 1]))[0][:1])
        copies.append(kept[-1].copy())
    assert all((array == copy).all() for array, copy in zip(kept, copies, strict=True))
    del kept, copies
    assert len({envs.step(np.array([0, 1]))[0].ctypes.data for _ in range(20)}) <= 2


def test_arguments_and_pictures_make_an_id_gymnasiums() -> None:
    envs = windrow.make_vec("CartPole-v1", 2, render_mode="rgb_array")
    envs.reset(seed=0)
    pictures = envs.render()
    assert len(pictures) == 2 and pictures[0].ndim == 3
    envs.set_attr("gravity", 3.0)
    assert envs.get_attr("gravity") == (3.0, 3.0)


def test_final_infos_are_dictionaries_where_a_script_reads_them_so() -> None:
    envs = windrow.make_vec(
        "CartPole-v1",
        2,
        autoreset_mode="SameStep",
        episode_statistics=True,
        final_info="dictionaries",
    )
    envs.reset(seed=0)
    found = []
    for _ in range(60):
        *_, infos = envs.step(np.array([0, 1]))
        # The lines of scripts that were written for Gymnasium 0.29.
        if "final_info" in infos:
            for env, info in enumerate(infos["final_info"]):
                if info and "episode" in info:
                    found.append(info["episode"]["l"])
                    assert infos["final_observation"][env].shape == (4,)
    assert len(found) > 6 and all(7 < length < 12 for length in found)


def test_environments_that_differ_are_refused() -> None:
    with pytest.raises(
        RuntimeError, match="environment 1: expected the observation_space of environment 0"
    ):
        windrow.make_vec(
            [lambda: gymnasium.make("CartPole-v1"), lambda: gymnasium.make("Pendulum-v1")]
        )


@pytest.mark.parametrize("kind", [Numerical, Talkative])
@pytest.mark.parametrize("workers", [None, 2])
def test_environments_that_differ_in_bounds_are_refused(
    kind: type[Talkative], workers: int | None
) -> None:
    def other() -> Any:
        env = kind()
        env.observation_space = (
            gymnasium.spaces.Dict({**env.observation_space})
            if kind is Talkative
            else gymnasium.spaces.Box(-2, 2, (2,), np.float64)
        )
        if kind is Talkative:
            env.observation_space["word"] = gymnasium.spaces.Text(9)
        return env

    with pytest.raises(
        RuntimeError, match="environment 1: expected the observation_space of environment 0"
    ):
        windrow.make_vec([kind, other], workers=workers)


@pytest.mark.parametrize("workers", [None, 2])
def test_errors_name_environments_by_their_numbers_in_the_vector(workers: int | None) -> None:
    other = partial(gymnasium.make, "Pendulum-v1")
    makers = [
        partial(gymnasium.make, "CartPole-v1", max_episode_steps=9 - 4 * (env > 1))
        for env in range(4)
    ]
    with pytest.raises(
        RuntimeError, match="environment 3: expected the observation_space of environment"
    ):
        windrow.make_vec([*makers[:3], other], workers=workers)
    envs = windrow.make_vec(makers, workers=workers, autoreset_mode="Disabled")
    envs.reset(seed=0)
    with pytest.raises(ResetNeeded, match=r"environments \[2, 3\] have ended"):
        for _ in range(6):
            envs.step(np.zeros(4, np.int64))
    envs.close()


def test_errors_name_the_function_that_cannot_be_sent() -> None:
    lock = threading.Lock()
    with pytest.raises(
        TypeError,
        match=r"make_vec sends env to each worker, but env\[3\] uses lock, .*leave workers out",
    ):
        windrow.make_vec(
            [Talkative, Talkative, Talkative, lambda: Talkative(lock.acquire())], workers=2
        )


def test_one_object_is_one_environment() -> None:
    same = gymnasium.make("FrozenLake-v1")
    with pytest.raises(ValueError, match="a new environment at each call"):
        windrow.make_vec(lambda: same, 2)
    env = gymnasium.make("FrozenLake-v1")
    assert windrow.make_vec(env).reset(seed=0)[0].shape == (1,)
    with pytest.raises(TypeError, match="one object, which cannot be 2 environments"):
        windrow.make_vec(env, 2)


def test_a_process_that_dies_is_an_error() -> None:
    envs = windrow.make_vec(Mortal, 2, workers=2)
    envs.reset(seed=0)
    with pytest.raises(RuntimeError, match="environment 0"):
        envs.call("die")
    with pytest.raises(RuntimeError, match="environment 0"):
        envs.step(np.array([0, 0]))
    envs.close()


# Some at a time


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize(
    ("env", "workers"), [("CartPole-v1", 2), ("FrozenLake-v1", 4), (Talkative, 2), (Numerical, 2)]
)
def test_some_environments_are_received_while_others_step(
    env: Any, workers: int, mode: str
) -> None:
    envs = windrow.make_vec(env, 4, workers=workers, batch_size=2, autoreset_mode=mode)
    envs.async_reset(seed=1)
    steps = np.zeros(4, int)
    for _ in range(30):
        observation, reward, terminated, truncated, info = envs.recv()
        assert len(info["env_id"]) == len(reward) == 2 and gymnasium.vector.utils.batch_space(
            envs.single_observation_space, 2
        ).contains(observation)
        steps[info["env_id"]] += 1
        envs.send(np.array([envs.single_action_space.sample() for _ in range(2)]), info["env_id"])
    envs.close()
    assert steps.sum() == 60


@pytest.mark.parametrize(
    ("each", "unknown"), [(1, [-1]), (1, [4]), (1, [0.5]), (2, [1]), (2, [1, 2]), (2, [4, 5])]
)
def test_actions_are_for_environments_that_there_are(each: int, unknown: list[Any]) -> None:
    envs = windrow.make_vec("FrozenLake-v1", 4, workers=4 // each, batch_size=2, native=False)
    envs.async_reset(seed=0)
    with pytest.raises(
        ValueError,
        match="env_id: expected environments from 0 to 3"
        + ", the 2 of a process side by side" * (each > 1),
    ):
        envs.send(np.zeros(len(unknown), np.int64), unknown)
    envs.close()


def test_each_environment_goes_on_from_its_own_state() -> None:
    envs, alone = (
        windrow.make_vec("CartPole-v1", 4, workers=2, batch_size=1),
        windrow.make_vec("CartPole-v1", 4),
    )
    seen: list[list[Any]] = [[] for _ in range(4)]
    envs.async_reset(seed=5)
    while min(map(len, seen)) < 12:
        observation, _, _, _, info = envs.recv()
        (env,) = info["env_id"]
        seen[env].append(observation[0].copy())
        if len(seen[env]) < 12:
            envs.send(np.array([env % 2]), [env])
    expected = [
        alone.reset(seed=5)[0].copy(),
        *(alone.step(np.array([0, 1, 0, 1]))[0].copy() for _ in range(11)),
    ]
    for env in range(4):
        assert (np.array(seen[env]) == np.array(expected)[:, env]).all()
    with pytest.raises(ValueError, match="an action for each of 2"):
        envs.send(np.array([1]), [0, 1])
    envs.close()
