"""Environments, policies, updaters and buffers of workers in processes: what users reach, and what
is shared.
"""

from __future__ import annotations

import base64
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import managers
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

import recurrent
from counting import Counting
from windrow import WorkerError
from windrow.collectors import (
    Collector,
    Evaluator,
    MultiAsyncCollector,
    MultiProcessedWeightUpdater,
    MultiSyncCollector,
    VanillaWeightUpdater,
)
from windrow.data import LazyTensorStorage, ReplayBuffer
from windrow.envs import EnvCreator, GymEnv, ParallelEnv, ProcessorAsyncEnvPool, SerialEnv

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
pytest.importorskip("torchrl")


@pytest.fixture
def build() -> Iterator[Callable[..., Any]]:
    """Builds a collector with workers in processes, and ends it after the test."""
    built: list[Any] = []

    def make(kind: Callable[..., Any], env: Any, policy: Any = None, **options: Any) -> Any:
        options = {"frames_per_batch": 40, "total_frames": -1, "placement": "processes", **options}
        collector = kind(env, policy, **options)
        built.append(collector)
        return collector

    yield make
    for collector in built:
        collector.shutdown(raise_on_error=False)


def normed(version: str = "VecNormV2") -> Any:
    """Counts its steps beside statistics that it gathers."""
    import torchrl.envs as theirs

    norm = getattr(theirs, version)(in_keys=["observation"])
    return theirs.TransformedEnv(
        theirs.GymEnv("CartPole-v1"),
        theirs.Compose(theirs.StepCounter(), norm, theirs.TrajCounter()),
    )


def steps(states: Any) -> list[float]:
    """How many steps each worker's statistics have, in what ``state_dict`` says of environments."""

    def of(state: Any) -> float:
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                if "count" in name:
                    return float(value.flatten()[0])
            elif value and (found := of(value)) >= 0:
                return found
        return -1.0

    return [of(state) for state in states.values()]


@pytest.mark.parametrize(
    ("version", "share_memory"), [("VecNormV2", True), ("VecNorm", True), ("VecNormV2", False)]
)
def test_processes_share_what_environments_of_one_creator_gather(
    build, version, share_memory
) -> None:
    creator = EnvCreator(normed, {"version": version}, share_memory=share_memory)
    own = creator()
    collector = build(MultiSyncCollector, [creator] * 2, frames_per_batch=200)
    batch = next(collector)
    one, other = steps(collector.state_dict()["env_state_dict"])
    here = steps({"own": own.state_dict()})[0]
    if not share_memory:
        assert max(one, other) < 200 and here < 10
        return
    assert one == other == here > 200, "each step of both workers has counted, in all of them"
    counts = batch["traj_count"].flatten()
    ids = batch["collector", "traj_ids"]
    assert len(counts.unique()) == len(ids.unique()), "no two trajectories have one number"


def test_processes_that_share_statistics_load_them_into_the_memory_that_they_share(build) -> None:
    creator = EnvCreator(normed)
    first = build(MultiSyncCollector, [creator] * 2, frames_per_batch=100)
    next(first)
    state = first.state_dict()
    saved = steps(state["env_state_dict"])
    next(first)
    assert min(steps(first.state_dict()["env_state_dict"])) > max(saved)
    first.load_state_dict(state)
    assert steps(first.state_dict()["env_state_dict"]) == saved
    next(first)
    one, other = steps(first.state_dict()["env_state_dict"])
    assert one == other > saved[0] + 99


def test_processes_that_share_statistics_go_on_with_those_of_a_lost_one(build) -> None:
    creator = EnvCreator(normed)
    collector = build(MultiSyncCollector, [creator] * 2, frames_per_batch=100, on_loss=3)
    next(collector)
    before = steps(collector.state_dict()["env_state_dict"])[0]
    os.kill(collector.stats("per_worker")["worker_1/pid"], 9)
    for _ in range(5):
        next(collector)
    after = steps(collector.state_dict()["env_state_dict"])
    assert after[0] == after[1] > before + 400


