"""The cells of the table, each of a door, a fault and a value of ``on_loss``."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from doors.environment import HOLD, LENGTH, RELEASE, Faulty, when

OnLoss = Literal["raise", 3]
#: Seconds after which a worker counts as frozen.
TIMEOUT = 1.5


@dataclass
class Cell:
    """The result of a fault.

    Attributes:
        noticed: seconds until an error was raised or a loss could be read; None for never.
        error: the message of the error or the loss.
        worker: the number of the worker and of the environment that failed, which the message has
            to name; negative for an environment without a worker.
        wrong: a description of wrong rows; empty if all rows are right.
    """

    noticed: float | None
    error: str
    worker: int
    wrong: str

    @property
    def names(self) -> bool:
        """The message names worker and environment."""
        is_worker = self.worker < 0 or f"worker {self.worker}" in self.error
        return is_worker and f"environment {abs(self.worker)}" in self.error

    @property
    def is_right(self) -> bool:
        return self.noticed is not None and self.names and not self.wrong


def envs(count: int, fault: str, mark: str) -> list[Callable[[], Faulty]]:
    """Functions that make environments, of which the last one fails."""
    return [
        partial(Faulty, number, fault if number == count - 1 else None, mark)
        for number in range(count)
    ]


class Listener:
    """Calls ``losses`` in a thread until it returns one."""

    def __init__(self, losses: Callable[[], list[str]]) -> None:
        self.at: float | None = None
        self.message = ""
        self._losses, self._over = losses, threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        is_over = False
        while not is_over:
            # One more call after the end.
            is_over = self._over.wait(0.005)
            if found := self._losses():
                self.at, self.message = time.monotonic(), found[0]
                return

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def _text(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


def collector(
    name: str, count: int, fault: str, on_loss: OnLoss, mark: str, **options: Any
) -> Cell:
    """A collector of the class ``name``."""
    from windrow import collectors

    kind: Any = getattr(collectors, name)
    makers: Any = envs(count, fault, mark)
    options = {
        "frames_per_batch": 8 * count,
        "total_frames": 80 * count,
        "on_loss": on_loss,
        "step_timeout": TIMEOUT,
        **options,
    }
    made = kind(makers if name != "Collector" else makers[0], **options)
    batches: list[Any] = []
    listener, error = Listener(made.losses), None
    try:
        for batch in made:
            batches.append(batch.clone())
    except Exception as raised:
        error = raised
    finally:
        at = time.monotonic()
        listener.end()
        made.shutdown(raise_on_error=False)
    wrong = _rows_of_trajectories(batches)
    if on_loss == "raise":
        return Cell(
            at - when(mark) if error is not None else None,
            _text(error) if error else "",
            count - 1,
            wrong,
        )
    frames = sum(batch.numel() for batch in batches)
    wrong = wrong or (
        f"{type(error).__name__}: {error}"
        if error
        else ""
        if frames == 80 * count
        else f"{frames} frames"
    )
    return Cell(
        None if listener.at is None else listener.at - when(mark),
        listener.message,
        count - 1,
        wrong,
    )


def _rows_of_trajectories(batches: list[Any]) -> str:
    """Says which rows of ``batches`` are wrong."""
    runs: dict[int, list[tuple[float, float, float]]] = {}
    for batch in batches:
        flat = batch.reshape(-1)
        ids = flat["collector", "traj_ids"].tolist()
        steps, rewards = (
            flat["observation"][:, 1].tolist(),
            flat["next", "reward"].reshape(-1).tolist(),
        )
        following = flat["next", "observation"][:, 1].tolist()
        for number, *row in zip(ids, steps, following, rewards, strict=True):
            runs.setdefault(number, []).append((row[0], row[1], row[2]))
    for number, rows in runs.items():
        expected = [(float(step), step + 1.0, step + 1.0) for step in range(len(rows))]
        if rows != expected or len(rows) > LENGTH:
            return f"trajectory {number}: {rows}"
    return ""


def evaluator(
    fault: str,
    on_loss: OnLoss,
    mark: str,
    backend: Literal["thread", "process"] = "process",
    step_timeout: float | None = TIMEOUT,
) -> Cell:
    """An evaluator."""
    from windrow.collectors import Evaluator

    [env] = envs(1, fault, mark)
    with Evaluator(
        env,
        None,
        num_trajectories=6,
        on_loss=on_loss,
        step_timeout=step_timeout,
        backend=backend,
        shutdown_timeout=1.0,
    ) as made:
        listener, error, result = Listener(made.losses), None, {}
        try:
            result = made.evaluate()
        except Exception as raised:
            error = raised
        finally:
            at = time.monotonic()
            listener.end()
    if on_loss == "raise":
        return Cell(
            at - when(mark) if error is not None else None, _text(error) if error else "", 0, ""
        )
    wrong = (
        ""
        if result.get("eval/reward") == 55.0 and result["eval/num_episodes"] == 6
        else f"{error or result}"
    )
    return Cell(
        None if listener.at is None else listener.at - when(mark), listener.message, 0, wrong
    )


@dataclass
class _Step:
    seen: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    at: float


def vector(
    fault: str,
    on_loss: OnLoss,
    mark: str,
    mode: str = "NextStep",
    workers: int | None = 2,
    step_timeout: float | None = TIMEOUT,
) -> Cell:
    """A vector of Gymnasium's form."""
    import windrow

    made = windrow.make_vec(
        envs(2, fault, mark),
        workers=workers,
        autoreset_mode=mode,
        on_loss=on_loss,
        step_timeout=step_timeout,
    )

    def steps() -> Iterator[list[_Step]]:
        seen, _ = made.reset(seed=7)
        yield [_Step(seen[env].copy(), 0.0, False, False, {}, 0.0) for env in range(2)]
        for _ in range(40):
            seen, reward, terminated, truncated, info = made.step(np.zeros(2, np.int64))
            at = time.monotonic()
            yield [
                _Step(
                    seen[env].copy(),
                    float(reward[env]),
                    bool(terminated[env]),
                    bool(truncated[env]),
                    _of(info, env),
                    at,
                )
                for env in range(2)
            ]
            ended = terminated | truncated
            if mode == "Disabled" and ended.any():
                seen, _ = made.reset(options={"reset_mask": ended})
                yield [
                    _Step(seen[env].copy(), 0.0, False, False, {"begun": bool(ended[env])}, at)
                    for env in range(2)
                ]

    found = _vector_cell(steps, made.close, mode, on_loss, mark)
    return found if workers is not None else replace(found, worker=-found.worker)


