"""``windrow bench``: frames a second of windrow and of other libraries, on this machine."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import click

from windrow import __version__, _needs
from windrow._cli.look import processor, version_of
from windrow._cli.peers import PEERS, Running, Side, own_sides
from windrow._cli.picture import write
from windrow._cli.text import short, table
from windrow._numbers import cores

#: What ``--peers`` without names means.
ALL = "all"


class Measured(NamedTuple):
    """Frames a second of one way to collect, in each round; or why there are none."""

    name: str
    rates: list[float]
    error: str = ""

    @property
    def median(self) -> float:
        """The median over rounds; 0 where there is none."""
        return statistics.median(self.rates) if self.rates else 0.0


def _peers(_: click.Context, option: click.Parameter, given: str | None) -> list[str]:
    """The names that were given, or those of all libraries that are installed."""
    installed = [name for name, peer in PEERS.items() if version_of(peer.distribution) is not None]
    if given is None or given == ALL:
        return installed
    names = [name for name in given.replace(" ", "").split(",") if name not in ("", "none")]
    for name in names:
        if name not in PEERS:
            raise click.BadParameter(
                f"expected some of {', '.join(PEERS)}, or none, got {name!r}", param=option
            )
        if name not in installed:
            raise click.BadParameter(
                f"{name} is not installed: pip install {PEERS[name].distribution}", param=option
            )
    return names


@click.command(short_help="Measure frames a second, of windrow and of other libraries.")
@click.option(
    "--env",
    default="CartPole-v1",
    show_default=True,
    help="The id of an environment that all of them know.",
)
@click.option(
    "--num-envs", type=click.IntRange(1), default=8, show_default=True, help="Environments of each."
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="How often each is measured, in turn with the others.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.001),
    default=0.5,
    show_default=True,
    help="How long each runs in a round.",
)
@click.option(
    "--peers",
    callback=_peers,
    is_flag=False,
    flag_value=ALL,
    metavar="NAMES",
    help=f"Some of {', '.join(PEERS)}, or none; all that are installed by default, and without names.",
)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the table: FILE.svg, or FILE.png and others by matplotlib.",
)
@click.option("--force", is_flag=True, help="Replace the picture.")
def bench(
    *,
    env: str,
    num_envs: int,
    rounds: int,
    seconds: float,
    peers: list[str],
    picture: Path | None,
    force: bool,
) -> None:
    """Measure frames a second on this machine, of windrow and of other libraries.

    Actions are random, and drawn beforehand for the other libraries, which take them as they are.
    All run in one process and one thread where they do not start their own, in turn, several times;
    the table has medians, and the lowest and highest of the rounds. Measure on an idle machine.
    """
    _needs.torch("windrow bench")
    if picture is not None and picture.exists() and not force:
        raise click.BadParameter(f"{picture} exists: --force replaces it", param_hint="--picture")
    sides = [
        *own_sides(env, num_envs),
        *(side for name in peers for side in PEERS[name].sides(env, num_envs)),
    ]
    with _one_thread():
        measured = _measured(sides, rounds, seconds)
    title = f"{env}, {num_envs} environments, random actions"
    versions = ", ".join(f"{name} {version_of(PEERS[name].distribution)}" for name in peers)
    below = f"{processor()}, {cores()} cores; windrow {__version__}{versions and f', {versions}'}; medians of {rounds}"
    click.echo(f"{title}\n{below}\n\n{_tabulated(measured)}")
    bars = [(one.name, one.median) for one in measured if one.median > 0]
    if not bars:
        raise click.ClickException(f"nothing could be measured with {env}: {measured[0].error}")
    if picture is not None:
        write(picture, title, below, bars)


def _measured(sides: list[Side], rounds: int, seconds: float) -> list[Measured]:
    """All sides, each measured once in a round. One that fails says why, and the others go on."""
    found = [Measured(side.name, []) for side in sides]
    running: dict[int, Running] = {}
    try:
        for number, side in enumerate(sides):
            _tell(f"starting {side.name}")
            with _failures(found, number):
                running[number] = side.start()
                running[number].step()
            _end_failed(running, found)
        for turn in range(rounds):
            for number in list(running):
                _tell(f"round {turn + 1} of {rounds}: {sides[number].name}")
                with _failures(found, number):
                    found[number].rates.append(_rate(running[number].step, seconds))
                _end_failed(running, found)
    finally:
        for one in running.values():
            _end(one)
        _tell("")
    return found


def _end_failed(running: dict[int, Running], found: list[Measured]) -> None:
    """Ends sides that have failed."""
    for number in [number for number in running if found[number].error]:
        _end(running.pop(number))


def _end(one: Running) -> None:
    # One that has failed may fail here, too.
    with suppress(Exception):
        one.close()


@contextmanager
def _failures(found: list[Measured], number: int) -> Iterator[None]:
    """Notes an error of a side in its place."""
    try:
        yield
    except Exception as error:
        said = next(iter(str(error).splitlines()), "")
        found[number] = Measured(
            found[number].name, [], f"{type(error).__name__}: {said}".rstrip(": ")
        )


def _rate(step: Callable[[], int], seconds: float) -> float:
    """Frames a second of ``step``, which is called until ``seconds`` are over."""
    frames, began = 0, time.perf_counter()
    while (past := time.perf_counter() - began) < seconds:
        frames += step()
    return frames / past


@contextmanager
def _one_thread() -> Iterator[None]:
    """Torch uses one thread, as it should where others collect."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _tell(text: str) -> None:
    """Shows in a terminal what is being done."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)


def _tabulated(measured: list[Measured]) -> str:
    first = measured[0].median
    rows = [["", "frames/s", "lowest", "highest", f"{measured[0].name} is"]]
    for one in measured:
        if one.rates:
            times = (
                f"{first / one.median:{',.0f' if first > 100 * one.median else '.3g'}} times as fast"
                if first and one is not measured[0]
                else ""
            )
            rows.append(
                [one.name, short(one.median), short(min(one.rates)), short(max(one.rates)), times]
            )
    failed = [f"{one.name}: {one.error}" for one in measured if one.error]
    return "\n".join(
        [table(rows, right=range(1, 4)), *(["", "Left out:", *failed] if failed else [])]
    )
