"""Where the weights of a policy come from, and when workers take them up."""

from __future__ import annotations

import threading

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from cartpole import cartpole, in_threads
from windrow.collectors import (
    AsyncCollector,
    Collector,
    MultiAsyncCollector,
    MultiSyncCollector,
    VanillaWeightUpdater,
)

KINDS = [Collector, AsyncCollector, MultiSyncCollector, MultiAsyncCollector]


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_a_collector_acts_with_the_policy_as_it_is(backend) -> None:
    policy = nn.Linear(4, 2)
    source = Collector(cartpole, policy, frames_per_batch=20, policy_backend=backend)
    for choice in (0, 1, 0):
        with torch.no_grad():
            policy.weight.zero_()
            policy.bias.copy_(torch.eye(2)[choice])
        assert (next(source)["action"] == choice).all()


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_workers_in_threads_act_with_what_was_published(backend) -> None:
    policy = always(0)
    with MultiSyncCollector(
        [cartpole] * 2, policy, placement="threads", frames_per_batch=20, policy_backend=backend
    ) as source:
        assert (next(source)["action"] == 0).all()
        set_choice(policy, 1)
        assert (next(source)["action"] == 0).all(), "nothing is shared with the learner's tensors"
        source.update_policy_weights_()
        assert (next(source)["action"] == 1).all()
        assert source.policy_version == 1


def always(choice: int) -> nn.Linear:
    policy = nn.Linear(4, 2)
    set_choice(policy, choice)
    return policy


def set_choice(policy: nn.Linear, choice: int) -> None:
    with torch.no_grad():
        policy.weight.zero_()
        policy.bias.copy_(torch.eye(2)[choice])


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_weights_come_in_every_form(backend) -> None:
    from tensordict import TensorDict as Dict

    forms = [
        lambda source, new: source.update_policy_weights_(new),
        lambda source, new: source.update_policy_weights_(policy=new),
        lambda source, new: source.update_policy_weights_(new.state_dict()),
        lambda source, new: source.update_policy_weights_(weights=Dict.from_module(new)),
        lambda source, new: source.update_policy_weights_(weights_dict={"policy": new}),
        lambda source, new: source.update_policy_weights_(new, model_id="policy"),
        lambda source, new: source.update_policy_weights_({0: new, 1: new.state_dict()}),
        lambda source, new: source.update_policy_weights_(new, worker_ids=[0, 1]),
    ]
    with MultiSyncCollector(
        [cartpole] * 2, always(0), placement="threads", frames_per_batch=20, policy_backend=backend
    ) as source:
        for number, form in enumerate(forms):
            choice = (number + 1) % 2
            form(source, always(choice))
            assert (next(source)["action"] == choice).all(), number
        source.update_policy_weights_({1: always(1)})
        assert next(source)["action"].tolist() == [0] * 10 + [1] * 10


def test_weights_that_make_no_sense_are_explained() -> None:
    with MultiSyncCollector(
        [cartpole] * 2, always(0), placement="threads", frames_per_batch=20
    ) as source:
        with pytest.raises(ValueError, match="one source, got 2"):
            source.update_policy_weights_(always(1), weights=always(1))
        with pytest.raises(KeyError, match="no model is called 'critic'"):
            source.update_policy_weights_(always(1), model_id="critic")
        with pytest.raises(ValueError, match="weights_dict names all weights"):
            source.update_policy_weights_(always(1), weights_dict={"policy": always(1)})
        with pytest.raises(ValueError, match="policy"):
            source.update_policy_weights_(nn.Linear(3, 2))
        with pytest.raises(ValueError, match="no worker 7"):
            source.update_policy_weights_(always(1), worker_ids=7)
        with pytest.raises(TypeError, match="state_dict"):
            source.update_policy_weights_(3)
        with pytest.warns(DeprecationWarning, match="policy_weights"):
            source.update_policy_weights_(policy_weights=always(1))
    with (
        Collector(cartpole, policy_factory=lambda: always(0), frames_per_batch=20) as source,
        pytest.raises(RuntimeError, match="no module"),
    ):
        source.update_policy_weights_()


def test_an_updater_is_gone_through() -> None:
    policy = always(0)
    for updater in (
        VanillaWeightUpdater(),
        VanillaWeightUpdater,
        VanillaWeightUpdater(weight_getter=lambda: policy),
    ):
        with MultiSyncCollector(
            [cartpole], policy, placement="threads", frames_per_batch=20, weight_updater=updater
        ) as source:
            set_choice(policy, 1)
            source.update_policy_weights_()
            assert (next(source)["action"] == 1).all()
            with pytest.raises(ValueError, match="one model"):
                source.update_policy_weights_(policy, model_id="policy")
            set_choice(policy, 0)


def test_each_worker_has_a_policy_of_its_factory() -> None:
    made: list[int] = []

    def factory(choice: int):
        def make() -> nn.Module:
            made.append(choice)
            return always(choice)

        return make

    with MultiSyncCollector(
        [cartpole] * 2,
        policy_factory=[factory(0), factory(1)],
        placement="threads",
        frames_per_batch=20,
    ) as source:
        assert next(source)["action"].tolist() == [0] * 10 + [1] * 10
    assert sorted(made) == [0, 1]
    with pytest.raises(TypeError, match="one of them"):
        Collector(
            cartpole,
            lambda observation: observation,
            policy_factory=factory(0),
            frames_per_batch=20,
        )


def test_no_two_workers_share_a_module() -> None:
    seen: dict[int, set[int]] = {}

    class Counts(nn.Module):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            seen.setdefault(threading.get_ident(), set()).add(id(self))
            return torch.zeros((), dtype=torch.int64)

    with MultiSyncCollector(
        [cartpole] * 3, Counts(), placement="threads", frames_per_batch=30, total_frames=60
    ) as source:
        seen.clear()
        for _ in source:
            pass
    assert sorted(len(modules) for modules in seen.values()) == [1, 1, 1]
    assert len(set.union(*seen.values())) == 3


