from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from windrow._arguments import Arguments, argument, fields_of
from windrow._lazy import module
from windrow._numbers import at_least

_torch_profile = module("windrow.collectors._torch_profile")
#: Arguments of torch's profiler. Any of them that is given another value than its default asks for
#: it.
_OF_TORCH = (
    "activities",
    "record_shapes",
    "profile_memory",
    "with_stack",
    "with_flops",
    "on_trace_ready",
)
_ACTIVITIES = ("cpu", "cuda")


def _activities(name: str, given: Sequence[str]) -> list[str]:
    unknown = [one for one in given if one not in _ACTIVITIES]
    if isinstance(given, str) or unknown or not given:
        raise ValueError(f'{name} must be a list of "cpu" and "cuda", got {given!r}')
    return list(given)


class ProfileConfig(Arguments):
    """Which workers are profiled, and for how many of their shares of batches.

    The phases of windrow's own loop are always recorded. PyTorch's profiler records as well, in the
    worker, once one of its arguments, those from ``activities`` on, is given another value than its
    default. It records the thread of the worker: there can be one such worker in each process.

    Raises:
        ValueError: a number is negative, or there is no such activity.
    """

    workers: Sequence[int] = argument(
        "numbers of workers", default=(0,), check=lambda _, workers: list(workers or [0])
    )
    num_rollouts: int = argument(
        "number of a worker's shares of batches that are profiled", default=3, check=at_least(1)
    )
    warmup_rollouts: int = argument(
        "how many of these are not recorded, at the start", default=1, check=at_least(0)
    )
    save_path: str | Path | None = argument(
        "path of the trace, with {worker_idx} for the number of the worker",
        more="the trace has what PyTorch's profiler recorded too; its folder is made",
        default=None,
    )
    activities: list[str] | None = argument(
        'what PyTorch\'s profiler records: "cpu", "cuda"; by default both, where there is a GPU',
        default=None,
        check=_activities,
    )
    record_shapes: bool = argument("PyTorch's profiler records shapes of inputs", default=True)
    profile_memory: bool = argument("PyTorch's profiler records allocations", default=False)
    with_stack: bool = argument(
        "PyTorch's profiler records where operations were called", default=True
    )
    with_flops: bool = argument("PyTorch's profiler counts operations of products", default=False)
    on_trace_ready: Callable[[Any], object] | None = argument(
        "called with PyTorch's profiler at its end, in the worker",
        more="what it has recorded is then not added to the trace",
        default=None,
    )

    def template(self) -> str:
        """The path, with ``{worker_idx}`` for the number of a worker."""
        return (
            "./collector_profile_{worker_idx}.json"
            if self.save_path is None
            else str(self.save_path)
        )

    def get_save_path(self, worker_idx: int) -> str:
        """The path of the trace of worker ``worker_idx``."""
        return self.template().replace("{worker_idx}", str(worker_idx))

    def should_profile_worker(self, worker_idx: int) -> bool:
        """Whether worker ``worker_idx`` is profiled."""
        return worker_idx in self.workers

    def get_activities(self) -> list[Any]:
        """The activities as members of torch's ``ProfilerActivity``, without CUDA where there is
        none.
        """
        activities: list[Any] = _torch_profile.known_activities(self.activities)
        return activities

    def profiler(self) -> "Callable[[int], Any] | None":
        """Makes the other profiler of a worker by its number; None if the phases of the loop are
        all that is recorded.
        """
        options = {
            field.name: getattr(self, field.name)
            for field in fields_of(type(self))
            if field.name in _OF_TORCH
        }
        if all(
            options[field.name] == field.default
            for field in fields_of(type(self))
            if field.name in _OF_TORCH
        ):
            return None
        return partial(
            _torch_profile.TorchProfiler, options, self.warmup_rollouts, self.num_rollouts
        )
