"""State in classes, functions, closures, globals and methods."""

from __future__ import annotations

import functools
import os
import types
from typing import Any

import torch

from stale import elsewhere
from stale.forms import Base, form, pair, shifted
from stale.forms_of_data import Held, Two

GAIN = (0.0, 0.0)
HELD = {"one": 0.0, "other": 0.0}
TENSOR = torch.zeros(2)
OBJECT = Two()


def gain() -> Any:
    return 0.0, 0.0


@form("gain", is_shared=True, is_whole=True)
def a_class_attribute() -> Any:
    class Policy(Base):
        gain = (0.0, 0.0)

        def read(self) -> Any:
            return self.gain

    return Policy(), lambda level: setattr(Policy, "gain", pair(level))


@form("gain", is_shared=True, is_whole=True)
def an_attribute_of_a_base_class() -> Any:
    class Parent(Base):
        gain = (0.0, 0.0)

    class Policy(Parent):
        def read(self) -> Any:
            return Policy.gain

    return Policy(), lambda level: setattr(Parent, "gain", pair(level))


@form("gain", is_whole=True)
def an_attribute_that_hides_one_of_the_class() -> Any:
    class Policy(Base):
        gain = (-7.0, 7.0)

        def read(self) -> Any:
            return self.gain

    policy = Policy()
    policy.gain = pair(0)
    return policy, lambda level: setattr(policy, "gain", pair(level))


@form("read", is_whole=True)
def a_method_replaced_on_the_object() -> Any:
    class Policy(Base):
        def read(self) -> Any:
            return 0.0, 0.0

    policy = Policy()
    return policy, lambda level: setattr(policy, "read", lambda: pair(level))


@form("read", is_shared=True, is_whole=True)
def a_method_replaced_on_the_class() -> Any:
    class Policy(Base):
        def read(self) -> Any:
            return 0.0, 0.0

    return Policy(), lambda level: setattr(Policy, "read", lambda self: pair(level))


@form("forward", is_whole=True)
def forward_replaced_on_the_object() -> Any:
    class Policy(Base):
        def read(self) -> Any:
            return 0.0, 0.0

    policy = Policy()

    def change(level: int) -> None:
        policy.forward = types.MethodType(
            lambda self, observation: shifted(self.net(observation), *pair(level)), policy
        )

    return policy, change


@form("forward", is_shared=True, is_whole=True)
def forward_replaced_on_the_class() -> Any:
    class Policy(Base):
        def read(self) -> Any:
            return 0.0, 0.0

    def change(level: int) -> None:
        Policy.forward = lambda self, observation: shifted(self.net(observation), *pair(level))

    return Policy(), change


@form("read|__code__|first", is_shared=True, is_whole=True)
def the_code_of_a_function() -> Any:
    def first() -> Any:
        return 0.0, 0.0

    class Policy(Base):
        def read(self) -> Any:
            return first()

    def change(level: int) -> None:
        scope: dict[str, Any] = {}
        exec(f"def other(): return ({float(level)}, {-float(level)})", scope)
        first.__code__ = scope["other"].__code__

    return Policy(), change


@form("GAIN", is_shared=True, is_whole=True)
def a_global() -> Any:
    class Policy(Base):
        def read(self) -> Any:
            return GAIN

    globals()["GAIN"] = pair(0)
    return Policy(), lambda level: globals().update(GAIN=pair(level))


@form("HELD", is_shared=True)
def entries_of_a_global_dict() -> Any:
    class Policy(Base):
        def read(self) -> Any:
            return HELD["one"], HELD["other"]

    HELD.update(one=0.0, other=0.0)
    return Policy(), lambda level: HELD.update(one=float(level), other=-float(level))


@form("TENSOR", is_shared=True)
def a_global_tensor_in_place() -> Any:
    class Policy(Base):
        def read(self) -> Any:
            return TENSOR[0], TENSOR[1]

    TENSOR.zero_()
    return Policy(), lambda level: TENSOR.copy_(torch.tensor(pair(level)))


@form("OBJECT", is_shared=True)
def a_global_object() -> Any:
    class Policy(Base):
        def read(self) -> Any:
            return OBJECT.one, OBJECT.other

    OBJECT.set(0)
    return Policy(), OBJECT.set


@form("gain", is_shared=True, is_whole=True)
def a_global_function_replaced() -> Any:
    class Policy(Base):
        def read(self) -> Any:
            return gain()

    globals()["gain"] = lambda: pair(0)
    return Policy(), lambda level: globals().update(gain=lambda: pair(level))


