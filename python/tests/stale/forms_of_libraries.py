"""State in objects of torch's optimizers and wrappers, of tensordict, torchrl and Gymnasium."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import torch
from tensordict import NonTensorData, TensorClass, TensorDict, TensorDictParams
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal

from stale.forms import Base, OfNumber, form, pair, shifted, state
from stale.forms_of_data import Held
from stale.forms_of_modules import Bare
from stale.forms_of_weights import layer_of, parameter_of, tensor_of
from stale.worlds import World, Wrapper

# Optimizers and schedules


def _optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.0)


def _annealed() -> Any:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, float)


def _scheduled(self: Any, level: int) -> None:
    optimizer, schedule = self.held
    optimizer.step()
    schedule.step(level)


state(
    "the rate of an optimizer",
    _optimizer,
    lambda self: self.held.param_groups[0]["lr"],
    lambda self, level: self.held.param_groups[0].update(lr=float(level)),
)
state("the rate of a schedule", _annealed, lambda self: self.held[1].get_last_lr()[0], _scheduled)
state(
    "the state of an optimizer",
    lambda: torch.optim.Adam([nn.Parameter(torch.zeros(1))]),
    lambda self: self.held.state[self.held.param_groups[0]["params"][0]].get("step", 0.0),
    lambda self, level: self.held.state[self.held.param_groups[0]["params"][0]].update(
        step=float(level)
    ),
    is_whole_copy=False,
)

# tensordict


class Stats(TensorClass):
    mid: torch.Tensor
    gain: float = 0.0


state(
    "a number of a tensorclass",
    lambda: Stats(mid=torch.zeros(()), gain=0.0, batch_size=[]),
    lambda self: self.held.gain,
    lambda self, level: setattr(self.held, "gain", float(level)),
    # A deep copy of a tensorclass has the same TensorDict.
    is_shared=True,
)
state(
    "a tensor of a tensorclass",
    lambda: Stats(mid=torch.zeros(()), gain=0.0, batch_size=[]),
    lambda self: self.held.mid,
    lambda self, level: setattr(self.held, "mid", torch.tensor(float(level))),
    is_shared=True,
)
state(
    "an entry of a tensordict that is no tensor",
    lambda: TensorDict({"gain": NonTensorData(0.0)}),
    lambda self: self.held["gain"],
    lambda self, level: self.held.set("gain", NonTensorData(float(level))),
)
state(
    "the size of a tensordict",
    lambda: TensorDict({}, [0]),
    lambda self: float(self.held.batch_size[0]),
    lambda self, level: setattr(self.held, "batch_size", [level]),
)
state(
    "names of a tensordict's dimensions",
    lambda: TensorDict({}, [1], names=["0"]),
    lambda self: float(self.held.names[0]),
    lambda self, level: setattr(self.held, "names", [str(level)]),
    is_raced=False,
)
state(
    "a nested entry of a tensordict",
    lambda: TensorDict({"inner": {"gain": torch.zeros(())}}),
    lambda self: self.held["inner", "gain"],
    lambda self, level: self.held["inner"].set_("gain", torch.tensor(float(level))),
)
state(
    "an entry of parameters as a tensordict",
    lambda: TensorDictParams(TensorDict({"gain": nn.Parameter(torch.zeros(()))})),
    lambda self: self.held["gain"],
    lambda self, level: self.held["gain"].data.fill_(level),
)


@form("fast|held")
def weights_of_a_tensordict_in_a_layer() -> Any:
    class Policy(Bare):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            with self.fast.to_module(self.net):
                return self.net(observation)

    policy = Policy()
    policy.fast = TensorDict.from_module(policy.net).data.clone()
    return policy, lambda level: policy.fast["bias"].copy_(tensor_of(level))


@form("fast|held")
def weights_for_a_functional_call() -> Any:
    class Policy(Held):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(self.net, self.held, (observation,))

    policy = Policy({"bias": tensor_of(0)})
    return policy, lambda level: setattr(policy, "held", {"bias": tensor_of(level)})


@form("held|parameters")
def weights_of_an_ensemble() -> Any:
    class Policy(Held):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            def one(bias: torch.Tensor) -> torch.Tensor:
                return torch.func.functional_call(self.net, {"bias": bias}, (observation,))

            return torch.func.vmap(one)(self.held).mean(0)

    policy = Policy(torch.zeros(3, 2))
    return policy, lambda level: policy.held.copy_(tensor_of(level).expand(3, 2))


# torchrl


def _actor(net: nn.Module, **options: Any) -> Any:
    return ProbabilisticActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=torch.distributions.Normal,
        default_interaction_type="deterministic",
        **options,
    )


class Spread(Base):
    """Gives a mean and a tiny scale."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = parameter_of(0)

    def forward(self, observation: torch.Tensor) -> Any:
        mean = self.net(observation) + self.gain
        return mean, torch.full_like(mean, 1e-6)


