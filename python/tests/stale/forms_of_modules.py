"""State of layers of torch, hooks, and modules of tensordict, torchrl and other libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict.nn import ProbabilisticTensorDictModule, TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.data import Bounded, Unbounded
from torchrl.modules import AdditiveGaussianModule, EGreedyModule, TanhNormal

from stale.forms import Base, form, pair, shifted
from stale.forms_of_data import Held


class Bare(Base):
    """A module that adds nothing."""

    def read(self) -> Any:
        return 0.0, 0.0


class Layered(Base):
    """A module that adds what a layer makes of -1."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("at", torch.tensor(-1.0), persistent=False)

    def read(self) -> Any:
        value = self.layer(self.at)
        return -value, value


@form("negative_slope|layer")
def the_slope_of_a_leaky_relu() -> Any:
    policy = Layered(nn.LeakyReLU(0.0))
    return policy, lambda level: setattr(policy.layer, "negative_slope", float(level))


@form("min_val|layer")
def the_bound_of_a_hardtanh() -> Any:
    policy = Layered(nn.Hardtanh(-1.0, 1.0))
    policy.at.fill_(-1e9)

    def change(level: int) -> None:
        policy.layer.min_val = -float(level)

    change(0)
    return policy, change


@form("value|layer")
def the_value_of_a_threshold() -> Any:
    policy = Layered(nn.Threshold(0.0, 0.0))
    return policy, lambda level: setattr(policy.layer, "value", -float(level))


@form("layer")
def a_layer_replaced() -> Any:
    policy = Layered(nn.LeakyReLU(0.0))
    return policy, lambda level: setattr(policy, "layer", nn.LeakyReLU(float(level)))


@form("net|bias|weight")
def a_layer_with_weights_replaced() -> Any:
    policy = Bare()

    def change(level: int) -> None:
        layer = nn.Linear(2, 2)
        with torch.no_grad():
            layer.weight.copy_(torch.eye(2))
            layer.bias.copy_(torch.tensor(pair(level)))
        policy.net = layer

    return policy, change


def _doubled(observation: torch.Tensor, level: int) -> torch.Tensor:
    # Each change adds a layer that doubles.
    return observation + torch.tensor([2.0**level, -(2.0**level)]) * (level > 0)


@form("layer", action=_doubled)
def layers_added_to_a_sequence() -> Any:
    policy = Layered(nn.Sequential(nn.LeakyReLU(0.0)))

    def change(level: int) -> None:
        policy.layer[0].negative_slope = 1.0
        policy.layer.append(nn.LeakyReLU(2.0))

    return policy, change


@form(
    "p|layer|training",
    is_flag=True,
    is_mode=True,
    action=lambda observation, level: observation * (1 - level),
)
def the_share_of_a_dropout() -> Any:
    class Policy(Bare):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Dropout(0.0)

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return self.layer(self.net(observation))

    policy = Policy()
    return policy, lambda level: setattr(policy.layer, "p", float(level))


@form("training", is_flag=True, is_mode=True)
def the_mode_of_the_module() -> Any:
    class Policy(Base):
        def read(self) -> Any:
            return (0.0, 0.0) if self.training else (1.0, -1.0)

    policy = Policy()
    return policy, lambda level: policy.train(not level)


@form("_forward_hooks|_forward_pre_hooks")
def a_hook_replaced() -> Any:
    policy, hooks = Bare(), []

    def change(level: int) -> None:
        for hook in hooks:
            hook.remove()
        hooks[:] = [
            policy.net.register_forward_hook(
                lambda module, given, output: shifted(output, *pair(level))
            )
        ]

    return policy, change


@form("_forward_hooks|_forward_pre_hooks")
def a_hook_before_a_layer() -> Any:
    policy, hooks = Bare(), []

    def change(level: int) -> None:
        for hook in hooks:
            hook.remove()
        hooks[:] = [
            policy.net.register_forward_pre_hook(
                lambda module, given: (shifted(given[0], *pair(level)),)
            )
        ]

    return policy, change


def _in_tensordict(module: nn.Module) -> Any:
    return TensorDictModule(module, in_keys=["observation"], out_keys=["action"])


@form("one|other")
def inside_a_tensordict_module() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            return self.held["one"], self.held["other"]

    inner = Policy({"one": 0.0, "other": 0.0})
    return _in_tensordict(inner), lambda level: inner.held.update(
        one=float(level), other=-float(level)
    )


@form("held")
def inside_a_sequence_of_tensordict_modules() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            return self.held[0], self.held[1]

    inner = Policy(np.zeros(2))
    last = TensorDictModule(nn.Identity(), in_keys=["hidden"], out_keys=["action"])
    policy = TensorDictSequential(
        TensorDictModule(inner, in_keys=["observation"], out_keys=["hidden"]), last
    )
    return policy, lambda level: inner.held.__setitem__(slice(None), pair(level))


