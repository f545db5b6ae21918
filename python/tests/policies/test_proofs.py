"""Which changes of a policy its proof sees, and which policies have none."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensordict.nn.utils
import torch
from tensordict.nn import NormalParamExtractor, TensorDictSequential
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrizations, parametrize

pytest.importorskip("torchrl")

import theirs_policies
from test_listed import POLICIES, td
from torchrl.data import Bounded
from torchrl.modules import (
    EGreedyModule,
    IndependentNormal,
    ProbabilisticActor,
    QValueActor,
    TanhNormal,
)

from windrow.collectors import Collector, Evaluator
from windrow.policies.lower import capture
from windrow.policies.lower.listed import Listed, is_listed
from windrow.policies.lower.origin import NotListed


def layered() -> Any:
    return nn.Sequential(nn.Linear(4, 4), nn.LeakyReLU(), nn.LayerNorm(4), nn.Linear(4, 4)).eval()


def keyed() -> Any:
    first = td(nn.Linear(4, 4), ["observation"], ["hidden"])
    return TensorDictSequential(first, td(nn.Linear(4, 4), ["hidden"], ["action"]))


def drawing() -> Any:
    bounds = {"low": -torch.ones(1), "high": torch.ones(1)}
    return ProbabilisticActor(
        td(
            nn.Sequential(nn.Linear(4, 2), NormalParamExtractor()),
            ["observation"],
            ["loc", "scale"],
        ),
        in_keys=["loc", "scale"],
        spec=Bounded(-1.0, 1.0, (1,)),
        distribution_class=TanhNormal,
        distribution_kwargs=bounds,
    )


Change = tuple[Callable[[], Any], Callable[[Any, pytest.MonkeyPatch], object]]
#: What a proof has to see, by its name: a policy, and what changes it.
CHANGES: dict[str, Change] = {}


def change(make: Callable[[], Any]) -> Callable[[Any], Any]:
    def add(function: Callable[[Any, pytest.MonkeyPatch], object]) -> Any:
        CHANGES[function.__name__] = make, function
        return function

    return add


@change(layered)
def another_layer(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy.append(nn.Tanh())


@change(layered)
def order_of_layers(policy: Any, patch: pytest.MonkeyPatch) -> None:
    last = policy._modules.pop("0")
    policy._modules["0"] = last


@change(layered)
def layers_that_change_places(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy[0], policy[3] = policy[3], policy[0]


@change(layered)
def part_of_the_same_class(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy[3] = nn.Linear(4, 4)


@change(layered)
def mode(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy[2].train()


@change(layered)
def hook(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy[0].register_forward_hook(lambda *_: None)


@change(layered)
def hook_before(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy.register_forward_pre_hook(lambda *_: None)


@change(layered)
def hook_of_all_modules(policy: Any, patch: pytest.MonkeyPatch) -> None:
    HANDLES.append(register_module_forward_hook(lambda *_: None))


@change(layered)
def forward_of_one_layer(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy[0].forward = lambda x: x


@change(layered)
def forward_of_a_class(policy: Any, patch: pytest.MonkeyPatch) -> None:
    before = nn.Linear.forward
    patch.setattr(nn.Linear, "forward", lambda self, x: 2 * before(self, x))


@change(layered)
def call_of_a_class(policy: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(nn.Linear, "__call__", lambda self, x: x, raising=False)


@change(layered)
def attributes_of_all_modules(policy: Any, patch: pytest.MonkeyPatch) -> None:
    before = nn.Module.__getattr__
    patch.setattr(nn.Module, "__getattr__", lambda self, name: before(self, name))


@change(layered)
def code_of_a_method(policy: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(nn.Linear.forward, "__code__", nn.Identity.forward.__code__)


@change(layered)
def function_of_a_layer(policy: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(nn.functional, "linear", lambda x, *_: x)


@change(layered)
def function_below_that_of_a_layer(policy: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "layer_norm", lambda x, *_: x)


@change(layered)
def method_of_tensors(policy: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.Tensor, "relu", lambda self: self, raising=False)


@change(layered)
def class_of_a_part(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy[1].__class__ = nn.ReLU


@change(layered)
def slope(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy[1].negative_slope = 0.5


@change(layered)
def epsilon(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy[2].eps = 1e-3


@change(layered)
def parametrization(policy: Any, patch: pytest.MonkeyPatch) -> None:
    parametrizations.weight_norm(policy[0])


@change(layered)
def weight(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy[0].weight = nn.Parameter(torch.zeros(4, 4))


@change(layered)
def weight_that_is_left_out(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy[0].bias = None


@change(layered)
def type_of_a_weight(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy[0].weight.data = policy[0].weight.data.double()


@change(layered)
def shape_of_a_weight(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy[3].weight.data = torch.zeros(2, 4)


@change(lambda: nn.Sequential(*[nn.Linear(4, 4)] * 2))
def weight_of_two_layers(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy[1] = nn.Linear(4, 4)


@change(lambda: nn.BatchNorm1d(4).eval())
def buffer(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy.running_mean = torch.ones(4)


@change(keyed)
def keys_in_place(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy[0].in_keys[0] = "other"


@change(keyed)
def other_keys(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy[1].out_keys = ["other"]


@change(keyed)
def keys_that_are_chosen(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy.select_out_keys("action")


@change(keyed)
def option_of_a_module(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy[0].inplace = False


@change(drawing)
def argument_of_a_distribution(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy[1].distribution_kwargs["low"] = torch.zeros(1)


@change(drawing)
def further_argument_of_a_distribution(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy[1].distribution_kwargs["tanh_loc"] = True


@change(drawing)
def argument_of_a_distribution_in_place(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy[1].distribution_kwargs["low"].mul_(0.5)


@change(drawing)
def distribution(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy[1].distribution_class = IndependentNormal


@change(drawing)
def method_of_a_distribution(policy: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TanhNormal, "rsample", lambda self, *_: 0)


@change(drawing)
def bounds_of_a_spec_in_place(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy.spec["action"].space._low.mul_(0.5)


@change(drawing)
def smallest_scale(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy[0].module[1].scale_lb = 0.5


@change(lambda: POLICIES["dqn_egreedy"][0]())
def spec(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy[1]._spec["action"] = Bounded(-1.0, 1.0, (1,))


@change(lambda: POLICIES["lstm"][0]())
def flat_weights(policy: Any, patch: pytest.MonkeyPatch) -> None:
    policy[1].lstm._flat_weights[0] = policy[1].lstm._flat_weights[4]


@change(lambda: POLICIES["a scale of its own"][0]())
def mapping_by_its_name(policy: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(tensordict.nn.utils._MAPPINGS, "exp", torch.tanh)


@change(layered)
def descriptor_in_a_class(policy: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(nn.Linear, "weight", property(lambda self: 0), raising=False)


HANDLES: list[Any] = []


@pytest.fixture(autouse=True)
def without_global_hooks() -> Iterator[None]:
    yield
    while HANDLES:
        HANDLES.pop().remove()


@pytest.mark.parametrize("name", CHANGES)
def test_a_proof_is_lost_by_a_change_of(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, function = CHANGES[name]
    policy = make()
    listed = Listed(policy)
    assert listed.is_same()
    function(policy, monkeypatch)
    assert not listed.is_same()


def test_a_proof_holds_while_weights_change() -> None:
    policy = layered()
    listed = Listed(policy)
    optimizer = torch.optim.SGD(policy.parameters(), 0.1)
    policy(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    policy.load_state_dict(layered().state_dict())
    assert listed.is_same()


def test_what_was_patched_is_listed_again_when_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = layered()
    with monkeypatch.context() as patch:
        forward_of_a_class(policy, patch)
        with pytest.raises(NotListed, match="Linear.forward is not as its library has defined it"):
            Listed(policy)
    assert Listed(policy).is_same()


class Doubled(nn.Linear):
    pass


class Text(str):
    def split(self, *args: Any) -> Any:
        return ["action"]


class Halved(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight / 2


def with_attribute(value: Any) -> nn.Module:
    policy = layered()
    policy[1].note = value
    return policy


def refused_masks() -> nn.Module:
    spec = theirs_policies.CategoricalSpec(2)
    actor = QValueActor(nn.Linear(4, 2), in_keys=["observation"], spec=spec)
    return TensorDictSequential(actor, EGreedyModule(spec, action_mask_key="mask"))


def parametrized() -> nn.Module:
    policy = layered()
    parametrize.register_parametrization(policy[0], "weight", Halved())
    return policy


def tied() -> nn.Module:
    policy = layered()
    policy[3].weight.data = policy[0].weight.data
    made: nn.Module = policy
    return made


def hooked() -> nn.Module:
    policy = layered()
    policy[0].register_full_backward_hook(lambda *_: None)
    return policy


#: Policies that are not listed, and why.
REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "class of the user": (theirs_policies.Own, "policy is an instance of theirs_policies.Own, no"),
    "class below": (lambda: nn.Sequential(Doubled(4, 2)), "policy.0 is an instance of .*Doubled"),
    "function": (lambda: td(lambda x: x, ["a"], ["b"]), r"policy.module is .*lambda>\(\)"),
    "hook": (hooked, "policy.0._backward_hooks: there are hooks"),
    "dropout": (lambda: nn.Dropout(0.5), "policy, a Dropout, is in training mode: call eval"),
    "batch": (lambda: nn.BatchNorm1d(4), "policy, a BatchNorm1d, is in training mode"),
    "power iteration": (
        lambda: parametrizations.spectral_norm(nn.Linear(4, 4)),
        "a _SpectralNorm, is in training mode",
    ),
    "norm of an embedding": (lambda: nn.Embedding(4, 2, max_norm=1.0), "scales its weights"),
    "parametrization": (parametrized, "is an instance of .*Halved"),
    "mask of a spec": (refused_masks, "writes its mask into its spec"),
    "tensor": (lambda: with_attribute(torch.ones(1)), "policy.1.note is a tensor"),
    "array": (lambda: with_attribute(np.ones(1)), "policy.1.note is an array"),
    "object": (lambda: with_attribute(object()), "policy.1.note is an instance of builtins.object"),
    "text with attributes": (lambda: with_attribute(Text()), "note is an instance of .*Text"),
    "in a list": (lambda: with_attribute([1, {"a": object()}]), r"note\[1\]\['a'\] is an instance"),
    "generator": (lambda: with_attribute(torch.Generator()), "note is an instance of torch"),
    "number that is two weights": (tied, "two of its weights are the same numbers"),
    "method of its own": (
        lambda: with_own_forward(layered()),
        "policy has forward of its own in place of its class's",
    ),
}


def with_own_forward(policy: Any) -> nn.Module:
    policy.forward = policy.__class__.forward
    made: nn.Module = policy
    return made


@pytest.mark.parametrize("name", REFUSED)
def test_not_listed_is_a_policy_with_a(name: str) -> None:
    make, why = REFUSED[name]
    with pytest.raises(NotListed, match=why):
        Listed(make())


def test_no_policy_is_listed_while_parametrizations_are_cached() -> None:
    policy = parametrizations.weight_norm(nn.Linear(4, 4))
    with parametrize.cached(), pytest.raises(NotListed, match="parametrizations are cached"):
        Listed(policy)


def test_a_class_of_a_known_name_is_no_known_class() -> None:
    fake = type("Linear", (nn.Linear,), {"__module__": "torch.nn.modules.linear"})
    assert is_listed(nn.Linear)
    assert not is_listed(fake)


WAYS_TO_ITSELF: dict[str, Callable[[nn.Module], Any]] = {
    "a number of its own": lambda self: self.by_number.get(id(self), 0.0),
    "a key": lambda self: self.by_itself.get(self, 0.0),
    "a member": lambda self: 1.0 if self in self.by_itself else 0.0,
    "a weak key": lambda self: self.by_weak.get(self, 0.0),
    "an item": lambda self: 1.0 if self.itself[0] is self else 0.0,
    "what another has": lambda self: 1.0 if self is self.owner.policy else 0.0,
    "what a function compares": lambda self: float(operator.is_(self, self.owner.policy)),
}


@pytest.mark.parametrize("way", WAYS_TO_ITSELF.values(), ids=WAYS_TO_ITSELF.keys())
def test_an_evaluator_reads_no_policy_that_sees_that_another_stands_for_it(way: Any) -> None:
    class Itself(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)
            self.by_number, self.by_itself, self.itself = {id(self): 1.0}, {self: 1.0}, [self]
            self.by_weak = weakref.WeakKeyDictionary({self: 1.0})
            self.owner = SimpleNamespace(policy=self)

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return self.linear(observation).argmax(-1) * int(way(self))

    with pytest.raises(ValueError, match="asks which object it is|reads itself from somewhere"):
        Evaluator("CartPole-v1", Itself(), policy_backend="native")


def test_a_plain_value_that_guards_of_torch_pass_over_is_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Holder:
        gain = 0.0

    class Policy(nn.Module):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            still = 0 * observation[..., 0]
            return torch.stack([still, still + vars(holder)["gain"]], -1).argmax(-1)

    holder = Holder()
    holder.gain = -1.0
    monkeypatch.setattr(capture, "PASSED_OVER", True)
    monkeypatch.setattr(capture.Capture, "guards_hold", lambda self: True)
    with Collector(
        "CartPole-v1", Policy(), frames_per_batch=4, policy_backend="native"
    ) as collector:
        assert not next(collector)["action"].any()
        holder.gain = 1.0
        assert next(collector)["action"].all()
