"""Workers in actors of Ray, and what a collector with them has from the engine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from counter import Counter
from torch import nn

import windrow
from cartpole import cartpole
from windrow.collectors import MultiSyncCollector, RayCollector, RayWeightUpdater
from windrow.data import LazyTensorStorage, ReplayBuffer
from windrow.ray import RayLauncher, _session
from windrow.ray._collector import _shared_claims

pytestmark = pytest.mark.usefixtures("cluster")

Build = Callable[..., RayCollector]


class Recording(RayLauncher):
    """Notes how workers have ended."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.ends: list[str] = []

    def start(self, invitation: str) -> Any:
        started, ends = super().start(invitation), self.ends
        ended = started.ended

        def noted() -> str | None:
            if (how := ended()) is not None:
                ends.append(how)
            return how

        started.ended = noted  # type: ignore[method-assign]
        return started


def batches(policy_backend: str, launcher: Any) -> list[Any]:
    """Batches of two workers, each with other weights than the one before."""
    torch.manual_seed(3)
    policy = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    options: dict[str, Any] = {
        "frames_per_batch": 40,
        "total_frames": 120,
        "seed": 5,
        "policy_backend": policy_backend,
    }
    found = []
    with MultiSyncCollector(
        [cartpole] * 2, policy, placement="processes", launcher=launcher, **options
    ) as collector:
        for batch in collector:
            found.append(batch.clone())
            with torch.no_grad():
                for weights in policy.parameters():
                    weights.add_(0.25)
            collector.update_policy_weights_()
    return found


@pytest.mark.parametrize("policy_backend", ["native", "torch"])
def test_workers_in_actors_deliver_what_processes_deliver_and_end_by_themselves(
    policy_backend: str,
) -> None:
    launcher = Recording({"num_cpus": 0.2})
    here, there = batches(policy_backend, None), batches(policy_backend, launcher)
    assert len(here) == len(there) == 3
    for one, other in zip(here, there, strict=True):
        assert (one == other).all()
    assert launcher.ends == ["its actor returned with status 0"] * 2
    assert launcher.places() == [(None, None)] * 2


def test_a_worker_that_ray_kills_is_replaced_and_no_row_is_lost_or_repeated(cluster: Any) -> None:
    launcher = Recording([{"num_cpus": 0.2}] * 2)
    envs = [partial(Counter, None), partial(Counter, None)]
    frames: dict[float, list[float]] = {}
    with MultiSyncCollector(
        envs, frames_per_batch=20, total_frames=1000, seed=3, on_loss=1, launcher=launcher
    ) as collector:
        first = launcher.actors[0]
        for number, batch in enumerate(collector):
            for seed, step in batch["next", "observation"].tolist():
                frames.setdefault(seed, []).append(step)
            if number == 5:
                cluster.kill(first)
        assert collector.stats()["frames"] == 1000 and collector.stats()["restarts"] == 1
        assert (
            "its actor was lost: The actor is dead because it was killed by `ray.kill`"
            in collector.losses()[0]
        )
    assert sum(map(len, frames.values())) == 1000 and len(frames) == 3
    assert all(steps == list(range(1, len(steps) + 1)) for steps in frames.values())


def test_an_actor_that_cannot_start_is_an_error_that_says_why() -> None:
    with pytest.raises(Exception, match="an actor claims 50 CPU, but Ray has 2"):
        MultiSyncCollector(
            ["CartPole-v1"], frames_per_batch=10, launcher=RayLauncher({"num_cpus": 50})
        )
    with pytest.raises(Exception, match="remote_configs has 1 entries, and none for worker 1"):
        MultiSyncCollector(
            ["CartPole-v1"] * 2, frames_per_batch=10, launcher=RayLauncher([{"num_cpus": 0.1}])
        )


def test_an_actor_that_waits_for_resources_says_for_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_session, "TELL_AFTER", 0.5)
    claims = "it claims 2 CPU, and of what Ray has, 0 of 2 CPU are free"
    with MultiSyncCollector(
        ["CartPole-v1"], frames_per_batch=10, launcher=RayLauncher({"num_cpus": 2})
    ) as collector:
        with (
            pytest.warns(
                windrow.Warning, match=f"Ray has not started the actor of worker 0 yet: {claims}"
            ),
            pytest.raises(Exception, match=f"Ray has not started its actor within 2 s: {claims}"),
        ):
            MultiSyncCollector(
                ["CartPole-v1"],
                frames_per_batch=10,
                launcher=RayLauncher({"num_cpus": 2}, patience=2),
            )
        assert next(collector).shape == (10,)


def test_one_launcher_serves_several_collectors() -> None:
    launcher = RayLauncher({"num_cpus": 0.2})
    options: dict[str, Any] = {"frames_per_batch": 20, "total_frames": 60, "launcher": launcher}
    first, second = (
        MultiSyncCollector(["CartPole-v1"] * 2, seed=seed, **options) for seed in (1, 2)
    )
    one, other = next(first), next(second)
    assert not torch.equal(one["observation"], other["observation"])
    first.shutdown()
    assert sum(batch.numel() for batch in second) == 40
    second.shutdown()
    with MultiSyncCollector(["CartPole-v1"] * 2, seed=1, **options) as third:
        assert torch.equal(next(third)["observation"], one["observation"])