def test_updates_before_each_batch() -> None:
    policy = always(0)
    with MultiSyncCollector(
        [cartpole], policy, placement="threads", frames_per_batch=20, update_at_each_batch=True
    ) as source:
        next(source)
        set_choice(policy, 1)
        assert (next(source)["action"] == 1).all()


def test_frames_tell_the_version_that_acted() -> None:
    with MultiSyncCollector(
        [cartpole], always(0), placement="threads", frames_per_batch=20, track_policy_version=True
    ) as source:
        assert (next(source)["policy_version"] == 0).all()
        source.update_policy_weights_(always(1))
        batch = next(source)
        assert (batch["policy_version"] == 1).all() and (batch["next", "policy_version"] == 1).all()


def rebind_data(layer: nn.Linear, other: nn.Linear) -> None:
    layer.weight.data = other.weight.data


def rebind_parameter(layer: nn.Linear, other: nn.Linear) -> None:
    layer.weight = nn.Parameter(other.weight.detach().clone())


def load_by_assignment(layer: nn.Linear, other: nn.Linear) -> None:
    layer.load_state_dict(other.state_dict(), assign=True)


def set_in_place(layer: nn.Linear, other: nn.Linear) -> None:
    layer.weight.data.set_(other.weight.data)


def transpose(layer: nn.Linear, other: nn.Linear) -> None:
    layer.weight.data = layer.weight.data.t()


def repeat(layer: nn.Linear, other: nn.Linear) -> None:
    layer.weight.data = layer.weight.data[:1].expand(4, 4)


def shift(layer: nn.Linear, other: nn.Linear) -> None:
    memory = torch.cat([layer.weight.data, other.weight.data])
    layer.weight.data = memory[:4]
    layer.weight.data = memory[4:]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize(
    "rebind",
    [rebind_data, rebind_parameter, load_by_assignment, set_in_place, transpose, repeat, shift],
)
def test_parameters_are_followed_wherever_they_are_kept(kind, backend, rebind) -> None:
    policy = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    with kind(
        [cartpole], policy, frames_per_batch=40, seed=0, policy_backend=backend, **in_threads(kind)
    ) as source:
        next(source)
        rebind(policy[0], nn.Linear(4, 4))
        source.update_policy_weights_()
        # Where workers run ahead, the first batches were begun before.
        batch = [next(source) for _ in range(4)][-1]
        assert torch.equal(batch["action"], policy(batch["observation"]).argmax(-1))
        assert source.policy_version == 1


@pytest.mark.parametrize("rebind", [rebind_data, rebind_parameter, set_in_place, transpose])
def test_what_a_factory_has_made_may_keep_its_parameters_elsewhere(rebind) -> None:
    made: list[nn.Module] = []

    def make() -> nn.Module:
        made.append(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
        return made[-1]

    with MultiSyncCollector(
        [cartpole], policy_factory=make, placement="threads", frames_per_batch=40, seed=0
    ) as source:
        next(source)
        for module in made:
            rebind(module[0], nn.Linear(4, 4))
        new = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        source.update_policy_weights_(new)
        batch = next(source)
        assert torch.equal(batch["action"], new(batch["observation"]).argmax(-1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("given", [False, True])
def test_weights_that_are_published_are_a_version_although_they_did_not_change(
    kind, backend, given: bool
) -> None:
    policy = always(0)
    with kind(
        [cartpole],
        policy,
        frames_per_batch=20,
        policy_backend=backend,
        track_policy_version=True,
        **in_threads(kind),
    ) as source:
        assert (next(source)["policy_version"] == 0).all()
        for version in (1, 2):
            source.update_policy_weights_(policy if given else None)
            assert source.policy_version == version
        # Where workers run ahead, the first batches were begun before.
        assert ([next(source) for _ in range(4)][-1]["policy_version"] == 2).all()
        assert source.policy_version == 2, "nobody has published any"


@pytest.mark.parametrize("kind", [Collector, MultiSyncCollector])
@pytest.mark.parametrize("change", ["layer", "activation", "module", "hook", "forward"])
def test_a_policy_that_was_read_is_read_again_where_other_than_its_weights_has_changed(
    kind, change: str
) -> None:
    policy = TensorDictModule(
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), ["observation"], ["action"]
    )
    workers = {} if kind is Collector else {"num_workers": 2, "placement": "threads"}
    collector = kind(
        cartpole, policy, frames_per_batch=20, seed=0, policy_backend="native", **workers
    )
    next(collector)
    policy.module[2].weight = nn.Parameter(torch.zeros(2, 8))
    policy.module[2].bias.data = torch.tensor([0.0, 1.0])
    collector.update_policy_weights_()
    assert bool((next(collector)["action"] == 1).all())
    match change:
        case "layer":
            policy.module[2] = nn.Linear(8, 2)
        case "activation":
            policy.module[1] = nn.ReLU()
            nn.init.normal_(policy.module[2].weight)
        case "module":
            policy.module = nn.Sequential(nn.Linear(4, 2))
        case "hook":
            policy.module.register_forward_hook(lambda module, inputs, scores: -scores)
        case "forward":
            policy.module.forward = lambda observation: observation[..., :2]
    if change == "module":
        with pytest.raises(
            RuntimeError,
            match="it has other weights than it had; build a new collector",
        ):
            collector.update_policy_weights_()
        return
    collector.update_policy_weights_()
    batch = [next(collector) for _ in range(4)][-1]
    assert torch.equal(batch["action"], policy(batch.select("observation"))["action"].argmax(-1))
