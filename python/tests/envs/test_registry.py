"""Adapters that users register for environments of other libraries."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import gymnasium
import pytest

from windrow.collectors import Collector, MultiSyncCollector
from windrow.envs import GymWrapper, _registry, register_adapter


class Field:
    """An environment of no library that windrow knows."""

    def __init__(self) -> None:
        self.inner = gymnasium.make("CartPole-v1")


class Meadow(Field):
    pass


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_registry, "_ADAPTERS", dict(_registry._ADAPTERS))
    monkeypatch.setattr(Field, "__module__", "fields.made")


def inside(env: Any) -> Any:
    return env.inner if isinstance(env, Field) else None


def test_the_module_of_a_class_or_of_its_base_finds_the_adapter() -> None:
    with pytest.raises(
        TypeError,
        match="expected an environment, its id, or a function that returns one, got Meadow",
    ):
        Collector(Meadow(), frames_per_batch=10)
    register_adapter("fields", inside)
    for env in (Field(), Meadow(), Meadow):
        assert next(Collector(env, frames_per_batch=10)).shape == (10,)
    assert GymWrapper(Meadow()).rollout(3)["observation"].shape == (3, 4)


def test_the_nearest_module_wins_and_none_passes_the_object_on() -> None:
    register_adapter("fields", inside)
    register_adapter("fields.made", lambda env: None)
    assert next(Collector(Field, frames_per_batch=10)).shape == (10,)
    register_adapter("fields.made", lambda env: gymnasium.make("Acrobot-v1"))
    assert next(Collector(Field, frames_per_batch=10))["observation"].shape == (10, 6)


@pytest.mark.parametrize("adapt", [lambda env: env, lambda env: Field()])
def test_an_adapter_that_adapts_nothing_is_named(adapt: Any) -> None:
    register_adapter("fields", adapt)
    with pytest.raises(
        TypeError, match="the adapter of 'fields' returned a Field, as it was given"
    ):
        Collector(Field(), frames_per_batch=10)


def test_one_object_behind_an_adapter_is_one_environment() -> None:
    register_adapter("fields", inside)
    env = Field()
    with pytest.raises(Exception, match="one object"):
        MultiSyncCollector([env, env], frames_per_batch=10, placement="threads")


def test_a_function_and_a_name_are_expected() -> None:
    with pytest.raises(
        TypeError, match="expected the name of a package or module as library, got <module"
    ):
        register_adapter(ModuleType("fields"), inside)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a function as adapt, got int"):
        register_adapter("fields", 3)  # type: ignore[arg-type]
    assert "fields" not in sys.modules
