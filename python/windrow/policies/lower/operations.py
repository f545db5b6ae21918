"""The operations of the engine's graphs that compute with numbers: a row for each.

Four readers take what they know of an operation from its row: the rules of torch's operations and
layers (``rules.py``, ``plain.py``), the ranges of nodes (:func:`range_of`), and models of ONNX that
are read (``onnx/operators.py``) and written (``onnx/writing.py``). An operation of torch or ONNX
that has more options than its row says has a function of its own there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from windrow.policies.lower import ranges
from windrow.policies.lower.ranges import ANY, FLAG, POSITIVE, Op, Range
from windrow.policies.lower.values import NONE, Integers

KEPT, SIGNED, COMPUTED, COMPARED = (
    Integers.KEPT,
    Integers.SIGNED,
    Integers.COMPUTED,
    Integers.COMPARED,
)


@dataclass(frozen=True)
class Row:
    """An operation.

    Attributes:
        name: its name in graphs.
        torch: names of operations of torch that compute it.
        onnx: the operator of ONNX that computes it.
        range: the numbers that it gives, or a function of the ranges of what it reads and of its
            numbers.
        integers: what the operations ``torch`` do with integers.
        write: writes it as operators of ONNX, if it is not ``onnx`` alone, with a writer of models,
            names of what it reads, and its numbers.
        numbers: names that its numbers have in graphs, and names of these in torch.
        layers: classes of ``torch.nn.modules.activation`` that compute it.
    """

    name: str
    torch: str = ""
    onnx: str | None = None
    range: Range | Callable[..., Range] = ANY
    integers: Integers = NONE
    write: Callable[..., str] | None = None
    numbers: dict[str, str] = field(default_factory=dict)
    layers: str = ""


def _layer(
    name: str, torch: str, onnx: str | None, write: Any = None, range: Any = ANY, **numbers: str
) -> Row:
    """An activation that has a class of its name."""
    return Row(name, torch, onnx, range, NONE, write, numbers, name)


def _truth(
    name: str, torch: str, onnx: str | None, integers: Integers = NONE, write: Any = None
) -> Row:
    """One that gives truth values, which are numbers in graphs, and no numbers in ONNX."""
    inner = write or (lambda w, *given: w.add(onnx, *given))
    return Row(name, torch, onnx, FLAG, integers, lambda w, *given: w.flags(inner(w, *given)))


def _alpha(onnx: str) -> Callable[..., str]:
    return lambda w, x, number: w.add(onnx, x, alpha=number)


def _over_runs(onnx: str) -> Callable[..., str]:
    return lambda w, runs, _: w.add(onnx, runs, w.last(), keepdims=0)


def _place(onnx: str) -> Callable[..., str]:
    return lambda w, runs, _: w.flags(w.add(onnx, runs, axis=2, keepdims=0))


def _trunc(w: Any, x: str) -> Any:
    return w.add("Mul", w.add("Sign", x), w.add("Floor", w.add("Abs", x)))


def _softplus(w: Any, x: str, beta: float, _: float) -> Any:
    scale = w.number(beta)
    return w.add("Div", w.add("Softplus", w.add("Mul", x, scale)), scale)


def _half(w: Any, x: str, share: str) -> Any:
    """``x (1 + share) / 2``."""
    return w.add("Mul", w.add("Mul", x, 0.5), w.add("Add", share, 1.0))


def _gelu_tanh(w: Any, x: str) -> Any:
    cube = w.add("Mul", w.add("Mul", w.add("Mul", x, x), x), 0.044715)
    inner = w.add("Mul", w.add("Add", x, cube), math.sqrt(2 / math.pi))
    return _half(w, x, w.add("Tanh", inner))


def _remainder(w: Any, a: str, b: str) -> Any:
    return w.add("Sub", a, w.add("Mul", w.add("Floor", w.add("Div", a, b)), b))


#: Of one number.
MAPS = (
    Row("Abs", "abs", "Abs", ranges.magnitude),
    Row("Neg", "neg", "Neg", lambda own: (-own[1], -own[0]), SIGNED),
    Row("Sign", "sign", "Sign", ranges.rising(np.sign), KEPT),
    Row("Exp", "exp", "Exp", POSITIVE),
    Row("Expm1", "expm1", write=lambda w, x: w.add("Sub", w.add("Exp", x), 1.0)),
    Row("Log", "log", "Log"),
    Row("Log1p", "log1p", write=lambda w, x: w.add("Log", w.add("Add", x, 1.0))),
    Row("Sqrt", "sqrt", "Sqrt", ranges.rising(lambda x: np.sqrt(np.maximum(x, 0)))),
    Row("Rsqrt", "rsqrt", write=lambda w, x: w.add("Reciprocal", w.add("Sqrt", x))),
    Row("Reciprocal", "reciprocal", "Reciprocal"),
    Row("Floor", "floor", "Floor", ranges.rising(np.floor), SIGNED),
    Row("Ceil", "ceil", "Ceil", ranges.rising(np.ceil), SIGNED),
    Row("Round", "round", "Round", ranges.rising(np.round), SIGNED),
    Row("Trunc", "trunc", None, ranges.rising(np.trunc), SIGNED, _trunc),
    Row("Sin", "sin", "Sin", (-1.0, 1.0)),
    Row("Cos", "cos", "Cos", (-1.0, 1.0)),
    Row("Erf", "erf", "Erf", (-1.0, 1.0)),
    Row("Erfinv", "erfinv"),
    Row("Lgamma", "lgamma"),
    Row("Digamma", "digamma"),
    Row("Square", "square", None, ranges.square, write=lambda w, x: w.add("Mul", x, x)),
    _truth("Isnan", "isnan", "IsNaN"),
    _truth("Not", "logical_not", "Not", KEPT, lambda w, x: w.add("Equal", x, 0.0)),
)
#: Of one number, and with the names of torch.nn.
ACTIVATIONS = (
    # An approximation.
    _layer("Tanh", "tanh", "Tanh", range=(-1.0 - 1e-6, 1.0 + 1e-6)),
    _layer("ReLU", "relu", "Relu", range=lambda own: (max(own[0], 0.0), max(own[1], 0.0))),
    _layer("Sigmoid", "sigmoid", "Sigmoid", range=(0.0, 1.0)),
    _layer("LogSigmoid", "", None, lambda w, x: w.add("Neg", w.add("Softplus", w.add("Neg", x)))),
    _layer("SiLU", "silu", None, lambda w, x: w.add("Mul", x, w.add("Sigmoid", x))),
    _layer(
        "Mish", "mish", "Mish", lambda w, x: w.add("Mul", x, w.add("Tanh", w.add("Softplus", x)))
    ),
    _layer("Hardswish", "hardswish", "HardSwish"),
    _layer(
        "Hardsigmoid",
        "hardsigmoid",
        None,
        lambda w, x: w.add("HardSigmoid", x, alpha=1 / 6, beta=0.5),
        (0.0, 1.0),
    ),
    _layer("ELU", "", None, _alpha("Elu"), alpha="alpha"),
    _layer("CELU", "celu", None, _alpha("Celu"), alpha="alpha"),
    _layer("LeakyReLU", "leaky_relu", None, _alpha("LeakyRelu"), slope="negative_slope"),
    _layer("Softplus", "softplus", "Softplus", _softplus, beta="beta", threshold="threshold"),
    _layer(
        "Softshrink",
        "softshrink",
        None,
        lambda w, x, bound: w.add("Shrink", x, lambd=bound, bias=bound),
        **{"lambda": "lambd"},
    ),
    _layer(
        "Hardshrink",
        "hardshrink",
        None,
        lambda w, x, bound: w.add("Shrink", x, lambd=bound, bias=0.0),
        **{"lambda": "lambd"},
    ),
    Row(
        "Hardtanh",
        "hardtanh",
        range=lambda own, low, high: (low, high),
        write=lambda w, x, low, high: w.add("Clip", x, low, high),
        numbers={"low": "min_val", "high": "max_val"},
        layers="Hardtanh ReLU6",
    ),
    Row("SELU", "selu", "Selu"),
    Row("GELU", write=lambda w, x: _half(w, x, w.add("Erf", w.add("Mul", x, math.sqrt(0.5))))),
    Row("GELUTanh", write=_gelu_tanh),
    Row(
        "Threshold",
        "threshold",
        write=lambda w, x, least, value: w.add("Where", w.add("Greater", x, least), x, value),
        numbers={"threshold": "threshold", "value": "value"},
    ),
)
#: Of two numbers.
ZIPS = (
    Row("Add", "add", "Add", ranges.corners(lambda a, b: a + b), COMPUTED),
    Row("Sub", "sub rsub", "Sub", ranges.corners(lambda a, b: a - b), COMPUTED),
    Row("Mul", "mul", "Mul", ranges.corners(lambda a, b: a * b), SIGNED | COMPUTED),
    Row("Div", "div floor_divide", "Div", ranges.quotient, SIGNED | COMPUTED),
    Row("Remainder", "remainder", None, ranges.remainder, SIGNED | COMPUTED, _remainder),
    Row("Pow", "pow", "Pow", integers=SIGNED | COMPUTED),
    Row("Max", "maximum", "Max", ranges.corners(max), KEPT | COMPUTED),
    Row("Min", "minimum", "Min", ranges.corners(min), KEPT | COMPUTED),
    Row("Xlogy", "xlogy"),
    _truth("Eq", "eq", "Equal", COMPARED),
    _truth("Ne", "ne", None, COMPARED, lambda w, a, b: w.add("Not", w.add("Equal", a, b))),
    _truth("Lt", "lt", "Less", COMPARED),
    _truth("Le", "le", "LessOrEqual", COMPARED),
    _truth("Gt", "gt", "Greater", COMPARED),
    _truth("Ge", "ge", "GreaterOrEqual", COMPARED),
    _truth("And", "logical_and", "And", KEPT, lambda w, *ab: w.add("And", *map(w.truth, ab))),
    _truth("Or", "logical_or", "Or", KEPT, lambda w, *ab: w.add("Or", *map(w.truth, ab))),
)
#: Of runs of numbers, whose length is the number that each needs.
REDUCTIONS = (
    Row("Sum", "sum", "ReduceSum", ranges.total, NONE, _over_runs("ReduceSum")),
    Row("Prod", "prod", None, ranges.product, SIGNED, _over_runs("ReduceProd")),
    Row("Max", "amax any", "ReduceMax", lambda own, _: own, KEPT, _over_runs("ReduceMax")),
    Row("Min", "amin all", "ReduceMin", lambda own, _: own, KEPT, _over_runs("ReduceMin")),
    Row("Logsumexp", "logsumexp", "ReduceLogSumExp", write=_over_runs("ReduceLogSumExp")),
    Row("Argmax", "argmax", None, lambda _, run: (0.0, run - 1.0), NONE, _place("ArgMax")),
    Row("Argmin", "argmin", None, lambda _, run: (0.0, run - 1.0), NONE, _place("ArgMin")),
)
#: All, by the kind of node that they are in.
TABLE = {"Map": MAPS, "Activation": ACTIVATIONS, "Zip": ZIPS, "Reduce": REDUCTIONS}
_ROWS = {(kind, row.name): row for kind, rows in TABLE.items() for row in rows}


def row_of(kind: str, given: Any) -> tuple[Row, list[float]]:
    """The row of a node of a ``kind`` in :data:`TABLE`, and the numbers that it needs."""
    if isinstance(given, dict):
        kind, given = next(iter(given.items()))
    name, *numbers = given if isinstance(given, list) else [given]
    if isinstance(name, dict):
        name, by_name = next(iter(name.items()))
        numbers = [float(by_name[own]) for own in _ROWS[kind, name].numbers]
    return _ROWS[kind, name], numbers


def range_of(op: Op, sources: Sequence[Range]) -> Range:
    """The numbers that the operation ``op`` of a graph makes of such numbers."""
    kind, given = next(iter(op.items())) if isinstance(op, dict) else (op, None)
    with np.errstate(all="ignore"):
        if kind in TABLE:
            row, numbers = row_of(kind, given)
            low, high = row.range(*sources, *numbers) if callable(row.range) else row.range
        else:
            low, high = ranges.of_others(kind, given, sources)
    return ANY if math.isnan(low) or math.isnan(high) else (low, high)
