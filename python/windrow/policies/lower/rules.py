"""What each operation of torch is in a graph of the engine: rules of
:class:`windrow.policies.lower.trace.Trace`.

A rule is called with the trace and the operation. It returns the value of the result, or one for
each of several results; None where a graph has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from windrow.policies.lower.operations import REDUCTIONS, TABLE, Row
from windrow.policies.lower.trace import Trace
from windrow.policies.lower.values import (
    INTEGERS,
    NONE,
    RULES,
    Found,
    Integers,
    Operand,
    Operation,
    Value,
)

Rule = Callable[[Trace, Operation], Found]
KEPT, COMPUTED = Integers.KEPT, Integers.COMPUTED
CAST = KEPT | Integers.SIGNED | Integers.CAST


def rule(*names: str, integers: Integers = NONE) -> Callable[[Rule], Rule]:
    """Makes a function the rule of these operations. What they do with integers is said by their
    row, if they have one.
    """

    def add(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        INTEGERS.update(dict.fromkeys(names, integers))
        return function

    return add


# Moving


@rule(
    *(
        "view _unsafe_view reshape _reshape_alias unsqueeze squeeze expand t transpose permute "
        "select slice split split_with_sizes unbind alias detach clone contiguous repeat flip "
        "roll movedim diagonal unfold narrow lift_fresh lift cat stack chunk unsafe_chunk "
        "unsafe_split expand_copy"
    ).split(),
    integers=Integers.MOVED,
)
def _moved(trace: Trace, op: Operation) -> Found:
    first, *rest = op.args
    many = isinstance(first, (list, tuple))
    # A value without elements has no places.
    given = first if many else [first]
    values = [trace.of(tensor) if tensor.numel() else None for tensor in given]
    placed = [
        torch.empty(tensor.shape, dtype=torch.int64)
        if value is None
        else trace.places(value, number)
        for number, (tensor, value) in enumerate(zip(given, values))
    ]
    moved = op.func(placed if many else placed[0], *rest, **op.kwargs)
    several = isinstance(moved, (list, tuple))
    nodes = [0 if value is None else value.node for value in values]
    results = [
        trace.moved(one, nodes) if one.numel() else None for one in (moved if several else [moved])
    ]
    return results if several else results[0]


@rule("_to_copy", "to", integers=CAST)
def _cast(trace: Trace, op: Operation) -> Value:
    return _as_type(trace, op("self"), op.out.dtype)


def _as_type(trace: Trace, x: torch.Tensor, dtype: torch.dtype) -> Value:
    value = trace.of(x)
    if dtype == torch.bool and x.dtype != torch.bool:
        return trace.zip("Ne", value, 0.0)
    return (
        trace.map("Trunc", value)
        if x.is_floating_point() and not dtype.is_floating_point
        else value
    )


@rule("copy", integers=CAST)
def _copy(trace: Trace, op: Operation) -> Value:
    return trace.spread(_as_type(trace, op("src"), op.out.dtype), op.out.shape)


@rule("index", integers=KEPT)
def _index(trace: Trace, op: Operation) -> Found:
    x, indices = op("self"), op("indices")
    given = [index for index in indices if index is not None]
    if not any(map(trace.follows, given)):
        return _moved(trace, op)
    value = trace.of(x)
    if any(index.dtype in (torch.bool, torch.uint8) for index in given):
        trace.refuse("a mask for an index")
    if len(indices) == 1 and value.batch is None:
        return _looked_up(trace, value, _wrapped(trace, given[0], x.shape[0]), op.out.shape)
    # x[arange(rows), index]
    if (
        len(given) == 2
        and x.dim() == 2
        and value.batch == 0
        and torch.equal(given[0], torch.arange(trace.rows))
    ):
        index = _wrapped(trace, given[1], x.shape[1])
        return trace.like({"Gather": x.shape[1]}, [value, index], op.out.shape, index.batch)
    trace.refuse("indices that differ by row")


def _wrapped(trace: Trace, index: torch.Tensor, size: int) -> Value:
    """An index, which counts from the end where it is negative."""
    value = trace.of(index)
    if trace.ranges[value.node][0] >= 0:
        return value
    return trace.each(
        "Where", [trace.zip("Lt", value, 0.0), trace.zip("Add", value, float(size)), value]
    )


@rule("index_select")
def _index_select(trace: Trace, op: Operation) -> Found:
    if trace.follows(op("index")):
        trace.refuse("indices that differ by row")
    return _moved(trace, op)


@rule("embedding", integers=KEPT)
def _embedding(trace: Trace, op: Operation) -> Value:
    return _looked_up(trace, trace.of(op("weight")), trace.of(op("indices")), op.out.shape)


def _looked_up(trace: Trace, table: Value, places: Value, shape: Sequence[int]) -> Value:
    """Entries of ``table``, of ``shape``."""
    if table.batch is not None:
        trace.refuse("a table that differs by row")
    return trace.like({"Lookup": math.prod(table.shape[1:])}, [table, places], shape, places.batch)


@rule("gather", integers=KEPT)
def _gather(trace: Trace, op: Operation) -> Value:
    x, index = op("self"), op("index")
    ndim = x.dim()
    dim = op("dim") % ndim
    if any(a != b for d, (a, b) in enumerate(zip(x.shape, index.shape)) if d != dim):
        trace.refuse("gather of a part")
    order = [d for d in range(ndim) if d != dim] + [dim]
    value, places = (
        trace.move(lambda placed: placed.permute(order), trace.of(tensor)) for tensor in (x, index)
    )
    if value.batch is None:
        value = trace.spread(value, value.shape, places.batch)
    if value.batch is not None and places.batch is None:
        places = trace.spread(places, places.shape, value.batch)
    if value.batch == ndim - 1 or value.batch != places.batch:
        trace.refuse("rows are mixed")
    result = trace.like({"Gather": value.shape[-1]}, [value, places], places.shape, places.batch)
    return trace.move(lambda placed: placed.permute([order.index(d) for d in range(ndim)]), result)


@rule("nll_loss_forward", integers=KEPT)
def _nll_loss(trace: Trace, op: Operation) -> Found:
    x = op("self")
    if op("reduction") != 0 or op("weight") is not None or x.dim() != 2:
        trace.refuse("a loss")
    places = trace.move(lambda placed: placed.unsqueeze(-1), trace.of(op("target")))
    # Others are errors, but for one that is left out.
    trace.claim("targets of a loss", (places.node, (0.0, math.inf)))
    chosen = trace.like({"Gather": x.shape[1]}, [trace.of(x), places], places.shape, places.batch)
    return [trace.map("Neg", trace.move(lambda placed: placed.squeeze(-1), chosen)), None]


# Element by element


@rule("round")
def _round(trace: Trace, op: Operation) -> Value:
    if op("decimals", 0) != 0:
        trace.refuse("rounds to decimals")
    return trace.map("Round", trace.of(op("self")))


@rule("bitwise_not")
def _bitwise_not(trace: Trace, op: Operation) -> Value:
    if op.out.dtype != torch.bool:
        trace.refuse("bits of integers")
    return trace.map("Not", trace.of(op("self")))


@rule("gelu")
def _gelu(trace: Trace, op: Operation) -> Value:
    return trace.activation(
        "GELUTanh" if op("approximate") == "tanh" else "GELU", trace.of(op("self"))
    )


@rule("elu")
def _elu(trace: Trace, op: Operation) -> Value:
    value, alpha, scale, rate = trace.of(op("self")), op("alpha"), op("scale"), op("input_scale")
    if rate == 1:
        result = trace.activation("ELU", value, alpha=alpha)
        return result if scale == 1 else trace.zip("Mul", result, scale)
    if not math.isclose(alpha * rate, 1.0, rel_tol=1e-6) or scale != 1:
        trace.refuse("elu with another input_scale than that of celu")
    return trace.activation("CELU", value, alpha=alpha)


@rule("_prelu_kernel")
def _prelu(trace: Trace, op: Operation) -> Value:
    value = trace.of(op("self"))
    return trace.each(
        "Where", [trace.zip("Gt", value, 0.0), value, trace.zip("Mul", value, op("weight"))]
    )


@rule("log_sigmoid_forward")
def _log_sigmoid(trace: Trace, op: Operation) -> Found:
    return [trace.activation("LogSigmoid", trace.of(op("self"))), None]


@rule("clamp", "clamp_min", "clamp_max", integers=KEPT | COMPUTED)
def _clamp(trace: Trace, op: Operation) -> Value:
    value = trace.of(op("self"))
    for kind, bound in (("Max", op("min", None)), ("Min", op("max", None))):
        value = value if bound is None else trace.zip(kind, value, bound)
    return value


@rule("pow")
def _pow(trace: Trace, op: Operation) -> Value:
    exponent = op("exponent")
    if not op.out.dtype.is_floating_point:
        if not isinstance(exponent, int) or not 1 <= exponent <= 8:
            trace.refuse("a power of integers")
        value = base = trace.of(op("self"))
        for _ in range(exponent - 1):
            value = trace.zip("Mul", value, base)
        return value
    return trace.zip("Pow", op("self"), op("exponent"))


@rule("bitwise_and", "bitwise_or", "bitwise_xor", integers=COMPUTED)
def _bitwise(trace: Trace, op: Operation) -> Value:
    if op.out.dtype != torch.bool:
        trace.refuse("bits of integers")
    return trace.zip(
        {"and": "And", "or": "Or", "xor": "Ne"}[op.name.rsplit("_", 1)[-1]], op("self"), op("other")
    )


@rule("add", "sub", "rsub")
def _add(trace: Trace, op: Operation) -> Value:
    a, b, alpha = op("self"), op("other"), op("alpha", 1)
    if op.name == "rsub":
        a, b = b, a if alpha == 1 else trace.zip("Mul", a, alpha)
    elif alpha != 1:
        b = trace.zip("Mul", b, alpha)
    return trace.zip("Add" if op.name == "add" else "Sub", a, b)


@rule("div", "floor_divide")
def _div(trace: Trace, op: Operation) -> Value:
    rounding = "floor" if op.name == "floor_divide" else op("rounding_mode", None)
    a, b = trace.of(op("self")), trace.of(op("other"))
    quotient = trace.zip("Div", a, op("other"))
    if rounding is None:
        return quotient
    if not op.out.dtype.is_floating_point:
        _check_divisor(trace, b)
    elif rounding == "floor":
        # Exact, where the quotient may be rounded up to an integer.
        whole = trace.map(
            "Round", trace.zip("Div", trace.zip("Sub", a, trace.zip("Remainder", a, b)), b)
        )
        return trace.each("Where", [trace.zip("Eq", b, 0.0), quotient, whole])
    return trace.map(rounding.capitalize(), quotient)


def _check_divisor(trace: Trace, divisor: Value) -> None:
    """Integers divided by 0 are an error."""
    trace.claim(
        "divides by integers",
        *((divisor.node, limits) for limits in ((1.0, math.inf), (-math.inf, -1.0))),
    )


@rule("remainder")
def _remainder(trace: Trace, op: Operation) -> Value:
    if not op.out.dtype.is_floating_point:
        _check_divisor(trace, trace.of(op("other")))
    return trace.zip("Remainder", op("self"), op("other"))


@rule("glu")
def _glu(trace: Trace, op: Operation) -> Value:
    value, dim = trace.of(op("self")), op("dim")
    a, b = (
        trace.move(lambda placed, half=half: placed.chunk(2, dim)[half], value) for half in (0, 1)
    )
    return trace.zip("Mul", a, trace.activation("Sigmoid", b))


@rule("addcmul", "addcdiv")
def _addc(trace: Trace, op: Operation) -> Value:
    both = trace.zip("Mul" if op.name == "addcmul" else "Div", op("tensor1"), op("tensor2"))
    return trace.zip("Add", op("self"), trace.zip("Mul", both, op("value")))


@rule("lerp")
def _lerp(trace: Trace, op: Operation) -> Value:
    a, b = op("self"), op("end")
    return trace.zip("Add", a, trace.zip("Mul", trace.zip("Sub", b, a), op("weight")))


@rule("where", "masked_fill", integers=KEPT | COMPUTED)
def _where(trace: Trace, op: Operation) -> Value:
    names = ("condition", "self", "other") if op.name == "where" else ("mask", "value", "self")
    return trace.each("Where", [trace.of(op(name)) for name in names], op.out.shape)


@rule("atanh")
def _atanh(trace: Trace, op: Operation) -> Value:
    value = trace.of(op("self"))
    logs = [trace.map("Log1p", one) for one in (value, trace.map("Neg", value))]
    return trace.zip("Mul", trace.zip("Sub", *logs), 0.5)


@rule("erfc")
def _erfc(trace: Trace, op: Operation) -> Value:
    return trace.zip("Sub", 1.0, trace.map("Erf", trace.of(op("self"))))


@rule("isfinite", "isinf")
def _isfinite(trace: Trace, op: Operation) -> Value:
    return trace.zip(
        "Lt" if op.name == "isfinite" else "Eq", trace.map("Abs", trace.of(op("self"))), math.inf
    )


@rule("nan_to_num")
def _nan_to_num(trace: Trace, op: Operation) -> Value:
    if not op.out.dtype.is_floating_point:
        return trace.of(op("self"))
    value, limits = trace.of(op("self")), torch.finfo(op.out.dtype)
    value = trace.each("Where", [trace.map("Isnan", value), trace.of(op("nan") or 0.0), value])
    for infinity, given, limit in (
        (math.inf, op("posinf"), limits.max),
        (-math.inf, op("neginf"), limits.min),
    ):
        replaced = trace.of(limit if given is None else given)
        value = trace.each("Where", [trace.zip("Eq", value, infinity), replaced, value])
    return value


@rule("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "zero")
def _alike(trace: Trace, op: Operation) -> Value:
    return trace.constant(op.out)


@rule("fill", integers=KEPT)
def _fill(trace: Trace, op: Operation) -> Value:
    return trace.spread(trace.of(op("value")), op.out.shape)


@rule("empty_like", "new_empty")
def _empty(trace: Trace, op: Operation) -> None:
    """What has never been written is no value of anything."""


# Along dimensions

_REDUCED = {name: row.name for row in REDUCTIONS for name in row.torch.split()}


@rule(*_REDUCED, "mean")
def _reduce(trace: Trace, op: Operation) -> Value | None:
    x, dim = op("self"), op("dim", None)
    value = trace.of(x)
    if op.name == "any" and dim is None and value.node in trace.flags:
        trace.asked = True
        return None
    if op.name in ("any", "all") and x.dtype != torch.bool:
        value = trace.zip("Ne", value, 0.0)
    elif not op.out.dtype.is_floating_point:
        # Rounded before it is added up.
        value = _as_type(trace, x, op.out.dtype)
    result = trace.reduce(_REDUCED.get(op.name, "Sum"), value, dim, op("keepdim", False))
    return trace.zip("Div", result, x.numel() // op.out.numel()) if op.name == "mean" else result


@rule("var", "std")
def _variance(trace: Trace, op: Operation) -> Value:
    value, dim = trace.of(op("self")), op("dim")
    count = op("self").numel() // op.out.numel()
    mean = trace.zip("Div", trace.reduce("Sum", value, dim, True), count)
    squares = trace.map("Square", trace.zip("Sub", value, mean))
    free = count - (1 if op("correction") is None else op("correction"))
    variance = trace.zip("Div", trace.reduce("Sum", squares, dim, op("keepdim")), max(free, 0))
    return variance if op.name == "var" else trace.map("Sqrt", variance)


@rule("argmax", "argmin")
def _arg(trace: Trace, op: Operation) -> Value:
    return trace.reduce(op.name.capitalize(), trace.of(op("self")), op("dim"), op("keepdim"))


@rule("max", "min")
def _extreme(trace: Trace, op: Operation) -> Found:
    kind, other, dim = op.name.capitalize(), op("other", None), op("dim", None)
    if other is not None:
        return trace.zip(kind, op("self"), other)
    if dim is None:
        return trace.reduce(kind, trace.of(op("self")), None)
    return [
        trace.reduce(one, trace.of(op("self")), dim, op("keepdim"))
        for one in (kind, f"Arg{op.name}")
    ]


@rule("linalg_vector_norm")
def _norm(trace: Trace, op: Operation) -> Value:
    if op("ord") != 2:
        trace.refuse(f"a norm of order {op('ord')}")
    return _length(trace, trace.of(op("self")), op("dim"), op("keepdim"))


def _length(trace: Trace, value: Value, dims: Any, keepdim: bool) -> Value:
    return trace.map("Sqrt", trace.reduce("Sum", trace.map("Square", value), dims, keepdim))


@rule("_weight_norm_interface")
def _weight_norm(trace: Trace, op: Operation) -> Found:
    value = trace.of(op("v"))
    others = [one for one in range(len(value.shape)) if one != op("dim") % len(value.shape)]
    return [
        trace.zip("Mul", value, trace.zip("Div", op("g"), _length(trace, value, others, True))),
        None,
    ]


@rule("_softmax", "_log_softmax")
def _softmax(trace: Trace, op: Operation) -> Value:
    name = "LogSoftmax" if op.name == "_log_softmax" else "Softmax"
    return trace.runs(lambda run: {name: run}, trace.of(op("self")), [op("dim")], reduces=False)


@rule("native_layer_norm")
def _layer_norm(trace: Trace, op: Operation) -> Found:
    value, dims = trace.of(op("input")), len(op("normalized_shape"))
    return [layer_norm(trace, value, dims, op("eps"), op("weight"), op("bias")), None, None]


def layer_norm(
    trace: Trace,
    value: Value,
    dims: int,
    eps: float,
    weight: Operand | None,
    bias: Operand | None,
) -> Value:
    """``value`` normalised along its last dimensions, ``dims`` of them."""
    last = range(len(value.shape) - dims, len(value.shape))
    result = trace.runs(
        lambda run: {"Normalize": {"run": run, "eps": eps}}, value, last, reduces=False
    )
    return _scaled(trace, result, weight, bias)


@rule("native_group_norm")
def _group_norm(trace: Trace, op: Operation) -> Found:
    value, groups = trace.of(op("input")), op("group")
    shape = value.shape
    grouped = trace.move(lambda placed: placed.reshape(shape[0], groups, -1), value)
    normal = trace.runs(
        lambda run: {"Normalize": {"run": run, "eps": op("eps")}}, grouped, [-1], reduces=False
    )
    normal = trace.move(lambda placed: placed.reshape(shape), normal)
    given = [op(name) for name in ("weight", "bias")]
    scales = [None if one is None else _channel(trace, one, len(shape)) for one in given]
    return [_scaled(trace, normal, *scales), None, None]


def _channel(trace: Trace, given: Operand, dims: int) -> Value:
    """A number for each channel, in the shape that broadcasts to a value of ``dims`` dimensions."""
    return trace.move(lambda placed: placed.view(-1, *[1] * (dims - 2)), trace.of(given))


def _scaled(trace: Trace, value: Value, weight: Operand | None, bias: Operand | None) -> Value:
    value = value if weight is None else trace.zip("Mul", value, weight)
    return value if bias is None else trace.zip("Add", value, bias)


@rule("native_batch_norm", "_native_batch_norm_legit_no_training")
def _batch_norm(trace: Trace, op: Operation) -> Found:
    value, weight, bias = trace.of(op("input")), op("weight"), op("bias")
    if op("training", False) or op("running_mean") is None:
        trace.refuse("batch normalisation by the numbers of a batch")

    def channel(given: Operand) -> Value:
        return _channel(trace, given, len(value.shape))

    scale = trace.map("Rsqrt", trace.zip("Add", op("running_var"), op("eps")))
    scale = scale if weight is None else trace.zip("Mul", scale, weight)
    centred = trace.zip("Sub", value, channel(op("running_mean")))
    result = _scaled(trace, centred, channel(scale), None if bias is None else channel(bias))
    return [result, None, None]


# Products


@rule("bmm", "baddbmm")
def _bmm(trace: Trace, op: Operation) -> Value:
    if op.name == "bmm":
        return trace.matmul(trace.of(op("self")), trace.of(op("mat2")))
    product = trace.matmul(trace.of(op("batch1")), trace.of(op("batch2")))
    beta, alpha = op("beta"), op("alpha")
    product = trace.zip("Mul", product, alpha)
    return product if beta == 0 else trace.zip("Add", trace.zip("Mul", op("self"), beta), product)


@rule("_scaled_dot_product_flash_attention_for_cpu")
def _attention(trace: Trace, op: Operation) -> Found:
    query, key, value = (trace.of(op(name)) for name in ("query", "key", "value"))
    if op("dropout_p") or query.shape[:2] != key.shape[:2] or key.shape[:2] != value.shape[:2]:
        trace.refuse("attention with dropout, or of groups of heads")
    (*heads, length, width), others = query.shape, key.shape[2]
    scale = op("scale")

    def flat(given: Value) -> Value:
        return trace.move(lambda placed: placed.flatten(0, 1), given)

    turned = trace.move(lambda placed: placed.transpose(1, 2), flat(key))
    scores = trace.matmul(
        flat(trace.zip("Mul", query, width**-0.5 if scale is None else scale)), turned
    )
    scores = trace.move(lambda placed: placed.unflatten(0, tuple(heads)), scores)
    if op("is_causal"):
        scores = trace.zip("Add", scores, torch.full((length, others), -math.inf).triu(1))
    if op("attn_mask") is not None:
        scores = trace.zip("Add", scores, op("attn_mask"))
    chosen = trace.matmul(flat(_safe_softmax(trace, scores, -1)), flat(value))
    return [trace.move(lambda placed: placed.unflatten(0, tuple(heads)), chosen), None]


@rule("_safe_softmax")
def _safely(trace: Trace, op: Operation) -> Value:
    return _safe_softmax(trace, trace.of(op("self")), op("dim"))


def _safe_softmax(trace: Trace, value: Value, dim: int) -> Value:
    """A softmax that is 0 where there is nothing to choose from."""
    nothing = trace.zip("Eq", trace.reduce("Max", value, dim, True), -math.inf)
    soft = trace.runs(lambda run: {"Softmax": run}, value, [dim], reduces=False)
    return trace.each("Where", [nothing, trace.of(0.0), soft], value.shape)


@rule("addmm")
def _addmm(trace: Trace, op: Operation) -> Value:
    if op("beta") != 1 or op("alpha") != 1:
        trace.refuse("addmm with factors")
    return trace.linear(trace.of(op("mat1")), _transposed(trace, op("mat2")), trace.of(op("self")))


@rule("mm")
def _mm(trace: Trace, op: Operation) -> Value:
    return trace.linear(trace.of(op("self")), _transposed(trace, op("mat2")))


def _transposed(trace: Trace, weight: torch.Tensor) -> Value:
    return trace.move(lambda placed: placed.t(), trace.of(weight))


@rule("_trilinear")
def _trilinear(trace: Trace, op: Operation) -> Value:
    values = []
    for number in "123":
        value = trace.of(op(f"i{number}"))
        for dim in op(f"expand{number}"):
            value = trace.move(lambda placed, dim=dim: placed.unsqueeze(dim), value)
        values.append(value)
    product = trace.zip("Mul", trace.zip("Mul", values[0], values[1]), values[2])
    return trace.reduce("Sum", product, op("sumdim"))


@rule("mv")
def _mv(trace: Trace, op: Operation) -> Value:
    row = trace.move(lambda placed: placed.unsqueeze(0), trace.of(op("vec")))
    return trace.move(lambda placed: placed.squeeze(0), trace.linear(row, trace.of(op("self"))))


@rule("dot", "vdot")
def _dot(trace: Trace, op: Operation) -> Value:
    return trace.reduce(
        "Sum",
        trace.zip("Mul", op("self"), op("other", None) if op.has("other") else op("tensor")),
        None,
    )


@rule("mkldnn_rnn_layer")
def _lstm_layer(trace: Trace, op: Operation) -> Found:
    x, size = op("input"), op("hidden_size")
    if op("mode") != 2 or op("bidirectional") or op("reverse") or x.shape[0] != 1:
        trace.refuse("an LSTM of several steps, or one that runs backwards")

    def flat(given: torch.Tensor) -> Value:
        return trace.move(lambda placed: placed.reshape(-1, placed.shape[-1]), trace.of(given))

    old, state = flat(op("cx_")), flat(op("hx_"))
    weights = [trace.of(op(f"weight{number}")) for number in range(4)]
    gates = trace.zip(
        "Add",
        trace.linear(flat(x), weights[0], weights[2]),
        trace.linear(state, weights[1], weights[3]),
    )
    i, f, g, o = (
        trace.move(lambda placed, k=k: placed[:, k * size : (k + 1) * size], gates)
        for k in range(4)
    )
    i, f, o = (trace.activation("Sigmoid", gate) for gate in (i, f, o))
    kept = trace.zip("Mul", f, old)
    new = trace.zip("Add", kept, trace.zip("Mul", i, trace.activation("Tanh", g)))
    given = trace.zip("Mul", o, trace.activation("Tanh", new))
    results = zip((given, given, new), op.out)
    return [
        *(
            trace.move(lambda placed, shape=one.shape: placed.reshape(shape), value)
            for value, one in results
        ),
        None,
    ]


# Rows


def _computed(kind: str, row: Row) -> Rule:
    """The rule of operations that have no more options than the numbers of their row."""

    def found(trace: Trace, op: Operation) -> Value:
        if kind == "Zip":
            return trace.zip(row.name, op("self"), op("other"))
        value = trace.of(op("self"))
        if kind == "Map":
            return trace.map(row.name, value)
        numbers = {own: float(op(theirs)) for own, theirs in row.numbers.items()}
        return trace.activation(row.name, value, **numbers)

    return found


for _kind, _rows in TABLE.items():
    for _row in _rows:
        for _name in _row.torch.split():
            RULES.setdefault(_name, _computed(_kind, _row))
            INTEGERS[_name] = _row.integers
