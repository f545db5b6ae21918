"""Models of ONNX as policies, and policies as models of ONNX."""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.modules import ProbabilisticActor

onnx = pytest.importorskip("onnx", reason="models of ONNX are read by onnx")
runtime = pytest.importorskip("onnxruntime", reason="models of ONNX are compared with onnxruntime")

from onnx import TensorProto, helper, numpy_helper

from windrow.collectors import AsyncBatchedCollector, Collector, Evaluator, MultiSyncCollector
from windrow.envs import GymEnv
from windrow.modules import RemotePolicy, RemoteServer, export_onnx


def collect(policy: Any, env: Any = "CartPole-v1", **arguments: Any) -> TensorDict:
    with Collector(
        env, policy, **{"frames_per_batch": 40, "num_envs": 2, "seed": 1, **arguments}
    ) as collector:
        return next(collector)


def model(
    nodes: list[Any],
    held: dict[str, Any],
    *,
    size: int = 4,
    outputs: dict[str, list[Any]] | None = None,
    rows: Any = "N",
) -> Any:
    """A model that maps ``x`` to ``y``."""
    ports = {"y": [rows, 2]} if outputs is None else outputs
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, size])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in ports.items()
        ],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in held.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(made)
    return made


def linear(**arguments: Any) -> Any:
    weight = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "layer.weight", "layer.bias"], ["h"], transB=1),
        helper.make_node("Tanh", ["h"], ["y"]),
    ]
    return model(nodes, {"layer.weight": weight, "layer.bias": np.ones(2, np.float32)}, **arguments)


def run(made: Any, *arrays: Any) -> list[np.ndarray]:
    session = runtime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(
        None, {port.name: np.asarray(array) for port, array in zip(session.get_inputs(), arrays)}
    )


def pooled() -> Any:
    """A model with an operator that graphs do not have."""
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axis"], ["wide"]),
        helper.make_node("MaxPool", ["wide"], ["pooled"], kernel_shape=[2], strides=[2]),
        helper.make_node("Squeeze", ["pooled", "axis"], ["y"]),
    ]
    return model(nodes, {"axis": np.array([1])})


@pytest.mark.parametrize("form", ["a model", "a path", "a name"])
def test_models_run_in_rust(form: str, tmp_path: Path) -> None:
    made, file = linear(), tmp_path / "policy.onnx"
    onnx.save(made, file)
    batch = collect(
        {"a model": made, "a path": file, "a name": str(file)}[form], policy_backend="native"
    )
    (scores,) = run(made, batch["observation"].flatten(0, 1))
    assert batch["action"].flatten().tolist() == scores.argmax(-1).tolist()


def test_models_with_other_operators_run_in_onnxruntime() -> None:
    batch = collect(pooled())
    (scores,) = run(pooled(), batch["observation"].flatten(0, 1))
    assert batch["action"].flatten().tolist() == scores.argmax(-1).tolist()
    with pytest.raises(
        ValueError,
        match="policy_backend=\"native\": the model 'model' has the operator MaxPool, which windrow does not eval",
    ):
        collect(pooled(), policy_backend="native")
    with Collector("CartPole-v1", pooled(), frames_per_batch=10) as called:
        assert "has the operator MaxPool" in str(called)
    with Collector("CartPole-v1", linear(), frames_per_batch=10, policy_backend="torch") as called:
        assert called.policy_backend == "torch"


def test_what_is_not_installed_is_named_with_the_operator(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(
        ImportError,
        match=r"has the operator MaxPool, which windrow does not evaluate: it needs onnxruntime, .*windrow-rl\[onnx\]",
    ):
        collect(pooled())
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(
        ImportError, match=r"needs onnx, which is not installed: pip install \"windrow-rl\[onnx\]\""
    ):
        collect(linear())


def test_what_is_no_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match="policy='nowhere.onnx': expected the path of an ONNX file, and there is no such file",
    ):
        collect("nowhere.onnx")
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(ValueError, match="text.onnx': expected an ONNX file, which it is not"):
        collect(tmp_path / "text.onnx")
    with pytest.raises(
        TypeError, match=r"the input 'x' has the shape \['N', 3\], N rows, got \[2, 4\]"
    ):
        collect(
            model([helper.make_node("Identity", ["x"], ["y"])], {}, size=3, outputs={"y": ["N", 3]})
        )


