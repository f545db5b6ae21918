"""Workers that a launcher starts somewhere else."""

import subprocess
import sys
import time

import gymnasium
import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from windrow import WorkerError
from windrow.collectors import (
    AsyncBatchedCollector,
    Collector,
    CommandLauncher,
    MultiAsyncCollector,
    MultiSyncCollector,
    RayCollector,
)
from windrow.data import LazyTensorStorage, ReplayBuffer
from windrow.envs import GymEnv, GymWrapper

WORKER = [sys.executable, "-m", "windrow.worker"]


def network():
    """A policy that draws nothing."""
    values = TensorDictModule(
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)),
        in_keys=["observation"],
        out_keys=["values"],
    )
    best = TensorDictModule(
        lambda values: values.argmax(-1), in_keys=["values"], out_keys=["action"]
    )
    return TensorDictSequential(values, best)


def cartpole():
    """CartPole whose action is the number of a choice."""
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def batches(launcher, **arguments):
    """Batches of two workers of Gymnasium's CartPole, with other weights from the second on."""
    torch.manual_seed(3)
    policy = network()
    collector = MultiSyncCollector(
        [cartpole] * 2,
        policy,
        frames_per_batch=40,
        total_frames=120,
        seed=5,
        launcher=launcher,
        **arguments,
    )
    with collector:
        for batch in collector:
            yield batch.clone()
            with torch.no_grad():
                for weights in policy.parameters():
                    weights.add_(0.25)
            collector.update_policy_weights_()


@pytest.mark.parametrize("policy_backend", ["native", "torch"])
def test_workers_elsewhere_deliver_what_processes_deliver(policy_backend) -> None:
    here, there = (
        [*batches(launcher, policy_backend=policy_backend)]
        for launcher in (None, CommandLauncher(WORKER))
    )
    assert len(here) == len(there) == 3
    for one, other in zip(here, there, strict=True):
        assert (one == other).all()


class Processes:
    """Starts workers as processes, and kills the first of them."""

    patience = 30

    def __init__(self) -> None:
        self.started = []

    def start(self, invitation: str):
        process = subprocess.Popen(WORKER, stdin=subprocess.PIPE, text=True)
        process.stdin.write(invitation + "\n")
        process.stdin.flush()
        self.started.append(process)
        return Started(process)


class Started:
    def __init__(self, process) -> None:
        self.process = process

    def ended(self) -> str | None:
        status = self.process.poll()
        return None if status is None else f"its process ended with status {status}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def test_a_worker_that_is_killed_is_started_again_by_an_object_of_pythons() -> None:
    launcher = Processes()
    collector = MultiAsyncCollector(
        [cartpole] * 2, frames_per_batch=20, total_frames=400, on_loss=3, launcher=launcher
    )
    with collector:
        frames = 0
        for number, batch in enumerate(collector):
            frames += batch.numel()
            if number == 3:
                launcher.started[0].kill()
        assert frames == 400
        assert len(launcher.started) == 3
        assert "its process ended with status -9" in collector.losses()[0]
    # Those that nobody has killed had the time to end by themselves.
    assert [process.wait(60) for process in launcher.started] == [-9, 0, 0]


