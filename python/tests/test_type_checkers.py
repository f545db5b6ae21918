"""Type checkers see the arguments of every class."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import windrow

PACKAGES = Path(windrow.__file__).parent.parent
EXAMPLES = Path(__file__).parents[2] / "examples" / "python"
#: Code as users write it, with the types that pyright shows.
USES = Path(__file__).with_name("uses.py")

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
Collector(3, frames_per_batch=10)
Collector("CartPole-v1", 3, frames_per_batch=10)
Collector("CartPole-v1", frames_per_batch=10, replay_buffer="buffer")
Collector("CartPole-v1", frames_per_batch=10, interruptor=print)
Evaluator(None, print)
Collector("CartPole-v1", frames_per_batch=10, use_bufers=True)
"""

RIGHT = """\
from functools import partial

from windrow.collectors import Collector, Evaluator, Interruptor, MultiCollector, MultiSyncCollector, SyncDataCollector, VanillaWeightUpdater
from windrow.data import LazyTensorStorage, ReplayBuffer
from windrow.envs import AsyncEnvPool, Compose, GymEnv, ParallelEnv, RewardSum, SerialEnv, TransformedEnv, check_env
from windrow.modules import RandomPolicy, RemotePolicy

kinds: list[type[Collector]] = [Collector, SyncDataCollector]
Collector("CartPole-v1", None, frames_per_batch=1e2, total_frames=None, use_buffers=True).enable_profile(workers=[0])
MultiCollector(["CartPole-v1"], frames_per_batch=[10], sync=True, post_collect_hook=print)
several: MultiSyncCollector = MultiSyncCollector("CartPole-v1", num_workers=2, frames_per_batch=10, device="cpu")
Evaluator("CartPole-v1", print, metrics_fn=lambda batch: {"frames": batch.numel()}).shutdown()
env = TransformedEnv(GymEnv("CartPole-v1"), Compose(RewardSum(), lambda step: step))
Collector(env, RemotePolicy("unix:/policy"), frames_per_batch=10, replay_buffer=ReplayBuffer(storage=LazyTensorStorage(100)))
Collector(lambda: env, RandomPolicy(), frames_per_batch=10, interruptor=Interruptor(), weight_updater=VanillaWeightUpdater)
MultiSyncCollector([partial(GymEnv, "CartPole-v1"), env, "CartPole-v1"], policy_factory=RandomPolicy, frames_per_batch=10)
ParallelEnv(2, SerialEnv(2, [GymEnv, "CartPole-v1"]), device="cpu").append_transform(RewardSum())
AsyncEnvPool([lambda: env, lambda: env], backend="threading").rollout(3, lambda step: step)
check_env(env)
"""


def checked_by_mypy(file: Path, cache: Path, *further: str) -> str:
    """What mypy says of ``file``."""
    options = [
        "--no-site-packages",
        "--ignore-missing-imports",
        "--follow-imports=silent",
        "--config-file=",
    ]
    command = [
        sys.executable,
        "-m",
        "mypy",
        *options,
        *further,
        "--cache-dir",
        str(cache),
        str(file),
    ]
    found = subprocess.run(
        command, capture_output=True, text=True, env={"MYPYPATH": str(PACKAGES)}, check=False
    )
    assert found.returncode in (0, 1), found.stdout + found.stderr
    return found.stdout


def mypy(file: Path) -> set[int]:
    """Lines of ``file`` in which mypy finds an error."""
    return {
        int(line)
        for line in re.findall(
            rf"^{re.escape(str(file))}:(\d+): error",
            checked_by_mypy(file, file.parent / "cache"),
            re.MULTILINE,
        )
    }


def pyright_says(included: list[Path], folder: Path) -> list[dict[str, Any]]:
    """What pyright in its standard mode says of these files and folders, in their order."""
    settings = {
        "typeCheckingMode": "standard",
        "extraPaths": [str(PACKAGES), str(EXAMPLES)],
        "include": [str(path) for path in included],
    }
    project = folder / "pyrightconfig.json"
    project.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--project", str(project)]
    command += ["--pythonpath", sys.executable]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode in (0, 1), found.stdout + found.stderr
    return json.loads(found.stdout)["generalDiagnostics"]


def pyright(file: Path) -> set[int]:
    """Lines of ``file`` in which pyright finds an error."""
    said = pyright_says([file], file.parent)
    return {entry["range"]["start"]["line"] + 1 for entry in said if entry["severity"] == "error"}


#: What a name is for a type checker, by what is written.
REVEALED = {
    "windrow.collectors.Collector": "windrow.collectors._base.Collector",
    "windrow.collectors.Evaluator": "windrow.collectors._evaluator.Evaluator",
    "windrow.data.ReplayBuffer": "windrow.data.replay_buffers._buffer.ReplayBuffer",
    "windrow.data.replay_buffers.SliceSampler": "windrow.data.replay_buffers.samplers.SliceSampler",
    "windrow.envs.GymEnv": "windrow.envs.libs.gym.GymEnv",
    "windrow.modules.RemotePolicy": "windrow.modules._remote.RemotePolicy",
    "windrow.ray.RayCollector": "windrow.ray._collector.RayCollector",
    "windrow.PerformanceWarning": "windrow._warnings.PerformanceWarning",
    "windrow.torchrl.collectors.MultiSyncCollector": "windrow.torchrl.collectors.MultiSyncCollector",
    "windrow.torchrl.collectors.Evaluator": "windrow.collectors._evaluator.Evaluator",
    "windrow.torchrl.envs.ParallelEnv": "windrow.torchrl.envs.ParallelEnv",
    "windrow.torchrl.envs.GymEnv": "windrow.envs.libs.gym.GymEnv",
    "windrow.torchrl.data.LazyTensorStorage": "windrow.data.replay_buffers.storages.LazyTensorStorage",
    "windrow.torchrl.modules.RemotePolicy": "windrow.modules._remote.RemotePolicy",
}


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_a_checker_knows_the_names_of_all_packages(tmp_path: Path) -> None:
    file = tmp_path / "names.py"
    file.write_text(
        "\n".join(["import windrow", *(f"reveal_type({name}(*[]))" for name in REVEALED)])
    )
    shown = re.findall(r'Revealed type is "([^"]*)"', checked_by_mypy(file, tmp_path / "cache"))
    assert dict(zip(REVEALED, shown, strict=True)) == REVEALED


CHECKERS = [
    pytest.param(
        run,
        marks=pytest.mark.skipif(
            importlib.util.find_spec(module) is None, reason=f"{module} is not installed"
        ),
    )
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


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_the_strictest_checks_find_nothing_in_what_users_write(tmp_path: Path) -> None:
    said = checked_by_mypy(USES, tmp_path / "cache", "--strict")
    assert "error:" not in said, said


@pytest.mark.skipif(importlib.util.find_spec("basedpyright") is None, reason="it is not installed")
def test_examples_have_no_wrong_type_and_results_are_of_the_types_written_beside_them(
    tmp_path: Path,
) -> None:
    said = pyright_says([USES, EXAMPLES], tmp_path)
    assert [entry for entry in said if entry["severity"] == "error"] == []
    shown = [re.search(r'is "(.*)"$', entry["message"]) for entry in said]
    written = re.findall(r"\)  # (.+)$", USES.read_text(), re.MULTILINE)
    assert [found and found[1] for found in shown] == written
