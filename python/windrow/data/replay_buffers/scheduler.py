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
    return getattr(_fence.schedulers, name) if name in __all__ else _fence.rest_of(__name__)(name)
