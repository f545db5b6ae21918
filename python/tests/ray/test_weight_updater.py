"""Weights on their way to actors of Ray."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from counter import Taking
from tensordict import TensorDict
from torch import nn

from cartpole import cartpole
from waiting import until
from windrow.collectors import Collector, MultiAsyncCollector, RayWeightUpdater
from windrow.policies.weights import weights_of
from windrow.ray import _session

ray: Any = pytest.importorskip("ray")


def always(choice: int) -> nn.Module:
    """A policy that always takes this action."""
    policy = nn.Linear(4, 2)
    with torch.no_grad():
        policy.weight.zero_()
        policy.bias.copy_(torch.eye(2)[choice])
    return policy


@pytest.fixture(scope="module")
def made(cluster: Any) -> Any:
    made = [ray.remote(Taking).options(num_cpus=0).remote() for _ in range(2)]
    yield made
    for actor in made:
        ray.kill(actor)


@pytest.fixture
def actors(made: Any) -> Any:
    ray.get([actor.forget.remote() for actor in made])
    return list(made)


def taken(actors: Any) -> list[tuple[int, int | None]]:
    """How often weights came to each actor, and which action they take."""
    packed = [_session.pack(weights_of(always(choice))).tobytes() for choice in (0, 1)]
    return [
        (count, last and packed.index(last))
        for count, last in ray.get([actor.last.remote() for actor in actors])
    ]


@pytest.mark.parametrize(("inline", "puts"), [(_session.INLINE, 0), (0, 1)])
def test_weights_reach_all_actors_by_one_put_at_most(
    actors, inline: int, puts: int, monkeypatch
) -> None:
    stored: list[Any] = []
    put = ray.put
    monkeypatch.setattr(_session, "INLINE", inline)
    monkeypatch.setattr(ray, "put", lambda value: stored.append(put(value)) or stored[-1])
    updater = RayWeightUpdater(TensorDict.from_module(always(1)), actors)
    for count, given in enumerate([None, always(0), always(1).state_dict(), always(0)], start=1):
        updater(given)
        assert taken(actors) == [(count, count % 2)] * 2
    assert len(stored) == 4 * puts


def test_only_the_newest_weights_stay_in_the_store(actors, monkeypatch) -> None:
    monkeypatch.setattr(_session, "INLINE", 0)
    updater = RayWeightUpdater(remote_collectors=actors)
    updater.push_weights(always(1))
    old = updater._newest.hex()
    updater.push_weights(always(0))

    def kept() -> set[str]:
        counts = ray._private.worker.global_worker.core_worker.get_all_reference_counts()
        return {name.decode() if isinstance(name, bytes) else name for name in counts}

    assert updater._newest.hex() in kept()
    until(lambda: old not in kept())


def test_actors_go_without_as_many_pushes_as_they_may(actors) -> None:
    updater = RayWeightUpdater(remote_collectors=actors, max_interval=1)
    seen = []
    for choice in (1, 1, 0, 0):
        updater.push_weights(always(choice))
        seen.append(taken(actors)[0])
    assert seen == [(0, None), (1, 1), (1, 1), (2, 0)]
    updater.push_weights(always(1), [1])
    updater.push_weights(always(1), 1)
    assert taken(actors) == [(2, 0), (3, 1)], "each is counted by itself"


def test_actors_are_chosen_by_their_numbers(actors) -> None:
    updater = RayWeightUpdater(remote_collectors=actors)
    updater.push_weights(always(1), worker_ids=[1])
    assert taken(actors) == [(0, None), (1, 1)]
    with pytest.raises(ValueError, match="there is no worker 2: the updater has 2 actors"):
        updater.push_weights(always(1), worker_ids=[0, 2])
    with pytest.raises(RuntimeError, match="no weights were given, and no collector has a module"):
        updater.push_weights()
    assert taken(actors) == [(0, None), (1, 1)]


def test_an_actor_that_has_ended_is_named_and_others_get_the_weights(actors) -> None:
    ended = ray.remote(Taking).options(num_cpus=0).remote()
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(ended.end.remote())
    updater = RayWeightUpdater(remote_collectors=[ended, actors[1]])
    with pytest.raises(
        RuntimeError, match="actors that have ended did not take the weights, all others did: 0$"
    ):
        updater.push_weights(always(1))
    assert taken(actors) == [(0, None), (1, 1)]


def test_an_error_in_an_actor_is_raised_once_all_have_answered(actors) -> None:
    updater = RayWeightUpdater(remote_collectors=actors)
    for _ in range(9):
        updater.push_weights(always(0), 0)
    with pytest.raises(ArithmeticError, match="that was enough"):
        updater.push_weights(always(1))
    assert taken(actors) == [(9, 0), (1, 1)]


def test_a_collector_of_this_process_and_actors_get_the_same_weights(actors) -> None:
    learner = always(0)
    updater = RayWeightUpdater(remote_collectors=actors)
    envs = [cartpole] * 2
    with MultiAsyncCollector(
        envs, learner, frames_per_batch=20, placement="threads", weight_updater=updater
    ) as local:
        with torch.no_grad():
            learner.bias.copy_(always(1).bias)
        local.update_policy_weights_()
        assert taken(actors) == [(1, 1)] * 2 and local.policy_version == 1
        local.update_policy_weights_(always(0), worker_ids=0)
        assert taken(actors) == [(2, 0), (1, 1)] and local.policy_version == 1, (
            "numbers are those of actors"
        )


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_a_collector_reads_what_an_actor_is_given(cluster, backend) -> None:
    with Collector(cartpole, always(0), frames_per_batch=20, policy_backend=backend) as collector:
        # As Ray hands it over.
        weights = ray.get(ray.put(_session.pack(weights_of(always(1)))))
        assert not weights.flags.writeable
        collector.update_policy_weights_(weights)
        assert (next(collector)["action"] == 1).all()
        with pytest.raises(ValueError, match="another policy"):
            collector.update_policy_weights_(_session.pack(weights_of(nn.Linear(3, 2))))
