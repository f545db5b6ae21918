"""Native environments as vectors: the bits of Gymnasium's, in memory that is used again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import RecordEpisodeStatistics

import windrow
from vectors.alike import MODES, run_beside, sync
from windrow.envs import Compose, GymEnv, RewardSum, SerialEnv, StepCounter, TransformedEnv

#: Numbers and choices, bounded and discrete actions, tuples, and entries of info. `certify`
#: compares all environments.
IDS = ["CartPole-v1", "Pendulum-v1", "Blackjack-v1", "Taxi-v4"]


def as_given(env_name: str) -> Callable[[np.ndarray], np.ndarray]:
    """Native rewards are Gymnasium's; those of classic control and Blackjack have the digits of
    single precision.
    """
    if env_name == "Taxi-v4":
        return lambda rewards: rewards
    return lambda rewards: rewards.astype(np.float32).astype(np.float64)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("id", IDS)
def test_native_environments_give_the_bits_of_gymnasiums_sync_vector(
    id: str, mode: AutoresetMode
) -> None:
    assert run_beside(
        windrow.make_vec(id, 3, autoreset_mode=mode), sync(id, 3, mode), 230, as_given(id)
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("id", ["CartPole-v1", "Taxi-v4"])
def test_threads_give_the_same_bits(id: str, mode: AutoresetMode) -> None:
    assert run_beside(
        windrow.make_vec(id, 4, workers=2, autoreset_mode=mode),
        sync(id, 4, mode),
        210,
        as_given(id),
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"workers": 2},
        {"native": False},
        {"native": False, "workers": 2},
        {"transforms": StepCounter()},
    ],
    ids=str,
)
def test_rewards_are_double_precision_whatever_steps_the_environments(
    options: dict[str, Any],
) -> None:
    envs = windrow.make_vec("CartPole-v1", 2, **options)
    envs.reset(seed=0)
    assert envs.step(np.zeros(2, np.int64))[1].dtype == np.float64
    envs.close()


def test_arguments_reach_native_environments() -> None:
    envs = windrow.make_vec("FrozenLake-v1", 2, is_slippery=False, desc=["SF", "FG"])
    assert (
        repr(envs) == "EngineVector(FrozenLake-v1, num_envs=2)"
        and envs.single_observation_space == gymnasium.spaces.Discrete(4)
    )
    _, info = envs.reset(seed=0)
    assert info["prob"].tolist() == [1.0, 1.0] and info["_prob"].all()
    envs.step(np.array([2, 2]))
    assert envs.step(np.array([1, 0]))[0].tolist() == [3, 0]
    # What they do not take, and maps that are drawn, is Gymnasium's.
    for kwargs in ({"render_mode": "ansi"}, {"map_name": None}, {"max_episode_steps": 5}):
        assert not repr(windrow.make_vec("FrozenLake-v1", **kwargs)).startswith("EngineVector")
    with_transforms = windrow.make_vec(
        "FrozenLake-v1", 2, map_name="8x8", transforms=[StepCounter()]
    )
    assert with_transforms.single_observation_space["observation"] == gymnasium.spaces.Discrete(64)


def test_some_environments_are_received_with_their_info() -> None:
    envs = windrow.make_vec("Taxi-v4", 4, batch_size=2)
    envs.async_reset(seed=0)
    for _ in range(30):
        observation, *_, info = envs.recv()
        if "action_mask" in info:
            assert info["action_mask"].shape == (2, 6) and info["action_mask"].any(1).all()
        envs.send(np.zeros(2, np.int64), info["env_id"])
    assert {"prob", "action_mask"} < info.keys() and observation.shape == (2,)
    cards = windrow.make_vec("Blackjack-v1", 2, batch_size=1)
    cards.async_reset(seed=0)
    assert [part.shape for part in cards.recv()[0]] == [(1,)] * 3


@pytest.mark.parametrize("mode", MODES)
def test_episode_statistics_are_those_of_gymnasiums_wrapper(mode: AutoresetMode) -> None:
    ours = windrow.make_vec("CartPole-v1", 3, autoreset_mode=mode, episode_statistics=True)
    assert run_beside(
        ours, sync("CartPole-v1", 3, mode, RecordEpisodeStatistics), 100, as_given("CartPole-v1")
    )


def test_a_vector_is_what_gymnasiums_make_vec_returns() -> None:
    ours, theirs = (
        windrow.make_vec("CartPole-v1", 2),
        gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync"),
    )
    assert isinstance(ours, gymnasium.vector.VectorEnv) and ours.unwrapped is ours
    assert ours.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert ours.spec.id == theirs.spec.id and repr(ours) == "EngineVector(CartPole-v1, num_envs=2)"
    assert ours.get_attr("spec")[1].id == "CartPole-v1"
    ours.reset(seed=[4, 9])
    assert ours.np_random_seed == (4, 9)
    # Gymnasium's wrappers go around it.
    wrapped = gymnasium.wrappers.vector.RecordEpisodeStatistics(ours)
    wrapped.reset(seed=0)
    wrapped.action_space.seed(0)
    for _ in range(40):
        *_, info = wrapped.step(wrapped.action_space.sample())
        if "episode" in info:
            break
    assert info["episode"]["l"].max() > 5


def test_what_a_caller_keeps_never_changes() -> None:
    envs = windrow.make_vec("CartPole-v1", 2)
    first, _ = envs.reset(seed=0)
    kept, row, flat = [], first[1], memoryview(first).cast("B")
    copies = [(row, row.copy()), (flat, bytes(flat))]
    del first
    for _ in range(30):
        observation, reward, terminated, truncated, _ = envs.step(envs.action_space.sample())
        kept += [observation, reward, terminated, truncated]
        copies += [(array, array.copy()) for array in kept[-4:]]
    assert all(
        (np.asarray(array) == copy).all()
        if isinstance(copy, np.ndarray)
        else array.tobytes() == copy
        for array, copy in copies
    )


def test_memory_that_nobody_keeps_is_used_again() -> None:
    envs = windrow.make_vec("CartPole-v1", 2)
    actions = np.array([0, 1])
    envs.reset(seed=0)
    addresses = {envs.step(actions)[0].ctypes.data for _ in range(50)}
    assert len(addresses) <= 2
    observation = envs.step(actions)[0]
    held = observation.ctypes.data
    assert held not in {envs.step(actions)[0].ctypes.data for _ in range(10)}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda a: a.setflags(write=False),
        lambda a: setattr(a, "shape", (8,)),
        lambda a: setattr(a, "dtype", np.int32),
    ],
)
def test_an_array_that_was_changed_in_form_is_not_used_again(spoil: object) -> None:
    envs = windrow.make_vec("CartPole-v1", 2)
    actions = np.array([0, 1])
    spoil(envs.reset(seed=0)[0])  # type: ignore[operator]
    for _ in range(6):
        observation = envs.step(actions)[0]
        assert (
            observation.shape == (2, 4)
            and observation.dtype == np.float32
            and observation.flags.writeable
        )


def test_environments_that_are_not_reset_are_seen_as_they_were() -> None:
    envs = windrow.make_vec("CartPole-v1", 3, autoreset_mode="Disabled")
    envs.reset(seed=0)
    seen = envs.step(np.array([0, 1, 0]))[0]
    before = seen.copy()
    # The caller's array is his own.
    seen[:] = 9
    after, _ = envs.reset(seed=5, options={"reset_mask": np.array([False, True, False])})
    assert (after[[0, 2]] == before[[0, 2]]).all() and (after[1] != before[1]).all()


def test_an_ended_environment_is_not_stepped_where_it_does_not_begin_anew() -> None:
    envs = windrow.make_vec("CartPole-v1", 2, autoreset_mode="Disabled")
    envs.reset(seed=0)
    with pytest.raises(ResetNeeded, match=r"environments \[\d(, \d)?\] have ended.*reset_mask"):
        for _ in range(200):
            envs.step(np.array([0, 0]))


def test_a_closed_vector_says_so() -> None:
    for workers in (None, 2):
        envs = windrow.make_vec("CartPole-v1", 2, workers=workers)
        envs.reset(seed=0)
        envs.close()
        envs.close()
        with pytest.raises(ClosedEnvironmentError, match="step was called"):
            envs.step(np.array([0, 0]))
        with pytest.raises(ClosedEnvironmentError, match="reset was called"):
            envs.reset()


def test_memory_goes_with_the_vector() -> None:
    envs = windrow.make_vec("CartPole-v1", 2)
    observation, _ = envs.reset(seed=0)
    before, gone = observation.copy(), weakref.ref(envs)
    del envs
    gc.collect()
    assert gone() is None and (observation == before).all()


@pytest.mark.parametrize("mode", MODES)
def test_transforms_go_around_each_environment(mode: AutoresetMode) -> None:
    envs = windrow.make_vec(
        "CartPole-v1", 2, transforms=[StepCounter(), RewardSum()], autoreset_mode=mode
    )
    assert sorted(envs.single_observation_space.spaces) == [
        "episode_reward",
        "observation",
        "step_count",
    ]
    observation, _ = envs.reset(seed=0)
    assert envs.observation_space.contains(observation)
    for step in range(1, 4):
        observation, *_ = envs.step(np.array([0, 1]))
        assert observation["step_count"].ravel().tolist() == [step, step]
        assert observation["episode_reward"].ravel().tolist() == [step, step]


@pytest.mark.parametrize(
    "given",
    [StepCounter(), Compose(StepCounter()), [Compose(StepCounter())]],
    ids=["alone", "Compose", "Compose in a list"],
)
def test_transforms_come_alone_or_together(given: Any) -> None:
    envs = windrow.make_vec("CartPole-v1", 2, transforms=given)
    envs.reset(seed=0)
    assert envs.step(np.array([0, 1]))[0]["step_count"].ravel().tolist() == [1, 1]


@pytest.mark.filterwarnings("ignore:_CallableTransform is a transform of TorchRL")
def test_a_function_is_a_transform() -> None:
    envs = windrow.make_vec(
        "CartPole-v1", 2, transforms=[lambda root: root.set("observation", -root["observation"])]
    )
    assert (envs.reset(seed=0)[0] == -windrow.make_vec("CartPole-v1", 2).reset(seed=0)[0]).all()


def test_environments_of_windrow_are_taken_with_their_transforms() -> None:
    env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter())
    for given in (env, lambda: TransformedEnv(GymEnv("CartPole-v1"), StepCounter())):
        envs = windrow.make_vec(given, 2)
        # Choices are indices, as Gymnasium has them.
        assert envs.single_action_space == gymnasium.spaces.Discrete(2)
        assert envs.reset(seed=0)[0]["step_count"].shape == (2, 1)


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("CartPole-v1", {"native": False, "num_envs": 2}),
        (partial(gymnasium.make, "CartPole-v1"), {"num_envs": 2}),
        (partial(GymEnv, "CartPole-v1"), {"num_envs": 2}),
        (SerialEnv(2, partial(GymEnv, "CartPole-v1")), {}),
        (GymEnv("CartPole-v1", num_envs=2), {}),
    ],
    ids=["id", "function", "function of windrow", "SerialEnv", "num_envs"],
)
@pytest.mark.parametrize("mode", MODES)
def test_whatever_makes_environments_their_choices_are_indices_and_each_ends_by_itself(
    env: Any, options: dict[str, Any], mode: AutoresetMode
) -> None:
    envs = windrow.make_vec(env, transforms=StepCounter(), autoreset_mode=mode, **options)
    theirs = sync("CartPole-v1", 2, mode)
    assert envs.action_space == theirs.action_space
    assert (envs.reset(seed=3)[0]["observation"] == theirs.reset(seed=3)[0]).all()
    for step in range(60):
        actions = np.array([0, step % 3 % 2])
        seen, expected = envs.step(actions), theirs.step(actions)
        np.testing.assert_array_equal(seen[2], expected[2])
        if mode is AutoresetMode.DISABLED and expected[2].any():
            seen, expected = (
                one.reset(options={"reset_mask": expected[2].copy()}) for one in (envs, theirs)
            )
        np.testing.assert_allclose(seen[0]["observation"], expected[0], rtol=1e-5)
    envs.close()


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda envs: envs.step(np.array([0, 2])), ValueError, "expected"),
        (lambda envs: envs.step(np.array([0, 1, 1])), ValueError, "expected int64"),
        (lambda envs: envs.reset(seed=-1), ValueError, "seed must be 0 or more, got -1"),
        (lambda envs: envs.reset(seed=[1]), ValueError, "a seed or None for each of 2"),
        (lambda envs: envs.reset(options={"low": 0.1}), ValueError, "native=False"),
        (
            lambda envs: envs.reset(options={"reset_mask": [True, False]}),
            TypeError,
            "array of booleans",
        ),
        (
            lambda envs: envs.reset(options={"reset_mask": np.zeros(2, bool)}),
            ValueError,
            "one True at least",
        ),
        (lambda envs: envs.get_attr("gravity"), AttributeError, "native=False"),
        (lambda envs: envs.set_attr("gravity", 1.0), AttributeError, "native=False"),
        (lambda envs: envs.render(), AttributeError, "native=False"),
        (lambda envs: envs.recv(), RuntimeError, "batch_size"),
    ],
)
def test_errors_say_what_was_expected(call: object, error: type[Exception], says: str) -> None:
    envs = windrow.make_vec("CartPole-v1", 2)
    envs.reset(seed=0)
    with pytest.raises(error, match=says):
        call(envs)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"env": "CartPole-v1", "num_envs": 0}, ValueError, "num_envs must be 1 or more"),
        ({"env": "CartPole-v1", "num_envs": 3, "workers": 2}, ValueError, "workers=2 must divide"),
        (
            {"env": "CartPole-v1", "final_info": "lists"},
            ValueError,
            'final_info must be "arrays" or "dictionaries", got',
        ),
        ({"env": "CartPole-v1", "autoreset_mode": "Never"}, ValueError, "Never"),
        ({"env": ["CartPole-v1"], "num_envs": 2}, ValueError, "as num_envs says, got 1"),
        ({"env": []}, ValueError, "got 0"),
        ({"env": 7}, TypeError, "the id of an environment"),
        (
            {"env": "CartPole-v1", "num_envs": 2, "batch_size": 3},
            ValueError,
            "batch_size must be a multiple",
        ),
        (
            {"env": "CartPole-v1", "native": False, "num_envs": 2, "batch_size": 1},
            ValueError,
            "workers is how many",
        ),
        (
            {"env": "CartPole-v1", "num_envs": 2, "batch_size": 1, "autoreset_mode": "Disabled"},
            ValueError,
            "DISABLED",
        ),
        (
            {"env": "CartPole-v1", "num_envs": 2, "batch_size": 1, "final_info": "dictionaries"},
            ValueError,
            "stepped as a whole: leave batch_size out",
        ),
        (
            {"env": "CartPole-v1", "autoreset_mode": "next_step"},
            ValueError,
            'autoreset_mode must be "NextStep", "SameStep" or "Disabled", got',
        ),
        (
            {"env": "CartPole-v1", "transforms": [3]},
            TypeError,
            "expected a transform, or a function of a TensorDict, got int",
        ),
        ({"env": gymnasium.Env, "sutton_barto_reward": True}, TypeError, "for ids"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: dict[str, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        windrow.make_vec(**arguments)  # type: ignore[arg-type]
