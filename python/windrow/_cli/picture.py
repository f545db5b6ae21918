"""The picture of ``windrow bench``: bars of frames a second, on a logarithmic axis, since they
differ by orders of magnitude.
"""

from __future__ import annotations

import html
import math
import textwrap
from pathlib import Path

import click

from windrow._cli.text import short

_ROW, _LEFT, _WIDTH, _TOP = 28, 290, 900, 56
#: What bars are, unless something else is given.
_AXIS = "frames/s (logarithmic)"


def write(
    path: Path, title: str, below: str, bars: list[tuple[str, float]], axis: str = _AXIS
) -> None:
    """Writes a picture of ``bars``, each a name and a number of what ``axis`` says, to ``path``:
    itself where that ends with ``.svg``, otherwise by matplotlib.

    Raises:
        click.ClickException: matplotlib is not installed, or knows no such kind of picture.
    """
    if path.suffix == ".svg":
        path.write_text(_svg(title, below, bars, axis), encoding="utf-8")
        return
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise click.ClickException(
            f"{path} needs matplotlib, which is not installed: pip install matplotlib, or choose a name with .svg"
        ) from error
    figure = Figure(figsize=(9, 1.4 + 0.34 * len(bars)), layout="constrained")
    axes = figure.add_subplot()
    drawn = axes.barh(
        [name for name, _ in bars],
        [number for _, number in bars],
        color=[_colour(name) for name, _ in bars],
    )
    axes.bar_label(drawn, [short(number) for _, number in bars], padding=3)
    axes.invert_yaxis()
    axes.set(title=title, xscale="log", xlim=(_least(bars), 4 * max(number for _, number in bars)))
    axes.set_xlabel(f"{axis}\n{textwrap.fill(below, 100)}", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(path)
    except ValueError as error:
        raise click.ClickException(f"{path}: {next(iter(str(error).splitlines()))}") from error


def _least(bars: list[tuple[str, float]]) -> float:
    """The number at which bars begin: half the power of ten below all of them."""
    return 10 ** math.floor(math.log10(min(number for _, number in bars))) / 2


def _colour(name: str) -> str:
    return "#2a6f97" if name.startswith("windrow") else "#b8bec6"


def _svg(title: str, below: str, bars: list[tuple[str, float]], axis: str) -> str:
    """The bars as a drawing in text."""
    lines = textwrap.wrap(below, 120)
    end = _TOP + _ROW * len(bars)
    height = end + 20 + 16 * len(lines)
    least = _least(bars)
    span = math.log(max(number for _, number in bars) / least)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="30" font-size="17">{html.escape(title)}: {axis}</text>',
    ]
    for row, (name, number) in enumerate(bars):
        y, width = _TOP + _ROW * row, (_WIDTH - _LEFT - 90) * math.log(number / least) / span
        drawn += [
            f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{html.escape(name)}</text>',
            f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_ROW - 8}" fill="{_colour(name)}"/>',
            f'<text x="{_LEFT + width + 6:.1f}" y="{y + 15}">{short(number)}</text>',
        ]
    drawn += [
        f'<text x="12" y="{end + 20 + 16 * row}" font-size="11" fill="#555">{html.escape(line)}</text>'
        for row, line in enumerate(lines)
    ]
    return "\n".join([*drawn, "</svg>\n"])
