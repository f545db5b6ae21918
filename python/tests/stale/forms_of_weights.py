"""State in weights and layers: which, tied to which, in what order, of what type, with what beside
their numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, vector_to_parameters

from stale.forms import Base, OfNumber, form, pair, state
from stale.forms_of_modules import Bare


def layer_of(level: int = 0) -> nn.Linear:
    """A layer that adds a level."""
    layer = nn.Linear(2, 2)
    nn.init.eye_(layer.weight)
    layer.bias.data.copy_(torch.tensor(pair(level)))
    return layer


def tensor_of(level: int) -> torch.Tensor:
    return torch.tensor(pair(level))


def parameter_of(level: int) -> nn.Parameter:
    return nn.Parameter(tensor_of(level))


# What is beside a weight's numbers

_marked: dict[str, Callable[[Any], Any]] = {
    "an attribute of a weight": lambda self: self.net.weight,
    "an attribute of a buffer": lambda self: self.mean,
}
for name, find in _marked.items():

    def make(find: Any = find) -> Any:
        policy = type(
            "Policy", (OfNumber,), {"number": lambda self: getattr(find(self), "gain", 0.0)}
        )()
        policy.register_buffer("mean", torch.zeros(2))
        return policy, lambda level: setattr(find(policy), "gain", float(level))

    make.__name__, make.__module__ = name, __name__
    form("gain|weight|mean|net")(make)


def _gradient(self: Any, level: int) -> None:
    self.net.bias.grad = torch.full((2,), float(level))


state(
    "the gradient of a weight",
    lambda: None,
    lambda self: 0.0 if self.net.bias.grad is None else self.net.bias.grad.mean(),
    _gradient,
    names="grad|bias|net",
    # A copy has no gradient.
    is_whole_copy=False,
)
state(
    "whether a weight is trained",
    lambda: None,
    lambda self: 0.0 if self.net.weight.requires_grad else 1.0,
    lambda self, level: self.net.weight.requires_grad_(not level),
    names="requires_grad|weight|net",
    is_flag=True,
)
state(
    "the shape of a buffer",
    lambda: torch.zeros(0, 2),
    lambda self: float(self.held.shape[0]),
    lambda self, level: setattr(self, "held", torch.zeros(level, 2)),
    is_raced=False,
)
state(
    "the type of a tensor",
    lambda: torch.zeros(1),
    lambda self: float(self.held.dtype == torch.float64),
    lambda self, level: setattr(self, "held", self.held.double() if level else self.held.float()),
    is_flag=True,
)
state(
    "an item of a tensor as a number",
    lambda: torch.zeros(3),
    lambda self: self.held[1].item(),
    lambda self, level: self.held.fill_(level),
)
state(
    "a branch on a tensor",
    lambda: torch.tensor(False),
    lambda self: 1.0 if self.held else 0.0,
    lambda self, level: self.held.fill_(bool(level)),
    is_flag=True,
)


@form("gain|_parameters")
def an_entry_of_the_dict_of_weights() -> Any:
    class Policy(OfNumber):
        def number(self) -> Any:
            return self._parameters["gain"][0]

    policy = Policy()

    def change(level: int) -> None:
        policy._parameters["gain"] = nn.Parameter(torch.full((1,), float(level)))

    change(0)
    return policy, change


state(
    "the entry of a state dict",
    layer_of,
    lambda self: self.held.state_dict()["bias"][0],
    lambda self, level: self.held.bias.data.copy_(tensor_of(level)),
)
state(
    "a weight by its name as text",
    layer_of,
    lambda self: self.get_parameter("held.bias")[0],
    lambda self, level: self.held.bias.data.copy_(tensor_of(level)),
)
state(
    "the sum over all weights",
    lambda: nn.ParameterList([torch.zeros(1)]),
    lambda self: sum(parameter.sum() for parameter in self.held.parameters()),
    lambda self, level: self.held[0].data.fill_(level),
)
state(
    "a list of parameters that grows",
    lambda: nn.ParameterList([torch.zeros(1)]),
    lambda self: self.held[-1][0],
    lambda self, level: self.held.append(nn.Parameter(torch.full((1,), float(level)))),
    is_raced=False,
)


# Which weight is where


class Pair(Base):
    """Adds the biases of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = layer_of(), layer_of()

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(observation))


