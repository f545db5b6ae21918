"""Document 001: the guide to collectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from seeds.buffers import BUFFERS, MakeBuffer
from seeds.conftest import Run
from windrow.collectors import VanillaWeightUpdater
from windrow.envs import GymEnv


def test_collector(run: Run, actor: Any) -> None:
    batches = []
    run(
        "001/1_collector",
        {"policy": actor, "train_step": batches.append},
        {"total_frames=1_000_000": "total_frames=3072"},
    )
    assert [batch.shape for batch in batches] == [(1024,)] * 3
    assert batches[0]["observation"].shape == (1024, 17)
    assert batches[0]["action"].shape == (1024, 6)
    assert batches[0]["next", "reward"].shape == (1024, 1)
    assert torch.equal(batches[1]["observation"][0], batches[0]["next", "observation"][-1])


def test_on_policy_loop(run: Run, actor: Any, critic: Any) -> None:
    # HalfCheetah observes doubles.
    actor, critic = actor.double(), critic.double()
    before = {name: value.clone() for name, value in actor.named_parameters()}
    changes = {"total_frames=500_000": "total_frames=4096, seed=0"}
    names = run("001/2_on_policy_loop", {"actor": actor, "critic": critic}, changes)
    assert names["batch"].shape == (2048,)
    assert names["batch"]["advantage"].shape == (2048, 1)
    assert names["total"].isfinite()
    assert any(not torch.equal(before[name], value) for name, value in actor.named_parameters())
    # The estimate of mean and spread is from random frames: about 0 and 1.
    assert names["batch"]["observation"].mean().abs() < 1


def test_async_collector(run: Run, actor: Any) -> None:
    names = run(
        "001/3_async_collector",
        {"GymEnv": GymEnv, "policy": actor},
        {"total_frames=1_000_000": "total_frames=2048"},
    )
    assert [batch.shape for batch in names["collector"]] == [(1024,)] * 2


def test_multi_sync_collector(run: Run, actor: Any, critic: Any) -> None:
    actor, critic = actor.double(), critic.double()
    loss_fn = ClipPPOLoss(actor_network=actor, critic_network=critic)
    names = {
        "GymEnv": GymEnv,
        "policy": actor,
        "loss_fn": loss_fn,
        "advantage_fn": GAE(value_network=critic, gamma=0.99, lmbda=0.95),
        "optimizer": torch.optim.Adam(loss_fn.parameters(), lr=3e-4),
    }
    names = run(
        "001/4_multi_sync_collector", names, {"total_frames=2_000_000": "total_frames=4096"}
    )
    assert names["batch"].batch_size == torch.Size([2048])
    assert len(names["batch"]["collector", "traj_ids"].unique()) == 8
    assert names["losses"]["loss_objective"].isfinite()
    assert names["collector"].policy_version == 2


@pytest.mark.parametrize("make_buffer", BUFFERS)
def test_multi_async_collector(run: Run, actor: Any, make_buffer: MakeBuffer) -> None:
    names = run(
        "001/5_multi_async_collector",
        {"GymEnv": GymEnv, "policy": actor, "replay_buffer": make_buffer()},
        {"total_frames=2_000_000": "total_frames=2048", "10_000": "1000"},
    )
    assert names["batch"].shape == (256,)
    assert len(names["replay_buffer"]) == 2048
    assert names["sample"].shape == (256,)
    assert names["sample"]["action"].shape == (256, 6)
    assert names["collector"].policy_version > 0


def test_weight_updater(run: Run, actor: Any) -> None:
    names = run(
        "001/6_weight_updater",
        {"GymEnv": GymEnv, "policy": actor},
        {"total_frames=1_000_000": "total_frames=2048"},
    )
    assert names["VanillaWeightUpdater"] is VanillaWeightUpdater
    assert names["batch"].shape == (1024,)
    assert names["collector"].policy_version == 2


def test_evaluator(run: Run, actor: Any, capsys: pytest.CaptureFixture[str]) -> None:
    names = run(
        "001/7_evaluator",
        {"GymEnv": GymEnv, "policy": actor},
        {"total_frames=1_000_000": "total_frames=2048", "max_steps=1000": "max_steps=50"},
    )
    result = names["evaluator"].wait(60)
    assert result["eval/num_episodes"] == 5
    assert result["eval/episode_length"] == 50
    assert result["eval/step"] == 0
    assert "eval/reward" in capsys.readouterr().out


def test_profile(run: Run, actor: Any) -> None:
    names = run(
        "001/8_profile",
        {"GymEnv": GymEnv, "policy": actor},
        {"total_frames=100_000": "total_frames=6144"},
    )
    assert [batch.shape for batch in names["collector"]] == [(1024,)] * 6
    names["collector"].shutdown()
    assert sorted(path.name for path in Path("traces").iterdir()) == [
        "worker_0.json",
        "worker_1.json",
    ]
    assert json.loads(Path("traces/worker_0.json").read_text())["traceEvents"]
