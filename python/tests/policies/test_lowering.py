"""Modules that windrow reads a network out of: which ones it knows, and that it does what they
do.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo.utils
from tensordict.nn import (
    AddStateIndependentNormalScale,
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    TensorDictModule,
    TensorDictSequential,
)
from torch import nn
from torchrl.modules import MLP, IndependentNormal, ProbabilisticActor, TanhNormal

from windrow.collectors import Collector
from windrow.policies.lower.trace import Trace


def normal_actor(
    last: nn.Module, outputs: int, kind: type = TanhNormal, **bounds: float
) -> TensorDictSequential:
    net = nn.Sequential(
        MLP(in_features=3, out_features=outputs, num_cells=[16], activation_class=nn.Tanh), last
    )
    return ProbabilisticActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=kind,
        distribution_kwargs=bounds,
        return_log_prob=True,
    )


def scales_of(
    policy: TensorDictSequential, collector: Collector
) -> tuple[torch.Tensor, torch.Tensor]:
    """Deviations of a batch, and what the policy says that they are."""
    batch = next(collector)
    with torch.no_grad():
        return batch["scale"], policy.module[0](batch.select("observation"))["scale"]


class Additions(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.count, self.last = count, nn.Linear(3, 1)
        self.register_buffer("step", torch.full((3,), 1e-3))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        for _ in range(self.count):
            observation = observation + self.step
        return self.last(observation)


@pytest.mark.parametrize(
    ("options", "count"), [({}, 3), ({"num_envs": 1}, 2), ({"num_envs": 4}, 1)], ids=str
)
def test_a_capture_is_made_for_each_kind_of_call_that_there_may_be(
    options: dict[str, int], count: int
) -> None:
    captured: Any = torch._dynamo.utils.counters["stats"]
    before = captured["unique_graphs"]
    with Collector("Pendulum-v1", Additions(1), frames_per_batch=8, **options) as collector:
        assert collector.policy_backend == "native"
        assert captured["unique_graphs"] - before == count


def test_operations_on_values_of_one_shape_place_no_elements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def moves(additions: int) -> int:
        moved: list[int] = []
        move = Trace.move
        monkeypatch.setattr(
            Trace, "move", lambda *args, **named: moved.append(0) or move(*args, **named)
        )
        with Collector(
            "Pendulum-v1", Additions(additions), frames_per_batch=5, policy_backend="native", seed=0
        ) as collector:
            next(collector)
        monkeypatch.undo()
        return len(moved)

    assert moves(4) == moves(40)


@pytest.mark.parametrize("least", [1e-8, 1e-4, 0.1])
def test_deviations_that_no_observation_changes_are_those_of_the_module(least: float) -> None:
    last = AddStateIndependentNormalScale(1, scale_lb=least)
    policy = normal_actor(last, 1, low=-2.0, high=2.0)
    with Collector(
        "Pendulum-v1", policy, frames_per_batch=5, policy_backend="native", seed=0
    ) as collector:
        # What training may make of it: also less than the module lets through.
        for logarithm in (0.0, -1.0, 0.5, -30.0):
            with torch.no_grad():
                last.state_independent_scale.fill_(logarithm)
            own, expected = scales_of(policy, collector)
            torch.testing.assert_close(own, expected, rtol=1e-5, atol=0.0)
            published = collector._core.weights()["module.0.module.1.state_independent_scale"]
            assert published.tolist() == [logarithm], "weights are published as they are"


@pytest.mark.parametrize(
    "mapping",
    ["exp", "softplus", "relu", "expln", "biased_softplus_1.0", "biased_softplus_0.5_0.2"],
)
@pytest.mark.parametrize("kind", [AddStateIndependentNormalScale, NormalParamExtractor])
def test_every_mapping_of_deviations_is_followed_wherever_training_leads(
    kind: type, mapping: str
) -> None:
    last = (
        kind(1, scale_mapping=mapping) if kind is AddStateIndependentNormalScale else kind(mapping)
    )
    policy = normal_actor(
        last, 1 if kind is AddStateIndependentNormalScale else 2, IndependentNormal
    )
    final = policy.module[0].module[0][-1]
    # Where mappings agree.
    nn.init.zeros_(final.weight)
    nn.init.zeros_(final.bias)
    if mapping == "relu":
        nn.init.ones_(getattr(last, "state_independent_scale", final.bias))
    with Collector("Pendulum-v1", policy, frames_per_batch=5, seed=0) as collector:
        for value in (0.5, -0.5, 3.0):
            with torch.no_grad():
                getattr(last, "state_independent_scale", final.bias).fill_(value)
            own, expected = scales_of(policy, collector)
            torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-5)


def test_a_layer_that_stands_in_two_places_is_read_twice() -> None:
    activation = nn.Tanh()
    policy = nn.Sequential(
        nn.Linear(4, 8), activation, nn.Linear(8, 8), activation, nn.Linear(8, 2)
    )
    with Collector(
        "CartPole-v1", policy, frames_per_batch=20, policy_backend="native", seed=0
    ) as collector:
        batch = next(collector)
    assert torch.equal(batch["action"], policy(batch["observation"]).argmax(-1))


def test_a_distribution_of_the_users_own_is_evaluated_as_it_is() -> None:
    class Shifted(torch.distributions.Normal):
        def rsample(self, shape: torch.Size = torch.Size()) -> torch.Tensor:
            return super().rsample(shape) + 7.0

    net = nn.Sequential(nn.Linear(3, 2), NormalParamExtractor())
    policy = TensorDictSequential(
        TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]),
        ProbabilisticTensorDictModule(
            in_keys=["loc", "scale"], out_keys=["action"], distribution_class=Shifted
        ),
    )
    with Collector(
        "Pendulum-v1", policy, frames_per_batch=200, policy_backend="native", seed=0
    ) as collector:
        batch = next(collector)
    deviates = (batch["action"] - batch["loc"] - 7.0) / batch["scale"]
    assert abs(deviates.mean()) < 0.3 and abs(deviates.std() - 1) < 0.3


def test_a_module_that_computes_something_else_is_followed_at_the_next_batch() -> None:
    net = nn.Sequential(nn.Linear(3, 1), nn.ELU(alpha=1.0))
    with Collector(
        "Pendulum-v1", net, frames_per_batch=20, policy_backend="native", seed=0
    ) as collector:
        collector.next()
        net[1].inplace = True
        collector.next()
        net[1].alpha = 0.5
        batch = collector.next()
        with torch.no_grad():
            torch.testing.assert_close(
                batch["action"], net(batch["observation"]), rtol=1e-4, atol=1e-5
            )


def test_a_policy_that_is_no_graph_any_more_is_an_error_that_names_the_reason() -> None:
    net, seen = nn.Sequential(nn.Linear(4, 2), nn.Tanh()), []
    with Collector("CartPole-v1", net, frames_per_batch=4, policy_backend="native") as collector:
        collector.next()
        net[1].register_forward_hook(lambda layer, given, output: seen.append(len(output)))
        with pytest.raises(RuntimeError, match="it writes"):
            collector.next()


def test_a_policy_that_reads_no_observation_is_evaluated_natively(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Constant(nn.Linear):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return torch.ones(observation.shape[:-1], dtype=torch.int64)

    # Each batch is looked at.
    monkeypatch.setattr("windrow.policies.audit.SHARE", float("inf"))
    with Collector(
        "CartPole-v1", Constant(4, 2), num_envs=2, frames_per_batch=8, policy_backend="native"
    ) as collector:
        assert [set(collector.next()["action"].flatten().tolist()) for _ in range(3)] == [{1}] * 3


MOST = 20


class ByAttribute(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.limits = [5, MOST]

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        scores = super().forward(observation)
        return scores if observation.size(0) < self.limits[1] else -scores


class ByGlobal(nn.Linear):
    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        scores = super().forward(observation)
        return scores if len(observation) < MOST else -scores


class ByRemainder(nn.Linear):
    def forward(self, observation: torch.Tensor, least: int = 37 - MOST) -> torch.Tensor:
        scores = super().forward(observation)
        return -scores if observation.shape[0] % MOST == least else scores


class ByDimensions(nn.Linear):
    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        scores = super().forward(observation)
        return scores if observation.dim() == 1 else -scores


@pytest.mark.parametrize("num_envs", [None, 1, 2, 19, 20, 57])
@pytest.mark.parametrize("kind", [ByAttribute, ByGlobal, ByRemainder, ByDimensions])
def test_a_module_that_asks_how_many_rows_there_are_gets_its_own_answer(
    kind: type[nn.Module], num_envs: int | None
) -> None:
    policy = kind(4, 2)
    with Collector(
        "CartPole-v1", policy, num_envs=num_envs, frames_per_batch=3 * (num_envs or 1)
    ) as collector:
        batch = next(collector)
    calls = batch.unbind(-1)
    for call in calls:
        assert torch.equal(call["action"], policy(call["observation"]).argmax(-1)), collector


def test_a_policy_that_asks_for_another_number_of_rows_later_is_called() -> None:
    policy = ByAttribute(4, 2)
    policy.limits[1] = 10_000_000
    with Collector("CartPole-v1", policy, num_envs=30, frames_per_batch=30) as collector:
        collector.next()
        assert collector.policy_backend == "native"
        policy.limits[1] = MOST
        batch = collector.next()
        assert torch.equal(batch["action"][:, 0], policy(batch["observation"][:, 0]).argmax(-1))


@pytest.mark.parametrize("by", ["function", "object"])
def test_a_policy_of_agents_runs_in_rust_whoever_makes_their_environment(by: str) -> None:
    rps_v2 = pytest.importorskip("pettingzoo.classic.rps_v2")

    class Greedy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return self.layer(observation.float()).argmax(-1)

    greedy = Greedy()
    policy = TensorDictModule(
        greedy, in_keys=[("player", "observation")], out_keys=[("player", "action")]
    )
    env = rps_v2.parallel_env if by == "function" else rps_v2.parallel_env()
    with Collector(env, policy, frames_per_batch=20) as collector:
        assert collector.policy_backend == "native", collector
        batch = next(collector)
    assert torch.equal(batch["player", "action"], greedy(batch["player", "observation"]))
