"""Policies of listed classes: what their call runs, and what it writes."""

from __future__ import annotations

import collections
import functools
import random
import sys
import types
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import tensordict.nn
import torch
from tensordict import TensorDict
from tensordict.nn import (
    AddStateIndependentNormalScale,
    CompositeDistribution,
    InteractionType,
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
    set_interaction_type,
)
from torch import nn

pytest.importorskip("torchrl")

import test_plain
import theirs_policies
import torchrl.modules
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.modules import (
    Actor,
    ActorCriticOperator,
    ProbabilisticActor,
    SafeModule,
    SafeSequential,
    ValueOperator,
)

from windrow.policies import predictors
from windrow.policies.acting import unchecked
from windrow.policies.arguments import calls_with_tensordict
from windrow.policies.choose import Conditions
from windrow.policies.lower import listed as tables, lowering, origin
from windrow.policies.lower.inputs import Leaf
from windrow.policies.lower.listed import Listed
from windrow.policies.lower.plain import LAYERS
from windrow.policies.onnx import reading

ROWS = 6
FLAG, FOUR = torch.empty(1, dtype=torch.bool), torch.empty(4)
STATES = {
    "ddpg_ornstein_uhlenbeck": {"is_init": FLAG},
    "gru": {"is_init": FLAG, "recurrent_state": torch.empty(2, 6)},
    "lstm": {
        "is_init": FLAG,
        "recurrent_state_h": torch.empty(2, 6),
        "recurrent_state_c": torch.empty(2, 6),
    },
}
THEIRS = (
    "plain_network ppo_cartpole ppo_mujoco a2c_mujoco sac cql iql discrete_sac td3 tanh_delta dqn "
    "td3_additive_gaussian ddpg_ornstein_uhlenbeck dqn_egreedy dqn_egreedy_one_hot lstm gru "
    "actor_critic_wrapper actor_value_operator spectral_norm weight_norm"
).split()
SIZES = {"cartpole": 4, "cartpole_one_hot": 4, "pendulum": 3}
#: Policies of listed classes, with what they observe of one environment.
POLICIES: dict[str, tuple[Callable[[], Any], dict[Any, torch.Tensor]]] = {
    f"plain: {name}": (
        make,
        {key: torch.empty(leaf.shape, dtype=leaf.dtype) for key, leaf in observed.items()},
    )
    for name, (make, observed, _) in test_plain.NETWORKS.items()
}

INDEX = torch.zeros((), dtype=torch.int64)
#: Networks with layers that the trace of a call reads, with what they observe of one environment.
TRACED: dict[str, tuple[Callable[[], Any], torch.Tensor]] = {
    **{
        name: (lambda name=name: nn.Sequential(nn.Linear(4, 4), getattr(nn, name)()), FOUR)
        for name in "PReLU SELU Softsign Tanhshrink".split()
    },
    "threshold": (lambda: nn.Threshold(0.1, -0.2), FOUR),
    "softmaxes": (
        lambda: nn.Sequential(nn.Softmax(-1), nn.LogSoftmax(dim=1), nn.Softmin(-1)),
        FOUR,
    ),
    "gates": (lambda: nn.Sequential(nn.Linear(4, 6), nn.GLU(), nn.Linear(3, 2)), FOUR),
    "batch normalisation": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).eval(),
        FOUR,
    ),
    "batch normalisation of channels": (lambda: nn.BatchNorm1d(2).eval(), torch.empty(2, 3)),
    "flattened": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 4)), torch.empty(2, 3)),
    "flattened from the end": (lambda: nn.Flatten(-2), torch.empty(2, 3)),
    "unflattened": (lambda: nn.Sequential(nn.Linear(4, 4), nn.Unflatten(-1, (2, 2))), FOUR),
    "indices": (lambda: nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2)), INDEX),
    "a scale of its own": (
        lambda: nn.Sequential(nn.Linear(4, 3), AddStateIndependentNormalScale(3, scale_lb=1e-8)),
        FOUR,
    ),
}
for name, (make, one) in TRACED.items():
    POLICIES[name] = make, {"observation": one}
