"""A policy that Rust evaluates gives way to Python: where its graph does not fit, or is the policy
no more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium
import pytest
import torch
from torch import nn

import windrow
from recurrent import cell
from windrow.collectors import (
    AsyncBatchedCollector,
    AsyncCollector,
    Collector,
    Evaluator,
    MultiAsyncCollector,
    MultiSyncCollector,
)
from windrow.data import ReplayBuffer
from windrow.envs import GymEnv
from windrow.modules import RemotePolicy, RemoteServer
from windrow.policies.lower import lowering
from windrow.policies.lower.values import NotLowerable

REASON = "the test has changed it"
THREADS: dict[str, Any] = {"num_workers": 2, "placement": "threads"}
PROCESSES: dict[str, Any] = {"num_workers": 2, "placement": "processes"}
#: Collectors whose workers act with copies.
COPIES: list[Any] = [
    pytest.param(AsyncCollector, {"placement": "threads"}, id="a thread"),
    pytest.param(MultiSyncCollector, THREADS, id="threads"),
    pytest.param(MultiSyncCollector, PROCESSES, id="processes"),
    pytest.param(MultiAsyncCollector, PROCESSES, id="asynchronous processes"),
    pytest.param(AsyncBatchedCollector, {}, id="served"),
]


def cartpole() -> GymEnv:
    """CartPole whose action is the number of a choice. Since it is made in a module with torch,
    worker processes have imported that.
    """
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


class Scaled(nn.Module):
    """Chooses 0 for a scale above 0, and 1 below it."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.scale = nn.Linear(4, 2), 1.0
        with torch.no_grad():
            self.net.weight.zero_()
            self.net.bias.copy_(torch.tensor([1.0, 0.0]))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.net(observation) * self.scale

    def turn(self) -> None:
        with torch.no_grad():
            self.net.bias.copy_(self.net.bias.flip(0))


class Unpicklable(Scaled):
    """Cannot be sent to another process."""

    def __init__(self) -> None:
        super().__init__()
        lock = threading.Lock()
        self.locked = lambda: lock


class Switches(gymnasium.Env[Any, Any]):
    """Actions are two switches, which no graph chooses."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.MultiBinary(2)
    closed = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        assert not self.closed
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}

    def close(self) -> None:
        self.closed = True


def lose(beside: Any) -> None:
    """Has the graph that ``beside`` publishes be the policy no more."""

    def graph() -> bytes:
        raise NotLowerable(REASON)

    beside._graph = graph


@contextlib.contextmanager
def told(reason: str = REASON) -> Iterator[None]:
    """Expects one warning that the policy is called, which names the reason."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    ours = [one for one in seen if one.category is windrow.PerformanceWarning]
    assert len(ours) == 1 and reason in str(ours[0].message), [str(one.message) for one in seen]


