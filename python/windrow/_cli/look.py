"""Commands that look: at environments, at this machine and at traces."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from windrow import __version__, _fence, _windrow
from windrow._cli.text import table
from windrow._numbers import cores
from windrow.envs._registry import adapters

#: Libraries that windrow uses or takes environments of, by the names of their distributions.
LIBRARIES = (
    "torch",
    "tensordict",
    _fence.LIBRARY,
    "numpy",
    "gymnasium",
    "cloudpickle",
    "tqdm",
    "click",
    "ray",
    "ale-py",
    "dm_env",
    "envpool",
    "mujoco",
    "pettingzoo",
    "stable-baselines3",
    "vmas",
)
#: Variables that change how fast programs are, or where they run.
VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "PYTHONPATH",
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "WINDROW_MUJOCO",
)
#: The phases of a worker's loop, in their order, and what a rollout is made of.
PHASES = ("Rollout", "WaitSlab", "LoadWeights", "Open", "Policy", "EnvStep", "Close", "Commit")
#: Operations of a trace that come from elsewhere, such as PyTorch's profiler: the longest are
#: shown.
_MOST = 15


def version_of(distribution: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """The model of the CPU, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [
        line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))
    ]
    return models[0] if models else platform.processor() or platform.machine()


@click.command(short_help="List environments.")
def envs() -> None:
    """List native environments, and the libraries whose environments are taken too."""
    click.echo("Native, stepped in Rust:")
    click.echo("\n".join(f"  {name}" for name in sorted(_windrow.native_ids())))
    click.echo("\nNative too, with MuJoCo and Gymnasium installed:")
    click.echo("\n".join(f"  {name}" for name in sorted(_windrow.mujoco_arguments())))
    click.echo("\nTaken as they are, where the library is installed:")
    known = sorted({"gymnasium", *adapters()})
    click.echo(
        table(
            [f"  {name}", _or_none(version_of(name.replace("_", "-")) or version_of(name))]
            for name in known
        )
    )
    click.echo(
        '\nAny id of Gymnasium is taken; "module:id" imports the module first. windrow.envs.register_adapter adds a library.'
    )


@click.command(short_help="Print versions, machine and settings, for a report.")
def info() -> None:
    """Print versions, machine and settings: what a report of a bug needs."""
    linux = sys.platform == "linux"
    rows = [
        ("windrow", __version__),
        ("extension", str(_windrow.__file__)),
        (
            "python",
            f"{platform.python_version()} ({platform.python_implementation()}), {sys.executable}",
        ),
        ("system", platform.platform()),
        ("processor", f"{processor()}, {cores()} of {os.cpu_count()} cores"),
        ("memory", _memory()),
        ("placement", "inline, threads" + (", processes" if linux else "; processes need Linux")),
        ("native environments", ", ".join(sorted(_windrow.native_ids()))),
        *((name, os.environ[name]) for name in VARIABLES if name in os.environ),
        *((name, _or_none(version_of(name))) for name in LIBRARIES),
    ]
    click.echo(table(rows))


def _memory() -> str:
    try:
        total, free = (
            os.sysconf(name) * os.sysconf("SC_PAGE_SIZE") / 2**30
            for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES")
        )
    except (AttributeError, OSError, ValueError):
        return "unknown"
    return f"{total:.1f} GiB, {free:.1f} GiB free"


def _or_none(version: str | None) -> str:
    return version or "not installed"


@click.command(short_help="Tabulate the trace of a worker.")
@click.argument(
    "files",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE...",
)
def trace(files: tuple[Path, ...]) -> None:
    """Tabulate FILE, the trace of a worker that Collector.enable_profile has written."""
    click.echo("\n\n".join(_tabulated(file) for file in files))


def _tabulated(file: Path) -> str:
    events = _events(file)
    names = [
        event["args"]["name"]
        for event in events
        if event.get("name") == "process_name" and event.get("args")
    ]
    timed = [event for event in events if event.get("ph") == "X" and "dur" in event]
    own = [event for event in timed if event.get("cat") == "windrow"]
    if not own:
        raise ValueError(
            f"{file} has none of a collector's phases: expected a trace that Collector.enable_profile has written"
        )
    rollouts = [event for event in own if event["name"] == "Rollout"]
    steps = sum(event.get("args", {}).get("steps", 0) for event in rollouts)
    whole = sum(event["dur"] for event in rollouts)
    head = f"{file}: {names[0] if names else 'a worker'}, {len(rollouts)} rollouts of {steps} steps, {whole / 1e3:.3f} ms"
    others = _durations(event for event in timed if event.get("cat") != "windrow")
    longest = sorted(others, key=lambda name: -sum(others[name]))
    phases = _durations(own)
    parts = [head, _figures([name for name in PHASES if name in phases], phases, whole)]
    if others:
        parts += [
            f"Other events, the longest {min(_MOST, len(longest))} of {len(longest)}:",
            _figures(longest[:_MOST], others, whole),
        ]
    return "\n\n".join(parts)


def _events(file: Path) -> list[dict[str, Any]]:
    try:
        read = json.loads(file.read_bytes())
        events = read["traceEvents"]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{file} is no trace: expected JSON with traceEvents") from error
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise ValueError(f"{file} is no trace: expected a list of traceEvents")
    return events


def _durations(events: Iterable[dict[str, Any]]) -> dict[str, list[float]]:
    """Microseconds of events by their names."""
    found: dict[str, list[float]] = {}
    for event in events:
        found.setdefault(str(event["name"]), []).append(float(event["dur"]))
    return found


def _figures(names: list[str], durations: dict[str, list[float]], whole: float) -> str:
    rows = [["phase", "times", "total ms", "share", "mean µs", "most µs"]]
    for name in names:
        its = durations[name]
        share = f"{sum(its) / whole:.1%}" if whole else "-"
        rows.append(
            [
                name[:60],
                f"{len(its):,}",
                f"{sum(its) / 1e3:.3f}",
                share,
                f"{sum(its) / len(its):.2f}",
                f"{max(its):.2f}",
            ]
        )
    return table(rows, right=range(1, 6))
