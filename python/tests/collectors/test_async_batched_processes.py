"""Environments in processes that ask one policy of this one, and what happens when they fail."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from collectors.conftest import Build
from counting import Counting, Locked, Stateful, raises_value_error
from room import children
from waiting import until
from windrow import WorkerError
from windrow.envs import GymEnv

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    before = children()
    yield
    until(lambda: children() <= before)


class Right(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.side = nn.Parameter(torch.tensor(1.0))
        self.pids: set[int] = set()

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        self.pids.add(os.getpid())
        return self.side.expand(observation.shape[:-1]).long()


def test_each_environment_of_python_has_a_process(build: Build) -> None:
    policies = []

    def factory() -> Right:
        policies.append(Right())
        return policies[-1]

    collector = build(
        [Counting] * 3, None, policy_factory=factory, frames_per_batch=20, total_frames=200
    )
    frames = torch.cat(
        [batch.select("observation", "env_index", "action", "next") for batch in collector]
    )
    pids = {
        int(env): set(frames["observation"][frames["env_index"] == env, 1].int().tolist())
        for env in frames["env_index"].unique()
    }
    assert all(len(own) == 1 for own in pids.values()) and len(set.union(*pids.values())) == len(
        pids
    )
    # float32 holds numbers of processes exactly.
    assert os.getpid() not in set.union(*pids.values()) and policies[0].pids == {os.getpid()}
    for env in pids:
        own = frames[frames["env_index"] == env]
        steps = torch.arange(len(own)) % 10
        assert torch.equal(own["observation"][:, 0], steps.float())
        assert torch.equal(own["next", "done"].flatten(), steps == 9)
    assert (frames["action"] == 1).all()


def test_threads_share_the_interpreter(build: Build) -> None:
    with pytest.warns(UserWarning, match="take turns"):
        collector = build([Counting] * 2, Right(), backend="threading", total_frames=80)
    assert all((batch["observation"][:, 1] == os.getpid()).all() for batch in collector)


def test_what_cannot_be_sent_runs_in_threads_with_a_warning(build: Build) -> None:
    lock = threading.Lock()
    with pytest.warns(
        UserWarning,
        match='in threads, where Python code takes turns: .*lock.*cannot be pickled.*backend="threading"',
    ):
        collector = build([lambda: Counting(lock.locked)] * 2, Right())
    assert (collector.next()["observation"][:, 1] == os.getpid()).all()
    with pytest.raises(TypeError, match='cannot be pickled.*backend="threading"'):
        build([Locked()], Right(), backend="multiprocessing")


def test_native_ones_and_those_of_python_may_be_mixed(build: Build) -> None:
    native, python = (
        partial(GymEnv, "CartPole-v1", backend=backend) for backend in ("native", "gymnasium")
    )
    collector = build([native, python], nn.Linear(4, 2), frames_per_batch=10, total_frames=200)
    frames = torch.cat([batch.select("observation", "env_index") for batch in collector])
    assert collector.stats()["workers"] == 2 and frames.shape == (200,)


def test_environments_are_reached_in_their_processes(build: Build) -> None:
    collector = build([Stateful] * 2, Right(), frames_per_batch=20)
    for _ in range(4):
        pids = {int(pid) for pid in next(collector)["observation"][:, 1]}
    states = collector.state_dict()["env_state_dict"]
    assert min(int(states[f"worker{worker}"]["resets"]) for worker in range(2)) >= 1
    assert collector.get_distant_attr("env.pace") == [1.0, 1.0]
    assert pids <= set(collector.map_fn("env.told", [[os.getpid]] * 2))
    collector.shutdown()
    after = collector.state_dict()["env_state_dict"]
    assert all(after[worker]["resets"] >= states[worker]["resets"] for worker in states), (
        "those that were known last"
    )
    again = build([Stateful] * 2, Right(), frames_per_batch=20)
    again.load_state_dict(collector.state_dict())
    assert next(again).shape == (20,)


def test_init_fn_is_called_here_and_in_each_process(build: Build) -> None:
    def begin() -> None:
        os.environ["BEGUN"] = "yes"

    def make() -> Counting:
        assert os.environ.pop("BEGUN") == "yes"
        return Counting()

    try:
        assert build([make] * 2, Right(), init_fn=begin).next().shape == (40,)
    finally:
        os.environ.pop("BEGUN", None)


@pytest.mark.parametrize("backend", ["multiprocessing", "threading"])
@pytest.mark.filterwarnings("ignore:.*turns")
def test_what_an_environment_raises_ends_the_collector(build: Build, backend: str) -> None:
    collector = build([Counting, partial(Counting, raises_value_error)], Right(), backend=backend)
    with pytest.raises(WorkerError, match=r"worker 1(.|\n)*no such road") as told:
        list(collector)
    assert isinstance(told.value.__cause__, ValueError) and told.value.worker == 1
    with pytest.raises(RuntimeError, match="ended by an error"):
        collector.next()


@pytest.mark.parametrize("backend", ["multiprocessing", "threading"])
@pytest.mark.filterwarnings("ignore:.*turns")
def test_others_go_on_without_it(build: Build, backend: str, tmp_path: Path) -> None:
    failed = tmp_path / "failed"

    def fails() -> None:
        failed.touch()
        raises_value_error()

    # Or it might bring all frames before the other has come to its fault.
    failing = [partial(Counting, lambda: until(failed.exists)), partial(Counting, fails)]
    collector = build(failing, Right(), backend=backend, on_loss="continue", total_frames=400)
    frames = [batch["env_index"] for batch in collector]
    assert sum(map(len, frames)) == 400 and {int(env) for batch in frames for env in batch} == {0}
    assert any("no such road" in loss for loss in collector.losses())


def test_a_killed_process_is_replaced(build: Build) -> None:
    collector = build([Counting] * 2, Right(), frames_per_batch=20, on_loss=3)
    next(collector)
    first = set(collector.map_fn("env.told", [[os.getpid]] * 2))
    os.kill(next(iter(first)), signal.SIGKILL)
    until(lambda: set(next(collector)["observation"][:, 1].int().tolist()) - first)
    assert collector.stats()["restarts"] == 1
    assert any("signal 9 (SIGKILL)" in loss for loss in collector.losses())


def test_a_killed_process_is_an_error(build: Build) -> None:
    collector = build([Counting] * 2, Right(), frames_per_batch=20)
    pid = int(next(collector)["observation"][0, 1])
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"signal 9 \(SIGKILL\)"):
        while True:
            next(collector)


def test_what_cannot_be_made_is_an_error(build: Build) -> None:
    def fails() -> Any:
        raise LookupError("no key")

    with pytest.raises(LookupError, match="no key"):
        build([fails] * 2, Right())