def test_models_of_one_row_are_called_row_by_row() -> None:
    expected = collect(linear())["action"]
    # As exported without dynamic axes: its shapes are those of one row.
    nodes = [helper.make_node("Reshape", ["t", "shape"], ["y"])]
    made = linear(rows=1)
    made.graph.node[-1].output[0] = "t"
    made.graph.node.extend(nodes)
    made.graph.initializer.append(numpy_helper.from_array(np.array([1, 2]), "shape"))
    assert torch.equal(collect(made)["action"], expected)
    three = linear(rows=3)
    with pytest.raises(
        Exception, match="takes 3 rows, got 2: export it with a first dimension that is not fixed"
    ):
        collect(three, policy_backend="torch")


def test_outputs_have_the_names_that_the_model_gives_them() -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "weight"], ["7"]),
        helper.make_node("Tanh", ["7"], ["8"]),
        helper.make_node("Neg", ["8"], ["value"]),
    ]
    batch = collect(
        model(
            nodes,
            {"weight": np.ones((4, 2), np.float32)},
            outputs={"7": ["N", 2], "8": ["N", 2], "value": ["N", 2]},
        )
    )
    assert torch.equal(batch["value"], -batch["output1"])


@pytest.mark.parametrize("policy", [linear, pooled], ids=["graph", "session"])
def test_models_act_wherever_policies_do(policy: Any) -> None:
    def check(batch: TensorDict) -> None:
        (scores,) = run(policy(), batch["observation"].reshape(-1, 4))
        assert batch["action"].flatten().tolist() == scores.argmax(-1).tolist()

    for placement in ("threads", "processes"):
        with MultiSyncCollector(
            ["CartPole-v1"] * 2, policy(), frames_per_batch=40, num_envs=2, placement=placement
        ) as collector:
            check(next(collector))
    with AsyncBatchedCollector(["CartPole-v1"] * 3, policy(), frames_per_batch=30) as served:
        check(next(served))
    with RemoteServer(policy()) as server:
        check(collect(RemotePolicy(server.address)))
    check(collect(policy(), GymEnv("CartPole-v1", categorical_action_encoding=True), num_envs=None))
    assert Evaluator("CartPole-v1", policy(), num_trajectories=2).evaluate()["eval/reward"] > 0


# What is exported


ACTIVATIONS = [
    nn.Tanh(),
    nn.ReLU(),
    nn.Sigmoid(),
    nn.SiLU(),
    nn.GELU(),
    nn.GELU("tanh"),
    nn.ELU(0.7),
    nn.LeakyReLU(0.2),
    nn.CELU(0.6),
    nn.SELU(),
    nn.Softplus(2.0),
    nn.Mish(),
    nn.Hardtanh(-0.5, 0.7),
    nn.Hardsigmoid(),
    nn.Hardswish(),
    nn.Softsign(),
    nn.LogSigmoid(),
    nn.Tanhshrink(),
    nn.Softshrink(0.2),
    nn.Hardshrink(0.2),
    nn.Threshold(0.1, -1.0),
    nn.PReLU(),
    nn.LogSoftmax(-1),
]


def exported(
    policy: nn.Module, given: torch.Tensor, env: Any = None
) -> tuple[Any, list[np.ndarray]]:
    made = export_onnx(policy, env=env)
    return made, run(made, given)


