"""Policies, batches and samples on a GPU, where this machine has one."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    CudaGraphModule,
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    TensorDictModule,
    TensorDictSequential,
)
from torch import nn
from torch.distributions import Categorical, Normal

from cartpole import KINDS, cartpole
from windrow.collectors import (
    AsyncBatchedCollector,
    AsyncCollector,
    Collector,
    Evaluator,
    MultiAsyncCollector,
    MultiSyncCollector,
)
from windrow.data import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer
from windrow.policies.cuda_graph import CudaGraph

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

FRAMES = 64
GRAPH = [pytest.param({}, id="called"), pytest.param({"cudagraph_policy": True}, id="recorded")]


class Pole(nn.Module):
    """Pushes to where the pole falls, with a weight that tells one version from another."""

    def __init__(self, bias: float = 0.0) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(bias))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return (observation[..., 2] + observation[..., 3] + self.bias > 0).long()


class Greatest(nn.Module):
    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.argmax(-1)


class Carries(nn.Module):
    """Counts its steps."""

    def forward(self, observation: torch.Tensor, count: torch.Tensor | None) -> Any:
        count = torch.zeros_like(observation[..., :1]) if count is None else count
        return (observation[..., 2] > 0).long(), count + 1


def by_name(module: nn.Module) -> TensorDictModule:
    return TensorDictModule(module, in_keys=["observation"], out_keys=["action"])


def drawn() -> TensorDictSequential:
    """A policy that draws its actions, and writes how probable they were."""
    torch.manual_seed(0)
    return TensorDictSequential(
        TensorDictModule(
            nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2)),
            ["observation"],
            ["logits"],
        ),
        ProbabilisticTensorDictModule(
            ["logits"], ["action"], distribution_class=Categorical, return_log_prob=True
        ),
    )


def same(one: TensorDict, other: TensorDict) -> None:
    for key in ("observation", "action", ("next", "reward"), ("next", "done")):
        assert torch.equal(one[key].cpu(), other[key].cpu()), key


@pytest.mark.parametrize("graph", GRAPH)
@pytest.mark.parametrize(
    "shape", [Pole, lambda *bias: by_name(Pole(*bias))], ids=["tensors", "names"]
)
@pytest.mark.parametrize("num_envs", [None, 3])
def test_a_policy_on_the_gpu_acts_as_on_the_cpu(shape, num_envs, graph) -> None:
    many = {} if num_envs is None else {"num_envs": num_envs}
    told = {"frames_per_batch": FRAMES * 3, "seed": 1, **many}
    here = Collector(cartpole, shape(), **told).next()
    with Collector(cartpole, shape(), policy_device="cuda", **told, **graph) as collector:
        assert collector.policy_backend == "torch"
        batch = collector.next()
        assert batch.device is None and batch["observation"].is_cpu
        same(batch, here)
    with Collector(cartpole, shape().to("cuda"), device="cuda", **told, **graph) as collector:
        batch = collector.next()
        assert batch.device.type == "cuda" and all(
            value.is_cuda for value in batch.values(True, True)
        )
        same(batch, here)


@pytest.mark.parametrize("graph", GRAPH)
@pytest.mark.parametrize(("kind", "env"), KINDS[1:], ids=lambda kind: getattr(kind, "__name__", ""))
@pytest.mark.parametrize("placement", ["threads", "processes"])
@pytest.mark.parametrize("learner", ["cpu", "cuda"])
def test_workers_act_with_policies_on_the_gpu(kind, env, placement, learner, graph) -> None:
    where: dict[str, Any] = {"placement": placement}
    if kind is AsyncBatchedCollector:
        env, where = (
            [cartpole] * 2,
            {"backend": "threading" if placement == "threads" else "multiprocessing"},
        )
    policy = Pole().to(learner)
    told = {
        "frames_per_batch": FRAMES,
        "total_frames": FRAMES * 8,
        "policy_device": "cuda",
        "seed": 0,
        **where,
    }
    with kind(env, by_name(policy), **told, **graph) as collector:
        assert 0 < collector.next()["action"].float().mean() < 1
        with torch.no_grad():
            policy.bias.fill_(1e6)
        collector.update_policy_weights_()
        *_, last = collector
        taken = last["action"] if last["action"].ndim == last.ndim else last["action"][..., 1]
        assert bool(taken.bool().all())


@pytest.mark.parametrize("graph", GRAPH)
def test_weights_of_a_learner_on_the_gpu_reach_the_collector(graph) -> None:
    learner = Pole().to("cuda")
    with Collector(cartpole, learner, device="cuda", frames_per_batch=FRAMES, **graph) as collector:
        assert not collector.next()["action"].all()
        with torch.no_grad():
            learner.bias.fill_(1e6)
        assert bool(collector.next()["action"].all())
        collector.update_policy_weights_(TensorDict({"bias": torch.tensor(-1e6, device="cuda")}))
        assert not collector.next()["action"].any()


@pytest.mark.parametrize("layers", [nn.Identity(), nn.Softmax(0)], ids=["native", "torch"])
@pytest.mark.parametrize(
    "where",
    [{}, {"policy_device": "cpu"}, {"storing_device": "cuda"}],
    ids=["unnamed", "cpu", "stored"],
)
@pytest.mark.parametrize("kind", [Collector, MultiSyncCollector])
@pytest.mark.parametrize("placement", ["threads", "processes"])
def test_a_module_on_the_gpu_acts_where_it_is_or_on_the_cpu(kind, where, layers, placement) -> None:
    learner = nn.Sequential(nn.Linear(4, 2), copy.deepcopy(layers), Greatest()).to("cuda")
    where = {**where} if kind is Collector else {**where, "num_workers": 2, "placement": placement}
    with kind("CartPole-v1", learner, frames_per_batch=FRAMES, seed=0, **where) as collector:
        on_cpu = where.get("policy_device") == "cpu"
        assert collector.policy_backend == (
            "native" if on_cpu and isinstance(layers, nn.Identity) else "torch"
        )
        for pushed in (0, 1):
            with torch.no_grad():
                learner[0].bias.copy_(torch.tensor([1e6, 0.0] if pushed == 0 else [0.0, 1e6]))
            if kind is Collector and on_cpu and pushed:
                assert not collector.next()["action"].any()
            collector.update_policy_weights_()
            batch = collector.next()
            assert bool((batch["action"] == pushed).all()) and batch["action"].is_cuda == (
                "storing_device" in where
            )
        assert learner[0].weight.is_cuda


@pytest.mark.parametrize("where", [{}, {"device": "cpu"}, {"policy_backend": "native"}])
@pytest.mark.parametrize("backend", ["thread", "process"])
def test_an_evaluator_takes_a_module_on_the_gpu(where, backend) -> None:
    with Evaluator(
        "CartPole-v1",
        Pole().to("cuda"),
        num_trajectories=3,
        max_steps=9,
        seed=0,
        backend=backend,
        **where,
    ) as evaluator:
        assert evaluator.evaluate()["eval/episode_length"] == 9


def test_nothing_is_made_on_the_default_device_by_chance() -> None:
    torch.set_default_device("cuda")
    try:
        learner = nn.Sequential(nn.Linear(4, 2), Greatest())
        buffer = ReplayBuffer(storage=LazyTensorStorage(FRAMES), batch_size=8)
        with Collector(
            "CartPole-v1",
            learner,
            frames_per_batch=FRAMES,
            total_frames=FRAMES,
            replay_buffer=buffer,
        ) as collector:
            list(collector)
        assert buffer.sample()["observation"].is_cpu and buffer[:4]["observation"].is_cpu
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("graph", GRAPH)
def test_tensors_parts_and_hooks_of_a_learner_may_be_replaced(graph) -> None:
    learner = nn.Sequential(nn.Linear(4, 2), Greatest()).to("cuda")
    with Collector(cartpole, learner, device="cuda", frames_per_batch=FRAMES, **graph) as collector:
        for change in range(5):
            layer: Any = learner[0]
            if change == 1:
                layer.weight = nn.Parameter(-layer.weight.detach())
            elif change == 2:
                layer.weight.data = -layer.weight.data
            elif change == 3:
                learner[0] = nn.Linear(4, 2).to("cuda")
            elif change == 4:
                learner[0].register_forward_hook(lambda module, given, values: -values)
            batch = collector.next()
            assert (batch["action"] == learner(batch["observation"])).float().mean() > 0.98, change


@pytest.mark.parametrize("graph", GRAPH)
@pytest.mark.parametrize("learner", ["cpu", "cuda"])
def test_what_a_module_does_otherwise_reaches_the_collector(learner, graph) -> None:
    class Turned(Pole):
        turned = False

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return super().forward(-observation if self.turned else observation)

    policy = Turned().to(learner)
    with Collector(
        cartpole, policy, policy_device="cuda", frames_per_batch=FRAMES, **graph
    ) as collector:
        first = collector.next()
        assert torch.equal(first["action"], policy(first["observation"].to(learner)).cpu())
        policy.turned = True
        collector.update_policy_weights_()
        after = collector.next()
        assert torch.equal(after["action"], policy(after["observation"].to(learner)).cpu())


@pytest.mark.parametrize("graph", GRAPH)
def test_compiled_policies_act_and_take_weights_up(graph) -> None:
    network = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
    policy = by_name(nn.Sequential(network, Greatest()))
    options: Any = {"device": "cuda", "frames_per_batch": FRAMES, "num_envs": 4, **graph}
    with Collector(cartpole, policy, compile_policy=True, **options) as collector:
        for _ in range(2):
            batch = collector.next()
            expected = copy.deepcopy(policy).to("cuda")(batch.select("observation"))["action"]
            assert (batch["action"] == expected).float().mean() > 0.98
            with torch.no_grad():
                network[2].weight.neg_()
                network[2].bias.neg_()
            collector.update_policy_weights_()


@pytest.mark.parametrize("graph", GRAPH)
def test_draws_follow_torchs_seed_and_differ_from_step_to_step(graph) -> None:
    def batches() -> list[TensorDict]:
        torch.manual_seed(3)
        with Collector(
            cartpole, drawn(), device="cuda", frames_per_batch=FRAMES, num_envs=4, seed=0, **graph
        ) as collector:
            return [collector.next() for _ in range(2)]

    (first, second), again = batches(), batches()
    same(first, again[0])
    same(second, again[1])
    assert "action_log_prob" in first.keys()
    logits = drawn().to("cuda")[0](first.select("observation"))["logits"]
    expected = Categorical(logits=logits).log_prob(first["action"])
    torch.testing.assert_close(first["action_log_prob"], expected)
    assert len({tuple(row) for row in first["action"].tolist()}) == 4


@pytest.mark.parametrize("graph", GRAPH)
def test_draws_go_on_from_a_saved_state_of_torchs_generator(graph) -> None:
    with Collector(
        "CartPole-v1",
        drawn(),
        policy_device="cuda",
        frames_per_batch=FRAMES,
        num_envs=2,
        seed=0,
        **graph,
    ) as collector:
        collector.next()
        state, drawing = collector.state_dict(), torch.cuda.get_rng_state()
        expected = collector.next().clone()
        torch.manual_seed(5)
        collector.load_state_dict(state)
        torch.cuda.set_rng_state(drawing)
        same(collector.next(), expected)


@pytest.mark.parametrize("graph", GRAPH)
@pytest.mark.parametrize("kind", [Collector, AsyncBatchedCollector])
def test_a_state_is_carried_from_step_to_step(kind, graph) -> None:
    policy = TensorDictModule(Carries(), ["observation", "count"], ["action", ("next", "count")])
    env: Any = cartpole if kind is Collector else [cartpole] * 3
    many = {"num_envs": 3} if kind is Collector else {}
    told = {
        "frames_per_batch": 240,
        "total_frames": 480,
        "policy_device": "cuda",
        "max_frames_per_traj": 7,
        **many,
    }
    with kind(env, policy, **told, **graph) as collector:
        for batch in collector:
            assert torch.equal(batch["count"], batch["step_count"].float())
            assert torch.equal(batch["next", "count"], batch["count"] + 1)


def test_a_policy_that_cannot_be_recorded_is_an_error_that_says_so() -> None:
    class Looks(Pole):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return super().forward(observation) * int(observation.sum().isfinite().item())

    with pytest.raises(RuntimeError) as caught:
        Collector(
            cartpole, Looks(), device="cuda", cudagraph_policy=True, frames_per_batch=FRAMES
        ).next()
    told = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert "cudagraph_policy: the policy was recorded as a CUDA graph" in told
    assert len(set(torch.rand(100, device="cuda").tolist())) > 90
    assert (
        Collector(cartpole, drawn(), device="cuda", cudagraph_policy=True, frames_per_batch=FRAMES)
        .next()
        .numel()
        == FRAMES
    )


def test_a_graph_refuses_inputs_of_another_shape() -> None:
    graph = CudaGraph(
        lambda one: (one * 2,), [torch.ones(3, 2, device="cuda")], torch.device("cuda"), 2
    )
    (doubled,) = graph(torch.full((3, 2), 4.0, device="cuda"))
    assert bool((doubled == 8).all())
    with pytest.raises(ValueError, match=r"takes inputs of shape \(3, 2\).*got \(1, 2\)"):
        graph(torch.ones(1, 2, device="cuda"))


@pytest.mark.parametrize("options", [{"warmup": 0}, {"warmup": "2"}, {"in_keys": []}])
def test_options_of_a_graph_are_checked(options) -> None:
    with pytest.raises(ValueError, match="cudagraph_policy must be True or"):
        Collector(
            cartpole, Pole(), device="cuda", cudagraph_policy=options, frames_per_batch=FRAMES
        )


def test_batches_are_stored_where_they_were_asked_for() -> None:
    for placement in ("threads", "processes"):
        with MultiSyncCollector(
            [cartpole] * 2,
            Pole(),
            placement=placement,
            frames_per_batch=FRAMES,
            storing_device="cuda:0",
            seed=0,
        ) as collector:
            first = collector.next()
            kept = first["observation"].clone()
            assert first.device == torch.device("cuda:0")
            collector.next()
            assert torch.equal(first["observation"], kept)


def test_an_evaluator_evaluates_on_the_gpu() -> None:
    policy = Pole().to("cuda")
    with Evaluator(
        cartpole, policy, device="cuda", num_trajectories=3, max_steps=9, seed=0
    ) as evaluator:
        assert evaluator.evaluate(policy)["eval/episode_length"] == 9
    with Evaluator(cartpole, policy, num_trajectories=3, max_steps=9, seed=0) as evaluator:
        assert evaluator.evaluate(policy)["eval/episode_length"] == 9


@pytest.mark.parametrize("kind", [AsyncCollector, MultiAsyncCollector])
def test_a_buffer_is_filled_beside_a_learner_on_the_gpu(kind) -> None:
    learner = Pole().to("cuda")
    buffer = ReplayBuffer(storage=LazyTensorStorage(4096), batch_size=128, pin_memory=True)
    env: Any = "CartPole-v1" if kind is AsyncCollector else ["CartPole-v1"] * 2
    with kind(
        env,
        by_name(learner),
        policy_device="cuda",
        frames_per_batch=FRAMES,
        total_frames=-1,
        replay_buffer=buffer,
    ) as collector:
        collector.start()
        while buffer.write_count < FRAMES * 4:
            time.sleep(0.01)
        for _ in range(20):
            sample = buffer.sample()
            assert sample["observation"].is_pinned()
            assert sample.to("cuda", non_blocking=True)["observation"].is_cuda
            with torch.no_grad():
                learner.bias.add_(0.01)
            collector.update_policy_weights_()
        collector.shutdown()


@pytest.mark.parametrize("moved", ["by the learner", "ahead"])
def test_samples_drawn_ahead_are_used_on_the_stream_of_who_asks(moved) -> None:
    rows, width = 64, 1 << 16
    arguments: dict[str, Any] = {
        "storage": LazyTensorStorage(rows),
        "batch_size": 32,
        "prefetch": 3,
        "pin_memory": moved != "ahead",
    }
    if moved == "ahead":
        arguments["transform"] = lambda sample: sample.to("cuda", non_blocking=True)
    buffer = ReplayBuffer(**arguments)
    number = torch.arange(float(rows))
    buffer.extend(
        TensorDict(
            {"number": number, "wide": number[:, None].expand(rows, width).contiguous()}, [rows]
        )
    )
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(40):
            sample = buffer.sample()
            assert moved == "ahead" or sample["wide"].is_pinned()
            sample = sample.to("cuda", non_blocking=True)
            # Work that is under way when the next copies are asked for.
            mean = (sample["wide"] * 2).mean(1)
            torch.testing.assert_close(mean, sample["number"] * 2)


def test_a_graph_is_recorded_beside_samples_drawn_ahead() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(64), batch_size=32, prefetch=3, pin_memory=True)
    buffer.extend(TensorDict({"value": torch.ones(64, 1 << 14)}, [64]))
    learn = CudaGraphModule(lambda value: value.sum(1))
    for _ in range(12):
        assert bool((learn(buffer.sample().to("cuda")["value"]) == 1 << 14).all())


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_samples_are_on_the_device_of_their_storage(storage, pinned) -> None:
    buffer = ReplayBuffer(storage=storage(100, device="cuda"), batch_size=8, pin_memory=pinned)
    buffer.extend(TensorDict({"value": torch.arange(50.0, device="cuda")}, [50]))
    sample = buffer.sample()
    assert sample["value"].is_cuda and sample.device is not None and sample.device.type == "cuda"
    assert bool((sample["value"] < 50).all())


def test_continuous_actions_of_a_graph_are_those_of_the_module() -> None:
    torch.manual_seed(0)
    actor = TensorDictSequential(
        TensorDictModule(
            nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 2), NormalParamExtractor()),
            ["observation"],
            ["loc", "scale"],
        ),
        ProbabilisticTensorDictModule(["loc", "scale"], ["action"], distribution_class=Normal),
    )
    told: Any = {
        "frames_per_batch": 256,
        "num_envs": 8,
        "device": "cuda",
        "exploration_type": "MODE",
        "cudagraph_policy": True,
    }
    with Collector("Pendulum-v1", actor, **told) as collector:
        batch = collector.next()
        loc = copy.deepcopy(actor).to("cuda")[0](batch.select("observation"))["loc"]
        torch.testing.assert_close(batch["action"], loc, rtol=1e-4, atol=1e-4)
