"""Text and tensors whose shape changes, in one batch: from every place, through transforms,
trajectories and files.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchrl")

import windrow.envs as envs
from telling import TEXT, Both, has_both
from windrow._objects import Objects
from windrow.collectors import AsyncBatchedCollector, Collector, CommandLauncher, MultiSyncCollector
from windrow.data import LazyMemmapStorage, ReplayBuffer, SliceSampler

pytestmark = [
    pytest.mark.filterwarnings("ignore:environments written in Python share:UserWarning"),
    pytest.mark.filterwarnings("ignore:environments run in threads:UserWarning"),
]

PLACES: dict[str, dict[str, Any]] = {
    "inline": {"placement": "inline"},
    "threads": {"placement": "threads"},
    "processes": {"placement": "processes"},
    "elsewhere": {"launcher": CommandLauncher([sys.executable, "-m", "windrow.worker"])},
}


@pytest.mark.parametrize("place", PLACES)
def test_a_batch_has_them_wherever_its_workers_are(place: str) -> None:
    with MultiSyncCollector(
        [Both] * 2, None, frames_per_batch=28, total_frames=56, **PLACES[place]
    ) as collector:
        batches = list(collector)
    assert len(batches) == 2 and all(map(has_both, batches))


def test_members_in_processes_pass_them_on() -> None:
    env = envs.ParallelEnv(2, Both)
    with Collector(env, None, frames_per_batch=28, total_frames=56) as collector:
        assert all(has_both(batch) for batch in collector)

    def act(tensordict: Any) -> Any:
        return tensordict.set("action", tensordict["data", "count"] > 2)

    with AsyncBatchedCollector([Both] * 2, act, frames_per_batch=14, total_frames=28) as collector:
        assert all(has_both(batch) for batch in collector)


def test_transforms_that_do_not_read_them_leave_them_as_they_are() -> None:
    own = envs.UnsqueezeTransform(-1, in_keys=[("data", "count")], out_keys=["count"])
    env = envs.TransformedEnv(Both(), envs.Compose(own, envs.StepCounter(), envs.RewardSum()))
    batch = next(Collector(env, None, frames_per_batch=14))
    assert (
        has_both(batch)
        and batch["step_count"].flatten().tolist() == batch["data", "count"].flatten().tolist()
    )
    with pytest.raises(Exception, match=r"text.*got bytes"):
        next(
            Collector(
                envs.TransformedEnv(Both(), envs.UnsqueezeTransform(-1, in_keys=[TEXT])),
                None,
                frames_per_batch=14,
            )
        )


def test_trajectories_have_them() -> None:
    for batch in Collector(
        Both(), None, frames_per_batch=14, total_frames=42, trajs_per_batch=2, track_traj_ids=True
    ):
        mask = batch["collector", "mask"] if ("collector", "mask") in batch.keys(True) else None
        assert has_both(batch if mask is None else batch[mask])


PROGRAM = """
import sys, time
from telling import Both
from windrow.collectors import MultiSyncCollector
from windrow.data import LazyMemmapStorage, ReplayBuffer

buffer = ReplayBuffer(storage=LazyMemmapStorage(50, scratch_dir=sys.argv[1]))
collector = MultiSyncCollector([Both] * 2, None, frames_per_batch=14, total_frames=-1, placement="threads", replay_buffer=buffer)
for number, _ in enumerate(collector):
    if number == 9:
        print("filled", flush=True)
"""


def test_a_mapped_buffer_has_them_after_its_process_was_killed(tmp_path: Path) -> None:
    paths = os.pathsep.join(filter(None, sys.path))
    program = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path / "frames")],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout is not None and program.stdout.readline() == "filled\n"
        program.send_signal(signal.SIGKILL)
        program.wait(timeout=60)
    finally:
        program.kill()
    buffer = ReplayBuffer(
        storage=LazyMemmapStorage(50, scratch_dir=tmp_path / "frames"),
        sampler=SliceSampler(slice_len=1),
        batch_size=8,
    )
    # A row that was being written when the process died is empty.
    assert len(buffer) >= 36 and has_both(buffer[:]) and has_both(buffer.sample())


@pytest.mark.parametrize("value", ["", "text", "\ud800", None, 3, b"bytes", ("a", 1), [None]])
def test_objects_are_what_they_were(value: Any) -> None:
    back = Objects().read(Objects().write(value, ["entry"]))
    assert back == value and type(back) is type(value)


def test_none_is_a_value_that_needs_no_pickle() -> None:
    assert (
        Objects().write(None, ["entry"])[:1] not in (b"", Objects().write(3, ["entry"])[:1])
        and Objects().read(b"") is None
    )