@form("GAIN|elsewhere", is_shared=True, is_whole=True)
def a_constant_of_another_module() -> Any:
    class Policy(Base):
        def read(self) -> Any:
            return elsewhere.GAIN

    elsewhere.GAIN = pair(0)
    return Policy(), lambda level: setattr(elsewhere, "GAIN", pair(level))


@form("GAIN|gain|elsewhere", is_shared=True, is_whole=True)
def a_constant_behind_a_function_of_another_module() -> Any:
    class Policy(Base):
        def read(self) -> Any:
            return elsewhere.gain()

    elsewhere.GAIN = pair(0)
    return Policy(), lambda level: setattr(elsewhere, "GAIN", pair(level))


@form("HELD|gain|elsewhere", is_shared=True, is_whole=True)
def an_entry_of_another_module() -> Any:
    class Policy(Base):
        def read(self) -> Any:
            return elsewhere.HELD["gain"]

    elsewhere.HELD["gain"] = pair(0)
    return Policy(), lambda level: elsewhere.HELD.update(gain=pair(level))


@form("Settings|gain|elsewhere", is_shared=True, is_whole=True)
def a_class_of_another_module() -> Any:
    class Policy(Base):
        def read(self) -> Any:
            return elsewhere.Settings.gain

    elsewhere.Settings.gain = pair(0)
    return Policy(), lambda level: setattr(elsewhere.Settings, "gain", pair(level))


@form("elsewhere|GAIN", is_shared=True, is_whole=True)
def an_import_as_it_runs() -> Any:
    class Policy(Base):
        def read(self) -> Any:
            from stale.elsewhere import GAIN as gain_now

            return gain_now

    elsewhere.GAIN = pair(0)
    return Policy(), lambda level: setattr(elsewhere, "GAIN", pair(level))


@form("environ|os", is_shared=True, is_whole=True)
def a_variable_of_the_environment() -> Any:
    class Policy(Base):
        def read(self) -> Any:
            level = float(os.environ["WINDROW_STALE"])
            return level, -level

    os.environ["WINDROW_STALE"] = "0"
    return Policy(), lambda level: os.environ.update(WINDROW_STALE=str(level))


@form("held", is_shared=True, is_whole=True)
def a_closure() -> Any:
    held = pair(0)

    class Policy(Base):
        def read(self) -> Any:
            return held

    def change(level: int) -> None:
        nonlocal held
        held = pair(level)

    return Policy(), change


@form("held", is_shared=True)
def a_list_in_a_closure() -> Any:
    held = [0.0, 0.0]

    class Policy(Base):
        def read(self) -> Any:
            return held[0], held[1]

    return Policy(), lambda level: held.__setitem__(slice(None), pair(level))


@form("held", is_shared=True)
def an_object_in_a_closure() -> Any:
    held = Two()

    class Policy(Base):
        def read(self) -> Any:
            return held.one, held.other

    return Policy(), held.set


@form("read|default", is_shared=True, is_whole=True)
def default_arguments_replaced() -> Any:
    class Policy(Base):
        def read(self, gain: Any = (0.0, 0.0)) -> Any:
            return gain

    return Policy(), lambda level: setattr(Policy.read, "__defaults__", (pair(level),))


@form("read|default", is_shared=True)
def a_default_argument_in_place() -> Any:
    class Policy(Base):
        def read(self, *, gain: Any = {"one": 0.0, "other": 0.0}) -> Any:
            return gain["one"], gain["other"]

    held = Policy.read.__kwdefaults__["gain"]
    held.update(one=0.0, other=0.0)
    return Policy(), lambda level: held.update(one=float(level), other=-float(level))


def _given(one: Any, other: Any) -> Any:
    return one, other


@form("held", is_whole=True)
def a_partial_replaced() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            return self.held()

    policy = Policy(functools.partial(_given, 0.0, 0.0))
    return policy, lambda level: setattr(policy, "held", functools.partial(_given, *pair(level)))


@form("held")
def a_tensor_in_a_partial() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            return self.held()

    tensors = torch.zeros(()), torch.zeros(())
    policy = Policy(functools.partial(_given, *tensors))
    return policy, lambda level: [
        tensor.fill_(value) for tensor, value in zip(tensors, pair(level))
    ]


@form("held")
def keywords_of_a_partial() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            return self.held()

    policy = Policy(functools.partial(_given, one=0.0, other=0.0))
    return policy, lambda level: policy.held.keywords.update(one=float(level), other=-float(level))


