"""How programs with worker processes end, and what else they may do: whatever it is, no process is
left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from test_fork import in_child
from test_processes import TERMINAL, processes
from torch.utils.data import DataLoader, Dataset

import faulty
from faulty import Faulty
from waiting import ends, until
from windrow.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from windrow.data import LazyTensorStorage, ReplayBuffer

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]

SCRIPT = """
import os, signal, sys, threading, time, warnings
import gymnasium as gym
from windrow.collectors import MultiSyncCollector
from windrow.data import LazyTensorStorage, ReplayBuffer

where = "{where}"

def wait(place):
    if place == where:
        # In one piece: workers come here at once, and an unbuffered print writes the end of the line on its own.
        os.write(1, b"here\\n")
        # A wait without end misses a signal that comes between the last instruction of Python's and the wait itself.
        while not threading.Event().wait(1):
            pass

class Mine(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,))
    action_space = gym.spaces.Discrete(2)
    def __init__(self):
        os.write(1, f"worker {{os.getpid()}}\\n".encode())
        wait("build")
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {{}}
    def step(self, action):
        wait("step")
        return self.observation_space.sample(), 1.0, False, False, {{}}
    def close(self):
        wait("close")

class Lost(Exception):
    pass

# Nobody samples: the background warns of that at any moment, also after a traceback.
warnings.filterwarnings("ignore", message=".*overwritten since the last sample")
buffer = ReplayBuffer(storage=LazyTensorStorage(1000)) if where == "background" else None
collector = MultiSyncCollector(
    [lambda: Mine()] * 3, frames_per_batch=300, total_frames=-1, placement="processes", replay_buffer=buffer,
    post_collect_hook=lambda batch: wait("hook"),
)
if buffer is None:
    next(collector)
