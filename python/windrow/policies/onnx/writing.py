"""Graphs of the engine as models of ONNX. A value of a graph is ``[rows, numbers]`` there too, with
one row where it is the same in all.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from windrow._keys import Key, path
from windrow.policies.lower.operations import row_of
from windrow.policies.onnx.reading import NEXT

#: What is written, by versions of its operators, and of the format.
VERSION, FORMAT = 18, 9


def model_of(
    described: dict[str, Any], weights: dict[str, torch.Tensor], inputs: Sequence[Key]
) -> Any:
    """The model of a graph.

    Args:
        described: the graph, as ``windrow.policies.lower`` describes it.
        weights: tensors by the names of its parameters.
        inputs: names of its inputs.

    Raises:
        ValueError: ONNX has no operator for a part of it.
    """
    return _Writer(described["graph"], weights).written(described, inputs)


class _Value(NamedTuple):
    """A value of a graph: its name in the model, the numbers of a row, and whether rows differ."""

    name: str
    size: int
    varies: bool


class _Writer:
    def __init__(self, graph: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
        self._helper = importlib.import_module("onnx.helper")
        self._arrays = importlib.import_module("onnx.numpy_helper")
        self._graph, self._weights = graph, weights
        self._nodes: list[Any] = []
        self._held: dict[str, Any] = {}
        self._values: list[_Value] = []
        #: Parameters by the names of values that have their numbers.
        self._parameters: dict[str, dict[str, Any]] = {}
        self._number = 0

    def written(self, described: dict[str, Any], inputs: Sequence[Key]) -> Any:
        names = [".".join(path(key)) for key in inputs]
        ports, self._inputs = [], []
        shapes = {".".join(leaf["key"]): leaf["shape"] for leaf, _ in described["outputs"]}
        for name, read, size in zip(names, described["inputs"], self._graph["inputs"]):
            leaf = read.get(
                "Observation", {"dtype": "float32", "shape": shapes.get(NEXT + name, [size])}
            )
            ports.append(self._port(name, leaf))
            cast = name if leaf["dtype"] == "float32" else self.add("Cast", name, to=1)
            self._inputs.append(self.shaped(cast, -1, size))
        if not self._inputs:
            raise ValueError(
                "the policy reads no observation: a model of ONNX has as many rows as its inputs"
            )
        #: ``[1, 1]``, and with as many rows as inputs.
        rows = self.add("Shape", names[0], start=0, end=1)
        self._rows = self.add("Concat", rows, self.integers(1), axis=0)
        for node in self._graph["nodes"]:
            self._values.append(self._value(node["op"], node["from"]))
        results = []
        for leaf, node in described["outputs"]:
            if ".".join(leaf["key"]) in names:
                # What is read is in batches too.
                continue
            results.append(self._result(".".join(leaf["key"]), leaf, node))
        for name, read in zip(names, described["inputs"]):
            if "State" in read and NEXT + name not in shapes:
                size = self._values[read["State"]["next"]].size
                results.append(
                    self._result(
                        NEXT + name, {"dtype": "float32", "shape": [size]}, read["State"]["next"]
                    )
                )
        held = [self._arrays.from_array(array, name) for name, array in self._held.items()]
        graph = self._helper.make_graph(self._nodes, "policy", ports, results, held)
        opset = [self._helper.make_opsetid("", VERSION)]
        return self._helper.make_model(
            graph, opset_imports=opset, ir_version=FORMAT, producer_name="windrow"
        )

    def _port(self, name: str, leaf: dict[str, Any]) -> Any:
        kind = self._helper.np_dtype_to_tensor_dtype(np.dtype(leaf["dtype"]))
        return self._helper.make_tensor_value_info(name, kind, ["N", *leaf["shape"]])

    def _result(self, name: str, leaf: dict[str, Any], node: int) -> Any:
        port = self._port(name, leaf)
        wide = self.add("Reshape", self.wide(self._values[node]), self.integers(-1, *leaf["shape"]))
        self._nodes.append(
            self._helper.make_node("Cast", [wide], [name], to=port.type.tensor_type.elem_type)
        )
        return port

    # Parts

    def add(self, kind: str, *inputs: str | float, **numbers: Any) -> str:
        """The result of a new node."""
        names = [self.number(one) if isinstance(one, float) else one for one in inputs]
        self._number += 1
        name = f"value{self._number}"
        self._nodes.append(self._helper.make_node(kind, names, [name], **numbers))
        return name

    def hold(self, array: Any) -> str:
        """A constant, which is no weight."""
        return self.add("Constant", value=self._arrays.from_array(np.asarray(array)))

    def integers(self, *numbers: int) -> str:
        return self.hold(np.array(numbers, np.int64))

    def number(self, value: float) -> str:
        return self.hold(np.float32(value).reshape(()))

    def last(self) -> str:
        """The axis of runs."""
        return self.integers(2)

    def shaped(self, value: str, *sizes: int) -> str:
        return self.add("Reshape", value, self.integers(*sizes))

    def flags(self, value: str) -> str:
        """Truth values as numbers."""
        return self.add("Cast", value, to=1)

    def truth(self, value: str) -> str:
        return self.add("Not", self.add("Equal", value, 0.0))

    def wide(self, value: _Value) -> str:
        """A value with all rows."""
        if value.varies:
            return value.name
        sizes = self.add("Mul", self._rows, self.integers(1, value.size))
        return self.add("Expand", value.name, sizes)

    # Operations

    def _value(self, op: Any, sources: list[int]) -> _Value:
        kind, given = (op, None) if isinstance(op, str) else next(iter(op.items()))
        read = [self._values[source] for source in sources]
        write: Callable[..., tuple[str, int]] | None = getattr(self, f"_{kind.lower()}", None)
        if write is None:
            raise ValueError(f"ONNX has no operator for {kind}, which the policy computes")
        varies = kind in ("Input", "Noise") or any(one.varies for one in read)
        return _Value(*write(given, *read), varies)

    def _input(self, index: int) -> tuple[str, int]:
        return self._inputs[index], self._graph["inputs"][index]

    def _parameter(self, index: int) -> tuple[str, int]:
        parameter = self._graph["parameters"][index]
        values = self._weights[parameter["name"]].detach().cpu().float().numpy()
        self._held[parameter["name"]] = values
        flat = self.shaped(parameter["name"], 1, values.size)
        self._parameters[flat] = parameter
        return flat, values.size

    def _constant(self, bits: list[int]) -> tuple[str, int]:
        values = np.array(bits, np.uint32).view(np.float32).reshape(1, -1)
        return self.hold(values), len(bits)

    def _linear(
        self, op: dict[str, int], x: _Value, weight: _Value, *bias: _Value
    ) -> tuple[str, int]:
        outputs, inputs = op["outputs"], op["inputs"]
        given = self._parameters.get(weight.name)
        # A weight as it is held, so that it has its own shape in the model.
        matrix = (
            str(given["name"])
            if given is not None and given["shape"] == [outputs, inputs]
            else self.shaped(weight.name, outputs, inputs)
        )
        added = [self.shaped(one.name, outputs) for one in bias]
        flat = x.name if x.size == inputs else self.shaped(x.name, -1, inputs)
        size = x.size // inputs * outputs
        product = self.add("Gemm", flat, matrix, *added, transB=1)
        return (product if x.size == inputs else self.shaped(product, -1, size)), size

    def _matmul(self, op: dict[str, int], a: _Value, b: _Value) -> tuple[str, int]:
        rows, inner, columns = op["rows"], op["inner"], op["columns"]
        times = a.size // (rows * inner)
        left = self.shaped(a.name, -1, times, rows, inner)
        right = self.shaped(b.name, -1, times, inner, columns)
        size = times * rows * columns
        return self.shaped(self.add("MatMul", left, right), -1, size), size

    def _computed(self, kind: str, given: Any, *values: str) -> str:
        row, numbers = row_of(kind, given)
        if row.write is not None:
            return row.write(self, *values, *numbers)
        if row.onnx is None:
            raise ValueError(f"ONNX has no operator for {row.name}, which the policy computes")
        return self.add(row.onnx, *values)

    def _map(self, given: Any, x: _Value) -> tuple[str, int]:
        return self._computed("Map", given, x.name), x.size

    def _zip(self, given: str, a: _Value, b: _Value) -> tuple[str, int]:
        return self._computed("Zip", given, a.name, b.name), a.size

    def _reduce(self, given: list[Any], x: _Value) -> tuple[str, int]:
        return self._computed("Reduce", given, self._runs(x, given[1])), x.size // given[1]

    def _where(self, _: None, condition: _Value, a: _Value, b: _Value) -> tuple[str, int]:
        return self.add("Where", self.truth(condition.name), a.name, b.name), condition.size

    def _within(self, _: object, x: _Value) -> tuple[str, int]:
        return x.name, x.size

    def _take(self, runs: list[list[int]], *read: _Value) -> tuple[str, int]:
        starts, places = np.cumsum([0, *(one.size for one in read)]), []
        for source, first, count, step in runs:
            places += [int(starts[source]) + first + step * number for number in range(count)]
        varies, joined = any(one.varies for one in read), read[0].name
        if len(read) > 1:
            names = (self.wide(one) if varies else one.name for one in read)
            joined = self.add("Concat", *names, axis=1)
        if places != list(range(int(starts[-1]))):
            joined = self.add("Gather", joined, self.integers(*places), axis=1)
        return joined, len(places)

    def _runs(self, x: _Value, run: int) -> str:
        return self.shaped(x.name, -1, x.size // run, run)

    def _softmax(self, run: int, x: _Value, kind: str = "Softmax") -> tuple[str, int]:
        return self.shaped(self.add(kind, self._runs(x, run), axis=2), -1, x.size), x.size

    def _logsoftmax(self, run: int, x: _Value) -> tuple[str, int]:
        return self._softmax(run, x, "LogSoftmax")

    def _normalize(self, op: dict[str, Any], x: _Value) -> tuple[str, int]:
        cut, last = self._runs(x, op["run"]), self.last()
        centred = self.add("Sub", cut, self.add("ReduceMean", cut, last, keepdims=1))
        variance = self.add("ReduceMean", self.add("Mul", centred, centred), last, keepdims=1)
        deviation = self.add("Sqrt", self.add("Add", variance, float(op["eps"])))
        return self.shaped(self.add("Div", centred, deviation), -1, x.size), x.size

    def _lookup(self, run: int, table: _Value, index: _Value) -> tuple[str, int]:
        rows, places = self.shaped(table.name, -1, run), self.add("Cast", index.name, to=7)
        size = index.size * run
        return self.shaped(self.add("Gather", rows, places, axis=0), -1, size), size

    def _gather(self, run: int, values: _Value, index: _Value) -> tuple[str, int]:
        values, index = (one._replace(name=self.wide(one)) for one in (values, index))
        places = self.add("Cast", self._runs(index, index.size // (values.size // run)), to=7)
        found = self.add("GatherElements", self._runs(values, run), places, axis=2)
        return self.shaped(found, -1, index.size), index.size

    def _pick(self, run: int, weights: _Value, uniform: _Value) -> tuple[str, int]:
        weights, uniform = (one._replace(name=self.wide(one)) for one in (weights, uniform))
        cut, last = self._runs(weights, run), self.last()
        sums = self.add("CumSum", cut, self.hold(np.int64(2)))
        whole = self._runs(uniform, 1), self.add("ReduceSum", cut, last, keepdims=1)
        passed = self.flags(self.add("GreaterOrEqual", self.add("Mul", *whole), sums))
        below = self.add("ReduceSum", passed, last, keepdims=0)
        return self.add("Min", below, run - 1.0), uniform.size

    def _noise(self, op: list[Any]) -> tuple[str, int]:
        kind, size, _branch = op
        zeros = self.wide(_Value(self.hold(np.zeros((1, 1), np.float32)), size, False))
        return self.add(f"Random{kind}Like", zeros, dtype=1), size
