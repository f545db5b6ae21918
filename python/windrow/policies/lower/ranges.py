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


def of(op: Op, sources: Sequence[Range]) -> Range:
    """The numbers that the operation ``op`` of a graph makes of such numbers."""
    name, given = next(iter(op.items())) if isinstance(op, dict) else (op, None)
    with np.errstate(all="ignore"):
        low, high = _of(name, given, sources)
    return ANY if math.isnan(low) or math.isnan(high) else (low, high)


def _of(name: str, given: Any, sources: Sequence[Range]) -> Range:
    if name == "Constant":
        numbers = np.array(given, np.uint32).view(np.float32)
        return ANY if np.isnan(numbers).any() else (float(numbers.min()), float(numbers.max()))
    if name == "Map":
        return _mapped(given, *sources[0])
    if name == "Zip":
        return _zipped(given, *sources)
    if name in ("Where", "Take"):
        own = sources[1:] if name == "Where" else sources
        return min(low for low, _ in own), max(high for _, high in own)
    if name == "Reduce":
        return _reduced(given[0], given[1], sources[0])
    if name in ("Lookup", "Gather"):
        return sources[0]
    if name == "Pick":
        return 0.0, given - 1.0
    if name == "Noise" and given[0] == "Uniform":
        return 0.0, 1.0 - 2.0**-24
    if name == "Softmax":
        return 0.0, 1.0 + 1e-5
    return (0.0, math.inf) if name == "Gamma" else ANY


#: Functions that keep an order.
RISING: dict[str, Callable[[np.float32], Any]] = {
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.round,
    "Trunc": np.trunc,
    "Sign": np.sign,
    "Sqrt": lambda x: np.sqrt(np.maximum(x, 0)),
}
#: Results that are bounded, whatever is given.
BOUNDED: dict[str, Range] = {
    "Not": FLAG,
    "Isnan": FLAG,
    "Sin": (-1.0, 1.0),
    "Cos": (-1.0, 1.0),
    "Erf": (-1.0, 1.0),
    "Exp": (0.0, math.inf),
    "Sigmoid": FLAG,
    "Hardsigmoid": FLAG,
    # An approximation.
    "Tanh": (-1.0 - 1e-6, 1.0 + 1e-6),
    "Softsign": (-1.0, 1.0),
}


def _mapped(function: Any, low: float, high: float) -> Range:
    if isinstance(function, dict):
        function = function["Activation"]
    name, numbers = next(iter(function.items())) if isinstance(function, dict) else (function, {})
    if name in BOUNDED:
        return BOUNDED[name]
    if name in RISING:
        return float(RISING[name](np.float32(low))), float(RISING[name](np.float32(high)))
    if name == "Neg":
        return -high, -low
    if name in ("Abs", "Square"):
        ends = (abs(low), abs(high))
        least, most = 0.0 if low <= 0 <= high else min(ends), max(ends)
        return (least, most) if name == "Abs" else rounded((least * least, most * most))
    if name == "ReLU":
        return max(low, 0.0), max(high, 0.0)
    if name == "Hardtanh":
        return numbers["low"], numbers["high"]
    return ANY


FLAGS = {"Eq", "Ne", "Lt", "Le", "Gt", "Ge", "And", "Or"}
CORNERS: dict[str, Callable[[float, float], float]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": lambda a, b: a / b,
    "Max": max,
    "Min": min,
}


def _zipped(kind: str, a: Range, b: Range) -> Range:
    if kind in FLAGS:
        return FLAG
    if kind == "Remainder":
        return min(b[0], 0.0), max(b[1], 0.0)
    if kind not in CORNERS or (kind == "Div" and b[0] <= 0 <= b[1]):
        return ANY
    ends = [CORNERS[kind](x, y) for x, y in itertools.product(a, b)]
    return ANY if any(map(math.isnan, ends)) else rounded((min(ends), max(ends)))


def _reduced(kind: str, run: int, own: Range) -> Range:
    low, high = own
    if kind in ("Max", "Min"):
        return own
    if kind.startswith("Arg"):
        return 0.0, run - 1.0
    if kind == "Sum":
        # Sums of integers are exact, others are rounded.
        exact = (
            float(low).is_integer()
            and float(high).is_integer()
            and run * max(abs(low), abs(high)) <= 2**24
        )
        spare = 0.0 if exact else 1e-5 * run * max(abs(low), abs(high))
        return low * run - spare, high * run + spare
    most = max(abs(low), abs(high))
    if kind == "Prod" and (most <= 1 or math.log2(most) * run < 120):
        return (0.0 if low >= 0 else -max(most, most**run)), max(most, most**run)
    return ANY
