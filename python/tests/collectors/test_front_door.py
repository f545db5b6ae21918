"""What TorchRL's `Collector` takes beside its environment and policy."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import pytest
import torch
from torchrl.modules import RandomPolicy as TorchRLRandomPolicy

from cartpole import cartpole
from windrow.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from windrow.envs import GymEnv
from windrow.modules import RandomPolicy

IDS = ["CartPole-v1"] * 2


@pytest.mark.parametrize(
    ("arguments", "kind", "workers"),
    [
        ({"backend": "direct"}, Collector, 1),
        ({"create_env_fn": IDS[:1]}, Collector, 1),
        ({"num_collectors": 2}, MultiAsyncCollector, 2),
        ({"num_collectors": 2, "sync": True}, MultiSyncCollector, 2),
        ({"num_collectors": 1}, MultiAsyncCollector, 1),
        ({"backend": "process"}, MultiAsyncCollector, 1),
        ({"backend": "process", "create_env_fn": IDS, "sync": True}, MultiSyncCollector, 2),
        (
            {
                "backend": "multiprocessing",
                "backend_options": {"cat_results": "stack"},
                "num_collectors": 2,
                "sync": True,
            },
            MultiSyncCollector,
            2,
        ),
    ],
    ids=str,
)
def test_selectors_choose_the_class(arguments: dict[str, Any], kind: type, workers: int) -> None:
    with Collector(
        **{"create_env_fn": "CartPole-v1", "frames_per_batch": 20, "total_frames": 40, **arguments}
    ) as collector:
        assert type(collector) is kind and collector.stats()["workers"] == workers
        batches = [batch.shape for batch in collector]
    assert batches == [(2, 10) if "backend_options" in arguments else (20,)] * 2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"backend": "rpc"},
            ValueError,
            'backend must be "direct", "process" or "ray", got \'rpc\'',
        ),
        ({"num_collectors": 0}, ValueError, "num_collectors must be 1 or more, got 0"),
        ({"num_collectors": True}, TypeError, "num_collectors must be a whole number"),
        (
            {"num_collectors": 3, "create_env_fn": IDS},
            ValueError,
            "num_collectors=3, but create_env_fn is a list of 2",
        ),
        ({"num_collectors": 2, "sync": 1}, TypeError, "sync must be True or False, got 1"),
        (
            {"num_collectors": 2, "backend_options": {"sync": True}},
            ValueError,
            "backend_options has sync, which Collector takes",
        ),
        (
            {"num_collectors": 2, "backend_options": {"frames_per_batch": 2}},
            ValueError,
            "backend_options has frames_per_batch",
        ),
        (
            {"backend": "direct", "num_collectors": 2},
            ValueError,
            "num_collectors=2 is for several workers",
        ),
        ({"sync": False}, ValueError, "sync=False is for several workers"),
        ({"backend_options": {}}, ValueError, "backend_options={} is for several workers"),
        ({"num_collectors": 2, "nun_workers": 1}, TypeError, "has no argument nun_workers"),
    ],
    ids=str,
)
def test_selectors_that_contradict_each_other(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Collector(**{"create_env_fn": "CartPole-v1", "frames_per_batch": 20, **arguments})


def test_a_subclass_is_what_it_is() -> None:
    class Mine(Collector):
        pass

    assert type(Mine("CartPole-v1", frames_per_batch=10)) is Mine
    with pytest.raises(ValueError, match="num_collectors=2 is for several workers"):
        Mine("CartPole-v1", frames_per_batch=10, num_collectors=2)
    assert "frames_per_batch" in inspect.signature(Collector).parameters


@pytest.mark.parametrize("cat_results", ["stack", 0, -1])
def test_each_batch_of_an_asynchronous_collector_is_one_workers(cat_results: Any) -> None:
    with MultiAsyncCollector(
        IDS, frames_per_batch=10, total_frames=20, cat_results=cat_results
    ) as collector:
        assert [batch.shape for batch in collector] == [(10,), (10,)]


@pytest.mark.parametrize("kind", [RandomPolicy, TorchRLRandomPolicy])
def test_a_random_policy_gets_the_spec_of_the_environment(kind: Any) -> None:
    policy = kind()
    with Collector(
        GymEnv("CartPole-v1"), policy, frames_per_batch=10, total_frames=10
    ) as collector:
        assert next(collector).numel() == 10
        assert policy.action_spec == collector.env.action_spec
    with Collector(
        cartpole, policy_factory=kind, frames_per_batch=10, total_frames=10
    ) as collector:
        assert next(collector)["action"].shape[0] == 10


@pytest.mark.parametrize(
    ("arguments", "device"),
    [({"device": "cpu"}, "cpu"), ({"policy_device": "cpu"}, "cpu"), ({}, None)],
)
def test_policies_are_told_the_device_that_was_named(
    arguments: dict[str, str], device: str | None
) -> None:
    seen = []

    def policy(td: Any) -> Any:
        seen.append(td.device)
        return td.set("action", torch.zeros(td.batch_size, dtype=torch.int64))

    with Collector(
        "CartPole-v1", policy, frames_per_batch=5, total_frames=5, **arguments
    ) as collector:
        next(collector)
    assert set(seen) == {None if device is None else torch.device(device)}


class Stopped:
    """Says that batches are cut short, as long as the event is set."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def collection_stopped(self) -> bool:
        return self.event.is_set()


def test_anything_that_says_so_cuts_batches_short() -> None:
    interruptor = Stopped()
    interruptor.event.set()
    with Collector(
        "CartPole-v1", frames_per_batch=50, total_frames=150, interruptor=interruptor
    ) as collector:
        assert collector.interruptor is interruptor
        assert int((next(collector)["collector", "traj_ids"] != -1).sum()) == 1
        interruptor.event.clear()
        assert int((next(collector)["collector", "traj_ids"] != -1).sum()) == 50


def test_arguments_can_be_read_again() -> None:
    with Collector(
        "CartPole-v1", frames_per_batch=50, max_frames_per_traj=7, init_random_frames=50
    ) as collector:
        assert (
            collector.max_frames_per_traj,
            collector.init_random_frames,
            collector.split_trajs,
        ) == (7, 50, False)
        assert collector.worker_idx is None
        assert collector.storing_device is None and collector.closed is False
        with pytest.raises(AttributeError, match="object has no attribute 'colour'"):
            collector.colour
    assert collector.closed is True
