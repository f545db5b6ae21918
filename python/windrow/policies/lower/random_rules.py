"""Rules of operations that draw random numbers; see :mod:`windrow.policies.lower.rules`."""

from __future__ import annotations

import torch

from windrow.policies.lower.rules import rule
from windrow.policies.lower.trace import Trace
from windrow.policies.lower.values import Operation, Value


def _noise(trace: Trace, kind: str, op: Operation) -> Value:
    """Random numbers in the shape of the result, whose rows are along the same dimension as those
    of the first argument.
    """
    first = op.args[0] if op.args else None
    known = trace.known(first) if isinstance(first, torch.Tensor) else None
    return trace.noise(
        kind, op.out.shape, None if known is None or known.shape != op.out.shape else known.batch
    )


@rule("rand", "rand_like", "randn", "randn_like")
def _fresh(trace: Trace, op: Operation) -> Value:
    return _noise(trace, "Normal" if op.name.startswith("randn") else "Uniform", op)


@rule("normal", "normal_functional")
def _normal(trace: Trace, op: Operation) -> Value:
    mean, deviation = op("mean"), op("std")
    given = [
        trace.spread(trace.of(one), op.out.shape)
        for one in (mean, deviation)
        if isinstance(one, torch.Tensor)
    ]
    batch = next((value.batch for value in given if value.batch is not None), None)
    noise = trace.noise("Normal", op.out.shape, batch)
    return trace.zip("Add", trace.zip("Mul", noise, deviation), mean)


@rule("uniform")
def _uniform(trace: Trace, op: Operation) -> Value:
    low, high = op("from"), op("to")
    return trace.zip("Add", trace.zip("Mul", _noise(trace, "Uniform", op), high - low), low)


@rule("exponential")
def _exponential(trace: Trace, op: Operation) -> Value:
    return trace.zip(
        "Mul",
        trace.map("Log1p", trace.map("Neg", _noise(trace, "Uniform", op))),
        -1.0 / op("lambd"),
    )


@rule("bernoulli")
def _bernoulli(trace: Trace, op: Operation) -> Value:
    return trace.zip(
        "Lt", _noise(trace, "Uniform", op), op("p", None) if op.has("p") else op("self")
    )


@rule("randint", "randint_like", "random")
def _randint(trace: Trace, op: Operation) -> Value:
    low, high = op("low", None) or op("from", None) or 0, op("high", None) or op("to", None)
    if not isinstance(low, int) or not isinstance(high, int):
        trace.refuse("random integers without bounds")
    noise = trace.map("Floor", trace.zip("Mul", _noise(trace, "Uniform", op), float(high - low)))
    return noise if low == 0 else trace.zip("Add", noise, float(low))


@rule("_standard_gamma", "_sample_dirichlet")
def _gamma(trace: Trace, op: Operation) -> Value:
    value = trace.of(op("self"))
    if value.batch is None:
        value = trace.spread(
            value,
            value.shape,
            next((d for d, n in enumerate(value.shape) if n % trace.rows == 0), None),
        )
    sample = trace.like({"Gamma": trace.branch()}, [value], value.shape, value.batch)
    if op.name == "_standard_gamma":
        return sample
    return trace.zip("Div", sample, trace.reduce("Sum", sample, -1, True))


@rule("multinomial")
def _multinomial(trace: Trace, op: Operation) -> Value:
    value, shape = trace.of(op("self")), op.out.shape
    if op("num_samples") != 1:
        trace.refuse(f"{op('num_samples')} choices at once")
    if value.batch is None:
        value = trace.spread(
            value, value.shape, next((d for d, n in enumerate(shape) if n % trace.rows == 0), None)
        )
    return trace.like(
        {"Pick": value.shape[-1]},
        [value, trace.noise("Uniform", shape, value.batch)],
        shape,
        value.batch,
    )
