"""Choices in actions and observations: indices in what is Gymnasium's, one-hot vectors in what has
a name of TorchRL's. Policies that have other actions than their environment are errors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import torchrl.envs
from gymnasium.vector import SyncVectorEnv
from tensordict.nn import TensorDictModule
from torch import nn

import windrow.torchrl.envs
from windrow.collectors import (
    AsyncBatchedCollector,
    Collector,
    Evaluator,
    MultiSyncCollector,
)
from windrow.envs import (
    AsyncEnvPool,
    EnvCreator,
    GymEnv,
    GymWrapper,
    ParallelEnv,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)

ID = "FrozenLake-v1"
made = partial(gymnasium.make, ID)
vector = partial(SyncVectorEnv, [made] * 2)


class Own(gymnasium.Wrapper):
    def __init__(self) -> None:
        super().__init__(made())


#: Ways to give environments of Gymnasium, and of windrow's classes that have names of TorchRL's.
GYMNASIUMS: dict[str, Callable[[], Any]] = {
    "an id": lambda: ID,
    "gymnasium.make": made,
    "a function": lambda: made,
    "a class": lambda: Own,
    "a vector": vector,
    "a function of a vector": lambda: vector,
    "EnvCreator": lambda: EnvCreator(made),
    "TransformedEnv": lambda: TransformedEnv(made(), StepCounter()),
    "TransformedEnv of an id": lambda: TransformedEnv(ID, StepCounter()),
    "a function of TransformedEnv": lambda: lambda: TransformedEnv(made(), StepCounter()),
    "SerialEnv": lambda: SerialEnv(2, made),
    "ParallelEnv": lambda: ParallelEnv(2, made),
    "AsyncEnvPool": lambda: AsyncEnvPool([made] * 2),
}
TORCHRLS: dict[str, Callable[..., Any]] = {
    "GymEnv": partial(GymEnv, ID),
    "GymEnv of Gymnasium": partial(GymEnv, ID, backend="gymnasium"),
    "several of GymEnv": partial(GymEnv, ID, num_envs=2),
    "GymWrapper": lambda **encoding: GymWrapper(made(), **encoding),
    "GymWrapper of a vector": lambda **encoding: GymWrapper(vector(), **encoding),
    "the stand-in's GymEnv": partial(windrow.torchrl.envs.GymEnv, ID),
    "TorchRL's GymEnv": partial(torchrl.envs.GymEnv, ID),
    "a function": lambda **encoding: partial(GymEnv, ID, **encoding),
    "TransformedEnv": lambda **encoding: TransformedEnv(GymEnv(ID, **encoding), StepCounter()),
    "SerialEnv": lambda **encoding: SerialEnv(2, partial(GymEnv, ID, **encoding)),
    "ParallelEnv": lambda **encoding: ParallelEnv(2, partial(GymEnv, ID, **encoding)),
}


def assert_choices(env: Any, action: list[int], observation: list[int]) -> None:
    """Rows of a batch have these shapes."""
    collector = Collector(env, frames_per_batch=4)
    batch = next(collector)
    shapes = [list(batch[key].shape[batch.ndim :]) for key in ("action", "observation")]
    following = list(batch["next", "observation"].shape[batch.ndim :])
    collector.shutdown()
    assert [*shapes, following] == [action, observation, observation]


@pytest.mark.parametrize("way", GYMNASIUMS)
def test_what_is_gymnasiums_has_indices(way: str) -> None:
    assert_choices(GYMNASIUMS[way](), [], [])


@pytest.mark.parametrize("way", TORCHRLS)
def test_what_has_a_name_of_torchrls_has_one_hot_vectors(way: str) -> None:
    assert_choices(TORCHRLS[way](), [4], [16])


@pytest.mark.parametrize("way", TORCHRLS)
def test_what_has_a_name_of_torchrls_has_indices_where_that_is_asked_for(way: str) -> None:
    assert_choices(TORCHRLS[way](categorical_action_encoding=True), [], [])


class Indices(nn.Module):
    """Rust evaluates it."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(4, 2)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.scores(observation).argmax(-1)


