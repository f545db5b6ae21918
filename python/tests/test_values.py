"""Values that come from Python: taken over as they are, or refused."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from windrow.collectors import Collector
from windrow.data import LazyTensorStorage, ReplayBuffer
from windrow.envs import GymWrapper

BYTES = np.array([2, 0, 255], np.uint8)


class World(gymnasium.Env):
    """Always observes the same, whatever it is."""

    def __init__(self, observation: Any = 0, observed: spaces.Space = spaces.Discrete(2), acted: spaces.Space = spaces.Discrete(2)):
        self.observation_space = observed
        self.action_space = acted
        self.observation = observation

    def reset(self, *, seed=None, options=None):
        return self.observation, {}

    def step(self, action):
        return self.observation, 0.0, False, False, {}


def observe(space: spaces.Space, observation: Any) -> torch.Tensor:
    return next(Collector(lambda: World(observation, space), frames_per_batch=2))["observation"][0]


def act(space: spaces.Space, action: torch.Tensor, **arguments: Any) -> torch.Tensor:
    policy = lambda observation: action  # noqa: E731
    return next(Collector(lambda: World(acted=space), policy, frames_per_batch=4, **arguments))["action"]


def box(dtype: Any, *shape: int) -> spaces.Box:
    low, high = (0, 1) if dtype in (np.bool_, np.float16, np.float32) else (0, 100)
    return spaces.Box(low, high, shape, dtype)


# Booleans


def test_booleans_that_are_other_bytes_are_true() -> None:
    expected = [True, False, True]
    observed = observe(box(np.bool_, 3), BYTES.view(np.bool_))
    assert observed.tolist() == expected and observed.view(torch.uint8).tolist() == [1, 0, 1]
    flags = torch.from_numpy(BYTES).view(torch.bool)
    actions = act(box(np.bool_, 3), flags)
    assert actions.tolist() == [expected] * 4 and actions.view(torch.uint8).max() == 1
    for given in (flags, flags.expand(4, 3).t()[:, 1]):
        buffer = ReplayBuffer(storage=LazyTensorStorage(3), batch_size=3)
        buffer.extend(TensorDict({"flag": given}, [3]))
        assert buffer[:]["flag"].view(torch.uint8).tolist() == [1, 0, 1]


# Observations


def test_observations_may_lie_in_any_order() -> None:
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    behind_a_byte = np.frombuffer(b"\0" + numbers.tobytes(), np.uint8)[1:].view(np.float32).reshape(2, 3)
    for given in (np.asfortranarray(numbers), numbers[::-1][::-1], numbers.astype(">f4"), behind_a_byte):
        assert observe(box(np.float32, 2, 3), given).tolist() == numbers.tolist()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (np.int8, np.array([300, 1])),
        (np.uint8, np.array([1, 300], np.uint16)),
        (np.int32, np.array([1, 2**40])),
        (np.uint64, np.array([2**63 + 1, 1], np.uint64)),
        (np.float32, np.array([1.0, 1e300])),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_observations_that_do_not_fit_are_errors(dtype: Any, value: np.ndarray) -> None:
    largest = str(value.max()).replace("+", r"\+")
    with pytest.raises(RuntimeError, match=f'observation "observation" of World: expected values that .* can hold, got {largest}'):
        observe(box(dtype, 2), value)


def test_observations_that_fit_are_taken() -> None:
    assert observe(box(np.int8, 2), np.array([44, -44])).tolist() == [44, -44]
    assert observe(box(np.float32, 2), np.array([0.5, np.inf])).tolist() == [0.5, np.inf]


# Actions


@pytest.mark.parametrize(
    ("dtype", "action", "type_name"),
    [
        (np.uint8, torch.tensor([300]), "uint8"),
        (np.uint8, torch.tensor([-1]), "uint8"),
        (np.int8, torch.tensor([200], dtype=torch.uint8), "int8"),
        (np.bool_, torch.tensor([2]), "bool"),
        (np.float32, torch.tensor([1e300], dtype=torch.float64), "float32"),
        (np.uint16, torch.tensor([70000]), "uint16"),
        (np.float16, torch.tensor([70000.0]), "float16"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_actions_that_do_not_fit_are_errors(dtype: Any, action: torch.Tensor, type_name: str) -> None:
    with pytest.raises(RuntimeError, match=f"action.* that {type_name} can hold, got "):
        act(box(dtype, 1), action)


def test_actions_that_fit_are_taken() -> None:
    assert act(box(np.uint8, 1), torch.tensor([255])).flatten().tolist() == [255] * 4
    assert act(box(np.float32, 1), torch.tensor([1])).flatten().tolist() == [1.0] * 4


def test_actions_have_the_shape_of_the_batch_and_the_space() -> None:
    numbers = torch.arange(6.0) / 6
    space = box(np.float32, 3)
    for wrong in (numbers.reshape(3, 2), numbers, numbers[:3]):
        with pytest.raises(RuntimeError, match=r'"action": expected float32 \[3\] for each of 2 environments, got float32'):
            act(space, wrong, num_envs=2)
    with pytest.raises(RuntimeError, match=r"got float32 \[3, 2\]"):
        act(box(np.float32, 2, 3), numbers.reshape(3, 2))
    assert act(space, numbers.reshape(2, 3), num_envs=2)[:, 0].tolist() == numbers.reshape(2, 3).tolist()


@pytest.mark.parametrize("shape", [(2,), (2, 1), (2, 1, 1)])
@pytest.mark.parametrize("space", [box(np.float32), box(np.float32, 1)])
def test_dimensions_of_size_1_may_be_left_out_or_added(space: spaces.Box, shape: tuple[int, ...]) -> None:
    assert act(space, torch.tensor([0.25, 0.5]).reshape(shape), num_envs=2)[:, 0].flatten().tolist() == [0.25, 0.5]


@pytest.mark.parametrize("wrong", [[0, 1, 1], [0, 0, 0], [0, 2, 0], [-1, 1, 1]])
def test_one_hot_actions_have_a_single_one(wrong: list[int]) -> None:
    with pytest.raises(RuntimeError, match='"action": expected a single 1 among zeros for each choice, got'):
        act(spaces.Discrete(3), torch.tensor(wrong))
    assert act(spaces.Discrete(3), torch.tensor([0, 1, 0])).tolist() == [[0, 1, 0]] * 4
    both = act(spaces.MultiDiscrete([2, 3]), torch.tensor([False, True, True, False, False]))
    assert both.tolist() == [[0, 1, 1, 0, 0]] * 4
    with pytest.raises(RuntimeError, match=r"got \[1, 0, 1\]"):
        act(spaces.MultiDiscrete([2, 3]), torch.tensor([0, 1, 1, 0, 1]))


def test_outputs_that_cannot_be_read_are_named() -> None:
    with pytest.raises(RuntimeError, match='"action": expected a tensor of bool.*got DLPack type 2 of 16 bits'):
        act(box(np.float32, 1), torch.zeros(1, dtype=torch.float16))
    with pytest.raises(RuntimeError, match='"action": expected a tensor, got float'):
        act(box(np.float32, 1), 0.5)  # type: ignore[arg-type]
