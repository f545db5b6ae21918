"""Several environments in lockstep, windrow's and Gymnasium's."""

from __future__ import annotations

import gc
import pickle
import warnings
from copy import copy, deepcopy
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict import TensorDict

from windrow import make_vec
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
from windrow.processes import pickling


def frames(env: Any, steps: int = 60) -> Any:
    """What a collector delivers, seeded."""
    with Collector(
        env, None, frames_per_batch=3 * steps, total_frames=3 * steps, seed=5
    ) as collector:
        return next(collector)


def make(**kwargs: Any) -> Any:
    return GymEnv("CartPole-v1", **kwargs)


def test_environments_step_together() -> None:
    env = SerialEnv(3, make)
    assert env.batch_size == torch.Size([3]) and env.set_seed(1) == 3
    assert env.action_spec.shape == (3, 2) and env.reward_spec.shape == (3, 1)
    first = env.reset()
    for i in range(3):
        assert torch.equal(
            first[i]["observation"], GymEnv("CartPole-v1").reset(seed=1 + i)["observation"]
        )
    check_env(env)


def test_seeds_can_be_the_same_for_all() -> None:
    env = ParallelEnv(3, make)
    assert env.set_seed(1, static_seed=True) == 1
    observations = env.reset()["observation"]
    assert torch.equal(observations[0], observations[2])


def test_some_are_reset_and_the_others_go_on() -> None:
    env = SerialEnv(3, make)
    root = env.rand_step(env.reset(seed=0))["next"]
    after = env.reset(root.clone().set("_reset", torch.tensor([[False], [True], [False]])))
    assert torch.equal(after["observation"][[0, 2]], root["observation"][[0, 2]])
    assert not torch.equal(after["observation"][1], root["observation"][1])
    assert "_reset" not in after.keys()
    with pytest.raises(ValueError, match=r'"_reset": expected shape \(3, 1\), got \(2, 1\)'):
        env.reset(TensorDict({"_reset": torch.ones(2, 1, dtype=torch.bool)}))


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize(
    "vector",
    [
        lambda mode: gymnasium.make_vec(
            "CartPole-v1", 3, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}
        ),
        lambda mode: gymnasium.make_vec(
            "CartPole-v1", 3, vectorization_mode="async", vector_kwargs={"autoreset_mode": mode}
        ),
        lambda mode: make_vec("CartPole-v1", 3, autoreset_mode=mode),
        lambda mode: make_vec("CartPole-v1", 3, autoreset_mode=mode, native=False),
        lambda mode: make_vec("CartPole-v1", 3, autoreset_mode=mode, native=False, workers=3),
    ],
    ids=["sync", "async", "native", "here", "processes"],
)
def test_vectors_are_as_single_environments(mode: AutoresetMode, vector: Any) -> None:
    expected = frames(SerialEnv(3, make))
    vector = vector(mode)
    got = frames(GymWrapper(vector))
    assert got.shape == (3, 60) and int(got["next", "done"].sum()) > 3
    for key in expected.keys(True, True):
        assert torch.equal(got[key], expected[key]), key
    vector.close()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_vectors_with_trees_keep_final_observations(echo: Any, mode: AutoresetMode) -> None:
    tree = gymnasium.spaces.Dict(
        {
            "a": gymnasium.spaces.Box(-1, 1, (2,)),
            "b": gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(3)] * 2),
        }
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
        "CartPole-v1",
        3,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
    )
    with Collector(
        vector, None, frames_per_batch=60, max_frames_per_traj=7, total_frames=60
    ) as collector:
        assert int(next(collector)["step_count"].max()) <= 6


