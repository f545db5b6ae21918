"""Where figures of a run go: a CSV file, TensorBoard, Weights & Biases, a logger of TorchRL, or a
function.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

#: Takes figures by name, and the number of frames or the step that they belong to.
Log = Callable[[Mapping[str, float], int], object]

#: A library, by whose names figures are logged.
LogNames: TypeAlias = Literal["sb3", "cleanrl", "torchrl"]
#: Names of figures that scripts of these libraries plot, by those of Stable-Baselines3. Others have
#: one name everywhere.
NAMES: Mapping[str, Mapping[str, str]] = {
    "sb3": {},
    "cleanrl": {
        "rollout/ep_rew_mean": "charts/episodic_return",
        "rollout/ep_len_mean": "charts/episodic_length",
        "time/fps": "charts/SPS",
        "time/total_timesteps": "global_step",
    },
    "torchrl": {
        "rollout/ep_rew_mean": "train/reward",
        "rollout/ep_len_mean": "train/episode_length",
        "time/fps": "time/speed",
    },
}


def log_to(name: str, target: object) -> Log:
    """A function that logs figures to ``target``, which the argument ``name`` has given.

    Raises:
        TypeError: it is nothing that figures can be logged to.
        ValueError: it is the path of another file than one of CSV.
    """
    if isinstance(target, (str, os.PathLike)):
        path = Path(target)
        if path.suffix != ".csv":
            raise ValueError(
                f"{name} is the path of a CSV file, which ends with .csv, or an object such as a SummaryWriter, got {os.fspath(target)!r}"
            )
        return Csv(path)
    if hasattr(target, "add_scalar"):
        return lambda figures, step: [
            target.add_scalar(key, value, step) for key, value in figures.items()
        ]
    if hasattr(target, "define_metric") and hasattr(target, "log"):
        return _Run(target)
    if hasattr(target, "log_scalar"):
        return lambda figures, step: [
            target.log_scalar(key, value, step=step) for key, value in figures.items()
        ]
    if callable(target):
        return target
    raise TypeError(
        f"expected the path of a CSV file, a SummaryWriter of TensorBoard, a run of wandb, a Logger of TorchRL or a function as {name}, "
        f"got {type(target).__module__}.{type(target).__name__}"
    )


def loggable(name: str, target: object) -> object:
    """``target``, to which figures can be logged.

    Raises:
        TypeError: they cannot.
        ValueError: it is the path of another file than one of CSV.
    """
    log_to(name, target)
    return target


class _Run:
    """Logs to a run of Weights & Biases.

    The steps of a run only grow, and what comes with a smaller one is dropped. So figures are
    logged without a step, beside what the user logs, and are plotted over the number of frames that
    is among them.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self._defined: set[str] = set()

    def __call__(self, figures: Mapping[str, float], step: int) -> None:
        for name in figures.keys() - self._defined:
            self._run.define_metric(name, step_metric="windrow/step")
            self._defined.add(name)
        self._run.log({**figures, "windrow/step": step})


class Csv:
    """Appends rows to a CSV file, with a column for each figure; one that is not known has an empty
    field.

    Each row is written by one call, so that a process that ends leaves whole rows. A file that
    exists is gone on with, without the row that an earlier process may not have ended. A new figure
    is a new column, for which the file is written anew.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        #: None until a row is written.
        self._columns: list[str] | None = None

    def __call__(self, figures: Mapping[str, float], step: int) -> None:
        if self._columns is None:
            self._columns = self._open()
        new = [name for name in ("step", *figures) if name not in self._columns]
        if new:
            self._widen(new)
        with self._path.open("a", newline="") as file:
            csv.DictWriter(file, self._columns, lineterminator="\n").writerow(
                {**figures, "step": step}
            )

    def _open(self) -> list[str]:
        """The columns of the file, if there is one, which ends with a whole row afterwards."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if not self._path.exists():
            return []
        with self._path.open("rb+") as file:
            written = file.read()
            file.truncate(written.rfind(b"\n") + 1)
        with self._path.open(newline="") as file:
            return next(csv.reader(file), [])

    def _widen(self, new: list[str]) -> None:
        columns = [*(self._columns or ()), *new]
        rows: list[dict[str, str]] = []
        if self._columns:
            with self._path.open(newline="") as file:
                rows = list(csv.DictReader(file))
        beside = self._path.with_name(f"{self._path.name}.new")
        with beside.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        os.replace(beside, self._path)
        self._columns = columns
