"""Graphs of plain networks, which are written down by what their layers are: torch computes nothing
for that.

What is here holds for classes as their libraries define them, and in the modes that
:class:`~windrow.policies.lower.listed.Listed` allows, which proves both of a policy's parts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from windrow import _fence
from windrow._keys import Key, path, short
from windrow.policies import recurrent
from windrow.policies.answers import ordered
from windrow.policies.arguments import arguments_of
from windrow.policies.lower import rules
from windrow.policies.lower.inputs import Leaf
from windrow.policies.lower.operations import ACTIVATIONS
from windrow.policies.lower.reading import Graph, leaf_of
from windrow.policies.lower.trace import Trace
from windrow.policies.lower.values import NotLowerable, Value
from windrow.policies.weights import tensors_of

#: Rows that the values may have which a graph is made of: primes, of which the first is taken that
#: is no size of anything else, so that nothing else looks like rows. No graph depends on it.
ROWS = (37, 41, 43, 47, 53, 59, 61, 67)


def plain_graph(policy: nn.Module, observed: Mapping[Key, Leaf], actions: Sequence[Key]) -> Graph:
    """The graph of ``policy``, for any number of rows, and for one observation without them.

    Args:
        policy: a network all of whose parts are listed.
        observed: the observations of one environment.
        actions: what the environment takes.

    Raises:
        NotLowerable: the graph has to be found in another way, if torch can call the policy.
    """
    writer = _Writer(policy, observed)
    named = writer.outputs(policy, list(actions))
    values = [writer.trace.spread(value, value.shape, 0) for value in named.values()]
    graph, nodes, inputs, used = writer.trace.graph(values)
    keys = [list(observed)[index] for index in inputs]
    names = [list(path(key)) for key in named]
    columns = [
        [leaf_of(own, torch.float32, value.shape[1:]), node]
        for own, value, node in zip(names, values, nodes, strict=True)
    ]
    read = [{"Observation": leaf_of(path(key), torch.float32, observed[key].shape)} for key in keys]
    return Graph(
        json.dumps({"graph": graph, "inputs": read, "outputs": columns}), used, keys, names
    )


#: What a layer returns: a value, or a tuple of several.
_Found = Value | tuple[Value, ...]
_Layer = Callable[["_Writer", Any, Value], _Found]
#: What each class computes, by the names of its module and of itself; None for those that compute
#: nothing themselves.
LAYERS: dict[tuple[str, str], _Layer | None] = {
    ("torch.nn.modules.container", "ModuleList"): None,
    ("tensordict.nn.common", "TensorDictModule"): None,
    ("tensordict.nn.sequence", "TensorDictSequential"): None,
    ("tensordict.nn.utils", "biased_softplus"): None,
}


def _layer(module: str, *names: str) -> Callable[[Any], Any]:
    """Makes a function what these classes compute."""

    def add(function: _Layer) -> _Layer:
        LAYERS.update({(module, name): function for name in names})
        return function

    return add


class _Writer:
    """Writes the nodes of a policy.

    Attributes:
        trace: has the nodes.
        kept: nodes of values that others may read, which none may write into.
    """

    def __init__(self, policy: nn.Module, observed: Mapping[Key, Leaf]) -> None:
        weights = tensors_of(policy)
        given = [one.shape for one in (*weights.values(), *observed.values())]
        sizes = {size for shape in given for size in shape}
        rows = next((rows for rows in ROWS if all(size % rows for size in sizes)), ROWS[0])
        self.trace = Trace(rows, weights)
        #: What modules of tensordict read and write: values by name, in groups.
        self._entries: dict[str, Any] = {}
        self._observed = observed
        for key, leaf in observed.items():
            self.trace.input(torch.empty((rows, *leaf.shape)))
            self._write(path(key), self.trace.inputs[-1])
        self.kept = {value.node for value in self.trace.inputs}

    def outputs(self, policy: nn.Module, actions: list[Key]) -> dict[Key, Value]:
        """What ``policy`` writes, by name: the actions first."""
        if hasattr(policy, "in_keys"):
            return self._written(policy, actions)
        keys = list(self._observed)
        places = arguments_of(policy, keys)
        if len(places) != 1 or not isinstance(places[0], int):
            raise NotLowerable("it takes several observations, or a dictionary of them")
        found = _several(self.call(policy, self._read(path(keys[places[0]]))))
        if len(found) < len(actions):
            raise NotLowerable(f"it returns {len(found)} tensors, expected {len(actions)}")
        return dict(zip(ordered(policy, actions, len(found), keys), found, strict=True))

    def call(self, part: nn.Module, value: Value) -> _Found:
        """What ``part`` returns for ``value``."""
        kind = type(part)
        layer = LAYERS.get((kind.__module__, kind.__qualname__))
        if layer is None:
            raise NotLowerable(f"{kind.__name__} is no plain layer")
        return layer(self, part, value)

    # Modules of tensordict

    def _written(self, policy: Any, actions: list[Key]) -> dict[Key, Value]:
        reads = [path(key) for key in policy.in_keys]
        if (recurrent.IS_INIT,) in reads:
            raise NotLowerable("it reads where episodes begin")
        observed = set(map(path, self._observed))
        if not observed.issuperset(reads):
            raise NotLowerable("it reads what nobody observes")
        self.run(policy)
        found = {names: one for names, one in _leaves(self._entries) if names not in observed}
        for names in found:
            is_state = any(names[: len(key)] == key for key in reads) or names[0] == "next"
            if is_state or any(name.startswith("_") for name in names):
                raise NotLowerable("it has a state")
        named = {short(names): one for names, one in found.items()}
        if not all(action in named for action in actions):
            raise NotLowerable(f"it writes {list(named)}, expected {list(actions)}")
        return {key: named[key] for key in (*actions, *named)}

    def run(self, part: Any) -> None:
        """Calls a module with the TensorDict that all read and write."""
        name = type(part).__name__
        if name == "TensorDictSequential":
            if (
                part.partial_tolerant
                or part._select_before_return
                or part.inplace not in (None, True)
            ):
                raise NotLowerable("a sequence that leaves some of its results out")
            if not isinstance(part.module, nn.ModuleList):
                raise NotLowerable("a sequence of named modules")
            for inner in part.module:
                self.run(inner)
            return
        plain = part._kwargs is None and part.method is None and part.inplace is True
        if name != "TensorDictModule" or not plain or part.method_kwargs or part._get_kwargs:
            raise NotLowerable(f"{name} with options, or of another kind")
        if not isinstance(part.module, nn.Module):
            raise NotLowerable("a function")
        if len(part.in_keys) != 1:
            raise NotLowerable("a layer of several entries")
        results = _several(self.call(part.module, self._read(path(part.in_keys[0]))))
        written = [path(key) for key in part._out_keys]
        if len(results) != len(written):
            raise NotLowerable(f"{len(results)} results, expected {len(written)}")
        for names, value in zip(written, results, strict=True):
            if names != ("_",):
                if short(names) in self._observed:
                    raise NotLowerable("it writes an observation")
                self._write(names, value)
                self.kept.add(value.node)

    def _read(self, names: tuple[str, ...]) -> Value:
        found: Any = self._entries
        for name in names:
            found = found.get(name) if isinstance(found, dict) else None
        if not isinstance(found, Value):
            raise NotLowerable(f"it reads {short(names)!r}, which nobody has written")
        leaf = self._observed.get(short(names))
        if leaf is not None and leaf.dtype != torch.float32:
            raise NotLowerable(f"it reads {leaf.dtype}")
        return found

    def _write(self, names: tuple[str, ...], value: Value) -> None:
        """Writes an entry in the order that TensorDicts have."""
        inner = self._entries
        for name in names[:-1]:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise NotLowerable(f"{short(names)!r} lies below a tensor")
        if isinstance(inner.get(names[-1]), dict):
            raise NotLowerable(f"{short(names)!r} is a group")
        inner[names[-1]] = value


def _several(found: Value | tuple[Value, ...]) -> tuple[Value, ...]:
    return found if isinstance(found, tuple) else (found,)


def _leaves(
    entries: Mapping[str, Any], before: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Value]]:
    for name, inner in entries.items():
        if isinstance(inner, dict):
            yield from _leaves(inner, (*before, name))
        else:
            yield (*before, name), inner


# Containers


@_layer("torch.nn.modules.container", "Sequential")
def _sequential(writer: _Writer, part: nn.Sequential, value: Value) -> _Found:
    found: _Found = value
    # One may be there twice, which `children` leaves out.
    for inner in part._modules.values():
        if inner is None or isinstance(found, tuple):
            raise NotLowerable("a layer of several values, or none")
        found = writer.call(inner, found)
    return found


@_layer(f"{_fence.LIBRARY}.modules.models.models", "MLP")
def _mlp(writer: _Writer, part: Any, value: Value) -> _Found:
    found = _sequential(writer, part, value)
    if isinstance(found, tuple) or not part._reshape_out:
        return found
    # A row's elements lie in order, so that nothing moves.
    return Value(found.node, (*found.shape[:-1], *part.out_features), found.batch)


# Layers


@_layer("torch.nn.modules.linear", "Identity")
@_layer("torch.nn.modules.dropout", "Dropout")
def _identity(writer: _Writer, part: nn.Module, value: Value) -> Value:
    return value


@_layer("torch.nn.modules.linear", "Linear")
def _linear(writer: _Writer, part: nn.Linear, value: Value) -> Value:
    (*before, width), (outputs, inputs) = value.shape, part.weight.shape
    if not before or width != inputs:
        raise NotLowerable(f"{part} of shape {list(value.shape[1:])}")
    flat = Value(value.node, (math.prod(before), width), 0)
    weight = writer.trace.of(part.weight)
    bias = None if part.bias is None else writer.trace.of(part.bias)
    return Value(writer.trace.linear(flat, weight, bias).node, (*before, outputs), 0)


@_layer("torch.nn.modules.normalization", "LayerNorm")
def _layer_norm(writer: _Writer, part: nn.LayerNorm, value: Value) -> Value:
    shape = tuple(part.normalized_shape)
    if not shape or value.shape[1:][-len(shape) :] != shape:
        raise NotLowerable(f"LayerNorm of shape {list(value.shape[1:])}")
    return rules.layer_norm(writer.trace, value, len(shape), part.eps, part.weight, part.bias)


_ACTIVATIONS = {name: row for row in ACTIVATIONS for name in row.layers.split()}


@_layer("torch.nn.modules.activation", "GELU", *_ACTIVATIONS)
def _activation(writer: _Writer, part: Any, value: Value) -> Value:
    if type(part) is nn.GELU:
        name = {"none": "GELU", "tanh": "GELUTanh"}[part.approximate]
        return writer.trace.activation(name, value)
    if getattr(part, "inplace", False) and value.node in writer.kept:
        raise NotLowerable(f"{type(part).__name__} writes into what others read")
    row = _ACTIVATIONS[type(part).__name__]
    numbers = {own: float(getattr(part, theirs)) for own, theirs in row.numbers.items()}
    return writer.trace.activation(row.name, value, **numbers)


@_layer("tensordict.nn.distributions.continuous", "NormalParamExtractor")
def _normal(writer: _Writer, part: Any, value: Value) -> tuple[Value, ...]:
    if len(value.shape) < 2 or value.shape[-1] % 2:
        raise NotLowerable(f"halves of shape {list(value.shape[1:])}")
    trace, mapping, kind = writer.trace, part.scale_mapping, type(part.scale_mapping)
    loc, scale = (trace.move(lambda placed, i=i: placed.chunk(2, -1)[i], value) for i in (0, 1))
    softplus = {"beta": 1.0, "threshold": 20.0}
    if mapping is torch.exp:
        scale = trace.map("Exp", scale)
    elif mapping is nn.functional.softplus:
        scale = trace.activation("Softplus", scale, **softplus)
    elif mapping is torch.relu:
        scale = trace.activation("ReLU", scale)
    elif (kind.__module__, kind.__name__) == ("tensordict.nn.utils", "biased_softplus"):
        scale = trace.activation("Softplus", trace.zip("Add", scale, mapping.bias), **softplus)
        scale = trace.zip("Add", scale, mapping.min_val)
    else:
        raise NotLowerable("a scale that is mapped in another way")
    return loc, trace.zip("Max", scale, part.scale_lb)