for name in THEIRS:
    make, env, _ = theirs_policies.POLICIES[name]
    POLICIES[name] = make, {"observation": torch.empty(SIZES[env]), **STATES.get(name, {})}


def policy(observed: Any = 4) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    """Adds a policy, with the size of what it observes, or with observations by name."""

    def add(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        given = observed if isinstance(observed, dict) else {"observation": torch.empty(observed)}
        POLICIES[make.__name__] = make, given
        return make

    return add


def td(module: Any, *keys: Any) -> TensorDictModule:
    return TensorDictModule(module, *keys)


@policy((2, 8))
def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(16, 2)).eval()


@policy()
def recurrent_cells() -> nn.Module:
    return TensorDictSequential(
        td(nn.GRUCell(4, 5), ["observation"], ["hidden"]),
        td(nn.LSTMCell(5, 3), ["hidden"], ["action", "cell"]),
    )


@policy((2, 4))
def layers_of_torch() -> nn.Module:
    return nn.Sequential(nn.Conv1d(2, 4, 1), nn.GroupNorm(2, 4))


@policy((1, 4, 4))
def pictures() -> nn.Module:
    return nn.Conv2d(1, 2, 2)


@policy({"a": torch.empty(3), "b": torch.empty(2)})
def products() -> nn.Module:
    return td(nn.Bilinear(3, 2, 2), ["a", "b"], ["action"])


@policy()
def named_modules_in_a_sequence() -> nn.Module:
    named = collections.OrderedDict(first=td(nn.Linear(4, 2), ["observation"], ["action"]))
    return TensorDictSequential(named)


def probabilistic(kind: Any, outputs: int, keys: list[str], **kwargs: Any) -> nn.Module:
    net = nn.Linear(4, outputs)
    module: nn.Module = nn.Sequential(net, NormalParamExtractor()) if len(keys) == 2 else net
    drawn = ProbabilisticTensorDictModule(
        keys, ["action"], distribution_class=kind, return_log_prob=True, **kwargs
    )
    return ProbabilisticTensorDictSequential(td(module, ["observation"], keys), drawn)


@policy()
def tensordicts_normal() -> nn.Module:
    return probabilistic(torch.distributions.Normal, 4, ["loc", "scale"])


@policy()
def tensordicts_categorical() -> nn.Module:
    return probabilistic(torch.distributions.Categorical, 3, ["logits"])


@policy()
def tensordicts_delta() -> nn.Module:
    return probabilistic(tensordict.nn.distributions.Delta, 2, ["param"])


@policy()
def torchrls_delta() -> nn.Module:
    return probabilistic(torchrl.modules.Delta, 2, ["param"])


@policy((1, 2, 2))
def torchrls_convolutions() -> nn.Module:
    make, _, _ = theirs_policies.POLICIES["convolutions"]
    made: nn.Module = make()[1:]
    return made


@policy()
def beta() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4), nn.Softplus(), NormalParamExtractor())
    return ProbabilisticTensorDictSequential(
        td(net, ["observation"], ["concentration1", "concentration0"]),
        ProbabilisticTensorDictModule(
            ["concentration1", "concentration0"],
            ["action"],
            distribution_class=torch.distributions.Beta,
        ),
    )


@policy()
def dirichlet() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 3), nn.Softplus())
    return ProbabilisticTensorDictSequential(
        td(net, ["observation"], ["concentration"]),
        ProbabilisticTensorDictModule(
            ["concentration"], ["action"], distribution_class=torch.distributions.Dirichlet
        ),
    )


@policy({"observation": torch.empty(4), "mask": torch.empty(3, dtype=torch.bool)})
def masked() -> nn.Module:
    return ProbabilisticActor(
        td(nn.Linear(4, 3), ["observation"], ["logits"]),
        in_keys={"logits": "logits", "mask": "mask"},
        distribution_class=theirs_policies.MaskedCategorical,
    )


@policy()
def composite() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4), NormalParamExtractor())
    params = td(net, ["observation"], [("params", "action", "loc"), ("params", "action", "scale")])
    drawn = ProbabilisticTensorDictModule(
        ["params"],
        [("action",)],
        distribution_class=CompositeDistribution,
        distribution_kwargs={"distribution_map": {"action": torch.distributions.Normal}},
    )
    return ProbabilisticTensorDictSequential(params, drawn)


