"""Replay buffers that stand for the ``rb`` of snippets."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

MakeBuffer = Callable[[], Any]


def of_windrow() -> Any:
    from windrow.data import LazyTensorStorage, ReplayBuffer

    return ReplayBuffer(storage=LazyTensorStorage(10_000), batch_size=32)


def of_torchrl() -> Any:
    from torchrl.data import LazyTensorStorage, ReplayBuffer

    return ReplayBuffer(storage=LazyTensorStorage(10_000), batch_size=32)


class Time:
    """Stands for the module ``time`` of a snippet that sleeps until its buffer is filled: until
    ``count`` frames are there.
    """

    def __init__(self, buffer: Any, count: int) -> None:
        self.buffer, self.count = buffer, count

    def sleep(self, seconds: float) -> None:
        end = time.monotonic() + 60 * seconds
        while len(self.buffer) < self.count:
            assert time.monotonic() < end, f"{len(self.buffer)} of {self.count} frames have come"
            time.sleep(0.001)


BUFFERS = [pytest.param(of_windrow, id="windrow"), pytest.param(of_torchrl, id="torchrl")]