def copied() -> Any:
    """An environment whose state is a copy."""
    import torchrl.envs as theirs

    class Copies(theirs.TransformedEnv):
        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            return {"total": torch.zeros(3)}

        def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
            pass

    return Copies(theirs.GymEnv("CartPole-v1"), theirs.StepCounter())


def test_a_state_that_processes_cannot_share_is_an_error(build) -> None:
    with pytest.raises(
        RuntimeError,
        match="cannot share the state of environments: Copies gives a copy of total in its state_dict",
    ):
        build(MultiSyncCollector, [EnvCreator(copied)] * 2)
    creator = EnvCreator(sized)
    creator(size=1)
    with pytest.raises(
        RuntimeError, match="(?s)TransformedEnv does not take that of the first: .*size mismatch"
    ):
        creator(size=4)
    batch = next(build(MultiSyncCollector, [EnvCreator(copied, share_memory=False)] * 2))
    assert batch.numel() == 40


def sized(size: int) -> Any:
    import torchrl.envs as theirs

    env = normed()
    env.append_transform(
        theirs.ObservationNorm(
            loc=torch.zeros(size), scale=torch.ones(size), in_keys=["observation"]
        )
    )
    return env


def test_a_creator_of_other_environments_does_without_torch_in_processes(build) -> None:
    from counting import without_torch

    assert next(build(MultiSyncCollector, [EnvCreator(without_torch)] * 2)).numel() == 40


def test_a_process_frees_the_locks_of_its_environments(build, tmp_path) -> None:
    def locked() -> gym.Env:
        env = Counting()
        env.lock = multiprocessing.get_context("spawn").Lock()  # type: ignore[attr-defined]
        (tmp_path / "name").write_text(env.lock._semlock.name)
        return env

    collector = build(Collector, locked)
    next(collector)
    semaphore = Path("/dev/shm") / f"sem.{(tmp_path / 'name').read_text().strip('/')}"
    assert semaphore.exists()
    collector.shutdown()
    assert not semaphore.exists()


@pytest.mark.parametrize("stream", [None, []], ids=["nothing", "a list"])
def test_a_process_ends_in_peace_whatever_its_streams_are(build, stream) -> None:
    def silent() -> gym.Env:
        sys.stdout = sys.stderr = stream
        return Counting()

    collector = build(Collector, silent)
    next(collector)
    collector.shutdown()
    assert collector.losses() == []


def test_environments_of_torchrl_in_processes_are_asked_and_told(build) -> None:
    collector = build(MultiSyncCollector, [normed, lambda: normed("VecNorm")])
    next(collector)
    assert collector.get_distant_attr("env.batch_size") == [torch.Size([])] * 2
    assert collector.get_distant_attr("env.transform[1].frozen") == [False, False]
    assert collector.get_distant_attr("env.transform[0].max_steps") == [None, None]
    collector.map_fn("env.transform[1].freeze")
    assert collector.get_distant_attr("env.transform[1].frozen") == [True, True]
    frozen = steps(collector.state_dict()["env_state_dict"])
    next(collector)
    assert steps(collector.state_dict()["env_state_dict"]) == frozen
    collector.env.transform[0].max_steps = 7
    assert collector.cascade_execute("env.transform[0].max_steps") == [7, 7]
    assert collector.env.observation_spec["observation"].shape == (4,)
    assert "step_count" in collector.getattr_env("observation_spec").keys()


@pytest.mark.parametrize("arguments", [{"num_envs": 2}, {}], ids=["num_envs", "vector"])
def test_several_environments_of_a_process_are_asked(build, arguments) -> None:
    env = normed if arguments else lambda: SerialEnv(2, lambda: Counting())
    collector = build(MultiSyncCollector, [env] * 2, **arguments)
    batch = next(collector)
    assert batch.shape == (4, 10)
    if arguments:
        states = collector.state_dict()["env_state_dict"]
        assert sorted(states) == ["worker0", "worker1"] and sorted(states["worker0"]) == [
            "worker0",
            "worker1",
        ]
        assert collector.get_distant_attr("env.transform[1].frozen") == [False] * 4
    else:
        assert collector.get_distant_attr("env.num_workers") == [2, 2]


