from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windrow._numbers import whole
from windrow._passed_over import Fixed

_NO_TORCH = "the phases of windrow's own loop are recorded, not the operations of torch"

#: What TorchRL's profiles can be told besides.
WITHOUT_EFFECT: dict[str, Fixed] = {
    "activities": (["cpu", "cuda"], _NO_TORCH),
    "record_shapes": (True, _NO_TORCH),
    "profile_memory": (False, _NO_TORCH),
    "with_stack": (True, _NO_TORCH),
    "with_flops": (False, _NO_TORCH),
    "on_trace_ready": (None, "a trace is written to save_path"),
}


@dataclass(frozen=True)
class ProfileConfig:
    """Which workers are profiled, and for how long.

    Attributes:
        workers: numbers of workers.
        num_rollouts: batches after which a worker is no longer looked at.
        warmup_rollouts: how many of these are not recorded.
        save_path: of the trace; ``{worker_idx}`` stands for the number of the worker.
        activities: of torch's profiler, which is not used, as are those that follow.
        record_shapes: without effect.
        profile_memory: without effect.
        with_stack: without effect.
        with_flops: without effect.
        on_trace_ready: without effect.

    Raises:
        ValueError: nothing would be recorded, or a number is negative.
    """

    workers: list[int] = field(default_factory=lambda: [0])
    num_rollouts: int = 3
    warmup_rollouts: int = 1
    save_path: str | Path | None = None
    activities: list[str] = field(default_factory=lambda: ["cpu", "cuda"])
    record_shapes: bool = True
    profile_memory: bool = False
    with_stack: bool = True
    with_flops: bool = False
    on_trace_ready: Any = None

    def __post_init__(self) -> None:
        whole("num_rollouts", self.num_rollouts, 1)
        whole("warmup_rollouts", self.warmup_rollouts, 0)
        if self.num_rollouts <= self.warmup_rollouts:
            raise ValueError(
                f"num_rollouts={self.num_rollouts} must be greater than warmup_rollouts={self.warmup_rollouts}, or nothing is "
                "recorded"
            )

    def template(self) -> str:
        """The path before the number of a worker is filled in."""
        return "./collector_profile_{worker_idx}.json" if self.save_path is None else str(self.save_path)

    def get_save_path(self, worker_idx: int) -> str:
        """Where the trace of worker ``worker_idx`` goes."""
        return self.template().replace("{worker_idx}", str(worker_idx))

    def should_profile_worker(self, worker_idx: int) -> bool:
        """Whether worker ``worker_idx`` is profiled."""
        return worker_idx in self.workers

    def get_activities(self) -> list[Any]:
        """:attr:`activities` as members of torch's ``ProfilerActivity``, without CUDA where there is none."""
        import torch
        from torch.profiler import ProfilerActivity

        known = {"cpu": ProfilerActivity.CPU}
        if torch.cuda.is_available():
            known["cuda"] = ProfilerActivity.CUDA
        return [known[name] for name in self.activities if name in known]
