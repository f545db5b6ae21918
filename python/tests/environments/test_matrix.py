"""Environments that people bring, in each way of giving them, against the same ones stepped by
hand.

A collector gathers 200 frames with random actions. Then the environment is made again, gets the
same seed, and takes the actions of the batch: observations, rewards, ends and final observations
are equal to the last bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from direct import compare_single, compare_vector
from gymnasium.vector import AutoresetMode

from windrow.collectors import Collector
from windrow.envs import GymEnv, GymWrapper, SerialEnv

FRAMES, SEED = 200, 7


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo writes a file with its warnings where it runs."""
    monkeypatch.chdir(tmp_path)


def collect(env: Any, seed: int | None = SEED) -> Any:
    with warnings.catch_warnings():
        # What is told of once: entries of info and texts that batches leave out.
        warnings.simplefilter("ignore", UserWarning)
        with Collector(env, None, frames_per_batch=FRAMES, seed=seed) as collector:
            return next(collector).clone()


def registered(module: str) -> None:
    """Imports a library, whose ids Gymnasium then knows."""
    gymnasium.register_envs(pytest.importorskip(module))


#: Libraries, each with environments by id, and how many episodes end in 200 frames at least.
SINGLE = {
    "minigrid": [
        ("MiniGrid-Empty-5x5-v0", {"max_steps": 30}, 6),
        ("MiniGrid-DoorKey-6x6-v0", {"max_steps": 50}, 4),
    ],
    "ale_py": [
        ("ALE/Pong-v5", {"obs_type": "ram", "max_num_frames_per_episode": 200}, 3),
        ("ALE/Breakout-v5", {"repeat_action_probability": 0.25}, 1),
    ],
    "highway_env": [
        (
            "highway-fast-v0",
            {"config": {"duration": 5, "vehicles_count": 2, "simulation_frequency": 3}},
            20,
        )
    ],
    "gymnasium_robotics": [("PointMaze_UMaze-v3", {"max_episode_steps": 60}, 3)],
    "gymnasium": [
        ("FrozenLake-v1", {}, 10),
        ("HalfCheetah-v5", {"max_episode_steps": 60}, 3),
        ("Blackjack-v1", {}, 50),
    ],
}

#: How an environment is given, of an id and arguments.
WAYS: dict[str, Callable[..., Any]] = {
    "object": lambda id, kwargs: gymnasium.make(id, **kwargs),
    "factory": lambda id, kwargs: partial(gymnasium.make, id, **kwargs),
    "GymEnv": lambda id, kwargs: GymEnv(id, **kwargs, backend="gymnasium"),
    "GymWrapper": lambda id, kwargs: GymWrapper(gymnasium.make(id, **kwargs)),
}


#: A highway takes seconds.
CASES = [
    pytest.param(library, *case, way, id=f"{library} {case[0]} {way}")
    for library, cases in SINGLE.items()
    for case in cases
    for way in (WAYS if library != "highway_env" else ["object"])
]


@pytest.mark.parametrize(("library", "id", "kwargs", "ends", "way"), CASES)
def test_single(library: str, id: str, kwargs: dict[str, Any], ends: int, way: str) -> None:
    registered(library)
    batch = collect(WAYS[way](id, kwargs))
    values, ended = compare_single(batch, gymnasium.make(id, **kwargs), SEED)
    assert ended >= ends and values >= 6 * FRAMES


@pytest.mark.parametrize("library", [name for name in SINGLE if name != "highway_env"])
def test_bare_ids(library: str) -> None:
    registered(library)
    id = SINGLE[library][0][0]
    values, _ = compare_single(collect(id), gymnasium.make(id), SEED)
    assert values >= 6 * FRAMES


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("case", ["minigrid sync", "gymnasium sync", "gymnasium async"])
def test_make_vec(case: str, mode: AutoresetMode) -> None:
    library, kind = case.split()
    registered(library)
    id, kwargs, _ = SINGLE[library][0]

    def make() -> Any:
        return gymnasium.make_vec(
            id, 3, vectorization_mode=kind, vector_kwargs={"autoreset_mode": mode}, **kwargs
        )

    vector = make()
    batch = collect(vector)
    vector.close()
    assert compare_vector(batch, make(), SEED)[1] >= 6


