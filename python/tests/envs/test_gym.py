"""Environments by id, native and of Gymnasium."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict

import windrow
from windrow import WorkerError, _warnings
from windrow.collectors import Collector
from windrow.envs import (
    GymEnv,
    GymWrapper,
    ParallelEnv,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    check_env,
    check_env_specs,
)

#: Of each form of observations and actions. `certify` compares all environments.
IDS = ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Blackjack-v1"]


def rollout(env: Any, steps: int = 300) -> Any:
    torch.manual_seed(1)
    env.set_seed(5)
    return env.rollout(steps, break_when_any_done=False)


@pytest.mark.parametrize("env_name", IDS)
@pytest.mark.parametrize("encoding", [False, True], ids=["one-hot", "indices"])
def test_native_and_gymnasium_environments_are_alike(env_name: str, encoding: bool) -> None:
    native = GymEnv(env_name, categorical_action_encoding=encoding)
    theirs = GymEnv(env_name, categorical_action_encoding=encoding, backend="gymnasium")
    assert (native.backend, theirs.backend) == ("native", "gymnasium")
    assert native.max_episode_steps == theirs.max_episode_steps
    assert repr(native.action_spec) == repr(theirs.action_spec)
    assert repr(native.observation_spec) == repr(theirs.observation_spec)
    a, b = rollout(native), rollout(theirs)
    assert set(a.keys(True, True)) == set(b.keys(True, True))
    for key in a.keys(True, True):
        torch.testing.assert_close(a[key], b[key], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["native", "gymnasium"])
def test_environments_keep_to_their_specs(backend: str) -> None:
    for env_name in IDS:
        check_env(GymEnv(env_name, backend=backend))


@pytest.mark.parametrize("backend", ["native", "gymnasium"])
def test_frames_are_skipped(backend: str) -> None:
    env = GymEnv("CartPole-v1", frame_skip=3, backend=backend)
    rewards = rollout(env, 60)["next", "reward"].flatten().tolist()
    assert max(rewards) == 3.0 and min(rewards) >= 1.0
    with pytest.raises(ValueError, match="frame_skip must be 1 or more, got 0"):
        GymEnv("CartPole-v1", frame_skip=0, backend=backend).reset()


def test_arguments_go_to_gymnasium() -> None:
    assert GymEnv("Pendulum-v1", g=1.0).backend == "gymnasium"
    assert GymEnv("CartPole-v1", max_episode_steps=7).max_episode_steps == 7
    with pytest.raises(
        ValueError, match="Pendulum-v1 cannot be read: unknown field `g`, there are no fields"
    ):
        GymEnv("Pendulum-v1", backend="native", g=1.0)
    with pytest.raises(ValueError, match="windrow has no 'tabular/Blackjack-v0' of its own"):
        GymEnv("tabular/Blackjack-v0", backend="native")
    with pytest.raises(ValueError, match='backend must be "auto", "native" or "gymnasium", got'):
        GymEnv("CartPole-v1", backend="c")
    with pytest.raises(
        ValueError,
        match="'CartPole-v2'|\"CartPole-v2\"; did you mean CartPole-v1.*Gymnasium: Environment version",
    ):
        GymEnv("CartPole-v2").reset()


@pytest.mark.parametrize(
    "env_name", ["ALE/Nothing-v5", "NobodyHasThis-v0", "MiniGridLike-Empty-5x5-v0"]
)
def test_of_an_unknown_id_nothing_far_is_suggested(env_name: str) -> None:
    with pytest.raises(
        ValueError, match="known once it has been imported.*register_envs"
    ) as caught:
        GymEnv(env_name).reset()
    assert f"no environment is called {env_name!r}" in str(caught.value)
    assert "Acrobot" not in str(caught.value)


def test_several_workers_are_side_by_side() -> None:
    several = GymEnv("Pendulum-v1", num_workers=2)
    assert type(several).__name__ == "ParallelEnv" and several.rollout(2).shape == (2, 2)


def test_what_scripts_ask_of_environments() -> None:
    env = SerialEnv(2, lambda: GymEnv("CartPole-v1"))
    env.start()
    env.set_spec_lock_().check_env_specs()
    assert (
        env.done_key == "done"
        and env.done_keys_groups == [["done", "terminated", "truncated"]]
        and env.state_keys == []
    )
    assert (
        env.input_spec_unbatched["full_action_spec", "action"].shape == (2,)
        and env.output_spec_unbatched.shape == ()
    )
    root = env.reset()
    assert not env.any_done(root) and "_reset" not in root.keys() and env.maybe_reset(root) is root
    root["done"][1], root["step"] = True, torch.ones(2)
    begun = env.maybe_reset(root.clone())
    assert torch.equal(begun["observation"][0], root["observation"][0])
    assert (
        not torch.equal(begun["observation"][1], root["observation"][1]) and not begun["done"].any()
    )
    assert not GymEnv("CartPole-v1").from_pixels


@pytest.mark.parametrize("backend", ["native", "gymnasium"])
def test_an_environment_has_gymnasiums_spec(backend: str) -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1", backend=backend), StepCounter())
    assert env.spec == gymnasium.make("Pendulum-v1").spec and env.spec.max_episode_steps == 200
    assert GymWrapper(gymnasium.make("Pendulum-v1")).spec.id == "Pendulum-v1"


def test_the_spec_has_the_arguments_that_the_environment_was_made_with() -> None:
    env = GymEnv("Pendulum-v1", backend="gymnasium", max_episode_steps=30, g=9.0)
    assert (env.spec.max_episode_steps, env.spec.kwargs) == (30, {"g": 9.0})
    assert gymnasium.spec("Pendulum-v1").max_episode_steps == 200


@pytest.mark.parametrize("make", [GymEnv, lambda name: TransformedEnv(GymEnv(name), StepCounter())])
def test_a_random_step_begins_an_episode_where_none_has_begun(make) -> None:
    env = make("Pendulum-v1")
    env.set_seed(5)
    other = make("Pendulum-v1")
    other.set_seed(5)
    begun = other.reset()
    torch.manual_seed(0)
    steps = [env.rand_step() for _ in range(2)]
    torch.manual_seed(0)
    expected = [other.rand_step(begun.clone()), other.rand_step()]
    for step, same in zip(steps, expected, strict=True):
        torch.testing.assert_close(step["next", "observation"], same["next", "observation"])


def test_a_random_step_goes_on_after_a_rollout() -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter())
    env.rollout(3)
    assert env.rand_step()["next", "step_count"].item() == 4


@pytest.mark.parametrize("make", [GymEnv, lambda name: TransformedEnv(GymEnv(name), StepCounter())])
def test_a_reset_writes_to_what_it_is_given(make) -> None:
    env, given = make("CartPole-v1"), TensorDict(kept=torch.ones(1))
    assert env.reset(given) is given and set(given.keys()) == {"kept", *env.reset().keys()}
    stepped = env.rand_step(given)
    given = stepped["next"].clone().set("_reset", torch.tensor([True]))
    assert env.reset(given) is given and not torch.equal(
        given["observation"], stepped["next", "observation"]
    )
    assert "_reset" not in given.keys() and "reward" in given.keys()


@pytest.mark.parametrize("any_done", [True, False])
def test_a_policy_finds_at_the_root_what_it_has_written_there(any_done: bool) -> None:
    env = GymEnv("CartPole-v1")

    def policy(root: TensorDict) -> TensorDict:
        root["calls"] = root.get("calls", torch.zeros(1)) + 1
        return env.rand_action(root)

    played = env.rollout(40, policy, break_when_any_done=any_done)
    assert played["calls"].flatten().tolist() == [step + 1.0 for step in range(len(played))]
    assert "calls" not in played["next"].keys()


def test_environments_of_the_ale_are_found() -> None:
    pytest.importorskip("ale_py")
    script = "from windrow.envs import GymEnv; print(tuple(GymEnv('ALE/Pong-v5').reset()['pixels'].shape))"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout
        == "(210, 160, 3)\n"
    )


@pytest.mark.filterwarnings("ignore:.* is a transform of TorchRL's")
def test_a_reset_within_transforms_of_torchrl_writes_to_what_it_is_given() -> None:
    theirs = pytest.importorskip("torchrl").envs
    env, given = (
        TransformedEnv(GymEnv("CartPole-v1"), theirs.StepCounter()),
        TensorDict(kept=torch.ones(1)),
    )
    assert (
        env.reset(given) is given and given["step_count"].tolist() == [0] and "kept" in given.keys()
    )
    played = rollout(env, 80)
    begun, done = played["step_count"][1:] == 0, played["next", "done"][:-1]
    assert done.sum() > 1 and torch.equal(begun, done)


def test_specs_are_checked_where_seeds_are_not_kept() -> None:
    class Unseeded(gymnasium.Wrapper):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return self.env.reset()

    env = GymWrapper(Unseeded(gymnasium.make("CartPole-v1")))
    check_env_specs(env)
    with pytest.raises(
        AssertionError,
        match="differs between two rollouts with seed 0: the environment does not keep its seed",
    ):
        check_env(env)


def test_ids_are_listed() -> None:
    assert {"CartPole-v1", "tabular/Blackjack-v0"} <= set(GymEnv.available_envs)


def test_seeds_follow_each_other_and_begin_anew() -> None:
    env = GymEnv("CartPole-v1")
    assert env.set_seed(3) == 3
    first, second = env.reset()["observation"], env.reset()["observation"]
    assert not torch.equal(first, second)
    assert torch.equal(env.reset(seed=3)["observation"], first)
    expected, _ = gymnasium.make("CartPole-v1").reset(seed=3)
    assert first.tolist() == expected.tolist()
    for seeded in (env.set_seed, lambda seed: env.reset(seed=seed)):
        with pytest.raises(ValueError, match="seed must be 0 or more, got -1"):
            seeded(-1)
        with pytest.raises(TypeError, match="seed must be a whole number, got 'one'"):
            seeded("one")


def test_resets_are_a_matter_of_the_root() -> None:
    env = GymEnv("CartPole-v1")
    root = env.reset()
    assert root.batch_size == torch.Size([]) and not root["done"].any()
    step = env.rand_step(root)
    assert step is root and step["next", "reward"].tolist() == [1.0]
    assert set(step["next"].keys()) == {"observation", "reward", "done", "terminated", "truncated"}
    step, following = env.step_and_maybe_reset(
        env.rand_action(following := step["next"].exclude("reward"))
    )
    assert "reward" not in following.keys()


def test_a_fake_tensordict_has_what_a_step_has() -> None:
    env = GymEnv("Pendulum-v1")
    fake, real = env.fake_tensordict(), env.rand_step(env.reset())
    assert set(fake.keys(True, True)) == set(real.keys(True, True))
    for key in fake.keys(True, True):
        assert (fake[key].shape, fake[key].dtype) == (real[key].shape, real[key].dtype)


def test_an_object_is_lent_to_one_at_a_time() -> None:
    inner = gymnasium.make("CartPole-v1")
    env = GymWrapper(inner)
    env.rollout(3)
    collector = Collector(env, None, frames_per_batch=10, total_frames=20)
    assert [batch.shape for batch in collector] == [(10,), (10,)]
    with pytest.raises(ValueError, match="one object and already in use"):
        env.reset()
    del collector
    gc.collect()
    env.rollout(3)
    with pytest.raises(ValueError, match="one object and already in use, by .* wrapper"):
        Collector(inner, None, frames_per_batch=4)
    del env
    assert next(Collector(inner, None, frames_per_batch=4)).shape == (4,)


@pytest.mark.parametrize("placement", ["inline", "threads"])
@pytest.mark.parametrize("batches", [0, 1, 2])
def test_an_object_that_was_lent_is_back_after_a_shutdown(placement: str, batches: int) -> None:
    env = GymWrapper(gymnasium.make("CartPole-v1"))
    for _ in range(2):
        collector = Collector(env, None, frames_per_batch=10, total_frames=20, placement=placement)
        assert [next(collector).shape for _ in range(batches)] == [(10,)] * batches
        collector.shutdown()
        assert env.rollout(3).numel() == 3


@pytest.mark.parametrize("placement", ["inline", "threads"])
def test_an_object_is_back_after_an_error_and_a_shutdown(scripted: Any, placement: str) -> None:
    inner = scripted(RuntimeError("broken"))
    env = GymWrapper(inner)
    collector = Collector(env, None, frames_per_batch=10, placement=placement)
    with pytest.raises(WorkerError, match="broken"):
        next(collector)
    collector.shutdown()
    inner.observation = np.ones(3, np.float32)
    assert env.rollout(2).numel() == 2


@pytest.mark.parametrize("placement", ["inline", "threads"])
def test_a_shutdown_closes_what_was_made_for_the_collector_and_nothing_else(
    echo: Any, placement: str
) -> None:
    closed: list[Any] = []

    class Closing(echo):  # type: ignore[misc]
        def close(self) -> None:
            closed.append(self)

    def make() -> Any:
        return Closing(gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2))

    with Collector(make, None, frames_per_batch=10, placement=placement) as collector:
        next(collector)
        assert closed == []
    assert len(closed) == 1
    own = make()
    with Collector(own, None, frames_per_batch=10, placement=placement) as collector:
        next(collector)
    assert len(closed) == 1


def test_scripts_reach_the_environment_behind() -> None:
    env = GymEnv("Pendulum-v1", frame_skip=2)
    assert env.backend == "native"
    env._env.foo = 7
    assert env.foo == 7 and env.backend == "gymnasium" and env._env.unwrapped.g == 10.0
    env._env.unwrapped.g = 0.0
    env.reset()
    state = env._env.unwrapped.state.copy()
    env.step(env.rand_action().set("action", torch.zeros(1)))
    # Without gravity it turns at the same speed, for both of the skipped frames.
    assert env._env.unwrapped.state[1] == state[1] and env._env.unwrapped.state[0] != state[0]
    for several in (GymEnv("Pendulum-v1", num_envs=2), GymEnv("Pendulum-v1", backend="native")):
        with pytest.raises(AttributeError, match="has no environment of Gymnasium"):
            several._env
    with pytest.raises(AttributeError, match="'GymEnv' object has no attribute 'foo'"):
        GymEnv("Pendulum-v1").foo


def test_attributes_of_members_are_those_of_their_environments() -> None:
    def make() -> GymEnv:
        env = GymEnv("Pendulum-v1")
        env._env.foo = 7
        return env

    with ParallelEnv(2, make) as env:
        assert env.foo == [7, 7] and env.rollout(2).shape == (2, 2)


@pytest.mark.parametrize("make", [GymEnv, lambda id: GymWrapper(gymnasium.make(id))])
def test_a_closed_environment_is_made_again(make: Any) -> None:
    with make("CartPole-v1") as env:
        env.reset()
    assert env.is_closed
    # As a recorder of torchrl.trainers does, which closes its environment after each evaluation.
    assert env.rollout(3).shape == (3,) and not env.is_closed


def test_environments_can_be_pickled() -> None:
    env = pickle.loads(pickle.dumps(GymEnv("CartPole-v1", categorical_action_encoding=True)))
    assert env.reset()["observation"].shape == (4,)


def test_ids_and_functions_are_environments() -> None:
    one_hot = [
        next(Collector(make, None, frames_per_batch=5, seed=0))
        for make in (lambda: GymEnv("CartPole-v1"), GymEnv("CartPole-v1"))
    ]
    indices = [
        next(Collector(make, None, frames_per_batch=5, seed=0))
        for make in (
            "CartPole-v1",
            lambda: "CartPole-v1",
            lambda: gymnasium.make("CartPole-v1"),
        )
    ]
    for batch in one_hot + indices:
        assert torch.equal(batch["observation"], one_hot[0]["observation"])
    expected = indices[0]["action"]
    assert all(torch.equal(batch["action"].argmax(-1), expected) for batch in one_hot)
    assert all(torch.equal(batch["action"], expected) for batch in indices)
    with pytest.raises(
        TypeError, match="expected an environment, its id, or a function that returns one, got int"
    ):
        Collector(5, None, frames_per_batch=5)
    with pytest.raises(TypeError, match="got NoneType"):
        Collector(lambda: None, None, frames_per_batch=5)


def test_torch_is_not_imported_to_describe_an_environment() -> None:
    code = "import sys; from windrow.envs import GymEnv, ParallelEnv; ParallelEnv(2, GymEnv('CartPole-v1')); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "reward", [3, np.float32(3), np.array([3.0]), np.array(3.0), np.array([[3]])], ids=repr
)
def test_rewards_are_numbers_however_they_are_packed(scripted: Any, reward: Any) -> None:
    env = scripted(np.zeros(3, np.float32), reward)
    assert next(Collector(env, None, frames_per_batch=2))["next", "reward"].tolist() == [[3], [3]]


@pytest.mark.parametrize("reward", [None, np.zeros(2), "much"], ids=repr)
def test_rewards_that_are_no_numbers_are_errors(scripted: Any, reward: Any) -> None:
    env = scripted(np.zeros(3, np.float32), reward)
    with pytest.raises(
        Exception,
        match="environment 0, episode 0, step 0: reward of Scripted: expected a number, got",
    ):
        next(Collector(env, None, frames_per_batch=2))


def made_of_id(*args: Any, **kwargs: Any) -> Any:
    return GymEnv(*args, **kwargs)


@pytest.mark.parametrize("make", [made_of_id, windrow.make_vec], ids=["GymEnv", "make_vec"])
def test_a_misspelt_argument_is_an_error_at_once(make: Any) -> None:
    with pytest.raises(TypeError, match=r"has no argument nun_envs \(did you mean num_envs\?\)"):
        make("CartPole-v1", nun_envs=4)
    with pytest.raises(TypeError, match=r"is_slipery \(did you mean is_slippery\?\)"):
        make("FrozenLake-v1", is_slipery=False)


@pytest.mark.parametrize("make", [made_of_id, windrow.make_vec], ids=["GymEnv", "make_vec"])
def test_an_argument_that_takes_an_environment_out_of_rust_is_reported(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_warnings, "_told", set())
    with pytest.warns(windrow.PerformanceWarning, match="CartPole-v1 is stepped by Gymnasium"):
        make("CartPole-v1", render_mode="rgb_array")


@pytest.mark.parametrize(
    "arguments",
    [{}, {"render_mode": None}, {"backend": "gymnasium", "render_mode": "rgb_array"}],
    ids=str,
)
def test_nothing_is_reported_where_nothing_else_was_asked_for(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_warnings, "_told", set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GymEnv("CartPole-v1", **arguments)