@form("gain|net|weight|bias")
def weights_of_an_actor() -> Any:
    net = Spread()
    return _actor(net), lambda level: net.gain.data.copy_(tensor_of(level))


@form("module|Spread|net")
def the_module_of_an_actor() -> Any:
    actor = _actor(Spread())

    def change(level: int) -> None:
        net = Spread()
        net.gain.data.copy_(tensor_of(level))
        actor.module[0].module = net

    return actor, change


@form("in_keys|out_keys|module", is_raced=False)
def keys_of_a_tensordict_module() -> Any:
    class Two(Bare):
        def forward(self, observation: torch.Tensor) -> Any:
            return observation, observation + self.gain

        gain = 0.0

    inner = Two()
    policy = TensorDictSequential(
        TensorDictModule(inner, in_keys=["observation"], out_keys=["hidden", "action"])
    )
    return policy, lambda level: setattr(inner, "gain", tensor_of(level))


@form("bias|weight|module", is_raced=False)
def the_last_layer_of_an_mlp() -> Any:
    net = MLP(in_features=2, out_features=2, num_cells=[])
    nn.init.eye_(net[0].weight)
    nn.init.zeros_(net[0].bias)
    return TensorDictModule(net, in_keys=["observation"], out_keys=["action"]), lambda level: net[
        0
    ].bias.data.copy_(tensor_of(level))


def _extracted(observation: torch.Tensor, level: int) -> torch.Tensor:
    scale = torch.nn.functional.softplus(torch.tensor(0.5413)) + 0.0 * observation
    return scale.clamp_min(2.0 + level)


@form("extractor|scale_lb|module", action=_extracted, is_raced=False)
def the_bound_of_an_extractor() -> Any:
    class Policy(Bare):
        def __init__(self) -> None:
            super().__init__()
            self.extractor = NormalParamExtractor(scale_lb=2.0)

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            twice = torch.cat([observation, observation * 0.0], -1)
            return self.extractor(twice)[1]

    policy = Policy()
    return policy, lambda level: setattr(policy.extractor, "scale_lb", 2.0 + level)


def _squashed(observation: torch.Tensor, level: int) -> torch.Tensor:
    return torch.full_like(observation, 1.0 + level)


@form("low|high|held", action=_squashed, is_raced=False)
def a_distribution_that_a_module_makes() -> Any:
    class Policy(Held):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            mean = observation * 0.0 + 40.0
            made = TanhNormal(mean, mean * 0.0 + 1e-3, tanh_loc=False, **self.held)
            return made.deterministic_sample

    policy = Policy({"low": -1.0, "high": 1.0})
    return policy, lambda level: policy.held.update(high=1.0 + level)


# Gymnasium


def _wrapped() -> Any:
    return Wrapper(World(), int)


state(
    "an attribute of a wrapped environment",
    lambda: _at(_wrapped()),
    lambda self: self.held.get_wrapper_attr("gain"),
    lambda self, level: setattr(self.held.unwrapped, "gain", float(level)),
)
state(
    "the mean of a normaliser of Gymnasium",
    lambda: gym.wrappers.NormalizeObservation(World()),
    lambda self: float(self.held.obs_rms.mean[0]),
    lambda self, level: self.held.obs_rms.mean.fill(level),
)


