"""Versions of the weights of a module that the engine calls itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from stale.worlds import World
from windrow.collectors import AsyncBatchedCollector, Collector, MultiAsyncCollector
from windrow.data import LazyTensorStorage, ReplayBuffer
from windrow.policies.live import Live

PLACEMENTS = ["inline", "threads"]


def move(net: nn.Module) -> None:
    """What an optimizer's step does."""
    with torch.no_grad():
        for weights in net.parameters():
            weights.add_(1)


def built(policy: Any, placement: str = "inline", on_step: Any = None, **given: Any) -> Collector:
    given = {"frames_per_batch": 5, "total_frames": -1, **given}
    return Collector(
        lambda: World(on_step),
        policy,
        policy_backend="torch",
        track_policy_version=True,
        placement=placement,
        **given,
    )


def versions(collector: Collector) -> set[int]:
    batch = collector.next()
    both = batch["policy_version"], batch["next", "policy_version"]
    assert torch.equal(*both)
    return set(both[0].flatten().tolist())


def live(net: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function of this process, which no worker in a thread copies."""
    return lambda observation: net(observation)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_weights_that_change_between_batches_get_a_new_version(placement: str) -> None:
    net = nn.Linear(2, 2)
    with built(live(net), placement) as collector:
        assert [versions(collector), versions(collector)] == [{0}, {0}]
        move(net)
        assert [versions(collector), versions(collector)] == [{1}, {1}]
        assert collector.policy_version == 1


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_batch_in_which_weights_change_has_no_version(placement: str) -> None:
    net, stepped = nn.Linear(2, 2), []

    def on_step() -> None:
        stepped.append(0)
        if len(stepped) == 8:
            move(net)

    with built(live(net), placement, on_step) as collector:
        assert [versions(collector) for _ in range(3)] == [{0}, {-1}, {1}]
        assert collector.stats()["policy_lag_max"] == 0


def test_a_hook_before_a_batch_begins_a_version() -> None:
    net = nn.Linear(2, 2)
    with built(net, pre_collect_hook=lambda: move(net)) as collector:
        assert [versions(collector), versions(collector)] == [{1}, {2}]


def test_a_tensor_that_is_replaced_begins_a_version() -> None:
    net = nn.Linear(2, 2)
    with built(net) as collector:
        assert versions(collector) == {0}
        net.bias = nn.Parameter(torch.ones(2))
        assert versions(collector) == {1}


def test_an_update_of_a_live_module_begins_one_version() -> None:
    net = nn.Linear(2, 2)
    with built(net) as collector:
        assert versions(collector) == {0}
        move(net)
        collector.update_policy_weights_()
        assert versions(collector) == {1}


class Counting(nn.Module):
    """Writes buffers of its own as it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.norm = nn.Linear(2, 2), nn.BatchNorm1d(2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return self.norm(self.net(observation).reshape(-1, 2).repeat(2, 1))[:1].reshape(2)


def test_what_a_call_writes_itself_is_no_change_of_weights() -> None:
    policy = Counting()
    with built(policy) as collector:
        assert [versions(collector), versions(collector)] == [{0}, {0}]
        with torch.no_grad():
            policy.net.bias.add_(1)
        assert versions(collector) == {1}


def test_frames_of_whole_trajectories_have_the_versions_of_their_batches() -> None:
    net, stepped = nn.Linear(2, 2), []

    def on_step() -> None:
        stepped.append(0)
        if len(stepped) == 8:
            move(net)

    # Episodes have five steps: the second one has those in which the weights change.
    with built(live(net), "inline", on_step, trajs_per_batch=1) as collector:
        seen = [versions(collector) for _ in range(4)]
    assert seen[0] <= {0, -1} and -1 in seen[1] and seen[3] == {1}


def test_frames_in_a_replay_buffer_have_these_versions() -> None:
    net, stepped = nn.Linear(2, 2), []

    def on_step() -> None:
        stepped.append(0)
        if len(stepped) == 8:
            move(net)

    buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=5)
    with built(live(net), "inline", on_step, replay_buffer=buffer) as collector:
        for _ in range(3):
            collector.next()
    assert buffer[:]["policy_version"].flatten().tolist() == [0] * 5 + [-1] * 5 + [1] * 5


def test_a_served_function_and_workers_in_threads_have_live_versions() -> None:
    for kind in (AsyncBatchedCollector, MultiAsyncCollector):
        net = nn.Linear(2, 2)
        with kind(
            [World] * 2,
            live(net),
            frames_per_batch=6,
            total_frames=-1,
            policy_backend="torch",
            track_policy_version=True,
            **({"placement": "threads"} if kind is MultiAsyncCollector else {}),
        ) as collector:
            assert versions(collector) == {0}
            move(net)
            # Those that were under way may have been computed with either weights.
            later = [versions(collector) for _ in range(12)]
            assert all(seen <= {-1, 1} for seen in later) and later[-1] == {1}


def test_copies_have_the_versions_that_are_published() -> None:
    net = nn.Linear(2, 2)
    with built(net, "threads") as collector:
        assert versions(collector) == {0}
        move(net)
        assert versions(collector) == {0}
        collector.update_policy_weights_()
        assert versions(collector) == {1}


def test_many_mixed_versions_are_not_remembered_one_by_one() -> None:
    from tensordict import TensorDict

    followed = Live(nn.Linear(2, 2), ())
    for version in range(0, 10_000, 2):
        followed.mix(version)
    assert len(followed._mixed) <= 1024
    rows = torch.tensor([0, 9001, 9998, 9999])
    followed.mark(batch := TensorDict({"policy_version": rows}, [4]))
    assert batch["policy_version"].tolist()[0] == -1
    assert batch["policy_version"].tolist()[2:] == [-1, 9999]
