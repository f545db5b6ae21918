"""Copies of policies that torch calls: which weights they have, and what travels beside them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from policies import called_functions
from stale.worlds import World
from windrow.collectors import Collector, Evaluator, MultiSyncCollector
from windrow.policies.beside import Attributes, load_attributes
from windrow.policies.held import source_of_weights
from windrow.policies.torch_policy import copied_module
from windrow.policies.weights import tensors_of

GAIN = 1.0
LAYER = nn.Linear(2, 2)


def plain(observation: torch.Tensor) -> torch.Tensor:
    return LAYER(observation)


class Agent:
    """No module itself."""

    def __init__(self) -> None:
        self.actor, self.critic, self.bias = nn.Linear(2, 2), nn.Linear(2, 1), 0.0
        self.memory = [threading.Lock()]

    def act(self, observation: torch.Tensor) -> torch.Tensor:
        return self.actor(observation) + self.bias

    def learn(self) -> Any:
        return self.critic, self.memory


class Callable_(Agent):
    def __call__(self, observation: torch.Tensor) -> torch.Tensor:
        return self.act(observation) * self.critic(observation)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "memory"}


class Module(nn.Module):
    """Its parts are read by a lambda, and by a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 2)
        gain = self.gain = nn.Parameter(torch.ones(2))
        self.steps = [lambda observation: self.net(observation)]
        self.net.register_forward_hook(lambda module, given, returned: returned * gain)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.steps[0](observation)

    def act(self, observation: torch.Tensor) -> torch.Tensor:
        return self(observation) + 0 * self.gain


def with_default(observation: torch.Tensor, layer: nn.Module = LAYER) -> torch.Tensor:
    return layer(observation)


def weighted(layer: nn.Module, observation: torch.Tensor) -> torch.Tensor:
    return layer(observation)


@pytest.mark.parametrize(
    "make",
    [
        lambda net: lambda observation: net(observation),
        lambda net: lambda observation, held={"net": net}: held["net"](observation),
        lambda net: functools.partial(weighted, net),
        lambda net: functools.partial(weighted, layer=net),
        lambda net: net.forward,
    ],
    ids=["closure", "default", "partial", "keyword", "method"],
)
def test_a_function_over_one_module_has_its_weights(make: Callable[[nn.Module], Any]) -> None:
    net = nn.Linear(2, 2)
    assert source_of_weights(make(net)) is net


def test_a_function_has_the_weights_that_its_globals_and_what_it_calls_have() -> None:
    assert source_of_weights(plain) is LAYER
    assert source_of_weights(lambda observation: plain(observation) * 2) is LAYER


def test_a_method_of_an_object_has_the_weights_that_its_code_names() -> None:
    agent = Agent()
    assert source_of_weights(agent.act) is agent.actor


def test_weights_of_several_modules_are_named_by_their_places() -> None:
    agent, gain = Callable_(), nn.Parameter(torch.ones(2))
    names = ["actor.weight", "actor.bias", "critic.weight", "critic.bias"]
    assert list(tensors_of(source_of_weights(agent))) == names
    source = source_of_weights(lambda observation: agent.act(observation) * gain)
    assert set(tensors_of(source)) == {"gain", *(f"agent.{name}" for name in names)}


def test_a_policy_without_weights_has_an_empty_source() -> None:
    assert tensors_of(source_of_weights(lambda observation: observation)) == {}


def test_functions_in_a_copied_module_refer_to_the_copy() -> None:
    level = [0.0]

    class Told(Module):
        def __init__(self) -> None:
            super().__init__()

            def told(observation: torch.Tensor, net: nn.Module = self.net) -> torch.Tensor:
                return net(observation) + level[0]

            self.steps = [functools.partial(told), torch.tanh]

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return self.steps[0](observation)

    observation = torch.ones(2)
    for policy in (Module(), Told()):
        copied = copied_module(policy)
        with torch.no_grad():
            before = policy(observation)
            for weights in policy.parameters():
                weights.zero_()
            assert torch.equal(copied(observation), before)
            for weights in copied.parameters():
                weights.zero_()
            assert torch.equal(copied(observation), torch.zeros(2))
    level[0] = 1.0
    assert torch.equal(copied(observation), torch.ones(2)), "the rest is shared"


# What travels beside weights


