"""One fault behind each door, and cases of vectors alone. ``python -m doors`` makes all
of them.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import windrow
from doors.environment import FAULTS, Faulty
from doors.table import DOORS, THREADS, cell, envs, silent, vector
from windrow import _ports
from windrow.collectors import Evaluator
from windrow.envs import ParallelEnv

#: A fault for each door, so that each fault has one.
CELLS: list[tuple[str, str, Any]] = [
    ("Collector", "killed", 3),
    ("MultiSyncCollector", "stopped", "raise"),
    ("MultiAsyncCollector", "exits", 3),
    ("AsyncBatchedCollector", "hangs in step", 3),
    ("make_vec", "hangs in reset", 3),
    ("sb3.VecEnv", "raises", "raise"),
    ("sb3.VecEnv", "exits", 3),
    ("Evaluator", "raises", 3),
]


@pytest.mark.parametrize(("door", "fault", "on_loss"), CELLS, ids=lambda value: str(value))
def test_a_fault_is_noticed_and_named_and_rows_are_right(
    door: str, fault: str, on_loss: Any, tmp_path: Path
) -> None:
    found = cell(door, fault, on_loss, tmp_path)
    assert found.is_right, found


def test_each_door_and_each_fault_has_a_cell() -> None:
    assert {door for door, _, _ in CELLS} == set(DOORS)
    assert {fault for _, fault, _ in CELLS} == set(FAULTS)


@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
@pytest.mark.parametrize("fault", ["killed", "raises"])
def test_a_lost_row_is_the_last_observation_in_every_mode(
    mode: str, fault: str, tmp_path: Path
) -> None:
    found = vector(fault, 3, str(tmp_path / "mark"), mode)
    assert found.is_right, found


@pytest.mark.parametrize("door", ["MultiSyncCollector", "AsyncBatchedCollector", "Evaluator"])
def test_a_frozen_worker_in_a_thread_is_reported(door: str, tmp_path: Path) -> None:
    found = silent(door, THREADS, str(tmp_path / "mark"), 0.3)
    assert found.is_right, found


@pytest.mark.parametrize("door", ["MultiAsyncCollector", "make_vec", "Evaluator"])
def test_a_frozen_worker_in_a_process_is_reported(door: str, tmp_path: Path) -> None:
    found = silent(door, DOORS, str(tmp_path / "mark"), 0.3)
    assert found.is_right, found


def test_a_group_that_does_not_return_is_reported_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_ports, "SILENT", 0.3)
    mark = str(tmp_path / "mark")
    faults = [None, None, None, "hangs in step"]
    makers = [partial(Faulty, number, fault, mark) for number, fault in enumerate(faults)]
    envs = windrow.make_vec(makers, workers=2, on_loss=3, step_timeout=3.0)
    try:
        envs.reset(seed=0)
        with pytest.warns(windrow.Warning, match="worker 1, environments 2 to 3: a step or reset"):
            while not Path(mark).exists():
                envs.step(np.zeros(4, np.int64))
    finally:
        envs.close()


def test_a_vector_in_the_calling_thread_replaces_an_environment_that_raises(tmp_path: Path) -> None:
    found = THREADS["make_vec"]("raises", 3, str(tmp_path / "mark"))
    assert found.is_right, found


def test_losses_of_a_worker_add_up_over_exceptions_and_deaths() -> None:
    envs = windrow.make_vec(
        [partial(Always, "raises"), partial(Always, "exits")], workers=1, on_loss=3
    )
    reasons = []
    try:
        envs.reset(seed=0)
        with pytest.raises(RuntimeError, match="again"):
            for _ in range(40):
                info = envs.step(np.zeros(2, np.int64))[4]
                reasons += [reason for reason in info.get("lost", ()) if reason]
    finally:
        envs.close()
    raised, ended = "RuntimeError: again", "its process ended with exit status 3; it was in `step`"
    assert [reason[: len(ended)] for reason in reasons] == [raised, raised, ended, ended], (
        "the death is one of the worker"
    )


def test_the_first_environment_is_made_anew_too(tmp_path: Path) -> None:
    envs = windrow.make_vec([partial(Faulty, 0, "raises", str(tmp_path / "mark"))], on_loss=3)
    first = envs.envs[0]  # type: ignore[attr-defined]
    envs.reset(seed=0)
    while first.taken < 15:
        envs.step(np.zeros(1, np.int64))
    assert envs.envs[0] is not first  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [None, 1])
def test_an_environment_that_cannot_be_made_again_is_named(
    workers: int | None, tmp_path: Path
) -> None:
    fault = "raises" if workers is None else "exits"
    makers = [partial(Once, fault, str(tmp_path / "made"))]
    envs = windrow.make_vec(makers, workers=workers, on_loss=3)
    try:
        envs.reset(seed=0)
        with pytest.raises(RuntimeError, match="made once") as raised:
            for _ in range(20):
                envs.step(np.zeros(1, np.int64))
        text = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", [])])
        assert "environment 0" in text and ("exit status 3" in text or "broke" in text), text
        if workers is not None:
            with pytest.raises(RuntimeError, match="the one in its place failed: .*made once"):
                envs.step(np.zeros(1, np.int64))
    finally:
        envs.close()


def test_a_call_of_a_process_that_has_ended_names_it_and_the_way_out(tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    envs = windrow.make_vec(
        [partial(Faulty, place, None, mark) for place in range(2)], workers=2, on_loss=3
    )
    try:
        envs.reset(seed=0)
        os.kill(envs.call("pid")[1], signal.SIGKILL)  # type: ignore[attr-defined]
        with pytest.raises(
            windrow.WorkerError, match="worker 1, environment 1: .* next step or reset"
        ):
            for _ in range(1000):
                envs.get_attr("number")  # type: ignore[attr-defined]
        assert envs.step(np.zeros(2, np.int64))[4]["lost"][1]
        assert envs.get_attr("number") == (0, 1)  # type: ignore[attr-defined]
    finally:
        envs.close()


class Once(Faulty):
    """Fails in its third step, and cannot be made a second time."""

    def __init__(self, fault: str, made: str) -> None:
        super().__init__(0, fault, "")
        try:
            Path(made).touch(exist_ok=False)
        except FileExistsError:
            raise RuntimeError("made once") from None

    def step(self, action: Any) -> Any:
        self.taken += 1
        if self.taken < 3:
            return self._seen(), 0.0, False, False, {}
        if self.fault == "exits":
            os._exit(3)
        raise RuntimeError("a cable broke")


class Always(Faulty):
    """Fails in the third step of each of its lives, by an exception, or later by its end."""

    def __init__(self, fault: str) -> None:
        super().__init__(0, fault, "")

    def step(self, action: Any) -> Any:
        self.taken += 1
        if self.fault == "raises" and self.taken == 3:
            raise RuntimeError("again")
        if self.fault == "exits" and self.taken == 8:
            os._exit(3)
        return self._seen(), 0.0, False, False, {}


class Seeded(Faulty):
    """Observes the seed of its episode."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.number = -1 if seed is None else seed % 1000
        return self._seen(), {}


