from collections.abc import Sequence
from pathlib import Path
from typing import Any

from windrow._arguments import Arguments, argument, ignored
from windrow._numbers import at_least

_NO_TORCH = "the phases of windrow's own loop are recorded, not the operations of torch"


class ProfileConfig(Arguments):
    """Which workers are profiled, and for how many batches.

    Raises:
        ValueError: a number is negative.
    """

    workers: Sequence[int] = argument("numbers of workers", default=(0,), check=lambda _, workers: list(workers or [0]))
    num_rollouts: int = argument("profile a worker for so many batches", default=3, check=at_least(1))
    warmup_rollouts: int = argument("how many of these are not recorded, at the start", default=1, check=at_least(0))
    save_path: str | Path | None = argument(
        "of the trace; ``{worker_idx}`` stands for the number of the worker. Its folder is made", default=None
    )
    activities: list[str] | None = ignored(_NO_TORCH, default=None)
    record_shapes: bool = ignored(_NO_TORCH, default=True)
    profile_memory: bool = ignored(_NO_TORCH, default=False)
    with_stack: bool = ignored(_NO_TORCH, default=True)
    with_flops: bool = ignored(_NO_TORCH, default=False)
    on_trace_ready: Any = ignored("a trace is written to save_path", default=None)

    def template(self) -> str:
        """The path, with ``{worker_idx}`` for the number of a worker."""
        return "./collector_profile_{worker_idx}.json" if self.save_path is None else str(self.save_path)

    def get_save_path(self, worker_idx: int) -> str:
        """The path of the trace of worker ``worker_idx``."""
        return self.template().replace("{worker_idx}", str(worker_idx))

    def should_profile_worker(self, worker_idx: int) -> bool:
        """Whether worker ``worker_idx`` is profiled."""
        return worker_idx in self.workers

    def get_activities(self) -> list[Any]:
        """The activities as members of torch's ``ProfilerActivity``, without CUDA where there is none."""
        import torch
        from torch.profiler import ProfilerActivity

        known = {"cpu": ProfilerActivity.CPU}
        if torch.cuda.is_available():
            known["cuda"] = ProfilerActivity.CUDA
        return [known[name] for name in self.activities or ["cpu", "cuda"] if name in known]