def _at(env: Any) -> Any:
    env.unwrapped.gain = 0.0
    return env


# What torch wraps around modules


class Gained(OfNumber):
    def number(self) -> Any:
        return self.held


def _wraps(name: str, wrap: Callable[[nn.Module], Any], **options: Any) -> None:
    """Adds a form of a wrapper around a module that holds a number."""

    def made() -> Any:
        inner = Gained(0.0)
        return wrap(inner), lambda level: setattr(inner, "held", float(level))

    made.__name__, made.__module__ = name, __name__
    form("held|module|_orig_mod", is_raced=False, **options)(made)


# A copy in a worker would be compiled there, for seconds.
_wraps(
    "a module that its user compiles",
    lambda inner: torch.compile(inner, backend="eager"),
    is_local=True,
)
_wraps(
    "a part that its user compiles",
    lambda inner: nn.Sequential(torch.compile(inner, backend="eager"), nn.Identity()),
    is_local=True,
)
_wraps("DataParallel", nn.DataParallel)


@functools.cache
def _group() -> None:
    import tempfile

    import torch.distributed as distributed

    distributed.init_process_group(
        "gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1
    )


@form("bias|module|weight", is_raced=False)
def distributed_data_parallel() -> Any:
    _group()
    inner = layer_of()
    policy = nn.parallel.DistributedDataParallel(inner)
    return policy, lambda level: inner.bias.data.copy_(tensor_of(level))


class Flagged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.flag = torch.jit.Attribute(False, bool)

    # torch.jit knows no annotations that are text.
    def forward(self, observation):  # type: ignore[no-untyped-def]
        if self.flag:
            return observation + torch.tensor([1.0, -1.0])
        return observation


@form("flag|Recursive", is_flag=True, is_raced=False)
def a_scripted_module_with_a_flag() -> Any:
    policy = torch.jit.script(Flagged())
    return policy, lambda level: setattr(policy, "flag", bool(level))


@form("flag|Recursive", is_flag=True, is_raced=False)
def a_scripted_part() -> Any:
    part = torch.jit.script(Flagged())
    return nn.Sequential(layer_of(), part), lambda level: setattr(part, "flag", bool(level))


@form("bias|weight", is_raced=False)
def a_traced_module() -> Any:
    policy = torch.jit.trace(nn.Sequential(layer_of()), torch.ones(2, 2))
    return policy, lambda level: getattr(policy, "0").bias.data.copy_(tensor_of(level))


@form("module|n_averaged|bias", is_raced=False)
def an_average_of_weights() -> Any:
    policy = torch.optim.swa_utils.AveragedModel(
        nn.Sequential(layer_of()), avg_fn=lambda average, new, count: new
    )
    return policy, lambda level: policy.update_parameters(nn.Sequential(layer_of(level)))


def _quantised(observation: torch.Tensor, level: int) -> torch.Tensor:
    return observation * 0.0 + torch.tensor(pair(level))


@form("_packed|weight|bias|layer", action=_quantised, is_raced=False)
def a_quantised_layer() -> Any:
    class Policy(Bare):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.ao.quantization.quantize_dynamic(
                nn.Sequential(layer_of()), {nn.Linear}, dtype=torch.qint8
            )

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return self.layer(observation.reshape(-1, 2)).reshape(observation.shape)

    policy = Policy()

    def change(level: int) -> None:
        weight = torch.quantize_per_tensor(torch.zeros(2, 2), 1.0, 0, torch.qint8)
        policy.layer[0].set_weight_bias(weight, tensor_of(level))

    change(0)
    return policy, change


class Doubled(torch.autograd.Function):
    gain = 0.0

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return shifted(x, Doubled.gain, -Doubled.gain)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


@form("Doubled|gain", is_shared=True, undo=lambda: setattr(Doubled, "gain", 0.0))
def an_attribute_of_an_autograd_function() -> Any:
    class Policy(Bare):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return Doubled.apply(self.net(observation))

    return Policy(), lambda level: setattr(Doubled, "gain", float(level))
