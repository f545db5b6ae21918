"""Document 004: the reference of SyncDataCollector."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from seeds.conftest import Run
from windrow.collectors import SyncDataCollector


def example(run: Run) -> dict[str, Any]:
    return run("004/1_sync_data_collector", {"SyncDataCollector": SyncDataCollector})


def test_sync_data_collector(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    names = example(run)
    data = names["data"]
    assert data.shape == (200,)
    assert data["action"].shape == (200, 1)
    assert data["observation"].shape == (200, 3)
    assert data["step_count"].max() == 49
    # What the document shows, and the flags that it leaves out.
    root = {"action", "collector", "done", "next", "observation", "step_count", "truncated"}
    following = {"done", "observation", "reward", "step_count", "truncated"}
    assert set(data.keys()) == root | {"terminated"}
    assert set(data["next"].keys()) == following | {"terminated"}
    assert set(data["collector"].keys()) == {"traj_ids"}
    assert "collector" not in names
    assert "step_count: Tensor(shape=torch.Size([200, 1])" in capsys.readouterr().out


def test_time_dimension(run: Run) -> None:
    run("004/2_time_dimension", {"data": example(run)["data"]})


def test_set_seed(run: Run) -> None:
    with pytest.warns(UserWarning, match="batches have 102 frames"):
        names = run("004/3_set_seed", {"SyncDataCollector": SyncDataCollector})
    assert names["out_seed"] == 6
    assert [batch.shape for batch in names["collector"]] == [(6, 17), (6, 17), (6, 16)]


@pytest.mark.parametrize(
    "argument",
    [
        "frames_per_batch",
        "total_frames",
        "device",
        "storing_device",
        "policy_device",
        "env_device",
        "create_env_kwargs",
        "max_frames_per_traj",
        "init_random_frames",
        "reset_at_each_iter",
        "postproc",
        "split_trajs",
        "exploration_type",
        "exploration_mode",
        "return_same_td",
        "reset_when_done",
        "interruptor",
        "set_truncated",
    ],
)
def test_arguments(argument: str) -> None:
    # The class of one worker hands its arguments on.
    assert argument in inspect.signature(SyncDataCollector.__mro__[1].__init__).parameters


@pytest.mark.parametrize(
    "method",
    ["iterator", "load_state_dict", "rollout", "set_seed", "state_dict", "update_policy_weights_"],
)
def test_methods(method: str) -> None:
    assert callable(getattr(SyncDataCollector, method))
