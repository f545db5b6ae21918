"""Random modules of floats, and operations of integers, natively beside torch; which values of
integers stay native, and which may not.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import random_modules
import torch
from random_modules import Apply, compare, compare_integers, draw, integer_operations, lowered
from torch import nn
from torch.nn import functional

from windrow.collectors import Collector
from windrow.envs import GymWrapper
from windrow.policies.lower import lowering, reading
from windrow.policies.lower.values import NotLowerable


def test_random_modules_are_as_near_to_float64_as_torch_is() -> None:
    # Some others jump, where rounding takes a number across a step. `cargo xtask stale` counts
    # those of any seed.
    apart, called = [], []
    for number in range(100, 200):
        module, shape = draw(number)
        found = compare(module, shape, number)
        if found.why is not None:
            called.append(f"{number}: {found}")
        elif not found.is_close():
            print(f"{number}: {found}: {module.names}")
            # Rounding is magnified by the module itself, or a number has crossed a step.
            if (
                found.own
                > 100 * found.theirs + 1e-5 * (1 + found.condition) * max(1.0, found.scale)
                and found.condition > 0.1
            ):
                apart.append(f"{number}: {found}: {module.names}")
    assert not apart and len(called) < 5, (apart, called)


def test_operations_of_integers_give_the_numbers_of_torch_or_are_called() -> None:
    every = random.Random(0).sample(list(integer_operations()), 200)
    found = {
        name: compare_integers(module, dtype, low, high, 0)
        for name, module, dtype, low, high in every
    }
    wrong = {
        name: what for name, what in found.items() if what not in ("native", "called", "an error")
    }
    assert not wrong, wrong
    assert list(found.values()).count("native") > 100


NATIVE: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.dtype, int, int]] = {
    "a picture": (lambda x: x.float() / 255, torch.uint8, 0, 255),
    "a picture divided": (lambda x: x / 255.0, torch.uint8, 0, 255),
    "a mask": (lambda x: torch.where(x.bool(), 1.0, -1e9), torch.int8, 0, 1),
    "a mask of any int8": (lambda x: torch.where(x.bool(), 1.0, -1e9), torch.int8, -128, 127),
    "one-hot": (lambda x: functional.one_hot(x, 5).float().flatten(1), torch.int64, 0, 4),
    "argmax": (lambda x: x.argmax(-1, keepdim=True), torch.uint8, 0, 255),
    "embedding": (
        lambda x: functional.embedding(x, torch.arange(10.0).view(5, 2)).flatten(1),
        torch.int64,
        0,
        4,
    ),
    "a sum of pixels": (lambda x: x.sum(-1, keepdim=True), torch.uint8, 0, 255),
    "a place in a grid": (lambda x: x[:, :1] * 10 + x[:, 1:2], torch.int64, 0, 9),
    "a bounded number as an index": (
        lambda x: torch.arange(8.0)[(x.float().sigmoid() * 7).long()],
        torch.int64,
        0,
        9,
    ),
    "large integers as floats": (lambda x: x.float(), torch.int64, -(2**62), 2**62),
    "large integers compared": (lambda x: x > 5, torch.int64, -(2**62), 2**62),
    "large integers clipped": (lambda x: x.clamp(0, 9) * 3, torch.int64, -(2**62), 2**62),
    "indices from the end": (lambda x: torch.arange(5.0)[x], torch.int64, -5, 4),
    "days of a week": (lambda x: (x + 3) % 7, torch.int32, 0, 1000),
    "powers": (lambda x: x**3, torch.int64, -9, 9),
}


@pytest.mark.parametrize("name", NATIVE)
def test_integers_that_float32_holds_are_evaluated_natively(name: str) -> None:
    function, dtype, low, high = NATIVE[name]
    assert compare_integers(Apply(function), dtype, low, high) == "native"


CALLED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.dtype, int, int]] = {
    "uint8 that wraps": (lambda x: x + 100, torch.uint8, 0, 255),
    "uint8 below 0": (lambda x: -x, torch.uint8, 0, 255),
    "a product of uint8": (lambda x: x * x, torch.uint8, 0, 255),
    "a narrow cast": (lambda x: x.to(torch.int8), torch.uint8, 0, 255),
    "a hash": (lambda x: x * 48271 % 7, torch.int64, 0, 10**7),
    "beyond 2^24": (lambda x: x + 1, torch.int64, 0, 2**24),
    "large integers among each other": (lambda x: x == x.flip(-1), torch.int64, 0, 2**40),
    "a large integer itself": (lambda x: x, torch.int64, 0, 2**40),
    "the largest of large integers": (lambda x: x.argmax(-1, keepdim=True), torch.int64, 0, 2**40),
    "a float out of range": (lambda x: (x.float() * 1e30).long(), torch.int64, 0, 9),
    "bits": (lambda x: x & 3, torch.int64, 0, 9),
    "flags that are added": (lambda x: (x > 1) + (x < 3), torch.int64, 0, 9),
}


@pytest.mark.parametrize("name", CALLED)
def test_integers_that_float32_may_not_hold_are_left_to_torch(name: str) -> None:
    function, dtype, low, high = CALLED[name]
    assert compare_integers(Apply(function), dtype, low, high) == "called"


def test_an_observation_outside_of_bounds_that_a_graph_rests_on_is_an_error() -> None:
    def observe(rows: int) -> torch.Tensor:
        return torch.arange(rows * 3).view(rows, 3) % 10

    resting = lowered(Apply(lambda x: x * x), observe, 0, 9)
    assert resting(observe(8)).tolist() == (observe(8) ** 2).tolist()
    with pytest.raises(ValueError, match="expected an observation or state from 0 to 9, got 10"):
        resting(observe(8) + 1)
    # An integer that becomes a float at once may be any number.
    free = lowered(Apply(lambda x: x.float() * 0.5), observe, 0, 9)
    assert "Within" in resting.graph and "Within" not in free.graph
    assert free(observe(8) + 100).tolist() == (observe(8) * 0.5 + 50).tolist()


def test_parts_without_elements_are_nothing() -> None:
    native = lowered(
        Apply(lambda x: torch.cat([x[:, 1:], x[:, :1], torch.empty(len(x), 0)], -1)),
        lambda rows: torch.randn(rows, 1),
    )
    assert native(torch.tensor([[2.0]])).tolist() == [[2.0]]


def test_an_index_out_of_range_is_an_error_as_in_torch() -> None:
    native = lowered(
        Apply(lambda x: torch.arange(5.0)[x]), lambda rows: torch.arange(rows * 2).view(rows, 2) % 5
    )
    assert native(torch.tensor([[-1, 4]])).tolist() == [[4.0, 4.0]]
    for index in (5, -6):
        with pytest.raises(ValueError, match="expected an index from 0 to 4"):
            native(torch.tensor([[0, index]]))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers_are_drawn_from_all_that_may_be_observed(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    limits = torch.iinfo(dtype)
    drawn = reading._drawn(lowering.Leaf((4,), dtype), 64, generator)
    assert drawn.min() == limits.min and drawn.max() == limits.max and drawn.dtype == dtype
    assert len(drawn.unique()) > 40 and bool((drawn.abs() < 100).any())
    low, high = torch.tensor([0, -3, 5, 0]), torch.tensor([9, 2, 5, 100])
    if dtype != torch.uint8:
        drawn = reading._drawn(lowering.Leaf((4,), dtype, low, high), 400, generator)
        assert torch.equal(drawn.amin(0).long(), low) and torch.equal(drawn.amax(0).long(), high)
    small = reading._drawn(lowering.Leaf((4,), dtype), 64, generator, is_small=True)
    assert set(small.unique().tolist()) == {0, 1} and bool((small != 0).any(-1).all())


def test_floats_are_drawn_large_and_small_in_some_rows() -> None:
    drawn = (
        reading._drawn(lowering.Leaf((4,), torch.float32), 40, torch.Generator().manual_seed(0))
        .abs()
        .amax(-1)
    )
    assert drawn[reading.LARGE :: 8].min() > 5 and drawn[reading.SMALL :: 8].max() < 0.1


def test_a_graph_that_is_wrong_for_large_numbers_alone_is_found() -> None:
    expected = torch.randn(40, 2)
    own = expected.clone()
    reading._check_equal("action", expected, own)
    own[reading.LARGE] += 100
    with pytest.raises(NotLowerable, match="differ"):
        reading._check_equal("action", expected, own)


class Wide(gymnasium.Env[Any, Any]):
    """Observes float64."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.standard_normal(3), {}

    def step(self, action: Any) -> Any:
        return self.np_random.standard_normal(3), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("forward", "backend"),
    [
        (lambda x, net: net(x), "native"),
        (lambda x, net: net(x.float()), "native"),
        (lambda x, net: net(torch.cat([x[..., 1:], x[..., :1]], -1).float()), "native"),
        (lambda x, net: net(((x * 1e9) % 10).float()), "torch"),
        (lambda x, net: net((x > 0.1).float()), "torch"),
    ],
)
def test_what_torch_computes_in_float64_is_not_computed_in_float32(
    forward: Any, backend: str
) -> None:
    with Collector(
        GymWrapper(Wide()), Apply(forward, nn.Linear(3, 2)), frames_per_batch=5
    ) as collector:
        assert collector.policy_backend == backend, repr(collector)
        next(collector)


def test_float64_is_left_to_torch() -> None:
    for function in (
        lambda x: x.double() * 2,
        lambda x: x.double() > 0.1,
        lambda x: x * torch.arange(3, dtype=torch.float64),
    ):
        with pytest.raises(NotLowerable, match="float64"):
            lowered(Apply(function), lambda rows: torch.randn(rows, 3))


def test_the_generator_draws_many_kinds_of_modules() -> None:
    assert len(random_modules.BLOCKS) >= 30
    kinds = {name for seed in range(300) for name in draw(seed)[0].names.split(", ")}
    assert len(kinds) > 0.9 * len(random_modules.BLOCKS)
    assert isinstance(draw(3)[0], nn.Module) and draw(3)[0].names == draw(3)[0].names
