"""Type checkers see the arguments of every class."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import windrow

#: Each line has one wrong call, but for the first two.
WRONG = """\
from windrow.collectors import AsyncCollector, Collector, Evaluator, MultiSyncCollector, aSyncDataCollector

Collector("CartPole-v1", frames_per_batch=10, frames_per_bach=3)
Collector("CartPole-v1", frames_per_batch="many")
AsyncCollector("CartPole-v1", frames_per_batch=10, sync=True)
MultiSyncCollector(["CartPole-v1"], frames_per_batch=10, backend="direct")
aSyncDataCollector("CartPole-v1", frames_per_batch=10, on_loss=None)
Evaluator("CartPole-v1", print, busy_policy="wait")
Collector("CartPole-v1", frames_per_batch=10).enable_profile(num_rollout=3)
"""

RIGHT = """\
from windrow.collectors import Collector, Evaluator, MultiCollector, MultiSyncCollector, SyncDataCollector

kinds: list[type[Collector]] = [Collector, SyncDataCollector]
Collector("CartPole-v1", None, frames_per_batch=1e2, total_frames=None, use_buffers=True).enable_profile(workers=[0])
MultiCollector(["CartPole-v1"], frames_per_batch=[10], sync=True, post_collect_hook=print)
several: MultiSyncCollector = MultiSyncCollector("CartPole-v1", num_workers=2, frames_per_batch=10, device="cpu")
Evaluator("CartPole-v1", print, metrics_fn=lambda batch: {"frames": batch.numel()}).shutdown()
"""


def mypy(file: Path) -> set[int]:
    """Lines of ``file`` in which mypy finds an error."""
    package = str(Path(windrow.__file__).parent.parent)
    options = ["--no-site-packages", "--ignore-missing-imports", "--follow-imports=silent", "--config-file="]
    command = [sys.executable, "-m", "mypy", *options, "--cache-dir", str(file.parent / "cache"), str(file)]
    found = subprocess.run(command, capture_output=True, text=True, env={"MYPYPATH": package}, check=False)
    assert found.returncode in (0, 1), found.stdout + found.stderr
    return {int(line) for line in re.findall(rf"^{re.escape(str(file))}:(\d+): error", found.stdout, re.MULTILINE)}


def pyright(file: Path) -> set[int]:
    """Lines of ``file`` in which pyright finds an error."""
    settings = {"typeCheckingMode": "standard", "extraPaths": [str(Path(windrow.__file__).parent.parent)], "include": [file.name]}
    (file.parent / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--project", str(file.parent)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode in (0, 1), found.stdout + found.stderr
    told = json.loads(found.stdout)["generalDiagnostics"]
    return {entry["range"]["start"]["line"] + 1 for entry in told if entry["severity"] == "error"}


CHECKERS = [
    pytest.param(run, marks=pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{module} is not installed"))
    for run, module in [(mypy, "mypy"), (pyright, "basedpyright")]
]


@pytest.mark.parametrize("checker", CHECKERS)
def test_each_wrong_call_is_reported(checker, tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(WRONG)
    assert checker(file) == set(range(3, len(WRONG.splitlines()) + 1))


@pytest.mark.parametrize("checker", CHECKERS)
def test_right_calls_are_not_reported(checker, tmp_path: Path) -> None:
    file = tmp_path / "right.py"
    file.write_text(RIGHT)
    assert checker(file) == set()