class Normalising(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.held, self.lock = nn.Linear(2, 2), {"mean": torch.zeros(2)}, None

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.net(observation) - self.held["mean"]


def attributes(policy: nn.Module, **given: bool) -> Attributes:
    return Attributes(policy, policy, **{"evaluates": False, "elsewhere": False, **given})


def test_changed_attributes_reach_a_copy_and_refer_to_its_own_parts() -> None:
    policy = Normalising()
    copied, written = copied_module(policy), attributes(policy)
    policy.held["mean"] = torch.ones(2)
    vars(policy)["again"] = [policy.net.weight]
    load_attributes(written(), copied, copied)
    assert copied.held["mean"].tolist() == [1, 1]
    assert vars(copied)["again"][0] is copied.net.weight


def test_an_attribute_that_is_gone_is_gone_in_the_copy() -> None:
    policy = Normalising()
    copied, written = copied_module(policy), attributes(policy)
    del policy.lock
    load_attributes(written(), copied, copied)
    assert not hasattr(copied, "lock")


def test_an_attribute_that_cannot_be_sent_is_named() -> None:
    policy = Normalising()
    written = attributes(policy)
    policy.net.lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match=r"net\.lock of Normalising has changed, and cannot be"):
        load_attributes(written(), policy, policy)


def test_parts_that_change_are_named() -> None:
    policy = Normalising()
    written = attributes(policy)
    policy.net = nn.Identity()  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="the parts of Normalising have changed: net"):
        load_attributes(written(), policy, policy)


def test_weights_that_are_no_longer_one_tensor_are_named() -> None:
    policy = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    policy[1].weight = policy[0].weight
    written = attributes(policy)
    policy[1].weight = nn.Parameter(torch.ones(2, 2))
    with pytest.raises(RuntimeError, match=r"the parts of Sequential have changed: 0\.weight"):
        load_attributes(written(), policy, policy)


def test_marks_of_weights_reach_a_copy() -> None:
    policy = Normalising()
    policy.net.bias.scale = 3.0  # type: ignore[attr-defined]
    copied, written = copied_module(policy), attributes(policy)
    policy.net.weight.scale = 2.0  # type: ignore[attr-defined]
    load_attributes(written(), copied, copied)
    assert (copied.net.weight.scale, copied.net.bias.scale) == (2.0, 3.0)


class Learning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 2)
        self.read = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.other = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.net(observation) * self.read.param_groups[0]["lr"]


def test_a_learning_rate_reaches_a_copy_where_the_code_names_its_optimizer() -> None:
    policy = Learning()
    copied, written = copied_module(policy), attributes(policy)
    policy.other.param_groups[0]["lr"] = policy.read.param_groups[0]["lr"] = 0.2
    load_attributes(written(), copied, copied)
    rates = [held.param_groups[0]["lr"] for held in (copied.read, copied.other)]
    assert rates == [0.2, 0.1], "no code reads the other"
    assert copied.read.param_groups[0]["params"][0] is copied.net.weight


def test_whether_a_weight_is_trained_reaches_a_copy_where_the_code_names_it() -> None:
    class Trained(Normalising):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return self.net(observation) * self.net.weight.requires_grad

    policy = Trained()
    copied, written = copied_module(policy), attributes(policy)
    policy.net.weight.requires_grad_(False)
    load_attributes(written(), copied, copied)
    assert not copied.net.weight.requires_grad


def test_a_hook_of_all_modules_is_an_error_in_other_processes() -> None:
    policy = Normalising()
    written = attributes(policy, elsewhere=True)
    handle = nn.modules.module.register_module_forward_hook(lambda *given: None)
    try:
        with pytest.raises(RuntimeError, match="torch's _global_forward_hooks, which the policy"):
            load_attributes(written(), policy, policy)
    finally:
        handle.remove()


def test_the_mode_of_copies_that_evaluate_is_their_own() -> None:
    policy = Normalising()
    copied, written = copied_module(policy).eval(), attributes(policy, evaluates=True)
    policy.eval()
    policy.train()
    load_attributes(written(), copied, copied)
    assert not copied.training


