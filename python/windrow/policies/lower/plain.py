"""Graphs of plain networks, which are written down by what their layers are: torch computes nothing
for that.

What is here holds for classes as their libraries define them;
:class:`~windrow.policies.lower.listed.Listed` proves that a policy's parts are of these classes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from windrow import _fence
from windrow.envs._specs import Key, path, short
from windrow.policies import recurrent
from windrow.policies.arguments import arguments_of
from windrow.policies.lower import rules
from windrow.policies.lower.inputs import Leaf
from windrow.policies.lower.trace import Trace
from windrow.policies.lower.values import NotLowerable, Value
from windrow.policies.weights import tensors_of

#: Rows that the values may have which a graph is made of: primes, of which the first is taken that
#: is no size of anything else, so that nothing else looks like rows. No graph depends on it.
ROWS = (37, 41, 43, 47, 53, 59, 61, 67)


class NotPlain(NotLowerable):
    """Why a policy's graph cannot be written down, though torch may be able to call it."""


class Plain(NamedTuple):
    """The graph of a plain network.

    Attributes:
        graph: nodes, inputs and outputs as JSON.
        used: names of the weights that it reads.
        inputs: the observations that it reads.
        outputs: name, dtype and shape of each output, actions first.
        single: it holds for one environment without a batch dimension, too.
    """

    graph: str
    used: list[str]
    inputs: list[Key]
    outputs: list[dict[str, Any]]
    single: bool


def plain_graph(
    policy: nn.Module,
    observed: Mapping[Key, Leaf],
    actions: Sequence[Key],
    *,
    evaluates: bool = False,
) -> Plain:
    """The graph of ``policy``, for any number of rows.

    Args:
        policy: a network all of whose parts are listed.
        observed: the observations of one environment.
        actions: what the environment takes.
        evaluates: it is called in evaluation mode, whatever its own is.

    Raises:
        NotPlain: the graph has to be found in another way.
        TypeError: torch could not call the policy with these observations.
    """
    writer = _Writer(policy, observed, evaluates)
    try:
        named = writer.outputs(policy, list(actions))
        values = [writer.by_row(value) for value in named.values()]
        graph, nodes, inputs, used = writer.trace.graph(values)
    except NotPlain:
        raise
    except NotLowerable as reason:
        raise NotPlain(str(reason)) from None
    keys = [list(observed)[index] for index in inputs]
    leaves = [
        _leaf(key, torch.float32, value.shape[1:]) for key, value in zip(named, values, strict=True)
    ]
    read = [{"Observation": _leaf(key, observed[key].dtype, observed[key].shape)} for key in keys]
    outputs = list(zip(leaves, nodes, strict=False))
    text = json.dumps({"graph": graph, "inputs": read, "outputs": outputs})
    return Plain(text, used, keys, leaves, writer.single)


def _leaf(key: Key, dtype: torch.dtype, shape: Sequence[int]) -> dict[str, Any]:
    name = str(dtype).removeprefix("torch.")
    return {"key": list(path(key)), "dtype": name, "shape": list(shape)}


#: Values in and out.
_Values = tuple[Value, ...]
_Layer = Callable[["_Writer", Any, _Values], _Values]
#: What each class computes, by the names of its module and of itself; None for those that compute
#: nothing themselves.
LAYERS: dict[tuple[str, str], _Layer | None] = {
    ("torch.nn.modules.container", "ModuleList"): None,
    ("tensordict.nn.common", "TensorDictModule"): None,
    ("tensordict.nn.sequence", "TensorDictSequential"): None,
    ("tensordict.nn.utils", "biased_softplus"): None,
}


def _layer(module: str, *names: str) -> Callable[[Any], Any]:
    """Makes a function of one value what these classes compute."""

    def add(function: Callable[[_Writer, Any, Value], Value]) -> Any:
        def of_one(writer: _Writer, part: Any, values: _Values) -> _Values:
            if len(values) != 1:
                raise NotPlain(f"{type(part).__name__} of {len(values)} values")
            if getattr(part, "inplace", False) and values[0].node in writer.kept:
                raise NotPlain(f"{type(part).__name__} writes into what others read")
            return (function(writer, part, values[0]),)

        LAYERS.update({(module, name): of_one for name in names})
        return function

    return add


