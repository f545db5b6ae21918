"""Modes and devices of torch that a program has chosen, on any machine: its device `meta` has no
values, so that whatever lands there by chance is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

import windrow
from windrow.collectors import Collector, Evaluator, MultiSyncCollector
from windrow.data import (
    LazyTensorStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictPrioritizedReplayBuffer,
)
from windrow.envs import (
    Compose,
    GymEnv,
    ObservationNorm,
    RewardSum,
    StepCounter,
    TransformedEnv,
    VecNorm,
    check_env_specs,
)
from windrow.modules import InferenceServer
from windrow.policies.choose import Conditions, choose

CPU, META = torch.device("cpu"), torch.device("meta")


class Greatest(nn.Module):
    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.argmax(-1)


def pole(device: str) -> TensorDictModule:
    return TensorDictModule(
        nn.Sequential(nn.Linear(4, 2, device=device), Greatest()), ["observation"], ["action"]
    )


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """Tensors are made on ``meta`` where nobody names a device."""
    torch.set_default_device(META)
    yield
    torch.set_default_device(None)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("kind", [Collector, MultiSyncCollector])
def test_collectors_make_nothing_on_the_default_device(kind: Any, backend: str) -> None:
    many = {} if kind is Collector else {"num_workers": 2}
    lines: list[Any] = []
    told = {
        "policy_backend": backend,
        "logger": lambda figures, step: lines.append(figures),
        **many,
    }
    with kind(
        "CartPole-v1", pole("cpu"), frames_per_batch=64, total_frames=256, **told
    ) as collector:
        for batch in collector:  # noqa: B007
            collector.update_policy_weights_()
        assert all(value.is_cpu for value in batch.values(True, True))
        assert all(value.is_cpu for value in collector.state_dict()["policy_state_dict"].values())
    assert len(lines) > 1
    parts = list(windrow.minibatches(batch, 16, 1, generator=torch.Generator()))
    assert len(parts) == 4 and all(part["observation"].is_cpu for part in parts)


@pytest.mark.usefixtures("elsewhere")
def test_an_evaluator_and_random_actions_are_on_the_cpu() -> None:
    assert Collector("CartPole-v1", frames_per_batch=64, total_frames=64).next()["action"].is_cpu
    with Evaluator("CartPole-v1", pole("cpu"), num_trajectories=2, max_steps=20) as evaluator:
        assert evaluator.evaluate()["eval/num_episodes"] == 2


@pytest.mark.usefixtures("elsewhere")
def test_environments_observe_on_the_cpu() -> None:
    for name in ("CartPole-v1", "Pendulum-v1"):
        env = TransformedEnv(
            GymEnv(name), Compose(StepCounter(), RewardSum(), VecNorm(in_keys=["observation"]))
        )
        check_env_specs(env)
        root = env.rand_step(env.reset())
        assert (
            root["next", "observation"].is_cpu
            and root["next", "done"].is_cpu
            and env.rollout(5)["next", "reward"].is_cpu
        )
        assert all(value.is_cpu for value in env.transform[2].state_dict()["_extra_state"].values())
    env = TransformedEnv(GymEnv("CartPole-v1"), ObservationNorm(in_keys=["observation"]))
    env.transform.init_stats(50)
    assert env.transform.state_dict()["loc"].is_cpu
    cartpole = GymEnv("CartPole-v1", categorical_action_encoding=True)
    assert cartpole.rollout(5, pole("cpu"))["action"].is_cpu


@pytest.mark.usefixtures("elsewhere")
def test_buffers_keep_frames_where_they_come_from() -> None:
    with torch.device("cpu"):
        frames = TensorDict(
            {"value": torch.arange(40.0), "next": {"done": torch.arange(40)[:, None] % 10 == 9}},
            [40],
        )
    for options in ({}, {"sampler": SliceSampler(slice_len=4, end_key=("next", "done"))}):
        buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=8, **options)
        buffer.extend(frames)
        assert all(
            some["value"].is_cpu
            for some in (buffer.sample(), buffer[0], buffer[[1, 2]], buffer[:5])
        )
        buffer.load_state_dict(buffer.state_dict())
    ranked = TensorDictPrioritizedReplayBuffer(
        alpha=0.5, beta=0.5, storage=LazyTensorStorage(100), batch_size=8
    )
    ranked.extend(frames)
    sample = ranked.sample()
    sample["td_error"] = torch.rand(8, device="cpu")
    ranked.update_tensordict_priority(sample)
    assert sample["index"].is_cpu and sample["priority_weight"].is_cpu


@pytest.mark.parametrize(
    ("told", "place", "expected"),
    [
        ({}, "meta", META),
        ({}, "cpu", None),
        ({"named": CPU}, "meta", CPU),
        ({"is_here": False}, "meta", CPU),
        ({"device": CPU}, "meta", CPU),
        ({"device": META}, "cpu", META),
    ],
)
def test_a_policy_is_called_where_its_weights_are_unless_a_device_is_named(
    told: dict[str, Any], place: str, expected: torch.device | None
) -> None:
    policy = pole(place)
    conditions = Conditions("random", threads=False, **told)
    if expected == CPU:
        # A copy on the CPU, which has no values to copy here.
        with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
            choose(policy, None, conditions, backend="torch")
        return
    chosen = choose(policy, None, conditions, backend="torch")
    (make,) = chosen.core
    assert make.args[1].device == expected and chosen.shared == (place != "cpu" or expected is None)
    with (
        pytest.raises(ValueError, match="a native policy runs on the CPU")
        if told
        else pytest.raises(Exception, match="meta|native")
    ):
        choose(pole("meta"), None, conditions, backend="native")


def test_a_module_on_several_devices_is_left_where_it_is() -> None:
    policy = pole("cpu")
    policy.register_buffer("elsewhere", torch.zeros(1, device=META))
    chosen = choose(policy, None, Conditions("random", threads=False), backend="torch")
    assert chosen.core[0].args[1].device is None and chosen.shared


def test_a_server_calls_its_model_where_that_is_unless_a_device_is_named() -> None:
    with InferenceServer(pole("meta")) as server:
        assert server.client()(TensorDict({"observation": torch.zeros(4)}))["action"].device == META
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        InferenceServer(pole("meta"), policy_device="cpu")
    with InferenceServer(pole("cpu")) as server:
        assert server.client()(TensorDict({"observation": torch.zeros(4)})).device is None


def test_rust_evaluates_policies_of_a_program_in_inference_mode() -> None:
    with torch.inference_mode():
        policy = pole("cpu")
        with Collector(
            "CartPole-v1", policy, frames_per_batch=64, policy_backend="native"
        ) as collector:
            collector.next()
            policy.module[0].bias.copy_(torch.tensor([-1e6, 1e6]))
            assert collector.next()["action"].all()
