"""The second look at policies that the engine evaluates: rows that were delivered, compared with
the module now and then.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from windrow.collectors import Collector
from windrow.policies import audit
from windrow.policies.lower import lowering


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.gain = nn.Linear(4, 2), 1.0

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.net(observation) * self.gain


class Drawing(Scaled):
    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        scores = super().forward(observation)
        return scores + 0.1 * torch.randn_like(scores)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every batch is looked at; the list counts."""
    looks: list[int] = []
    compared = audit.Audit.look

    def look(self: Any, batch: Any) -> None:
        looks.append(1)
        compared(self, batch)

    monkeypatch.setattr(audit, "SHARE", float("inf"))
    monkeypatch.setattr(audit.Audit, "look", look)
    return looks


@pytest.mark.parametrize("kind", [Scaled, Drawing])
def test_a_module_whose_change_nobody_saw_is_an_error_that_names_the_row(
    kind: type, always: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = kind()
    with Collector(
        "CartPole-v1", policy, frames_per_batch=50, policy_backend="native"
    ) as collector:
        next(collector)
        policy.gain = 3.0
        monkeypatch.setattr(lowering._Follower, "_is_current", lambda self: True)
        with pytest.raises(
            RuntimeError,
            match=r"row \(\d+,\) of a batch: expected action \[.*, as the module computes it, got .*policy_backend='torch'",
        ):
            next(collector)
    assert len(always) == 2


@pytest.mark.parametrize("kind", [Scaled, Drawing])
def test_a_module_that_is_followed_passes_whatever_happens_to_it(
    kind: type, always: list[int]
) -> None:
    policy = kind()
    with Collector(
        "CartPole-v1", policy, frames_per_batch=50, policy_backend="native"
    ) as collector:
        for number in range(6):
            next(collector)
            policy.gain = float(number)
            with torch.no_grad():
                policy.net.weight.add_(torch.randn_like(policy.net.weight))
    assert len(always) == 6


def test_actions_that_are_as_good_are_none_to_complain_of(always: list[int]) -> None:
    policy = Scaled()
    nn.init.zeros_(policy.net.weight)
    nn.init.zeros_(policy.net.bias)
    with Collector(
        "CartPole-v1", policy, frames_per_batch=200, policy_backend="native"
    ) as collector:
        next(collector)
        with torch.no_grad():
            policy.net.weight.copy_(1e-7 * torch.randn(2, 4))
        next(collector)
    assert len(always) == 2


def test_a_look_takes_a_small_share_of_the_time_and_leaves_generators_alone() -> None:
    compared: list[tuple[int, int | None]] = []

    def compare(given: dict[Any, Any], rows: int | None) -> None:
        compared.append((len(given["observation"]), rows))

    looks = audit.Audit(compare, ["observation"])
    with Collector("CartPole-v1", Scaled(), frames_per_batch=50) as collector:
        batch = next(collector)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    looks.envs = 8, True
    looks.look(batch)
    assert compared == [(8, 8)], "the first batch is looked at"
    looks._began += 3600
    looks.look(batch)
    assert len(compared) == 1, "no time has passed yet"
    looks.be_due()
    looks.look(batch)
    assert len(compared) == 2
    looks._began -= 2 * 3600
    looks.look(batch)
    assert len(compared) == 3 and torch.equal(torch.get_rng_state(), before)
    looks._spent += 0.02 * 3600
    looks.look(batch)
    assert len(compared) == 3


def test_rows_of_one_environment_are_compared_one_by_one() -> None:
    compared: list[tuple[int, int | None]] = []

    def compare(given: dict[Any, Any], rows: int | None) -> None:
        compared.append((len(given["observation"]), rows))

    looks = audit.Audit(compare, ["observation", "elsewhere"])
    with Collector("CartPole-v1", Scaled(), frames_per_batch=50) as collector:
        looks.look(next(collector))
    assert compared == [(1, None)] * audit.ALONE
