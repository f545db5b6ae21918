"""Values that come from Python: taken over as they are, or refused."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict

import windrow
from windrow.collectors import Collector, MultiSyncCollector
from windrow.data import (
    LazyTensorStorage,
    PrioritizedSampler,
    RateLimiter,
    ReplayBuffer,
    SliceSampler,
)
from windrow.envs import GymEnv, GymWrapper

BYTES = np.array([2, 0, 255], np.uint8)


class World(gymnasium.Env):
    """Always observes the same, whatever it is."""

    def __init__(
        self,
        observation: Any = 0,
        observed: spaces.Space = spaces.Discrete(2),
        acted: spaces.Space = spaces.Discrete(2),
    ):
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
    def policy(observation: torch.Tensor) -> torch.Tensor:
        return action

    def one_hot() -> GymWrapper:
        return GymWrapper(World(acted=space))

    return next(Collector(one_hot, policy, frames_per_batch=4, **arguments))["action"]


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
    behind_a_byte = (
        np.frombuffer(b"\0" + numbers.tobytes(), np.uint8)[1:].view(np.float32).reshape(2, 3)
    )
    for given in (
        np.asfortranarray(numbers),
        numbers[::-1][::-1],
        numbers.astype(">f4"),
        behind_a_byte,
    ):
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
    with pytest.raises(
        RuntimeError,
        match=f'observation "observation" of World: expected values that .* can hold, got {largest}',
    ):
        observe(box(dtype, 2), value)


def test_whole_numbers_that_are_rounded_are_reported_once() -> None:
    with pytest.warns(
        windrow.Warning,
        match='observation "observation" of World: 16777217 became 16777216.0, since float32',
    ):
        assert observe(box(np.float32, 2), np.array([2**24 + 1, 0])).tolist() == [2.0**24, 0.0]


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
def test_actions_that_do_not_fit_are_errors(
    dtype: Any, action: torch.Tensor, type_name: str
) -> None:
    with pytest.raises(RuntimeError, match=f"action.* that {type_name} can hold, got "):
        act(box(dtype, 1), action)


def test_actions_that_fit_are_taken() -> None:
    assert act(box(np.uint8, 1), torch.tensor([255])).flatten().tolist() == [255] * 4
    assert act(box(np.float32, 1), torch.tensor([1])).flatten().tolist() == [1.0] * 4


def test_actions_have_the_shape_of_the_batch_and_the_space() -> None:
    numbers = torch.arange(6.0) / 6
    space = box(np.float32, 3)
    for wrong in (numbers.reshape(3, 2), numbers, numbers[:3]):
        with pytest.raises(
            ValueError,
            match=r'"action": expected float32 \[3\] for each of 2 environments, got float32',
        ):
            act(space, wrong, num_envs=2)
    with pytest.raises(ValueError, match=r"got float32 \[3, 2\]"):
        act(box(np.float32, 2, 3), numbers.reshape(3, 2))
    assert (
        act(space, numbers.reshape(2, 3), num_envs=2)[:, 0].tolist()
        == numbers.reshape(2, 3).tolist()
    )


@pytest.mark.parametrize("shape", [(2,), (2, 1), (2, 1, 1)])
@pytest.mark.parametrize("space", [box(np.float32), box(np.float32, 1)])
def test_dimensions_of_size_1_may_be_left_out_or_added(
    space: spaces.Box, shape: tuple[int, ...]
) -> None:
    assert act(space, torch.tensor([0.25, 0.5]).reshape(shape), num_envs=2)[
        :, 0
    ].flatten().tolist() == [0.25, 0.5]


@pytest.mark.parametrize("wrong", [[0, 0, 0], [0, 2, 0], [-1, 1, 1], [0, 1, 2]])
def test_one_hot_actions_mark_a_choice(wrong: list[int]) -> None:
    with pytest.raises(
        RuntimeError, match='"action": expected a 1 among zeros for each choice, got'
    ):
        act(spaces.Discrete(3), torch.tensor(wrong))
    assert act(spaces.Discrete(3), torch.tensor([0, 1, 0])).tolist() == [[0, 1, 0]] * 4
    # Options with equal values, all of which TorchRL's modules mark: the first one is taken, and
    # recorded.
    assert act(spaces.Discrete(3), torch.tensor([0, 1, 1])).tolist() == [[0, 1, 0]] * 4
    both = act(spaces.MultiDiscrete([2, 3]), torch.tensor([False, True, True, True, True]))
    assert both.tolist() == [[0, 1, 1, 0, 0]] * 4
    with pytest.raises(RuntimeError, match=r"got \[0, 0, 0\]"):
        act(spaces.MultiDiscrete([2, 3]), torch.tensor([0, 1, 0, 0, 0]))


def test_outputs_that_cannot_be_read_are_named() -> None:
    with pytest.raises(
        TypeError, match='"action": expected a tensor of bool.*got DLPack type 2 of 16 bits'
    ):
        act(box(np.float32, 1), torch.zeros(1, dtype=torch.float16))
    with pytest.raises(
        TypeError,
        match="'action': expected a tensor, an array, a number or a list of numbers, got str",
    ):
        act(box(np.float32, 1), "left")  # type: ignore[arg-type]


# Endings


@pytest.mark.parametrize(
    "flag", [None, "False", float("nan"), 0.5, [False], np.array([True, False])]
)
def test_what_is_no_boolean_ends_no_episode(flag: Any) -> None:
    class Ending(World):
        def step(self, action):
            return 0, 0.0, flag, False, {}

    with pytest.raises(TypeError, match="terminated must be True or False, got"):
        GymWrapper(Ending()).rollout(1)


@pytest.mark.parametrize(
    "flag", [True, 1, 1.0, np.True_, np.array(True), np.array([True]), torch.tensor(True)]
)
def test_what_equals_a_boolean_ends_an_episode(flag: Any) -> None:
    class Ending(World):
        def step(self, action):
            return 0, 0.0, flag, flag == 2, {}

    ended = next(Collector(Ending, frames_per_batch=2))["next"]
    assert ended["terminated"].all() and not ended["truncated"].any()


# Arguments


@pytest.mark.parametrize(
    ("arguments", "kind", "expected"),
    [
        (
            {"seed": -1},
            ValueError,
            "seed must be a whole number from 0 to 18446744073709551615, got -1",
        ),
        ({"seed": 2**64}, ValueError, "seed must be a whole number from 0 to"),
        ({"num_envs": 1.5}, TypeError, r"num_envs must be a whole number, got 1\.5"),
        ({"num_envs": True}, TypeError, "num_envs must be a whole number, got True"),
        ({"num_envs": 0}, ValueError, "num_envs must be 1 or more, got 0"),
        ({"num_envs": "2"}, TypeError, "num_envs must be a whole number, got '2'"),
        ({"postproc": 2.0}, TypeError, r"postproc must be a function, got 2\.0"),
        ({"pre_collect_hook": "x"}, TypeError, "pre_collect_hook must be a function, got 'x'"),
        ({"post_collect_hook": "x"}, TypeError, "post_collect_hook must be a function, got 'x'"),
        ({"init_fn": "x"}, TypeError, "init_fn must be a function, got 'x'"),
        (
            {"create_env_kwargs": 2.0},
            TypeError,
            r"create_env_kwargs must be a dictionary or several, got 2\.0",
        ),
        (
            {"create_env_kwargs": "x"},
            TypeError,
            "create_env_kwargs must be a dictionary or several, got 'x'",
        ),
        (
            {"create_env_kwargs": [3]},
            TypeError,
            r"create_env_kwargs must be a dictionary or several, got \[3\]",
        ),
        ({"num_envs": 2**63}, ValueError, "num_envs=9223372036854775808 is too much"),
        (
            {"max_frames_per_traj": 2**64},
            ValueError,
            "max_frames_per_traj must be a whole number from 0",
        ),
        (
            {"preemptive_threshold": "x"},
            TypeError,
            "preemptive_threshold must be a number, got 'x'",
        ),
        ({"allow_partial_batch": 3}, TypeError, "allow_partial_batch must be True or False, got 3"),
        (
            {"frames_per_batch": float("nan")},
            TypeError,
            "frames_per_batch must be a whole number of frames, got nan",
        ),
        (
            {"frames_per_batch": float("inf")},
            TypeError,
            "frames_per_batch must be a whole number of frames, got inf",
        ),
        (
            {"frames_per_batch": "5"},
            TypeError,
            "frames_per_batch must be a whole number of frames, got '5'",
        ),
        (
            {"total_frames": [1]},
            TypeError,
            r"total_frames must be a whole number of frames, got \[1\]",
        ),
        ({"total_frames": 2}, ValueError, "use 4, or set allow"),
        ({"num_workers": "x"}, TypeError, "num_workers must be a whole number, got 'x'"),
        ({"num_workers": 0}, ValueError, "num_workers must be 1 or more, got 0"),
        ({"on_loss": 1.5}, TypeError, r"on_loss must be .* got 1\.5"),
    ],
)
def test_arguments_that_make_no_sense_are_named(
    arguments: dict[str, Any], kind: type[Exception], expected: str
) -> None:
    with pytest.raises(kind, match=expected):
        MultiSyncCollector(
            World, **{"num_workers": 1, "frames_per_batch": 4, "placement": "threads", **arguments}
        )


@pytest.mark.parametrize(
    "given", [MappingProxyType({"length": 3}), [MappingProxyType({"length": 3})]]
)
def test_arguments_of_environments_are_any_mapping(given: Any) -> None:
    made = []

    def make(length: int) -> Any:
        made.append(length)
        return gymnasium.make("CartPole-v1", max_episode_steps=length)

    batch = next(Collector(make, frames_per_batch=3, create_env_kwargs=given))
    assert set(made) == {3} and batch["next", "truncated"][-1]


@pytest.mark.parametrize("whole", [np.int64, torch.tensor], ids=["numpy", "torch"])
def test_whole_numbers_of_others_are_numbers(whole: Any) -> None:
    network = torch.nn.Linear(4, 2)
    collector = MultiSyncCollector(
        "CartPole-v1",
        network,
        num_workers=whole(2),
        num_envs=whole(1),
        frames_per_batch=whole(4),
        seed=whole(3),
    )
    assert next(collector).numel() == 4
    collector.update_policy_weights_(network, worker_ids=whole(0))
    assert collector.set_seed(whole(5)) == collector.set_seed(5)
    with pytest.raises(TypeError, match=r"seed must be a whole number, got 1\.5"):
        collector.set_seed(1.5)
    with pytest.raises(ValueError, match="seed must be 0 or more, got -1"):
        collector.set_seed(-1)
    collector.shutdown()


# States


def linear() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 2))


def values(module: torch.nn.Module) -> dict[str, list]:
    return {name: value.tolist() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize(
    "damage",
    [{"seed": None}, {"policy_version": -5}, {"traj_pool": {"traj_id": -1}}, {"frames": -1}],
)
def test_a_state_that_is_refused_leaves_the_collector_as_it_was(
    backend: str, damage: dict[str, Any]
) -> None:
    state = Collector(
        "CartPole-v1", linear(), frames_per_batch=4, policy_backend=backend
    ).state_dict()
    state = {name: value for name, value in {**state, **damage}.items() if value is not None}
    mine = linear()
    collector = Collector("CartPole-v1", mine, frames_per_batch=4, policy_backend=backend)
    next(collector)
    before, figures = values(mine), collector.state_dict()["frames"]
    with pytest.raises((ValueError, RuntimeError)):
        collector.load_state_dict(state)
    assert values(mine) == before and collector.state_dict()["frames"] == figures


def test_weights_are_taken_all_or_none() -> None:
    mine = linear()
    collector = Collector("CartPole-v1", mine, frames_per_batch=4)
    before = values(mine)
    weights = {name: torch.zeros_like(value) for name, value in mine.state_dict().items()}
    weights["0.bias"] = torch.zeros(2, device="meta")
    with pytest.raises(NotImplementedError, match="meta"):
        collector.update_policy_weights_(weights)
    assert values(mine) == before


def test_a_state_that_is_refused_leaves_the_buffer_as_it_was() -> None:
    def filled(start: int) -> ReplayBuffer:
        buffer = ReplayBuffer(
            storage=LazyTensorStorage(10), sampler=PrioritizedSampler(10, 0.7, 0.9), batch_size=2
        )
        buffer.extend(TensorDict({"number": torch.arange(start, start + 15)}, [15]))
        buffer.update_priority(torch.tensor([1]), torch.tensor([2.0]))
        return buffer

    buffer, good = filled(100), TensorDict(filled(0).state_dict())
    before = TensorDict(buffer.state_dict())
    for key, value in [
        ("rng", None),
        (("sampler", "beta"), None),
        (("runs", "first"), None),
        (("sampler", "max_priority"), torch.tensor(-1.0)),
        (("sampler", "max_priority"), torch.tensor(float("inf"))),
    ]:
        damaged = good.clone()
        if value is None:
            del damaged[key]
        else:
            damaged[key] = value
        with pytest.raises((KeyError, ValueError, RuntimeError)):
            buffer.load_state_dict(damaged.to_dict())
        assert (TensorDict(buffer.state_dict()) == before).all()
    buffer.load_state_dict(good.to_dict())
    assert sorted(buffer[:]["number"].tolist()) == list(range(5, 15))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LazyTensorStorage(-1), "max_size must be 1 or more, got -1"),
        (lambda: LazyTensorStorage(1.5), "max_size must be a whole number, got 1.5"),
        (lambda: ReplayBuffer(batch_size=0), "batch_size must be 1 or more, got 0"),
        (lambda: ReplayBuffer(seed=-1), "seed must be 0 or more, got -1"),
        (
            lambda: ReplayBuffer(sample_timeout="long"),
            "sample_timeout must be a number, got 'long'",
        ),
        (
            lambda: ReplayBuffer(sample_timeout=-1),
            "sample_timeout must be a finite number of seconds, 0 or more, got -1",
        ),
        (
            lambda: ReplayBuffer(sample_timeout=math.inf),
            "sample_timeout must be a finite number of seconds, 0 or more, got inf",
        ),
        (lambda: ReplayBuffer().sample(True), "batch_size must be a whole number, got True"),
        (lambda: SliceSampler(slice_len=-1), "slice_len must be 1 or more, got -1"),
        (lambda: PrioritizedSampler(10, alpha="x"), "alpha must be a number, got 'x'"),
        (lambda: RateLimiter.min_size(1.5), "min_size_to_sample must be a whole number, got 1.5"),
        (
            lambda: GymEnv(5),
            "expected the id of an environment or an environment of Gymnasium, got 5",
        ),
        (lambda: GymEnv("CartPole-v1", frame_skip=0), "frame_skip must be 1 or more, got 0"),
        (lambda: GymEnv("CartPole-v1").rollout(0), "max_steps must be 1 or more, got 0"),
    ],
)
def test_arguments_of_parts_are_named_with_what_came(make, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{message}$"):
        make()


def test_numbers_of_numpy_and_torch_are_numbers() -> None:
    storage = LazyTensorStorage(np.int64(10))
    assert (
        ReplayBuffer(storage=storage, batch_size=torch.tensor(2), seed=np.uint8(3)).batch_size == 2
    )