def _layer_of_several(module: str, *names: str) -> Callable[[_Layer], _Layer]:
    def add(function: _Layer) -> _Layer:
        LAYERS.update({(module, name): function for name in names})
        return function

    return add


class _Writer:
    """Writes the nodes of a policy.

    Attributes:
        trace: has the nodes.
        kept: nodes of values that others may read, which none may write into.
        single: whether nothing so far counts dimensions from the front.
    """

    def __init__(self, policy: nn.Module, observed: Mapping[Key, Leaf], evaluates: bool) -> None:
        if any(map(nn.parameter.is_lazy, policy.parameters())):
            raise NotPlain("it has lazy layers")
        weights = tensors_of(policy)
        given = [
            *(tensor.shape for tensor in weights.values()),
            *(leaf.shape for leaf in observed.values()),
        ]
        sizes = {size for shape in given for size in shape}
        rows = next((rows for rows in ROWS if all(size % rows for size in sizes)), ROWS[0])
        self.trace = Trace(rows, weights)
        self._names = {id(tensor): name for name, tensor in weights.items()}
        self.kept: set[int] = set()
        self.single, self._evaluates = True, evaluates
        #: Types of the inputs that are not float32.
        self._types: dict[int, torch.dtype] = {}
        self._observed: dict[Key, Value] = {}
        for key, (shape, dtype, low, high) in observed.items():
            self.trace.input(torch.empty((rows, *shape), dtype=dtype), low=low, high=high)
            self._observed[key] = value = self.trace.inputs[-1]
            self.kept.add(value.node)
            if dtype != torch.float32:
                self._types[value.node] = dtype

    def outputs(self, policy: nn.Module, actions: list[Key]) -> dict[Key, Value]:
        """What ``policy`` writes, by name: the actions first."""
        if hasattr(policy, "in_keys"):
            return self._written(policy, actions)
        places = arguments_of(policy, list(self._observed))
        inputs = list(self._observed.values())
        if not all(isinstance(place, int) for place in places):
            raise NotPlain("it takes a dictionary")
        found = self.call(policy, tuple(inputs[place] for place in places if type(place) is int))
        if len(found) < len(actions):
            raise TypeError(f"the policy returns {len(found)} tensors, expected {len(actions)}")
        others = [f"output{number}" for number in range(1, len(found) - len(actions) + 1)]
        return dict(zip((*actions, *others), found, strict=True))

    def by_row(self, value: Value) -> Value:
        """``value`` as an output."""
        if self.dtype(value) != torch.float32:
            raise NotPlain(f"an output is {self.dtype(value)}")
        varies = self.trace.varies(value.node)
        return value if varies else self.trace.spread(value, value.shape, 0)

    def call(self, part: nn.Module, values: _Values) -> _Values:
        """What ``part`` returns."""
        kind = type(part)
        layer = LAYERS.get((kind.__module__, kind.__qualname__))
        if layer is None:
            raise NotPlain(f"{kind.__name__} is no plain layer")
        return layer(self, part, values)

    def evaluates(self, part: nn.Module) -> bool:
        """Whether ``part`` is in evaluation mode."""
        return self._evaluates or not part.training

    def number(self, value: Value, what: nn.Module) -> Value:
        """``value``, of which ``what`` computes something.

        Raises:
            NotPlain: it is no float32.
        """
        dtype = self.dtype(value)
        if dtype != torch.float32:
            raise NotPlain(f"{type(what).__name__} of {dtype}")
        return value

    def dtype(self, value: Value) -> torch.dtype:
        """The type of ``value``; all that is computed is float32."""
        return self._types.get(value.node, torch.float32)

    def dim(self, dim: int) -> int:
        """``dim``, which is another dimension in an environment without rows where it counts from
        the front.
        """
        self.single = self.single and dim < 0
        return dim

    def weight(self, tensor: torch.Tensor) -> Value:
        """A parameter or buffer, by its name: by its place in memory, others may share it."""
        name = self._names.get(id(tensor))
        if name is None or tensor.dtype != torch.float32 or not tensor.numel():
            raise NotPlain(f"a weight is {tensor.dtype} {list(tensor.shape)}, or has no name")
        return self.trace.like({"Parameter": name}, (), tensor.shape, None)

    def weights(self, *tensors: torch.Tensor | None) -> list[Value | None]:
        return [None if tensor is None else self.weight(tensor) for tensor in tensors]

    # Modules of tensordict

    def _written(self, policy: Any, actions: list[Key]) -> dict[Key, Value]:
        reads = [path(key) for key in policy.in_keys]
        if (recurrent.IS_INIT,) in reads:
            raise NotPlain("it reads where episodes begin")
        self._held: dict[tuple[str, ...], Value] = {
            path(key): value for key, value in self._observed.items()
        }
        observed = set(self._held)
        if not observed.issuperset(reads):
            raise NotPlain("it reads what nobody observes")
        self._order: dict[str, Any] = {}
        for names in self._held:
            self._place(names)
        self.run(policy)
        written = self._held.keys() - observed
        for names in written:
            is_state = any(names[: len(key)] == key for key in reads) or names[0] == "next"
            if is_state or any(name.startswith("_") for name in names):
                raise NotPlain("it has a state")
        found = {
            short(names): self._held[names] for names in _leaves(self._order) if names in written
        }
        if not all(action in found for action in actions):
            raise NotPlain(f"it writes {list(found)}, expected {list(actions)}")
        return {key: found[key] for key in (*actions, *found)}

    def _place(self, names: tuple[str, ...]) -> None:
        """Makes an entry of this name, in the order that TensorDicts have."""
        inner = self._order
        for name in names[:-1]:
            inner = inner.setdefault(name, {})
            if inner is None:
                raise NotPlain(f"{short(names)!r} lies below a tensor")
        if inner.setdefault(names[-1]) is not None:
            raise NotPlain(f"{short(names)!r} is a group")

    def run(self, part: Any) -> None:
        """Calls a module with the TensorDict that all read and write."""
        name = type(part).__name__
        if name == "TensorDictSequential":
            if (
                part.partial_tolerant
                or part._select_before_return
                or part.inplace not in (None, True)
            ):
                raise NotPlain("a sequence that leaves some of its results out")
            if not isinstance(part.module, nn.ModuleList):
                raise NotPlain("a sequence of named modules")
            for inner in part.module:
                self.run(inner)
            return
        plain = part._kwargs is None and part.method is None and part.inplace is True
        if name != "TensorDictModule" or not plain or part.method_kwargs or part._get_kwargs:
            raise NotPlain(f"{name} with options, or of another kind")
        if not isinstance(part.module, nn.Module):
            raise NotPlain("a function")
        read, written = ([path(key) for key in keys] for keys in (part.in_keys, part._out_keys))
        missing = [names for names in read if names not in self._held]
        if missing:
            raise NotPlain(f"it reads {short(missing[0])!r}, which nobody has written")
        results = self.call(part.module, tuple(self._held[names] for names in read))
        if len(results) != len(written):
            raise TypeError(f"{len(results)} results, expected {len(written)}")
        for names, value in zip(written, results, strict=True):
            if names != ("_",):
                self._place(names)
                if path(short(names)) in map(path, self._observed):
                    raise NotPlain("it writes an observation")
                self._held[names] = value
                self.kept.add(value.node)