@policy()
def safe_modules() -> nn.Module:
    spec = Composite(hidden=Unbounded((3,)))
    return SafeSequential(
        SafeModule(nn.Linear(4, 3), spec=spec, in_keys=["observation"], out_keys=["hidden"]),
        Actor(nn.Linear(3, 1), in_keys=["hidden"], spec=Bounded(-1.0, 1.0, (1,))),
    )


@policy()
def actor_critic_operator() -> nn.Module:
    common = td(nn.Linear(4, 8), ["observation"], ["hidden"])
    head = td(nn.Linear(8, 2), ["hidden"], ["logits"])
    actor = ProbabilisticActor(
        head, in_keys=["logits"], distribution_class=theirs_policies.Categorical
    )
    critic = ValueOperator(
        test_plain.mlp(in_features=10, out_features=1, depth=0),
        in_keys=["hidden", "logits"],
        out_keys=["state_action_value"],
    )
    return ActorCriticOperator(common, actor, critic)


def of_baselines(name: str, env: Any, policy: str = "MlpPolicy", **options: Any) -> Any:
    baselines = pytest.importorskip("stable_baselines3")
    return getattr(baselines, name)(policy, env, device="cpu", **options)


def predicted(name: str, env: Any, *options: str) -> nn.Module:
    model = of_baselines(name, env, *options)
    made: nn.Module = predictors.adapted(model.predict)
    return made


@policy()
def ppo_of_baselines() -> nn.Module:
    return predicted("PPO", "CartPole-v1")


@policy(3)
def a2c_of_baselines() -> nn.Module:
    return predicted("A2C", "Pendulum-v1")


@policy(3)
def sac_of_baselines() -> nn.Module:
    return predicted("SAC", "Pendulum-v1")


@policy(3)
def td3_of_baselines() -> nn.Module:
    return predicted("TD3", "Pendulum-v1")


@policy()
def dqn_of_baselines() -> nn.Module:
    made: nn.Module = predictors.adapted(of_baselines("DQN", "CartPole-v1").policy)
    return made


@policy(3)
def a_policy_of_baselines() -> nn.Module:
    made: nn.Module = predictors.adapted(of_baselines("PPO", "Pendulum-v1").policy)
    return made


class Two(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict(
        {name: gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32) for name in ("a", "b")}
    )
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)


@policy({"a": torch.empty(3), "b": torch.empty(3)})
def dictionaries_of_baselines() -> nn.Module:
    return predicted("PPO", Two(), "MultiInputPolicy")


@policy()
def onnx_of_one_input() -> nn.Module:
    return of_onnx(["observation"], ["action"])


@policy({"observation": torch.empty(4), "state": torch.empty(4)})
def onnx_with_a_state() -> nn.Module:
    return of_onnx(["observation", "state"], ["action", "next.state"])


def of_onnx(inputs: list[str], outputs: list[str]) -> nn.Module:
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    ports = [
        [helper.make_tensor_value_info(name, kind, ["N", 4]) for name in names]
        for names in (inputs, outputs)
    ]
    shift = onnx.numpy_helper.from_array(np.full(4, 0.5, np.float32), "shift")
    nodes = [
        helper.make_node("Add", [inputs[-1], "shift"], [outputs[0]]),
        *(helper.make_node("Tanh", [outputs[0]], [name]) for name in outputs[1:]),
    ]
    graph = helper.make_graph(nodes, "graph", *ports, [shift])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made: nn.Module = reading.policy_of(model, "auto")
    return made


@functools.cache
def prepared(name: str) -> tuple[Any, Callable[[], object]]:
    """A policy, and a call of it."""
    make, observed = POLICIES[name]
    torch.manual_seed(0)
    policy = make()
    given = {
        key: torch.ones(ROWS, *one.shape).to(one.dtype)
        if not one.dtype.is_floating_point
        else torch.randn(ROWS, *one.shape)
        for key, one in observed.items()
    }

    def call() -> object:
        with torch.no_grad(), set_interaction_type(InteractionType.RANDOM), unchecked():
            if calls_with_tensordict(policy):
                return policy(TensorDict({key: one.clone() for key, one in given.items()}, [ROWS]))
            return policy(*given.values())

    # The first call may fill what later ones read.
    call()
    return policy, call


