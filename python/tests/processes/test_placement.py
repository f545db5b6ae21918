"""Where workers run if nobody says where, and what does not change with it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import pytest
import torch
from tensordict.nn import TensorDictModule
from test_processes import processes

from counting import Counting, Locked, Stateful, Telling, sleeps_long
from waiting import ends
from windrow import WorkerError
from windrow.collectors import (
    AsyncBatchedCollector,
    AsyncCollector,
    Collector,
    Interruptor,
    MultiAsyncCollector,
    MultiSyncCollector,
)
from windrow.envs import GymEnv, ParallelEnv, SerialEnv
from windrow.processes import pickling

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")

SEVERAL = [MultiSyncCollector, MultiAsyncCollector]


@pytest.fixture
def build() -> Iterator[Callable[..., Any]]:
    """Builds a collector, and ends it after the test."""
    built: list[Any] = []

    def make(kind: Any, env: Any, policy: Any = None, **options: Any) -> Any:
        built.append(kind(env, policy, **{"frames_per_batch": 40, "total_frames": -1, **options}))
        return built[-1]

    yield make
    for collector in built:
        collector.shutdown(raise_on_error=False)


def place(collector: Any) -> str:
    """Where the workers are, by what the collector says and by their processes."""
    said = repr(collector).partition(" workers ")[2].partition(",")[0].removeprefix("in ")
    assert (said == "processes") == all(pid is not None for pid in processes(collector))
    return said


@pytest.mark.parametrize(
    ("kind", "env", "expected"),
    [
        (Collector, Counting, "inline"),
        (Collector, Counting(), "inline"),
        (AsyncCollector, "CartPole-v1", "threads"),
        (AsyncCollector, GymEnv("CartPole-v1"), "threads"),
        (AsyncCollector, Counting, "processes"),
        (AsyncCollector, Counting(), "processes"),
        (MultiSyncCollector, ["CartPole-v1"] * 2, "threads"),
        (MultiAsyncCollector, [SerialEnv(2, GymEnv("CartPole-v1"))] * 2, "threads"),
        (MultiSyncCollector, [lambda: GymEnv("CartPole-v1")] * 2, "processes"),
        (MultiSyncCollector, [Counting(), Counting()], "processes"),
        (MultiAsyncCollector, [Counting, lambda: Counting()], "processes"),
    ],
)
def test_environments_known_to_be_native_run_in_threads_and_others_in_processes(
    build, kind, env, expected
) -> None:
    collector = build(kind, env)
    assert place(collector) == expected
    assert next(collector).numel() == 40


def test_no_function_is_called_in_this_process(build) -> None:
    here = os.getpid()

    def elsewhere() -> gym.Env:
        assert os.getpid() != here
        return Counting()

    for kind in SEVERAL:
        assert next(build(kind, [elsewhere] * 2)).numel() == 40
    assert next(build(AsyncCollector, elsewhere)).numel() == 40


def guarded() -> Callable[[], gym.Env]:
    lock = threading.Lock()

    def env() -> gym.Env:
        with lock:
            return Counting()

    return env


def observing(lock: Any) -> Callable[[Any], Any]:
    def policy(observation: torch.Tensor) -> torch.Tensor:
        with lock:
            return torch.zeros(2)

    return policy


@pytest.mark.filterwarnings("ignore:environments written in Python share")
@pytest.mark.parametrize(
    ("kind", "env", "policy", "named"),
    [
        (
            MultiSyncCollector,
            [guarded()] * 2,
            None,
            "create_env_fn uses lock, <unlocked _thread.lock",
        ),
        (AsyncCollector, Locked(), None, r"create_env_fn.lock, <unlocked _thread.lock"),
        (
            MultiSyncCollector,
            [Counting] * 2,
            observing(threading.Lock()),
            "policy.* uses lock, <unlocked _thread.lock",
        ),
    ],
)
def test_what_cannot_be_pickled_runs_in_threads_with_a_warning(
    build, kind, env, policy, named
) -> None:
    with pytest.warns(
        UserWarning,
        match=f"workers run in threads, where Python code takes turns: .*{named}.*cannot be pickled",
    ) as told:
        collector = build(kind, env, policy)
    assert [
        warning.filename for warning in told if "cannot be pickled" in str(warning.message)
    ] == [__file__]
    assert place(collector) == "threads"
    assert next(collector).numel() == 40
    for asked in ({"placement": "processes"}, {"step_timeout": 5.0}):
        with pytest.raises(
            TypeError, match=f'{named}.*cannot be pickled.*choose placement="threads"'
        ):
            build(kind, env, policy, **asked)


@pytest.mark.filterwarnings("ignore:environments written in Python share")
@pytest.mark.parametrize("lacks", ["cloudpickle", "executable"])
def test_where_processes_cannot_be_had_threads_do(build, monkeypatch, lacks) -> None:
    if lacks == "cloudpickle":
        monkeypatch.setitem(sys.modules, "cloudpickle", None)
        pickling.pickler.cache_clear()
    else:
        monkeypatch.setattr(sys, "executable", "")
    told = {"cloudpickle": "pip install cloudpickle", "executable": "sys.executable is empty"}[
        lacks
    ]
    try:
        with pytest.warns(UserWarning, match=f'{told}.* choose placement="threads"'):
            collector = build(MultiSyncCollector, [Counting] * 2)
        assert place(collector) == "threads"
        with pytest.raises(RuntimeError, match=told):
            build(MultiSyncCollector, [Counting] * 2, placement="processes")
    finally:
        pickling.pickler.cache_clear()


def test_a_function_around_a_module_takes_weights_in_processes(build) -> None:
    net = torch.nn.Linear(2, 2)

    def policy(observation: torch.Tensor) -> torch.Tensor:
        return torch.stack([net(row) for row in observation[None]])[0]

    collector = build(MultiSyncCollector, [Counting] * 2, policy)
    assert place(collector) == "processes"
    for scale in (1.0, -1.0):
        with torch.no_grad():
            net.weight.copy_(torch.tensor([[scale, scale], [-scale, -scale]]))
        collector.update_policy_weights_()
        assert next(collector)["action"].tolist() == [int(scale < 0)] * 40
    with pytest.warns(UserWarning, match=r"policy\.module uses net, whose"):
        assert (
            place(
                build(
                    AsyncCollector,
                    Counting,
                    TensorDictModule(lambda seen: net(seen), ["observation"], ["action"]),
                    policy_backend="torch",
                )
            )
            == "threads"
        )
    # What a factory makes gets weights as they are published.
    made = build(
        AsyncCollector,
        Counting,
        policy_factory=lambda: TensorDictModule(net, ["observation"], ["action"]),
    )
    assert place(made) == "processes"


def test_one_object_is_no_environment_for_two_workers(build) -> None:
    env = Counting()
    for envs in ([env, gym.wrappers.TimeLimit(env, 5)], [SerialEnv(1, env), env]):
        for placement in (None, "processes"):
            with pytest.raises(
                ValueError,
                match="is one object and already in use, by another worker: give each a function",
            ):
                build(MultiSyncCollector, envs, placement=placement)


@pytest.mark.parametrize("how", ["argument", "module", "function"])
def test_a_compiled_policy_is_compiled_where_it_acts(build, how) -> None:
    network = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    if how == "argument":
        options: dict[str, Any] = {"policy": network, "compile_policy": {"backend": "eager"}}
    elif how == "module":
        options = {"policy": torch.compile(network, backend="eager"), "policy_backend": "torch"}
    else:
        options = {"policy_factory": lambda: torch.compile(network, backend="eager")}
    collector = build(MultiSyncCollector, [Counting], **options)
    assert place(collector) == "processes" and collector.policy_backend == "torch"
    for _ in range(2):
        frames = next(collector)
        assert torch.equal(frames["action"], network(frames["observation"]).argmax(-1))
        with torch.no_grad():
            network[2].weight.mul_(-1.0)
            network[2].bias.mul_(-1.0)
        collector.update_policy_weights_(network)


class Dice(torch.nn.Module):
    """Draws from torch's generator, and writes what it has drawn."""

    def forward(self, observation: torch.Tensor) -> Any:
        drawn = torch.rand(1)
        return torch.cat([drawn, 1 - drawn]), drawn


