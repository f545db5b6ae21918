"""Figures of collectors and evaluators, logged."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from cartpole import KINDS
from windrow.collectors import Collector, Evaluator
from windrow.data import LazyTensorStorage, ReplayBuffer


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("kind", "envs"), KINDS, ids=lambda value: getattr(value, "__qualname__", "")
)
def test_a_function_gets_the_figures_of_every_class(kind: Any, envs: Any) -> None:
    rows: list[tuple[int, dict[str, float]]] = []
    policy = nn.Linear(4, 2)
    arguments = {"frames_per_batch": 100, "total_frames": 900, "seed": 0, "log_interval": 0}
    with kind(
        envs, policy, logger=lambda figures, step: rows.append((step, dict(figures))), **arguments
    ) as collector:
        episodes = [0.0]
        for batch in collector:
            collector.update_policy_weights_()
            for reward, done in zip(
                batch["next", "reward"].flatten().tolist(), batch["next", "done"].flatten().tolist()
            ):
                episodes[-1] += reward
                episodes += [0.0] if done else []
    assert [step for step, _ in rows] == list(range(100, 1000, 100))
    last = rows[-1][1]
    assert (
        last["time/total_timesteps"] == 900 and last["time/fps"] > 0 and last["policy/version"] >= 8
    )
    assert last["workers/alive"] == collector.stats()["workers"] and last["workers/losses"] == 0
    assert last["policy/lag_max"] >= last["policy/lag_mean"] >= 0 and last["policy/age_max"] >= 0
    if kind is Collector:
        assert last["rollout/ep_rew_mean"] == pytest.approx(sum(episodes[:-1]) / len(episodes[:-1]))
        assert (
            last["rollout/episodes"] == len(episodes) - 1
            and last["rollout/ep_len_mean"] == last["rollout/ep_rew_mean"]
        )


def test_phases_tell_waiting_from_work() -> None:
    rows: list[dict[str, float]] = []
    with Collector(
        "CartPole-v1",
        frames_per_batch=100,
        total_frames=500,
        logger=lambda figures, _: rows.append(dict(figures)),
        log_interval=0,
    ) as collector:
        for _ in collector:
            time.sleep(0.02)
    assert sum(row["time/learning"] for row in rows) >= 0.08
    assert 0 < sum(row["time/collecting"] for row in rows) < 10


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("sb3", {"rollout/ep_rew_mean", "rollout/ep_len_mean", "time/fps", "time/total_timesteps"}),
        (
            "cleanrl",
            {"charts/episodic_return", "charts/episodic_length", "charts/SPS", "global_step"},
        ),
        ("torchrl", {"train/reward", "train/episode_length", "time/speed"}),
    ],
)
def test_figures_have_the_names_of_a_library(
    names: Any, expected: set[str], tmp_path: Path
) -> None:
    path = tmp_path / "runs" / "progress.csv"
    with Collector(
        "CartPole-v1", frames_per_batch=100, total_frames=200, logger=path, log_names=names
    ) as collector:
        list(collector)
    assert expected <= rows_of(path)[-1].keys()


def test_rows_are_an_interval_apart_and_the_last_frames_have_one() -> None:
    steps: list[int] = []
    with Collector(
        "CartPole-v1",
        frames_per_batch=10,
        total_frames=1000,
        logger=lambda _, step: steps.append(step),
        log_interval=60,
    ) as collector:
        for batch in collector:
            del batch
    assert steps == [10, 1000]
    steps.clear()
    with Collector(
        "CartPole-v1",
        frames_per_batch=10,
        logger=lambda _, step: steps.append(step),
        log_interval=60,
    ) as collector:
        for _, batch in zip(range(5), collector):
            del batch
    assert steps == [10, 50]


def test_a_buffer_that_is_filled_in_the_background_is_logged() -> None:
    rows: list[dict[str, float]] = []
    buffer = ReplayBuffer(storage=LazyTensorStorage(1000))
    collector = Collector(
        "CartPole-v1",
        frames_per_batch=100,
        total_frames=500,
        replay_buffer=buffer,
        logger=lambda row, _: rows.append(dict(row)),
        log_interval=0,
    )
    collector.start()
    while collector.is_running():
        time.sleep(0.005)
    collector.shutdown()
    assert [row["buffer/size"] for row in rows] == [0, 100, 200, 300, 400]
    assert rows[-1]["buffer/fill"] == 0.4 and "time/learning" not in rows[-1]


def test_an_error_of_the_logger_is_raised_with_the_batch() -> None:
    def full(figures: Any, step: int) -> None:
        raise OSError("no space left")

    with (
        Collector("CartPole-v1", frames_per_batch=100, logger=full) as collector,
        pytest.raises(OSError, match="no space left"),
    ):
        next(collector)


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        (
            {"logger": "tensorboard"},
            ValueError,
            r"logger is the path of a CSV file, which ends with .csv, .* got 'tensorboard'",
        ),
        (
            {"logger": 3},
            TypeError,
            "expected the path of a CSV file, .* as logger, got builtins.int",
        ),
        (
            {"log_names": "rllib"},
            ValueError,
            'log_names must be "sb3", "cleanrl" or "torchrl", got \'rllib\'',
        ),
        (
            {"log_interval": -1},
            ValueError,
            "log_interval must be a number of seconds, 0 or more, got -1",
        ),
    ],
)
def test_what_nothing_can_be_logged_to_is_refused(given: Any, error: Any, told: str) -> None:
    with pytest.raises(error, match=told):
        Collector("CartPole-v1", frames_per_batch=100, **given)


def test_a_file_is_gone_on_with_after_a_torn_row(tmp_path: Path) -> None:
    path = tmp_path / "progress.csv"
    run = {"frames_per_batch": 100, "total_frames": 200, "logger": path, "log_interval": 0}
    list(Collector("CartPole-v1", **run))
    with path.open("a") as file:
        file.write("300,30")
    list(Collector("CartPole-v1", nn.Linear(4, 2), **run))
    assert [row["step"] for row in rows_of(path)] == ["100", "200", "100", "200"]


def test_a_killed_process_leaves_whole_rows(tmp_path: Path) -> None:
    path = tmp_path / "progress.csv"
    program = (
        "from windrow.collectors import Collector\n"
        f"collector = Collector('CartPole-v1', frames_per_batch=10, logger={os.fspath(path)!r}, log_interval=0)\n"
        "for batch in collector: print(flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(50):
            process.stdout.readline()
        process.kill()
    rows = rows_of(path)
    assert len(rows) >= 49 and all(None not in row and None not in row.values() for row in rows)
    assert [row["step"] for row in rows] == [str(10 * number) for number in range(1, len(rows) + 1)]


def test_loggers_of_libraries_get_figures(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    writer = tensorboard.SummaryWriter(tmp_path)
    list(
        Collector(
            "CartPole-v1", frames_per_batch=100, total_frames=300, logger=writer, log_interval=0
        )
    )
    with Evaluator("CartPole-v1", num_trajectories=2, logger=writer) as evaluator:
        result = evaluator.evaluate(step=300)
    writer.close()
    read = events.EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in read.Scalars("time/fps")] == [100, 200, 300]
    assert read.Scalars("eval/reward")[0].value == pytest.approx(result["eval/reward"])
    assert read.Scalars("eval/reward")[0].step == 300


def test_a_logger_of_torchrl_gets_figures(tmp_path: Path) -> None:
    from torchrl.record import CSVLogger

    list(
        Collector(
            "CartPole-v1",
            frames_per_batch=100,
            total_frames=300,
            logger=CSVLogger("run", str(tmp_path)),
            log_interval=0,
        )
    )
    assert (tmp_path / "run" / "scalars" / "time" / "fps.csv").read_text().startswith("100,")


def test_a_run_of_wandb_gets_figures_over_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(mode="offline", dir=tmp_path, project="windrow") as run:
        run.log({"loss": 1.0})
        list(
            Collector(
                "CartPole-v1", frames_per_batch=100, total_frames=300, logger=run, log_interval=0
            )
        )
        assert run.summary["windrow/step"] == 300 and run.summary["time/total_timesteps"] == 300
        assert run.summary["loss"] == 1.0