@pytest.fixture
def holds_for(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has graphs hold for these numbers of environments alone."""
    lower = lowering.lower

    def given(rows: list[list[int | None]], single: bool) -> None:
        def lowered(*arguments: Any) -> Any:
            found = lower(*arguments)
            core = {**found.core, "rows": rows, "single": single}
            return dataclasses.replace(found, core=core)

        monkeypatch.setattr(lowering, "lower", lowered)

    return given


def choices(source: Any, batches: int = 4) -> set[int]:
    """The actions of the last of some batches: where workers run ahead, earlier ones were begun
    before.
    """
    return set([next(source) for _ in range(batches)][-1]["action"].flatten().tolist())


# Numbers of environments


@pytest.mark.parametrize(
    "where",
    [{}, {"placement": "threads"}, {"placement": "processes"}],
    ids=["inline", "threads", "processes"],
)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_graph_acts_for_the_numbers_of_environments_that_it_holds_for(
    holds_for: Any, where: dict[str, Any], count: int
) -> None:
    if where.get("placement") == "processes" and count == 1:
        pytest.skip("one number that it does not hold for is enough")
    holds_for([[2, 2], [5, None]], False)
    with Collector(
        cartpole, Scaled(), num_envs=count, frames_per_batch=6 * count, **where
    ) as source:
        assert source.policy_backend == ("native" if count == 2 else "torch")
        assert ("does not hold for these environments" in repr(source)) == (count != 2)
        assert choices(source) == {0}


def test_one_environment_without_a_dimension_is_a_number_of_its_own(holds_for: Any) -> None:
    holds_for([[1, None]], False)
    backends = [
        Collector(cartpole, Scaled(), frames_per_batch=6, **several).policy_backend
        for several in ({}, {"num_envs": 1})
    ]
    assert backends == ["torch", "native"]


@pytest.mark.parametrize("placement", ["inline", "processes"])
def test_a_native_policy_says_for_how_many_environments_its_graph_holds(
    holds_for: Any, placement: str
) -> None:
    holds_for([[2, 4], [8, 8], [16, None]], True)
    with pytest.raises(
        ValueError,
        match=r"expected one alone, or 2 to 4, 8, 16 or more that step together, got 5 that step",
    ):
        Collector(
            cartpole,
            Scaled(),
            num_envs=5,
            frames_per_batch=10,
            policy_backend="native",
            placement=placement,
        )


def test_a_served_policy_whose_graph_does_not_hold_for_all_numbers_is_called(
    holds_for: Any,
) -> None:
    holds_for([[1, 64]], True)
    with AsyncBatchedCollector([cartpole] * 2, Scaled(), frames_per_batch=10) as source:
        assert source.policy_backend == "torch" and "is served" in repr(source)


def test_a_graph_that_takes_another_branch_for_these_environments_is_the_policy_no_more() -> None:
    source = Collector(cartpole, Scaled(), frames_per_batch=10)
    next(source)
    beside = source._source._beside
    assert beside is not None
    graph = beside._written[0].replace(b'"single": true', b'"single": false')
    beside._graph = lambda: graph
    with told("does not hold for one environment alone any more"):
        next(source)
    assert source.policy_backend == "torch"


def test_a_served_graph_that_holds_for_fewer_numbers_is_the_policy_no_more() -> None:
    with AsyncBatchedCollector([cartpole] * 2, Scaled(), frames_per_batch=10) as source:
        beside = source._source._beside
        assert beside is not None and source.policy_backend == "native"
        graph = beside._written[0].replace(b"[[1, null]]", b"[[1, 64]]")
        beside._graph = lambda: graph
        with told("does not hold for all numbers of rows any more"):
            source.update_policy_weights_()
        assert choices(source) == {0}


# A graph that is the policy no more


def test_the_users_own_module_acts_from_the_next_batch_on() -> None:
    policy = Scaled()
    source = Collector(cartpole, policy, frames_per_batch=10)
    assert choices(source) == {0} and source.policy_backend == "native"
    lose(source._source._beside)
    policy.scale = -1.0
    with told():
        assert choices(source, 1) == {1}
    assert source.policy_backend == "torch" and f"torch: {REASON}" in repr(source)
    policy.scale = 1.0
    assert choices(source, 1) == {0}, "it is called as it is"
    policy.turn()
    assert choices(source, 1) == {1}


def test_versions_of_the_users_own_module_are_counted_where_it_is_published() -> None:
    policy = Scaled()
    source = Collector(cartpole, policy, frames_per_batch=10)
    lose(source._source._beside)
    with told():
        next(source)
    before = source.policy_version
    source.update_policy_weights_({"net.weight": policy.net.weight, "net.bias": -policy.net.bias})
    assert source.policy_version == before + 1
    assert choices(source, 1) == {1} and policy.net.bias.tolist() == [-1.0, 0.0]


def test_nothing_writes_to_the_users_own_module_between_its_loss_and_its_gradient() -> None:
    policy = Scaled()
    source = Collector(cartpole, policy, frames_per_batch=10)
    next(source)
    lose(source._source._beside)
    loss = policy(torch.ones(3, 4)).square().sum()
    with told():
        next(source)
    next(source)
    loss.backward()


@pytest.mark.parametrize(("kind", "where"), COPIES)
def test_workers_call_copies_from_the_next_weights_on(kind: Any, where: dict[str, Any]) -> None:
    policy = Scaled()
    envs = [cartpole] * 2 if kind is AsyncBatchedCollector else cartpole
    with kind(envs, policy, frames_per_batch=10, seed=0, **where) as source:
        assert choices(source) == {0} and source.policy_backend == "native"
        lose(source._source._beside)
        policy.scale = -1.0
        assert choices(source) == {0}, "copies take what is published"
        with told():
            source.update_policy_weights_()
        assert choices(source) == {1}
        assert source.policy_backend == "torch" and f"torch: {REASON}" in repr(source)
        policy.turn()
        source.update_policy_weights_()
        assert choices(source) == {0}, "later weights reach them"
        policy.scale = 1.0
        source.update_policy_weights_()
        assert choices(source) == {1}, "and so do attributes"


def test_a_worker_process_imports_torch_once_it_calls_the_policy() -> None:
    policy = Scaled()
    with AsyncCollector(
        "CartPole-v1", policy, frames_per_batch=10, placement="processes"
    ) as source:
        assert choices(source) == {0} and source.policy_backend == "native"
        lose(source._source._beside)
        policy.turn()
        with told():
            source.update_policy_weights_()
        assert choices(source) == {1}


@pytest.mark.parametrize("where", [THREADS, PROCESSES], ids=["threads", "processes"])
def test_weights_for_one_worker_let_that_one_call_the_policy(where: dict[str, Any]) -> None:
    policy = Scaled()
    with MultiSyncCollector(cartpole, policy, frames_per_batch=20, seed=0, **where) as source:
        next(source)
        lose(source._source._beside)
        policy.scale = -1.0
        with told():
            source.update_policy_weights_(worker_ids=[1])
        shares = [next(source) for _ in range(3)][-1]["action"].flatten().split(10)
        assert [set(share.tolist()) for share in shares] == [{0}, {1}]
        source.update_policy_weights_()
        assert choices(source) == {1}


@pytest.mark.parametrize("where", [{}, THREADS, PROCESSES], ids=["inline", "threads", "processes"])
def test_a_collector_goes_on_from_a_state_of_before_and_of_after(where: dict[str, Any]) -> None:
    kind: Any = MultiSyncCollector if where else Collector
    policy = Scaled()
    with kind(cartpole, policy, frames_per_batch=10, seed=0, **where) as source:
        next(source)
        before = source.state_dict()
        lose(source._source._beside)
        policy.turn()
        with told():
            source.update_policy_weights_()
        assert choices(source) == {1}
        after = source.state_dict()
        source.load_state_dict(before)
        assert choices(source) == {0} and source.policy_backend == "torch"
        source.load_state_dict(after)
        assert choices(source) == {1}
    with kind(cartpole, Scaled(), frames_per_batch=10, seed=0, **where) as source:
        source.load_state_dict(after)
        assert choices(source) == {1} and source.policy_backend == "native"


def test_a_collector_in_the_background_goes_on_filling_its_buffer() -> None:
    policy, buffer = Scaled(), ReplayBuffer(batch_size=1000)
    source = Collector(cartpole, policy, frames_per_batch=10, replay_buffer=buffer)
    changed, seen = threading.Event(), threading.Event()
    written = 0

    def hook() -> None:
        nonlocal written
        if changed.is_set() and source.policy_backend == "torch":
            written += 1
            if written > 3:
                seen.set()

    source.pre_collect_hook = hook
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", windrow.PerformanceWarning)
        source.start()
        try:
            policy.scale = -1.0
            lose(source._source._beside)
            changed.set()
            assert seen.wait(60)
        finally:
            source.shutdown()
    assert REASON in repr(source)
    assert set(buffer[len(buffer) - 10 :]["action"].flatten().tolist()) == {1}


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_an_evaluator_calls_the_policy_from_then_on(backend: Any) -> None:
    policy = Scaled()
    seen: list[float] = []

    def count(batch: Any) -> dict[str, float]:
        seen.append(float(batch["action"].float().mean()))
        return {}

    with Evaluator(
        cartpole, policy, num_trajectories=1, metrics_fn=count, backend=backend
    ) as evaluator:
        evaluator.evaluate(policy)
        lose(evaluator._choice.beside)
        policy.scale = -1.0
        with told():
            evaluator.evaluate(policy)
        policy.turn()
        evaluator.evaluate(policy)
        assert f"torch: {REASON}" in str(evaluator._repr_html_())
    assert seen == [0.0, 1.0, 0.0]


def test_a_server_calls_the_policy_from_then_on() -> None:
    policy = Scaled()
    with RemoteServer(policy, env=cartpole()) as server:
        source = Collector(cartpole, RemotePolicy(server.address), frames_per_batch=10)
        assert choices(source) == {0}
        lose(server._choice.beside)
        policy.scale = -1.0
        with told():
            server.update_policy_weights_()
        assert choices(source) == {1}
        source.shutdown()


@pytest.mark.parametrize("where", [{}, PROCESSES], ids=["inline", "processes"])
def test_a_policy_that_remembers_begins_anew_where_it_is_called(where: dict[str, Any]) -> None:
    kind: Any = MultiSyncCollector if where else Collector
    policy, frames = cell(), 5 * where.get("num_workers", 1)
    with kind(cartpole, policy, frames_per_batch=frames, seed=0, **where) as source:
        next(source)
        assert source.policy_backend == "native"
        lose(source._source._beside)
        with told():
            source.update_policy_weights_()
        batch = next(source)[:5]
        assert not batch["hidden"][0].any() and bool(batch["hidden"][1].any())
        assert torch.equal(batch["next", "hidden"][0], batch["hidden"][1])
        with pytest.warns(windrow.Warning, match="remembers something of each environment"):
            source.state_dict()


@pytest.mark.parametrize("where", [{}, THREADS], ids=["inline", "threads"])
def test_a_native_policy_that_is_none_any_more_is_an_error_each_time(
    where: dict[str, Any],
) -> None:
    kind: Any = MultiSyncCollector if where else Collector
    with kind(cartpole, Scaled(), frames_per_batch=10, policy_backend="native", **where) as source:
        next(source)
        lose(source._source._beside)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=rf'policy_backend="native": {REASON}; build a'):
                source.update_policy_weights_()
        assert source.policy_backend == "native"


# Worker processes, which have nothing of the module


def test_a_native_policy_in_processes_need_not_be_pickled() -> None:
    policy = Unpicklable()
    with MultiSyncCollector(cartpole, policy, frames_per_batch=10, **PROCESSES) as source:
        assert source._placement == "processes" and source.policy_backend == "native"
        assert choices(source) == {0}
        policy.turn()
        source.update_policy_weights_()
        assert choices(source) == {1}


def test_what_cannot_be_pickled_is_named_once_it_has_to_be_called() -> None:
    with MultiSyncCollector(cartpole, Unpicklable(), frames_per_batch=10, **PROCESSES) as source:
        next(source)
        lose(source._source._beside)
        for _ in range(2):
            with pytest.raises(
                RuntimeError, match=rf"{REASON}.*locked uses lock, .* cannot be pickled"
            ):
                source.update_policy_weights_()
        assert choices(source) == {0}


def test_a_collector_is_built_again_where_processes_refuse_the_graph() -> None:
    env = Switches()
    with told("its graph does not fit the environments"):
        source = Collector(env, Scaled(), frames_per_batch=4, placement="processes")
    with source:
        assert source.policy_backend == "torch" and "does not fit" in repr(source)
        assert next(source)["action"].shape == (4, 2)
        assert env.closed, "the worker has a copy"
        source.update_policy_weights_()
        next(source)
    with pytest.raises(ValueError, match="MultiBinary|multi-binary|action"):
        Collector(
            Switches, Scaled(), frames_per_batch=4, placement="processes", policy_backend="native"
        )


def test_an_evaluator_is_built_again_where_its_process_refuses_the_graph() -> None:
    with Evaluator(
        Switches, Scaled(), num_trajectories=1, max_steps=3, backend="process"
    ) as evaluator:
        assert evaluator.evaluate()["eval/num_episodes"] == 1
        assert "does not fit" in str(evaluator._repr_html_())


def test_a_policy_that_is_refused_and_cannot_be_sent_acts_in_threads() -> None:
    with pytest.warns(windrow.Warning, match=r"workers run in threads.*locked uses lock"):
        source = AsyncCollector(Switches, Unpicklable(), frames_per_batch=4)
    with source:
        assert source.policy_backend == "torch" and source._placement == "threads"
        next(source)


def test_other_errors_of_building_are_raised_once() -> None:
    class Broken(Switches):
        def __init__(self) -> None:
            raise LookupError("no such device")

    with pytest.raises(LookupError, match="no such device"):
        Collector(Broken, Scaled(), frames_per_batch=4, placement="processes")