class Tied(Pair):
    def __init__(self) -> None:
        super().__init__()
        self.b.bias = self.a.bias


class Difference(Pair):
    """Adds the bias of one layer, and takes half of that of the other twice."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return observation + 2 * self.b.bias - self.a.bias


def _pair(name: str, kind: Any, change: Callable[[Any, int], Any], **options: Any) -> None:
    def made() -> Any:
        policy = kind()
        return policy, lambda level: change(policy, level)

    made.__name__, made.__module__ = name, __name__
    form("a|b|bias|weight|net", **options)(made)


def _untied(policy: Any, level: int) -> None:
    policy.b.bias = parameter_of(level)


def _retied(policy: Any, level: int) -> None:
    policy.a.bias = parameter_of(level)
    policy.b.bias = policy.a.bias


def _exchange(policy: Any, level: int) -> None:
    policy.a.bias, policy.b.bias = policy.b.bias, policy.a.bias


def _loaded(policy: Any, level: int) -> None:
    given = {**policy.state_dict(), "b.bias": tensor_of(level)}
    policy.load_state_dict(given, assign=True)


def _vector(policy: Any, level: int) -> None:
    vector_to_parameters(tensor_of(level), [policy.b.bias])


def _stepped(policy: Any, level: int) -> None:
    optimizer = torch.optim.AdamW([policy.b.bias], lr=1.0, weight_decay=0.0, foreach=True)
    with torch.enable_grad():
        (policy.b.bias * torch.tensor([-1.0, 1.0])).sum().backward()
        optimizer.step()
    policy.b.bias.grad = None
    policy.b.bias.data.copy_(tensor_of(level))


class Turned(Pair):
    """Two biases of which one is added."""

    def __init__(self) -> None:
        super().__init__()
        self.b.bias.data.copy_(tensor_of(1))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return observation + self.a.bias


_pair("tied weights that are untied", Tied, _untied)
_pair("a weight that is tied later", Difference, _retied)
_pair("two weights exchanged", Turned, _exchange, is_flag=True, is_raced=False)
_pair(
    "swap_tensors",
    Pair,
    lambda policy, level: torch.utils.swap_tensors(policy.b.bias, parameter_of(level)),
    is_raced=False,
)
_pair("weights loaded by assignment", Pair, _loaded)
_pair("weights of a vector", Pair, _vector)
_pair("the step of an optimizer", Pair, _stepped)

# Buffers


class Shifts(Bare):
    def __init__(self, mean: Any) -> None:
        super().__init__()
        self.register_buffer("mean", mean)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return observation if self.mean is None else observation + self.mean


def _buffer(name: str, first: Any, change: Callable[[Any, int], Any]) -> None:
    def made() -> Any:
        policy = Shifts(first if first is None else first.clone())
        return policy, lambda level: change(policy, level)

    made.__name__, made.__module__ = name, __name__
    form("mean")(made)


def _registered(policy: Any, level: int) -> None:
    policy.register_buffer("mean", tensor_of(level), persistent=False)


def _plain(policy: Any, level: int) -> None:
    vars(policy)["_buffers"].pop("mean", None)
    vars(policy)["mean"] = tensor_of(level)


_buffer("a buffer that is registered again", torch.zeros(2), _registered)
_buffer(
    "a buffer that was None", None, lambda policy, level: setattr(policy, "mean", tensor_of(level))
)
_buffer("a buffer that becomes a plain tensor", torch.zeros(2), _plain)


# Types


class Casts(Bare):
    """Computes in the type of its weights."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.net(observation.to(self.net.weight.dtype)).float()


def _cast(name: str, dtype: torch.dtype, least: int = 0) -> None:
    def made() -> Any:
        policy = Casts()

        def change(level: int) -> None:
            policy.to(dtype if level % 2 else torch.float32)
            policy.net.bias.data.copy_(tensor_of(level))

        return policy, change

    made.__name__, made.__module__ = name, __name__
    form("net|weight|bias", is_raced=False, action=_rounded if least else None)(made)