def atari(mode: AutoresetMode = AutoresetMode.NEXT_STEP, **kwargs: Any) -> Any:
    registered("ale_py")
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv(
        "breakout", 2, autoreset_mode=mode, max_num_frames_per_episode=120, **kwargs
    )


def pool(task: str, **kwargs: Any) -> Any:
    return pytest.importorskip("envpool").make_gymnasium(task, num_envs=2, seed=SEED, **kwargs)


#: Vectors with a class of their own, each with the ends in 200 frames at least.
VECTORS: dict[str, tuple[Callable[[], Any], int]] = {
    "ale_py AtariVectorEnv": (atari, 4),
    "ale_py AtariVectorEnv, SAME_STEP": (partial(atari, AutoresetMode.SAME_STEP), 4),
    "ale_py make_vec": (
        lambda: (
            registered("ale_py")
            or gymnasium.make_vec("ALE/Pong-v5", 2, max_num_frames_per_episode=120)
        ),
        4,
    ),
    "envpool CartPole": (partial(pool, "CartPole-v1"), 4),
    "envpool HalfCheetah": (partial(pool, "HalfCheetah-v4", max_episode_steps=40), 4),
    "envpool Pong": (partial(pool, "Pong-v5", max_episode_steps=40), 4),
    "gymnasium CartPoleVectorEnv of one": (lambda: gymnasium.make_vec("CartPole-v1", 1), 4),
}


@pytest.mark.parametrize("way", ["object", "factory", "GymWrapper"])
@pytest.mark.parametrize("name", VECTORS)
def test_vectors(name: str, way: str) -> None:
    make, ends = VECTORS[name]
    vector = make()
    batch = collect(
        {
            "object": lambda: vector,
            "factory": lambda: make,
            "GymWrapper": lambda: GymWrapper(vector),
        }[way]()
    )
    # A pool was seeded when it was made.
    values, ended = compare_vector(batch, make(), None if name.startswith("envpool") else SEED)
    assert ended >= ends and values >= 6 * FRAMES


def test_cartpoles_in_one_vector_begin_anew_alone() -> None:
    """They share a generator: what a reset draws is what the vector's own next step would draw."""
    vector = gymnasium.make_vec("CartPole-v1", 3)
    batch = collect(gymnasium.wrappers.vector.RecordEpisodeStatistics(vector), SEED)
    direct = gymnasium.make_vec("CartPole-v1", 3)
    observation, _ = direct.reset(seed=SEED)
    for step in range(batch.shape[1]):
        frames = batch[:, step]
        np.testing.assert_array_equal(frames["observation"].numpy(), observation)
        observation, reward, terminated, truncated, _ = direct.step(frames["action"].numpy())
        following = frames["next"]
        np.testing.assert_array_equal(following["observation"].numpy(), observation)
        np.testing.assert_array_equal(following["reward"].squeeze(-1).numpy(), reward)
        np.testing.assert_array_equal(following["terminated"].squeeze(-1).numpy(), terminated)
        if terminated.any():
            direct.state[:, terminated] = direct.np_random.uniform(
                -0.05, 0.05, (4, int(terminated.sum()))
            )
            direct.steps[terminated], direct.prev_done[terminated] = 0, False
            observation = direct.state.T.astype(np.float32)
    assert int(batch["next", "done"].sum()) > 4


def test_pools_of_dm_env_are_those_of_gymnasium() -> None:
    envpool = pytest.importorskip("envpool")
    for task in ("CartPole-v1", "HalfCheetah-v4"):
        own = envpool.make_dm(task, num_envs=2, seed=SEED, max_episode_steps=40)
        for env in (
            own,
            lambda task=task: envpool.make_dm(task, num_envs=2, seed=SEED, max_episode_steps=40),
        ):
            values, ends = compare_vector(collect(env), pool(task, max_episode_steps=40), None)
            assert values >= 6 * FRAMES and ends >= 4
    assert GymWrapper(own).rollout(3).shape == (2, 3)


