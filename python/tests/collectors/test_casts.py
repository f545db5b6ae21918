"""Actions of another type than the environment takes."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import torchrl.collectors
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded
from torchrl.envs import ActionMask, EnvBase, TransformedEnv
from torchrl.testing.mocking_classes import CountingEnv

import windrow.collectors
from windrow.collectors import (
    AsyncBatchedCollector,
    AsyncCollector,
    Collector,
    Evaluator,
    MultiAsyncCollector,
    MultiSyncCollector,
)
from windrow.envs import ParallelEnv

INTEGERS = [torch.uint8, torch.int32, torch.int64]


def collect(action: Any) -> Any:
    with Collector(
        CountingEnv(10),
        lambda td: td.set("action", action.expand(*td.shape, 1)),
        frames_per_batch=5,
        total_frames=5,
        trust_policy=True,
    ) as collector:
        return next(collector)


class Echo(EnvBase):
    """Observes the action, and whether its element type is the one of the spec."""

    def __init__(self, action: Any) -> None:
        super().__init__()
        self.action_spec = action
        self.observation_spec = Composite(
            seen=Unbounded((1,), dtype=torch.int64),
            own=Binary(1, (1,), dtype=torch.bool),
            action_mask=Binary(4, (4,), dtype=torch.bool),
        )
        self.reward_spec = Unbounded((1,))

    def _observed(self, seen: torch.Tensor, is_own: bool) -> TensorDict:
        return TensorDict(
            {
                "seen": seen.to(torch.int64).reshape(1),
                "own": torch.tensor([is_own]),
                "action_mask": torch.tensor([True, False, True, False]),
                "done": torch.zeros(1, dtype=torch.bool),
                "terminated": torch.zeros(1, dtype=torch.bool),
            }
        )

    def _reset(self, tensordict: Any = None) -> TensorDict:
        return self._observed(torch.zeros(1), False)

    def _step(self, tensordict: TensorDict) -> TensorDict:
        action = tensordict["action"]
        return self._observed(action, action.dtype == self.action_spec.dtype).set(
            "reward", torch.zeros(1)
        )

    def _set_seed(self, seed: int | None) -> None:
        torch.manual_seed(seed or 0)


def echo(spec: Any, masked: bool = False) -> Any:
    env = Echo(spec)
    return TransformedEnv(env, ActionMask()) if masked else env


class Says(torch.nn.Module):
    """Writes one number, of any row."""

    def __init__(self, number: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.number, self.dtype = number, dtype

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        return torch.full(seen.shape, self.number, dtype=self.dtype)


class Chooses(torch.nn.Module):
    """Chooses one number for each row."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.full(observation.shape[:-1], self.number)


def says(number: int, dtype: torch.dtype = torch.int64, seen: str = "seen") -> TensorDictModule:
    return TensorDictModule(Says(number, dtype), [seen], ["action"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whole_floats_are_cast_with_a_warning(dtype: torch.dtype) -> None:
    with pytest.warns(
        UserWarning,
        match='the policy writes "action" as float.., the environment takes int8: whole numbers are cast',
    ):
        batch = collect(torch.ones(1, dtype=dtype))
    assert batch["action"].dtype == torch.int8 and batch["action"].flatten().tolist() == [1] * 5
    assert batch["next", "observation"].flatten().tolist() == [1, 2, 3, 4, 5]


@pytest.mark.filterwarnings("ignore:the policy writes action")
@pytest.mark.parametrize("number", [0.5, 300.0, float("nan"), float("inf")])
def test_floats_that_integers_cannot_hold_are_errors(number: float) -> None:
    with pytest.raises(
        RuntimeError, match=r'worker 0.*"action": expected values that int8 can hold, got'
    ):
        collect(torch.full((1,), number))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(
    "spec",
    [
        Binary(1, (1,), dtype=torch.int8),
        Bounded(-100, 100, (1,), dtype=torch.int8),
        Binary(1, (1,), dtype=torch.bool),
    ],
)
@pytest.mark.parametrize("number", [1, 160])
def test_integers_of_the_policys_own_type_are_delivered_as_torchrl_does(
    number: int, spec: Any, dtype: torch.dtype
) -> None:
    batches = []
    for library in (torchrl.collectors, windrow.collectors):
        collector = library.Collector(
            echo(spec.clone()), says(number, dtype), frames_per_batch=3, total_frames=3
        )
        batches.append(next(iter(collector)))
        collector.shutdown()
    theirs, ours = batches
    assert ours["action"].dtype == theirs["action"].dtype == dtype
    for key in ("action", ("next", "seen"), ("next", "own")):
        assert torch.equal(ours[key], theirs[key]), key
    assert ours["next", "seen"].flatten().tolist() == [number] * 3


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int64])
@pytest.mark.parametrize("number", [1, 7, 300, -1])
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_choices_that_a_spec_or_mask_does_not_have_reach_the_environment(
    number: int, dtype: torch.dtype, masked: bool, backend: str
) -> None:
    make = functools.partial(echo, Categorical(4, (1,), dtype=dtype), masked)
    with Collector(
        make(), says(number), frames_per_batch=3, total_frames=3, policy_backend=backend
    ) as collector:
        batch = next(collector)
    assert (
        batch["action"].flatten().tolist()
        == batch["next", "seen"].flatten().tolist()
        == [number] * 3
    )


