"""Values of a trace, and the operations of torch that a trace knows by their kind."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

#: Element types that values may have; the engine computes with float32.
DTYPES = {torch.float32, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool}
#: What changes nothing.
NOTHING = {("Add", 0), ("Sub", 0), ("Mul", 1), ("Div", 1)}
#: How places are encoded: the number of a value, the row (from 1; 0 holds for all rows), and the
#: element of a row.
SOURCE, ROW = 48, 32
ELEMENT = (1 << ROW) - 1


class Integers(enum.Flag):
    """What an operation of torch does with integers.

    Attributes:
        MOVED: it moves elements alone.
        KEPT: it gives the same for the nearest float32: it moves numbers, keeps their order, or
            asks for the sign alone.
        SIGNED: it may give -0.
        CAST: it reads float64, and rounds it.
        COMPUTED: it computes in the type that it gives, where it reads nothing but integers.
        COMPARED: it compares two, one of which may be the nearest float32 if the other is exact.
    """

    MOVED = enum.auto()
    KEPT = enum.auto()
    SIGNED = enum.auto()
    CAST = enum.auto()
    COMPUTED = enum.auto()
    COMPARED = enum.auto()


#: It does nothing with them that is exact whatever they are.
NONE = Integers(0)


#: What each operation is in a graph, and does with integers, by its name; see
#: ``windrow.policies.lower.rules``.
RULES: dict[str, Callable[[Any, Any], Any]] = {}
INTEGERS: dict[str, Integers] = {}
#: What integers that a policy keeps may be, so that the next ones are exact, too.
LARGEST_STATE = (-(2**23), 2**23)


def same_numbers(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether tensors are of one type and shape, and have the same numbers; NaN equals itself."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


class NotLowerable(Exception):
    """Why torch has to evaluate a policy."""


class Unproved(NotLowerable):
    """Why nothing proves that a call of the policy only computes, and from what windrow can
    compare.
    """


class Along(int):
    """A dimension that rows are along several times: ``[times, rows, ...]`` made flat. An ``int``
    is one that they are along once.
    """

    times: int

    def __new__(cls, dim: int, times: int) -> Along:
        self = super().__new__(cls, dim)
        self.times = times
        return self

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, int)
            and int(self) == int(other)
            and self.times == getattr(other, "times", 1)
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((int(self), self.times))


@dataclass(frozen=True)
class Value:
    """A tensor of ``shape`` as a node of the graph. ``batch`` is the dimension that rows are along,
    each with several entries of it if need be; None for a value that is the same in all rows. A
    node holds the elements of a row in the order of the other dimensions.
    """

    node: int
    shape: tuple[int, ...]
    batch: int | None

    def split(self, rows: int) -> tuple[int, int, int, int]:
        """Elements before the rows, rows, and elements of a row: of the batch dimension, and behind
        it.
        """
        if self.batch is None:
            return 1, 1, 1, math.prod(self.shape)
        before, own, after = (
            self.shape[: self.batch],
            self.shape[self.batch],
            self.shape[self.batch + 1 :],
        )
        times = getattr(self.batch, "times", 1)
        return math.prod(before) * times, rows, own // rows // times, math.prod(after)


#: What a rule is given: a value, what becomes one, or a number.
Operand = Value | torch.Tensor | float
#: What a rule returns: the value of each result; None where a graph has none.
Found = Value | Sequence[Value | None] | None


class Operation:
    """A call of an operation of torch: its name, without the underscore of those that work in
    place, its arguments and its result.
    """

    out: Any

    def __init__(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        self.name = func._schema.name.removeprefix("aten::").removesuffix("_")
        self.integers = INTEGERS.get(self.name, NONE)

    def has(self, name: str) -> bool:
        """Whether the operation has an argument of this name."""
        return any(argument.name == name for argument in self.func._schema.arguments)

    def __call__(self, name: str, *other: Any) -> Any:
        """The argument of this name, or its default; ``other`` where the operation has no such
        argument.
        """
        for place, argument in enumerate(self.func._schema.arguments):
            if argument.name == name:
                if name in self.kwargs or place >= len(self.args) or argument.kwarg_only:
                    return self.kwargs.get(name, argument.default_value)
                return self.args[place]
        if not other:
            raise NotLowerable(f"{self.name} without {name}")
        return other[0]
