"""Actions of another type than the environment takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchrl.testing.mocking_classes import CountingEnv

from windrow.collectors import Collector


def collect(action: Any) -> Any:
    with Collector(
        CountingEnv(10), lambda td: td.set("action", action.expand(*td.shape, 1)), frames_per_batch=5, total_frames=5, trust_policy=True
    ) as collector:
        return next(collector)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whole_floats_are_cast_with_a_warning(dtype: torch.dtype) -> None:
    with pytest.warns(UserWarning, match='the policy writes "action" as float.., the environment takes int8: whole numbers are cast'):
        batch = collect(torch.ones(1, dtype=dtype))
    assert batch["action"].dtype == torch.int8 and batch["action"].flatten().tolist() == [1] * 5
    assert batch["next", "observation"].flatten().tolist() == [1, 2, 3, 4, 5]


@pytest.mark.filterwarnings("ignore:the policy writes action")
@pytest.mark.parametrize("number", [0.5, 300.0, float("nan"), float("inf")])
def test_floats_that_integers_cannot_hold_are_errors(number: float) -> None:
    with pytest.raises(RuntimeError, match=r'worker 0.*"action": expected values that int8 can hold, got'):
        collect(torch.full((1,), number))
