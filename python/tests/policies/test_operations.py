"""The table of operations, and all who read it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from windrow._windrow import evaluate_graph
from windrow.policies.lower.operations import TABLE, Row, range_of
from windrow.policies.lower.plain import LAYERS
from windrow.policies.lower.rules import RULES
from windrow.policies.lower.values import INTEGERS
from windrow.policies.onnx.operators import OPERATORS

ROWS = [(kind, row) for kind, rows in TABLE.items() for row in rows]


def each(holds: Callable[[Row], object] = lambda row: True) -> Any:
    chosen = [(kind, row) for kind, row in ROWS if holds(row)]
    names = [f"{kind} {row.name}" for kind, row in chosen]
    return pytest.mark.parametrize(("kind", "row"), chosen, ids=names)


GIVEN = torch.linspace(-1.5, 2.5, 42).view(7, 6)


def node_of(kind: str, row: Row) -> dict[str, Any]:
    """A node of the operation, which reads one input, or two."""
    if kind == "Reduce":
        return {"Reduce": [row.name, 6]}
    # Softplus is ONNX's where its numbers are those of torch.
    numbers = dict(zip(row.numbers, (0.5, 1.25) if row.onnx is None else (1.0, 20.0)))
    name = {row.name: numbers} if numbers else row.name
    return {"Map": {"Activation": name}} if kind == "Activation" else {kind: name}


def graph_of(kind: str, row: Row) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """A graph of that node, and numbers to give to it."""
    given = [GIVEN, GIVEN.flip(-1).abs() + 0.25][: 2 if kind == "Zip" else 1]
    leaf = {"dtype": "float32", "shape": [6]}
    nodes = [{"op": {"Input": number}, "from": []} for number in range(len(given))]
    nodes.append({"op": node_of(kind, row), "from": list(range(len(given)))})
    size = 1 if kind == "Reduce" else 6
    described = {
        "graph": {"inputs": [6] * len(given), "parameters": [], "nodes": nodes},
        "inputs": [{"Observation": {**leaf, "key": [f"x{n}"]}} for n in range(len(given))],
        "outputs": [[{**leaf, "shape": [size], "key": ["y"]}, len(given)]],
    }
    return described, given


def in_rust(described: dict[str, Any], given: list[torch.Tensor]) -> torch.Tensor:
    asked = {"graph": json.dumps(described), "weights": {}, "used": [], "reads_init": False}
    found: torch.Tensor = evaluate_graph(asked, given, len(GIVEN))[0]
    return found


def check(own: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(
        expected.float().reshape(own.shape), own, rtol=1e-5, atol=1e-5, equal_nan=True
    )


@each()
def test_operations_of_torch_have_the_rule_of_their_row(kind: str, row: Row) -> None:
    for name in row.torch.split():
        assert callable(RULES[name]) and INTEGERS[name] == row.integers


@each()
def test_results_are_in_the_range_of_their_row(kind: str, row: Row) -> None:
    described, given = graph_of(kind, row)
    read = [(float(one.min()), float(one.max())) for one in given]
    low, high = range_of(node_of(kind, row), read)
    own = in_rust(described, given)
    assert bool(((low <= own) & (own <= high) | own.isnan()).all())


@each(lambda row: row.layers)
def test_layers_of_torch_have_the_numbers_of_their_row(kind: str, row: Row) -> None:
    for name in row.layers.split():
        layer = getattr(nn, name)()
        assert ("torch.nn.modules.activation", name) in LAYERS
        assert all(isinstance(getattr(layer, one), int | float) for one in row.numbers.values())


@each(lambda row: row.onnx)
def test_operators_of_onnx_compute_what_their_row_does(kind: str, row: Row) -> None:
    assert row.onnx is not None
    described, given = graph_of(kind, row)
    attributes = {"operator": row.onnx, **({"axes": [1]} if kind == "Reduce" else {})}
    check(in_rust(described, given), OPERATORS[row.onnx](given, attributes))


@each()
def test_rows_are_written_as_operators_that_compute_the_same(kind: str, row: Row) -> None:
    runtime = pytest.importorskip("onnxruntime")
    from windrow.policies.onnx.writing import model_of

    described, given = graph_of(kind, row)
    names = [read["Observation"]["key"][0] for read in described["inputs"]]
    if row.onnx is None and row.write is None:
        with pytest.raises(ValueError, match=f"ONNX has no operator for {row.name}, which"):
            model_of(described, {}, names)
        return
    model = model_of(described, {}, names).SerializeToString()
    session = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, dict(zip(names, map(np.asarray, given))))
    check(in_rust(described, given), torch.from_numpy(found))