def test_pools_say_what_they_are_not_taken_for() -> None:
    envpool = pytest.importorskip("envpool")
    some = envpool.make_gymnasium("CartPole-v1", num_envs=4, batch_size=2)
    with pytest.raises(ValueError, match=r"steps 2 of its 4 environments at a time.*batch_size=4"):
        GymWrapper(some).reset()
    with pytest.warns(
        match=r"seed 8 has no effect: .* is seeded when it is made, with seed=7.*envpool.make\(..., seed=8\)"
    ):
        assert next(Collector(pool("CartPole-v1"), frames_per_batch=20, seed=8)).shape == (2, 10)
    assert collect(pool("CartPole-v1"), seed=None).shape == (2, 100)


def test_ale_vectors_take_seeds_of_any_kind() -> None:
    for static in (False, True):
        env = GymWrapper(atari(noop_max=30))
        env.set_seed(3, static_seed=static)
        first, second = env.reset()["observation"]
        assert torch.equal(first, second) == static
    with pytest.raises(ValueError, match=r"AtariVectorEnv steps 1 of its 2 environments at a time"):
        GymWrapper(atari(batch_size=1)).reset()


def test_environments_of_dm_env() -> None:
    dm_env = pytest.importorskip("dm_env")
    specs = dm_env.specs

    class Walk(dm_env.Environment):  # type: ignore[misc, name-defined]
        """Ends at a distance of four, or is cut after nine steps."""

        def observation_spec(self) -> Any:
            return {
                "at": specs.Array((2,), np.float64),
                "steps": specs.Array((), np.int64),
                "name": specs.StringArray(()),
            }

        def action_spec(self) -> Any:
            return specs.BoundedArray((2,), np.float32, [-1, -2], 2.0)

        def _seen(self) -> Any:
            return {"at": self.at.copy(), "steps": self.steps, "name": "walk"}

        def reset(self) -> Any:
            self.at, self.steps = self._random_state.uniform(-1, 1, 2), 0
            return dm_env.restart(self._seen())

        def step(self, action: Any) -> Any:
            self.at, self.steps = self.at + action, self.steps + 1
            if abs(self.at).max() > 4:
                return dm_env.termination(1.5, self._seen())
            return (dm_env.truncation if self.steps == 9 else dm_env.transition)(0.5, self._seen())

        _random_state = np.random.RandomState(0)

    for env in (Walk(), Walk, GymWrapper(Walk())):
        batch, direct = collect(env), Walk()
        direct._random_state = np.random.RandomState(SEED)
        time = direct.reset()
        for frame in batch.unbind(0):
            assert (frame["at"].tolist(), frame["steps"].item()) == (
                time.observation["at"].tolist(),
                time.observation["steps"],
            )
            time = direct.step(frame["action"].numpy())
            following = frame["next"]
            assert (
                following["at"].tolist() == time.observation["at"].tolist()
                and following["reward"].item() == time.reward
            )
            assert following["done"].item() == time.last() and following["terminated"].item() == (
                time.discount == 0
            )
            time = direct.reset() if time.last() else time
        ends = batch["next", "terminated"].sum(), batch["next", "truncated"].sum()
        assert min(ends) > 2 and batch["name"] == ["walk"] * len(batch)


def test_vectors_of_stable_baselines() -> None:
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")

    def make() -> Any:
        return vec_env.DummyVecEnv(
            [lambda: gymnasium.make("CartPole-v1", max_episode_steps=30)] * 2
        )

    expected = collect(
        gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync", max_episode_steps=30)
    )
    for env in (make(), make, GymWrapper(make(), categorical_action_encoding=True)):
        got = collect(env)
        # It does not tell of a limit that comes with an end.
        expected["next", "truncated"] &= ~expected["next", "terminated"]
        for key in expected.keys(True, True):
            assert torch.equal(got[key], expected[key]), key


