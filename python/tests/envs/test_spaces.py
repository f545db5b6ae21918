"""Every space of Gymnasium, from an environment to a batch and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from windrow.collectors import Collector
from windrow.envs import GymWrapper, check_env

BOX = spaces.Box(-1, 1, (3,), np.float32)
TREE = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (2, 2), np.uint8),
        "arm": spaces.Dict({"angle": BOX, "grip": spaces.Discrete(3)}),
        "pair": spaces.Tuple((spaces.MultiBinary(2), spaces.Box(-1, 1, (), np.float64))),
    }
)
SPACES = {
    "box": BOX,
    "box of no dimension": spaces.Box(0, 1, (), np.float64),
    "half": spaces.Box(-1, 1, (2,), np.float16),
    "unsigned": spaces.Box(0, 60000, (2,), np.uint16),
    "discrete": spaces.Discrete(4),
    "discrete from 5 on": spaces.Discrete(3, start=5),
    "many choices": spaces.Discrete(2000),
    "multi discrete": spaces.MultiDiscrete([2, 3]),
    "multi discrete table": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "multi binary": spaces.MultiBinary((2, 3)),
    "dict": TREE,
    "tuple": spaces.Tuple((spaces.Discrete(2), BOX)),
}


@pytest.mark.parametrize("encoding", [False, True], ids=["one-hot", "indices"])
@pytest.mark.parametrize("name", SPACES)
def test_spaces_are_observed_and_acted_in(echo: Any, name: str, encoding: bool) -> None:
    inner = echo(SPACES[name], SPACES[name])
    env = GymWrapper(inner, categorical_action_encoding=encoding)
    # Each action is compared with the space inside.
    check_env(env, steps=12)
    assert len(inner.actions) == 24


@pytest.mark.parametrize("name", SPACES)
def test_spaces_reach_batches(echo: Any, name: str) -> None:
    env = GymWrapper(echo(SPACES[name], SPACES[name]))
    keys = {*env.observation_keys, *env.action_keys}
    spec = env.observation_spec
    collector = Collector(env, None, frames_per_batch=12, total_frames=24, seed=3)
    for batch in collector:
        assert keys <= set(batch.keys(True, True))
        assert batch[("next", "reward")].flatten().tolist()[:5] in (
            [1, 2, 3, 4, 5],
            [3, 4, 5, 1, 2],
        )
        for key in env.observation_keys:
            for level in (batch, batch["next"]):
                value = level[key]
                assert value.shape[1:] == spec[key].shape and value.dtype == spec[key].dtype
                assert all(spec[key].is_in(one) for one in value)
    collector.shutdown()


def test_trees_keep_their_names(echo: Any) -> None:
    env = GymWrapper(echo(TREE, TREE))
    batch = next(Collector(env, None, frames_per_batch=3))
    assert batch["arm", "angle"].shape == (3, 3)
    assert batch["arm", "grip"].shape == (3, 3) and batch["arm", "grip"].sum(-1).tolist() == [
        1,
        1,
        1,
    ]
    assert batch["pair", "0"].dtype == torch.int8 and batch["pair", "1"].shape == (3, 1)
    assert batch["action", "arm", "angle"].shape == (3, 3)
    assert batch["next", "image"].dtype == torch.uint8


def test_values_come_through_unchanged(echo: Any) -> None:
    inner = echo(TREE, BOX, length=100)
    env = GymWrapper(inner)
    env.set_seed(7)
    rollout = env.rollout(6)
    TREE.seed(7)
    for step in range(6):
        expected = TREE.sample()
        row = rollout[step]
        assert np.array_equal(row["image"].numpy(), expected["image"])
        assert np.array_equal(row["arm", "angle"].numpy(), expected["arm"]["angle"])
        assert row["arm", "grip"].argmax() == expected["arm"]["grip"]
        assert np.array_equal(row["pair", "0"].numpy(), expected["pair"][0])
        assert row["pair", "1"] == expected["pair"][1]
        assert np.array_equal(row["action"].numpy(), inner.actions[step])


def test_a_text_may_be_all_that_is_observed(echo: Any) -> None:
    env = GymWrapper(echo(spaces.Text(5), BOX))
    assert isinstance(env.reset()["observation"], str)
    batch = next(Collector(lambda: echo(spaces.Text(5), BOX), None, frames_per_batch=4))
    assert [type(text) for text in batch.get("observation").tolist()] == [str] * 4
    assert batch.get(("next", "observation")).tolist()[:-1] == batch.get("observation").tolist()[1:]


def test_observations_that_are_no_numbers_are_delivered(echo: Any) -> None:
    text = spaces.Text(5)
    space = spaces.Dict(
        {
            "image": BOX,
            "told": spaces.Dict({"mission": text}),
            "pair": spaces.Tuple((text, BOX)),
            "graph": spaces.Graph(BOX, spaces.Discrete(2)),
            "list": spaces.Sequence(BOX),
            "rows": spaces.Sequence(BOX, stack=True),
        }
    )
    vector = SyncVectorEnv([lambda: echo(space, BOX)] * 2)
    for batch, count in (
        (next(Collector(lambda: echo(space, BOX), None, frames_per_batch=4)), 4),
        (next(Collector(vector, None, frames_per_batch=8)), 8),
    ):
        frames = batch.reshape(-1).unbind(0)
        assert len(frames) == count and batch["image"].shape[-1:] == (3,)
        for frame in frames:
            assert isinstance(frame["told", "mission"], str) and isinstance(frame["pair", "0"], str)
            assert isinstance(frame["graph"], spaces.GraphInstance) and isinstance(
                frame["list"], tuple
            )
            assert isinstance(frame["rows"], torch.Tensor) and frame["rows"].shape[1:] == (3,)
        assert len({len(frame["rows"]) for frame in frames}) > 1
    with pytest.raises(TypeError, match='action space of Echo, entry "told", is not supported'):
        GymWrapper(echo(BOX, spaces.Dict({"told": text}))).reset()


def test_a_module_gets_the_only_numbers_beside_text(echo: Any) -> None:
    space = spaces.Dict({"observation": BOX, "mission": spaces.Text(5)})
    for backend in ("native", "torch"):
        batch = next(
            Collector(
                lambda: echo(space, BOX),
                torch.nn.Linear(3, 3),
                frames_per_batch=4,
                policy_backend=backend,
            )
        )
        assert batch["action"].shape == (4, 3) and isinstance(batch[0]["mission"], str)


def test_wrong_observations_name_key_and_both_sides(scripted: Any) -> None:
    cases = {
        r'observation "observation" of Scripted: expected float32 \(3,\), got float32 \(4,\)': np.zeros(
            4, np.float32
        ),
        r"expected float32 \(3,\), got complex128 \(3,\)": np.zeros(3, complex),
        r"expected float32 \(3,\), got None": None,
    }
    for message, observation in cases.items():
        env = GymWrapper(scripted(observation))
        root = env.rand_action(env.reset())
        with pytest.raises(ValueError, match=message):
            env.step(root)


def test_observations_of_the_same_kind_are_cast(scripted: Any) -> None:
    env = GymWrapper(scripted([0.25, 0.5, 1.0]))
    step = env.rand_step(env.reset())
    assert step["next", "observation"].tolist() == [0.25, 0.5, 1.0]
    assert step["next", "observation"].dtype == torch.float32
    env = GymWrapper(scripted(np.arange(9, dtype=np.float64)[::3] / 8))
    assert env.rand_step(env.reset())["next", "observation"].tolist() == [0.0, 0.375, 0.75]


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_a_number_is_an_observation_of_one_element(echo: Any, shape: tuple[int, ...]) -> None:
    class Plain(echo):  # type: ignore[misc]
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return 0.25, {}

        def step(self, action: Any) -> Any:
            return 0.5, *super().step(action)[1:]

    rollout = GymWrapper(Plain(spaces.Box(-1, 1, shape), BOX)).rollout(2)
    assert rollout["observation"].shape == (2, *shape) and rollout[
        "observation"
    ].flatten().tolist() == [0.25, 0.5]


def test_missing_entries_and_choices_out_of_range_are_named(echo: Any) -> None:
    class Forgetful(echo):  # type: ignore[misc]
        def step(self, action: Any) -> Any:
            _, *rest = super().step(action)
            return self.result, *rest

    cases = [
        (
            TREE,
            {"image": np.zeros((2, 2), np.uint8)},
            r'observation \("arm", "angle"\) of Forgetful: expected a value',
        ),
        (spaces.Discrete(3, start=5), 8, r"expected an integer from 5 to 7, got 8"),
        (
            spaces.Tuple((BOX, BOX)),
            (np.zeros(3, np.float32),),
            r"expected a tuple of 2, got one of 1",
        ),
    ]
    for space, result, message in cases:
        inner = Forgetful(space, BOX)
        inner.result = result
        env = GymWrapper(inner)
        root = env.rand_action(env.reset())
        with pytest.raises(ValueError, match=message):
            env.step(root)


def test_exceptions_cross_with_type_message_and_traceback(scripted: Any) -> None:
    env = GymWrapper(scripted(KeyError("the drawer")))
    root = env.rand_action(env.reset())
    with pytest.raises(KeyError, match="the drawer") as caught:
        env.step(root)
    assert any(entry.name == "step" and "conftest" in str(entry.path) for entry in caught.traceback)


def test_indices_out_of_range_are_errors(echo: Any) -> None:
    env = GymWrapper(echo(BOX, spaces.Discrete(3)), categorical_action_encoding=True)
    root = env.reset().set("action", torch.tensor(3))
    with pytest.raises(
        ValueError,
        match="environment 0: action out of range: expected an integer from 0 to 2, got 3",
    ):
        env.step(root)


def test_scores_are_compared_before_they_are_rounded(echo: Any) -> None:
    inner = echo(BOX, spaces.Discrete(3))
    env = GymWrapper(inner)
    env.step(env.reset().set("action", torch.tensor([0.1, 0.3, 0.2])))
    env.step(env.reset().set("action", torch.tensor([-0.1, -0.3, -0.2])))
    assert inner.actions == [1, 0]
    with pytest.raises(
        ValueError,
        match=r"action 'action' of .*: expected int64 \(3,\), or a float for each .* got float32 \(4,\)",
    ):
        env.step(env.reset().set("action", torch.zeros(4)))