def batches(
    placement: str, env: Any, policy: Any = None, kind: Any = MultiSyncCollector, **options: Any
) -> list[TensorDict]:
    options = {"frames_per_batch": 48, "total_frames": 144, "seed": 3, **options}
    with kind(env, policy, placement=placement, **options) as collector:
        return [batch.clone() for batch in collector]


def check_alike(env: Any, make_options: Callable[[], dict[str, Any]]) -> None:
    for ours, theirs in zip(
        batches("processes", env, **make_options()),
        batches("threads", env, **make_options()),
        strict=True,
    ):
        assert set(ours.keys(True, True)) == set(theirs.keys(True, True))
        for key in ours.keys(True, True):
            assert torch.equal(ours[key], theirs[key]), key


@pytest.mark.parametrize("name", recurrent.POLICIES)
def test_a_recurrent_policy_in_processes_acts_as_in_threads(name) -> None:
    make, _ = recurrent.POLICIES[name]
    env = [lambda: GymEnv("CartPole-v1", categorical_action_encoding=True)] * 2
    check_alike(env, lambda: {"policy": make(), "exploration_type": "deterministic"})
    check_alike(
        env, lambda: {"policy_factory": make, "exploration_type": "deterministic", "num_envs": 2}
    )


def agents(batch: tuple[int, ...] = ()) -> Any:
    from theirs import Agents

    return Agents(batch)


def together(td: Any) -> Any:
    return td.set(
        "agents",
        td["agents"].set("action", td["agents", "observation"].sum(-1, keepdim=True).tanh()),
    )


@pytest.mark.parametrize("batch", [(), (3,)])
def test_groups_of_agents_in_processes_are_those_of_threads(batch) -> None:
    check_alike([lambda: agents(batch)] * 2, lambda: {"policy": together})


def test_vectors_in_processes_are_those_of_threads() -> None:
    env = [lambda: gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")] * 2
    check_alike(env, dict)


def twice(batch: Any) -> Any:
    return batch.set("twice", 2 * batch["observation"])


class Greedy(nn.Module):
    def __init__(self, sign: float = 1.0) -> None:
        super().__init__()
        self.sign = nn.Parameter(torch.tensor(sign))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return (self.sign * (1 + observation[..., 0].abs()) > 0).long()


def greedy(sign: float = 1.0) -> TensorDictModule:
    return TensorDictModule(Greedy(sign), ["observation"], ["action"])


def cartpole() -> GymEnv:
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


@pytest.mark.parametrize(
    ("updater", "backend"),
    [(VanillaWeightUpdater, "native"), (MultiProcessedWeightUpdater, "torch")],
)
def test_updaters_reach_processes(build, updater, backend) -> None:
    policy: Any = nn.Linear(4, 2) if backend == "native" else greedy()
    collector = build(
        MultiSyncCollector,
        [cartpole] * 4,
        policy,
        weight_updater=updater(),
        seed=0,
        policy_backend=backend,
    )
    for version in range(3):
        batch = next(collector)
        with torch.no_grad():
            expected = (
                policy(batch["observation"]).argmax(-1)
                if backend == "native"
                else policy(batch.select("observation"))["action"]
            )
            assert torch.equal(batch["action"], expected), version
            for parameter in policy.parameters():
                parameter.neg_().add_(0.01)
        collector.update_policy_weights_()
    assert collector.policy_version == 3


def test_updaters_with_weights_of_their_own_reach_processes(build) -> None:
    other = greedy(-1.0)
    for updater in (
        VanillaWeightUpdater(weight_getter=lambda: other),
        VanillaWeightUpdater(policy_weights=TensorDict.from_module(other)),
        MultiProcessedWeightUpdater(get_server_weights=other.state_dict),
    ):
        collector = build(MultiSyncCollector, [cartpole] * 2, greedy(), weight_updater=updater)
        assert next(collector)["action"].float().mean() == 1
        collector.update_policy_weights_()
        assert next(collector)["action"].float().mean() == 0
        collector.update_policy_weights_(greedy(), worker_ids=[1])
        assert next(collector)["action"].float().mean() == 0.5


def test_each_process_has_a_policy_of_its_factory(build) -> None:
    factories = [lambda: greedy(1.0), lambda: greedy(-1.0)]
    collector = build(
        MultiSyncCollector, [cartpole] * 2, policy_factory=factories, cat_results="stack"
    )
    assert next(collector)["action"].float().mean(-1).tolist() == [1, 0]
    collector.update_policy_weights_({0: greedy(-1.0), 1: greedy(1.0)})
    assert next(collector)["action"].float().mean(-1).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("kind", "postproc"),
    [(Collector, None), (MultiSyncCollector, twice), (MultiAsyncCollector, None)],
)
def test_processes_fill_a_shared_buffer_in_the_background(build, kind, postproc) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=8, shared=True)
    env: Any = (lambda: Counting()) if kind is Collector else [lambda: Counting()] * 2
    collector = build(kind, env, replay_buffer=buffer, total_frames=400, postproc=postproc)
    collector.start()
    sample = buffer.sample()
    assert sample.numel() == 8 and ("twice" in sample.keys()) == (postproc is not None)
    with collector.pause():
        assert (
            all(collector.get_distant_attr("env.resets"))
            if kind is not Collector
            else collector.get_distant_attr("env.resets")
        )
    while collector.is_running():
        time.sleep(0.01)
    assert buffer.write_count == 400 == collector.stats()["frames"]
    assert len(buffer[:]["observation"][:, 1].unique()) == (1 if kind is Collector else 2)
    collector.shutdown()
    assert buffer.sample(16).numel() == 16