def _rounded(observation: torch.Tensor, level: int) -> torch.Tensor:
    exact = observation.half() if level % 2 else observation
    return exact.float() + torch.tensor(pair(level))


_cast("weights of float64 and back", torch.float64)


@form("net|weight|bias|gain", is_raced=False)
def half_weights_and_back() -> Any:
    policy = OfHalf()

    def change(level: int) -> None:
        policy.half()
        policy.float()
        policy.gain.data.copy_(tensor_of(level))

    return policy, change


@form("net|weight|bias|gain", is_raced=False)
def half_weights() -> Any:
    policy = OfHalf()

    def change(level: int) -> None:
        policy.gain.data.copy_(tensor_of(level))
        policy.to(torch.float16 if level % 2 else torch.bfloat16)

    return policy, change


class OfHalf(Bare):
    def __init__(self) -> None:
        super().__init__()
        self.gain = parameter_of(0)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return observation + self.gain.float()


# What makes weights of others


class Gains(nn.Module):
    """A parametrization that adds a level to a bias."""

    level = 0

    def forward(self, bias: torch.Tensor) -> torch.Tensor:
        return bias + torch.tensor(pair(self.level))


def _made_weight(name: str, prepare: Callable[[nn.Linear], Any]) -> None:
    """Adds a form whose layer's weight or bias is computed, and whose bias changes."""

    def made() -> Any:
        policy = nn.Sequential(layer_of())
        change = prepare(policy[0])
        return policy.eval(), change

    made.__name__, made.__module__ = name, __name__
    form("bias|weight|0|param|mask", is_raced=False)(made)


def _biased(make: Callable[[nn.Linear], Any]) -> Callable[[nn.Linear], Any]:
    def prepare(layer: nn.Linear) -> Any:
        make(layer)
        return lambda level: layer.bias.data.copy_(tensor_of(level))

    return prepare


def _parametrized(layer: nn.Linear) -> Any:
    parametrize.register_parametrization(layer, "bias", Gains())
    return lambda level: setattr(layer.parametrizations.bias[0], "level", level)  # type: ignore[union-attr]


def _parametrized_later(layer: nn.Linear) -> Any:
    def change(level: int) -> None:
        if parametrize.is_parametrized(layer):
            parametrize.remove_parametrizations(layer, "bias", leave_parametrized=False)
        added = Gains()
        added.level = level
        parametrize.register_parametrization(layer, "bias", added)

    return change


def _unparametrized(layer: nn.Linear) -> Any:
    parametrize.register_parametrization(layer, "bias", Gains())

    def change(level: int) -> None:
        if parametrize.is_parametrized(layer):
            parametrize.remove_parametrizations(layer, "bias")
        layer.bias.data.copy_(tensor_of(level))

    return change


def _pruned(layer: nn.Linear) -> Any:
    layer.bias.data.fill_(1.0)
    prune.custom_from_mask(layer, "bias", torch.zeros(2))

    def change(level: int) -> None:
        layer.bias_mask = torch.ones(2)
        layer.bias_orig.data.copy_(tensor_of(level))

    return change


def _pruned_later(layer: nn.Linear) -> Any:
    def change(level: int) -> None:
        if prune.is_pruned(layer):
            prune.remove(layer, "bias")
        layer.bias.data.copy_(tensor_of(level))
        prune.identity(layer, "bias")

    return change


_made_weight("a parametrization with state", _parametrized)
_made_weight("a parametrization that comes later", _parametrized_later)
_made_weight("a parametrization that is removed", _unparametrized)
_made_weight("a mask of pruning", _pruned)
_made_weight("pruned later", _pruned_later)
_made_weight("weight norm", _biased(parametrizations.weight_norm))
_made_weight("weight norm of old", _biased(nn.utils.weight_norm))
_made_weight("spectral norm", _biased(parametrizations.spectral_norm))


@form(r"0|1|bias|weight|Lazy", is_raced=False)
def a_lazy_layer() -> Any:
    policy = nn.Sequential(nn.Identity(), nn.LazyLinear(2))
    policy(torch.zeros(1, 2))
    nn.init.eye_(policy[1].weight)
    nn.init.zeros_(policy[1].bias)
    return policy, lambda level: policy[1].bias.data.copy_(tensor_of(level))