def seeds_of_new_environments(fault: str, workers: int | None, mark: Path) -> Any:
    envs = windrow.make_vec([partial(Seeded, 0, fault, str(mark))], workers=workers, on_loss=3)
    try:
        envs.reset(seed=5)
        for _ in range(20):
            seen, _, _, truncated, _ = envs.step(np.zeros(1, np.int64))
            if truncated[0]:
                return envs.step(np.zeros(1, np.int64))[0][0, 0]
    finally:
        envs.close()


def test_a_new_environment_has_a_seed_that_follows_from_those_before(tmp_path: Path) -> None:
    of_raised = seeds_of_new_environments("raises", None, tmp_path / "a")
    of_killed = seeds_of_new_environments("killed", 1, tmp_path / "b")
    assert of_raised == of_killed not in (-1, 5)


def test_members_that_are_received_some_at_a_time_are_replaced(tmp_path: Path) -> None:
    made = windrow.make_vec(
        envs(3, "killed", str(tmp_path / "mark")), workers=3, batch_size=1, on_loss=3
    )
    try:
        made.async_reset(seed=0)
        lost = 0
        for _ in range(120):
            seen, _, _, truncated, info = made.recv()
            lost += int("lost" in info)
            assert ("lost" in info) == bool(truncated[0])
            assert seen[0, 0] == info["env_id"][0]
            made.send(np.zeros(1, np.int64), info["env_id"])
        assert lost == 1
    finally:
        made.close()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"on_loss": "continue"},
            ValueError,
            'on_loss="continue": a vector keeps its number of environments',
        ),
        (
            {"on_loss": "never"},
            ValueError,
            'on_loss must be "raise" or how often a worker is replaced',
        ),
        ({"on_loss": -1}, ValueError, "on_loss must be 0 or more"),
        (
            {"step_timeout": 1.0},
            ValueError,
            "step_timeout=1.0 needs environments of Gymnasium in processes",
        ),
        (
            {"step_timeout": 0, "workers": 1},
            ValueError,
            "step_timeout must be a number of seconds above 0",
        ),
        (
            {"env": Faulty(0, None, ""), "on_loss": 3},
            ValueError,
            "on_loss=3 makes new environments, got one object",
        ),
        (
            {"env": ParallelEnv(2, partial(Faulty, 0, None, "")), "on_loss": 3},
            ValueError,
            "without transforms",
        ),
        (
            {"on_loss": 3, "transforms": windrow.envs.StepCounter()},
            ValueError,
            "without transforms",
        ),
    ],
)
def test_arguments_that_vectors_refuse(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        windrow.make_vec(**{"env": [partial(Faulty, 0, None, "")], **arguments})


def test_an_evaluator_does_not_go_on_without_its_worker() -> None:
    with pytest.raises(ValueError, match='on_loss="continue": an evaluator has one worker'):
        Evaluator("CartPole-v1", on_loss="continue")  # type: ignore[arg-type]