def _of(info: dict[str, Any], env: int) -> dict[str, Any]:
    """The entries of ``info`` that environment ``env`` has."""
    names = [name for name in info if name[0] != "_" and info[f"_{name}"][env]]
    return {
        name: _of(info[name], env) if isinstance(info[name], dict) else info[name][env]
        for name in names
    }


def sb3(fault: str, on_loss: OnLoss, mark: str, step_timeout: float | None = TIMEOUT) -> Cell:
    """A vector of Stable-Baselines3's form."""
    from windrow.sb3 import VecEnv

    made = VecEnv(envs(2, fault, mark), workers=2, on_loss=on_loss, step_timeout=step_timeout)

    def steps() -> Iterator[list[_Step]]:
        made.seed(7)
        seen = made.reset()
        yield [_Step(seen[env].copy(), 0.0, False, False, {}, 0.0) for env in range(2)]
        for _ in range(40):
            seen, reward, dones, infos = made.step(np.zeros(2, np.int64))
            at, rows = time.monotonic(), []
            for env in range(2):
                info = {**infos[env]}
                if dones[env]:
                    last = info.pop("terminal_observation")
                    info = {"final_obs": last, "final_info": info}
                cut = bool(dones[env]) and bool(infos[env]["TimeLimit.truncated"])
                rows.append(
                    _Step(
                        seen[env].copy(),
                        float(reward[env]),
                        bool(dones[env]) and not cut,
                        cut,
                        info,
                        at,
                    )
                )
            yield rows

    return _vector_cell(steps, made.close, "SameStep", on_loss, mark)


def _vector_cell(
    steps: Callable[[], Iterator[list[_Step]]],
    close: Callable[[], None],
    mode: str,
    on_loss: OnLoss,
    mark: str,
) -> Cell:
    taken: list[list[_Step]] = []
    error = None
    try:
        taken.extend(steps()) if on_loss != "raise" else [taken.append(step) for step in steps()]
    except Exception as raised:
        error = raised
    at = time.monotonic()
    close()
    wrong = next(
        filter(
            None, (_rows_of_vector([step[env] for step in taken], env, mode) for env in range(2))
        ),
        "",
    )
    if on_loss == "raise":
        return Cell(
            at - when(mark) if error is not None else None, _text(error) if error else "", 1, wrong
        )
    if error is not None:
        return Cell(None, _text(error), 1, f"{type(error).__name__}: {error}")
    lost = [row for step in taken for row in step if _reason(row)]
    if len(lost) != 1:
        return Cell(None, "", 1, wrong or f"{len(lost)} rows say that they are lost")
    # The row is that of the environment.
    return Cell(lost[0].at - when(mark), f"worker 1, environment 1: {_reason(lost[0])}", 1, wrong)


def _reason(row: _Step) -> str | None:
    of_last: dict[str, Any] = row.info.get("final_info") or {}
    return of_last.get("lost") or row.info.get("lost")