def _leaves(order: Mapping[str, Any], before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, inner in order.items():
        found += [(*before, name)] if inner is None else _leaves(inner, (*before, name))
    return found


# Containers


@_layer_of_several("torch.nn.modules.container", "Sequential")
def _sequential(writer: _Writer, part: nn.Sequential, values: _Values) -> _Values:
    if len(values) != 1:
        raise TypeError(f"a Sequential of {len(values)} values")
    # One may be there twice, which `children` leaves out.
    for inner in part._modules.values():
        values = writer.call(inner, values)
    return values


@_layer_of_several(f"{_fence.LIBRARY}.modules.models.models", "MLP")
def _mlp(writer: _Writer, part: Any, values: _Values) -> _Values:
    if len(values) > 1:
        numbers = [writer.number(value, part) for value in values]
        values = (writer.trace.move(lambda *placed: torch.cat(placed, -1), *numbers),)
    (value,) = _sequential(writer, part, values)
    if part._reshape_out:
        value = _shaped(value, (*value.shape[:-1], *part.out_features))
    return (value,)


# Layers


def _shaped(value: Value, shape: Sequence[int]) -> Value:
    """``value`` in another shape. A row's elements lie in order, so that nothing moves."""
    if math.prod(shape) != math.prod(value.shape) or shape[0] != value.shape[0]:
        raise TypeError(f"{list(value.shape[1:])} in the shape {list(shape[1:])}")
    return Value(value.node, tuple(shape), value.batch)


@_layer("torch.nn.modules.linear", "Linear")
def _linear(writer: _Writer, part: nn.Linear, value: Value) -> Value:
    (*before, width), dtype = value.shape, writer.dtype(value)
    if dtype != torch.float32 or not before or width != part.weight.shape[1]:
        raise TypeError(f"{part} of {dtype} {list(value.shape[1:])}")
    flat = Value(value.node, (math.prod(before), width), 0)
    weight, (bias,) = writer.weight(part.weight), writer.weights(part.bias)
    result = writer.trace.linear(flat, weight, bias)
    return Value(result.node, (*before, weight.shape[0]), 0)


@_layer("torch.nn.modules.linear", "Identity")
@_layer("torch.nn.modules.dropout", "Dropout")
def _identity(writer: _Writer, part: nn.Module, value: Value) -> Value:
    if type(part) is nn.Dropout and not writer.evaluates(part):
        raise NotPlain("Dropout in training mode: call eval()")
    return value


@_layer("torch.nn.modules.flatten", "Flatten")
def _flatten(writer: _Writer, part: nn.Flatten, value: Value) -> Value:
    ndim, ends = len(value.shape), [writer.dim(part.start_dim), writer.dim(part.end_dim)]
    if not all(-ndim <= end < ndim for end in ends):
        raise TypeError(f"Flatten of shape {list(value.shape[1:])}")
    first, last = (end % ndim for end in ends)
    if first == 0 or first > last:
        raise NotPlain("Flatten mixes rows")
    shape = value.shape
    merged = math.prod(shape[first : last + 1])
    return _shaped(value, (*shape[:first], merged, *shape[last + 1 :]))


@_layer("torch.nn.modules.flatten", "Unflatten")
def _unflatten(writer: _Writer, part: nn.Unflatten, value: Value) -> Value:
    ndim, dim, sizes = len(value.shape), part.dim, tuple(part.unflattened_size)
    if not isinstance(dim, int) or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise NotPlain("Unflatten by names, or with a size that is left open")
    dim = writer.dim(dim) % ndim
    if dim == 0 or math.prod(sizes) != value.shape[dim]:
        raise NotPlain(f"Unflatten of shape {list(value.shape[1:])}")
    return _shaped(value, (*value.shape[:dim], *sizes, *value.shape[dim + 1 :]))


@_layer("torch.nn.modules.normalization", "LayerNorm")
def _layer_norm(writer: _Writer, part: nn.LayerNorm, value: Value) -> Value:
    value, shape = writer.number(value, part), tuple(part.normalized_shape)
    if not shape or value.shape[1:][-len(shape) :] != shape:
        raise TypeError(f"LayerNorm of shape {list(value.shape[1:])}")
    scales = writer.weights(part.weight, part.bias)
    return rules.layer_norm(writer.trace, value, len(shape), part.eps, *scales)


@_layer("torch.nn.modules.batchnorm", "BatchNorm1d")
def _batch_norm(writer: _Writer, part: nn.BatchNorm1d, value: Value) -> Value:
    mean, variance = part.running_mean, part.running_var
    if not writer.evaluates(part) or mean is None or variance is None:
        raise NotPlain("batch normalisation by the numbers of a batch: call eval()")
    if len(value.shape) not in (2, 3) or value.shape[1] != len(mean):
        raise TypeError(f"BatchNorm1d of shape {list(value.shape[1:])}")
    writer.dim(1)
    return rules.batch_norm(
        writer.trace,
        writer.number(value, part),
        (writer.weight(mean), writer.weight(variance)),
        part.eps,
        *writer.weights(part.weight, part.bias),
    )


@_layer("torch.nn.modules.sparse", "Embedding")
def _embedding(writer: _Writer, part: nn.Embedding, value: Value) -> Value:
    if part.max_norm is not None or writer.dtype(value) not in (torch.int32, torch.int64):
        raise NotPlain("an embedding that changes its weights, or of numbers that are no indices")
    table = writer.weight(part.weight)
    return rules.looked_up(writer.trace, table, value, (*value.shape, table.shape[1]))


# Activations

_ACTIVATION = "torch.nn.modules.activation"
#: Those of the engine, with the names that their numbers have there and in torch.
_ACTIVATIONS: dict[str, tuple[str, dict[str, str]]] = {
    **{
        name: (name, {})
        for name in "Tanh ReLU Sigmoid SiLU Mish Hardsigmoid Hardswish LogSigmoid".split()
    },
    "ELU": ("ELU", {"alpha": "alpha"}),
    "CELU": ("CELU", {"alpha": "alpha"}),
    "LeakyReLU": ("LeakyReLU", {"slope": "negative_slope"}),
    "Softplus": ("Softplus", {"beta": "beta", "threshold": "threshold"}),
    "Hardtanh": ("Hardtanh", {"low": "min_val", "high": "max_val"}),
    "ReLU6": ("Hardtanh", {"low": "min_val", "high": "max_val"}),
    "Softshrink": ("Softshrink", {"lambda": "lambd"}),
    "Hardshrink": ("Hardshrink", {"lambda": "lambd"}),
}


@_layer(_ACTIVATION, *_ACTIVATIONS)
def _activation(writer: _Writer, part: Any, value: Value) -> Value:
    name, numbers = _ACTIVATIONS[type(part).__name__]
    given = {own: float(getattr(part, theirs)) for own, theirs in numbers.items()}
    return writer.trace.activation({name: given} if given else name, writer.number(value, part))


@_layer(_ACTIVATION, "Threshold")
def _threshold(writer: _Writer, part: nn.Threshold, value: Value) -> Value:
    given = {"threshold": float(part.threshold), "value": float(part.value)}
    return writer.trace.activation({"Threshold": given}, writer.number(value, part))


@_layer(_ACTIVATION, "SELU")
def _selu(writer: _Writer, part: nn.SELU, value: Value) -> Value:
    # As torch computes it.
    alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    shaped = writer.trace.activation({"ELU": {"alpha": alpha}}, writer.number(value, part))
    return writer.trace.zip("Mul", shaped, scale)


@_layer(_ACTIVATION, "GELU")
def _gelu(writer: _Writer, part: nn.GELU, value: Value) -> Value:
    name = {"none": "GELU", "tanh": "GELUTanh"}[part.approximate]
    return writer.trace.activation(name, writer.number(value, part))


@_layer(_ACTIVATION, "PReLU")
def _prelu(writer: _Writer, part: nn.PReLU, value: Value) -> Value:
    if len(part.weight) != 1:
        raise NotPlain("PReLU by channels")
    return rules.prelu(writer.trace, writer.number(value, part), writer.weight(part.weight))


@_layer(_ACTIVATION, "Softsign", "Tanhshrink")
def _of_two(writer: _Writer, part: nn.Module, value: Value) -> Value:
    trace, value = writer.trace, writer.number(value, part)
    if type(part) is nn.Tanhshrink:
        return trace.zip("Sub", value, trace.activation("Tanh", value))
    return trace.zip("Div", value, trace.zip("Add", trace.map("Abs", value), 1.0))


@_layer(_ACTIVATION, "Softmax", "LogSoftmax", "Softmin")
def _softmax(writer: _Writer, part: Any, value: Value) -> Value:
    trace, value = writer.trace, writer.number(value, part)
    if part.dim is None:
        raise NotPlain("a softmax along no dimension that is named")
    ndim, dim = len(value.shape), writer.dim(part.dim)
    if not -ndim <= dim < ndim or dim % ndim == 0:
        raise NotPlain("a softmax along rows")
    value = trace.map("Neg", value) if type(part) is nn.Softmin else value
    name = "LogSoftmax" if type(part) is nn.LogSoftmax else "Softmax"
    return trace.runs(lambda run: {name: run}, value, [dim], reduces=False)


@_layer(_ACTIVATION, "GLU")
def _glu(writer: _Writer, part: nn.GLU, value: Value) -> Value:
    _check_halves(writer, part, value, writer.dim(part.dim))
    return rules.glu(writer.trace, value, part.dim)


def _check_halves(writer: _Writer, part: nn.Module, value: Value, dim: int) -> None:
    ndim = len(writer.number(value, part).shape)
    if not -ndim <= dim < ndim or dim % ndim == 0 or value.shape[dim] % 2:
        raise NotPlain(f"halves of shape {list(value.shape[1:])}")


# Parameters of distributions

_CONTINUOUS = "tensordict.nn.distributions.continuous"


@_layer_of_several(_CONTINUOUS, "NormalParamExtractor")
def _normal(writer: _Writer, part: Any, values: _Values) -> _Values:
    if not values:
        raise TypeError("NormalParamExtractor of nothing")
    value, *others = values
    _check_halves(writer, part, value, -1)
    loc, scale = rules.halves(writer.trace, value, -1)
    return loc, _scale(writer, part.scale_mapping, scale, part.scale_lb), *others


@_layer_of_several(_CONTINUOUS, "AddStateIndependentNormalScale")
def _independent(writer: _Writer, part: Any, values: _Values) -> _Values:
    from tensordict.nn.utils import mappings

    if not values:
        raise TypeError("AddStateIndependentNormalScale of nothing")
    loc, shape = values[0], tuple(part.scale_shape)
    if not shape or shape != writer.number(loc, part).shape[1:][-len(shape) :]:
        raise NotPlain(f"a scale of shape {list(shape)} for {list(loc.shape[1:])}")
    own = writer.weight(part.state_independent_scale)
    scale = writer.trace.move(lambda placed: placed.expand(loc.shape), own)
    mapped = _scale(writer, mappings(part.scale_mapping), scale, part.scale_lb)
    return loc, mapped, *values[1:]


def _scale(writer: _Writer, mapping: Any, value: Value, least: float) -> Value:
    """A scale, from what is given for it."""
    trace, softplus = writer.trace, {"Softplus": {"beta": 1.0, "threshold": 20.0}}
    kind = type(mapping)
    if mapping is torch.exp:
        value = trace.map("Exp", value)
    elif mapping is nn.functional.softplus:
        value = trace.activation(softplus, value)
    elif mapping is torch.relu:
        value = trace.activation("ReLU", value)
    elif (kind.__module__, kind.__name__) == ("tensordict.nn.utils", "biased_softplus"):
        value = trace.activation(softplus, trace.zip("Add", value, mapping.bias))
        value = trace.zip("Add", value, mapping.min_val)
    else:
        raise NotPlain("a scale that is mapped in another way")
    return trace.zip("Max", value, least)
