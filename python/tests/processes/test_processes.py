"""Workers in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from tensordict.nn import TensorDictModule

from cartpole import cartpole
from counting import (
    Counting,
    raises_lock,
    raises_odd,
    raises_surrogates,
    raises_value_error,
    without_torch,
)
from recurrent import lstm
from waiting import ends, until
from windrow import WorkerError
from windrow.collectors import AsyncCollector, Collector, MultiAsyncCollector, MultiSyncCollector
from windrow.data import LazyTensorStorage, ReplayBuffer
from windrow.envs import GymEnv

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")


@pytest.fixture
def build() -> Iterator[Callable[..., Any]]:
    """Builds a collector with workers in processes, and ends it after the test."""
    built: list[Any] = []

    def make(kind: Callable[..., Any], env: Any, policy: Any = None, **options: Any) -> Any:
        options = {"frames_per_batch": 40, "total_frames": 200, "placement": "processes", **options}
        collector = kind(env, policy, **options)
        built.append(collector)
        return collector

    yield make
    for collector in built:
        collector.shutdown(raise_on_error=False)


def processes(collector: Any) -> list[int]:
    """The process of each worker."""
    figures = collector.stats("per_worker")
    return [figures[f"worker_{worker}/pid"] for worker in range(collector.stats()["workers"])]


@pytest.mark.parametrize("kind", [MultiSyncCollector, MultiAsyncCollector])
def test_each_worker_is_a_process(build, kind) -> None:
    collector = build(kind, [lambda: Counting()] * 2)
    found: set[float] = set()
    for batch in collector:
        assert batch["next", "reward"].sum() == 40
        found |= set(batch["observation"][..., 1].flatten().tolist())
    assert found == {float(process) for process in processes(collector)}
    assert os.getpid() not in found and len(found) == 2


@pytest.mark.parametrize("kind", [Collector, AsyncCollector])
def test_one_worker_may_be_a_process(build, kind) -> None:
    collector = build(kind, lambda: Counting())
    found = {process for batch in collector for process in batch["observation"][:, 1].tolist()}
    assert found == {float(processes(collector)[0])}


def policy_of(env_actions: int = 2) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, env_actions)
    )


class Greedy(torch.nn.Module):
    """Nothing that is lowered."""

    def __init__(self) -> None:
        super().__init__()
        self.net = policy_of()

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        # A decision by numbers.
        assert not observation.isnan().any()
        return self.net(observation).argmax(-1)


@pytest.mark.parametrize("module", ["random", "lowered", "torch", "factory", "recurrent"])
def test_batches_are_those_of_threads(module) -> None:
    def collected(placement: str) -> list[Any]:
        options: dict[str, Any] = {}
        if module == "lowered":
            options["policy"] = TensorDictModule(policy_of(), ["observation"], ["action"])
            options["policy"] = _categorical(options["policy"])
        if module == "torch":
            options["policy"] = TensorDictModule(Greedy(), ["observation"], ["action"])
        if module == "factory":
            options["policy_factory"] = lambda: TensorDictModule(
                Greedy(), ["observation"], ["action"]
            )
        env = [lambda: gym.make("CartPole-v1")] * 2
        if module == "recurrent":
            # The best guess is what both agree on.
            options.update(policy=lstm(), exploration_type="DETERMINISTIC")
            env = [cartpole] * 2
        collector = MultiSyncCollector(
            env,
            frames_per_batch=60,
            total_frames=180,
            seed=5,
            placement=placement,
            track_traj_ids=True,
            **options,
        )
        try:
            return [batch.clone() for batch in collector]
        finally:
            collector.shutdown()

    for ours, theirs in zip(collected("processes"), collected("threads"), strict=True):
        assert set(ours.keys(True, True)) == set(theirs.keys(True, True))
        for key in ours.keys(True, True):
            assert torch.equal(ours[key], theirs[key]), key


def _categorical(module: TensorDictModule) -> Any:
    from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential

    scores = TensorDictModule(module.module, ["observation"], ["logits"])
    draw = ProbabilisticTensorDictModule(
        ["logits"], ["action"], distribution_class=torch.distributions.Categorical
    )
    return ProbabilisticTensorDictSequential(scores, draw)


def test_a_worker_with_a_native_policy_never_imports_torch(build) -> None:
    for policy in (
        None,
        _categorical(TensorDictModule(torch.nn.Linear(2, 2), ["observation"], ["action"])),
    ):
        collector = build(MultiSyncCollector, [without_torch] * 2, policy)
        assert collector.policy_backend == "native"
        assert sum(batch.numel() for batch in collector) == 200


def test_weights_reach_the_processes(build) -> None:
    policy = TensorDictModule(Greedy(), ["observation"], ["action"])
    collector = build(
        MultiSyncCollector, [lambda: gym.make("CartPole-v1")] * 2, policy, total_frames=-1
    )
    for batch in range(4):
        frames = next(collector)
        assert torch.equal(policy(frames.select("observation"))["action"], frames["action"]), batch
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.mul_(-1.5).add_(0.1)
        collector.update_policy_weights_()
    assert collector.policy_version == 4


def test_an_id_that_only_the_script_has_registered_is_known(build) -> None:
    gym.register("OnlyHere-v0", lambda: Counting(pace=3.0))
    try:
        for env in (GymEnv("OnlyHere-v0"), lambda: gym.make("OnlyHere-v0")):
            batch = next(build(MultiSyncCollector, [env] * 2))
            assert batch["next", "observation"][:, 0].max() == 30
    finally:
        del gym.registry["OnlyHere-v0"]


def test_init_fn_is_called_in_each_worker(build) -> None:
    def prepare() -> None:
        os.environ["PREPARED"] = "yes"

    def prepared() -> gym.Env:
        assert os.environ["PREPARED"] == "yes"
        return Counting()

    collector = build(MultiSyncCollector, [prepared] * 2, init_fn=prepare)
    assert next(collector).numel() == 40
    assert "PREPARED" not in os.environ


def test_libraries_of_a_worker_use_as_many_threads_as_it_says(build, monkeypatch) -> None:
    def threads() -> gym.Env:
        return Counting(pace=float(os.environ["OMP_NUM_THREADS"]))

    for asked, given, expected in [
        ({}, None, 1.0),
        ({"num_sub_threads": 3}, None, 3.0),
        ({}, "2", 2.0),
    ]:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if given is not None:
            monkeypatch.setenv("OMP_NUM_THREADS", given)
        batch = next(build(MultiSyncCollector, [threads] * 2, **asked))
        assert batch["next", "observation"][0, 0] == expected


@pytest.mark.parametrize(
    ("act", "kind", "told"),
    [
        (raises_value_error, ValueError, "no such road"),
        (raises_odd, RuntimeError, "Odd: mud at 3"),
        (raises_surrogates, OSError, "caf"),
        (raises_lock, LookupError, "held"),
    ],
)
@pytest.mark.parametrize("place", ["step", "constructor"])
def test_an_exception_comes_back_as_what_it_was(build, act, kind, told, place) -> None:
    def env() -> gym.Env:
        if place == "constructor":
            act()
        return Counting(act)

    with pytest.raises(Exception) as caught:
        next(build(MultiSyncCollector, [env, lambda: Counting()]))
    error: Any = caught.value
    if place == "step":
        assert isinstance(error, WorkerError)
        assert (error.worker, error.env, error.episode, error.step) == (0, 0, 0, 6)
        assert f"in {act.__name__}" in str(error), "the traceback is in the message"
        error = error.__cause__
    assert type(error) is kind
    assert told in str(error)
    assert f"in {act.__name__}" in str(error.__cause__)


def test_an_interruption_of_a_worker_ends_the_call(build) -> None:
    def interrupts() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(build(MultiSyncCollector, [lambda: Counting(interrupts)] * 2, on_loss=3))


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (lambda: os._exit(3), "exit status 3"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "signal 9 (SIGKILL)"),
        (os.abort, "signal 6 (SIGABRT)"),
    ],
)
def test_the_end_of_a_process_is_told_with_its_place(build, end, told) -> None:
    with pytest.raises(WorkerError, match="episode 0, step 6") as caught:
        next(build(MultiSyncCollector, [lambda: Counting(end), lambda: Counting()]))
    error: Any = caught.value
    assert told in str(error) and error.worker == 0


def test_what_was_collected_before_an_end_is_delivered_after_it(build) -> None:
    def end() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    collector = build(AsyncCollector, lambda: Counting(end), num_envs=2, frames_per_batch=8)
    assert next(collector).shape == (2, 4)
    with pytest.raises(WorkerError, match="SIGKILL"):
        next(collector)


def test_a_crash_leaves_its_stack(build) -> None:
    with pytest.raises(WorkerError, match="SIGSEGV") as caught:
        next(
            build(
                MultiSyncCollector,
                [
                    lambda: Counting(lambda: os.kill(os.getpid(), signal.SIGSEGV)),
                    lambda: Counting(),
                ],
            )
        )
    assert "Fatal Python error: Segmentation fault" in str(caught.value)
    assert "in step" in str(caught.value)


@pytest.mark.parametrize("on_loss", [1, "continue"])
def test_a_killed_worker_is_replaced_or_left_out(build, on_loss) -> None:
    collector = build(
        MultiSyncCollector, [lambda: Counting()] * 2, total_frames=-1, on_loss=on_loss
    )
    next(collector)
    before = processes(collector)
    os.kill(before[1], signal.SIGKILL)
    assert ends(before[1])
    for _ in range(20):
        next(collector)
    after = processes(collector)
    assert after[0] == before[0]
    if on_loss == 1:
        assert after[1] not in (None, before[1])
        assert collector.stats()["restarts"] == 1
    else:
        assert after[1] is None
        assert "SIGKILL" in collector.losses()[0]


@pytest.mark.parametrize("killed", [0, 2])
def test_the_others_fill_the_share_of_a_worker_that_is_killed(build, killed: int) -> None:
    options: dict[str, Any] = {
        "frames_per_batch": 45,
        "on_loss": "continue",
        "allow_partial_batch": False,
    }
    collector = build(MultiSyncCollector, [lambda: Counting()] * 3, total_frames=-1, **options)
    steps = dict.fromkeys(processes(collector), 0)
    lost = processes(collector)[killed]
    for place in range(20):
        batch = next(collector)
        assert batch.shape == (45,)
        frames = zip(
            batch["observation"].int().tolist(),
            batch["next", "observation"].int().tolist(),
            strict=True,
        )
        for (step, process), (after, _) in frames:
            assert step == steps[process] and after == step + 1
            steps[process] = after % 10
        if place == 3:
            os.kill(lost, signal.SIGKILL)
            assert ends(lost)
    assert collector.stats()["workers_alive"] == 2 and "SIGKILL" in collector.losses()[0]


def test_what_cannot_be_pickled_is_named() -> None:
    lock, other = threading.Lock(), threading.Lock()

    def guarded() -> gym.Env:
        with lock:
            return Counting()

    def policy(observation: torch.Tensor) -> torch.Tensor:
        with other:
            return observation

    for env, actor, named in [
        (
            guarded,
            None,
            r"sends create_env_fn to each worker, but create_env_fn uses lock, <unlocked _thread.lock",
        ),
        (lambda: Counting(), policy, "sends policy to each worker, but policy.* uses other, "),
    ]:
        with pytest.raises(TypeError, match=named):
            MultiSyncCollector([env] * 2, actor, frames_per_batch=10, placement="processes")


def test_environments_are_asked_and_told_where_they_are(build) -> None:
    collector = build(
        MultiSyncCollector, [lambda: Counting(), lambda: Counting(pace=2.0)], total_frames=-1
    )
    assert collector.get_distant_attr("env.pace") == [1.0, 2.0]
    next(collector)
    first, second = collector.get_distant_attr("env.resets")
    assert first == second > 2
    assert collector.map_fn("env.faster", [(2.0,), (5.0,)]) == [2.0, 10.0]
    assert next(collector)["next", "observation"][:, 0].max() == 100
    env = collector.env
    assert env.observation_space == Counting.observation_space
    assert env.unwrapped.pace == [2.0, 10.0]
    env.unwrapped.pace = 7.0
    assert next(collector)["next", "observation"][:20, 0].max() == 70
    assert all(text in repr(env.unwrapped) for text in ("worker 0", "worker 1", "Counting"))
    with pytest.raises(AttributeError, match="no attribute 'speed'"):
        collector.get_distant_attr("env.speed")
    assert collector.cascade_execute("env.faster", 1.0) == [7.0, 7.0]


def alike(ours: Any, theirs: Any) -> bool:
    """Whether two nested dictionaries have equal tensors and numbers."""
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(alike(ours[key], theirs[key]) for key in ours)
    return torch.equal(torch.as_tensor(ours), torch.as_tensor(theirs))


def test_states_of_environments_are_saved_and_loaded() -> None:
    from torchrl.envs import Compose, GymEnv as TheirGymEnv, TransformedEnv, VecNorm

    def normed() -> Any:
        return TransformedEnv(TheirGymEnv("CartPole-v1"), Compose(VecNorm(in_keys=["observation"])))

    def collector() -> Any:
        return MultiSyncCollector(
            [normed] * 2, frames_per_batch=40, total_frames=-1, placement="processes"
        )

    first = collector()
    try:
        next(first)
        state = first.state_dict()
        assert sorted(state["env_state_dict"]) == ["worker0", "worker1"]
        assert state["env_state_dict"]["worker0"]
    finally:
        first.shutdown()
    second = collector()
    try:
        second.load_state_dict(state)
        again = second.state_dict()["env_state_dict"]
        assert alike(again, state["env_state_dict"])
    finally:
        second.shutdown()


def test_frames_are_written_in_the_background(build) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=8)
    collector = build(
        MultiAsyncCollector, [lambda: Counting()] * 2, replay_buffer=buffer, total_frames=400
    )
    collector.start()
    until(lambda: not collector.is_running())
    assert buffer.write_count == 400
    collector.shutdown()


SCRIPT = """
import os, signal, sys
import gymnasium as gym
from windrow.collectors import MultiSyncCollector