class Gained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 2)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.net(observation) * GAIN


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_global_that_changes_is_an_error_in_other_processes_alone(
    elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Gained()
    copied, written = copied_module(policy), attributes(policy, elsewhere=elsewhere)
    load_attributes(written(), copied, copied)
    monkeypatch.setitem(globals(), "GAIN", 2.0)
    if elsewhere:
        with pytest.raises(RuntimeError, match=r"test_called_copies\.GAIN, which the policy reads"):
            load_attributes(written(), copied, copied)
        monkeypatch.setitem(globals(), "GAIN", 1.0)
        load_attributes(written(), copied, copied)
    else:
        load_attributes(written(), copied, copied)


# Below collectors and evaluators


def renewed(policy: Any, change: Callable[[], Any], **given: Any) -> tuple[Any, Any, Any]:
    """A first batch in worker processes, and one with the state after ``change``."""
    with MultiSyncCollector(
        [World],
        policy,
        frames_per_batch=8,
        total_frames=-1,
        policy_backend="torch",
        placement="processes",
        **given,
    ) as collector:
        first = collector.next()
        with torch.no_grad():
            change()
        collector.update_policy_weights_()
        return first, collector.next(), collector


def check(batch: Any, expected: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with torch.no_grad():
        torch.testing.assert_close(batch["action"], expected(batch["observation"]))


def test_functions_in_a_module_act_with_the_weights_of_their_copy() -> None:
    policy = Module()
    _, batch, _ = renewed(policy, lambda: (policy.net.bias.add_(1), policy.gain.mul_(2)))
    check(batch, policy)


def test_a_method_of_a_module_takes_weights_in_worker_processes() -> None:
    policy = Module()
    _, batch, _ = renewed(policy.act, lambda: (policy.net.bias.add_(1), policy.gain.mul_(2)))
    check(batch, policy)


def test_a_method_of_an_object_takes_weights_and_attributes_in_worker_processes() -> None:
    agent = Callable_()

    def change() -> None:
        agent.actor.bias.add_(1)
        agent.bias = 2.0

    _, batch, _ = renewed(agent.act, change)
    check(batch, agent.act)


def test_a_function_that_workers_import_begins_with_the_weights_that_it_has_here() -> None:
    net = called_functions.NET
    with torch.no_grad():
        net.bias.fill_(3)
    first, batch, _ = renewed(called_functions.act, lambda: net.bias.fill_(-3))
    with torch.no_grad():
        torch.testing.assert_close(batch["action"], net(batch["observation"]))
        net.bias.fill_(3)
        torch.testing.assert_close(first["action"], net(first["observation"]))


def test_an_evaluator_in_a_process_follows_what_a_method_reads() -> None:
    agent, seen = Callable_(), []
    with Evaluator(
        World, agent.act, num_trajectories=1, backend="process", metrics_fn=seen_by(seen)
    ) as evaluator:
        evaluator.evaluate()
        agent.bias = 5.0
        with torch.no_grad():
            agent.actor.weight.mul_(2)
        evaluator.evaluate()
    check(seen[-1], agent.act)


def scaled(observation: torch.Tensor) -> torch.Tensor:
    return observation * GAIN


def test_an_evaluator_in_a_process_refuses_what_its_copy_cannot_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Evaluator(World, scaled, num_trajectories=1, backend="process") as evaluator:
        assert [evaluator.evaluate()["eval/policy_version"] for _ in range(2)] == [0, 0]
        monkeypatch.setitem(globals(), "GAIN", 2.0)
        with pytest.raises(RuntimeError, match=r"GAIN, which the policy reads, has changed"):
            evaluator.evaluate()


def test_workers_go_on_where_an_update_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with MultiSyncCollector(
        [World],
        scaled,
        frames_per_batch=8,
        total_frames=-1,
        policy_backend="torch",
        placement="processes",
    ) as collector:
        monkeypatch.setitem(globals(), "GAIN", 2.0)
        with pytest.raises(RuntimeError, match="GAIN, which the policy reads, has changed"):
            collector.update_policy_weights_()
        monkeypatch.setitem(globals(), "GAIN", 1.0)
        collector.update_policy_weights_()
        check(collector.next(), scaled)


def test_an_evaluator_in_a_thread_calls_a_method_itself() -> None:
    agent, seen = Agent(), []
    with Evaluator(
        World, agent.act, num_trajectories=1, backend="thread", metrics_fn=seen_by(seen)
    ) as evaluator:
        first = evaluator.evaluate()
        with torch.no_grad():
            agent.actor.weight.mul_(2)
        second = evaluator.evaluate(agent.actor)
    check(seen[-1], agent.act)
    assert second["eval/policy_version"] > first["eval/policy_version"]


def seen_by(seen: list[Any]) -> Callable[[Any], dict[str, float]]:
    def metrics(batch: Any) -> dict[str, float]:
        seen.append(batch.clone())
        return {}

    return metrics


# Updates


@pytest.mark.parametrize("policy", [None, lambda observation: observation])
@pytest.mark.parametrize("placement", ["inline", "threads"])
def test_an_update_does_nothing_where_nobody_has_weights(policy: Any, placement: str) -> None:
    with Collector(
        World, policy, frames_per_batch=4, total_frames=-1, placement=placement
    ) as collector:
        collector.update_policy_weights_()
        assert collector.next().shape == (4,) and collector.policy_version == 0


@pytest.mark.parametrize("placement", ["inline", "threads"])
def test_weights_given_for_a_function_of_this_process_are_its_modules(placement: str) -> None:
    net = nn.Linear(2, 2)
    other = nn.Linear(2, 2)
    with Collector(
        World,
        lambda observation: net(observation),
        frames_per_batch=4,
        total_frames=-1,
        placement=placement,
    ) as collector:
        collector.update_policy_weights_(other)
        check(collector.next(), other)
        assert torch.equal(net.weight, other.weight)


def test_functions_of_a_factory_take_weights() -> None:
    net = nn.Linear(2, 2)
    with Collector(
        World,
        policy_factory=lambda: Agent().act,
        frames_per_batch=4,
        total_frames=-1,
        placement="threads",
    ) as collector:
        with pytest.raises(RuntimeError, match="no weights were given"):
            collector.update_policy_weights_()
        collector.update_policy_weights_(net)
        collector.next()
        check(collector.next(), net)