def replay(batch: Any, env: Any, keys: list[Any]) -> int:
    """Steps an environment of TorchRL that was just made, with the actions in `batch`, whose
    environments end together.
    """
    root, values = env.reset(), 0
    for step in range(batch.shape[-1]):
        frame = batch[..., step]
        for key in env.action_keys:
            root.set(key, frame[key].reshape(env.full_action_spec[key].shape))
        stepped = env.step(root)
        for key in keys:
            for got, expected in (
                (frame.get(key, None), stepped.get(key, None)),
                (frame["next"].get(key), stepped["next"].get(key)),
            ):
                if got is not None and expected is not None:
                    assert torch.equal(got.reshape(expected.shape), expected), (step, key)
                    values += expected.numel()
        root = env.step_mdp(stepped)
        if stepped["next", "done"].all():
            root = env.reset()
        else:
            assert not stepped["next", "done"].any()
    return values


def test_vmas() -> None:
    vmas = pytest.importorskip("vmas")
    torchrl = pytest.importorskip("torchrl.envs")

    def make() -> Any:
        return vmas.make_env(
            "balance", num_envs=10, seed=SEED, max_steps=8, continuous_actions=True
        )

    def wrapped() -> Any:
        return torchrl.VmasWrapper(make())

    keys = [("agents", "observation"), ("agents", "reward"), "done"]
    # One after the other: environments of VMAS share a generator.
    for given in (make, lambda: make, wrapped):
        batch = collect(given(), seed=None)
        assert batch.shape == (10, 20) and int(batch["next", "done"].sum()) == 20
        assert replay(batch, wrapped(), keys) >= FRAMES * 10


def test_pettingzoo() -> None:
    torchrl = pytest.importorskip("torchrl.envs")
    module = pytest.importorskip("pettingzoo.classic.rps_v2")

    def wrapped() -> Any:
        return torchrl.PettingZooWrapper(module.parallel_env(max_cycles=9))

    env = wrapped()
    keys = [*env.observation_keys, *env.reward_keys, "done"]
    for given in (
        module.parallel_env(max_cycles=9),
        lambda: module.parallel_env(max_cycles=9),
        env,
        wrapped,
    ):
        batch = collect(given, seed=None)
        assert batch.shape == (FRAMES,) and int(batch["next", "done"].sum()) > 20
        assert replay(batch, wrapped(), keys) > 4 * FRAMES


class Mortals:
    """Three agents of two kinds that die, each after steps of its own."""

    lives = {"scout_0": 3, "scout_1": 7, "tank_0": 5}

    @classmethod
    def made(cls) -> Any:
        base = pytest.importorskip("pettingzoo").ParallelEnv
        return type(
            "Env",
            (cls, base),
            {
                "metadata": {"name": "mortals"},
                "render_mode": None,
                "possible_agents": list(cls.lives),
            },
        )()

    def observation_space(self, agent: str) -> Any:
        return gymnasium.spaces.Box(0, 100, (2,), np.float32)

    def action_space(self, agent: str) -> Any:
        return gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def seen(self, alive: list[str]) -> Any:
        return {agent: np.array([self.steps, len(alive)], np.float32) for agent in alive}

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.agents, self.steps = list(self.lives), 0
        return self.seen(self.agents), dict.fromkeys(self.agents, {})

    def step(self, actions: Any) -> Any:
        self.steps += 1
        alive = list(self.agents)
        over = {agent: self.steps >= self.lives[agent] for agent in alive}
        # A tank is withdrawn.
        dead, cut = (
            {agent: over[agent] and ("tank" in agent) == is_cut for agent in alive}
            for is_cut in (False, True)
        )
        self.agents = [agent for agent in alive if not over[agent]]
        return self.seen(alive), dict.fromkeys(alive, 1.0), dead, cut, dict.fromkeys(alive, {})