else:
    collector.start()
{then}
"""


def started(code: str, tmp_path: Path, terminal: int | None = None) -> subprocess.Popen[str]:
    """A program, at a terminal of its own if one is given."""
    script = tmp_path / "script.py"
    script.write_text(code)
    command = [sys.executable, *([] if terminal is None else ["-c", TERMINAL]), str(script)]
    return subprocess.Popen(
        command,
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=terminal is not None,
    )


def workers_of(process: subprocess.Popen[str], ready: str) -> list[int]:
    """The workers that a program tells of until it says ``ready``, all three of them."""
    assert process.stdout is not None and process.stderr is not None
    pids, is_ready = [], False
    while not (is_ready and len(pids) >= 3):
        line = process.stdout.readline()
        assert line, process.stderr.read()
        is_ready |= line.strip() == ready
        pids += [int(line.split()[1])] if line.startswith("worker") else []
    return pids


#: Where Ctrl-C finds a program, and what that does after its first batch.
INTERRUPTED = {
    "build": "",
    "step": "",
    "collection": "print('here', flush=True)\nwhile True: next(collector)",
    "between": "wait('between')",
    "hook": "",
    "background": "wait('background')",
    "close": "collector.shutdown()",
}


@pytest.mark.parametrize("where", INTERRUPTED)
def test_ctrl_c_prints_one_traceback_and_leaves_no_process(where: str, tmp_path: Path) -> None:
    primary, secondary = os.openpty()
    with started(
        SCRIPT.format(where=where, then=INTERRUPTED[where]), tmp_path, secondary
    ) as process:
        os.close(secondary)
        pids = workers_of(process, "here")
        os.write(primary, b"\x03")
        assert process.stderr is not None
        errors = process.stderr.read()
        status = process.wait(60)
    os.close(primary)
    # A shell shows the latter as 130.
    assert status in (130, -signal.SIGINT), errors
    assert errors.count("Traceback (most recent call last)") == 1, errors
    assert errors.rstrip().splitlines()[-1].startswith("KeyboardInterrupt"), errors
    assert all(map(ends, pids))


#: What a program does in the end without a shutdown: its exit status, and words of its standard
#: error, if it may have any.
ENDINGS = {
    "os._exit(4)": (4, ""),
    "raise Lost('the way')": (1, "Lost: the way"),
    "os.kill(os.getpid(), signal.SIGTERM)": (-signal.SIGTERM, ""),
    # The thread may find its collector shut down.
    "threading.Thread(target=lambda: list(collector), daemon=True).start()": (0, None),
}


@pytest.mark.parametrize("then", ENDINGS, ids=["_exit", "error", "signal", "thread"])
def test_a_program_that_ends_without_a_shutdown_leaves_no_process(
    then: str, tmp_path: Path
) -> None:
    with started(
        SCRIPT.format(where="", then=f"print('here', flush=True)\n{then}"), tmp_path
    ) as process:
        pids = workers_of(process, "here")
        assert process.stderr is not None
        errors = process.stderr.read()
        status, told = ENDINGS[then]
        assert process.wait(60) == status, errors
    assert told is None or (told in errors if told else not errors), errors
    assert all(map(ends, pids))


def test_workers_end_with_a_killed_program_that_has_forked(tmp_path: Path) -> None:
    then = textwrap.dedent("""
        if not os.fork():
            with open(sys.argv[0] + ".child", "w") as file:
                file.write(str(os.getpid()))
            print("here", flush=True)
        signal.pause()
    """)
    with started(SCRIPT.format(where="", then=then), tmp_path) as process:
        pids = workers_of(process, "here")
        process.kill()
        assert all(map(ends, pids))
        # The child is still there, with all that it has inherited.
        os.kill(int((tmp_path / "script.py.child").read_text()), signal.SIGKILL)


#: Programs that have no file of their own, or another name.
RUNS = {
    "exec": ["-c", "exec(compile(open('script.py').read(), '<cell 1>', 'exec'))"],
    "stdin": ["-"],
    "module": ["-m", "inner.script"],
}


@pytest.mark.parametrize("is_started", [False, True], ids=["asked", "started"])
@pytest.mark.parametrize("kind", [MultiSyncCollector, MultiAsyncCollector])
@pytest.mark.parametrize("where", ["worker", "hook"])
def test_no_worker_outlives_the_error_of_its_collector(
    kind: Any, where: str, is_started: bool
) -> None:
    def fail(batch: Any) -> Any:
        raise ArithmeticError("in the hook")

    fine = partial(Faulty, faulty.ordinary, "nowhere")
    fails, postproc = (
        (partial(Faulty, faulty.ordinary, "step"), None) if where == "worker" else (fine, fail)
    )
    buffer = ReplayBuffer(storage=LazyTensorStorage(4000)) if is_started else None
    collector = kind(
        [fails, fine],
        frames_per_batch=10,
        total_frames=4000,
        placement="processes",
        postproc=postproc,
        replay_buffer=buffer,
    )
    pids = processes(collector)
    try:
        if is_started:
            collector.start()
            until(lambda: not collector.is_running())
        else:
            with pytest.raises((RuntimeError, ArithmeticError)):
                list(collector)
        assert all(map(ends, pids))
    finally:
        collector.shutdown(raise_on_error=False)


@pytest.mark.parametrize("how", RUNS)
def test_programs_without_a_file_and_modules_need_no_guard(how: str, tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import gymnasium as gym
        from windrow import WorkerError
        from windrow.collectors import MultiSyncCollector

        class Lost(Exception):
            pass

        class Mine(gym.Env):
            observation_space = gym.spaces.Box(-1, 1, (3,))
            action_space = gym.spaces.Discrete(2)
            def reset(self, *, seed=None, options=None):
                super().reset(seed=seed)
                self.steps = 0
                return self.observation_space.sample(), {}
            def step(self, action):
                self.steps += 1
                if self.steps > 250:
                    raise Lost(f"in {Lost.__module__}")
                return self.observation_space.sample(), 1.0, False, False, {}

        collector = MultiSyncCollector([lambda: Mine()] * 2, frames_per_batch=400, total_frames=-1, placement="processes")
        print(next(collector).shape)
        try:
            next(collector)
        except WorkerError as error:
            # The class is the one of this program, not a copy of it.
            assert type(error.__cause__) is Lost, type(error.__cause__)
            print(error.__cause__)
    """)
    package = tmp_path / "inner"
    package.mkdir()
    (package / "__init__.py").touch()
    for folder in (tmp_path, package):
        (folder / "script.py").write_text(code)
    done = subprocess.run(
        [sys.executable, *RUNS[how]],
        input=code,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["torch.Size([400])", "in __main__"]


def test_a_child_of_fork_ends_without_the_workers_of_its_parent() -> None:
    collector = MultiSyncCollector(
        [partial(Faulty, faulty.leave, "")] * 2,
        frames_per_batch=40,
        total_frames=-1,
        placement="processes",
    )
    try:
        batch = next(collector)
        before, expected = processes(collector), batch.clone()

        def work() -> None:
            assert (batch == expected).all()
            with pytest.raises(RuntimeError, match="belongs to process"):
                next(collector)
            collector.shutdown()

        in_child(work)
        assert next(collector).numel() == 40 and processes(collector) == before
        # Nor do those that come after it keep anything of theirs.
        os.kill(before[0], signal.SIGKILL)
        assert ends(before[0])
    finally:
        collector.shutdown(raise_on_error=False)
    assert ends(before[1])


@pytest.mark.parametrize("killed", [False, True])
def test_what_an_environment_has_started_ends_with_its_worker(killed: bool, tmp_path: Path) -> None:
    started = tmp_path / "pid"

    def make() -> Faulty:
        child = subprocess.Popen(["sleep", "1000"])
        started.write_text(str(child.pid))
        return Faulty(faulty.leave, "")

    collector = Collector(
        make, frames_per_batch=20, total_frames=-1, placement="processes", on_loss=1
    )
    next(collector)
    child = int(started.read_text())
    if killed:
        (worker,) = processes(collector)
        os.kill(worker, signal.SIGKILL)
        assert ends(child)
        # The file is empty for a moment, before the new worker has written to it.
        until(lambda: started.read_text() not in ("", str(child)))
        child = int(started.read_text())
    collector.shutdown()
    assert ends(child)


class Frames(Dataset[torch.Tensor]):
    """The observations of batches."""

    def __init__(self, batches: list[Any]) -> None:
        self.observations = torch.cat([batch["observation"] for batch in batches])

    def __len__(self) -> int:
        return len(self.observations)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.observations[index]


def test_a_loader_with_workers_reads_batches_while_others_are_collected() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10_000), batch_size=32)
    envs = [partial(Faulty, faulty.leave, "")] * 2
    options: dict[str, Any] = {"frames_per_batch": 40, "placement": "processes", "seed": 1}
    with (
        MultiAsyncCollector(envs, total_frames=-1, replay_buffer=buffer, **options) as filling,
        MultiSyncCollector(envs, total_frames=80, **options) as delivering,
    ):
        filling.start()
        frames = Frames(list(delivering))
        for _ in range(2):
            loader = DataLoader(frames, batch_size=8, num_workers=2)
            assert torch.equal(torch.cat(list(loader)), frames.observations)
        written = buffer.write_count
        until(lambda: buffer.write_count > written)
        assert filling.stats()["workers_alive"] == 2
