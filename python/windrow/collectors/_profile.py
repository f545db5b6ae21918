from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ProfileConfig:
    """Which workers are profiled, and for how long.

    Attributes:
        workers: numbers of workers; None is the first.
        num_rollouts: batches after which a worker is no longer looked at.
        warmup_rollouts: how many of these are not recorded.
        save_path: of the trace; ``{worker_idx}`` stands for the number of the worker.
    """

    workers: list[int] | None = None
    num_rollouts: int = 3
    warmup_rollouts: int = 1
    save_path: str | Path | None = None
    activities: list[str] = field(default_factory=lambda: ["cpu"])
    record_shapes: bool = True
    profile_memory: bool = False
    with_stack: bool = True
    with_flops: bool = False
    on_trace_ready: Any = None

    def template(self) -> str:
        """The path before the number of a worker is filled in."""
        return "./collector_profile_{worker_idx}.json" if self.save_path is None else str(self.save_path)

    def get_save_path(self, worker_idx: int) -> str:
        """Where the trace of worker ``worker_idx`` goes."""
        return self.template().replace("{worker_idx}", str(worker_idx))

    def should_profile_worker(self, worker_idx: int) -> bool:
        """Whether worker ``worker_idx`` is profiled."""
        return worker_idx in (self.workers or [0])
