"""Graphs of plain networks: they compute what torch computes, and bit for bit what a trace of torch
finds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    AddStateIndependentNormalScale,
    NormalParamExtractor,
    TensorDictModule,
    TensorDictSequential,
)
from torch import nn

from windrow._windrow import evaluate_graph
from windrow.envs._specs import path
from windrow.policies.lower import rules as rules
from windrow.policies.lower.inputs import Leaf
from windrow.policies.lower.listed import Listed
from windrow.policies.lower.plain import LAYERS, NotPlain, Plain, plain_graph
from windrow.policies.lower.trace import Calls, Trace
from windrow.policies.weights import tensors_of

ROWS = 37
FOUR = {"observation": Leaf((4,), torch.float32)}
GRID = {"observation": Leaf((2, 3), torch.float32)}
ACTION: list[Any] = ["action"]


def normalised() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2))
    with torch.no_grad():
        net[1].running_mean.normal_()
        net[1].running_var.uniform_(0.5, 2.0)
    return net.eval()


def td(module: Any, *keys: Any) -> TensorDictModule:
    return TensorDictModule(module, *keys)


def mlp(*args: Any, **kwargs: Any) -> nn.Module:
    modules = pytest.importorskip("torchrl.modules")
    made: nn.Module = modules.MLP(*args, **kwargs)
    return made


ACTIVATIONS = (
    "CELU ELU GELU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid Mish PReLU ReLU "
    "ReLU6 SELU SiLU Sigmoid Softplus Softshrink Softsign Tanh Tanhshrink Identity"
).split()
#: A trace takes its channels for rows, and refuses it.
UNTRACED = "as many channels as a trace has rows"
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
            nn.Threshold(0.1, -0.2),
            nn.GELU(approximate="tanh"),
        ),
        FOUR,
        ACTION,
    ),
    "activations in place": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2)),
        FOUR,
        ACTION,
    ),
    "softmaxes": (
        lambda: nn.Sequential(nn.Softmax(-1), nn.LogSoftmax(dim=1), nn.Softmin(-1)),
        FOUR,
        ACTION,
    ),
    "softmaxes of parts": (lambda: nn.Sequential(nn.Softmax(dim=1)), GRID, ACTION),
    "gates": (lambda: nn.Sequential(nn.Linear(4, 6), nn.GLU(), nn.Linear(3, 2)), FOUR, ACTION),
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
    "batch normalisation and dropout": (normalised, FOUR, ACTION),
    "batch normalisation of channels": (lambda: nn.BatchNorm1d(2).eval(), GRID, ACTION),
    UNTRACED: (
        lambda: nn.Sequential(nn.BatchNorm1d(37), nn.Linear(37, 41)).eval(),
        {"observation": Leaf((37,), torch.float32)},
        ACTION,
    ),
    "flattened": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Unflatten(-1, (2, 2))),
        GRID,
        ACTION,
    ),
    "indices": (
        lambda: nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2)),
        {"observation": Leaf((), torch.int64, torch.tensor(0), torch.tensor(4))},
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
    "a scale of its own": (
        lambda: nn.Sequential(nn.Linear(4, 3), AddStateIndependentNormalScale(3, scale_lb=1e-8)),
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
    "torchrl's network of two inputs": (
        lambda: td(mlp(in_features=6, out_features=(2, 2), depth=0), ["a", "b"], ["action"]),
        {"a": Leaf((4,), torch.float32), "b": Leaf((2,), torch.float32)},
        ACTION,
    ),
}


def observations(observed: dict[Any, Leaf]) -> dict[Any, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        key: torch.randint(5, (ROWS, *leaf.shape), generator=generator)
        if leaf.dtype == torch.int64
        else 2 * torch.randn((ROWS, *leaf.shape), generator=generator)
        for key, leaf in observed.items()
    }


def call(policy: nn.Module, given: dict[Any, torch.Tensor]) -> dict[tuple[str, ...], torch.Tensor]:
    """What torch computes, by name."""
    with torch.no_grad():
        if isinstance(policy, (TensorDictModule, TensorDictSequential)):
            returned = policy(TensorDict(dict(given), [ROWS]))
            return {
                path(key): value
                for key, value in returned.items(True, True)
                if key not in given and path(key)[-1] != "hidden"
            }
        returned = policy(*given.values())
    results = returned if isinstance(returned, tuple) else (returned,)
    names = ["action", *(f"output{number}" for number in range(1, len(results)))]
    return {(name,): value for name, value in zip(names, results)}


def evaluated(
    policy: nn.Module, text: str, used: list[str], given: list[torch.Tensor]
) -> list[torch.Tensor]:
    core = {"graph": text, "weights": tensors_of(policy), "used": used, "reads_init": False}
    return evaluate_graph(core, [one.reshape(ROWS, -1).float() for one in given], ROWS)


def of_plain(
    policy: nn.Module, found: Plain, given: dict[Any, torch.Tensor]
) -> dict[tuple[str, ...], torch.Tensor]:
    results = evaluated(policy, found.graph, found.used, [given[key] for key in found.inputs])
    return {
        tuple(leaf["key"]): value.reshape(ROWS, *leaf["shape"])
        for leaf, value in zip(found.outputs, results, strict=True)
    }


def traced(
    policy: nn.Module, observed: dict[Any, Leaf], given: dict[Any, torch.Tensor]
) -> dict[tuple[str, ...], torch.Tensor]:
    """As a trace of torch finds it."""
    trace = Trace(ROWS, tensors_of(policy))
    for key, tensor in given.items():
        trace.input(tensor, low=observed[key].low, high=observed[key].high)
    with trace, Calls(trace):
        outputs = call(policy, given)
    values = [trace.spread(trace.output(one), one.shape, 0) for one in outputs.values()]
    graph, nodes, inputs, used = trace.graph(values)
    keys = list(given)
    leaves = [
        {"key": list(key), "dtype": "float32", "shape": list(one.shape[1:])}
        for key, one in outputs.items()
    ]
    read = [
        {
            "Observation": {
                "key": list(path(keys[index])),
                "dtype": str(given[keys[index]].dtype).removeprefix("torch."),
                "shape": list(given[keys[index]].shape[1:]),
            }
        }
        for index in inputs
    ]
    text = json.dumps({"graph": graph, "inputs": read, "outputs": list(zip(leaves, nodes))})
    results = evaluated(policy, text, used, [given[keys[index]] for index in inputs])
    return {key: value.reshape(one.shape) for (key, one), value in zip(outputs.items(), results)}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_plain_network_computes_what_torch_computes(name: str) -> None:
    make, observed, actions = NETWORKS[name]
    torch.manual_seed(0)
    policy, given = make(), observations(observed)
    found = of_plain(policy, plain_graph(policy, observed, actions), given)
    for key, value in call(policy, given).items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != UNTRACED])
def test_a_plain_network_has_the_bits_of_a_trace(name: str) -> None:
    make, observed, actions = NETWORKS[name]
    torch.manual_seed(0)
    policy, given = make(), observations(observed)
    found = of_plain(policy, plain_graph(policy, observed, actions), given)
    for key, value in traced(policy, observed, given).items():
        assert torch.equal(found[key], value), key


def test_each_kind_of_layer_is_among_the_networks() -> None:
    pytest.importorskip("torchrl")
    parts = {type(part) for make, _, _ in NETWORKS.values() for part in make().modules()}
    known = {(kind.__module__, kind.__qualname__) for kind in parts}
    assert set(LAYERS) == known


def test_the_actions_come_first() -> None:
    make, observed, actions = NETWORKS["modules with several results"]
    outputs = plain_graph(make(), observed, actions).outputs
    assert [leaf["key"] for leaf in outputs] == [["action"], ["scale"]]


def test_weights_are_read_by_their_names() -> None:
    policy = td(nn.Linear(4, 2), ["observation"], ["action"])
    assert plain_graph(policy, FOUR, ACTION).used == ["module.weight", "module.bias"]


def test_an_observation_that_nothing_reads_is_no_input() -> None:
    policy = td(nn.Linear(4, 2), ["observation"], ["action"])
    observed = {"other": Leaf((3,), torch.float32), **FOUR}
    assert plain_graph(policy, observed, ACTION).inputs == ["observation"]


@pytest.mark.parametrize(
    ("policy", "holds"),
    [
        (nn.Linear(4, 2), True),
        (nn.LayerNorm(4), True),
        (nn.Softmax(dim=-1), True),
        (nn.Softmax(dim=1), False),
        (nn.BatchNorm1d(4).eval(), False),
        (nn.Flatten(), False),
        (nn.Unflatten(-1, (2, 2)), True),
        (nn.Unflatten(1, (2, 2)), False),
    ],
)
def test_a_graph_says_whether_it_holds_without_a_batch_dimension(
    policy: nn.Module, holds: bool
) -> None:
    assert plain_graph(policy, FOUR, ACTION).single is holds


@pytest.mark.parametrize("mode", [True, False])
def test_evaluation_holds_whatever_the_mode(mode: bool) -> None:
    policy = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)).train(mode)
    assert plain_graph(policy, FOUR, ACTION, evaluates=True).used == ["0.weight", "0.bias"]


class Doubled(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


@pytest.mark.parametrize(
    "policy",
    [
        nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)),
        nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)),
        nn.BatchNorm1d(4, track_running_stats=False).eval(),
        Doubled(4, 2),
        nn.Sequential(Doubled(4, 2)),
        nn.Linear(4, 2).double(),
        nn.Softmax(dim=0),
        nn.Softmax(dim=None),
        nn.Flatten(0),
        nn.ReLU(inplace=True),
        nn.Sequential(nn.Identity(), nn.ReLU(inplace=True)),
        nn.LazyLinear(2),
        nn.Embedding(4, 2, max_norm=1.0),
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
    with pytest.raises(NotPlain):
        plain_graph(policy, FOUR, ACTION)


@pytest.mark.parametrize(
    ("policy", "observed"),
    [
        (nn.Linear(4, 2), {"observation": Leaf((5,), torch.float32)}),
        (nn.Linear(4, 2), {"observation": Leaf((4,), torch.float64)}),
        (nn.LayerNorm(4), {"observation": Leaf((5,), torch.float32)}),
    ],
)
def test_what_torch_could_not_call_is_an_error(policy: nn.Module, observed: Any) -> None:
    with pytest.raises(TypeError):
        plain_graph(policy, observed, ACTION)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_layers_of_other_types_are_left_to_others(dtype: torch.dtype) -> None:
    with pytest.raises(NotPlain, match="ReLU of torch"):
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
