"""What came of all runs, and the tables of it."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from board.learn import TASKS

ROWS = Path(__file__).parents[2] / "docs" / "board.json"


def middle(row: dict[str, Any], what: str) -> float | None:
    """The median of the seeds; None unless all of them reached the return."""
    runs = row["seeds"].values()
    return (
        statistics.median(run[what] for run in runs)
        if all(run["outcome"] == "reached" for run in runs)
        else None
    )


def table(rows: list[dict[str, Any]]) -> str:
    """All rows in Markdown, a table for each task, with the fastest first."""
    lines: list[str] = []
    for task, (env, goal, *_) in TASKS.items():
        own = sorted(
            (row for row in rows if row["task"] == task),
            key=lambda row: middle(row, "seconds") or float("inf"),
        )
        if not own:
            continue
        lines += [
            "",
            f"## {env}: a mean return of {goal:g}, `{task}`",
            "",
            "| library | version | seeds | seconds | of the processor | frames |",
            "|---|---|---|---|---|---|",
        ]
        for row in own:
            runs = row["seeds"].values()
            version = " ".join(
                part for part in (row["version"], row["commit"] and f"({row['commit']})") if part
            )
            start = f"| {row['library']} | {version} | {', '.join(row['seeds'])} |"
            if middle(row, "seconds") is not None:
                frames = statistics.median(run["frames"] for run in runs)
                each = ", ".join(f"{run['seconds']:.1f}" for run in runs)
                lines.append(
                    f"{start} {middle(row, 'seconds'):.1f} ({each}) | {middle(row, 'processor'):.1f} | {frames:,.0f} |"
                )
            else:
                outcomes = "; ".join(dict.fromkeys(outcome(run) for run in runs))
                lines.append(f"{start} {outcomes} | | |")
    return "\n".join(lines)


def outcome(run: dict[str, Any]) -> str:
    """The seconds of a run, or why the return was not reached."""
    if run["outcome"] == "reached":
        return f"{run['seconds']:.1f}"
    best = f", best mean {run['best']:.0f}" if run.get("best") is not None else ""
    return f"{run['outcome']}{best}".replace("|", "/")
