"""Worker processes that do not come back: with ``step_timeout`` each is a loss, whose error shows
what it was doing.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from functools import partial

import pytest
from test_processes import processes

import faulty
from faulty import Faulty
from windrow import WorkerError
from windrow.collectors import Collector, MultiSyncCollector

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")

#: Seconds of a step. A busy machine does not hold a worker up for as long, which would be taken for
#: frozen.
TIMEOUT = 1.5


@pytest.mark.parametrize(
    ("act", "seen"),
    [
        (faulty.endless, ["its thread was running", "in endless"]),
        (faulty.asleep, ["its thread was asleep", "in asleep", "in wait"]),
        # It answers nothing.
        (faulty.stopped, ["its thread was stopped by a signal (T)"]),
    ],
    ids=lambda act: getattr(act, "__name__", ""),
)
@pytest.mark.parametrize("place", ["reset", "step"])
def test_a_frozen_worker_is_a_loss_that_shows_its_stack(
    act: Callable[[], None], seen: list[str], place: str
) -> None:
    with Collector(
        partial(Faulty, act, place),
        frames_per_batch=20,
        total_frames=-1,
        placement="processes",
        step_timeout=TIMEOUT,
    ) as collector:
        with pytest.raises(WorkerError, match=f"step_timeout={TIMEOUT} s") as caught:
            for _ in range(5):
                next(collector)
    error = caught.value
    assert (error.worker, error.env, (error.episode, error.step)) == (
        0,
        0,
        {"reset": (0, 9), "step": (1, 6)}[place],
    )
    assert f"it was in `{place}" in str(error) and "my last words" in str(error)
    assert all(words in str(error) for words in seen), error
    if act is not faulty.stopped:
        assert f"in {place}\n" in str(error), "the function of the user's"


def test_a_frozen_worker_is_replaced() -> None:
    with MultiSyncCollector(
        [partial(Faulty, faulty.asleep, "step"), partial(Faulty, faulty.asleep, "")],
        frames_per_batch=20, total_frames=60, placement="processes", step_timeout=TIMEOUT, on_loss=9,
    ) as collector:  # fmt: skip
        assert sum(batch.numel() for batch in collector) == 60
        assert collector.stats()["restarts"] >= 1
        assert "in asleep" in collector.losses()[0]


TRACER = textwrap.dedent("""
    import ctypes, os, signal, sys
    libc = ctypes.CDLL(None, use_errno=True)
    process = int(sys.argv[1])
    PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207
    if libc.ptrace(PTRACE_SEIZE, process, None, None):
        sys.exit(f"not allowed: {os.strerror(ctypes.get_errno())}")
    libc.ptrace(PTRACE_INTERRUPT, process, None, None)
    os.waitpid(process, 0x40000000)
    print("holds it", flush=True)
    sys.stdin.readline()
""")


def test_a_worker_under_a_debugger_is_left_alone() -> None:
    with Collector(
        partial(Faulty, faulty.asleep, ""), frames_per_batch=20, total_frames=-1, placement="processes", step_timeout=TIMEOUT,
    ) as collector:  # fmt: skip
        next(collector)
        (worker,) = processes(collector)
        with subprocess.Popen(
            [sys.executable, "-c", TRACER, str(worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as debugger:
            assert (
                debugger.stdin is not None
                and debugger.stdout is not None
                and debugger.stderr is not None
            )
            if debugger.stdout.readline() != "holds it\n":
                pytest.skip(f"a debugger is {debugger.stderr.read().strip()}")
            # Much longer than a worker may take that nobody holds.
            threading.Timer(3 * TIMEOUT, debugger.stdin.close).start()
            assert next(collector).numel() == 20
        assert processes(collector) == [worker] and not collector.losses()
