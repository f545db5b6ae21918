"""State in layers: their order, others in their place, functions over them, modes and hooks."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from stale.forms import OfNumber, form, pair, shifted
from stale.forms_of_modules import Bare
from stale.forms_of_weights import layer_of, parameter_of, tensor_of

LAYER = nn.Linear(2, 2)
LAYERS: dict[str, nn.Module] = {}
HANDLES: list[Any] = []


class Adds(nn.Module):
    """Adds a number to the first entry, and takes it from the second."""

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return shifted(x, self.gain, -self.gain)


class Cuts(nn.Module):
    """Takes what was added: it keeps the last digits alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.remainder(x, 1.0)


# Layers: their order, and others


def _layers(name: str, layers: Callable[[], Any], change: Callable[[Any, int], Any]) -> None:
    """Adds a form of a sequence with two states."""

    def made() -> Any:
        policy = nn.Sequential(layer_of(), *layers())
        return policy, lambda level: change(policy, level)

    made.__name__, made.__module__ = name, __name__
    form(r"\d|layer|_modules|Sequential", is_flag=True, is_raced=False)(made)


def _moved(policy: Any, level: int) -> None:
    for key in ("1", "2") if not level else ("2", "1"):
        policy._modules[key] = policy._modules.pop(key)


_layers("the order of layers", lambda: (Adds(), Cuts()), _moved)
_layers(
    "a layer put between",
    tuple,
    lambda policy, level: policy.insert(1, Adds()) if level else policy.pop(1),
)
_layers(
    "a layer that is taken out",
    lambda: (Cuts(),),
    lambda policy, level: (policy.pop(1), policy.append(Adds() if level else Cuts())),
)


class Heads(Bare):
    """Calls modules in the order of their container."""

    def __init__(self, heads: Any) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        for head in self.heads.values() if isinstance(self.heads, nn.ModuleDict) else self.heads:
            observation = head(observation)
        return observation


@form("heads", is_flag=True, is_raced=False)
def the_order_of_a_module_dict() -> Any:
    policy = Heads(nn.ModuleDict({"one": Adds(), "other": Cuts()}))

    def change(level: int) -> None:
        key = "one" if level else "other"
        policy.heads[key] = policy.heads.pop(key)

    return policy, change


@form("heads", is_flag=True, is_raced=False)
def the_order_of_a_module_list() -> Any:
    policy = Heads(nn.ModuleList([Adds(), Cuts()]))
    return policy, lambda level: setattr(policy, "heads", nn.ModuleList([*policy.heads][::-1]))


@form("heads|task")
def a_head_that_a_key_chooses() -> Any:
    class Policy(Bare):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.ModuleDict({str(at): Adds(float(at)) for at in range(5)})
            self.task = "0"

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return self.heads[self.task](observation)

    policy = Policy()

    def change(level: int) -> None:
        policy.heads[str(level)] = Adds(float(level))
        policy.task = str(level)

    return policy, change


@form("LAYER|net", is_shared=True)
def a_global_layer() -> Any:
    class Policy(Bare):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return LAYER(observation)

    def change(level: int) -> None:
        LAYER.bias.data.copy_(tensor_of(level))

    nn.init.eye_(LAYER.weight)
    change(0)
    return Policy(), change


@form("LAYER|layer|net", is_shared=True)
def a_global_layer_that_is_an_attribute_too() -> Any:
    class Policy(Bare):
        def __init__(self) -> None:
            super().__init__()
            self.layer = LAYER

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return 2 * self.layer(observation) - LAYER(observation)

    nn.init.eye_(LAYER.weight)
    nn.init.zeros_(LAYER.bias)
    policy = Policy()

    def change(level: int) -> None:
        policy.layer = layer_of()
        policy.layer.bias.data.copy_(tensor_of(level) / 2)

    return policy, change


@form("LAYERS|layer", is_shared=True)
def a_layer_in_a_global_dict() -> Any:
    class Policy(Bare):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return LAYERS["layer"](observation)

    LAYERS["layer"] = layer_of()
    return Policy(), lambda level: LAYERS.update(layer=layer_of(level))


@form("inner|bias|other")
def a_module_that_two_policies_share() -> Any:
    trunk = layer_of()
    other = nn.Sequential(trunk, nn.Tanh())
    return nn.Sequential(trunk, nn.Identity()), lambda level: other[0].bias.data.copy_(
        tensor_of(level)
    )


# Functions that close over weights


def _closing(name: str, close: Callable[[Any], Any]) -> None:
    """Adds a form whose module calls a function that closes over its layer ``net``."""

    def made() -> Any:
        policy = Bare()
        function = close(policy.net)
        policy.forward = types.MethodType(lambda self, observation: function(observation), policy)
        return policy, lambda level: policy.net.bias.data.copy_(tensor_of(level))

    made.__name__, made.__module__ = name, __name__
    form("net|bias|function|forward", is_shared=True)(made)


_closing("a closure over a layer", lambda net: lambda x: net(x))
_closing("a closure over a weight", lambda net: (lambda bias: lambda x: x + bias)(net.bias))
_closing("a default argument that is a weight", lambda net: lambda x, bias=net.bias: x + bias)


