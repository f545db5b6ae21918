"""State in attributes, containers, objects, tensors and arrays."""

from __future__ import annotations

import array
import collections
import dataclasses
import enum
import types
import weakref
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict
from torch import nn

from stale.forms import Base, OfNumber, form, pair, shifted


class Two:
    """Two numbers."""

    def __init__(self) -> None:
        self.one = self.other = 0.0

    def set(self, level: int) -> None:
        self.one, self.other = pair(level)


@form("one|other")
def numbers_in_attributes() -> Any:
    class Policy(Base):
        one = other = 0.0

        def read(self) -> Any:
            return self.one, self.other

    policy = Policy()

    def change(level: int) -> None:
        policy.one = float(level)
        policy.other = -float(level)

    return policy, change


@form("gain", is_whole=True)
def a_tuple_replaced() -> Any:
    class Policy(Base):
        gain = (0.0, 0.0)

        def read(self) -> Any:
            return self.gain

    policy = Policy()
    return policy, lambda level: setattr(policy, "gain", pair(level))


@form("held")
def a_tuple_that_holds_tensors() -> Any:
    class Policy(Base):
        def __init__(self) -> None:
            super().__init__()
            self.held = (torch.zeros(()), torch.zeros(()))

        def read(self) -> Any:
            return self.held

    policy = Policy()
    return policy, lambda level: [
        tensor.fill_(value) for tensor, value in zip(policy.held, pair(level))
    ]


