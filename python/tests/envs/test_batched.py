"""Several environments in lockstep, windrow's and Gymnasium's."""

from __future__ import annotations

import gc
import warnings
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import windrow.envs._batched
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from windrow.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from windrow.envs import (
    EnvCreator,
    GymEnv,
    GymWrapper,
    ParallelEnv,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    check_env,
)


def frames(env: Any, steps: int = 60) -> Any:
    """What a collector delivers, seeded."""
    with Collector(env, None, frames_per_batch=3 * steps, total_frames=3 * steps, seed=5) as collector:
        return next(collector)


def make(**kwargs: Any) -> Any:
    return GymEnv("CartPole-v1", **kwargs)


def test_environments_step_together() -> None:
    env = SerialEnv(3, make)
    assert env.batch_size == torch.Size([3]) and env.set_seed(1) == 3
    assert env.action_spec.shape == (3, 2) and env.reward_spec.shape == (3, 1)
    first = env.reset()
    for i in range(3):
        assert torch.equal(first[i]["observation"], GymEnv("CartPole-v1").reset(seed=1 + i)["observation"])
    check_env(env)


def test_seeds_can_be_the_same_for_all() -> None:
    env = ParallelEnv(3, make)
    assert env.set_seed(1, static_seed=True) == 1
    observations = env.reset()["observation"]
    assert torch.equal(observations[0], observations[2])


def test_some_are_reset_and_the_others_go_on() -> None:
    env = SerialEnv(3, make)
    root = env.rand_step(env.reset(seed=0))["next"]
    root.set("_reset", torch.tensor([[False], [True], [False]]))
    after = env.reset(root)
    assert torch.equal(after["observation"][[0, 2]], root["observation"][[0, 2]])
    assert not torch.equal(after["observation"][1], root["observation"][1])
    assert "_reset" not in after.keys()


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_vectors_of_gymnasium_are_as_single_environments(mode: AutoresetMode, kind: str) -> None:
    expected = frames(SerialEnv(3, make))
    vector = gymnasium.make_vec(
        "CartPole-v1", 3, vectorization_mode=kind, vector_kwargs={"autoreset_mode": mode}
    )
    got = frames(GymWrapper(vector))
    assert got.shape == (3, 60) and int(got["next", "done"].sum()) > 3
    for key in expected.keys(True, True):
        assert torch.equal(got[key], expected[key]), key
    vector.close()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_vectors_with_trees_keep_final_observations(echo: Any, mode: AutoresetMode) -> None:
    tree = gymnasium.spaces.Dict(
        {"a": gymnasium.spaces.Box(-1, 1, (2,)), "b": gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(3)] * 2)}
    )

    def makers(lengths: Any = (4, 5, 6)) -> Any:
        return [lambda n=n: echo(deepcopy(tree), tree, n) for n in lengths]

    expected = frames(SerialEnv(3, makers()))
    got = frames(SyncVectorEnv(makers(), autoreset_mode=mode))
    assert int(expected["next", "done"].sum()) == 15 + 12 + 10
    for key in expected.keys(True, True):
        assert torch.equal(got[key], expected[key]), key


def test_episodes_can_be_cut_from_outside() -> None:
    vector = gymnasium.make_vec(
        "CartPole-v1", 3, vectorization_mode="sync", vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP}
    )
    with Collector(vector, None, frames_per_batch=60, max_frames_per_traj=7, total_frames=60) as collector:
        assert int(next(collector)["step_count"].max()) <= 6


def test_a_vector_that_loses_frames_is_refused() -> None:
    vector = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
    message = 'expected a vector with autoreset_mode SAME_STEP or DISABLED, got NEXT_STEP.*vectorization_mode="sync"'
    with pytest.raises(ValueError, match=message):
        GymWrapper(vector).reset()