@form("module|held|function")
def a_function_in_a_tensordict_module() -> Any:
    held = {"gain": pair(0)}
    return TensorDictSequential(
        TensorDictModule(Bare(), in_keys=["observation"], out_keys=["hidden"]),
        TensorDictModule(
            lambda hidden: shifted(hidden, *held["gain"]), in_keys=["hidden"], out_keys=["action"]
        ),
    ), lambda level: held.update(gain=pair(level))


def _bounded(observation: torch.Tensor, level: int) -> torch.Tensor:
    return torch.tensor([1.0 + level, -1.0 - level]).expand_as(observation)


@form("distribution_kwargs|low|high", action=_bounded)
def the_arguments_of_a_distribution() -> Any:
    class Net(Bare):
        def forward(self, observation: torch.Tensor) -> Any:
            hidden = self.net(observation)
            return hidden * 0 + torch.tensor([40.0, -40.0]), hidden * 0 + 1e-4

    policy = TensorDictSequential(
        TensorDictModule(Net(), in_keys=["observation"], out_keys=["loc", "scale"]),
        ProbabilisticTensorDictModule(
            in_keys=["loc", "scale"],
            out_keys=["action"],
            distribution_class=TanhNormal,
            distribution_kwargs={"low": -1.0, "high": 1.0, "tanh_loc": False},
        ),
    )

    def change(level: int) -> None:
        policy[1].distribution_kwargs.update(low=-1.0 - level, high=1.0 + level)

    change(0)
    return policy, change


@form("sigma", action=lambda observation, level: observation + float(level))
def the_noise_of_torchrl() -> Any:
    noise = AdditiveGaussianModule(Unbounded(2), sigma_init=0.0, sigma_end=0.0, mean=1.0, std=0.0)
    return TensorDictSequential(_in_tensordict(Bare()), noise), lambda level: noise.sigma.fill_(
        float(level)
    )


@form(
    "eps",
    is_flag=True,
    action=lambda observation, level: torch.full_like(observation, 7.0) if level else observation,
)
def the_share_of_exploration_of_torchrl() -> Any:
    explores = EGreedyModule(Bounded(7.0, 7.0, (2,)), eps_init=0.0, eps_end=0.0)
    return TensorDictSequential(_in_tensordict(Bare()), explores), lambda level: explores.eps.fill_(
        float(level)
    )


class RunningMeanStd:
    """Running statistics as those of CleanRL."""

    def __init__(self) -> None:
        self.mean, self.var, self.count = np.zeros(2), np.ones(2), 1e-4


def _normalised(kind: Any) -> Any:
    class Policy(Held):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            mean = torch.as_tensor(self.held.mean, dtype=torch.float32)
            scale = torch.as_tensor(np.sqrt(self.held.var), dtype=torch.float32)
            return (self.net(observation) - mean) / scale

    policy = Policy(kind())

    def change(level: int) -> None:
        policy.held.mean = np.array(pair(-level))
        policy.held.var = np.ones(2)

    return policy, change


@form("held|mean|var")
def running_statistics_of_cleanrl() -> Any:
    return _normalised(RunningMeanStd)


@form("held|mean|var")
def running_statistics_of_stable_baselines() -> Any:
    from stable_baselines3.common.running_mean_std import RunningMeanStd as Theirs

    return _normalised(lambda: Theirs(shape=(2,)))


@form("held|0|at")
def an_item_of_a_module_list() -> Any:
    class Policy(Base):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.LeakyReLU(0.0)])

        def read(self) -> Any:
            value = self.layers[0](torch.tensor(-1.0))
            return -value, value

    policy = Policy()
    return policy, lambda level: policy.layers.__setitem__(0, nn.LeakyReLU(float(level)))


@form("held|gain")
def an_entry_of_a_parameter_dict() -> Any:
    class Policy(Base):
        def __init__(self) -> None:
            super().__init__()
            self.held = nn.ParameterDict({"gain": nn.Parameter(torch.zeros(2))})

        def read(self) -> Any:
            return self.held["gain"][0], self.held["gain"][1]

    policy = Policy()
    return policy, lambda level: policy.held.update(
        {"gain": nn.Parameter(torch.tensor(pair(level)))}
    )


@form("no weights were given|held", is_shared=True)
def a_method_of_a_module() -> Any:
    class Agent(Held):
        def act(self, observation: torch.Tensor) -> torch.Tensor:
            return shifted(self.net(observation), self.held["one"], self.held["other"])

    agent = Agent({"one": 0.0, "other": 0.0})
    return agent.act, lambda level: agent.held.update(one=float(level), other=-float(level))
