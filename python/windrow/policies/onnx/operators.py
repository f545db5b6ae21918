"""Operators of ONNX as functions of torch, so that a trace reads them as it reads any module: those
that graphs of the engine have.

Each takes a node's inputs, None for one that is left out, and its attributes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch.nn import functional

from windrow.policies.lower.operations import TABLE

Inputs = Sequence[torch.Tensor | None]
#: What each operator computes: a tensor, or several.
OPERATORS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {}
#: Element types by their numbers in ONNX.
TYPES = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    16: torch.bfloat16,
}


F = TypeVar("F", bound=Callable[..., Any])


class UnknownOperator(Exception):
    """An operator, or a form of one, that graphs of the engine do not have."""


def operator(*names: str) -> Callable[[F], F]:
    def add(function: F) -> F:
        OPERATORS.update(dict.fromkeys(names, function))
        return function

    return add


def _each(function: Callable[..., torch.Tensor]) -> Callable[[Any, dict[str, Any]], Any]:
    return lambda x, a: function(*x)


def _torch(names: str) -> Any:
    """The function of the first operation of a row."""
    name = names.split()[0]
    return getattr(torch, name, None) or getattr(functional, name)


# An operator that has attributes, or other inputs, has a function of its own below.
OPERATORS.update(
    {
        row.onnx: _each(_torch(row.torch))
        for kind in ("Map", "Activation", "Zip")
        for row in TABLE[kind]
        if row.onnx is not None
    }
)
OPERATORS.update(
    {
        "Identity": lambda x, a: x[0],
        # Outside of training.
        "Dropout": lambda x, a: x[0],
        "Xor": _each(torch.logical_xor),
        "Where": _each(torch.where),
        "MatMul": _each(torch.matmul),
        "IsInf": _each(torch.isinf),
        "Softsign": _each(functional.softsign),
        "LeakyRelu": lambda x, a: functional.leaky_relu(x[0], a.get("alpha", 0.01)),
        "Elu": lambda x, a: functional.elu(x[0], a.get("alpha", 1.0)),
        "Celu": lambda x, a: functional.celu(x[0], a.get("alpha", 1.0)),
        "HardSigmoid": lambda x, a: (x[0] * a.get("alpha", 0.2) + a.get("beta", 0.5)).clamp(
            0.0, 1.0
        ),
        "ThresholdedRelu": lambda x, a: functional.threshold(x[0], a.get("alpha", 1.0), 0.0),
        "Swish": lambda x, a: x[0] * torch.sigmoid(x[0] * a.get("alpha", 1.0)),
        "Gelu": lambda x, a: functional.gelu(x[0], approximate=a.get("approximate", "none")),
        "PRelu": lambda x, a: torch.where(x[0] > 0, x[0], x[0] * x[1]),
        "Cast": lambda x, a: x[0].to(TYPES[a["to"]]),
        "CastLike": lambda x, a: x[0].to(x[1].dtype),
        "Concat": lambda x, a: torch.cat(list(x), a["axis"]),
        "Transpose": lambda x, a: x[0].permute(a.get("perm", list(range(x[0].dim()))[::-1])),
        "Flatten": lambda x, a: x[0].reshape(math.prod(x[0].shape[: a.get("axis", 1)]), -1),
        "Shape": lambda x, a: torch.tensor(
            list(x[0].shape)[a.get("start", 0) : a.get("end", None)], dtype=torch.int64
        ),
        "Size": lambda x, a: torch.tensor(x[0].numel()),
        "Expand": lambda x, a: x[0].expand(
            torch.broadcast_shapes(x[0].shape, tuple(x[1].tolist()))
        ),
        "Tile": lambda x, a: x[0].repeat(x[1].tolist()),
        "GatherElements": lambda x, a: torch.gather(
            x[0], a.get("axis", 0), _wrapped(x[1], x[0].shape[a.get("axis", 0)])
        ),
        "RandomNormalLike": lambda x, a: (
            torch.randn_like(x[0]) * a.get("scale", 1.0) + a.get("mean", 0.0)
        ),
        "RandomUniformLike": lambda x, a: (
            torch.rand_like(x[0]) * (a.get("high", 1.0) - a.get("low", 0.0)) + a.get("low", 0.0)
        ),
    }
)


def _wrapped(index: torch.Tensor, size: int) -> torch.Tensor:
    return torch.where(index < 0, index + size, index)


@operator("Selu")
def _selu(x: Any, a: dict[str, Any]) -> torch.Tensor:
    alpha, gamma = (
        a.get("alpha", 1.67326319217681884765625),
        a.get("gamma", 1.05070102214813232421875),
    )
    return functional.elu(x[0], alpha) * gamma


@operator("Div")
def _div(x: Any, a: dict[str, Any]) -> torch.Tensor:
    return torch.div(x[0], x[1], rounding_mode=None if x[0].dtype.is_floating_point else "trunc")


@operator("Mod")
def _mod(x: Any, a: dict[str, Any]) -> torch.Tensor:
    if a.get("fmod", 0):
        raise UnknownOperator("Mod with fmod")
    return torch.remainder(x[0], x[1])


@operator("Pow")
def _pow(x: Any, a: dict[str, Any]) -> torch.Tensor:
    base, exponent = x
    if exponent.numel() == 1 and exponent.dim() <= base.dim():
        # A number, whose square is a product.
        return torch.pow(base, exponent.item())
    return torch.pow(base, exponent)


@operator("Gemm")
def _gemm(x: Any, a: dict[str, Any]) -> torch.Tensor:
    left, right = (one.t() if a.get(f"trans{name}", 0) else one for name, one in zip("AB", x))
    alpha, beta, added = a.get("alpha", 1.0), a.get("beta", 1.0), x[2] if len(x) > 2 else None
    if alpha == beta == 1.0 and (added is None or added.dim() == 1):
        return functional.linear(left, right.t(), added)
    product = left @ right * alpha
    return product if added is None else product + added * beta


@operator("Clip")
def _clip(x: Any, a: dict[str, Any]) -> torch.Tensor:
    low, high = (
        bound if bound is not None else a.get(name)
        for bound, name in zip([*x[1:], None, None], ("min", "max"))
    )
    result = x[0]
    if low is not None:
        result = torch.maximum(result, torch.as_tensor(low, dtype=result.dtype))
    return (
        result if high is None else torch.minimum(result, torch.as_tensor(high, dtype=result.dtype))
    )


@operator("Max", "Min", "Sum", "Mean")
def _several(x: Any, a: dict[str, Any]) -> torch.Tensor:
    kind = a["operator"]
    function = {"Max": torch.maximum, "Min": torch.minimum}.get(kind, torch.add)
    result = x[0]
    for other in x[1:]:
        result = function(result, other)
    return result / len(x) if kind == "Mean" else result


@operator("Reshape")
def _reshape(x: Any, a: dict[str, Any]) -> torch.Tensor:
    sizes = x[1].tolist()
    if not a.get("allowzero", 0):
        sizes = [x[0].shape[place] if size == 0 else size for place, size in enumerate(sizes)]
    return x[0].reshape(sizes)


def _axes(x: Any, a: dict[str, Any], place: int = 1) -> list[int] | None:
    """Axes that are an input since one version of ONNX, and were an attribute before."""
    given = x[place] if len(x) > place else None
    found: list[int] | None = a.get("axes") if given is None else given.reshape(-1).tolist()
    return found


@operator("Squeeze")
def _squeeze(x: Any, a: dict[str, Any]) -> torch.Tensor:
    axes = _axes(x, a)
    return x[0].squeeze() if axes is None else x[0].squeeze(tuple(axes))


@operator("Unsqueeze")
def _unsqueeze(x: Any, a: dict[str, Any]) -> torch.Tensor:
    axes, result = _axes(x, a) or [], x[0]
    for axis in sorted(axis % (x[0].dim() + len(axes)) for axis in axes):
        result = result.unsqueeze(axis)
    return result


@operator("Slice")
def _slice(x: Any, a: dict[str, Any]) -> torch.Tensor:
    given = [one.tolist() for one in x[1:3]] if len(x) > 1 else [a["starts"], a["ends"]]
    axes = _axes(x, a, 3) or range(len(given[0]))
    steps = x[4].tolist() if len(x) > 4 and x[4] is not None else [1] * len(given[0])
    result = x[0]
    for start, end, axis, step in zip(*given, axes, steps):
        if step < 1:
            raise UnknownOperator("Slice backwards")
        places = [slice(None)] * result.dim()
        places[axis] = slice(start, end, step)
        result = result[tuple(places)]
    return result


@operator("Split")
def _split(x: Any, a: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    axis, sizes = (
        a.get("axis", 0),
        x[1].tolist() if len(x) > 1 and x[1] is not None else a.get("split"),
    )
    if sizes is None:
        size = -(-x[0].shape[axis] // a["outputs"])
        return tuple(torch.split(x[0], size, axis))
    return tuple(torch.split(x[0], sizes, axis))


@operator("ConstantOfShape")
def _filled(x: Any, a: dict[str, Any]) -> torch.Tensor:
    value = a.get("value", torch.zeros(1))
    return torch.full(x[0].tolist(), value.item(), dtype=value.dtype)


@operator("Range")
def _range(x: Any, a: dict[str, Any]) -> torch.Tensor:
    return torch.arange(*(one.item() for one in x))


@operator("Gather")
def _gather(x: Any, a: dict[str, Any]) -> torch.Tensor:
    data, index = x
    axis = a.get("axis", 0) % data.dim()
    places = [slice(None)] * axis
    return data[(*places, _wrapped(index, data.shape[axis]))]


REDUCTIONS: dict[str, Callable[[torch.Tensor, list[int], bool], torch.Tensor]] = {
    **{row.onnx: _torch(row.torch) for row in TABLE["Reduce"] if row.onnx is not None},
    "ReduceMean": torch.mean,
    "ReduceL2": lambda x, axes, keep: x.square().sum(axes, keep).sqrt(),
    "ReduceL1": lambda x, axes, keep: x.abs().sum(axes, keep),
    "ReduceSumSquare": lambda x, axes, keep: x.square().sum(axes, keep),
}


@operator(*REDUCTIONS)
def _reduce(x: Any, a: dict[str, Any]) -> torch.Tensor:
    axes = _axes(x, a)
    if not axes:
        if a.get("noop_with_empty_axes", 0):
            return x[0]
        axes = list(range(x[0].dim()))
    return REDUCTIONS[a["operator"]](x[0], axes, bool(a.get("keepdims", 1)))


@operator("ArgMax", "ArgMin")
def _arg(x: Any, a: dict[str, Any]) -> torch.Tensor:
    if a.get("select_last_index", 0):
        raise UnknownOperator(f"{a['operator']} with select_last_index")
    function = torch.argmax if a["operator"] == "ArgMax" else torch.argmin
    return function(x[0], a.get("axis", 0), bool(a.get("keepdims", 1)))


@operator("Softmax", "LogSoftmax")
def _softmax(x: Any, a: dict[str, Any]) -> torch.Tensor:
    axis = a.get("axis", -1 if a["version"] >= 13 else 1)
    if a["version"] < 13 and axis % x[0].dim() != x[0].dim() - 1:
        raise UnknownOperator(f"{a['operator']} of several axes")
    return (torch.softmax if a["operator"] == "Softmax" else torch.log_softmax)(x[0], axis)


@operator("LayerNormalization")
def _layer_norm(x: Any, a: dict[str, Any]) -> torch.Tensor:
    axis = a.get("axis", -1) % x[0].dim()
    return functional.layer_norm(
        x[0], list(x[0].shape[axis:]), x[1], x[2] if len(x) > 2 else None, a.get("epsilon", 1e-5)
    )


@operator("BatchNormalization")
def _batch_norm(x: Any, a: dict[str, Any]) -> torch.Tensor:
    if a.get("training_mode", 0):
        raise UnknownOperator("BatchNormalization in training mode")
    scale, bias, mean, variance = x[1:5]
    return functional.batch_norm(
        x[0], mean, variance, scale, bias, False, 0.0, a.get("epsilon", 1e-5)
    )