def test_a_vector_that_takes_one_seed_for_all_is_seeded() -> None:
    class OneSeed(SyncVectorEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            assert seed is None or isinstance(seed, int), seed
            return super().reset(seed=seed, options=options)

    vectors = [kind([lambda: gymnasium.make("CartPole-v1")] * 3) for kind in (OneSeed, SyncVectorEnv)]
    first, second = (next(Collector(vector, None, frames_per_batch=60, seed=4))["observation"] for vector in vectors)
    assert torch.equal(first, second)


def test_limits_may_differ_from_environment_to_environment() -> None:
    def limited(steps: int) -> Any:
        return lambda: TransformedEnv(GymEnv("Pendulum-v1"), StepCounter(steps))

    env = SerialEnv(2, [limited(2), limited(3)])
    truncated = env.rollout(6, break_when_any_done=False)["next", "truncated"].squeeze(-1)
    assert truncated.tolist() == [[False, True] * 3, [False, False, True] * 2]


def test_unlike_environments_are_refused() -> None:
    with pytest.raises(ValueError, match="observe and accept the same"):
        SerialEnv(2, [make, lambda: GymEnv("Pendulum-v1")]).reset()
    with pytest.raises(ValueError, match="create_env_fn has 3 entries for num_workers=2"):
        SerialEnv(2, [make] * 3)
    with pytest.raises(TypeError, match="ParallelEnv has no argument nonsense"):
        ParallelEnv(2, make, nonsense=1, mp_start_method="fork")


def test_creators_keep_their_arguments() -> None:
    creator = EnvCreator(make, {"backend": "gymnasium"}, frame_skip=2)
    assert creator(backend="native").backend == "gymnasium"
    assert creator.make_variant(backend="native")().backend == "native"
    assert frames(SerialEnv(3, creator), 20).shape == (3, 20)


def test_threads_share_environments_of_python() -> None:
    from windrow.collectors import MultiAsyncCollector, MultiSyncCollector

    theirs = [lambda: make(backend="gymnasium")] * 3
    with MultiSyncCollector(theirs, None, placement="threads", frames_per_batch=90, total_frames=900, seed=2) as collector:
        got = torch.cat([batch["observation"] for batch in collector])
    with MultiSyncCollector([make] * 3, None, placement="threads", frames_per_batch=90, total_frames=900, seed=2) as collector:
        expected = torch.cat([batch["observation"] for batch in collector])
    assert torch.equal(got, expected)
    with MultiAsyncCollector(theirs, None, placement="threads", frames_per_batch=50, total_frames=1000) as collector:
        assert sum(batch.numel() for batch in collector) == 1000


def test_pools_reset_by_number() -> None:
    """A vector with EnvPool's manner of resetting: by number, whose rows alone come back, seeded when it is made."""

    class Pool(SyncVectorEnv):
        metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        own_seed: int | None = 5

        @property
        def unwrapped(self) -> Any:
            return self.envs[0].unwrapped

        def async_reset(self) -> None:
            raise AssertionError("nobody calls it")

        def reset(self, env_id: Any = None, **kwargs: Any) -> Any:
            if env_id is None:
                return super().reset(**kwargs)
            mask = [env in env_id for env in range(self.num_envs)]
            seed, self.own_seed = self.own_seed, None
            observations, info = super().reset(seed=seed, options={"reset_mask": np.array(mask)})
            return observations[env_id], info

    got = frames(GymWrapper(Pool([lambda: gymnasium.make("CartPole-v1")] * 3)))
    expected = frames(GymWrapper(SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3)))
    ended = got["next", "done"].squeeze(-1)
    assert int(ended.sum()) > 3
    starts = got["observation"][:, 1:][ended[:, :-1]]
    assert starts.abs().max() <= 0.05 and not got["done"].any()
    assert set(got.keys(True, True)) == set(expected.keys(True, True))
    for key in expected.keys(True, True):
        assert torch.equal(got[key], expected[key]), key


def test_a_batch_of_one_keeps_its_dimension() -> None:
    for env in (SerialEnv(1, make), ParallelEnv(1, make), gymnasium.make_vec("CartPole-v1", 1, "sync")):
        for policy in (None, lambda observation: observation[:, :2]):
            with Collector(env, policy, frames_per_batch=4, total_frames=4) as collector:
                assert next(collector)["action"].shape == (1, 4, 2)
            del collector
            gc.collect()


def test_collectors_in_threads_say_that_python_takes_turns() -> None:
    from windrow.collectors import AsyncCollector

    windrow.envs._batched.warn_of_turns.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AsyncCollector(make, None, placement="threads", frames_per_batch=4).shutdown()
        Collector(lambda: make(backend="gymnasium"), None, frames_per_batch=4).shutdown()
    with pytest.warns(UserWarning, match="take turns"):
        AsyncCollector(lambda: make(backend="gymnasium"), None, placement="threads", frames_per_batch=4).shutdown()


def limited(steps: int) -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", max_episode_steps=steps)


PAIRS = [
    pytest.param([partial(limited, 5), partial(limited, 9)], id="time limits"),
    pytest.param([make, partial(limited, 9)], id="libraries"),
    pytest.param([lambda n=n: TransformedEnv(make(), StepCounter(n)) for n in (5, 9)], id="counters"),
]


@pytest.mark.parametrize("envs", PAIRS)
def test_time_limits_and_libraries_may_differ(envs: list[Any]) -> None:
    pair = SerialEnv(2, envs)
    assert pair.max_episode_steps is None
    batch = next(Collector(pair, None, frames_per_batch=200))
    with MultiSyncCollector(envs, None, placement="threads", frames_per_batch=200, cat_results="stack") as collector:
        workers = next(collector)
    for rows in (batch, workers):
        ids = rows["collector", "traj_ids"]
        longest = [max(row.unique(return_counts=True)[1].tolist()) for row in ids]
        assert longest[1] <= 9 and rows["next", "observation"].shape == (2, 100, 4)


@pytest.mark.parametrize("kind", [MultiSyncCollector, MultiAsyncCollector])
def test_workers_observe_and_accept_the_same(kind: Any) -> None:
    with pytest.raises(ValueError, match=r"worker 1: .*expected the observation .*\[4\].* of CartPole-v1, got .*Pendulum-v1"):
        kind([make, lambda: GymEnv("Pendulum-v1")], None, placement="threads", frames_per_batch=20)
    with pytest.raises(ValueError, match="worker 0 has 1, worker 1 has 2"):
        kind([make, SerialEnv(2, make)], None, placement="threads", frames_per_batch=20)