@pytest.mark.parametrize("group_map", ["kinds", "ONE_GROUP_PER_AGENT", "ALL_IN_ONE_GROUP"])
@pytest.mark.parametrize("done_on_any", [None, True, False])
def test_agents_end_an_episode_when_torchrl_says(done_on_any: bool | None, group_map: str) -> None:
    """Flags of agents that end apart, against TorchRL's own collector: in this matrix all others
    end together.
    """
    torchrl = pytest.importorskip("torchrl.envs")
    from torchrl.collectors import Collector as TheirCollector

    def make() -> Any:
        groups = getattr(torchrl.MarlGroupMapType, group_map, None)
        return torchrl.PettingZooWrapper(
            Mortals.made(), use_mask=True, done_on_any=done_on_any, group_map=groups
        )

    theirs = next(iter(TheirCollector(make, None, frames_per_batch=30, total_frames=30)))
    actions = set(make().action_keys)
    # Actions are random. A step that an agent ends and another is cut in is one of both.
    keys = [
        key
        for key in theirs["next"].keys(True, True)
        if key not in actions and key not in ("terminated", "truncated")
    ]
    for given in (
        make(),
        lambda: make,
        lambda: torchrl.TransformedEnv(make(), torchrl.StepCounter()),
    ):
        batch = collect(given, seed=None)[:30]
        for key in keys:
            assert torch.equal(batch["next"][key], theirs["next"][key]), key
            if key in theirs.keys(True, True):
                assert torch.equal(batch[key], theirs[key]), key
    assert int(theirs["next", "done"].sum()) == (4 if done_on_any is False else 10)


@pytest.mark.parametrize("way", ["wrapper", "raw", "factory"])
def test_random_actions_of_pettingzoo_are_legal(way: str) -> None:
    torchrl = pytest.importorskip("torchrl.envs")
    game = pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    env = {
        "wrapper": lambda: torchrl.PettingZooWrapper(game.env(), use_mask=True),
        "raw": game.env,
        "factory": lambda: game.env,
    }[way]()
    batch, moves = collect(env, seed=None), 0
    for player in ("player_1", "player_2"):
        acts = batch[player, "mask"].reshape(-1)
        legal = batch[player, "action_mask"].reshape(FRAMES, 9)
        action = batch[player, "action"].reshape(FRAMES, -1)
        chosen = action.argmax(-1) if action.shape[-1] > 1 else action.squeeze(-1)
        assert legal[torch.arange(FRAMES), chosen][acts].all()
        moves += int(acts.sum())
    assert moves == FRAMES and int(batch["next", "done"].sum()) > 10


def test_returns_of_episodes_are_logged() -> None:
    """What CleanRL's scripts log: `final_info` and `episode`, with the numbers of Gymnasium's
    wrappers.
    """
    statistics = gymnasium.wrappers.RecordEpisodeStatistics
    kinds = {
        "one": statistics(gymnasium.make("CartPole-v1")),
        "each": gymnasium.vector.SyncVectorEnv(
            [lambda: statistics(gymnasium.make("CartPole-v1"))] * 2,
            autoreset_mode=AutoresetMode.SAME_STEP,
        ),
        "each, then": gymnasium.vector.SyncVectorEnv(
            [lambda: statistics(gymnasium.make("CartPole-v1"))] * 2
        ),
        "around": gymnasium.wrappers.vector.RecordEpisodeStatistics(
            gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")
        ),
        "around async": gymnasium.wrappers.vector.RecordEpisodeStatistics(
            gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="async")
        ),
        "around CartPoles": gymnasium.wrappers.vector.RecordEpisodeStatistics(
            gymnasium.make_vec("CartPole-v1", 2)
        ),
    }
    for kind, env in kinds.items():
        batch = collect(GymWrapper(env, info_keys=[("episode", "r"), ("episode", "l")])).reshape(
            -1, FRAMES if kind == "one" else FRAMES // 2
        )
        for row in batch:
            ends = row["next", "done"].flatten().nonzero().flatten()
            lengths = torch.diff(ends, prepend=torch.tensor([-1])).tolist()
            assert len(ends) > 1, kind
            assert row["next", "episode", "r"][ends].flatten().tolist() == lengths, kind
            assert row["next", "episode", "l"][ends].flatten().tolist() == lengths, kind
        env.close()


def test_several_of_them_in_lockstep() -> None:
    registered("minigrid")
    id, kwargs, _ = SINGLE["minigrid"][0]
    batch = collect(SerialEnv(2, lambda: gymnasium.make(id, **kwargs)))
    for env in range(2):
        assert compare_single(batch[env], gymnasium.make(id, **kwargs), SEED + env)[1] >= 3
