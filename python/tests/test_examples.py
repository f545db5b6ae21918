"""The examples, a few frames of each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "python"


@pytest.mark.parametrize(
    ("name", "frames", "told"),
    [
        ("ppo_halfcheetah", 4000, "mean return: "),
        ("ppo", 2048, "mean return: "),
        ("ppo_continuous", 2048, "mean return: "),
        ("recurrent_ppo", 2048, "mean return: "),
        ("dqn", 1500, "mean return: "),
        ("sac", 1050, "mean return: "),
        ("td3", 1050, "mean return: "),
        ("ppo_atari", 1024, "mean return: "),
        ("cleanrl_ppo", 2000, "see cleanrl_ppo.png"),
        ("sb3_ppo", 1000, "mean return of the last "),
        ("native_policy", 1000, "the first two did the same: True"),
        ("onnx_policy", 1000, "all three did the same: True"),
        ("async_batched", 6400, "mean steps: "),
        ("ray_offpolicy", 1200, "mean return: "),
        ("own_environment", 4096, "mean return: "),
        ("resume", 3000, "the weights are the same: True"),
        ("several_agents", 1200, "mean reward of the one that learns: "),
        ("offline_data", 8000, "after learning from the data set"),
        ("worker_losses", 3000, "all there were to collect: True"),
        ("evaluator_video", 2000, "filmed in videos/eval_"),
        ("tensorboard_run", 2000, "logged in runs/dqn"),
        ("two_machines", 1500, "127.0.0.2: 1500 rows, 0 wrong, 3 workers started"),
    ],
)
def test_examples(name: str, frames: int, told: str, tmp_path: Path) -> None:
    if name == "onnx_policy":
        pytest.importorskip("onnxruntime", reason="the example needs the extra onnx")
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--frames", str(frames)]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert told in finished.stdout


@pytest.mark.parametrize(("name", "frames"), [("ppo", 8192), ("sac", 1200)])
def test_a_program_that_is_killed_goes_on_with_the_same_weights(
    name: str, frames: int, tmp_path: Path
) -> None:
    command = [
        sys.executable,
        str(FOLDER / "resume.py"),
        f"{name}.py",
        "--frames",
        str(frames),
        "--kills",
        "2",
    ]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "the weights are the same: True" in finished.stdout, finished.stderr


@pytest.mark.parametrize(
    "name", ["ppo", "ppo_continuous", "recurrent_ppo", "ppo_atari", "dqn", "sac", "td3"]
)
def test_a_whole_program_has_as_many_lines_as_its_page_says(name: str) -> None:
    lines = len((FOLDER / f"{name}.py").read_text().splitlines())
    # As `ruff format` lays them out, at 100 columns.
    assert lines <= 325
    assert (
        f"[`{name}.py`](../examples/python/{name}.py) | {lines} |"
        in (FOLDER.parents[1] / "docs" / "programs.md").read_text()
    )


def test_every_example_is_run() -> None:
    parametrized = test_examples.pytestmark[0].args[1]
    assert {name for name, _, _ in parametrized} == {path.stem for path in FOLDER.glob("*.py")}