@form("held|bias", is_shared=True)
def functions_over_the_module_in_a_list() -> Any:
    class Policy(OfNumber):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            for step in self.held:
                observation = step(observation)
            return observation

    policy = Policy()
    policy.held = [lambda x: policy.net(x), torch.nn.Identity()]
    return policy, lambda level: policy.net.bias.data.copy_(tensor_of(level))


@form("gain|hook|net", is_shared=True)
def a_hook_that_closes_over_a_weight() -> Any:
    policy = Bare()
    gain = policy.gain = parameter_of(0)
    policy.net.register_forward_hook(lambda module, given, output: output + gain)
    return policy, lambda level: gain.data.copy_(tensor_of(level))


# Norms and modes


def _normed(observation: torch.Tensor, level: int) -> torch.Tensor:
    return observation - float(level)


@form("running_mean|norm|num_batches", action=_normed, is_mode=True, is_raced=False)
def statistics_that_grow_in_training() -> Any:
    class Policy(Bare):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2, eps=1e-5, momentum=1.0, affine=False)

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return self.norm(observation.reshape(-1, 2)).reshape(observation.shape)

    policy = Policy().eval()

    def change(level: int) -> None:
        policy.train()
        # A mean of ``level``, and a variance of 1.
        policy(torch.tensor([[0.5**0.5] * 2, [-(0.5**0.5)] * 2]) + level)
        policy.eval()

    return policy, change


@form("training|p|drop", is_flag=True, is_mode=True, action=lambda x, level: x * (1 - level))
def dropout_in_evaluation_and_in_training() -> Any:
    policy = nn.Sequential(layer_of(), nn.Dropout(1.0)).eval()
    return policy, lambda level: policy.train(bool(level))


@form("training|child", is_flag=True, is_mode=True)
def the_mode_of_a_child_alone() -> Any:
    class Child(Bare):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return observation if self.training else shifted(observation, 1.0, -1.0)

    policy = nn.Sequential(nn.Identity(), Child())
    return policy, lambda level: policy[1].train(not level)


@form("eps|norm", is_flag=True, action=lambda x, level: F.layer_norm(x, (2,), eps=1.0 + level))
def the_eps_of_a_norm() -> Any:
    policy = nn.Sequential(layer_of(), nn.LayerNorm(2, eps=1.0))
    return policy, lambda level: setattr(policy[1], "eps", 1.0 + level)


@form("_extra|gain|state")
def the_extra_state_of_a_module() -> Any:
    class Policy(OfNumber):
        gain = 0.0

        def number(self) -> Any:
            return self.gain

        def get_extra_state(self) -> Any:
            return torch.tensor(self.gain)

        def set_extra_state(self, state: Any) -> None:
            self.gain = float(state)

    policy = Policy()
    return policy, lambda level: policy.load_state_dict(
        {**policy.state_dict(), "_extra_state": torch.tensor(float(level))}
    )


# Hooks


@form("_forward_hooks|hook", is_flag=True)
def a_hook_that_is_removed() -> Any:
    policy, handles = Bare(), []

    def change(level: int) -> None:
        if level:
            handles.append(
                policy.net.register_forward_hook(
                    lambda module, given, output: shifted(output, 1, -1)
                )
            )
        else:
            handles.pop().remove()

    return policy, change


@form("_forward_hooks|hook|held|one", is_shared=True)
def the_state_of_a_hook() -> Any:
    held = {"one": 0.0}
    policy = Bare()
    policy.net.register_forward_hook(
        lambda module, given, output: shifted(output, held["one"], -held["one"])
    )
    return policy, lambda level: held.update(one=float(level))


@form("_forward_hooks|hook", is_flag=True, is_raced=False)
def the_order_of_hooks() -> Any:
    policy = Bare()
    policy.net.register_forward_hook(lambda module, given, output: shifted(output, 1, -1))
    cuts = policy.net.register_forward_hook(lambda module, given, output: output % 1.0)

    def change(level: int) -> None:
        policy.net._forward_hooks.move_to_end(cuts.id, last=not level)

    return policy, change


def _unhooked() -> None:
    while HANDLES:
        HANDLES.pop().remove()


for named, register in (
    ("forward", nn.modules.module.register_module_forward_hook),
    ("pre", nn.modules.module.register_module_forward_pre_hook),
):

    def hooked(register: Any = register, named: str = named) -> Any:
        policy = Bare()

        def hook(module: Any, given: Any, *output: Any) -> Any:
            # An evaluator acts with an object of its own, and the weights of this one.
            if not isinstance(module, nn.Linear) or module.weight is not policy.net.weight:
                return None
            changed = shifted((output or given)[0], *pair(levels[0]))
            return changed if output else (changed,)

        levels = [0]

        def change(level: int) -> None:
            _unhooked()
            levels[0] = level
            HANDLES.append(register(hook))

        return policy, change

    hooked.__name__, hooked.__module__ = f"a {named} hook of all modules", __name__
    form("hook", is_shared=True, is_whole_copy=False, undo=_unhooked)(hooked)