class Mine(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,))
    action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}
    def step(self, action):
        return self.observation_space.sample(), 1.0, False, False, {}

collector = MultiSyncCollector([lambda: Mine()] * 4, frames_per_batch=400, total_frames=-1)
print(next(collector).shape, *(collector.stats("per_worker")[f"worker_{worker}/pid"] for worker in range(4)), flush=True)
"""


def run(code: str, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(code)
    command = [sys.executable, *(arguments or [str(script)])]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_a_script_needs_no_guard_and_leaves_nothing_behind(tmp_path) -> None:
    done = run(SCRIPT, tmp_path)
    assert done.returncode == 0 and not done.stderr, done.stderr
    shape, *pids = done.stdout.rsplit(maxsplit=4)
    assert shape == "torch.Size([400])"
    assert all(ends(int(process)) for process in pids)


def test_code_on_the_command_line_needs_no_module(tmp_path) -> None:
    done = run("", tmp_path, "-c", SCRIPT)
    assert done.returncode == 0 and "torch.Size([400])" in done.stdout, done.stderr


def test_what_a_worker_prints_is_seen(tmp_path) -> None:
    noisy = SCRIPT.replace(
        "super().reset(seed=seed)",
        "super().reset(seed=seed); print('begun'); print('loud', file=sys.stderr)",
    )
    done = run(noisy + "collector.shutdown()\n", tmp_path)
    assert done.returncode == 0
    assert done.stdout.count("begun") >= 4 and done.stderr.count("loud") >= 4, (
        done.stdout,
        done.stderr,
    )


def test_ctrl_c_prints_one_traceback_and_leaves_no_process(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "while True: next(collector)\n")
    primary, secondary = os.openpty()
    # A terminal of its own, whose Ctrl-C reaches its foreground processes.
    with subprocess.Popen(
        [sys.executable, "-c", TERMINAL, str(script)],
        stdin=secondary,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        os.close(secondary)
        assert process.stdout is not None and process.stderr is not None
        pids = process.stdout.readline().rsplit(maxsplit=4)[1:]
        os.write(primary, b"\x03")
        errors = process.stderr.read()
        status = process.wait(60)
    os.close(primary)
    assert status in (130, -signal.SIGINT), errors
    assert errors.count("Traceback (most recent call last)") == 1, errors
    assert errors.rstrip().endswith("KeyboardInterrupt"), errors
    assert len(pids) == 4 and all(ends(int(process)) for process in pids)


TERMINAL = textwrap.dedent("""
    import fcntl, runpy, sys, termios
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
""")


def test_workers_end_with_a_collector_that_is_killed(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "os.kill(os.getpid(), signal.SIGKILL)\n")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == -signal.SIGKILL
    pids = done.stdout.rsplit(maxsplit=4)[1:]
    assert len(pids) == 4 and all(ends(int(process)) for process in pids)