class Drawing(Counting):
    """Observes what torch draws."""

    def reset(self, **options: Any) -> Any:
        super().reset(**options)
        return torch.rand(2).numpy(), {}


def test_what_torch_draws_in_workers_differs_and_follows_the_seed(build) -> None:
    def collector(**options: Any) -> Any:
        torch.manual_seed(3)
        policy = TensorDictModule(Dice(), ["observation"], ["action", "drawn"])
        return build(MultiSyncCollector, [Drawing] * 2, policy, **options)

    def drawn(collector: Any) -> tuple[torch.Tensor, torch.Tensor]:
        frames = next(collector)
        return frames["observation"][::10].clone(), frames["drawn"].clone()

    first, again = drawn(collector()), drawn(collector())
    for ours, theirs in zip(first, again, strict=True):
        half = len(ours) // 2
        assert not torch.equal(ours[:half], ours[half:]), "each worker draws its own"
        assert torch.equal(ours, theirs)
    seeded = collector(seed=1)
    runs = [drawn(seeded)[1] for seed in (1, 2, 1) if seeded.set_seed(seed)]
    assert not torch.equal(runs[0], runs[1]) and torch.equal(runs[0], runs[2])


def test_torchs_type_of_real_numbers_holds_in_workers(build) -> None:
    def policy(observation: torch.Tensor) -> torch.Tensor:
        return torch.zeros(2), torch.zeros(1)  # type: ignore[return-value]

    torch.set_default_dtype(torch.float64)
    try:
        assert next(build(AsyncCollector, Counting, policy))["output1"].dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("end", ["shutdown", "last batch", "death"])
