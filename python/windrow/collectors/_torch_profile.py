"""PyTorch's profiler in a worker, beside the engine's recorder."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity


class TorchProfiler:
    """Records with PyTorch's profiler what the engine records the phases of. The engine calls the
    methods in the worker's thread.

    Args:
        options: arguments of ``torch.profiler.profile``, by their names in :class:`ProfileConfig`.
        warmup: rollouts that are not recorded, at the start.
        rollouts: rollouts in all.
        worker: number of the worker.
    """

    def __init__(self, options: dict[str, Any], warmup: int, rollouts: int, worker: int) -> None:
        given = {**options, "activities": known_activities(options["activities"])}
        self._merges = given["on_trace_ready"] is None
        # Its last step would have the schedule run on.
        schedule = torch.profiler.schedule(
            wait=0, warmup=warmup, active=rollouts - warmup, repeat=1
        )
        self._profile = torch.profiler.profile(schedule=schedule, **given)

    def begin(self) -> None:
        """The first rollout begins."""
        self._profile.start()

    def step(self) -> None:
        """A rollout has ended."""
        self._profile.step()

    def end(self, path: Path) -> None:
        """The recording is over. What was recorded is added to the trace of the phases at ``path``,
        if there is one.
        """
        self._profile.stop()
        if not self._merges or not os.path.exists(path):
            return
        with tempfile.TemporaryDirectory(dir=Path(path).parent) as folder:
            own = os.path.join(folder, "torch.json")
            self._profile.export_chrome_trace(own)
            merged = os.path.join(folder, "merged.json")
            with open(path) as phases, open(own) as operations, open(merged, "w") as out:
                json.dump(_merged(json.load(phases), json.load(operations)), out)
            os.replace(merged, path)


def known_activities(names: Sequence[str] | None) -> list[ProfilerActivity]:
    """Activities by name, all by default, without CUDA where there is none."""
    known = {"cpu": ProfilerActivity.CPU}
    if torch.cuda.is_available():
        known["cuda"] = ProfilerActivity.CUDA
    return [known[name] for name in names or known if name in known]


def _merged(trace: dict[str, Any], added: dict[str, Any]) -> dict[str, Any]:
    """``trace`` with the events of ``added``, on one axis of time."""
    # Times are microseconds since a base of each trace.
    shift = (added.get("baseTimeNanoseconds", 0) - trace["baseTimeNanoseconds"]) / 1000
    for event in added["traceEvents"]:
        if "ts" in event:
            event["ts"] += shift
    about = {
        name: value
        for name, value in added.items()
        if name not in ("traceEvents", "baseTimeNanoseconds", "displayTimeUnit")
    }
    return {**about, **trace, "traceEvents": trace["traceEvents"] + added["traceEvents"]}
