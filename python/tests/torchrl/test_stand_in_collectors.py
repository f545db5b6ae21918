"""Collectors of ``windrow.torchrl`` keep TorchRL's word."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector as TorchRLCollector
from torchrl.envs import GymEnv as TorchRLGymEnv
from torchrl.modules import AdditiveGaussianModule
from torchrl.modules.inference_server import InferenceDeviceConfig, InferenceServerConfig

from windrow.torchrl.collectors import (
    AsyncBatchedCollector,
    AsyncCollector,
    BaseCollector,
    Collector,
    MultiAsyncCollector,
    MultiCollector,
    MultiSyncCollector,
    SyncDataCollector,
)
from windrow.torchrl.envs import GymEnv, SerialEnv

TWO = {"num_workers": 2}
ALL: list[tuple[Any, dict[str, Any]]] = [
    (Collector, {}),
    (SyncDataCollector, {}),
    (AsyncCollector, {}),
    (MultiSyncCollector, TWO),
    (MultiAsyncCollector, TWO),
    (AsyncBatchedCollector, TWO),
]


@pytest.mark.parametrize(
    ("kind", "arguments"), ALL, ids=lambda value: getattr(value, "__name__", "")
)
def test_the_last_batch_is_full_where_total_frames_is_no_multiple(
    kind: Any, arguments: dict[str, Any]
) -> None:
    with pytest.warns(UserWarning, match="total_frames=50 is no multiple of frames_per_batch=20"):
        collector = kind("CartPole-v1", frames_per_batch=20, total_frames=50, **arguments)
    with collector:
        assert collector.total_frames == 50 and len(collector) == 3
        assert [batch.numel() for batch in collector] == [20, 20, 20]
        assert isinstance(collector, BaseCollector)


@pytest.mark.parametrize(("number", "frames", "total"), [(4, 30, 100), (3, 22, 220), (3, 30, 90)])
def test_batches_are_those_of_torchrl_where_no_number_divides(
    number: int, frames: int, total: int
) -> None:
    def environment(kind: Any, serial: Any) -> Any:
        return serial(number, lambda: kind("CartPole-v1"))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Collector(
            environment(GymEnv, SerialEnv), frames_per_batch=frames, total_frames=total
        ) as collector:
            ours = [batch.shape for batch in collector]
        from torchrl.envs import SerialEnv as TorchRLSerialEnv

        theirs = TorchRLCollector(
            environment(TorchRLGymEnv, TorchRLSerialEnv),
            frames_per_batch=frames,
            total_frames=total,
        )
        assert ours == [batch.shape for batch in theirs]
        theirs.shutdown()


def test_a_multiple_needs_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    with Collector("CartPole-v1", frames_per_batch=20, total_frames=40) as collector:
        assert sum(batch.numel() for batch in collector) == 40
    assert not recwarn


def test_shares_of_workers_are_stacked() -> None:
    with MultiSyncCollector(
        "CartPole-v1", frames_per_batch=20, total_frames=20, **TWO
    ) as collector:
        assert next(collector).shape == (2, 10)
    with MultiSyncCollector(
        "CartPole-v1", frames_per_batch=20, total_frames=20, cat_results=0, **TWO
    ) as collector:
        assert next(collector).shape == (20,)


@pytest.mark.parametrize(("kind", "envs"), [(Collector, 1), (MultiSyncCollector, 2)])
def test_batches_can_be_viewed_in_another_shape(kind: Any, envs: int) -> None:
    several = [SerialEnv(3, lambda: GymEnv("CartPole-v1"))] * envs
    with kind(
        several[0] if envs == 1 else several, None, frames_per_batch=60, total_frames=120
    ) as collector:
        for batch in collector:
            assert batch.batch_size == torch.Size([*([envs] if envs > 1 else []), 3, 20 // envs])
            assert batch.view(-1).batch_size == torch.Size([60])
            assert (batch.view(-1)["observation"] == batch.reshape(-1)["observation"]).all()


def test_shares_of_workers_are_even() -> None:
    with pytest.warns(
        UserWarning,
        match="frames_per_batch=20 cannot be split over 3 workers: batches have 21 frames",
    ):
        collector = MultiSyncCollector(["CartPole-v1"] * 3, frames_per_batch=20, total_frames=42)
    with collector:
        assert [batch.shape for batch in collector] == [(3, 7), (3, 7)]
        assert "mask" not in collector.fake_tensordict()["collector"].keys()


@pytest.mark.parametrize(
    ("kind", "arguments", "made"),
    [
        (MultiCollector, {"sync": True, **TWO}, MultiSyncCollector),
        (MultiCollector, {"sync": False, **TWO}, MultiAsyncCollector),
        (Collector, {"num_collectors": 2, "sync": True}, MultiSyncCollector),
        (Collector, {"backend": "direct"}, Collector),
    ],
)
def test_selectors_choose_classes_of_the_stand_in(
    kind: Any, arguments: dict[str, Any], made: type
) -> None:
    with kind("CartPole-v1", frames_per_batch=20, **arguments) as collector:
        assert type(collector) is made


def test_a_collector_warns_of_arguments_that_it_does_not_know() -> None:
    with pytest.warns(UserWarning, match="Collector has no argument reset_threshold"):
        Collector("CartPole-v1", frames_per_batch=20, reset_threshold=1).shutdown()


def test_workers_answer_in_a_pause() -> None:
    policy = TensorDictModule(torch.nn.Linear(4, 2), in_keys=["observation"], out_keys=["action"])
    with MultiSyncCollector("CartPole-v1", policy, frames_per_batch=20, **TWO) as collector:
        next(collector)
        with collector.pause():
            assert len(collector.map_fn("stats")) == 2
            collector.update_policy_weights_()
            with pytest.raises(RuntimeError, match="paused"):
                next(collector)
        assert collector.policy_version == 1 and next(collector).numel() == 20


def test_configurations_of_torchrl_are_taken() -> None:
    config = InferenceServerConfig(max_batch_size=3)
    devices = InferenceDeviceConfig(policy_device="cpu")
    arguments: dict[str, Any] = {
        "policy_backend": "threading",
        "device_config": devices,
        "frames_per_batch": 20,
        "total_frames": 20,
    }
    with AsyncBatchedCollector(["CartPole-v1"] * 3, server_config=config, **arguments) as collector:
        assert next(collector).numel() == 20
    with pytest.raises(ValueError, match="server_config stands for max_batch_size"):
        AsyncBatchedCollector(["CartPole-v1"], server_config=config, max_batch_size=2, **arguments)
    with pytest.warns(UserWarning, match="policy_backend has no effect"):
        AsyncBatchedCollector(
            ["CartPole-v1"], **{**arguments, "policy_backend": "multiprocessing"}
        ).shutdown()


def test_batches_have_a_dimension_for_each_level_of_environments() -> None:
    def four() -> Any:
        return SerialEnv(2, lambda: GymEnv("CartPole-v1"))

    with Collector(SerialEnv(3, four), frames_per_batch=60) as collector:
        batch = next(collector)
        assert batch.shape == (3, 2, 10) and batch.names == [None, None, "time"]
    with MultiSyncCollector([four, four], frames_per_batch=40) as collector:
        assert next(collector).shape == (2, 2, 10)


@pytest.mark.parametrize(
    "make",
    [lambda: GymEnv("Pendulum-v1"), lambda: lambda: GymEnv("Pendulum-v1"), lambda: "Pendulum-v1"],
)
def test_a_module_that_adds_noise_gets_the_environments_spec(make: Any) -> None:
    noise = AdditiveGaussianModule(spec=None)
    actor = TensorDictModule(torch.nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"])
    with Collector(make(), TensorDictSequential(actor, noise), frames_per_batch=20) as collector:
        assert next(collector)["action"].abs().max() <= 2
    assert noise.spec["action"].space.high.item() == 2


@pytest.mark.parametrize("name", ["rand_action", "rand_step"])
def test_an_environments_own_random_actions_are_a_policy(name: str) -> None:
    env = GymEnv("CartPole-v1")
    with Collector(env, getattr(env, name), frames_per_batch=20) as collector:
        assert next(collector)["action"].sum() == 20