class Noting(gym.Wrapper):
    """Notes its resets in a list of another process."""

    def __init__(self, log: Any) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.log = log

    def reset(self, **options: Any) -> Any:
        self.log.append("reset")
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        if self.log[0] == "fail":
            raise RuntimeError("told to fail")
        return super().step(action)


class Board(managers.BaseManager):
    """Has one list for all who connect to it."""


NOTES = ["begin"]


def notes() -> list[str]:
    return NOTES


Board.register("log", notes, exposed=["append", "count", "__getitem__"])


def connected(address: Any) -> Noting:
    """An environment that connects by itself, with the key that processes of one program share."""
    board = Board(address)
    board.connect()
    return Noting(board.log())  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def board() -> Iterator[Any]:
    with Board() as board:
        yield board


def collected(make: Callable[[], Any]) -> None:
    with MultiSyncCollector(
        [make] * 2, None, placement="processes", frames_per_batch=4
    ) as collector:
        next(collector)


def stepped(make: Callable[[], Any]) -> None:
    env = ParallelEnv(2, make)
    env.rollout(2)
    env.close()


def pooled(make: Callable[[], Any]) -> None:
    with ProcessorAsyncEnvPool([make] * 2) as pool:
        pool.reset()
        pool.rollout(2)


def evaluated(make: Callable[[], Any]) -> None:
    with Evaluator(
        make(), lambda observation: torch.zeros(2), max_steps=2, backend="process"
    ) as evaluator:
        evaluator.evaluate(step=0)


@pytest.mark.parametrize("use", [collected, stepped, pooled, evaluated])
@pytest.mark.parametrize("kind", ["proxy", "address"])
def test_managers_of_multiprocessing_know_the_processes_of_environments(
    board: Any, use: Callable[..., None], kind: str
) -> None:
    log = board.log()
    before = log.count("reset")
    use(partial(connected, board.address) if kind == "address" else partial(Noting, log))
    assert log.count("reset") >= before + (1 if use is evaluated else 2)


def test_errors_of_workers_have_no_key_of_the_program(capfd) -> None:
    with pytest.raises(WorkerError, match="told to fail") as raised:
        collected(partial(Noting, ["fail"]))
    key = bytes(multiprocessing.current_process().authkey)
    told = "".join(traceback.format_exception(raised.value)) + "".join(capfd.readouterr())
    for text in (repr(key)[2:-1], key.hex(), base64.b64encode(key).decode()[:-4], str(list(key))):
        assert text not in told
