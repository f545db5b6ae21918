"""Graphs of the engine as models of ONNX. A value of a graph is ``[rows, numbers]`` there too, with
one row where it is the same in all.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from windrow._keys import Key, path
from windrow.policies.onnx.reading import NEXT

#: What is written, by versions of its operators, and of the format.
VERSION, FORMAT = 18, 9

FUNCTIONS = {
    name: name
    for name in "Abs Neg Sign Exp Log Sqrt Reciprocal Floor Ceil Round Sin Cos Erf".split()
}
ACTIVATIONS = {
    "Tanh": "Tanh",
    "ReLU": "Relu",
    "Sigmoid": "Sigmoid",
    "Softsign": "Softsign",
    "SELU": "Selu",
    "Hardswish": "HardSwish",
}
ZIPS = {name: name for name in "Add Sub Mul Div Pow Max Min".split()}
COMPARISONS = {
    "Eq": "Equal",
    "Lt": "Less",
    "Le": "LessOrEqual",
    "Gt": "Greater",
    "Ge": "GreaterOrEqual",
}
REDUCTIONS = {
    "Sum": "ReduceSum",
    "Prod": "ReduceProd",
    "Max": "ReduceMax",
    "Min": "ReduceMin",
    "Logsumexp": "ReduceLogSumExp",
}


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


class _Writer:
    def __init__(self, graph: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
        self._helper = importlib.import_module("onnx.helper")
        self._arrays = importlib.import_module("onnx.numpy_helper")
        self._graph, self._weights = graph, weights
        self._nodes: list[Any] = []
        self._held: dict[str, Any] = {}
        #: Name, numbers of a row, and whether rows differ, of each value.
        self._values: list[tuple[str, int, bool]] = []
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
            cast = name if leaf["dtype"] == "float32" else self.add("Cast", [name], to=1)
            self._inputs.append(self.shaped(cast, -1, size))
        if not self._inputs:
            raise ValueError(
                "the policy reads no observation: a model of ONNX has as many rows as its inputs"
            )
        #: ``[1, 1]``, and with as many rows as inputs.
        rows = self.add(
            "Concat",
            [self.add("Shape", [names[0]], start=0, end=1), self.hold(np.ones(1, np.int64))],
            axis=0,
        )
        self._rows = rows
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
                size = self._values[read["State"]["next"]][1]
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
        wide = self.add(
            "Reshape", [self.wide(node), self.hold(np.array([-1, *leaf["shape"]], np.int64))]
        )
        self._nodes.append(
            self._helper.make_node("Cast", [wide], [name], to=port.type.tensor_type.elem_type)
        )
        return port

    # Parts

    def add(self, kind: str, inputs: list[str], **numbers: Any) -> str:
        """The result of a new node."""
        self._number += 1
        name = f"value{self._number}"
        self._nodes.append(self._helper.make_node(kind, inputs, [name], **numbers))
        return name

    def hold(self, array: Any) -> str:
        """A constant, which is no weight."""
        return self.add("Constant", [], value=self._arrays.from_array(np.asarray(array)))

    def number(self, value: float) -> str:
        return self.hold(np.float32(value).reshape(()))

    def shaped(self, value: str, *sizes: int) -> str:
        return self.add("Reshape", [value, self.hold(np.array(sizes, np.int64))])

    def flags(self, value: str) -> str:
        """Truth values as numbers."""
        return self.add("Cast", [value], to=1)

    def truth(self, value: str) -> str:
        return self.add("Not", [self.add("Equal", [value, self.number(0.0)])])

    def wide(self, node: int) -> str:
        """A value with all rows."""
        name, size, varies = self._values[node]
        if varies:
            return name
        sizes = self.add("Mul", [self._rows, self.hold(np.array([1, size], np.int64))])
        return self.add("Expand", [name, sizes])

    # Operations

    def _value(self, op: Any, sources: list[int]) -> tuple[str, int, bool]:
        kind, given = (op, None) if isinstance(op, str) else next(iter(op.items()))
        varies = kind in ("Input", "Noise") or any(self._values[source][2] for source in sources)
        sizes = [self._values[source][1] for source in sources]
        names = [self._values[source][0] for source in sources]
        write: Callable[..., tuple[str, int]] | None = getattr(self, f"_{kind.lower()}", None)
        if write is None:
            raise ValueError(f"ONNX has no operator for {kind}, which the policy computes")
        name, size = write(given, names, sizes, sources)
        return name, size, varies

    def _input(self, index: int, *_: object) -> tuple[str, int]:
        return self._inputs[index], self._graph["inputs"][index]

    def _parameter(self, index: int, *_: object) -> tuple[str, int]:
        parameter = self._graph["parameters"][index]
        name, values = (
            parameter["name"],
            self._weights[parameter["name"]].detach().cpu().float().numpy(),
        )
        self._held[name] = values
        return self.shaped(name, 1, values.size), values.size

    def _constant(self, bits: list[int], *_: object) -> tuple[str, int]:
        values = np.array(bits, np.uint32).view(np.float32).reshape(1, -1)
        return self.hold(values), len(bits)

    def _linear(
        self, op: dict[str, int], names: list[str], sizes: list[int], sources: list[int]
    ) -> tuple[str, int]:
        outputs, inputs = op["outputs"], op["inputs"]
        weight, *bias = (
            self._matrix(sources[1], outputs, inputs),
            *(self.shaped(name, outputs) for name in names[2:]),
        )
        flat = names[0] if sizes[0] == inputs else self.shaped(names[0], -1, inputs)
        size = sizes[0] // inputs * outputs
        product = self.add("Gemm", [flat, weight, *bias], transB=1)
        return (product if sizes[0] == inputs else self.shaped(product, -1, size)), size

    def _matrix(self, node: int, outputs: int, inputs: int) -> str:
        """A weight as it is held, so that it has its own shape in the model."""
        op = self._graph["nodes"][node]["op"]
        parameter = (
            self._graph["parameters"][op["Parameter"]]
            if isinstance(op, dict) and "Parameter" in op
            else None
        )
        if parameter is not None and parameter["shape"] == [outputs, inputs]:
            return str(parameter["name"])
        return self.shaped(self._values[node][0], outputs, inputs)

    def _matmul(
        self, op: dict[str, int], names: list[str], sizes: list[int], _: object
    ) -> tuple[str, int]:
        rows, inner, columns = op["rows"], op["inner"], op["columns"]
        times = sizes[0] // (rows * inner)
        a, b = (
            self.shaped(names[0], -1, times, rows, inner),
            self.shaped(names[1], -1, times, inner, columns),
        )
        size = times * rows * columns
        return self.shaped(self.add("MatMul", [a, b]), -1, size), size

    def _map(self, function: Any, names: list[str], sizes: list[int], _: object) -> tuple[str, int]:
        return self._mapped(function, names[0]), sizes[0]

    def _mapped(self, function: Any, x: str) -> str:
        match function:
            case str() if function in FUNCTIONS:
                return self.add(FUNCTIONS[function], [x])
            case "Expm1":
                return self.add("Sub", [self.add("Exp", [x]), self.number(1.0)])
            case "Log1p":
                return self.add("Log", [self.add("Add", [x, self.number(1.0)])])
            case "Rsqrt":
                return self.add("Reciprocal", [self.add("Sqrt", [x])])
            case "Square":
                return self.add("Mul", [x, x])
            case "Trunc":
                return self.add(
                    "Mul", [self.add("Sign", [x]), self.add("Floor", [self.add("Abs", [x])])]
                )
            case "Not":
                return self.flags(self.add("Equal", [x, self.number(0.0)]))
            case "Isnan":
                return self.flags(self.add("IsNaN", [x]))
            case {"Activation": activation}:
                return self._activated(activation, x)
        raise ValueError(f"ONNX has no operator for {function}, which the policy computes")

    def _activated(self, activation: Any, x: str) -> str:
        name, given = (
            (activation, {}) if isinstance(activation, str) else next(iter(activation.items()))
        )
        numbers = {key: float(value) for key, value in given.items()}
        match name:
            case _ if name in ACTIVATIONS:
                return self.add(ACTIVATIONS[name], [x])
            case "ELU" | "CELU":
                return self.add("Elu" if name == "ELU" else "Celu", [x], alpha=numbers["alpha"])
            case "LeakyReLU":
                return self.add("LeakyRelu", [x], alpha=numbers["slope"])
            case "SiLU":
                return self.add("Mul", [x, self.add("Sigmoid", [x])])
            case "GELU":
                error = self.add("Erf", [self.add("Mul", [x, self.number(math.sqrt(0.5))])])
                return self._half(x, error)
            case "GELUTanh":
                cube = self.add(
                    "Mul", [self.add("Mul", [self.add("Mul", [x, x]), x]), self.number(0.044715)]
                )
                inner = self.add(
                    "Mul", [self.add("Add", [x, cube]), self.number(math.sqrt(2 / math.pi))]
                )
                return self._half(x, self.add("Tanh", [inner]))
            case "Softplus":
                beta = self.number(numbers["beta"])
                return self.add("Div", [self.add("Softplus", [self.add("Mul", [x, beta])]), beta])
            case "Mish":
                return self.add("Mul", [x, self.add("Tanh", [self.add("Softplus", [x])])])
            case "Hardtanh":
                return self.add(
                    "Clip", [x, self.number(numbers["low"]), self.number(numbers["high"])]
                )
            case "Hardsigmoid":
                return self.add("HardSigmoid", [x], alpha=1 / 6, beta=0.5)
            case "LogSigmoid":
                return self.add("Neg", [self.add("Softplus", [self.add("Neg", [x])])])
            case "Tanhshrink":
                return self.add("Sub", [x, self.add("Tanh", [x])])
            case "Softshrink" | "Hardshrink":
                bound = numbers["lambda"]
                return self.add(
                    "Shrink", [x], lambd=bound, bias=bound if name == "Softshrink" else 0.0
                )
            case "Threshold":
                return self.add(
                    "Where",
                    [
                        self.add("Greater", [x, self.number(numbers["threshold"])]),
                        x,
                        self.number(numbers["value"]),
                    ],
                )
        raise ValueError(f"ONNX has no operator for {name}, which the policy computes")

    def _half(self, x: str, share: str) -> str:
        """``x (1 + share) / 2``."""
        return self.add(
            "Mul",
            [self.add("Mul", [x, self.number(0.5)]), self.add("Add", [share, self.number(1.0)])],
        )

    def _zip(self, kind: str, names: list[str], sizes: list[int], _: object) -> tuple[str, int]:
        a, b = names
        match kind:
            case _ if kind in ZIPS:
                result = self.add(ZIPS[kind], [a, b])
            case _ if kind in COMPARISONS:
                result = self.flags(self.add(COMPARISONS[kind], [a, b]))
            case "Ne":
                result = self.flags(self.add("Not", [self.add("Equal", [a, b])]))
            case "And" | "Or":
                result = self.flags(self.add(kind, [self.truth(a), self.truth(b)]))
            case "Remainder":
                whole = self.add("Floor", [self.add("Div", [a, b])])
                result = self.add("Sub", [a, self.add("Mul", [whole, b])])
            case _:
                raise ValueError(f"ONNX has no operator for {kind}, which the policy computes")
        return result, sizes[0]

    def _where(self, _: object, names: list[str], sizes: list[int], __: object) -> tuple[str, int]:
        return self.add("Where", [self.truth(names[0]), *names[1:]]), sizes[0]

    def _within(self, _: object, names: list[str], sizes: list[int], __: object) -> tuple[str, int]:
        return names[0], sizes[0]

    def _take(
        self, runs: list[list[int]], names: list[str], sizes: list[int], sources: list[int]
    ) -> tuple[str, int]:
        starts, places = np.cumsum([0, *sizes]), []
        for source, first, count, step in runs:
            places += [int(starts[source]) + first + step * number for number in range(count)]
        varies = any(self._values[source][2] for source in sources)
        joined = (
            names[0]
            if len(names) == 1
            else self.add(
                "Concat",
                [self.wide(source) if varies else name for source, name in zip(sources, names)],
                axis=1,
            )
        )
        if places == list(range(int(starts[-1]))):
            return joined, len(places)
        return self.add("Gather", [joined, self.hold(np.array(places, np.int64))], axis=1), len(
            places
        )

    def _runs(self, name: str, size: int, run: int) -> str:
        return self.shaped(name, -1, size // run, run)

    def _reduce(
        self, op: list[Any], names: list[str], sizes: list[int], _: object
    ) -> tuple[str, int]:
        kind, run = op
        cut = self._runs(names[0], sizes[0], run)
        if kind in ("Argmax", "Argmin"):
            return self.flags(
                self.add("ArgMax" if kind == "Argmax" else "ArgMin", [cut], axis=2, keepdims=0)
            ), sizes[0] // run
        return self.add(
            REDUCTIONS[kind], [cut, self.hold(np.array([2], np.int64))], keepdims=0
        ), sizes[0] // run

    def _softmax(self, run: int, names: list[str], sizes: list[int], _: object) -> tuple[str, int]:
        return self._normal("Softmax", run, names[0], sizes[0])

    def _logsoftmax(
        self, run: int, names: list[str], sizes: list[int], _: object
    ) -> tuple[str, int]:
        return self._normal("LogSoftmax", run, names[0], sizes[0])

    def _normal(self, kind: str, run: int, name: str, size: int) -> tuple[str, int]:
        return self.shaped(self.add(kind, [self._runs(name, size, run)], axis=2), -1, size), size

    def _normalize(
        self, op: dict[str, Any], names: list[str], sizes: list[int], _: object
    ) -> tuple[str, int]:
        cut, last = self._runs(names[0], sizes[0], op["run"]), self.hold(np.array([2], np.int64))
        centred = self.add("Sub", [cut, self.add("ReduceMean", [cut, last], keepdims=1)])
        variance = self.add("ReduceMean", [self.add("Mul", [centred, centred]), last], keepdims=1)
        deviation = self.add("Sqrt", [self.add("Add", [variance, self.number(float(op["eps"]))])])
        return self.shaped(self.add("Div", [centred, deviation]), -1, sizes[0]), sizes[0]

    def _lookup(self, run: int, names: list[str], sizes: list[int], _: object) -> tuple[str, int]:
        table, index = self.shaped(names[0], -1, run), self.add("Cast", [names[1]], to=7)
        return self.shaped(self.add("Gather", [table, index], axis=0), -1, sizes[1] * run), sizes[
            1
        ] * run

    def _gather(
        self, run: int, names: list[str], sizes: list[int], sources: list[int]
    ) -> tuple[str, int]:
        count = sizes[0] // run
        values, index = (self.wide(source) for source in sources)
        index = self.add("Cast", [self._runs(index, sizes[1], sizes[1] // count)], to=7)
        found = self.add("GatherElements", [self._runs(values, sizes[0], run), index], axis=2)
        return self.shaped(found, -1, sizes[1]), sizes[1]

    def _pick(
        self, run: int, names: list[str], sizes: list[int], sources: list[int]
    ) -> tuple[str, int]:
        weights, uniform = (self.wide(source) for source in sources)
        cut, last = self._runs(weights, sizes[0], run), self.hold(np.array([2], np.int64))
        sums = self.add("CumSum", [cut, self.hold(np.int64(2))])
        threshold = self.add(
            "Mul",
            [self._runs(uniform, sizes[1], 1), self.add("ReduceSum", [cut, last], keepdims=1)],
        )
        below = self.add(
            "ReduceSum",
            [self.flags(self.add("GreaterOrEqual", [threshold, sums])), last],
            keepdims=0,
        )
        return self.add("Min", [below, self.number(run - 1)]), sizes[1]

    def _noise(self, op: list[Any], *_: object) -> tuple[str, int]:
        kind, size, _branch = op
        zeros = self.add(
            "Expand",
            [
                self.hold(np.zeros((1, 1), np.float32)),
                self.add("Mul", [self._rows, self.hold(np.array([1, size], np.int64))]),
            ],
        )
        return self.add(
            "RandomNormalLike" if kind == "Normal" else "RandomUniformLike", [zeros], dtype=1
        ), size