def make_echo() -> Any:
    return echo(Binary(1, (1,), dtype=torch.int8))


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize(
    ("kind", "placement"),
    [
        (Collector, "inline"),
        (AsyncCollector, "threads"),
        (AsyncCollector, "processes"),
        (MultiSyncCollector, "threads"),
        (MultiSyncCollector, "processes"),
        (MultiAsyncCollector, "threads"),
        (MultiAsyncCollector, "processes"),
        (AsyncBatchedCollector, None),
    ],
)
def test_every_class_delivers_integers_of_the_policys_own_type(
    kind: Any, placement: str | None, backend: str
) -> None:
    several = kind in (MultiSyncCollector, MultiAsyncCollector, AsyncBatchedCollector)
    arguments: dict[str, Any] = {
        "frames_per_batch": 8,
        "total_frames": 16,
        "init_random_frames": 8,
        "policy_backend": backend,
    }
    if placement is not None:
        arguments["placement"] = placement
    with kind([make_echo] * 2 if several else make_echo, says(160), **arguments) as collector:
        batches = list(collector)
    assert [batch["action"].dtype for batch in batches] == [torch.int64] * 2
    actions, seen = (
        torch.cat([batch[key].flatten() for batch in batches]).tolist()
        for key in ("action", ("next", "seen"))
    )
    assert actions == seen
    # Of several workers, one that acts with the policy may be quicker than one that acts at random.
    ordered = (
        actions if kind not in (MultiAsyncCollector, AsyncBatchedCollector) else sorted(actions)
    )
    assert set(ordered[:8]) <= {0, 1} and ordered[8:] == [160] * 8


def test_environments_in_processes_take_integers_of_the_policys_own_type() -> None:
    with Collector(
        ParallelEnv(2, make_echo), says(160), frames_per_batch=4, total_frames=4
    ) as collector:
        batch = next(collector)
    assert (
        batch["action"].flatten().tolist() == batch["next", "seen"].flatten().tolist() == [160] * 4
    )


def test_evaluators_take_integers_of_the_policys_own_type() -> None:
    with Evaluator(make_echo, says(160), num_trajectories=1, max_steps=3) as evaluator:
        assert evaluator.evaluate()["eval/episode_length"] == 3


def test_integers_that_a_policy_begins_to_write_later_are_errors_where_they_wrap() -> None:
    calls = iter(range(100))

    def act(td: TensorDict) -> TensorDict:
        dtype = torch.int8 if next(calls) < 3 else torch.int64
        return td.set("action", torch.full((1,), 1 if dtype == torch.int8 else 160, dtype=dtype))

    with pytest.raises(
        RuntimeError, match=r'"action": expected values that int8 can hold, got 160'
    ):
        with Collector(
            make_echo(), act, frames_per_batch=8, total_frames=8, trust_policy=True
        ) as collector:
            next(collector)


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("auto", r"expected a number below 2 for choice 0, got \[7\]"),
        ("torch", "action out of range: expected an integer from 0 to 1, got 7"),
    ],
)
def test_native_environments_say_which_choice_they_do_not_have(backend: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        with Collector(
            "CartPole-v1",
            Chooses(7),
            frames_per_batch=2,
            total_frames=2,
            policy_backend=backend,
        ) as collector:
            next(collector)


class Switches(gymnasium.Env):
    """Takes bytes with a sign, and nothing else."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-100, 100, (1,), np.int8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        return np.zeros(1, np.float32), float(action[0]), False, False, {}


def test_environments_that_have_one_type_get_that_or_an_error() -> None:
    with Collector(
        Switches(), says(90, seen="observation"), frames_per_batch=2, total_frames=2
    ) as collector:
        batch = next(collector)
    assert batch["action"].dtype == torch.int8 and batch["next", "reward"].flatten().tolist() == [
        90,
        90,
    ]
    with pytest.raises(RuntimeError, match="expected values that int8 can hold, got 160"):
        with Collector(
            Switches(), says(160, seen="observation"), frames_per_batch=2, total_frames=2
        ) as collector:
            next(collector)