def _rows_of_vector(rows: list[_Step], env: int, mode: str) -> str:
    """Says which rows of environment ``env`` are wrong."""
    if not rows or rows[0].seen.tolist() != [env, 0]:
        return f"environment {env} began with {rows[:1]}"
    count, begins = 0, False
    for row in rows[1:]:
        if "begun" in row.info:
            count = 0 if row.info["begun"] else count
            expected: Any = ([env, count], 0.0, False, False)
        elif begins:
            count, begins = 0, False
            expected = ([env, 0], 0.0, False, False)
            if _reason(row):
                # The reset was lost: a row of no step.
                count, expected = LENGTH, ([env, LENGTH], 0.0, False, True)
                begins = True
        elif _reason(row):
            expected = ([env, count], 0.0, False, True)
        else:
            count += 1
            expected = ([env, count], float(count), count == LENGTH, False)
        last = row.seen
        if mode == "SameStep" and (expected[2] or expected[3]):
            last = row.info["final_obs"]
            if row.seen.tolist() != [env, 0]:
                return f"environment {env} began anew with {row.seen}"
            count = 0
        elif mode == "NextStep":
            begins = expected[2] or expected[3]
        got = (last.tolist(), row.reward, row.terminated, row.truncated)
        if got != expected:
            return f"environment {env}: expected {expected}, got {got}"
    return ""


def silent(name: str, doors: dict[str, Callable[..., Cell]], mark: str, after: float) -> Cell:
    """The cell of a worker behind one of ``doors`` that hangs without a ``step_timeout``, with the
    time until a warning names it. Then the process is killed, or the thread goes on. Others wait
    for that as well, so that a collector does not do without the one that hangs.
    """
    from windrow import _ports

    worker = 0 if name in ("Collector", "Evaluator") else 1
    before, _ports.SILENT = _ports.SILENT, after
    warned: list[tuple[float, str]] = []
    over = threading.Event()

    def rescue() -> None:
        while not over.wait(0.01):
            # On a busy machine, other workers may be as slow, and be reported first.
            for warning in caught if Path(mark).exists() else ():
                message = str(warning.message)
                if (
                    message.startswith(f"worker {worker},")
                    and "no call of its environment" in message
                ):
                    warned.append((time.monotonic(), message))
                    hold.unlink()
                    # Without a process in the message, the worker is a thread here.
                    RELEASE.set()
                    if found := re.search(r"is process (\d+)", message):
                        os.kill(int(found[1]), signal.SIGKILL)
                    return

    RELEASE.clear()
    hold = Path(mark + HOLD)
    hold.touch()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rescuer = threading.Thread(target=rescue)
        rescuer.start()
        try:
            found = doors[name]("hangs in step", 3, mark, step_timeout=None)
        finally:
            over.set()
            rescuer.join()
            hold.unlink(missing_ok=True)
            _ports.SILENT = before
            RELEASE.clear()
    at, message = warned[0] if warned else (None, "")
    return Cell(
        None if at is None else at - when(mark),
        message,
        found.worker,
        found.wrong if warned else "nobody was warned",
    )


#: Each door, by its name in the table.
DOORS: dict[str, Callable[[str, OnLoss, str], Cell]] = {
    "Collector": partial(collector, "Collector", 1, placement="processes"),
    "MultiSyncCollector": partial(collector, "MultiSyncCollector", 2),
    "MultiAsyncCollector": partial(collector, "MultiAsyncCollector", 2),
    "AsyncBatchedCollector": partial(collector, "AsyncBatchedCollector", 2),
    "make_vec": vector,
    "sb3.VecEnv": sb3,
    "Evaluator": evaluator,
}


#: Doors whose environments are in threads of this process.
THREADS: dict[str, Callable[[str, OnLoss, str], Cell]] = {
    "Collector": partial(collector, "Collector", 1, placement="threads", step_timeout=None),
    "MultiSyncCollector": partial(
        collector, "MultiSyncCollector", 2, placement="threads", step_timeout=None
    ),
    "MultiAsyncCollector": partial(
        collector, "MultiAsyncCollector", 2, placement="threads", step_timeout=None
    ),
    "AsyncBatchedCollector": partial(
        collector, "AsyncBatchedCollector", 2, backend="threading", step_timeout=None
    ),
    "make_vec": partial(vector, workers=None, step_timeout=None),
    "Evaluator": partial(evaluator, backend="thread", step_timeout=None),
}


def cell(door: str, fault: str, on_loss: OnLoss, folder: Path) -> Cell:
    """The cell of ``door``, whose files go to ``folder``."""
    return DOORS[door](fault, on_loss, str(folder / f"{door}-{fault}-{on_loss}".replace(" ", "-")))