LIBRARIES = ("torch", "tensordict", "torchrl", "stable_baselines3", "gymnasium", "numpy", "windrow")


def contents(value: Any, where: str, found: dict[str, Any], met: set[int]) -> None:
    """What lies below ``value``, by the way to it, but for what rows call unread."""
    if isinstance(value, torch.Tensor):
        found[where] = id(value), value.dtype, value.detach().numpy().tobytes()
    elif isinstance(value, np.ndarray):
        found[where] = id(value), value.tobytes()
    elif isinstance(value, (int, float, str, bytes, type(None), type)):
        found[where] = value
    else:
        found[where] = id(value)
        if id(value) in met:
            return
        met.add(id(value))
        if isinstance(value, dict):
            found[f"{where}'s keys"] = list(map(str, value))
            inner = {f"[{key!r}]": one for key, one in value.items()}
        elif isinstance(value, (list, tuple)):
            inner = {f"[{number}]": one for number, one in enumerate(value)}
        elif type(value).__module__.startswith(LIBRARIES) and hasattr(value, "__dict__"):
            bases = [(base.__module__, base.__qualname__) for base in type(value).__mro__]
            unread = {one for base in bases for one in tables.UNREAD.get(base, "").split()}
            inner = {f".{key}": one for key, one in vars(value).items() if key not in unread}
            found[f"{where}'s names"] = list(vars(value))
        else:
            return
        for name, one in inner.items():
            contents(one, where + name, found, met)


def all_of(policy: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    contents(policy, "policy", found, set())
    return found


@pytest.mark.parametrize("name", POLICIES)
def test_a_listed_policy_stays_the_same_in_a_call(name: str) -> None:
    policy, call = prepared(name)
    listed = Listed(policy)
    call()
    assert listed.is_same()


@pytest.mark.parametrize("name", POLICIES)
def test_a_listed_policy_writes_nothing_that_is_read(name: str) -> None:
    policy, call = prepared(name)
    before = all_of(policy)
    call()
    after = all_of(policy)
    assert {
        key for key in before.keys() | after.keys() if before.get(key) != after.get(key)
    } == set()


@pytest.mark.parametrize("name", POLICIES)
def test_a_listed_policy_runs_code_of_libraries_alone(name: str) -> None:
    policy, call = prepared(name)
    ran: set[str] = set()

    def see(frame: types.FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename
        is_pythons = file.startswith("<frozen ")
        if event == "call" and not is_pythons and not origin._is_theirs(frame.f_code):
            ran.add(file)

    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(None)
    assert ran <= {__file__}


@pytest.mark.parametrize("name", POLICIES)
def test_a_listed_policy_draws_from_torch_alone(name: str) -> None:
    _, call = prepared(name)
    before = random.getstate(), str(np.random.get_state())
    call()
    assert (random.getstate(), str(np.random.get_state())) == before


@pytest.mark.parametrize("name", TRACED)
def test_a_network_whose_layers_are_traced_is_native(name: str) -> None:
    make, observed = POLICIES[name]
    net = make()
    leaves = {
        key: Leaf(tuple(one.shape), one.dtype, torch.tensor(0), torch.tensor(4))
        for key, one in observed.items()
    }
    conditions = Conditions("random", threads=False)
    follower = lowering._Follower(net, net, conditions, leaves, ["action"])
    core = follower.lowered().core
    assert follower._captures == []
    assert (core["rows"], core["single"]) == ([[1, None]], True)


def test_each_class_on_the_list_is_called() -> None:
    kinds: set[Any] = set()
    for make, _ in POLICIES.values():
        kinds.update(Listed(make().eval())._known)
    seen = {(kind.__module__, kind.__qualname__) for kind in kinds}
    known = {*LAYERS, *tables.TRACED}
    assert sorted(known - seen) == []