def test_exported_policies_compute_the_same() -> None:
    given = torch.randn(7, 4)
    layers = [layer for activation in ACTIVATIONS for layer in (nn.Linear(4, 4), activation)]
    for policy in (
        nn.Sequential(nn.Linear(4, 2)),
        *(
            nn.Sequential(*layers[place : place + 6], nn.Linear(4, 2))
            for place in range(0, len(layers), 6)
        ),
    ):
        _, (scores,) = exported(policy, given)
        assert np.allclose(scores, policy(given).detach(), atol=1e-6)


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.table = nn.Linear(4, 8), nn.LayerNorm(8), nn.Embedding(2, 8)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, observation: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.norm(self.layer(observation)) + self.table((observation[:, 0] > 0).long())
        tokens = x.view(-1, 2, 4)
        x = x + self.attention(tokens, tokens, tokens)[0].flatten(1)
        x = torch.where((x > 0) & (x < 1), x.exp(), x.abs().sqrt())
        return {
            "action": x.softmax(-1)[:, [1, 0]],
            "best": x.argmax(-1),
            "norm": x.norm(dim=-1),
            "top": x.logsumexp(-1, keepdim=True),
        }


def test_exported_policies_have_all_outputs_by_name_and_can_be_read_again(tmp_path: Path) -> None:
    policy, given = Parts(), torch.randn(5, 4)
    made, results = exported(policy, given)
    names = [port.name for port in made.graph.output]
    assert sorted(names) == ["action", "best", "norm", "top"]
    for name, result in zip(names, results):
        assert np.allclose(result, policy(given)[name].detach(), atol=1e-6), name
    assert {"layer.weight", "table.weight"} <= {tensor.name for tensor in made.graph.initializer}
    export_onnx(policy, tmp_path / "policy.onnx")
    own, again = (
        collect(one, policy_backend="native") for one in (policy, tmp_path / "policy.onnx")
    )
    assert torch.equal(own["action"], again["action"]) and torch.equal(own["best"], again["best"])
    assert torch.allclose(own["norm"], again["norm"], atol=1e-5)


class Memory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(4, 6), nn.Linear(6, 2)

    def forward(
        self, observation: torch.Tensor, state: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        state = self.cell(observation, state)
        return self.head(state), state


def test_states_are_inputs_and_outputs() -> None:
    policy = TensorDictModule(
        Memory(), in_keys=["observation", "state"], out_keys=["action", ("next", "state")]
    )
    made = export_onnx(policy)
    assert [port.name for port in made.graph.input] == ["observation", "state"]
    assert {port.name for port in made.graph.output} >= {"action", "next.state"}
    own = collect(policy, policy_backend="native")
    for backend in ("native", "torch"):
        assert torch.equal(collect(made, policy_backend=backend)["action"], own["action"])


def test_drawn_actions_and_models_of_stable_baselines_are_exported() -> None:
    from stable_baselines3 import PPO

    ppo, given = (
        PPO("MlpPolicy", "CartPole-v1", seed=1),
        np.random.default_rng(0).normal(size=(400, 4)).astype(np.float32),
    )
    (actions,) = run(export_onnx(ppo), given)
    assert actions.tolist() == ppo.predict(given, deterministic=True)[0].tolist()
    (drawn,) = run(export_onnx(ppo, exploration_type="random"), given)
    assert 100 < drawn.sum() < 300


def test_what_cannot_be_exported_is_named() -> None:
    scales = TensorDictModule(
        nn.Sequential(nn.Linear(4, 4), NormalParamExtractor()), ["observation"], ["loc", "scale"]
    )
    drawn = ProbabilisticActor(
        scales,
        in_keys={"concentration1": "loc", "concentration0": "scale"},
        distribution_class=torch.distributions.Beta,
    )
    with pytest.raises(
        ValueError, match="ONNX has no operator for Gamma, which the policy computes"
    ):
        export_onnx(drawn, env=lambda: GymEnv("CartPole-v1"), exploration_type="random")
    with pytest.raises(ValueError, match="no graph that windrow reads, since expected a module"):
        export_onnx(lambda observation: observation)


def test_models_are_copied_and_pickled() -> None:
    from windrow.policies.onnx.reading import policy_of

    given = torch.randn(3, 4)
    for policy in (policy_of(linear(), "auto"), policy_of(pooled(), "auto")):
        for other in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
            assert torch.equal(other(given)["action"], policy(given)["action"])