def test_the_state_of_a_collector_whose_workers_have_ended_is_what_was_known(build, end) -> None:
    collector = build(MultiSyncCollector, [Stateful] * 2, total_frames=200)
    next(collector)
    state = collector.state_dict()
    if end == "death":
        os.kill(processes(collector)[1], signal.SIGKILL)
        with pytest.raises(WorkerError, match="SIGKILL"):
            list(collector)
        assert collector.state_dict()["env_state_dict"] == state["env_state_dict"]
        return
    list(collector)
    resets = collector.get_distant_attr("env.resets")
    assert resets[0] > state["env_state_dict"]["worker0"]["resets"]
    if end == "shutdown":
        collector.shutdown()
    state = collector.state_dict()
    assert state["frames"] == 200
    assert [state["env_state_dict"][f"worker{worker}"]["resets"] for worker in range(2)] == resets


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (MultiSyncCollector, [Telling] * 3),
        (Collector, ParallelEnv(3, Telling)),
        (AsyncBatchedCollector, [Telling] * 3),
    ],
    ids=["workers", "members", "served"],
)
def test_what_windrow_warns_of_in_all_processes_is_told_once(build, capfd, kind, given) -> None:
    collector = build(kind, given)
    stepped: set[int] = set()
    while len(stepped) < 3:
        # Without this entry, each batch has frames of all.
        batch = next(collector)
        stepped |= set(batch.get("env_index", torch.arange(3)).unique().tolist())
    collector.shutdown()
    assert capfd.readouterr().err.count("returns what batches leave out") == 1


def test_an_interruptor_cuts_the_shares_of_processes_short(build) -> None:
    interruptor = Interruptor()
    collector = build(MultiSyncCollector, [Counting] * 2, interruptor=interruptor)
    interruptor.stop_collection()
    assert int((next(collector)["collector", "traj_ids"] >= 0).sum()) == 2, "one step of each"
    interruptor.start_collection()
    assert int((next(collector)["collector", "traj_ids"] >= 0).sum()) == 40


def test_hooks_are_called_here(build) -> None:
    called: list[Any] = []
    hooks = {
        "pre_collect_hook": lambda: called.append(os.getpid()),
        "post_collect_hook": called.append,
    }
    collector = build(MultiSyncCollector, [Counting] * 2, **hooks)
    batch = next(collector)
    assert called[0] == os.getpid() and called[1] is batch
    collector.set_post_collect_hook(None)
    next(collector)
    assert len(called) == 3


def test_a_frozen_worker_is_killed_and_its_stack_is_shown(build) -> None:
    env = [lambda: Counting(sleeps_long), Counting]
    with pytest.raises(WorkerError, match="step_timeout=2.5 s") as caught:
        next(build(MultiSyncCollector, env, step_timeout=2.5))
    assert "in sleeps_long" in str(caught.value) and caught.value.step == 6
    collector = build(MultiSyncCollector, env, step_timeout=2.5, on_loss="continue")
    batches = [next(collector) for _ in range(3)]
    assert collector.stats()["workers_alive"] == 1 and batches[-1].numel() > 0
    for placement in ("threads", "inline"):
        with pytest.raises(ValueError, match="step_timeout needs workers that can be killed"):
            build(MultiSyncCollector, env, step_timeout=2.5, placement=placement)
    with pytest.raises(ValueError, match="step_timeout"):
        build(MultiSyncCollector, env, step_timeout=-1)
    with pytest.raises(TypeError, match="step_timeout must be a number"):
        build(MultiSyncCollector, env, step_timeout="x")


@pytest.mark.parametrize("on_loss", ["raise", 3])
def test_a_worker_is_killed_from_outside(build, on_loss) -> None:
    collector = build(MultiSyncCollector, [Counting] * 4, on_loss=on_loss)
    next(collector)
    killed = processes(collector)[2]
    os.kill(killed, signal.SIGKILL)
    assert ends(killed)
    if on_loss == "raise":
        with pytest.raises(WorkerError, match=r"worker 2.*signal 9 \(SIGKILL\)"):
            for _ in range(20):
                next(collector)
        return
    assert all(next(collector).numel() == 40 for _ in range(20))
    assert collector.stats()["restarts"] == 1
    assert killed not in processes(collector)
