"""Schedulers of a sampler's arguments, where TorchRL has them."""

from __future__ import annotations

from typing import Any

from windrow import _fence

__all__ = [  # noqa: F822
    "LambdaScheduler",
    "LinearScheduler",
    "ParameterScheduler",
    "SchedulerList",
    "StepScheduler",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_fence.schedulers, name)