class Stepped(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Counts the steps of each episode, which lasts for `lengths[env]`. It resets environments by
    its next step, or all at once.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    single_observation_space = gymnasium.spaces.Box(0, 1e9, (3,), np.int64)
    single_action_space = gymnasium.spaces.Box(0, 1, (1,))

    def __init__(self, *lengths: int) -> None:
        self.lengths, self.num_envs = np.array(lengths), len(lengths)
        self.observation_space = gymnasium.vector.utils.batch_space(
            self.single_observation_space, self.num_envs
        )
        self.action_space = gymnasium.vector.utils.batch_space(
            self.single_action_space, self.num_envs
        )
        self.episode = np.zeros(self.num_envs, np.int64)
        self.fakes = 0

    def _seen(self) -> Any:
        return np.stack([np.arange(self.num_envs), self.episode, self.at], 1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.at = np.zeros(self.num_envs, np.int64)
        return self._seen(), {}

    def step(self, actions: Any) -> Any:
        begins = self.at == self.lengths
        self.at, self.episode = np.where(begins, 0, self.at + 1), self.episode + begins
        self.fakes += int(begins.sum())
        return (
            self._seen(),
            np.where(begins, 0.0, 1.0),
            self.at == self.lengths,
            np.zeros(self.num_envs, bool),
            {},
        )


def test_no_frame_is_a_reset_of_a_vector_that_resets_by_stepping() -> None:
    vector = Stepped(4, 7)
    with (
        pytest.warns(
            UserWarning,
            match="Stepped resets an environment by its next step.*of the others are cut too",
        ),
        Collector(vector, None, frames_per_batch=40) as collector,
    ):
        batches = [next(collector).clone() for _ in range(3)]
    batch = torch.cat(batches, -1)
    observed, following = batch["observation"], batch["next", "observation"]
    assert vector.fakes > 10 and (batch["next", "reward"] == 1).all()
    # Each frame is one step of one episode, and those of a trajectory follow each other.
    assert (
        torch.equal(following[..., :2], observed[..., :2])
        and (following[..., 2] - observed[..., 2] == 1).all()
    )
    ended, done = following[..., 2] == torch.tensor([[4], [7]]), batch["next", "done"].squeeze(-1)
    assert torch.equal(batch["next", "terminated"].squeeze(-1), ended)
    assert torch.equal(done, ended.any(0).expand_as(done)) and torch.equal(
        batch["next", "truncated"].squeeze(-1), done & ~ended
    )
    same = batch["collector", "traj_ids"].diff() == 0
    assert torch.equal(same, ~done[:, :-1]) and torch.equal(
        observed[:, 1:][same], following[:, :-1][same]
    )


def test_episodes_that_end_together_are_whole_in_a_vector_that_resets_by_stepping() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Collector(Stepped(5, 5, 5), None, frames_per_batch=60) as collector:
            batch = next(collector)
    assert batch["observation"][0, :, 2].tolist() == [0, 1, 2, 3, 4] * 4
    assert not batch["next", "truncated"].any() and int(batch["next", "terminated"].sum()) == 12


def test_a_vector_that_never_comes_to_rest_is_an_error() -> None:
    vector = Stepped(1, 1)
    env = GymWrapper(vector)
    root = env.reset()
    vector.at[1] = 1
    with (
        pytest.raises(ValueError, match="Stepped ends an episode in each of 1000 steps"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        env.reset(env.rand_step(root)["next"].set("_reset", torch.ones(2, 1, dtype=torch.bool)))


def cartpoles(kind: Any = SyncVectorEnv, **kwargs: Any) -> Any:
    return kind([lambda: gymnasium.make("CartPole-v1")] * 2, **kwargs)


@pytest.mark.parametrize(
    "vector",
    [
        lambda: gymnasium.wrappers.vector.NormalizeObservation(cartpoles()),
        lambda: cartpoles(gymnasium.vector.AsyncVectorEnv, shared_memory=False),
    ],
    ids=["a wrapper", "processes without shared memory"],
)
@pytest.mark.filterwarnings("ignore:CartPole-v1 resets an environment by its next step")
def test_what_loses_masks_delivers_no_reset(vector: Any) -> None:
    """Each step of a CartPole earns a reward of 1, and a reset 0."""
    made = vector()
    batch = next(Collector(made, None, frames_per_batch=200, seed=0))
    assert (batch["next", "reward"] == 1).all() and int(batch["next", "terminated"].sum()) > 4
    same = (batch["collector", "traj_ids"].diff() == 0).unsqueeze(-1).expand(-1, -1, 4)
    assert torch.equal(
        batch["observation"][:, 1:][same], batch["next", "observation"][:, :-1][same]
    )
    del batch
    made.close()


def test_a_vector_that_takes_one_seed_for_all_is_seeded() -> None:
    class OneSeed(SyncVectorEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            assert seed is None or isinstance(seed, int), seed
            return super().reset(seed=seed, options=options)

    vectors = [
        kind([lambda: gymnasium.make("CartPole-v1")] * 3) for kind in (OneSeed, SyncVectorEnv)
    ]
    first, second = (
        next(Collector(vector, None, frames_per_batch=60, seed=4))["observation"]
        for vector in vectors
    )
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
    with pytest.raises(ValueError, match="create_env_fn has 3 entries for 2 environments"):
        SerialEnv(2, [make] * 3)
    with pytest.raises(ValueError, match="num_workers must be 1 or more, got 0"):
        SerialEnv(0, make)
    with pytest.raises(TypeError, match="num_workers must be a whole number, got '2'"):
        ParallelEnv("2", make)
    with pytest.raises(TypeError, match="ParallelEnv has no argument nonsense"):
        ParallelEnv(2, make, nonsense=1, mp_start_method="fork")


def test_creators_keep_their_arguments() -> None:
    creator = EnvCreator(make, {"backend": "gymnasium"}, frame_skip=2)
    assert creator(backend="native").backend == "gymnasium"
    assert creator.make_variant(backend="native")().backend == "native"
    assert frames(SerialEnv(3, creator), 20).shape == (3, 20)


@pytest.mark.parametrize("kind", [SerialEnv, ParallelEnv])
@pytest.mark.parametrize("member", ["native", "gymnasium", "torchrl"])
def test_members_that_a_first_reset_leaves_out_begin_with_the_first_step(
    kind: Any, member: str
) -> None:
    from theirs import Counting as Theirs

    made = {"native": make, "gymnasium": partial(make, backend="gymnasium"), "torchrl": Theirs}[
        member
    ]
    env = kind(3, made)
    root = env.reset(TensorDict({"_reset": torch.tensor([[False], [True], [False]])}, [3]))
    for _ in range(3):
        root = env.step_mdp(env.rand_step(root))
    if member == "torchrl":
        assert root["data", "count"].tolist() == [[3]] * 3
    assert not root["done"].any()
    env.close()
    fresh = kind(3, Theirs)
    with pytest.raises(Exception, match="reset"):
        fresh.step(fresh.rand_action())


#: Ways of a creator to another place.
SENT: dict[str, Any] = {
    "pickle": lambda creator: pickle.loads(pickle.dumps(creator)),
    "multiprocessing": lambda creator: pickle.loads(ForkingPickler.dumps(creator)),
    "cloudpickle": lambda creator: pickle.loads(pickling.dumps(creator)),
    "within a policy of pickle": lambda creator: (
        pickle.loads(pickle.dumps([partial(creator)]))[0].func
    ),
    "copy": copy,
    "deepcopy": deepcopy,
}


@pytest.mark.parametrize("share_memory", [True, False])
@pytest.mark.parametrize("way", SENT)
def test_creators_around_any_function_are_sent_and_copied(way: str, share_memory: bool) -> None:
    steps = 7
    creator = EnvCreator(
        lambda **given: GymEnv("Pendulum-v1", max_episode_steps=steps, **given),
        {"frame_skip": 2},
        share_memory,
    )
    for _ in range(2):
        creator = SENT[way](creator)
        made = creator()
        assert made.max_episode_steps == 7 and made.rollout(3).shape == (3,)


def test_threads_share_environments_of_python() -> None:
    from windrow.collectors import MultiAsyncCollector, MultiSyncCollector

    theirs = [lambda: make(backend="gymnasium")] * 3
    with MultiSyncCollector(
        theirs, None, placement="threads", frames_per_batch=90, total_frames=900, seed=2
    ) as collector:
        got = torch.cat([batch["observation"] for batch in collector])
    with MultiSyncCollector(
        [make] * 3, None, placement="threads", frames_per_batch=90, total_frames=900, seed=2
    ) as collector:
        expected = torch.cat([batch["observation"] for batch in collector])
    assert torch.equal(got, expected)
    with MultiAsyncCollector(
        theirs, None, placement="threads", frames_per_batch=50, total_frames=1000
    ) as collector:
        assert sum(batch.numel() for batch in collector) == 1000


def test_pools_reset_by_number() -> None:
    """A vector with EnvPool's manner of resetting: by number, whose rows alone come back, seeded
    when it is made.
    """

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
    for env in (
        SerialEnv(1, make),
        ParallelEnv(1, make),
        GymWrapper(gymnasium.make_vec("CartPole-v1", 1, "sync")),
    ):
        for policy in (None, lambda observation: observation[:, :2]):
            with Collector(env, policy, frames_per_batch=4, total_frames=4) as collector:
                assert next(collector)["action"].shape == (1, 4, 2)
            del collector
            gc.collect()


def test_collectors_in_threads_say_that_python_takes_turns() -> None:
    from windrow.collectors import AsyncCollector

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AsyncCollector(make, None, placement="threads", frames_per_batch=4).shutdown()
        Collector(lambda: make(backend="gymnasium"), None, frames_per_batch=4).shutdown()
    with pytest.warns(UserWarning, match="take turns"):
        AsyncCollector(
            lambda: make(backend="gymnasium"), None, placement="threads", frames_per_batch=4
        ).shutdown()


def limited(steps: int) -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", max_episode_steps=steps)


PAIRS = [
    pytest.param([partial(limited, 5), partial(limited, 9)], id="time limits"),
    pytest.param(
        [partial(make, categorical_action_encoding=True), partial(limited, 9)], id="libraries"
    ),
    pytest.param(
        [lambda n=n: TransformedEnv(make(), StepCounter(n)) for n in (5, 9)], id="counters"
    ),
]


@pytest.mark.parametrize("envs", PAIRS)
def test_time_limits_and_libraries_may_differ(envs: list[Any]) -> None:
    pair = SerialEnv(2, envs)
    assert pair.max_episode_steps is None
    batch = next(Collector(pair, None, frames_per_batch=200))
    with MultiSyncCollector(
        envs, None, placement="threads", frames_per_batch=200, cat_results="stack"
    ) as collector:
        workers = next(collector)
    for rows in (batch, workers):
        ids = rows["collector", "traj_ids"]
        longest = [max(row.unique(return_counts=True)[1].tolist()) for row in ids]
        assert longest[1] <= 9 and rows["next", "observation"].shape == (2, 100, 4)


@pytest.mark.parametrize("kind", [MultiSyncCollector, MultiAsyncCollector])
def test_workers_observe_and_accept_the_same(kind: Any) -> None:
    with pytest.raises(
        ValueError,
        match=r"worker 1: .*expected the observation .*\[4\].* of CartPole-v1, got .*Pendulum-v1",
    ):
        kind([make, lambda: GymEnv("Pendulum-v1")], None, placement="threads", frames_per_batch=20)
    with pytest.raises(ValueError, match="worker 0 has 1, worker 1 has 2"):
        kind([make, SerialEnv(2, make)], None, placement="threads", frames_per_batch=20)
