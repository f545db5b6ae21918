"""Which numbers the values of a graph may be.

A range holds for all inputs and weights. It is computed operation by operation, as the engine
computes: in float32, where rounding never changes an order. Numbers that are none are left out:
torch has no integers for them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

#: An operation of a graph: its name, or its name with what else it needs.
Op = str | dict[str, Any]
Range = tuple[float, float]
ANY: Range = (-math.inf, math.inf)
FLAG: Range = (0.0, 1.0)
POSITIVE: Range = (0.0, math.inf)
#: Integers up to here are exact in float32, and differ from all larger ones there.
EXACT: Range = (1.0 - 2**24, 2.0**24 - 1)


def of_dtype(dtype: torch.dtype) -> Range:
    """The smallest and the largest number of a type."""
    if dtype == torch.bool:
        return FLAG
    if dtype.is_floating_point:
        return ANY
    limits = torch.iinfo(dtype)
    return float(limits.min), float(limits.max)


def rounded(own: Range) -> Range:
    """As the engine has it."""
    with np.errstate(over="ignore"):
        return float(np.float32(own[0])), float(np.float32(own[1]))


def is_within(own: Range, limits: Range) -> bool:
    return limits[0] <= own[0] and own[1] <= limits[1]


def of_others(kind: str, given: Any, sources: Sequence[Range]) -> Range:
    """The numbers of a node that computes nothing with numbers alone, such as one that moves or
    draws them.
    """
    if kind == "Constant":
        numbers = np.array(given, np.uint32).view(np.float32)
        return ANY if np.isnan(numbers).any() else (float(numbers.min()), float(numbers.max()))
    if kind in ("Where", "Take"):
        own = sources[1:] if kind == "Where" else sources
        return min(low for low, _ in own), max(high for _, high in own)
    if kind in ("Lookup", "Gather"):
        return sources[0]
    if kind == "Pick":
        return 0.0, given - 1.0
    if kind == "Noise" and given[0] == "Uniform":
        return 0.0, 1.0 - 2.0**-24
    if kind == "Softmax":
        return 0.0, 1.0 + 1e-5
    return POSITIVE if kind == "Gamma" else ANY


# Ranges of operations that compute, for the rows of :mod:`windrow.policies.lower.operations`.


def rising(function: Callable[[np.float32], Any]) -> Callable[[Range], Range]:
    """The range of a function that keeps an order."""
    return lambda own: (float(function(np.float32(own[0]))), float(function(np.float32(own[1]))))


def magnitude(own: Range) -> Range:
    ends = abs(own[0]), abs(own[1])
    return 0.0 if own[0] <= 0 <= own[1] else min(ends), max(ends)


def square(own: Range) -> Range:
    least, most = magnitude(own)
    return rounded((least * least, most * most))


def corners(function: Callable[[float, float], float]) -> Callable[[Range, Range], Range]:
    """The range of a function of two numbers that is largest and smallest at ends of theirs."""

    def of(a: Range, b: Range) -> Range:
        ends = [function(x, y) for x, y in itertools.product(a, b)]
        return ANY if any(map(math.isnan, ends)) else rounded((min(ends), max(ends)))

    return of


def quotient(a: Range, b: Range) -> Range:
    return ANY if b[0] <= 0 <= b[1] else corners(lambda x, y: x / y)(a, b)


def remainder(a: Range, b: Range) -> Range:
    return min(b[0], 0.0), max(b[1], 0.0)


def total(own: Range, run: int) -> Range:
    """The range of a sum: sums of integers are exact, others are rounded."""
    (low, high), most = own, max(abs(own[0]), abs(own[1]))
    exact = float(low).is_integer() and float(high).is_integer() and run * most <= 2**24
    spare = 0.0 if exact else 1e-5 * run * most
    return low * run - spare, high * run + spare


def product(own: Range, run: int) -> Range:
    most = max(abs(own[0]), abs(own[1]))
    if most > 1 and not math.log2(most) * run < 120:
        return ANY
    return 0.0 if own[0] >= 0 else -max(most, most**run), max(most, most**run)
