"""Policies that act by how many rows they are given: each action is one of a call with as many rows
as there are environments, whoever evaluates it.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from stale.forms import Base, shifted
from stale.lives import TOLERANCE
from stale.worlds import World
from windrow.collectors import AsyncBatchedCollector, Collector

#: How many environments a policy acts for together: None for one without a dimension for rows, and
#: "served" for any number of ``SERVED``.
ROWS = (None, 1, 8, 16, 37, 100, "served")
SERVED = 8
#: What a served policy is compared with where Rust evaluates it, since it may be given any number.
ANY = (*range(1, SERVED + 1), 16, 37, 100)
STEPS = 3

Rows = int | str | None
SIZES, KEPT, FLOAT, ARRAY, POWER = (8, 16), {8}, 8.0, np.array([8]), 3


class Branch(Base):
    """Adds 3 where its number of rows is a certain one, otherwise 1."""

    sizes, kept, float, array, power = SIZES, KEPT, FLOAT, ARRAY, POWER

    def holds(self, x: torch.Tensor) -> Any:
        raise NotImplementedError

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        gain = 3.0 if self.holds(observation) else 1.0
        return shifted(self.net(observation), gain, -gain)


class Mixing(Base):
    """Adds what it makes of all rows together."""

    def of_all(self, x: torch.Tensor) -> Any:
        raise NotImplementedError

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.net(observation) + self.of_all(observation)


def _is_listed(x: torch.Tensor) -> bool:
    return x.shape[0] in LISTED


LISTED = [8]


def _counted(x: torch.Tensor) -> bool:
    return 5 < sum(1 for _ in range(x.size(0))) < 20


def _matched(x: torch.Tensor) -> bool:
    match x.shape:
        case (8, _):
            return True
    return False


def _cut(x: torch.Tensor) -> bool:
    return x[:8].shape == x.shape


def _looped(x: torch.Tensor) -> bool:
    return len([row.sum() for row in x]) == 8


def _raised(x: torch.Tensor) -> bool:
    try:
        x.reshape(-1, 8 * 2)
    except RuntimeError:
        return False
    return True


BRANCHES: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "in a tuple": lambda self, x: x.shape[0] in (8, 16),
    "in a set": lambda self, x: x.shape[0] in {8, 16},
    "in a tuple that it holds": lambda self, x: x.shape[0] in self.sizes,
    "in a set that it holds": lambda self, x: x.shape[0] in self.kept,
    "in a list that a function reads": lambda self, x: _is_listed(x),
    "in a range": lambda self, x: x.shape[0] in range(6, 10),
    "equal to a float": lambda self, x: len(x) == 8.0,
    "equal to a float that it holds": lambda self, x: x.shape[0] == self.float,
    "equal to an entry of an array": lambda self, x: x.shape[0] == self.array[0],
    "equal to a power": lambda self, x: x.shape[0] == 2**self.power,
    "a logarithm": lambda self, x: math.log2(max(1, len(x.reshape(-1, 2)))) == 3.0,
    "bits": lambda self, x: x.shape[0] >> 3 == 1,
    "numel": lambda self, x: x.numel() == 16,
    "nelement": lambda self, x: x.nelement() == 16,
    "a loop over a range": lambda self, x: _counted(x),
    "a loop over rows": lambda self, x: _looped(x),
    "text of the shape": lambda self, x: str(tuple(x.shape)) == "(8, 2)",
    "text of the number": lambda self, x: f"{x.shape[0]}" == "8",
    "a key of a dict": lambda self, x: {8: True}.get(x.shape[0], False),
    "an index of a list": lambda self, x: ([False] * 8 + [True] + [False] * 92)[
        min(len(x.reshape(-1, 2)), 100)
    ],
    "a remainder": lambda self, x: x.shape[0] % 3 == 2 and 5 < x.shape[0] < 30,
    "a size of zeros": lambda self, x: torch.zeros(x.shape[:-1]).numel() - 8 == 0,
    "a quotient": lambda self, x: 64 // max(1, x.numel() // 2) == 8,
    "a square": lambda self, x: x.shape[0] * x.shape[0] == 10_000,
    "a match": lambda self, x: _matched(x),
    "a cut": lambda self, x: _cut(x),
    "a shape that is refused": lambda self, x: _raised(x),
    "one row": lambda self, x: x.shape[0] == 1,
    "no rows": lambda self, x: x.dim() == 1,
    "a comparison of shapes": lambda self, x: x.shape == torch.Size([8, 2]),
    "a stride of the transpose": lambda self, x: x.T.contiguous().stride(0) == 8,
    "the size in bytes": lambda self, x: x.nbytes == 64,
    "even": lambda self, x: x.shape[0] % 2 == 0,
    "more than": lambda self, x: x.shape[0] > 30,
}
MIXING: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "the mean of all": lambda self, x: x.mean(0),
    "the largest of all": lambda self, x: x.reshape(-1, 2).max(0).values,
    "the number of all": lambda self, x: torch.ones(()) * len(x.reshape(-1, 2)),
    "the number of each": lambda self, x: torch.arange(x.numel()).reshape(x.shape).float(),
    "the share of each": lambda self, x: 8.0 / x.numel(),
    "a tensor of the number": lambda self, x: torch.tensor(float(x.numel())),
    "a tensor full of the number": lambda self, x: torch.full((2,), float(x.numel())),
    "a factor of a sum": lambda self, x: torch.add(x, x, alpha=x.numel()),
    "the row before": lambda self, x: x.reshape(-1, 2).roll(1, 0).reshape(x.shape),
}


@dataclass
class Counts:
    """What came of policies that act by their number of rows."""

    cells: int = 0
    native: int = 0
    forms: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)


def _policy(name: str) -> Any:
    if name in BRANCHES:
        return type("Policy", (Branch,), {"holds": BRANCHES[name]})()
    return type("Policy", (Mixing,), {"of_all": MIXING[name]})()


def _differ(acted: torch.Tensor, expected: torch.Tensor) -> bool:
    return not torch.allclose(acted, expected, atol=TOLERANCE)


def _steps(batch: Any, rows: int | None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """What was observed and done in each step."""
    size = (-1, 2) if rows is None else (rows, -1, 2)
    observed, acted = batch["observation"].reshape(size), batch["action"].reshape(size)
    for step in range(observed.shape[-2]):
        yield observed[..., step, :].contiguous(), acted[..., step, :]


def _wrong(name: str, rows: Rows) -> tuple[bool, str | None]:
    """Whether Rust evaluates it, and what is wrong."""
    policy = _policy(name)
    if rows == "served":
        return _wrong_served(name, policy)
    number = rows if isinstance(rows, int) else None
    options: dict[str, Any] = {} if number is None else {"num_envs": number}
    frames = STEPS * (number or 1)
    with Collector(World, policy, frames_per_batch=frames, total_frames=-1, **options) as collector:
        batch = collector.next()
        is_native = collector.policy_backend == "native"
    for observed, acted in _steps(batch, number):
        with torch.no_grad():
            expected = policy(observed)
        if _differ(acted, expected):
            return is_native, f"{acted.tolist()[:3]}, expected {expected.tolist()[:3]}"
    return is_native, None


def _wrong_served(name: str, policy: Any) -> tuple[bool, str | None]:
    with AsyncBatchedCollector(
        [World] * SERVED, policy, frames_per_batch=STEPS * SERVED, total_frames=-1
    ) as collector:
        batch = collector.next()
        is_native = collector.policy_backend == "native"
    if name in MIXING:
        # Nothing says which rows were evaluated together.
        return is_native, "Rust evaluates it, served" if is_native else None
    for observed, acted in zip(batch["observation"].reshape(-1, 2), batch["action"].reshape(-1, 2)):
        with torch.no_grad():
            known = [policy(observed.expand(number, 2).clone())[0] for number in ANY]
        if is_native:
            bad = [number for number, one in zip(ANY, known) if _differ(acted, one)]
            if bad:
                return True, f"{acted.tolist()} is not what {bad} rows give"
        elif all(_differ(acted, one) for one in known[:SERVED]):
            return False, f"{acted.tolist()} is what no number of rows gives"
    return is_native, None


def run(drawn: random.Random, seconds: float, wanted: str) -> Counts:
    """Runs each policy with one number of rows, and with the others, until time is over: a third of
    the policies whatever the time is.
    """
    total, end = Counts(), time.monotonic() + seconds
    names = [name for name in (*BRANCHES, *MIXING) if wanted in f"rows: {name}"]
    drawn.shuffle(names)
    numbers = drawn.sample(ROWS, len(ROWS))
    for turn in range(len(ROWS)):
        for at, name in enumerate(names):
            if total.cells >= len(names) // 3 and time.monotonic() > end:
                return total
            rows = numbers[(at + turn) % len(ROWS)]
            total.cells += 1
            total.forms.add(name)
            try:
                is_native, wrong = _wrong(name, rows)
            except Exception as error:
                is_native, wrong = False, f"{type(error).__name__}: {str(error)[-300:]}"
            total.native += is_native
            if wrong is not None:
                total.wrong.append(f"rows: {name}, {rows}: {wrong}")
    return total
