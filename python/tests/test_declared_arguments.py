"""Arguments that are declared once."""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from accepted import accepted_by, legacy_of
from windrow._arguments import Arguments, _shown, argument, documentation, fields_of, ignored, takes
from windrow._numbers import at_least
from windrow._types import Env
from windrow.collectors import (
    AsyncBatchedCollector,
    AsyncCollector,
    Collector,
    Evaluator,
    MultiAsyncCollector,
    MultiSyncCollector,
)
from windrow.data import LazyTensorStorage, ReplayBuffer, SliceSampler
from windrow.data.replay_buffers.samplers import Sampler
from windrow.envs import AsyncEnvPool
from windrow.modules import InferenceServer, RemoteServer


class RoomArguments(Arguments):
    name: str = argument("on the door", kw_only=False)
    width: int = argument("steps from wall to wall", check=at_least(1), engine=True)
    seed: int | None = argument(
        "what random choices follow from", default=None, check=at_least(0), engine=True
    )
    device: str = ignored("rooms are on the CPU", default="cpu")


class Room:
    @takes(RoomArguments)
    def __init__(self, arguments: RoomArguments) -> None:
        self.arguments = arguments


class Hall(Room):
    pass


def test_the_signature_has_names_types_and_defaults_of_the_declaration() -> None:
    parameters = inspect.signature(Hall).parameters
    assert list(parameters) == ["name", "width", "seed", "legacy"]
    assert parameters["seed"].annotation == "int | None" and parameters["seed"].default is None


def test_an_argument_without_effect_is_a_name_of_legacy() -> None:
    legacy = inspect.signature(Hall).parameters["legacy"]
    assert legacy.kind is legacy.VAR_KEYWORD and legacy_of(legacy) == {"device"}


def test_the_documentation_comes_from_the_declaration() -> None:
    documented = inspect.getdoc(Hall.__init__)
    assert (
        documented.startswith("Arguments:\n    name: str   ")
        and "device: rooms are on the CPU" in documented.split("without effect:")[1]
    )
    assert (
        "    seed: int | None = None                 what random choices follow from" in documented
    )


def test_the_engine_gets_checked_values_by_name() -> None:
    assert Room("a", width=True + 2).arguments.for_engine() == {"width": 3, "seed": None}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"width": 0}, ValueError, "width must be 1 or more, got 0"),
        ({"width": 1, "seed": -1}, ValueError, "seed must be 0 or more, got -1"),
        ({}, TypeError, "Hall: missing a required argument: 'width'"),
        ({"width": 1, "name": "b"}, TypeError, "Hall: multiple values for argument 'name'"),
        (
            {"widht": 1, "colour": 2},
            TypeError,
            r"Hall has no argument colour, widht \(did you mean width\?\)",
        ),
    ],
)
def test_a_wrong_argument_is_named_with_the_class(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Hall("a", **arguments)


def test_an_argument_without_effect_is_warned_of_where_it_is_given() -> None:
    with pytest.warns(UserWarning, match="device has no effect: rooms are on the CPU"):
        Room("a", width=1, device="cuda")


def test_a_value_that_holds_anyway_needs_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    Room("a", width=1, device="cpu")
    Room("a", width=1, device=None)
    assert not recwarn.list


def declarations() -> list[type[Arguments]]:
    """All of windrow's, once the modules that declare some are imported."""
    assert all(
        (AsyncEnvPool, Evaluator, InferenceServer, MultiSyncCollector, RemoteServer, ReplayBuffer)
    )
    found = [Arguments]
    for declaration in found:
        found += [
            kind
            for kind in declaration.__subclasses__()
            if kind.__module__.startswith("windrow.") and kind not in found
        ]
    return found[1:]


def test_help_shows_each_argument_of_a_collector_once_in_its_group() -> None:
    documented = inspect.getdoc(MultiSyncCollector.__init__)
    before, _, without_effect = documented.partition("without effect:")
    groups = [
        line for line in before.splitlines() if line.endswith(":") and not line.startswith(" ")
    ]
    assert groups[:3] == ["In most programs:", "What to collect:", "Where workers run:"]
    assert len(groups) == len(set(groups)) == 10
    shown = re.findall(
        r"^    (\w+)(?=[: ])", before + without_effect.partition("\n\n")[0], re.MULTILINE
    )
    assert sorted(shown) == sorted(accepted_by(MultiSyncCollector))
    assert (
        "        placement: 'inline' | 'threads' | 'processes' | None = None"
        in f"    {before}".replace("\n", "\n    ")
    )


@pytest.mark.parametrize("kind", [Collector, MultiSyncCollector, AsyncBatchedCollector, Evaluator])
def test_help_begins_with_the_arguments_that_most_programs_use(kind: type) -> None:
    shown = pydoc.render_doc(kind, renderer=pydoc.plaintext).splitlines()
    assert shown[2].startswith("class ") and shown[3] == f" |  {kind.__name__}("
    names = [line.split(":")[0].strip(" |") for line in shown[4:17] if ": " in line]
    assert len(names) == 10 and set(names) <= set(inspect.signature(kind).parameters)
    assert shown[15].startswith(" |      ...  # and ")


@pytest.mark.parametrize(
    "kind",
    [
        *(AsyncBatchedCollector, AsyncCollector, Collector, MultiAsyncCollector),
        *(MultiSyncCollector, Evaluator, ReplayBuffer, LazyTensorStorage, SliceSampler),
    ],
)
def test_every_argument_has_a_type(kind: type) -> None:
    parameters = inspect.signature(kind).parameters.values()
    assert [one.name for one in parameters if one.annotation is inspect.Parameter.empty] == []


class Named(Collector):
    def __init__(self, name: str, **arguments: Any) -> None:
        super().__init__("CartPole-v1", **arguments)
        self.name = name


def test_a_subclass_shows_the_arguments_of_its_own_constructor() -> None:
    assert list(inspect.signature(Named).parameters) == ["name", "arguments"]
    assert Named("a", frames_per_batch=10).frames_per_batch == 10


@pytest.mark.parametrize(
    "declaration", sorted(declarations(), key=lambda declaration: declaration.__qualname__)
)
def test_an_argument_is_explained_in_a_line(declaration: type[Arguments]) -> None:
    explained = {
        field.name: field.metadata["doc"]
        for field in fields_of(declaration)
        if "ignored" not in field.metadata
    }
    assert [name for name, line in explained.items() if len(line) > 86 or "\n" in line] == []


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (Env, "Environment | Callable[..., Environment] | str"),
        (
            Callable[[], Env] | None,
            "Callable[[], Environment | Callable[..., Environment] | str] | None",
        ),
        ("torch.nn.Module | envs.RandomPolicy | None", "nn.Module | RandomPolicy | None"),
        (Sequence[Sampler] | bool, "Sequence[Sampler] | bool"),
    ],
)
def test_help_shows_types_by_the_names_of_their_classes(kind: Any, shown: str) -> None:
    assert _shown(kind) == shown


@pytest.mark.parametrize(
    "declaration", sorted(declarations(), key=lambda declaration: declaration.__qualname__)
)
def test_help_shows_no_type_that_a_reader_has_to_solve(declaration: type[Arguments]) -> None:
    assert (
        re.findall(
            "ForwardRef|windrow\\.|typing\\.|collections\\.abc|Optional|Union",
            documentation(declaration).partition("\n\nMore about")[0],
        )
        == []
    )
