"""Models of ONNX as policies: modules of torch that windrow reads as graphs where they have the
operators of these, otherwise sessions of onnxruntime.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import nn

from windrow import _needs
from windrow._keys import Key, path, short
from windrow._lazy import is_installed
from windrow.policies.arguments import to_numpy
from windrow.policies.onnx.operators import OPERATORS, TYPES, UnknownOperator

#: The name of an output that is the next state of the input of the same name.
NEXT = "next."


def policy_of(model: Any, backend: str) -> OfArray | OfEntries:
    """The policy that ``model``, a path or a loaded model, describes: a module that windrow can
    read as a graph if the model has no other operators than graphs do, otherwise one that
    onnxruntime evaluates; so does it for the ``backend`` ``"torch"``, if it is installed.

    Raises:
        ValueError: it is no model of ONNX, or the backend is ``"native"`` and graphs do not have an
            operator.
        ImportError: ``onnx`` is not installed, or graphs do not have an operator and
            ``onnxruntime`` is not installed.
    """
    model, name = _loaded(model)
    if backend == "torch" and is_installed("onnxruntime"):
        return _shell(_Session(model.SerializeToString(), name))
    try:
        return _shell(_Program(model, name))
    except UnknownOperator as reason:
        lacks = f"{name} has the operator {reason}, which windrow does not evaluate"
        if backend == "native":
            raise ValueError(f'policy_backend="native": {lacks}') from None
        _needs.module(f"{lacks}: it", "onnxruntime", "onnx")
        shell = _shell(_Session(model.SerializeToString(), name))
        shell.reason = lacks
        return shell


def in_python(policy: Any) -> Any:
    """What Python calls in the place of ``policy``, which windrow cannot read as a graph:
    onnxruntime's form of a model, if it is installed.
    """
    program = getattr(policy, "program", None)
    return (
        _shell(_Session(program.written, program.name))
        if isinstance(program, _Program) and is_installed("onnxruntime")
        else policy
    )


def _loaded(model: Any) -> tuple[Any, str]:
    onnx = _needs.module("a policy of ONNX", "onnx", "onnx")
    if not isinstance(model, (str, os.PathLike)):
        return model, f"the model {model.graph.name!r}"
    file = Path(model)
    if not file.is_file():
        raise ValueError(
            f"policy={str(model)!r}: expected the path of an ONNX file, and there is no such file"
        )
    try:
        return onnx.load(file), str(file)
    except Exception as error:
        raise ValueError(
            f"policy={str(model)!r}: expected an ONNX file, which it is not: {error}"
        ) from error


class _Port(NamedTuple):
    """An input or output of a model."""

    name: str
    key: Key
    dtype: torch.dtype | None
    #: None for a size that is not fixed; None for all where the shape is not known.
    shape: list[int | None] | None


def _ports(values: Any) -> Iterator[_Port]:
    for value in values:
        kind = value.type.tensor_type
        shape = (
            [size.dim_value if size.HasField("dim_value") else None for size in kind.shape.dim]
            if kind.HasField("shape")
            else None
        )
        yield _Port(
            value.name, short(tuple(value.name.split("."))), TYPES.get(kind.elem_type), shape
        )


def _keyed(outputs: list[_Port]) -> list[_Port]:
    """The outputs, of which the first is the action unless one is called so. Exporters name others
    by numbers where nobody has named them.
    """
    outputs = [
        port if not port.name[:1].isdigit() else port._replace(key=f"output{number}")
        for number, port in enumerate(outputs)
    ]
    if any(path(port.key)[0] == "action" for port in outputs):
        return outputs
    return [outputs[0]._replace(key="action"), *outputs[1:]]


class _Model(nn.Module):
    """What evaluates a model of ONNX."""

    inputs: list[_Port]
    outputs: list[_Port]
    name: str

    def evaluate(self, given: list[torch.Tensor]) -> list[torch.Tensor]:
        raise NotImplementedError

    def outputs_for(self, given: list[torch.Tensor]) -> dict[Key, torch.Tensor]:
        """The outputs for observations with any dimensions of a batch, for models that have one."""
        batch, rows = torch.Size(), []
        for port, value in zip(self.inputs, given):
            value = value if port.dtype is None else value.to(port.dtype)
            if port.shape is not None:
                inner = len(port.shape) - 1
                batch = value.shape[: value.dim() - inner]
                if value.dim() < inner or any(
                    one not in (None, other)
                    for one, other in zip(port.shape[1:], value.shape[len(batch) :])
                ):
                    wanted = ["N" if size is None else size for size in port.shape]
                    raise TypeError(
                        f"{self.name}: the input {port.name!r} has the shape {wanted}, N rows, got {list(value.shape)}"
                    )
                value = value.reshape(-1, *value.shape[len(batch) :])
            rows.append(value)
        found = zip(self.outputs, self.evaluate(rows))
        return {
            port.key: value.reshape(*batch, *value.shape[1:])
            if self.inputs[0].shape is not None
            else value
            for port, value in found
        }


class _Program(_Model):
    """A model, node by node. Real numbers of its own are weights, by their names in the model.

    Raises:
        UnknownOperator: a node has another operator than :data:`OPERATORS`.
    """

    def __init__(self, model: Any, name: str) -> None:
        super().__init__()
        helper, arrays = (
            importlib.import_module("onnx.helper"),
            importlib.import_module("onnx.numpy_helper"),
        )
        if len(model.functions):
            model = importlib.import_module("onnx.inliner").inline_local_functions(model)
        self.written, self.name = model.SerializeToString(), name
        version = max(
            (one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), default=1
        )
        graph = model.graph
        held = {
            tensor.name: torch.from_numpy(arrays.to_array(tensor).copy())
            for tensor in graph.initializer
        }
        #: What is no weight, by name.
        self.constants = {
            one: tensor
            for one, tensor in held.items()
            if tensor.dtype != torch.float32 or not tensor.dim()
        }
        self._named: dict[str, str] = {}
        for one, tensor in held.items():
            if one not in self.constants:
                own = re.sub(r"\W", "_", one)
                while hasattr(self, own):
                    own += "_"
                self.register_buffer(own, tensor)
                self._named[one] = own
        self.inputs = [port for port in _ports(graph.input) if port.name not in held]
        self.outputs = _keyed(list(_ports(graph.output)))
        self.steps: list[tuple[str, list[str], list[str], dict[str, Any]]] = []
        for node in graph.node:
            given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
            if node.op_type == "Constant" and not node.domain:
                self.constants[node.output[0]] = _constant(given, arrays)
                continue
            if node.domain not in ("", "ai.onnx") or node.op_type not in OPERATORS:
                raise UnknownOperator(f"{node.domain}.{node.op_type}".lstrip("."))
            numbers = {key: _attribute(value, arrays) for key, value in given.items()}
            numbers |= {"operator": node.op_type, "version": version, "outputs": len(node.output)}
            self.steps.append((node.op_type, list(node.input), list(node.output), numbers))

    def evaluate(self, given: list[torch.Tensor]) -> list[torch.Tensor]:
        known: dict[str, Any] = {"": None, **self.constants}
        known.update((name, getattr(self, own)) for name, own in self._named.items())
        known.update((port.name, value) for port, value in zip(self.inputs, given))
        for kind, inputs, outputs, numbers in self.steps:
            result = OPERATORS[kind]([known[name] for name in inputs], numbers)
            known.update(zip(outputs, result if isinstance(result, tuple) else (result,)))
        return [known[port.name] for port in self.outputs]


def _constant(given: dict[str, Any], arrays: Any) -> torch.Tensor:
    (name, value), *_ = given.items()
    if name == "value":
        return torch.from_numpy(arrays.to_array(value).copy())
    if name.startswith(("value_float", "value_int")):
        return torch.tensor(value, dtype=torch.float32 if "float" in name else torch.int64)
    raise UnknownOperator(f"Constant with {name}")


def _attribute(value: object, arrays: Any) -> object:
    if isinstance(value, bytes):
        return value.decode()
    return (
        torch.from_numpy(arrays.to_array(value).copy())
        if type(value).__name__ == "TensorProto"
        else value
    )


class _Session(_Model):
    """A model that onnxruntime evaluates, with one thread for each call."""

    def __init__(self, written: bytes, name: str) -> None:
        super().__init__()
        self.written, self.name = written, name
        self._start()

    def _start(self) -> None:
        runtime = importlib.import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.session = runtime.InferenceSession(
            self.written, options, providers=["CPUExecutionProvider"]
        )
        graph = importlib.import_module("onnx").load_from_string(self.written).graph
        held = {tensor.name for tensor in graph.initializer}
        self.inputs = [port for port in _ports(graph.input) if port.name not in held]
        self.outputs = _keyed(list(_ports(graph.output)))

    def evaluate(self, given: list[torch.Tensor]) -> list[torch.Tensor]:
        names, fixed = [port.name for port in self.outputs], self.inputs[0].shape
        rows = 1 if fixed and fixed[0] == 1 else len(given[0])
        if fixed and fixed[0] not in (None, rows):
            raise TypeError(
                f"{self.name} takes {fixed[0]} rows, got {len(given[0])}: export it with a first dimension that is not fixed"
            )
        found = []
        for first in range(0, len(given[0]), max(rows, 1)):
            arrays = {
                port.name: to_numpy(value[first : first + rows])
                for port, value in zip(self.inputs, given)
            }
            found.append([torch.from_numpy(array) for array in self.session.run(names, arrays)])
        return [torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*found)]

    def __deepcopy__(self, memo: dict[int, Any]) -> _Session:
        # A session may be used by several threads.
        return self

    def __reduce__(self) -> tuple[type[_Session], tuple[Any, ...]]:
        return _Session, (self.written, self.name)


def _shell(program: _Model) -> OfArray | OfEntries:
    is_single = len(program.inputs) == 1 and not any(
        port.name.startswith(NEXT) for port in program.outputs
    )
    return OfArray(program) if is_single else OfEntries(program)


class OfArray(nn.Module):
    """A model with one input, which takes the only observation whatever its name.

    Attributes:
        reason: why windrow cannot read it as a graph, if that is known.
    """

    reason: str | None = None

    def __init__(self, program: _Model) -> None:
        super().__init__()
        self.program = program

    def forward(self, observation: torch.Tensor) -> dict[Key, torch.Tensor]:
        return self.program.outputs_for([observation])


class OfEntries(TensorDictModuleBase):
    """A model with several inputs, which are observations, and states that it writes as outputs
    under ``next.``, by their names.

    Attributes:
        reason: as of :class:`OfArray`.
    """

    reason: str | None = None

    def __init__(self, program: _Model) -> None:
        super().__init__()
        self.program = program
        self.in_keys, self.out_keys = (
            [port.key for port in program.inputs],
            [port.key for port in program.outputs],
        )

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.update(
            self.program.outputs_for(
                [self._given(tensordict, port) for port in self.program.inputs]
            )
        )

    def _given(self, tensordict: TensorDictBase, port: _Port) -> torch.Tensor:
        value = tensordict.get(port.key, None)
        if value is not None:
            return value
        # The first value of a state.
        inner = [size or 1 for size in (port.shape or [1])[1:]]
        return torch.zeros(*tensordict.batch_size, *inner, dtype=port.dtype or torch.float32)