class Called(Indices):
    """Torch evaluates it."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        # A decision by numbers.
        assert not observation.isnan().any()
        return super().forward(observation)


INDICES: dict[str, Callable[[], Any]] = {
    "in Rust": Indices,
    "in torch": Called,
    "of a TensorDict": lambda: TensorDictModule(Called(), ["observation"], ["action"]),
    "a function": lambda: lambda observation: (observation[..., 0] > 0).long(),
    "of NumPy": lambda: lambda observation: np.zeros(np.shape(observation)[:-1], int),
}
INDEX = r'"action": expected one-hot int64 \[2\].* got int64.*categorical_action_encoding=True'


@pytest.mark.parametrize("policy", INDICES)
@pytest.mark.parametrize("num_envs", [None, 1, 3])
def test_an_index_in_the_place_of_a_one_hot_vector_is_an_error_that_names_the_argument(
    policy: str, num_envs: int | None
) -> None:
    with pytest.raises(ValueError, match=INDEX):
        Collector(GymEnv("CartPole-v1"), INDICES[policy](), num_envs=num_envs, frames_per_batch=6)


@pytest.mark.parametrize("policy", ["in Rust", "in torch"])
@pytest.mark.parametrize(
    "build",
    [
        lambda env, policy: MultiSyncCollector(
            [env] * 2, policy, frames_per_batch=8, placement="threads"
        ),
        lambda env, policy: MultiSyncCollector(
            [env] * 2, policy, frames_per_batch=8, placement="processes"
        ),
        lambda env, policy: AsyncBatchedCollector([env] * 2, policy, frames_per_batch=8),
        lambda env, policy: Evaluator(env, policy, backend="thread"),
        lambda env, policy: Evaluator(env, policy, backend="process"),
    ],
    ids=["threads", "processes", "served", "evaluator", "evaluator's process"],
)
def test_an_index_in_the_place_of_a_one_hot_vector_is_an_error_wherever_the_policy_acts(
    build: Callable[..., Any], policy: str
) -> None:
    with pytest.raises(ValueError, match=INDEX):
        build(partial(GymEnv, "CartPole-v1"), INDICES[policy]())


def test_an_index_of_a_policy_that_has_to_be_native_is_an_error_that_names_the_argument() -> None:
    with pytest.raises(
        ValueError,
        match="graph policy does not fit CartPole-v1: action: .*categorical_action_encoding=True",
    ):
        Collector(
            partial(GymEnv, "CartPole-v1"),
            Indices(),
            frames_per_batch=4,
            policy_backend="native",
        )


def test_an_index_in_the_place_of_a_one_hot_vector_is_an_error_of_a_step() -> None:
    env = GymEnv("CartPole-v1", num_envs=2)
    with pytest.raises(ValueError, match=r"expected shape \(2, 2\).*encoding=True"):
        env.step(env.reset().set("action", torch.zeros(2, dtype=torch.long)))


@pytest.mark.parametrize("num_envs", [None, 1, 3])
def test_a_one_hot_vector_in_the_place_of_an_index_is_an_error_that_names_the_argument(
    num_envs: int | None,
) -> None:
    def act(observation: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot((observation[..., 0] > 0).long(), 2)

    with pytest.raises(ValueError, match=r"expected int64 \[\].*encoding=False"):
        Collector("CartPole-v1", act, num_envs=num_envs, frames_per_batch=6)


def test_a_one_hot_vector_in_the_place_of_an_index_is_an_error_of_a_step() -> None:
    env = SerialEnv(2, "CartPole-v1")
    with pytest.raises(ValueError, match=r"expected shape \(2,\).*encoding=False"):
        env.step(env.reset().set("action", torch.eye(2, dtype=torch.long)))


@pytest.mark.parametrize("env", ["CartPole-v1", partial(GymEnv, "CartPole-v1")])
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_a_float_for_each_choice_fits_both_encodings(env: Any, backend: str) -> None:
    policy = nn.Linear(4, 2)
    with Collector(env, policy, frames_per_batch=6, policy_backend=backend) as collector:
        batch = next(collector)
    best = policy(batch["observation"]).argmax(-1)
    one_hot = nn.functional.one_hot(best, 2)
    assert torch.equal(batch["action"], best if env == "CartPole-v1" else one_hot)


@pytest.mark.parametrize("num_envs", [None, 3])
@pytest.mark.parametrize("is_index", [True, False])
def test_a_float_for_each_choice_fits_both_encodings_in_a_step(
    is_index: bool, num_envs: int | None
) -> None:
    env = GymEnv("CartPole-v1", num_envs=num_envs, categorical_action_encoding=is_index)
    scores = torch.tensor([0.3, 0.7]).expand(*env.batch_size, 2)
    chosen = torch.ones(env.batch_size, dtype=torch.long)
    expected = chosen if is_index else nn.functional.one_hot(chosen, 2)
    got, other = (env.step(env.reset(seed=0).set("action", act)) for act in (scores, expected))
    assert torch.equal(got["next", "observation"], other["next", "observation"])


class Wide(nn.Linear):
    """Torch evaluates it."""

    def __init__(self) -> None:
        super().__init__(4, 3)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        # A decision by numbers.
        assert not observation.isnan().any()
        return super().forward(observation)


@pytest.mark.parametrize("policy", [lambda: nn.Linear(4, 3), Wide], ids=["in Rust", "in torch"])
@pytest.mark.parametrize("placement", ["inline", "threads", "processes"])
@pytest.mark.filterwarnings("error")
def test_a_policy_with_three_outputs_for_two_choices_is_an_error_and_no_warning(
    policy: Callable[[], Any], placement: str
) -> None:
    with pytest.raises(
        ValueError, match=r'"action": expected .* each of \[2\] choices.* got float32 \[3\]'
    ):
        Collector("CartPole-v1", policy(), frames_per_batch=4, placement=placement)


def test_a_native_policy_with_three_outputs_for_two_choices_is_an_error() -> None:
    with pytest.raises(ValueError, match="graph policy does not fit CartPole-v1: action: expected"):
        Collector("CartPole-v1", nn.Linear(4, 3), frames_per_batch=4, policy_backend="native")


@pytest.mark.parametrize("placement", ["inline", "threads", "processes"])
@pytest.mark.parametrize("env", ["CartPole-v1", partial(GymEnv, "CartPole-v1")])
def test_a_policy_that_reads_other_observations_is_an_error_that_says_which_there_are(
    env: Any, placement: str
) -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        Collector(env, nn.Linear(3, 2), frames_per_batch=4, placement=placement)
    assert "the policy was called with 'observation': float32 [4]" in caught.value.__notes__


HAND: dict[str, Callable[[], Any]] = {
    "indices": partial(GymEnv, ID, categorical_action_encoding=True),
    "one-hot vectors": partial(GymEnv, ID),
    "several": lambda: SerialEnv(2, made),
    "transforms": lambda: TransformedEnv(made(), StepCounter()),
}


@pytest.mark.parametrize("way", HAND)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_float_in_the_place_of_an_index_is_an_error(way: str, dtype: torch.dtype) -> None:
    env = HAND[way]()
    root = env.reset()
    root["action"] = torch.ones(*env.batch_size, 1, dtype=dtype)
    expected = r"expected int64 \(.*\), or a float for each of \[4\] choices, got float"
    with pytest.raises(ValueError, match=f"action 'action' of FrozenLake-v1: {expected}"):
        env.step(root)


def test_a_number_of_numpy_in_the_place_of_an_index_is_an_error() -> None:
    env = GymEnv(ID, categorical_action_encoding=True)
    with pytest.raises(ValueError, match=r"choices, got float32 \(\)"):
        env.step(env.reset().set("action", np.float32(1)))


@pytest.mark.parametrize("way", HAND)
def test_a_float_for_each_choice_is_taken_for_scores(way: str) -> None:
    env = HAND[way]()
    root = env.reset()
    root["action"] = torch.eye(4)[2].expand(*env.batch_size, 4)
    assert env.step(root)["next", "observation"].shape[: root.ndim] == root.shape


class Whole(gymnasium.Env[Any, Any]):
    """Takes whole numbers that are no choices."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-5, 5, (2,), np.int8)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return action.astype(np.float32) / 5, 0.0, False, False, {}


def test_an_action_becomes_no_other_whole_number() -> None:
    env = GymWrapper(Whole())
    stepped = env.step(env.reset().set("action", torch.tensor([2.0, -1.0])))
    assert torch.equal(stepped["next", "observation"], torch.tensor([0.4, -0.2]))
    for lost, shown in [(torch.tensor([2.0, 1.5]), "1.5"), (torch.tensor([300, 1]), "300")]:
        with pytest.raises(ValueError, match=f"expected values that int8 can hold, got {shown}"):
            env.step(env.reset().set("action", lost))
