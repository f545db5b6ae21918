"""Document 000: the page on single-node collectors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from seeds.buffers import BUFFERS, MakeBuffer, Time
from seeds.conftest import Run
from windrow import collectors
from windrow.collectors import Collector, MultiAsyncCollector, MultiCollector, MultiSyncCollector


def test_whole_trajectories(run: Run, policy: Any) -> None:
    shapes = []

    def compute_loss(batch: Any, valid: torch.Tensor) -> torch.Tensor:
        shapes.append(batch.shape)
        assert valid.shape == batch.shape
        ends = valid.sum(-1) - 1
        assert batch["next", "done"][range(4), ends].all()
        return batch["next", "reward"][valid].mean()

    names = run(
        "000/1_whole_trajectories",
        {"my_policy": policy, "compute_loss": compute_loss},
        {"total_frames=10000": "total_frames=1000"},
    )
    assert len(shapes) >= 3
    assert all(shape[0] == 4 for shape in shapes)
    assert names["loss"] == 1
    assert names["collector"].stats()["frames"] == 1000


def test_async_batched_collector(run: Run) -> None:
    names = run(
        "000/2_async_batched_collector", changes={"total_frames=10000": "total_frames=1000"}
    )
    assert names["data"].shape == (200,) and names["collector"].stats()["frames"] == 1000
    # Logits act by the largest.
    chosen = names["policy"].module(names["data"]["observation"]).argmax(-1)
    assert (names["data"]["action"].argmax(-1) == chosen).float().mean() > 0.9


def test_multi_collector(run: Run, policy: Any) -> None:
    names = run(
        "000/3_multi_collector", {"my_policy": policy}, {"total_frames=100000": "total_frames=3000"}
    )
    assert type(names["sync_collector"]) is MultiSyncCollector
    assert type(names["async_collector"]) is MultiAsyncCollector
    assert names["data"].shape == (1000,)
    assert names["sync_collector"].stats()["frames"] == 3000
    assert names["async_collector"].next().shape == (1000,)


@pytest.mark.parametrize("make_buffer", BUFFERS)
def test_start(run: Run, make_env: Any, policy: Any, make_buffer: MakeBuffer) -> None:
    rb = make_buffer()
    names = run(
        "000/4_start",
        {
            "Collector": Collector,
            "time": Time(rb, 1000),
            "rb": rb,
            "optim_steps": 5,
            "make_env": make_env,
            "policy": policy,
        },
        {"...": "make_env, policy, frames_per_batch=100, total_frames=1000"},
    )
    assert names["data"].shape == (32,)
    assert names["data"]["observation"].shape == (32, 4)
    names["collector"].async_shutdown()
    assert len(rb) == 1000


def test_start_with_slices(run: Run, make_env: Any) -> None:
    from windrow.data import LazyTensorStorage, ReplayBuffer, SliceSampler

    names = {
        "MultiCollector": MultiCollector,
        "ReplayBuffer": ReplayBuffer,
        "LazyTensorStorage": LazyTensorStorage,
        "SliceSampler": SliceSampler,
        "make_env": make_env,
        "policy": None,
        "train_steps": 5,
    }
    names = run("000/5_start_with_slices", names)
    batch = names["batch"]
    assert batch.shape == (256,)
    slices = batch.reshape(8, 32)
    ids = slices["collector", "traj_ids"]
    assert (ids == ids[:, :1]).all()
    assert torch.equal(slices["observation"][:, 1:], slices["next", "observation"][:, :-1])


@pytest.mark.parametrize(
    ("legacy", "name"),
    [
        ("DataCollectorBase", "BaseCollector"),
        ("SyncDataCollector", "Collector"),
        ("aSyncDataCollector", "AsyncCollector"),
        ("_MultiDataCollector", "MultiCollector"),
        ("MultiSyncDataCollector", "MultiSyncCollector"),
        ("MultiaSyncDataCollector", "MultiAsyncCollector"),
    ],
)
def test_legacy_names(legacy: str, name: str) -> None:
    assert getattr(collectors, legacy) is getattr(collectors, name)
