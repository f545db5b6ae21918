"""Profiles with PyTorch's own profiler in the workers."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from tensordict.nn import TensorDictModule

from counting import Counting, without_torch
from windrow.collectors import AsyncCollector, Collector, MultiSyncCollector

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")


def policy() -> TensorDictModule:
    """What is not lowered."""

    class Doubled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(2, 2)

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            # A decision by numbers.
            assert not observation.isnan().any()
            return (2 * self.net(observation)).argmax(-1)

    return TensorDictModule(Doubled(), ["observation"], ["action"])


def collected(
    kind: Any, folder: Path, batches: int = 4, **options: Any
) -> dict[int, list[dict[str, Any]]]:
    """Collects batches, and reads the trace of each worker."""
    collecting = {"placement": "processes", "policy": policy(), **options.pop("collecting", {})}
    env = options.pop("env", lambda: Counting())
    workers = options.pop("given", [env] * 2 if kind is MultiSyncCollector else env)
    path = str(folder / "worker_{worker_idx}.json")
    with kind(workers, frames_per_batch=40, total_frames=-1, **collecting) as collector:
        collector.enable_profile(save_path=path, **options)
        for _ in range(batches):
            next(collector)
        collector.disable_profile()
        config = collector.profile_config
    found = {worker: Path(config.get_save_path(worker)) for worker in config.workers}
    return {
        worker: json.loads(path.read_text())["traceEvents"]
        for worker, path in found.items()
        if path.exists()
    }


def named(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["name"] == name and event.get("ph") == "X"]


def check(events: list[dict[str, Any]], rollouts: int) -> None:
    """Torch's operations lie in the phases that windrow has recorded, on one axis of time."""
    phases, products = named(events, "Policy"), named(events, "aten::addmm")
    assert len(named(events, "Rollout")) == rollouts
    assert len(phases) == len(products) > 0
    for phase, product in zip(phases, sorted(products, key=lambda event: event["ts"]), strict=True):
        # Torch reads its clock at another time, and a busy machine may hold it up there.
        assert phase["ts"] - 20_000 < product["ts"] < phase["ts"] + phase["dur"] + 20_000


def test_a_process_records_what_torch_does_beside_the_phases(tmp_path) -> None:
    traces = collected(MultiSyncCollector, tmp_path, workers=[0, 1], activities=["cpu"])
    assert sorted(traces) == [0, 1]
    processes = set()
    for events in traces.values():
        check(events, 2)
        processes |= {event["pid"] for event in named(events, "aten::addmm")}
    assert len(processes) == 2 and os.getpid() not in processes


@pytest.mark.parametrize(
    ("kind", "placement"),
    [(Collector, "inline"), (AsyncCollector, "threads"), (MultiSyncCollector, "threads")],
)
def test_a_thread_records_what_torch_does_as_a_process_does(tmp_path, kind, placement) -> None:
    traces = collected(kind, tmp_path, activities=["cpu"], collecting={"placement": placement})
    assert list(traces) == [0]
    check(traces[0], 2)


def test_a_process_records_the_phases_alone_if_nothing_of_torch_is_asked_for(tmp_path) -> None:
    (events,) = collected(
        MultiSyncCollector, tmp_path, env=without_torch, collecting={"policy": None}
    ).values()
    assert named(events, "EnvStep") and not any(
        event["name"].startswith("aten") for event in events
    )


@pytest.mark.parametrize(
    "option",
    [
        {"record_shapes": False},
        {"profile_memory": True},
        {"with_flops": True},
        {"with_stack": False},
    ],
)
def test_any_option_of_torchs_profiler_asks_a_process_for_it(tmp_path, option) -> None:
    (events,) = collected(Collector, tmp_path, **option).values()
    products = named(events, "aten::addmm")
    assert products
    has_shapes = "Input Dims" in products[0]["args"]
    assert has_shapes == (option.get("record_shapes") is not False)


def test_on_trace_ready_is_called_in_the_process(tmp_path) -> None:
    def ready(profile: Any) -> None:
        names = {event.key for event in profile.key_averages()}
        (tmp_path / "names").write_text(f"{os.getpid()} {'aten::addmm' in names}")

    (events,) = collected(Collector, tmp_path, on_trace_ready=ready).values()
    process, found = (tmp_path / "names").read_text().split()
    assert int(process) != os.getpid() and found == "True"
    assert named(events, "EnvStep") and not named(events, "aten::addmm"), "the trace has the phases"


def test_a_profile_in_a_process_may_end_early(tmp_path) -> None:
    (events,) = collected(
        Collector, tmp_path, batches=3, num_rollouts=100, activities=["cpu"]
    ).values()
    check(events, 2)
    (tmp_path / "worker_0.json").unlink()
    assert not collected(Collector, tmp_path, batches=1, num_rollouts=100, activities=["cpu"])


def test_an_error_of_a_profiler_in_a_process_is_raised_and_ends_nothing(tmp_path) -> None:
    def broken(profile: Any) -> None:
        raise ValueError("no room for the trace")

    with Collector(
        lambda: Counting(), policy(), frames_per_batch=40, placement="processes"
    ) as collector:
        collector.enable_profile(save_path=tmp_path / "trace.json", on_trace_ready=broken)
        with pytest.raises(
            RuntimeError, match="the profiler of worker 0 failed: ValueError: no room for the trace"
        ):
            for _ in range(100):
                next(collector)
        assert next(collector).numel() == 40
    with Collector(
        lambda: Counting(), policy(), frames_per_batch=40, placement="inline"
    ) as collector:
        collector.enable_profile(save_path=tmp_path / "trace.json", on_trace_ready=broken)
        with pytest.raises(ValueError, match="no room for the trace"):
            for _ in range(100):
                next(collector)


def test_what_no_process_can_profile_is_told(tmp_path) -> None:
    def env() -> gym.Env:
        return Counting()

    with MultiSyncCollector(
        [env] * 2, policy(), frames_per_batch=40, placement="threads"
    ) as collector:
        with pytest.raises(ValueError, match=r"one worker in each process, got workers=\[0, 1\]"):
            collector.enable_profile(workers=[0, 1], activities=["cpu"])
        with pytest.raises(ValueError, match='activities must be a list of "cpu" and "cuda", got'):
            collector.enable_profile(activities=["gpu"])
