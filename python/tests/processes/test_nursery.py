"""Worker processes, which one process forks."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule
from test_processes import TERMINAL, Greedy, build, processes, run

from counting import Counting, without_torch
from waiting import ends
from windrow import WorkerError
from windrow.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from windrow.envs import GymEnv

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")

__all__ = ["build"]


class Ones(torch.nn.Module):
    """Evaluated by torch."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        # A decision by numbers.
        assert not observation.isnan().any()
        return (observation[..., 0] % 2).long()


def policy() -> TensorDictModule:
    return TensorDictModule(Ones(), ["observation"], ["action"])


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def parents(collector: Any) -> set[int]:
    return set(map(parent_of, processes(collector)))


def ask(collector: Any, function: Callable[[], Any]) -> list[Any]:
    """What ``function`` returns in each worker."""
    return collector.map_fn("env.told", [(function,)] * collector.stats()["workers"])


@pytest.fixture
def forked(build) -> Callable[..., Any]:
    def make(
        kind: Any = MultiSyncCollector, workers: int = 2, env: Any = Counting, **options: Any
    ) -> Any:
        envs = (lambda: env()) if kind is Collector else [lambda: env()] * workers
        return build(kind, envs, policy(), total_frames=-1, **options)

    return make


def test_one_process_forks_the_workers_of_all_collectors_and_their_successors(forked) -> None:
    first, second, third = forked(), forked(MultiAsyncCollector, on_loss=1), forked(Collector)
    (nursery,) = parents(first) | parents(second) | parents(third)
    assert nursery != os.getpid()
    next(second)
    before = processes(second)
    os.kill(before[0], signal.SIGKILL)
    assert ends(before[0])
    while second.stats()["restarts"] == 0 or None in processes(second):
        next(second)
    assert parents(second) == {nursery} and processes(second)[0] != before[0]
    assert "signal 9 (SIGKILL)" in second.losses()[0]
    for collector in (first, second, third):
        assert next(collector).numel() == 40
        collector.shutdown()


@pytest.mark.parametrize("case", ["native", "policy", "factory", "environment", "names", "kwargs"])
def test_a_worker_has_torch_where_it_needs_it(build, case) -> None:
    def named() -> gym.Env:
        assert torch.is_tensor(torch.zeros(1))
        return Counting()

    def given(pace: Any) -> gym.Env:
        return Counting(pace=float(pace))

    options: dict[str, Any] = {}
    envs: list[Any] = []
    env: Any = without_torch if case == "native" else lambda: Counting()
    if case == "policy":
        options["policy"] = policy()
    if case == "factory":
        options["policy_factory"] = policy
    if case == "environment":
        from torchrl.envs import GymEnv

        envs = [GymEnv("CartPole-v1") for _ in range(2)]
    if case == "names":
        env = named
    if case == "kwargs":
        env, options["create_env_kwargs"] = given, {"pace": torch.tensor(2.0)}
    collector = build(MultiSyncCollector, envs or [env] * 2, **options)
    (nursery,) = parents(collector)
    assert ("torch" in Path(f"/proc/{nursery}/cmdline").read_text().split("\0")) == (
        case != "native"
    )
    assert next(collector).numel() == 40


def test_workers_draw_numbers_of_their_own(forked) -> None:
    def draw() -> tuple[float, ...]:
        return random.random(), np.random.random(), torch.rand((), dtype=torch.float64).item()

    for numbers in zip(*(drawn for _ in range(2) for drawn in ask(forked(workers=3), draw))):
        assert len(set(numbers)) == 6


def test_a_worker_finds_what_this_process_would_find(forked, monkeypatch, tmp_path) -> None:
    forked()
    (tmp_path / "added_later.py").write_text("place = 'found'")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADDED_LATER", "set")
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def look() -> Any:
        import added_later  # type: ignore[import-not-found]

        return (
            added_later.place,
            os.getcwd(),
            os.environ["ADDED_LATER"],
            os.environ.get("HOME"),
            torch.get_num_threads(),
        )

    seen = ("found", str(tmp_path), "set", None)
    assert ask(forked(), look) == [(*seen, 1)] * 2
    assert ask(forked(num_sub_threads=3), look) == [(*seen, 3)] * 2
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert ask(forked(), look) == [(*seen, 2)] * 2


