"""Weight updaters: each of them, with each collector, in each form."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from cartpole import cartpole
from windrow.collectors import (
    AsyncBatchedCollector,
    AsyncCollector,
    Collector,
    MultiAsyncCollector,
    MultiProcessedWeightUpdater,
    MultiSyncCollector,
    RayWeightUpdater,
    RemoteModuleWeightUpdater,
    VanillaWeightUpdater,
    WeightUpdaterBase,
)

PROCESSES = pytest.param(MultiSyncCollector, {"placement": "processes"}, id="processes")
KINDS = [
    pytest.param(Collector, {}, id="direct"),
    pytest.param(AsyncCollector, {"placement": "threads"}, id="background"),
    pytest.param(MultiSyncCollector, {"placement": "threads"}, id="sync"),
    pytest.param(MultiAsyncCollector, {"placement": "threads"}, id="async"),
    pytest.param(AsyncBatchedCollector, {}, id="served"),
    *([PROCESSES] if sys.platform == "linux" else []),
]


def always(choice: int) -> nn.Linear:
    """A policy that always takes this action."""
    policy = nn.Linear(4, 2)
    with torch.no_grad():
        policy.weight.zero_()
        policy.bias.copy_(torch.eye(2)[choice])
    return policy


@pytest.fixture
def build() -> Iterator[Callable[..., Any]]:
    """Builds a collector that begins with the action 0, and ends it after the test."""
    built: list[Any] = []

    def make(kind: Any, updater: Any = None, policy: Any = None, **options: Any) -> Any:
        envs: Any = cartpole if kind in (Collector, AsyncCollector) else [cartpole] * 2
        options = {
            "frames_per_batch": 20,
            "track_policy_version": True,
            "weight_updater": updater,
            **options,
        }
        built.append(kind(envs, always(0) if policy is None else policy, **options))
        return built[-1]

    yield make
    for collector in built:
        collector.shutdown()


def settled(collector: Any) -> Any:
    """A batch of the newest weights alone: where workers run ahead, the first ones were begun
    before.
    """
    for _ in range(20):
        batch = next(collector)
        if (batch["policy_version"] == collector.policy_version).all():
            return batch
    raise AssertionError(f"no batch of version {collector.policy_version}")


def acts(collector: Any) -> int:
    """The action that all workers take."""
    (action,) = settled(collector)["action"].unique().tolist()
    return int(action)


class Doubled(WeightUpdaterBase):
    """A user's own: weights from somewhere, changed on the way, without the `__init__` of its
    base.
    """

    def __init__(self, policy: nn.Module) -> None:
        self.policy = policy

    def _get_server_weights(self) -> Any:
        return TensorDict.from_module(self.policy).data

    def _maybe_map_weights(self, policy_or_weights: Any) -> Any:
        return (
            policy_or_weights * 2
            if isinstance(policy_or_weights, TensorDict)
            else policy_or_weights
        )


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_each_updater_reaches_each_collector(build, kind, options) -> None:
    other = always(1)
    collector = build(kind, VanillaWeightUpdater, **options)
    for number, (updater, given) in enumerate(
        [
            (collector.weight_updater, other),
            (MultiProcessedWeightUpdater, other.state_dict()),
            (RemoteModuleWeightUpdater(), TensorDict.from_module(other)),
            (RayWeightUpdater(), other),
            (lambda: Doubled(other), None),
            (VanillaWeightUpdater(weight_getter=lambda: other), None),
            (MultiProcessedWeightUpdater(get_server_weights=other.state_dict), None),
            (RayWeightUpdater(policy_weights=TensorDict.from_module(other)), None),
        ]
    ):
        collector.weight_updater = updater
        updater = collector.weight_updater
        assert updater.collector is collector and updater.collectors == [collector]
        collector.update_policy_weights_(always(0))
        assert acts(collector) == 0
        collector.update_policy_weights_(given)
        assert acts(collector) == 1
        assert collector.policy_version == 2 * number + 2


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_an_updater_takes_weights_in_every_form(build, kind, options) -> None:
    forms: list[Callable[[Any, nn.Module], None]] = [
        lambda source, new: source.update_policy_weights_(new),
        lambda source, new: source.update_policy_weights_(new.state_dict()),
        lambda source, new: source.update_policy_weights_(TensorDict.from_module(new)),
        lambda source, new: source.update_policy_weights_(policy=new),
        lambda source, new: source.update_policy_weights_(weights=TensorDict.from_module(new).data),
        lambda source, new: source.weight_updater.push_weights(new),
        lambda source, new: source.weight_updater(new),
        lambda source, new: source.weight_updater(policy_or_weights=new),
        lambda source, new: source.receive_weights(new),
    ]
    collector = build(kind, VanillaWeightUpdater(), **options)
    for number, form in enumerate(forms):
        form(collector, always((number + 1) % 2))
        assert acts(collector) == (number + 1) % 2, number
        assert collector.policy_version == number + 1
    for wrong in ({"model_id": "policy"}, {"weights_dict": {"policy": always(0)}}):
        with pytest.raises(ValueError, match="a weight_updater knows one model"):
            collector.update_policy_weights_(**wrong)
    with pytest.raises(ValueError, match="expected weights from one source, got 2"):
        collector.update_policy_weights_(always(0), weights=always(0))
    with pytest.raises(ValueError, match="policy|shape"):
        collector.update_policy_weights_(nn.Linear(3, 2))
    assert collector.policy_version == len(forms), "what was refused is no version"


@pytest.mark.parametrize(
    "updater",
    [
        VanillaWeightUpdater,
        MultiProcessedWeightUpdater,
        RayWeightUpdater,
        RemoteModuleWeightUpdater,
    ],
)
def test_an_updater_pushes_to_chosen_workers(build, updater) -> None:
    collector = build(MultiSyncCollector, updater(), placement="threads")
    actions = []
    for workers, choice in (([1], 1), (0, 1), ([0, 1], 0), (1, 1)):
        collector.update_policy_weights_(always(choice), worker_ids=workers)
        actions.append(next(collector)["action"].reshape(2, 10).float().mean(-1).tolist())
    assert actions == [[0, 1], [1, 1], [0, 0], [0, 1]]
    collector.update_policy_weights_({0: always(1), 1: always(0)})
    assert next(collector)["action"].tolist() == [1] * 10 + [0] * 10
    with pytest.raises(ValueError, match="there is no worker 2: the collector has 2"):
        collector.update_policy_weights_(always(0), worker_ids=2)


def test_copies_of_the_weights_follow(build) -> None:
    policy, shared, on_cpu = always(0), always(0), always(0)
    updater: WeightUpdaterBase = VanillaWeightUpdater(policy_weights=TensorDict.from_module(shared))
    collector = build(MultiSyncCollector, updater, policy, placement="threads")
    collector.update_policy_weights_(always(1))
    assert acts(collector) == 1 and torch.equal(shared.bias, always(1).bias)
    collector.update_policy_weights_(always(0), worker_ids=[1])
    assert torch.equal(shared.bias, always(1).bias), "these weights are one worker's"

    device = torch.device("cpu")
    collector.weight_updater = MultiProcessedWeightUpdater(
        policy_weights={device: TensorDict.from_module(on_cpu)}
    )
    collector.update_policy_weights_(always(1))
    assert acts(collector) == 1 and torch.equal(on_cpu.bias, always(1).bias)
    collector.update_policy_weights_()
    assert acts(collector) == 0 and torch.equal(on_cpu.bias, policy.bias)
    version = collector.policy_version
    collector.update_policy_weights_(always(1), worker_ids=device)
    assert torch.equal(on_cpu.bias, always(1).bias) and collector.policy_version == version, (
        "it is no worker"
    )
    with pytest.raises(ValueError, match=r"there is no device meta: policy_weights has \['cpu'\]"):
        collector.update_policy_weights_(always(1), worker_ids=[torch.device("meta")])
    with pytest.raises(ValueError, match="weights of another policy"):
        collector.weight_updater.push_weights(nn.Linear(3, 2), device)
    assert torch.equal(
        VanillaWeightUpdater.from_policy(policy)._get_server_weights()["bias"], policy.bias
    )
    assert (
        MultiProcessedWeightUpdater.from_policy(policy)
        is None
        is WeightUpdaterBase.from_policy(policy)
    )


def test_an_updater_without_weights_of_its_own_says_so(build) -> None:
    collector = build(MultiSyncCollector, RemoteModuleWeightUpdater, placement="threads")
    with pytest.raises(RuntimeError, match="needs the weights with each call, got none"):
        collector.update_policy_weights_()
    for updater in (VanillaWeightUpdater(), MultiProcessedWeightUpdater(), RayWeightUpdater()):
        updater.push_weights(always(0))
        assert updater.collector is None and updater.collectors == []
    made: Any = {"policy_factory": lambda: always(0), "weight_updater": VanillaWeightUpdater()}
    with Collector(cartpole, frames_per_batch=20, **made) as without:
        with pytest.raises(
            RuntimeError, match="no weights were given, and the collector has no module"
        ):
            without.update_policy_weights_()


def test_hooks_are_called_in_their_order_after_each_push(build) -> None:
    updater, told = VanillaWeightUpdater(), []
    collector = build(Collector, updater)
    updater.init("anything", of="it")
    updater.register_post_hook(lambda: told.append(("first", collector.policy_version)))
    updater.register_post_hook(lambda: told.append(("second", collector.policy_version)))
    collector.update_policy_weights_(always(1))
    updater(always(1))
    assert (
        told == [("first", 1), ("second", 1), ("first", 2), ("second", 2)]
        and len(updater.post_hooks) == 2
    )
    with pytest.raises(ValueError, match="weights of another policy"):
        collector.update_policy_weights_(nn.Linear(3, 2))
    assert len(told) == 4, "nothing was pushed"


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_a_version_can_be_counted_without_new_weights(build, kind, options) -> None:
    updater = VanillaWeightUpdater()
    collector = build(kind, updater, **options)
    collector.update_policy_weights_(always(1))
    updater.increment_version()
    assert collector.policy_version == 2
    assert acts(collector) == 1


def test_one_updater_serves_several_collectors(build) -> None:
    updater = VanillaWeightUpdater()
    collectors = [
        build(kind, updater, placement="threads") for kind in (MultiSyncCollector, AsyncCollector)
    ]
    updater.push_weights(always(1))
    assert [acts(collector) for collector in collectors] == [1, 1]
    assert set(updater.collectors) == set(collectors)
    with pytest.raises(ValueError, match="the updater serves 2 collectors: expected one"):
        updater.collector


def test_a_users_updater_may_publish_by_itself(build) -> None:
    seen: list[Any] = []

    class Mine(WeightUpdaterBase):
        def all_worker_ids(self) -> list[int]:
            return [0, 1, 2]

        def _skip_update(self, worker_id: int) -> bool:
            return worker_id == 1

        def _sync_weights_with_worker(self, *, worker_id: Any = None, server_weights: Any) -> None:
            seen.append((worker_id, server_weights))

    collector = build(MultiSyncCollector, Mine, placement="threads")
    collector.update_policy_weights_()
    collector.update_policy_weights_("anything", worker_ids=[1, 2])
    assert seen == [(0, None), (2, None), (2, "anything")] and collector.policy_version == 0


class SharedMemWeightSyncScheme:
    """Stands for TorchRL's, whose name is all that matters."""


class NoWeightSyncScheme:
    """As above."""


def test_schemes_of_weights_need_no_effect_where_the_store_has_it(build) -> None:
    scheme = SharedMemWeightSyncScheme()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quiet = {
            "policy": scheme,
            "postproc.adv_module": scheme,
            "replay_buffer.transform[0].module": scheme,
        }
        collector = build(MultiSyncCollector, weight_sync_schemes=quiet, placement="threads")
    collector.update_policy_weights_(always(1))
    assert acts(collector) == 1
    for path, other in (("env.transform[0]", scheme), ("policy", NoWeightSyncScheme())):
        with pytest.warns(
            UserWarning,
            match="weight_sync_schemes.* has no effect: each update_policy_weights_ publishes",
        ) as told:
            build(Collector, weight_sync_schemes={path: other})
        assert len(told) == 1 and told[0].filename == __file__