@form("held|_one|_other|both")
def a_property() -> Any:
    class Policy(Base):
        def __init__(self) -> None:
            super().__init__()
            self._one = self._other = 0.0

        @property
        def both(self) -> Any:
            return self._one, self._other

        def read(self) -> Any:
            return self.both

    policy = Policy()

    def change(level: int) -> None:
        policy._one, policy._other = pair(level)

    return policy, change


@form("both", is_shared=True, is_whole=True)
def a_property_replaced() -> Any:
    class Policy(Base):
        both = property(lambda self: (0.0, 0.0))

        def read(self) -> Any:
            return self.both

    return Policy(), lambda level: setattr(Policy, "both", property(lambda self: pair(level)))


@form("both|held|_given")
def a_cached_property() -> Any:
    class Policy(Held):
        @functools.cached_property
        def both(self) -> Any:
            return self.held

        def read(self) -> Any:
            return self.both

    policy = Policy(pair(0))

    def change(level: int) -> None:
        policy.held = pair(level)
        vars(policy).pop("both", None)

    return policy, change


class Stored:
    """A descriptor."""

    def __get__(self, policy: Any, kind: Any = None) -> Any:
        return policy.stored


@form("both|stored", is_whole=True)
def a_descriptor() -> Any:
    class Policy(Base):
        both = Stored()
        stored = (0.0, 0.0)

        def read(self) -> Any:
            return self.both

    policy = Policy()
    return policy, lambda level: setattr(policy, "stored", pair(level))


@form("static", is_shared=True, is_whole=True)
def a_static_method_replaced() -> Any:
    class Policy(Base):
        @staticmethod
        def static() -> Any:
            return 0.0, 0.0

        def read(self) -> Any:
            return self.static()

    return Policy(), lambda level: setattr(Policy, "static", staticmethod(lambda: pair(level)))


@form("gain|of_class", is_shared=True, is_whole=True)
def a_class_method() -> Any:
    class Policy(Base):
        gain = (0.0, 0.0)

        @classmethod
        def of_class(cls) -> Any:
            return cls.gain

        def read(self) -> Any:
            return self.of_class()

    return Policy(), lambda level: setattr(Policy, "gain", pair(level))


@form("gain|Meta", is_shared=True, is_whole=True)
def an_attribute_of_a_metaclass() -> Any:
    class Meta(type):
        gain = (0.0, 0.0)

    class Policy(Base, metaclass=Meta):
        def read(self) -> Any:
            return type(self).gain

    return Policy(), lambda level: setattr(Meta, "gain", pair(level))


class Gives:
    def __init__(self) -> None:
        self.two = Two()

    def __call__(self) -> Any:
        return self.two.one, self.two.other


@form("held|two|one|other")
def a_callable_object() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            return self.held()

    policy = Policy(Gives())
    return policy, policy.held.two.set


@form("held", is_whole=True)
def a_lambda_replaced() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            return self.held()

    policy = Policy(lambda: pair(0))
    return policy, lambda level: setattr(policy, "held", lambda: pair(level))


@form("held|one|other|__call__")
def a_bound_method_of_another_object() -> Any:
    class Policy(Held):
        def read(self) -> Any:
            return self.held()

    gives = Gives()
    policy = Policy(gives.__call__)
    return policy, gives.two.set


@form("held|gain|with_attribute", is_shared=True, is_whole=True)
def an_attribute_of_a_function() -> Any:
    def with_attribute() -> Any:
        return with_attribute.gain

    with_attribute.gain = pair(0)

    class Policy(Base):
        def read(self) -> Any:
            return with_attribute()

    return Policy(), lambda level: setattr(with_attribute, "gain", pair(level))


@form("held|gain", is_shared=True)
def a_decorated_method() -> Any:
    held = [0.0, 0.0]

    def adding(function: Any) -> Any:
        @functools.wraps(function)
        def inner(self: Any, *arguments: Any) -> Any:
            return shifted(function(self, *arguments), held[0], held[1])

        return inner

    class Policy(Base):
        @adding
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return self.net(observation)

    return Policy(), lambda level: held.__setitem__(slice(None), pair(level))


@form("gain|Other|Policy", is_whole=True, is_shared=True)
def a_class_that_is_replaced() -> Any:
    class Policy(Base):
        def read(self) -> Any:
            return self.gain

        gain = (0.0, 0.0)

    policy = Policy()

    def change(level: int) -> None:
        class Other(Policy):
            gain = pair(level)

        policy.__class__ = Other

    return policy, change