def test_another_start_of_the_interpreter_takes_another_process(forked, monkeypatch) -> None:
    before = parents(forked())
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    (hashed,) = set(ask(collector := forked(), lambda: hash("windrow")))
    assert parents(collector) != before
    plain = subprocess.run(
        [sys.executable, "-c", "print(hash('windrow'))"], capture_output=True, text=True, check=True
    )
    assert hashed == int(plain.stdout)


def test_a_worker_holds_no_descriptor_of_another(forked) -> None:
    def sockets() -> list[str]:
        names = []
        for fd in os.listdir("/proc/self/fd"):
            # The one by which they are listed is closed by then.
            with contextlib.suppress(OSError):
                names.append(os.readlink(f"/proc/self/fd/{fd}"))
        return [name for name in names if "socket" in name]

    first, second = forked(workers=3), forked()
    held = [*ask(first, sockets), *ask(second, sockets)]
    # Its control socket, twice: a thread watches it.
    assert [len(set(links)) for links in held] == [1] * 5
    assert len({link for links in held for link in links}) == 5


def test_workers_say_what_the_process_that_forks_them_imports(
    forked, tmp_path, monkeypatch
) -> None:
    marks = tmp_path / "marks"
    (tmp_path / "marking.py").write_text(
        f"import os\nprint(os.getpid(), file=open({str(marks)!r}, 'a'))\nfrom counting import Counting"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONMARKED", "a nursery of its own")
    import marking  # type: ignore[import-not-found]

    collector = forked(env=marking.Counting, init_fn=lambda: marking)
    next(collector)
    (nursery,) = parents(collector)
    assert set(map(int, marks.read_text().split())) == {os.getpid(), *processes(collector)} - {
        nursery
    }


@pytest.mark.parametrize("on_loss", ["raise", 2])
def test_a_kill_of_the_process_that_forks_is_a_loss_of_its_workers(forked, on_loss) -> None:
    collector = forked(on_loss=on_loss)
    next(collector)
    (nursery,) = parents(collector)
    before = processes(collector)
    os.kill(nursery, signal.SIGKILL)
    assert all(map(ends, [nursery, *before]))
    if on_loss == "raise":
        with pytest.raises(WorkerError, match="the process that forks workers was killed"):
            for _ in range(20):
                next(collector)
    else:
        while collector.stats()["restarts"] < 2 or None in processes(collector):
            next(collector)
        assert next(collector).numel() == 40
    assert parents(forked()).isdisjoint({nursery, os.getpid()})


def test_a_crash_leaves_its_stack(build) -> None:
    crash = lambda: Counting(lambda: os.kill(os.getpid(), signal.SIGSEGV))  # noqa: E731
    with pytest.raises(WorkerError, match="SIGSEGV") as caught:
        next(build(MultiSyncCollector, [crash, lambda: Counting()], policy()))
    assert "Fatal Python error: Segmentation fault" in str(caught.value)
    assert "in step" in str(caught.value)


def test_weights_reach_forked_workers(build) -> None:
    module = TensorDictModule(Greedy(), ["observation"], ["action"])
    collector = build(
        MultiSyncCollector, [lambda: gym.make("CartPole-v1")] * 2, module, total_frames=-1
    )
    for _ in range(3):
        frames = next(collector)
        assert torch.equal(module(frames.select("observation"))["action"], frames["action"])
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(-1.5)
        collector.update_policy_weights_()


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

def parent_of(process):
    return int(open(f"/proc/{process}/stat").read().rpartition(")")[2].split()[1])

def collect(workers=2):
    global collector
    collector = MultiSyncCollector([Mine] * workers, None, frames_per_batch=40, total_frames=-1, placement="processes")
    next(collector)
    pids = [collector.stats("per_worker")[f"worker_{worker}/pid"] for worker in range(workers)]
    return *pids, *{parent_of(process) for process in pids}

"""


@pytest.mark.parametrize(
    "end",
    ["", "os.kill(os.getpid(), signal.SIGKILL)", "raise RuntimeError", "collector.shutdown()"],
)
def test_nothing_outlives_the_program(tmp_path, end) -> None:
    done = run(f"{SCRIPT}print(*collect(), flush=True)\n{end}\n", tmp_path)
    pids = list(map(int, done.stdout.split()))
    assert len(pids) == 3 and all(map(ends, pids)), done.stderr
    assert "Traceback" not in done.stderr or end.startswith("raise"), done.stderr


def test_ctrl_c_reaches_the_program_alone(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"{SCRIPT}print(*collect(), flush=True)\nwhile True: next(collector)\n")
    primary, secondary = os.openpty()
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
        pids = list(map(int, process.stdout.readline().split()))
        os.write(primary, b"\x03")
        errors = process.stderr.read()
        status = process.wait(60)
    os.close(primary)
    assert status in (130, -signal.SIGINT), errors
    assert errors.count("Traceback (most recent call last)") == 1, errors
    assert len(pids) == 3 and all(map(ends, pids))


def test_a_child_of_fork_has_a_process_of_its_own_that_forks(tmp_path) -> None:
    fork = """
*_, ours = collect()
child = os.fork()
if child == 0:
    *_, theirs = collect()
    assert theirs not in (ours, os.getpid()), (theirs, ours)
    collector.shutdown()
    print("child", theirs, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
next(collector)
*_, again = collect()
assert again == ours
print("parent", ours)
"""
    done = run(SCRIPT + fork, tmp_path)
    assert done.returncode == 0, done.stderr
    pids = [int(word) for word in done.stdout.split() if word.isdecimal()]
    assert len(pids) == 2 and all(map(ends, pids))


def test_a_child_of_fork_keeps_nothing_alive(tmp_path) -> None:
    fork = """
print(*collect(), flush=True)
if os.fork() == 0:
    os.close(1)
    os.close(2)
    signal.alarm(180)
    signal.pause()
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = run(SCRIPT + fork, tmp_path)
    assert all(map(ends, map(int, done.stdout.split())))


@pytest.mark.parametrize("trouble", ["thread", "import"])
def test_workers_are_spawned_where_no_process_can_fork_them(tmp_path, trouble) -> None:
    code = {
        "thread": "import threading, time; threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()",
        "import": "sys.exit(9)",
    }
    site = f"import sys\nif 'windrow.processes.nursery' in sys.orig_argv:\n    {code[trouble]}\n"
    (tmp_path / "sitecustomize.py").write_text(site)
    here = f"import os, sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
    done = run(f"{here}{SCRIPT}for _ in range(2): assert collect()[-1] == os.getpid()\n", tmp_path)
    assert done.returncode == 0, done.stderr
    assert ("has 2 threads" in done.stderr) == (trouble == "thread"), done.stderr


def test_started_by_hand_it_says_what_it_is_for() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "windrow.processes.nursery"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "is started by collectors" in done.stderr


class Unseeded(gym.Env[Any, Any]):
    """Observes the first observation of an environment of windrow that it has made without a
    seed.
    """

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self._inner = GymEnv("CartPole-v1").reset()["observation"].numpy()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._inner, {}

    def step(self, action: Any) -> Any:
        return self._inner, 0.0, False, False, {}


def test_what_workers_make_without_a_seed_draws_other_numbers_in_each() -> None:
    seen = []
    for _ in range(2):
        with MultiSyncCollector(
            [Unseeded] * 2, placement="processes", frames_per_batch=2, cat_results="stack"
        ) as collector:
            seen += [tuple(worker[0].tolist()) for worker in next(collector)["observation"]]
    assert len(set(seen)) == 4