def test_actors_are_profiled_and_hooks_run_here(build: Build, tmp_path: Path) -> None:
    seen: list[int] = []
    collector = build(
        partial(Counter, None),
        sync=True,
        post_collect_hook=lambda batch: seen.append(batch.numel()),
    )
    collector.enable_profile(
        workers=[1],
        num_rollouts=2,
        warmup_rollouts=1,
        save_path=str(tmp_path / "worker_{worker}.json"),
    )
    for _ in range(4):
        next(collector)
    assert seen == [20] * 4
    summary = collector.profile_summary()
    assert list(summary) == [1] and sum(summary[1].values()) > 0
    collector.disable_profile()
    (trace,) = tmp_path.iterdir()
    assert json.loads(trace.read_text())


def test_whole_trajectories_are_written_in_parts(build: Build) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=10)
    written: list[int] = []
    extend = buffer._write

    def noted(batch: Any, *args: Any) -> Any:
        written.append(batch.numel())
        return extend(batch, *args)

    buffer._write = noted  # type: ignore[method-assign]
    options: dict[str, Any] = {
        "trajs_per_batch": 4,
        "trajs_per_write": 2,
        "postproc": lambda batch: batch,
    }
    collector = build(
        partial(Counter, None), sync=True, replay_buffer=buffer, total_frames=200, **options
    )
    assert all(batch is None for batch in collector)
    assert written and set(written) == {20} and sum(written) == buffer.write_count


def test_weights_follow_the_policy_as_often_as_was_asked_for(build: Build) -> None:
    for options, versions in (
        ({"update_after_each_batch": True}, [0, 1, 2, 3, 4]),
        ({"max_weight_update_interval": 1}, [0, 0, 1, 1, 2]),
        ({}, [0] * 5),
    ):
        collector = build(
            "CartPole-v1", nn.Linear(4, 2), sync=True, track_policy_version=True, **options
        )
        assert [next(collector)["policy_version"].unique().item() for _ in range(5)] == versions
        collector.shutdown()


def test_an_updater_of_actors_publishes_one_version_to_all_of_them(build: Build) -> None:
    policy = nn.Linear(4, 2)
    collector = build(
        "CartPole-v1", policy, sync=True, weight_updater=RayWeightUpdater, track_policy_version=True
    )
    assert collector.weight_updater.remote_collectors is collector.remote_collectors
    collector.update_policy_weights_()
    assert next(collector)["policy_version"].unique().tolist() == [1]
    collector.update_policy_weights_(policy, worker_ids=[1])
    assert next(collector)["policy_version"].unique().tolist() == [1, 2]


def test_arguments_of_actors_are_those_of_the_collector(build: Build) -> None:
    each = [
        {"create_env_kwargs": {"pace": 0.0}, "max_frames_per_traj": 4},
        {"create_env_kwargs": {"pace": 0.001}, "max_frames_per_traj": 4},
    ]
    collector = build(Counter, sync=True, collector_kwargs=each)
    assert collector.get_distant_attr("env.pace") == [0.0, 0.001]
    assert next(collector)["step_count"].max() == 3
    with pytest.raises(
        ValueError, match="collector_kwargs have several values of max_frames_per_traj"
    ):
        build(Counter, collector_kwargs=[{"max_frames_per_traj": 3}, {"max_frames_per_traj": 4}])
    with pytest.raises(
        TypeError,
        match=r"collector_kwargs has no argument max_frames_per_trai \(did you mean max_frames_per_traj\?\)",
    ):
        build(Counter, collector_kwargs={"max_frames_per_trai": 3})

    class Own(MultiSyncCollector):
        pass

    with pytest.raises(
        TypeError, match="actors run workers of one collector, and none of their own"
    ):
        build(Counter, collector_class=Own)


def test_workers_of_one_actor_share_what_it_claims() -> None:
    config = {
        "num_cpus": 16,
        "num_gpus": 1,
        "memory": 1000,
        "resources": {"licence": 4},
        "max_restarts": 0,
    }
    assert _shared_claims(config, 1) == config
    assert _shared_claims(config, 8) == {
        "num_cpus": 2,
        "num_gpus": 0.125,
        "memory": 125,
        "resources": {"licence": 0.5},
        "max_restarts": 0,
    }
    assert _shared_claims({"num_cpus": 5}, 2) == {"num_cpus": 3}
    assert _shared_claims({}, 2) == {"num_cpus": 0.5}


SHUTS_RAY_DOWN = """
import ray
from windrow import WorkerError
from windrow.ray import RayCollector

ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)
collector = RayCollector(["CartPole-v1"] * 2, sync=True, frames_per_batch=20, total_frames=-1)
next(collector)
ray.shutdown()
try:
    for _ in collector:
        pass
except WorkerError as error:
    assert "Ray was shut down" in str(error), error
    print("told")
collector.shutdown(raise_on_error=False)
print("ended")
"""


def test_a_program_goes_on_that_shuts_ray_down_below_a_collector() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SHUTS_RAY_DOWN],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ended.stdout.split() == ["told", "ended"] and ended.returncode == 0, ended.stderr
