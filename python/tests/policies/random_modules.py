"""Random modules of floats, and operations of integers of every type: what windrow evaluates
natively beside what torch computes.

``python python/tests/policies/random_modules.py --count 3000 --seed 0`` compares as many modules as
asked for, and all operations, and prints counts.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from windrow._windrow import evaluate_graph
from windrow.policies.lower.rules import RULES
from windrow.policies.lower.trace import Calls, Trace
from windrow.policies.lower.values import NotLowerable
from windrow.policies.weights import tensors_of

assert RULES

Tensor = torch.Tensor


class Apply(nn.Module):
    """A function of what is observed, of some layers and, so that it has a weight, of 1."""

    def __init__(self, function: Callable[..., Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.layers)


# Natively


@dataclass
class Native:
    """A module that windrow reads; it is called with tensors of ``dtype``."""

    module: nn.Module
    graph: str
    used: list[str]

    def __call__(self, x: Tensor) -> Tensor:
        asked = {
            "graph": self.graph,
            "weights": tensors_of(self.module),
            "used": self.used,
            "reads_init": False,
        }
        flat = x.reshape(len(x), -1).float().contiguous()
        count = len(json.loads(self.graph)["inputs"])
        own: Tensor = evaluate_graph(asked, [flat] * count, len(x))[0]
        return own


def lowered(
    module: nn.Module, observe: Callable[[int], Tensor], low: Any = None, high: Any = None
) -> Native:
    """``module`` as a graph, for the observations that ``observe`` gives for a number of rows.

    Raises:
        NotLowerable: torch has to evaluate it.
    """
    found = []
    for rows in (37, 41):
        trace, x = Trace(rows, tensors_of(module)), observe(rows)
        trace.input(x, low=low, high=high)
        with torch.no_grad():
            try:
                with trace, Calls(trace):
                    out = module(x)
            except Exception:
                if trace.doubt is not None:
                    raise NotLowerable(trace.doubt) from None
                raise
        if trace.doubt is not None:
            raise NotLowerable(trace.doubt)
        graph, nodes, inputs, used = trace.graph([trace.spread(trace.output(out), out.shape, 0)])
        read = [{"Observation": leaf("observation", x)} for _ in inputs]
        found.append(
            (
                json.dumps(
                    {"graph": graph, "inputs": read, "outputs": [[leaf("action", out), nodes[0]]]}
                ),
                used,
            )
        )
    if found[0] != found[1]:
        raise NotLowerable("it computes something else for another number of rows")
    return Native(module, *found[0])


def leaf(key: str, tensor: Tensor) -> dict[str, Any]:
    return {
        "key": [key],
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape[1:]),
    }


# Random modules of floats

Block = Callable[[int, random.Random], tuple[nn.Module, int]]
BLOCKS: dict[str, Block] = {}


def block(name: str, make: Block) -> None:
    BLOCKS[name] = make


def same(name: str, function: Callable[[Tensor], Tensor]) -> None:
    """A function that keeps the width."""
    block(name, lambda width, rng: (Apply(function), width))


def module(name: str, make: Callable[[int], nn.Module]) -> None:
    block(name, lambda width, rng: (make(width), width))


def sized(name: str, make: Callable[[int, random.Random], nn.Module]) -> None:
    """A layer to a width of its own."""

    def add(width: int, rng: random.Random) -> tuple[nn.Module, int]:
        outputs = rng.randint(1, 24)
        torch.manual_seed(rng.randrange(2**31))
        return _linear(make, width, outputs), outputs

    def _linear(make: Any, width: int, outputs: int) -> nn.Module:
        layer: nn.Module = make(width, outputs)
        return layer

    block(name, add)


for _repeat in range(4):
    sized(f"linear {_repeat}", nn.Linear)
sized("linear without bias", lambda width, outputs: nn.Linear(width, outputs, bias=False))
sized(
    "bilinear",
    lambda width, outputs: Apply(
        lambda x, layer: layer(x, x.flip(-1)), nn.Bilinear(width, width, outputs)
    ),
)
sized(
    "einsum",
    lambda width, outputs: Apply(
        lambda x, layer: torch.einsum("bi,oi->bo", x, layer.weight), nn.Linear(width, outputs)
    ),
)
sized(
    "large weights",
    lambda width, outputs: Apply(lambda x, layer: layer(x) * 100, nn.Linear(width, outputs)),
)
for _name in (
    "Tanh ReLU Sigmoid SiLU GELU ELU CELU SELU Softplus Mish Hardtanh Hardsigmoid Hardswish Softsign LogSigmoid Tanhshrink Softshrink "
    "Hardshrink LeakyReLU PReLU ReLU6"
).split():
    module(_name, lambda width, _name=_name: getattr(nn, _name)())
module("GELU by tanh", lambda width: nn.GELU(approximate="tanh"))
module("Threshold", lambda width: nn.Threshold(0.1, -0.2))
module("LayerNorm", nn.LayerNorm)
module("RMSNorm", nn.RMSNorm)
module("GroupNorm", lambda width: nn.GroupNorm(math.gcd(width, 4), width))
module("BatchNorm", lambda width: nn.BatchNorm1d(width).eval())
module("Softmax", lambda width: nn.Softmax(dim=-1))
module("LogSoftmax", lambda width: nn.LogSoftmax(dim=-1))
block(
    "GLU",
    lambda width, rng: (Apply(lambda x: functional.glu(torch.cat([x, x.roll(1, -1)], -1))), width),
)
module(
    "residual",
    lambda width: Apply(lambda x, layer: x + torch.tanh(layer(x)), nn.Linear(width, width)),
)
module(
    "attention",
    lambda width: Apply(
        _attend, nn.Linear(1, 8), nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 1)
    ),
)
module(
    "encoder layer",
    lambda width: Apply(
        _encode,
        nn.Linear(1, 8),
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval(),
        nn.Linear(8, 1),
    ),
)


def _attend(x: Tensor, embed: nn.Module, attention: nn.Module, last: nn.Module) -> Tensor:
    tokens = embed(x.unsqueeze(-1))
    out: Tensor = last(attention(tokens, tokens, tokens)[0]).squeeze(-1)
    return out


def _encode(x: Tensor, embed: nn.Module, layer: nn.Module, last: nn.Module) -> Tensor:
    out: Tensor = last(layer(embed(x.unsqueeze(-1)))).squeeze(-1)
    return out


same("exp", lambda x: x.clamp(max=10).exp())
same("expm1", lambda x: x.clamp(max=10).expm1())
same("log", lambda x: (x.abs() + 1e-3).log())
same("log1p", lambda x: x.abs().log1p())
same("sqrt", lambda x: x.abs().sqrt())
same("rsqrt", lambda x: (x.abs() + 0.01).rsqrt())
same("reciprocal", lambda x: 1 / (x.abs() + 0.01))
same("sin", torch.sin)
same("cos of many turns", lambda x: torch.cos(20 * x))
same("erf", torch.erf)
same("erfinv", lambda x: torch.erfinv(0.99 * torch.tanh(x)))
same("lgamma", lambda x: torch.lgamma(x.abs() + 0.1))
same("digamma", lambda x: torch.digamma(x.abs() + 0.1))
same("xlogy", lambda x: torch.xlogy(x.relu(), x.relu()))
same("square", torch.square)
same("power", lambda x: x**3)
same("broken power", lambda x: x.abs() ** 0.3)
same("clamp", lambda x: x.clamp(-0.5, 1.5))
same("where", lambda x: torch.where(x > 0.2, x, -2 * x))
same("maximum", lambda x: torch.maximum(x, x.flip(-1)))
same("minimum", lambda x: torch.minimum(x, -x.flip(-1)))
same("roll", lambda x: torch.cat([x[..., 1:], x[..., :1]], -1))
same("centred", lambda x: x - x.mean(-1, keepdim=True))
same("divided by its norm", lambda x: x / (x.norm(dim=-1, keepdim=True) + 1e-3))
same("divided by its sum", lambda x: x / (1 + x.abs().sum(-1, keepdim=True)))
same("cancelling", lambda x: (x + 100) - 100)
same("large", lambda x: 1e3 * x)
same("small", lambda x: 1e-3 * x)
same("remainder", lambda x: torch.remainder(x, 0.7))
same("floor division", lambda x: torch.floor_divide(x, 0.3))
same("round", torch.round)
same("sign", torch.sign)
same("chosen", lambda x: x * functional.one_hot(x.argmax(-1), x.shape[-1]))
same(
    "outer product",
    lambda x: (x.unsqueeze(-1) @ x.unsqueeze(-2)).sum(-1) / (1 + x.square().sum(-1, keepdim=True)),
)
same("matrix of a row", lambda x: torch.einsum("bi,bj,bj->bi", x, x, torch.tanh(x)))
same(
    "baddbmm",
    lambda x: torch.baddbmm(
        x.unsqueeze(-1), torch.tanh(x.unsqueeze(-1) * x.unsqueeze(-2)), x.unsqueeze(-1)
    ).squeeze(-1),
)
same(
    "cosine similarity",
    lambda x: functional.cosine_similarity(x, x.flip(-1), dim=-1).unsqueeze(-1).expand_as(x),
)
same("standardised", lambda x: x / (x.var(-1, keepdim=True, correction=0) + 0.1).sqrt())
same("lerp", lambda x: torch.lerp(x, x.flip(-1), 0.3))
same("addcmul", lambda x: torch.addcmul(x, x, x.flip(-1), value=0.1))
block("logsumexp", lambda width, rng: (Apply(lambda x: x.logsumexp(-1, keepdim=True)), 1))
block("product", lambda width, rng: (Apply(lambda x: torch.tanh(x).prod(-1, keepdim=True)), 1))
block("largest", lambda width, rng: (Apply(lambda x: x.gather(-1, x.argmax(-1, keepdim=True))), 1))
block(
    "extremes",
    lambda width, rng: (Apply(lambda x: torch.stack([x.amax(-1), x.amin(-1), x.mean(-1)], -1)), 3),
)
module(
    "bins",
    lambda width: Apply(
        lambda x, table: table((x.clamp(-3, 3) + 3).long()).sum(-2)[..., :1] * x, nn.Embedding(7, 4)
    ),
)


def draw(seed: int) -> tuple[nn.Module, tuple[int, ...]]:
    """A module of one to six blocks, and the shape of what it observes."""
    rng = random.Random(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        width = shape = rng.randint(1, 16)
        blocks: list[nn.Module] = []
        names = [rng.choice(list(BLOCKS)) for _ in range(rng.randint(1, 6))]
        for name in names:
            own, width = BLOCKS[name](width, rng)
            blocks.append(own)
        # The last has a weight, as a policy has.
        drawn: Any = nn.Sequential(*blocks, nn.Linear(width, rng.randint(1, 6)))
        drawn.names = ", ".join(names)
        return drawn, (shape,)


@dataclass
class Compared:
    """How far apart results are: the engine's and torch's float32 from float64, the largest number,
    and the condition number.
    """

    why: str | None = None
    own: float = 0.0
    theirs: float = 0.0
    scale: float = 1.0
    condition: float = 0.0

    def is_close(self) -> bool:
        return self.own <= 4 * self.theirs + 1e-6 * max(1.0, self.scale)

    def __str__(self) -> str:
        if self.why is not None:
            return f"called, {self.why}"
        apart = f"{self.own:.2g} from float64, torch {self.theirs:.2g}, of {self.scale:.2g}"
        return apart if self.is_close() else f"{apart}, condition number {self.condition:.2g}"


def compare(module: nn.Module, shape: tuple[int, ...], seed: int) -> Compared:
    """A module of floats natively, in float32 and in float64, for the same numbers."""
    generator = torch.Generator().manual_seed(seed)

    def observe(rows: int) -> Tensor:
        scale = torch.tensor([1.0, 1.0, 1.0, 0.01, 10.0])[torch.arange(rows) % 5].view(
            -1, *(1 for _ in shape)
        )
        return 2 * scale * torch.randn((rows, *shape), generator=generator)

    try:
        native = lowered(module, observe)
    except NotLowerable as reason:
        return Compared(why=str(reason))
    x = observe(200)
    wide = copy.deepcopy(module).double()
    with torch.no_grad():
        own, theirs, exact = (
            native(x).double(),
            module(x).reshape(200, -1).double(),
            wide(x.double()).reshape(200, -1),
        )
        step = 1e-7
        moved = wide(x.double() * (1 + step * torch.randn(x.shape, generator=generator))).reshape(
            200, -1
        )
    finite = theirs.isfinite() & exact.isfinite()
    if not torch.equal(own.isfinite() & finite, finite):
        return Compared(own=math.inf, scale=float(exact[finite].abs().max()))
    own, theirs, exact, moved = own[finite], theirs[finite], exact[finite], moved[finite]
    if not len(exact):
        return Compared()
    scale = float(exact.abs().max())
    condition = float((moved - exact).abs().max()) / step / max(scale, 1e-30)
    return Compared(
        None,
        float((own - exact).abs().max()),
        float((theirs - exact).abs().max()),
        scale,
        condition,
    )


# Integers

INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda x: x,
    "x + 1": lambda x: x + 1,
    "x + 100": lambda x: x + 100,
    "x - 1": lambda x: x - 1,
    "200 - x": lambda x: 200 - x,
    "x * 2": lambda x: x * 2,
    "x * -1": lambda x: x * -1,
    "x * x": lambda x: x * x,
    "x * x - x": lambda x: x * x - x,
    "-x": lambda x: -x,
    "abs": lambda x: x.abs(),
    "sign": lambda x: x.sign(),
    "x // 3": lambda x: x // 3,
    "x // -3": lambda x: x // -3,
    "x truncated by 3": lambda x: torch.div(x, 3, rounding_mode="trunc"),
    "100 // x": lambda x: 100 // x,
    "x % 7": lambda x: x % 7,
    "x % -7": lambda x: x % -7,
    "100 % x": lambda x: 100 % x,
    "hash": lambda x: x * 48271 % 7,
    "x ** 2": lambda x: x**2,
    "x ** 3": lambda x: x**3,
    "2 ** x": lambda x: 2**x,
    "x & 3": lambda x: x & 3,
    "x | 3": lambda x: x | 3,
    "x ^ 3": lambda x: x ^ 3,
    "~x": lambda x: ~x,
    "x << 1": lambda x: x << 1,
    "x >> 1": lambda x: x >> 1,
    "x / 3": lambda x: x / 3,
    "x / 255": lambda x: x / 255,
    "1 / x": lambda x: 1 / x,
    "1 / -x": lambda x: 1 / -x,
    "1 / (x * -1)": lambda x: (x * -1).float().reciprocal(),
    "1 / half of x": lambda x: 1 / (x * -0.5).long(),
    "x * 0.5": lambda x: x * 0.5,
    "float": lambda x: x.float(),
    "float / 255": lambda x: x.float() / 255,
    "x / 255 * 9 as int64": lambda x: (x / 255 * 9).long(),
    "uint8": lambda x: x.to(torch.uint8),
    "int8": lambda x: x.to(torch.int8),
    "int16": lambda x: x.to(torch.int16),
    "int32": lambda x: x.to(torch.int32),
    "int64": lambda x: x.to(torch.int64),
    "bool": lambda x: x.bool(),
    "int8 + int64": lambda x: x.to(torch.int8) + x.long(),
    "float as uint8": lambda x: x.float().to(torch.uint8),
    "float as int64": lambda x: x.float().long(),
    "x == 3": lambda x: x == 3,
    "x != 3": lambda x: x != 3,
    "x < 2**24 + 1": lambda x: x.long() < 2**24 + 1,
    "x == 2**24 + 1": lambda x: x.long() == 2**24 + 1,
    "x > -1": lambda x: x > -1,
    "x <= 0.5": lambda x: x <= 0.5,
    "x == x + 1": lambda x: x.long() == x.long() + 1,
    "clamp": lambda x: x.clamp(0, 9),
    "clamp + 5": lambda x: x.clamp(0, 9) + 5,
    "maximum": lambda x: torch.maximum(x, torch.full_like(x, 1)),
    "where": lambda x: torch.where(x > 1, x, x - 1),
    "sum": lambda x: x.sum(-1, keepdim=True),
    "product": lambda x: x.prod(-1, keepdim=True),
    "largest": lambda x: x.amax(-1, keepdim=True),
    "argmax": lambda x: x.argmax(-1, keepdim=True),
    "any": lambda x: (x != 0).any(-1, keepdim=True),
    "mean": lambda x: x.float().mean(-1, keepdim=True),
    "in place": lambda x: x.clone().add_(100),
    "copied": lambda x: torch.empty_like(x).copy_(x * 2),
    "copied from a float": lambda x: torch.empty_like(x, dtype=torch.int32).copy_(x.float()),
    "copied to int8": lambda x: torch.empty_like(x, dtype=torch.int8).copy_(x),
    "one-hot of 12": lambda x: functional.one_hot(x.long(), 12).flatten(1),
    "table": lambda x: torch.arange(12.0)[x.long()],
    "rows of a table": lambda x: torch.arange(24.0).view(12, 2)[x.long()].flatten(1),
    "gathered": lambda x: torch.arange(12.0).expand(len(x), 12).gather(-1, x.long()),
    "embedding": lambda x: functional.embedding(x.long(), torch.arange(24.0).view(12, 2)).flatten(
        1
    ),
    "flag + flag": lambda x: (x > 1) + (x < 3),
    "flags as numbers": lambda x: (x > 1).to(torch.uint8) * 3 - 1,
    "float sum as int64": lambda x: (x.float() * 0.5).sum(-1, keepdim=True, dtype=torch.int64),
    "double": lambda x: (x.double() + 0.1).float(),
    "cat of types": lambda x: torch.cat([x.to(torch.int64), (x > 0).to(torch.uint8)], -1),
    "mod of a float": lambda x: x.float() % 3,
    "float // 0.3": lambda x: x.float() // 0.3,
}


def integer_operations() -> Iterator[tuple[str, nn.Module, torch.dtype, int, int]]:
    """Each operation for each type and several bounds: its name, the operation, the type, the
    smallest and the largest number.
    """
    for dtype in INTEGERS:
        limits = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        bounds = {
            limits,
            (0, 1),
            (0, 3),
            (0, 9),
            (0, 11),
            (-5, 4),
            (-12, 11),
            (1, 50),
            (0, 255),
            (-1000, 1000),
            (0, 2**24),
            (-(2**40), 2**40),
        }
        for low, high in sorted(bounds):
            if limits[0] <= low and high <= limits[1]:
                for name, operation in OPERATIONS.items():
                    yield (
                        f"{name} of {dtype} from {low} to {high}",
                        Apply(operation),
                        dtype,
                        low,
                        high,
                    )


def integers(
    dtype: torch.dtype, low: int, high: int, rows: int, generator: torch.Generator
) -> Tensor:
    """``[rows, 3]`` of all magnitudes, the ends among them."""
    width = high - low
    share = torch.rand((rows, 3), generator=generator, dtype=torch.float64)
    near = [
        min(max(number, low), high)
        for number in (-3, -1, 0, 1, 2, 3, 7, 100, 127, 128, 255, 256, 2**24 - 1, 2**24, 2**24 + 1)
    ]
    ends = torch.tensor([low, low, high, high, low + min(width, 1), high - min(width, 1), *near])
    # Differences of two int64 are none.
    even = torch.tensor([low + int(width * number) for number in share.flatten().tolist()]).view(
        rows, 3
    )
    chosen = ends[torch.randint(len(ends), (rows, 3), generator=generator)]
    return torch.where(
        torch.rand((rows, 3), generator=generator) < 0.4, chosen, even.clamp(low, high)
    ).to(dtype)


def compare_integers(
    module: nn.Module, dtype: torch.dtype, low: int, high: int, seed: int = 0
) -> str:
    """How windrow evaluates an operation: "native", "called", "an error" where torch raises one
    too, or how it differs.
    """
    generator = torch.Generator().manual_seed(seed)
    x = integers(dtype, low, high, 500, generator)
    try:
        expected = module(x)
    except Exception:
        expected = None
    try:
        native = lowered(
            module, lambda rows: integers(dtype, low, high, rows, generator), low, high
        )
    except NotLowerable:
        return "called"
    except Exception as error:
        # Nobody reads a value that torch cannot compute.
        return "an error" if expected is None else f"fails: {error}"
    try:
        own = native(x)
    except ValueError as error:
        return "an error" if expected is None else f"fails: {error}"
    if expected is None:
        return "gives numbers where torch fails"
    wanted = expected.reshape(len(x), -1)
    if wanted.dtype.is_floating_point:
        # Sums are rounded, each in its order.
        size = float(x.double().abs().max()) if wanted.shape[1] == 1 else 1.0
        is_same = torch.allclose(wanted, own, rtol=1e-6, atol=1e-7 * size, equal_nan=True)
    else:
        is_same = bool((wanted.long() == own.double().nan_to_num(1e17).long()).all())
    if is_same:
        return "native"
    at = int((wanted.double() != own.double()).any(-1).to(torch.uint8).argmax())
    return f"differs: for {x[at].tolist()} expected {wanted[at].tolist()}, got {own[at].tolist()}"


@dataclass
class Counts:
    """Counts of modules by their result."""

    kinds: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)


def run_floats(count: int, seed: int) -> Counts:
    counts = Counts()
    for number in range(seed, seed + count):
        own, shape = draw(number)
        found = compare(own, shape, number)
        counts.kinds["called" if found.why else "native" if found.is_close() else "apart"] += 1
        if found.why or not found.is_close():
            counts.bad.append(f"{number}: {found}: {own.names}")
    return counts


def run_integers() -> Counts:
    counts = Counts()
    for name, own, dtype, low, high in integer_operations():
        found = compare_integers(own, dtype, low, high)
        counts.kinds[found if found in ("native", "called", "an error") else "wrong"] += 1
        if found not in ("native", "called", "an error"):
            counts.bad.append(f"{name}: {found}")
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    failed = False
    for what, counts in (
        ("operations of integers", run_integers()),
        ("modules of floats", run_floats(given.count, given.seed)),
    ):
        print(f"{what}: {dict(counts.kinds)}")
        print("".join(f"  {line}\n" for line in counts.bad), end="")
        failed |= counts.kinds["wrong"] > 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
