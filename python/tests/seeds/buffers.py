"""Replay buffers that stand for the ``rb`` of snippets."""

from __future__ import annotations

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


BUFFERS = [pytest.param(of_windrow, id="windrow"), pytest.param(of_torchrl, id="torchrl")]