class Slow(gymnasium.Env):
    """A step takes a millisecond."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        time.sleep(0.001)
        return np.zeros(1, np.float32), 1.0, False, False, {}


def test_a_shutdown_cuts_parts_short_that_workers_elsewhere_fill() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(60_000), batch_size=10)
    collector = MultiSyncCollector(
        [Slow] * 2,
        frames_per_batch=60_000,
        total_frames=-1,
        replay_buffer=buffer,
        launcher=CommandLauncher(WORKER),
    )
    collector.start()
    time.sleep(0.5)
    began = time.monotonic()
    collector.shutdown()
    assert time.monotonic() - began < 10
    assert 100 < collector.stats()["frames"] == buffer.write_count < 20_000


def test_what_cannot_be_started_is_an_error_that_names_it() -> None:
    with pytest.raises(Exception, match="no-such-program"):
        Collector("CartPole-v1", frames_per_batch=10, launcher=CommandLauncher(["no-such-program"]))
    with pytest.raises(Exception, match="status: 3"):
        Collector(
            "CartPole-v1", frames_per_batch=10, launcher=CommandLauncher(["sh", "-c", "exit 3"])
        )
    with pytest.raises(
        TypeError,
        match=r"expected a CommandLauncher as launcher, or an object with a method start\(invitation\), got int",
    ):
        Collector("CartPole-v1", frames_per_batch=10, launcher=3)
    with pytest.raises(ValueError, match="what a launcher starts are processes"):
        Collector(
            "CartPole-v1",
            frames_per_batch=10,
            launcher=CommandLauncher(WORKER),
            placement="threads",
        )
    with pytest.raises(ValueError, match="starts actors itself"):
        RayCollector(["CartPole-v1"], frames_per_batch=10, launcher=CommandLauncher(WORKER))
    with pytest.raises(ValueError, match="workers of AsyncBatchedCollector are threads"):
        AsyncBatchedCollector(
            ["CartPole-v1"], network(), frames_per_batch=10, launcher=CommandLauncher(WORKER)
        )
    with pytest.raises(ValueError, match="expected an address such as"):
        CommandLauncher(WORKER, address="nowhere")


def test_a_worker_without_an_invitation_says_who_starts_it() -> None:
    ended = subprocess.run(
        WORKER, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1 and "started by a launcher" in ended.stderr


class Own(Exception):
    """No built-in exception."""


class Strange(gymnasium.Env):
    """Observes things in the place of text, and may raise an exception."""

    observation_space = gymnasium.spaces.Dict({"thing": gymnasium.spaces.Text(9)})
    action_space = gymnasium.spaces.Discrete(2)
    level = 3

    def __init__(self, thing, error=None) -> None:
        self.thing, self.error = thing, error

    def reset(self, *, seed=None, options=None):
        return {"thing": self.thing}, {}

    def step(self, action):
        if self.error is not None:
            raise self.error
        return {"thing": self.thing}, 0.0, False, False, {}

    def held(self):
        return Own("held")


def elsewhere(make, **arguments):
    options = {"frames_per_batch": 4, "total_frames": 40, "launcher": CommandLauncher(WORKER)}
    return MultiSyncCollector([make], **{**options, **arguments})


def test_a_collector_reads_data_of_workers_elsewhere() -> None:
    with elsewhere(lambda: GymWrapper(Strange([1, {"a": "b"}]))) as collector:
        assert next(collector).get("thing").tolist() == [[1, {"a": "b"}]] * 4
        assert collector.env.level == 3
        with pytest.raises(TypeError, match="held.*expected data .*got a Own.*allow_pickle=True"):
            collector.env.held()


def test_an_object_of_a_worker_elsewhere_is_an_error_that_says_what_allows_it() -> None:
    with pytest.raises(Exception, match="thing.*expected data .*got a Own.*allow_pickle=True"):
        with elsewhere(lambda: GymWrapper(Strange(Own("thing")))) as collector:
            next(collector)
    with elsewhere(lambda: GymWrapper(Strange(Own("thing"))), allow_pickle=True) as collector:
        assert (
            type(next(collector).get("thing").tolist()[0]).__name__
            == type(collector.env.held()).__name__
            == "Own"
        )


@pytest.mark.parametrize("allow_pickle", [False, True])
def test_exceptions_of_workers_elsewhere_cross_as_data_unless_objects_do(allow_pickle) -> None:
    for error, kind in (
        (KeyError("lost"), "KeyError"),
        (Own("lost"), "Own" if allow_pickle else "RuntimeError"),
    ):
        with pytest.raises(WorkerError, match="lost") as caught:
            with elsewhere(
                lambda: GymWrapper(Strange("text", error)), allow_pickle=allow_pickle
            ) as collector:
                next(collector)
        assert type(caught.value.__cause__).__name__ == kind and "in step" in str(caught.value)


#: A worker that sends objects, whatever its collector says.
HOSTILE = """
import sys
from windrow import _codecs, worker
_codecs.set_own_codec = lambda allow_pickle: None
worker.main()
"""


@pytest.mark.parametrize("where", ["rows", "errors"])
def test_nothing_of_a_worker_elsewhere_is_unpickled(where) -> None:
    launcher = CommandLauncher([sys.executable, "-c", HOSTILE])
    thing, error = (Own("thing"), None) if where == "rows" else ("text", Own("lost"))
    with pytest.raises(Exception, match="of a kind that this collector does not read"):
        with elsewhere(lambda: GymWrapper(Strange(thing, error)), launcher=launcher) as collector:
            next(collector)
