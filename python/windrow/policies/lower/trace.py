"""What torch computes, as a graph that the engine evaluates.

:class:`Trace` sees every operation of torch below it, whatever module or function asks for it. It
follows those that depend on inputs or weights, row by row: each tensor it follows is a
:class:`Value`, which has the same layout in every row. All others are constants.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from windrow import _fence
from windrow.policies.lower import ranges
from windrow.policies.lower.operations import range_of
from windrow.policies.lower.values import (
    DTYPES,
    ELEMENT,
    LARGEST_STATE,
    NOTHING,
    ROW,
    RULES,
    SOURCE,
    Along,
    Integers,
    NotLowerable,
    Operand,
    Operation,
    Value,
)


class Trace(TorchDispatchMode):
    """Follows inputs and weights through operations.

    Args:
        rows: rows of each input.
        weights: the tensors that are parameters, by name.
    """

    def __init__(self, rows: int, weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.rows = rows
        self.weights = weights
        #: Operation and sources of each node, the elements of a row, and for those that only move
        #: elements: which ones.
        self.nodes: list[tuple[Any, tuple[int, ...]]] = []
        self.sizes: list[int] = []
        self._varying: list[bool] = []
        #: The numbers that each node may be, if observations are within the bounds that were given
        #: for them.
        self.ranges: list[ranges.Range] = []
        #: What has to hold of ranges: one of several nodes is within limits.
        self._claims: list[list[tuple[int, ranges.Range]]] = []
        self._bounds: dict[int, tuple[ranges.Range, ranges.Range]] = {}
        self._is_exact = False
        self.tables: dict[int, torch.Tensor] = {}
        #: Results of random operations, in order.
        self.draws: list[tuple[Value, torch.dtype]] = []
        self.inputs: list[Value] = []
        #: Inputs of which code may ask whether any row has them, if it computes the same where none
        #: does; and whether it did.
        self.flags: set[int] = set()
        self.asked = False
        self.doubt: str | None = None
        self._known: dict[tuple[Any, ...], Value] = {}
        self._storages: dict[int, set[tuple[Any, ...]]] = {}
        self._kept: list[Any] = []
        self._cache: dict[Any, int] = {}
        self._spread: dict[tuple[Value, tuple[int, ...], int | None], Value] = {}
        self._noises = 0
        self._names: dict[tuple[Any, ...], str] = {
            self._place(tensor): name for name, tensor in weights.items() if tensor.numel()
        }
        self._owned = {tensor.untyped_storage()._cdata for tensor in weights.values()}

    # Nodes

    def node(self, op: ranges.Op, sources: Sequence[int], size: int) -> int:
        """The node of an operation, whose result has ``size`` elements in a row."""
        key = (json.dumps(op), tuple(sources))
        if key not in self._cache:
            self._cache[key] = len(self.nodes)
            self._append(op, sources, size)
        return self._cache[key]

    def _append(self, op: ranges.Op, sources: Sequence[int], size: int) -> None:
        own = isinstance(op, dict) and not {"Input", "Noise", "Gamma"}.isdisjoint(op)
        self._varying.append(own or any(self._varying[source] for source in sources))
        self.nodes.append((op, tuple(sources)))
        self.sizes.append(size)
        self.ranges.append(range_of(op, [self.ranges[source] for source in sources]))
        if self._is_exact:
            self.claim("integers", (len(self.nodes) - 1, ranges.EXACT))

    def like(
        self, op: ranges.Op, sources: Sequence[Value], shape: Sequence[int], batch: int | None
    ) -> Value:
        """The value of an operation, of ``shape``."""
        value = Value(-1, tuple(shape), batch)
        before, _, own, after = value.split(self.rows)
        return Value(
            self.node(op, [source.node for source in sources], before * own * after),
            tuple(shape),
            batch,
        )

    def constant(self, tensor: torch.Tensor) -> Value:
        """``tensor``, which is the same in every row: it has no dimension for them, or one along
        which nothing changes.
        """
        tensor = tensor.detach()
        if tensor.numel() == 0 or tensor.is_complex() or tensor.is_sparse:
            self.refuse(f"a constant of shape {list(tensor.shape)} and type {tensor.dtype}")
        shape = tuple(tensor.shape)
        for batch in (dim for dim, size in enumerate(shape) if size % self.rows == 0):
            value = Value(-1, shape, batch)
            split = tensor.reshape(value.split(self.rows))
            if bool((split == split[:, :1]).all()):
                return Value(self._bits(split[:, 0]), shape, batch)
        return Value(self._bits(tensor), shape, None)

    def _bits(self, tensor: torch.Tensor) -> int:
        values = tensor.to(torch.float32).reshape(-1).contiguous()
        bits = (values.view(torch.int32).to(torch.int64) & 0xFFFFFFFF).tolist()
        return self.node({"Constant": bits}, (), len(bits))

    def input(
        self,
        tensor: torch.Tensor,
        *,
        is_flag: bool = False,
        is_state: bool = False,
        low: torch.Tensor | float | None = None,
        high: torch.Tensor | float | None = None,
    ) -> None:
        """Makes ``tensor``, ``[rows, ...]``, the next input, whose numbers are from ``low`` to
        ``high`` if it has integers, and not large if it is a state. Where a graph rests on that,
        the engine looks at them.
        """
        value = self.like({"Input": len(self.inputs)}, (), tensor.shape, 0)
        self.inputs.append(value)
        whole = ranges.of_dtype(tensor.dtype)
        self.ranges[value.node] = whole
        if is_state:
            low, high = LARGEST_STATE
        if low is not None and high is not None and not tensor.dtype.is_floating_point:
            bounds = (
                max(float(torch.as_tensor(low).min()), whole[0]),
                min(float(torch.as_tensor(high).max()), whole[1]),
            )
            if bounds != whole and bounds[0] <= bounds[1]:
                self.ranges[value.node] = bounds
                self._bounds[value.node] = bounds, whole
        if is_flag:
            self.flags.add(value.node)
        self._keep(tensor, value)

    # Tensors

    def _place(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        storage = tensor.untyped_storage()._cdata
        return storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype

    def _keep(self, tensor: torch.Tensor, value: Value) -> None:
        place = self._place(tensor)
        if tensor.numel() == 0:
            return
        self._known[place] = value
        self._storages.setdefault(place[0], set()).add(place)
        self._kept.append(tensor)

    def _forget(self, changed: tuple[Any, ...]) -> None:
        """Drops tensors that share elements with what was changed in place."""
        own = _offsets(changed)
        kept = set()
        for place in self._storages.get(changed[0], ()):
            if bool(torch.isin(_offsets(place), own).any()):
                self._known.pop(place, None)
            else:
                kept.add(place)
        self._storages[changed[0]] = kept

    def of(self, given: Operand) -> Value:
        """The value of a tensor or a number; a value itself."""
        if isinstance(given, Value):
            return given
        if not isinstance(given, torch.Tensor):
            return self.constant(
                torch.tensor(given, dtype=torch.float64 if isinstance(given, float) else None)
            )
        found = self.known(given)
        if found is not None:
            return found
        if given.requires_grad:
            self.refuse(
                f"a parameter of shape {list(given.shape)} that is none of the policy's own"
            )
        return self.constant(given)

    def known(self, tensor: torch.Tensor) -> Value | None:
        """The value of ``tensor``, if it is followed; weights are from their first use on."""
        if tensor.numel() == 0:
            return None
        place = self._place(tensor)
        value = self._known.get(place)
        if value is None and place in self._names:
            name = self._names[place]
            if tensor.dtype != torch.float32:
                self.refuse(f"{name} is {tensor.dtype}, expected float32")
            value = self.like({"Parameter": name}, (), tensor.shape, None)
            self._keep(tensor, value)
        elif value is None and (place[0] in self._storages or place[0] in self._owned):
            self.refuse(
                f"a view of {list(tensor.shape)} numbers that were made or changed elsewhere"
            )
        return value

    def follows(self, given: object) -> bool:
        """Whether anything in ``given`` depends on inputs or weights."""
        return any(self.known(tensor) is not None for tensor in _tensors(given))

    # Integers

    def is_below(self, index: torch.Tensor, count: int) -> bool:
        """Whether ``index`` is shown to be from 0 and below ``count``."""
        return ranges.is_within(self.ranges[self.of(index).node], (0.0, count - 1.0))

    def claim(self, what: str, *alternatives: tuple[int, ranges.Range]) -> None:
        """Refuses what reads or gives numbers that are not shown to be within limits, of one of
        these nodes.
        """
        if not any(ranges.is_within(self.ranges[node], limits) for node, limits in alternatives):
            low, high = self.ranges[alternatives[0][0]]
            self.refuse(
                f"{what} from {low:.9g} to {high:.9g}, which windrow may not compute as torch does"
            )
        self._claims.append(list(alternatives))

    def _check_read(self, op: Operation) -> bool:
        """Whether ``op`` reads and gives integers alone, which have to be exact from here on."""
        outs = list(_tensors(op.out))
        if not op.integers & (Integers.CAST | Integers.MOVED) and any(
            tensor.dtype == torch.float64 and tensor.dim()
            for tensor in _tensors((op.args, op.kwargs))
        ):
            self.refuse(f"{op.name} of float64")
        if not outs or any(out.dtype.is_floating_point for out in outs):
            # Computed from the nearest float32 in torch, too.
            return False
        tensors = list(_tensors((op.args, op.kwargs)))
        numbers = [
            number for number in (*op.args, *op.kwargs.values()) if type(number) in (int, float)
        ]
        if any(tensor.dtype.is_floating_point for tensor in tensors) or float in map(type, numbers):
            return False
        is_compared = bool(op.integers & Integers.COMPARED)
        if is_compared or op.integers & Integers.COMPUTED:
            dtype = torch.result_type(*op.args[:2]) if is_compared else outs[0].dtype
            limits = ranges.rounded(ranges.of_dtype(dtype))
            read = [
                self.of(given).node
                for given in (*(t for t in tensors if t.dtype != torch.bool), *numbers)
            ]
            for node in read:
                self.claim(f"{op.name} of {dtype} reads integers", (node, limits))
            if is_compared and len(read) == 2:
                self.claim("comparisons of integers", *((node, ranges.EXACT) for node in read))
                return False
        if op.integers & (Integers.KEPT | Integers.MOVED):
            return False
        for tensor in tensors:
            self.claim(f"{op.name} of integers", (self.of(tensor).node, ranges.EXACT))
        return True

    def _check_result(self, op: Operation, tensor: torch.Tensor, value: Value) -> Value:
        """``value``, which is shown to be in the range of ``tensor``."""
        whole = ranges.of_dtype(tensor.dtype)
        exact = max(whole[0], ranges.EXACT[0]), min(whole[1], ranges.EXACT[1])
        claims = [(value.node, exact)]
        if op.integers & (Integers.KEPT | Integers.MOVED) and not any(
            given.dtype.is_floating_point for given in _tensors((op.args, op.kwargs))
        ):
            claims.append((value.node, ranges.rounded(whole)))
        self.claim(f"{op.name} gives {str(tensor.dtype).removeprefix('torch.')}", *claims)
        sources = self.nodes[value.node][1]
        if not op.integers & Integers.SIGNED or (
            op.name != "neg" and all(self.ranges[source][0] >= 0 for source in sources)
        ):
            return value
        # Integers have one 0 alone.
        return self.each({"Zip": "Add"}, [value, self.of(0.0)], value.shape)

    def output(self, tensor: torch.Tensor) -> Value:
        """The value of a result, all of whose integers are exact."""
        value = self.of(tensor)
        if not tensor.dtype.is_floating_point:
            self.claim("an output has integers", (value.node, ranges.EXACT))
        return value

    def _rests_on_bounds(self) -> bool:
        """Whether a claim holds for no reason but the bounds of inputs."""
        free = list(self.ranges)
        for node, (op, sources) in enumerate(self.nodes):
            if node in self._bounds:
                free[node] = self._bounds[node][1]
            elif sources:
                free[node] = range_of(op, [free[source] for source in sources])
        return not all(
            any(ranges.is_within(free[node], limits) for node, limits in claim)
            for claim in self._claims
        )

    def refuse(self, reason: str) -> NoReturn:
        """Raises the reason, and remembers it, since code may catch any error."""
        self.doubt = self.doubt or reason
        raise NotLowerable(reason)

    # Moving elements

    def places(self, value: Value, source: int) -> torch.Tensor:
        """For each element of ``value``: the number of the ``source``, row and element, of the
        shape of ``value``.
        """
        before, rows, own, after = value.split(self.rows)
        base = torch.arange(before * own * after).view(before, 1, own, after) + (source << SOURCE)
        if value.batch is not None:
            row = (
                torch.arange(1, rows + 1)
                if self.varies(value.node)
                else torch.zeros(rows, dtype=torch.int64)
            )
            base = base + (row << ROW).view(1, rows, 1, 1)
        return base.reshape(value.shape)

    def move(
        self, function: Callable[..., torch.Tensor], *values: Value, batch: int | None = None
    ) -> Value:
        """What ``function`` makes of ``values``, where it moves and copies elements alone."""
        placed = function(*(self.places(value, number) for number, value in enumerate(values)))
        return self.moved(placed, [value.node for value in values], batch)

    def moved(self, placed: torch.Tensor, nodes: Sequence[int], batch: int | None = None) -> Value:
        """The value whose elements are at the places ``placed`` of ``nodes``."""
        table, shape, found = self._by_row(placed, batch)
        table = (torch.tensor(nodes)[table >> SOURCE] << ROW) | (table & ELEMENT)
        return Value(self._taken(table), shape, found)

    def _by_row(
        self, placed: torch.Tensor, batch: int | None
    ) -> tuple[torch.Tensor, tuple[int, ...], int | None]:
        """One row of ``placed``, its shape, and the dimension that rows are along; ``batch`` where
        no value says which it is.
        """
        shape = tuple(placed.shape)
        if placed.numel() == 0:
            self.refuse("a value without elements")
        row = (placed >> ROW) & ((1 << (SOURCE - ROW)) - 1)
        for dim in self._dims(shape) if batch is None else [batch]:
            if shape[dim] % self.rows:
                continue
            split = Value(-1, shape, dim).split(self.rows)
            own, each = placed.reshape(split), row.reshape(split)
            expected = torch.arange(1, self.rows + 1).view(1, -1, 1, 1)
            bare = own & ~(((1 << (SOURCE - ROW)) - 1) << ROW)
            if bool(((each == 0) | (each == expected)).all()) and bool((bare == bare[:, :1]).all()):
                return bare[:, 0].reshape(-1), shape, dim
        if bool(row.any()) or batch is not None:
            self.refuse("rows are mixed")
        return placed.reshape(-1), shape, None

    def _dims(self, shape: tuple[int, ...]) -> list[int]:
        """The dimensions that rows may be along."""
        dims = [dim for dim, size in enumerate(shape) if size % self.rows == 0]
        times = [(dim, times) for dim in dims for times in range(2, shape[dim] // self.rows + 1)]
        return [
            *dims,
            *(Along(dim, many) for dim, many in times if shape[dim] // self.rows % many == 0),
        ]

    def _taken(self, table: torch.Tensor) -> int:
        """The node with the elements of ``table``: node and element for each."""
        for node in (table >> ROW).unique().tolist():
            inner = self.tables.get(node)
            if inner is not None:
                own = (table >> ROW) == node
                table = torch.where(own, inner[(table & ELEMENT) * own], table)
        sources = (table >> ROW).unique().tolist()
        if len(sources) == 1 and len(table) == self.sizes[sources[0]]:
            if bool(((table & ELEMENT) == torch.arange(len(table))).all()):
                return int(sources[0])
        key = (table.numpy().tobytes(), len(sources))
        if key not in self._cache:
            self._cache[key] = len(self.nodes)
            self._append("Take", sources, len(table))
            self.tables[self._cache[key]] = table
        return self._cache[key]

    def spread(self, value: Value, shape: Sequence[int], batch: int | None = None) -> Value:
        """``value`` broadcast to ``shape``."""
        wanted = tuple(shape)
        if batch is None and wanted == value.shape and self.varies(value.node):
            # It has the wanted shape already, and varies by row: nothing moves.
            return value
        key = value, wanted, batch
        if key not in self._spread:
            self._spread[key] = self.move(
                lambda placed: placed.broadcast_to(wanted), value, batch=batch
            )
        return self._spread[key]

    # Computing

    def each(
        self, op: ranges.Op, values: Sequence[Value], shape: Sequence[int] | None = None
    ) -> Value:
        """An element-wise operation of values that are broadcast."""
        shape = (
            torch.broadcast_shapes(*(value.shape for value in values)) if shape is None else shape
        )
        wide = [self.spread(value, shape) for value in values]
        found = [
            value.batch for value in wide if value.batch is not None and self.varies(value.node)
        ]
        batch = next(
            iter(found), next((value.batch for value in wide if value.batch is not None), None)
        )
        if any(one != batch for one in found):
            self.refuse("rows are mixed")
        # The others give the same elements for each row.
        wide = [
            own if own.batch == batch else self.spread(value, shape, batch)
            for own, value in zip(wide, values)
        ]
        return self.like(op, wide, shape, batch)

    def map(self, function: Any, value: Value) -> Value:
        return self.like({"Map": function}, [value], value.shape, value.batch)

    def zip(self, kind: str, a: Operand, b: Operand) -> Value:
        if isinstance(b, (int, float)) and (kind, b) in NOTHING:
            return self.of(a)
        return self.each({"Zip": kind}, [self.of(a), self.of(b)])

    def activation(self, name: str, value: Value, /, **numbers: Any) -> Value:
        return self.map({"Activation": {name: numbers} if numbers else name}, value)

    def runs(
        self,
        op: Callable[[int], Any],
        value: Value,
        dims: Sequence[int],
        *,
        reduces: bool,
        keepdim: bool = True,
    ) -> Value:
        """An operation on each run of the elements along ``dims``."""
        ndim = len(value.shape)
        dims = sorted({dim % ndim for dim in dims}) if ndim else []
        kept = [dim for dim in range(ndim) if dim not in dims]
        run = math.prod(value.shape[dim] for dim in dims)
        last = self.move(lambda placed: placed.permute(*kept, *dims), value)
        if last.batch is not None and last.batch >= len(kept):
            self.refuse("rows are mixed")
        if reduces:
            shape = [value.shape[dim] for dim in kept]
            result = self.like(op(run), [last], shape, last.batch)
            if keepdim:
                for dim in dims:
                    result = self.move(lambda placed, dim=dim: placed.unsqueeze(dim), result)
            return result
        result = self.like(op(run), [last], last.shape, last.batch)
        order = [*kept, *dims]
        return self.move(
            lambda placed: placed.permute(*(order.index(dim) for dim in range(ndim))), result
        )

    def reduce(
        self, kind: str, value: Value, dims: int | Iterable[int] | None, keepdim: bool = False
    ) -> Value:
        if dims is None or dims == []:
            dims = range(len(value.shape))
        dims = [dims] if isinstance(dims, int) else list(dims)
        return self.runs(
            lambda run: {"Reduce": [kind, run]}, value, dims, reduces=True, keepdim=keepdim
        )

    def matmul(self, a: Value, b: Value) -> Value:
        """Products of matrices of three dimensions, the first of which counts them."""
        (count, rows, inner), columns = a.shape, b.shape[-1]
        if b.batch is None and a.batch is not None and int(a.batch) == 0:
            b = self.spread(b, b.shape, a.batch)
        if a.batch is None and b.batch is not None and int(b.batch) == 0:
            a = self.spread(a, a.shape, b.batch)
        batch = next((value.batch for value in (a, b) if value.batch is not None), None)
        # Products of a row read that row alone.
        if (a.batch != b.batch or int(batch or 0) != 0) and (a.batch, b.batch) not in {
            (1, None),
            (None, 2),
        }:
            self.refuse("rows are mixed")
        if count == 1 and a.batch == 1 and not self.varies(b.node):
            flat, weight = (
                self.move(lambda placed: placed[0], a),
                self.move(lambda placed: placed[0].t(), b),
            )
            return self.move(lambda placed: placed.unsqueeze(0), self.linear(flat, weight))
        own_rows, own_columns = (
            rows // self.rows if batch == 1 else rows,
            columns // self.rows if batch == 2 else columns,
        )
        op = {"MatMul": {"rows": own_rows, "inner": inner, "columns": own_columns}}
        return self.like(op, [a, b], (count, rows, columns), batch)

    def linear(self, x: Value, weight: Value, bias: Value | None = None) -> Value:
        """``x Wᵀ + b``; ``x`` and ``weight`` have two dimensions."""
        if weight.batch is not None or self.varies(weight.node) or int(x.batch or 0) != 0:
            a, b = (
                self.move(lambda placed: placed.unsqueeze(0), value)
                for value in (x, self.move(lambda placed: placed.t(), weight))
            )
            product = self.move(lambda placed: placed.squeeze(0), self.matmul(a, b))
            return product if bias is None else self.zip("Add", product, bias)
        outputs, inputs = weight.shape
        fits = (
            bias is not None
            and bias.shape == (outputs,)
            and bias.batch is None
            and not self.varies(bias.node)
        )
        values = [x, weight, bias] if fits and bias is not None else [x, weight]
        result = self.like(
            {"Linear": {"outputs": outputs, "inputs": inputs}},
            values,
            (x.shape[0], outputs),
            x.batch,
        )
        return result if fits or bias is None else self.zip("Add", result, bias)

    def varies(self, node: int) -> bool:
        """Whether a node depends on inputs or draws."""
        return self._varying[node]

    # Draws

    def noise(self, kind: str, shape: Sequence[int], batch: int | None = None) -> Value:
        """Fresh random numbers of ``shape``."""
        if batch is None:
            batch = next(
                (dim for dim, size in enumerate(shape) if size and size % self.rows == 0), None
            )
        if batch is None:
            self.refuse(f"random numbers of shape {list(shape)}, the same in all rows")
        before, _, own, after = Value(-1, tuple(shape), batch).split(self.rows)
        size = before * own * after
        return Value(
            self.node({"Noise": [kind, size, self.branch()]}, (), size), tuple(shape), batch
        )

    def branch(self) -> int:
        """The number of a stream of random numbers that nothing else reads."""
        self._noises += 1
        return self._noises - 1

    # Dispatch

    def __enter__(self) -> Trace:
        # One operation for a whole layer would be one more rule.
        self._fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        torch.backends.mha.set_fastpath_enabled(self._fast)
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_random = _is_random(func)
        if not is_random and not self.follows((args, kwargs)):
            return func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        rule = RULES.get(name) or RULES.get(name.removesuffix("_"))
        if rule is None or "out" in kwargs:
            self.refuse(f"no operation of windrow's graphs is {name}")
        op = Operation(func, args, kwargs)
        if func._schema.is_mutable:
            target = args[0]
            if target.untyped_storage()._cdata in self._owned:
                self.refuse("it changes its own weights")
            # What it was before.
            op.args = (
                target.detach() if self.known(target) is not None else target.clone(),
                *args[1:],
            )
        out = op.out = func(*args, **kwargs)
        self._is_exact = not is_random and self._check_read(op)
        result = rule(self, op)
        self._is_exact = False
        if func._schema.is_mutable:
            self._forget(self._place(out))
        if is_random:
            self.draws.append((result, out.dtype))
        for tensor, value in zip(
            _tensors(out), result if isinstance(result, (tuple, list)) else [result]
        ):
            if value is None:
                continue
            if tensor.dtype not in DTYPES and (
                tensor.dtype != torch.float64
                or (self.varies(value.node) and not op.integers & Integers.MOVED)
            ):
                self.refuse(f"{name} gives {tensor.dtype}")
            if tuple(tensor.shape) != value.shape:
                self.refuse(f"{name} of shape {list(value.shape)}, expected {list(tensor.shape)}")
            if not tensor.dtype.is_floating_point:
                value = self._check_result(op, tensor, value)
            self._keep(tensor, value)
        return out

    # The graph

    def graph(
        self, outputs: Sequence[Value]
    ) -> tuple[dict[str, Any], list[int], list[int], list[str]]:
        """What the engine reads: the nodes that ``outputs`` need, the numbers of these among them,
        the inputs that they read, and the names of the weights.
        """
        needed = [False] * len(self.nodes)
        for value in outputs:
            needed[value.node] = True
        for node in reversed(range(len(self.nodes))):
            if needed[node]:
                for source in self.nodes[node][1]:
                    needed[source] = True
        number: dict[int, int] = {}
        inputs: list[int] = []
        names: dict[str, list[int]] = {}
        nodes: list[dict[str, Any]] = []
        is_bounded = self._rests_on_bounds()
        for node, (op, sources) in enumerate(self.nodes):
            if not needed[node]:
                continue
            if op == "Take":
                op = {"Take": _runs(self.tables[node], sources)}
            elif isinstance(op, dict) and "Input" in op:
                inputs.append(op["Input"])
                op = {"Input": len(inputs) - 1}
            elif isinstance(op, dict) and "Parameter" in op:
                name = op["Parameter"]
                names.setdefault(name, list(self.weights[name].shape))
                op = {"Parameter": list(names).index(name)}
            number[node] = len(nodes)
            nodes.append({"op": op, "from": [number[source] for source in sources]})
            if is_bounded and node in self._bounds:
                low, high = self._bounds[node][0]
                nodes.append({"op": {"Within": {"low": low, "high": high}}, "from": [number[node]]})
                number[node] += 1
        graph = {
            "inputs": [self.sizes[self.inputs[index].node] for index in inputs],
            "parameters": [{"name": name, "shape": shape} for name, shape in names.items()],
            "nodes": nodes,
        }
        return graph, [number[value.node] for value in outputs], inputs, list(names)


#: Functions that read numbers, or hand out their memory, below the operations that a trace sees.
LOOKS = set(
    (
        "numpy tolist __array__ __dlpack__ __dlpack_device__ data_ptr const_data_ptr "
        "mutable_data_ptr to_dlpack __repr__ __str__ __format__ __deepcopy__ __reduce_ex__ "
        "__reduce__ __getstate__ storage untyped_storage _typed_storage apply_ map_ map2_ save "
        "set_ share_memory_ resize_"
    ).split()
)


class Calls(TorchFunctionMode):
    """Refuses what reads numbers behind the back of a :class:`Trace`, and computes one-hot vectors
    without looking at numbers.
    """

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "one_hot":
            index, *rest = args
            options = rest[0] if rest else kwargs.get("num_classes", -1)
            if options > 0 and self._trace.follows(index):
                if self._trace.is_below(index, options):
                    return (index.unsqueeze(-1) == torch.arange(options)).to(torch.int64)
                return torch.embedding(torch.eye(options, dtype=torch.int64), index)
        caller = sys._getframe(1).f_globals.get("__name__", "")
        # Distributions ask whether numbers are valid.
        checks = caller.startswith(
            ("torch.distributions.", f"{_fence.LIBRARY}.modules.distributions.")
        )
        if checks and name in ("any", "all") and len(args) == 1 and not kwargs:
            with _disable_current_modes():
                return func(*args)
        if name in LOOKS and not checks and self._trace.follows((args, kwargs)):
            self._trace.refuse(f"{name}() of a value that differs by row")
        return func(*args, **kwargs)


class Replay(TorchDispatchMode):
    """Gives the results of random operations, in order, instead of drawing."""

    def __init__(self, draws: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._draws: Iterator[torch.Tensor] = iter(draws)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not _is_random(func):
            return func(*args, **(kwargs or {}))
        drawn = next(self._draws)
        # A single environment is called without a dimension of rows.
        shape = func(*args, **(kwargs or {})).shape
        return args[0].copy_(drawn.view(shape)) if func._schema.is_mutable else drawn.view(shape)


def _is_random(func: OpOverload) -> bool:
    # Attention draws for dropout alone, which is refused.
    return torch.Tag.nondeterministic_seeded in func.tags and "attention" not in func._schema.name


def _offsets(place: tuple[Any, ...]) -> torch.Tensor:
    """The elements of its storage that a tensor has."""
    _, offset, shape, strides, dtype = place
    offsets = torch.tensor([offset])
    for size, stride in zip(shape, strides):
        offsets = (offsets.unsqueeze(-1) + torch.arange(size) * stride).flatten()
    return offsets * dtype.itemsize


def _tensors(given: object) -> Iterator[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, (list, tuple)):
        for one in given:
            yield from _tensors(one)
    elif isinstance(given, dict):
        yield from _tensors(list(given.values()))


def _runs(table: torch.Tensor, sources: tuple[int, ...]) -> list[list[int]]:
    """``table`` as runs of equally distant elements of one source: its number, the first, how many,
    the distance.
    """
    runs: list[list[int]] = []
    numbers = {source: number for number, source in enumerate(sources)}
    for place in table.tolist():
        source, element = numbers[place >> ROW], place & ELEMENT
        last = runs[-1] if runs else None
        if last is not None and last[0] == source:
            if last[2] == 1:
                last[2:] = [2, element - last[1]]
                continue
            if element == last[1] + last[2] * last[3]:
                last[2] += 1
                continue
        runs.append([source, element, 1, 1])
    return runs
