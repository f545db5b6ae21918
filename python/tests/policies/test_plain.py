"""Graphs of plain networks: they compute what torch computes, and bit for bit what a trace of torch
finds.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
from torch import nn

from windrow._windrow import evaluate_graph
from windrow.policies.choose import Conditions
from windrow.policies.lower.inputs import Leaf
from windrow.policies.lower.listed import Listed
from windrow.policies.lower.plain import LAYERS, plain_graph
from windrow.policies.lower.reading import Graph, Reading
from windrow.policies.lower.values import NotLowerable
from windrow.policies.weights import tensors_of

ROWS = 37
FOUR = {"observation": Leaf((4,), torch.float32)}
GRID = {"observation": Leaf((2, 3), torch.float32)}
ACTION: list[Any] = ["action"]


def td(module: Any, *keys: Any) -> TensorDictModule:
    return TensorDictModule(module, *keys)


def mlp(*args: Any, **kwargs: Any) -> nn.Module:
    modules = pytest.importorskip("torchrl.modules")
    made: nn.Module = modules.MLP(*args, **kwargs)
    return made


ACTIVATIONS = (
    "CELU ELU GELU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid Mish ReLU ReLU6 "
    "SiLU Sigmoid Softplus Softshrink Tanh Identity"
).split()
#: Each network, with what is observed and the actions.
NETWORKS: dict[str, tuple[Callable[[], Any], dict[Any, Leaf], list[Any]]] = {
    **{
        name: (lambda name=name: nn.Sequential(nn.Linear(4, 4), getattr(nn, name)()), FOUR, ACTION)
        for name in ACTIVATIONS
    },
    "activations with numbers": (
        lambda: nn.Sequential(
            nn.Linear(4, 8),
            nn.ELU(0.7),
            nn.CELU(0.5),
            nn.LeakyReLU(0.3),
            nn.Softplus(2.0, 5.0),
            nn.Hardtanh(-0.5, 0.7),
            nn.GELU("tanh"),
        ),
        FOUR,
        ACTION,
    ),
    "activations in place": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2)),
        FOUR,
        ACTION,
    ),
    "layers without bias": (
        lambda: nn.Sequential(nn.Linear(4, 6, bias=False), nn.Linear(6, 2)),
        FOUR,
        ACTION,
    ),
    "layers of several runs": (lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh()), GRID, ACTION),
    "normalised layers": (
        lambda: nn.Sequential(
            nn.Linear(4, 8), nn.LayerNorm(8), nn.LayerNorm(8, elementwise_affine=False)
        ),
        FOUR,
        ACTION,
    ),
    "normalised in two dimensions": (lambda: nn.LayerNorm([2, 3]), GRID, ACTION),
    "dropout": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 2)).eval(),
        FOUR,
        ACTION,
    ),
    # As many as there are rows.
    "many channels": (
        lambda: nn.Sequential(nn.LayerNorm(37), nn.Linear(37, 41)),
        {"observation": Leaf((37,), torch.float32)},
        ACTION,
    ),
    "one weight twice": (lambda: nn.Sequential(*[nn.Linear(4, 4)] * 2), FOUR, ACTION),
    "parameters of a distribution": (
        lambda: nn.Sequential(nn.Linear(4, 6), NormalParamExtractor()),
        FOUR,
        ACTION,
    ),
    "scales by name": (
        lambda: nn.Sequential(
            nn.Linear(4, 6), NormalParamExtractor(scale_mapping="exp", scale_lb=0.2)
        ),
        FOUR,
        ACTION,
    ),
    "modules of tensordict": (
        lambda: TensorDictSequential(
            td(nn.Linear(4, 8), ["observation"], ["hidden"]),
            td(nn.Sequential(nn.Tanh(), nn.Linear(8, 2)), ["hidden"], ["action"]),
            td(nn.Linear(8, 1), ["hidden"], ["value"]),
        ),
        FOUR,
        ACTION,
    ),
    "modules with several results": (
        lambda: td(
            nn.Sequential(nn.Linear(4, 6), NormalParamExtractor()),
            ["observation"],
            ["scale", "action"],
        ),
        FOUR,
        ACTION,
    ),
    "nested keys": (
        lambda: TensorDictSequential(
            td(nn.Linear(3, 4), [("agents", "observation")], [("agents", "hidden")]),
            td(nn.Linear(4, 2), [("agents", "hidden")], [("agents", "action")]),
            td(nn.Linear(3, 1), ["other"], ["value"]),
        ),
        {
            ("agents", "observation"): Leaf((2, 3), torch.float32),
            "other": Leaf((3,), torch.float32),
        },
        [("agents", "action")],
    ),
    "torchrl's network": (
        lambda: mlp(in_features=4, out_features=2, num_cells=[8, 8]),
        FOUR,
        ACTION,
    ),
    "torchrl's network of several dimensions": (
        lambda: mlp(in_features=4, out_features=(2, 2), depth=0),
        FOUR,
        ACTION,
    ),
}


def read(name: str) -> tuple[nn.Module, Graph, Reading]:
    """A network, its graph, and a call of it."""
    make, observed, actions = NETWORKS[name]
    torch.manual_seed(0)
    policy = make()
    reading = Reading(policy, Conditions("random", threads=False), observed, ROWS)
    reading.bind(actions)
    return policy, plain_graph(policy, observed, actions), reading


def evaluated(policy: nn.Module, graph: Graph, reading: Reading) -> list[torch.Tensor]:
    core = {**graph.described(), "weights": tensors_of(policy)}
    return evaluate_graph(core, [reading.given[key].flatten(1) for key in graph.inputs], ROWS)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_plain_network_computes_what_torch_computes(name: str) -> None:
    _, graph, reading = read(name)
    assert graph.names == reading.names
    graph.compare(reading)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_plain_network_has_the_bits_of_a_trace(name: str) -> None:
    policy, graph, reading = read(name)
    traced = reading.trace(tensors_of(policy), None)
    found = zip(evaluated(policy, graph, reading), evaluated(policy, traced, reading), strict=True)
    assert all(torch.equal(one, other) for one, other in found)


def test_each_kind_of_layer_is_among_the_networks() -> None:
    pytest.importorskip("torchrl")
    parts = {type(part) for make, _, _ in NETWORKS.values() for part in make().modules()}
    known = {(kind.__module__, kind.__qualname__) for kind in parts}
    assert set(LAYERS) == known


def test_the_actions_come_first() -> None:
    make, observed, actions = NETWORKS["modules with several results"]
    assert plain_graph(make(), observed, actions).names == [["action"], ["scale"]]


def test_weights_are_read_by_their_names() -> None:
    policy = td(nn.Linear(4, 2), ["observation"], ["action"])
    assert plain_graph(policy, FOUR, ACTION).used == ["module.weight", "module.bias"]


def test_an_observation_that_nothing_reads_is_no_input() -> None:
    policy = td(nn.Linear(4, 2), ["observation"], ["action"])
    observed = {"other": Leaf((3,), torch.int64), **FOUR}
    assert plain_graph(policy, observed, ACTION).inputs == ["observation"]


class Doubled(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


@pytest.mark.parametrize(
    "policy",
    [
        Doubled(4, 2),
        nn.Sequential(Doubled(4, 2)),
        nn.Linear(4, 2).double(),
        nn.Linear(5, 2),
        nn.LayerNorm(5),
        nn.Softmax(-1),
        nn.Sequential(nn.Linear(4, 4), NormalParamExtractor(), nn.Identity()),
        nn.ReLU(inplace=True),
        nn.Sequential(nn.Identity(), nn.ReLU(inplace=True)),
        td(nn.Linear(4, 2), ["observation"], ["next_action"]),
        td(nn.Linear(4, 4), ["observation"], ["observation"]),
        td(nn.Linear(4, 2), ["observation"], [("next", "hidden")]),
        td(lambda observation: observation, ["observation"], ["action"]),
        td(nn.Linear(4, 2), ["other"], ["action"]),
        td(nn.Linear(4, 2), ["action"], ["action"]),
        TensorDictModule(nn.Linear(4, 2), ["observation"], ["action"], inplace=False),
        TensorDictModule(nn.Linear(4, 2), {"input": "observation"}, ["action"]),
        TensorDictSequential(
            td(nn.Linear(4, 2), ["observation"], ["hidden"]),
            td(nn.ReLU(inplace=True), ["hidden"], ["action"]),
        ),
        TensorDictSequential(
            td(nn.Linear(4, 2), ["observation"], ["action"]), selected_out_keys=["action"]
        ),
    ],
    ids=lambda policy: type(policy).__name__,
)
def test_what_is_no_plain_network_is_left_to_others(policy: nn.Module) -> None:
    with pytest.raises(NotLowerable):
        plain_graph(policy, FOUR, ACTION)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_layers_of_other_types_are_left_to_others(dtype: torch.dtype) -> None:
    with pytest.raises(NotLowerable, match="it reads torch"):
        plain_graph(nn.ReLU(), {"observation": Leaf((4,), dtype)}, ACTION)


def test_parts_of_plain_networks_are_listed() -> None:
    make, _, _ = NETWORKS["nested keys"]
    assert Listed(make()).plain


FRESH = """
import sys
from torch import nn
from windrow.collectors import Collector
from windrow.envs import GymEnv

def build():
    policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
    return Collector(GymEnv("CartPole-v1", num_envs=2), policy, frames_per_batch=64)

next(iter(build()))
print(*(name for name in ("torchrl", "ray", "windrow.data.replay_buffers") if name in sys.modules))
calls = 0
def count(frame, event, argument):
    global calls
    calls += event == "call"
sys.setprofile(count)
build()
sys.setprofile(None)
print(calls)
"""


def test_a_collector_of_a_plain_network_does_little_before_its_first_batch() -> None:
    ran = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=True)
    imported, calls = ran.stdout.split("\n")[:2]
    assert imported == ""
    assert int(calls) < 3000
