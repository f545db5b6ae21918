"""The time until a return beside other libraries, each by its own script: ``cargo xtask board``.

Each run is a process of its own (:mod:`board.learn`), and what came of it, an error included, is a
row of ``docs/board.json``, by task, library, version and commit. A run that is repeated takes the
place of the one before. The site's page shows all rows, and a picture that is drawn anew.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from board.learn import EPISODES, LIBRARIES, MARK, TASKS
from board.rows import ROWS, middle, outcome, table

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "assets" / "board.svg"
#: Whose scripts are in a repository alone.
CLONED = ("cleanrl", "torchrl")


def command(library: str, task: str, seed: int, folder: Path | None) -> list[str]:
    """A clone with an environment of its own, as uv makes it, runs in that: its scripts may need
    other versions of packages.
    """
    python = sys.executable
    if folder and (own := folder.resolve() / ".venv" / "bin" / "python").exists():
        python = str(own)
    return [
        python,
        "-m",
        "board.learn",
        library,
        task,
        str(seed),
        *([str(folder)] if folder else []),
    ]


def commit_of(folder: Path) -> str:
    told = subprocess.run(
        ["git", "-C", folder, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    )
    return told.stdout.strip() if told.returncode == 0 else ""


def version_of(library: str) -> str:
    if library == "cleanrl":
        return ""
    try:
        return importlib.metadata.version("windrow-rl" if library == "windrow" else library)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def learned(library: str, task: str, seed: int, folder: Path | None) -> dict[str, Any]:
    """Runs one library once; what came of it, with the time of the processor that all of its
    threads took.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT / "python"), os.environ.get("PYTHONPATH", ""))),
    }
    limit = 60 * TASKS[task].minutes
    before = os.times()
    process = subprocess.Popen(
        command(library, task, seed, folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        found: dict[str, Any] = {
            "outcome": f"not reached in {TASKS[task].minutes} minutes",
            "seconds": limit,
        }
    else:
        told = [line for line in printed.splitlines() if line.startswith(MARK)]
        last = next(
            (line for line in reversed(printed.splitlines()) if line.strip()), "it printed nothing"
        )
        found = (
            json.loads(told[-1][len(MARK) :])
            if told
            else {"outcome": f"ended with status {process.returncode}: {last}"}
        )
    after = os.times()
    found["processor"] = round(
        after.children_user + after.children_system - before.children_user - before.children_system,
        2,
    )
    return found


def added(
    rows: list[dict[str, Any]],
    library: str,
    task: str,
    folder: Path | None,
    seed: int,
    found: dict[str, Any],
) -> None:
    """Adds what came of a run to the row that it belongs to."""
    name = {
        "task": task,
        "library": library,
        "version": version_of(library),
        "commit": commit_of(folder or ROOT) if folder or library == "windrow" else "",
        "machine": f"{os.cpu_count()} processors, {platform.machine()}",
    }
    row = next(
        (row for row in rows if all(row.get(key) == value for key, value in name.items())), None
    )
    if row is None:
        row = {**name, "seeds": {}}
        rows.append(row)
    row["seeds"][str(seed)] = {**found, "on": time.strftime("%Y-%m-%d")}
    rows.sort(
        key=lambda row: (
            list(TASKS).index(row["task"]),
            list(LIBRARIES).index(row["library"]),
            row["version"],
            row["commit"],
        )
    )
    ROWS.write_text(json.dumps(rows, indent=1) + "\n")


def draw(rows: list[dict[str, Any]]) -> None:
    """Draws the picture of the site's page."""
    from windrow._cli import picture

    times = [(f"{row['library']}, {row['task']}", middle(row, "seconds")) for row in rows]
    bars = [(name, seconds) for name, seconds in times if seconds is not None]
    if bars:
        below = f"Medians of the seeds, from the start of the process until the last {EPISODES} episodes have the mean return. Less is better."
        picture.write(PICTURE, "Time until a return", below, bars, "seconds (logarithmic)")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="cargo xtask board", description="The time until a return, beside other libraries."
    )
    parser.add_argument(
        "tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)}; all of them unless given"
    )
    parser.add_argument(
        "--library",
        action="append",
        choices=LIBRARIES,
        help="only this one, which may be given several times; all that are installed unless given",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--quick", action="store_true", help="CartPole with one seed")
    for library in CLONED:
        parser.add_argument(
            f"--{library}",
            type=Path,
            metavar="FOLDER",
            help=f"a clone of {library}'s repository, whose scripts no package has",
        )
    arguments = parser.parse_args()
    if unknown := set(arguments.tasks) - set(TASKS):
        parser.error(f"expected tasks of {', '.join(TASKS)}, got {', '.join(sorted(unknown))}")
    folders = {library: getattr(arguments, library) for library in CLONED}
    tasks, seeds = (
        (["cartpole"], arguments.seeds[:1])
        if arguments.quick
        else (arguments.tasks or list(TASKS), arguments.seeds)
    )
    rows = json.loads(ROWS.read_text()) if ROWS.exists() else []
    for task in tasks:
        for library in arguments.library or LIBRARIES:
            is_here = (
                folders[library] is not None
                if library in CLONED
                else version_of(library) != "not installed"
            )
            if not is_here:
                print(
                    f"{task}  {library}  {'no clone was given' if library in CLONED else 'not installed'}"
                )
                continue
            for seed in seeds:
                found = learned(library, task, seed, folders.get(library))
                added(rows, library, task, folders.get(library), seed, found)
                print(
                    f"{task}  {library}  seed {seed}  {outcome(found)} s  {found['processor']} s of the processor",
                    flush=True,
                )
    draw(rows)
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