class Held(Base):
    """A module whose state is in one attribute."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held


class OfTensor(Held):
    def read(self) -> Any:
        return self.held[0], self.held[1]


@form("held", is_whole=True)
def a_tensor_replaced() -> Any:
    policy = OfTensor(torch.zeros(2))
    return policy, lambda level: setattr(policy, "held", torch.tensor(pair(level)))


@form("held")
def a_tensor_in_place() -> Any:
    policy = OfTensor(torch.zeros(2))
    return policy, lambda level: policy.held.copy_(torch.tensor(pair(level)))


@form("held")
def a_tensors_data_replaced() -> Any:
    policy = OfTensor(torch.zeros(2))
    return policy, lambda level: setattr(policy.held, "data", torch.tensor(pair(level)))


@form("held")
def a_tensors_data_in_place() -> Any:
    policy = OfTensor(torch.zeros(2))
    return policy, lambda level: policy.held.data.copy_(torch.tensor(pair(level)))


@form("held")
def a_view_of_a_tensor() -> Any:
    whole = torch.zeros(2, 2)
    policy = OfTensor(whole[1])
    return policy, lambda level: whole.copy_(torch.tensor([pair(level)] * 2))


class OfBuffer(Base):
    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.register_buffer("held", torch.zeros(2), persistent=persistent)

    def read(self) -> Any:
        return self.held[0], self.held[1]


for persistent in (True, False):
    named = "persistent" if persistent else "passing"

    def in_place(persistent: bool = persistent) -> Any:
        policy = OfBuffer(persistent)
        return policy, lambda level: policy.held.copy_(torch.tensor(pair(level)))

    def replaced(persistent: bool = persistent) -> Any:
        policy = OfBuffer(persistent)
        return policy, lambda level: setattr(policy, "held", torch.tensor(pair(level)))

    def data(persistent: bool = persistent) -> Any:
        policy = OfBuffer(persistent)
        return policy, lambda level: setattr(policy.held, "data", torch.tensor(pair(level)))

    for make, what in ((in_place, "in place"), (replaced, "replaced"), (data, "data")):
        make.__name__ = f"a {named} buffer {what}"
        form("held")(make)


class OfParameter(Base):
    def __init__(self) -> None:
        super().__init__()
        self.held = nn.Parameter(torch.zeros(2))

    def read(self) -> Any:
        return self.held[0], self.held[1]


@form("held")
def a_parameter_in_place() -> Any:
    policy = OfParameter()

    def change(level: int) -> None:
        with torch.no_grad():
            policy.held.copy_(torch.tensor(pair(level)))

    return policy, change


@form("held")
def a_parameters_data() -> Any:
    policy = OfParameter()
    return policy, lambda level: setattr(policy.held, "data", torch.tensor(pair(level)))


@form("held")
def a_parameter_replaced() -> Any:
    policy = OfParameter()
    return policy, lambda level: setattr(policy, "held", nn.Parameter(torch.tensor(pair(level))))


@form("alias|bias")
def an_alias_of_weights() -> Any:
    class Policy(Base):
        def __init__(self) -> None:
            super().__init__()
            self.alias = self.net.bias

    policy = Policy()
    policy.forward = types.MethodType(lambda self, observation: observation + self.alias, policy)

    def change(level: int) -> None:
        with torch.no_grad():
            policy.net.bias.copy_(torch.tensor(pair(level)))

    return policy, change


@form("view|bias")
def a_view_of_weights() -> Any:
    class Policy(Base):
        def __init__(self) -> None:
            super().__init__()
            self.view = self.net.bias.detach()[:]

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return observation + self.view

    policy = Policy()
    return policy, lambda level: policy.view.copy_(torch.tensor(pair(level)))


@form("held")
def an_array_replaced() -> Any:
    policy = OfTensor(np.zeros(2, np.float32))
    return policy, lambda level: setattr(policy, "held", np.array(pair(level), np.float32))


@form("held")
def an_array_in_place() -> Any:
    policy = OfTensor(np.zeros(2, np.float32))

    def change(level: int) -> None:
        policy.held[:] = pair(level)

    return policy, change


@form("held")
def an_array_that_a_tensor_shares() -> Any:
    values = np.zeros(2, np.float32)
    policy = OfTensor(torch.from_numpy(values))
    return policy, lambda level: values.__setitem__(slice(None), pair(level))


@form("held")
def an_array_of_a_buffer() -> Any:
    policy = OfBuffer(True)
    return policy, lambda level: policy.held.numpy().__setitem__(slice(None), pair(level))


@form("held", is_whole=True)
def a_numpy_number() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            held = self.held
            return held, -held

    policy = Policy(np.float64(0))
    return policy, lambda level: setattr(policy, "held", np.float64(level))


@form("held|one|other")
def an_object() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            return self.held.one, self.held.other

    policy = Policy(Two())
    return policy, policy.held.set


@form("held|one|other", is_whole=True)
def an_object_replaced() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            held = self.held
            return held.one, held.other

    policy = Policy(Two())

    def change(level: int) -> None:
        two = Two()
        two.set(level)
        policy.held = two

    return policy, change


@form("held|mean")
def a_tensor_in_an_object_replaced() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            return self.held.mean[0], self.held.mean[1]

    policy = Policy(types.SimpleNamespace(mean=torch.zeros(2)))
    return policy, lambda level: setattr(policy.held, "mean", torch.tensor(pair(level)))


@form("held|mean")
def a_tensor_in_an_object_in_place() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            return self.held.mean[0], self.held.mean[1]

    policy = Policy(types.SimpleNamespace(mean=torch.zeros(2)))
    return policy, lambda level: policy.held.mean.copy_(torch.tensor(pair(level)))


@form("held|inner|two|one|other")
def an_object_two_deep() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            return self.held.inner.two.one, self.held.inner.two.other

    policy = Policy(types.SimpleNamespace(inner=types.SimpleNamespace(two=Two())))
    return policy, policy.held.inner.two.set


class OfDict(Held):
    def read(self) -> Any:
        return self.held["one"], self.held["other"]


@form("held")
def entries_of_a_dict() -> Any:
    policy = OfDict({"one": 0.0, "other": 0.0})
    return policy, lambda level: policy.held.update(one=float(level), other=-float(level))


@form("held")
def a_dict_replaced() -> Any:
    policy = OfDict({"one": 0.0, "other": 0.0})
    return policy, lambda level: setattr(policy, "held", dict(zip(("one", "other"), pair(level))))


@form("held")
def a_default_dict() -> Any:
    policy = OfDict(collections.defaultdict(float))
    return policy, lambda level: policy.held.update(one=float(level), other=-float(level))


@form("held")
def tensors_in_a_dict() -> Any:
    policy = OfDict({"one": torch.zeros(()), "other": torch.zeros(())})

    def change(level: int) -> None:
        policy.held["one"].fill_(level)
        policy.held["other"] = torch.tensor(-float(level))

    return policy, change


@form("held")
def a_dict_that_grows() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            return max(self.held), -max(self.held.values())

    policy = Policy({0: 0})
    return policy, lambda level: policy.held.update({level: level})


@form("held")
def entries_of_a_list() -> Any:
    policy = OfTensor([0.0, 0.0])
    return policy, lambda level: policy.held.__setitem__(slice(None), pair(level))


@form("held", is_whole=True)
def a_list_that_grows() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            return self.held[-1]

    policy = Policy([pair(0)])
    return policy, lambda level: policy.held.append(pair(level))


@form("held", is_whole=True)
def a_deque() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            return self.held[-1]

    policy = Policy(collections.deque([pair(0)], maxlen=3))
    return policy, lambda level: policy.held.append(pair(level))


@form("held")
def a_set() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            highest = max(self.held)
            return highest, -highest

    policy = Policy({0})
    return policy, lambda level: policy.held.add(level)


@form("held")
def a_frozen_set_replaced() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            return max(self.held), min(self.held)

    policy = Policy(frozenset({0.0}))
    return policy, lambda level: setattr(policy, "held", frozenset(pair(level)))


@form("held")
def dicts_in_lists_in_dicts() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            return self.held["rows"][0]["one"], self.held["rows"][0]["other"]

    policy = Policy({"rows": [{"one": 0.0, "other": 0.0}]})
    return policy, lambda level: policy.held["rows"][0].update(
        one=float(level), other=-float(level)
    )


@form("held")
def a_read_only_view_of_a_dict() -> Any:
    inner = {"one": 0.0, "other": 0.0}
    policy = OfDict(types.MappingProxyType(inner))
    return policy, lambda level: inner.update(one=float(level), other=-float(level))


@form("held|tuple")
def a_list_in_a_tuple() -> Any:
    class Policy(OfNumber):
        def number(self) -> Any:
            return self.held[0][0]

    policy: Any = Policy()
    policy.held = ([0.0],)
    return policy, lambda level: policy.held[0].__setitem__(0, float(level))


@form("held|tuple", is_shared=True)
def a_list_in_a_tuple_of_the_class() -> Any:
    class Policy(OfNumber):
        held = ([0.0],)

        def number(self) -> Any:
            return type(self).held[0][0]

    return Policy(), lambda level: Policy.held[0].__setitem__(0, float(level))


@form("held")
def a_chain_of_dicts() -> Any:
    policy = OfDict(collections.ChainMap({"one": 0.0, "other": 0.0}))
    return policy, lambda level: policy.held.maps[0].update(one=float(level), other=-float(level))


@form("held")
def an_array_of_the_standard_library() -> Any:
    policy = OfTensor(array.array("d", [0.0, 0.0]))

    def change(level: int) -> None:
        policy.held[0], policy.held[1] = pair(level)

    return policy, change


@form("held")
def a_string() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            one, other = self.held.split()
            return float(one), float(other)

    policy = Policy("0 0")
    return policy, lambda level: setattr(policy, "held", f"{level} {-level}")


class Slots:
    __slots__ = ("one", "other")

    def __init__(self) -> None:
        self.one = self.other = 0.0


@form("held|one|other")
def an_object_with_slots() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            return self.held.one, self.held.other

    policy = Policy(Slots())

    def change(level: int) -> None:
        policy.held.one, policy.held.other = pair(level)

    return policy, change


@dataclasses.dataclass
class Gain:
    one: float = 0.0
    other: float = 0.0


@dataclasses.dataclass(frozen=True)
class Fixed:
    one: float = 0.0
    other: float = 0.0


@form("held|one|other")
def a_dataclass() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            return self.held.one, self.held.other

    policy = Policy(Gain())

    def change(level: int) -> None:
        policy.held.one, policy.held.other = pair(level)

    return policy, change


@form("held|one|other", is_whole=True)
def a_frozen_dataclass_replaced() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            held = self.held
            return held.one, held.other

    policy = Policy(Fixed())
    return policy, lambda level: setattr(policy, "held", Fixed(*pair(level)))


class Named(NamedTuple):
    one: float
    other: float


@form("held", is_whole=True)
def a_named_tuple_replaced() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            held = self.held
            return held.one, held.other

    policy = Policy(Named(0.0, 0.0))
    return policy, lambda level: setattr(policy, "held", Named(*pair(level)))


class Mode(enum.Enum):
    LOW = 0
    HIGH = 1


@form("held", is_flag=True, is_whole=True)
def a_member_of_an_enum() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            high = self.held is Mode.HIGH
            return float(high), -float(high)

    policy = Policy(Mode.LOW)
    return policy, lambda level: setattr(policy, "held", Mode(level))


@form("held|one|other", is_shared=True)
def a_weak_reference() -> Any:
    two = Two()

    class Policy(Held):
        def read(self) -> Any:
            return self.held().one, self.held().other

    policy = Policy(weakref.ref(two))
    policy.keeps = two
    return policy, two.set


@form("held|gain")
def entries_of_a_tensordict() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            return self.held["gain"][0], self.held["gain"][1]

    policy = Policy(TensorDict({"gain": torch.zeros(2)}))
    return policy, lambda level: policy.held.set("gain", torch.tensor(pair(level)))


@form("held|gain")
def a_tensordict_in_place() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            return self.held["gain"][0], self.held["gain"][1]

    policy = Policy(TensorDict({"gain": torch.zeros(2)}))
    return policy, lambda level: policy.held["gain"].copy_(torch.tensor(pair(level)))


@form("inner|weight|bias|frozen")
def a_frozen_module_in_a_list() -> Any:
    class Policy(Held):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return self.held[0](self.net(observation))

    frozen = nn.Linear(2, 2)
    nn.init.eye_(frozen.weight)
    nn.init.zeros_(frozen.bias)
    policy = Policy([frozen.requires_grad_(False)])
    return policy, lambda level: frozen.bias.copy_(torch.tensor(pair(level)))


@form("held|bias")
def a_module_in_a_dict() -> Any:
    class Policy(Held):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return self.held["layer"](self.net(observation))

    layer = nn.Linear(2, 2)
    nn.init.eye_(layer.weight)
    nn.init.zeros_(layer.bias)
    policy = Policy({"layer": layer})

    def change(level: int) -> None:
        with torch.no_grad():
            layer.bias.copy_(torch.tensor(pair(level)))

    return policy, change


@form("held|one|other")
def vars_of_an_object() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            return vars(self.held)["one"], self.held.__dict__["other"]

    policy = Policy(Two())
    return policy, policy.held.set


@form("one|other|which")
def getattr_by_text() -> Any:
    class Policy(Base):
        which = "first"
        first = (0.0, 0.0)

        def read(self) -> Any:
            return getattr(self, self.which)

    policy = Policy()

    def change(level: int) -> None:
        setattr(policy, f"at{level}", pair(level))
        policy.which = f"at{level}"

    return policy, change


class Away:
    def __init__(self) -> None:
        self.stored = {"one": 0.0, "other": 0.0}

    def __getattr__(self, name: str) -> float:
        try:
            return vars(self)["stored"][name]
        except KeyError:
            raise AttributeError(name) from None


@form("held|stored|one|other")
def attributes_by_getattr() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            return self.held.one, self.held.other

    policy = Policy(Away())
    return policy, lambda level: policy.held.stored.update(one=float(level), other=-float(level))


class Adds:
    def __init__(self) -> None:
        self.two = Two()

    def __radd__(self, other: torch.Tensor) -> torch.Tensor:
        return shifted(other, self.two.one, self.two.other)


@form("held|two|one|other")
def an_object_with_operators() -> Any:
    class Policy(Held):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return self.held.__radd__(self.net(observation))

    policy = Policy(Adds())
    return policy, policy.held.two.set
