"""What commands print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """Rows in columns, at least two spaces apart; those with the numbers ``right`` stand at their
    right edges.
    """
    rows = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    numbers = set(right)
    lines = [
        [
            cell.rjust(width) if n in numbers else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths))
        ]
        for row in rows
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def short(number: float) -> str:
    """A number in three or four digits, such as ``1.23 M``."""
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(number) >= unit:
            return f"{number / unit:.4g}{name}"
    return f"{number:.4g}"
