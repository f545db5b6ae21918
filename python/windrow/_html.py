"""Tables by which objects show themselves in notebooks."""

from __future__ import annotations

import functools
import html
from collections.abc import Callable, Mapping
from typing import Any

#: A method that returns what a table shows, by name.
Figures = Callable[[Any], Mapping[str, Any]]


def table(figures: Figures) -> Callable[[Any], str | None]:
    """Makes ``_repr_html_`` of a method that returns the rows of its table: the class as caption,
    and a line for each figure.

    A notebook shows ``repr`` where an error is in the way: an object of another process has no
    figures.
    """

    @functools.wraps(figures, assigned=("__module__", "__name__", "__qualname__"))
    def shown(self: object) -> str | None:
        """A small table of figures, for notebooks."""
        try:
            return _written(type(self).__name__, figures(self))
        except Exception:
            return None

    return shown


def _written(caption: str, figures: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><th style="text-align:left">{_escaped(name)}</th><td style="text-align:left">{_escaped(_figure(value))}</td></tr>'
        for name, value in figures.items()
        if value is not None
    )
    return f'<table><caption style="text-align:left"><b>{_escaped(caption)}</b></caption><tbody>{rows}</tbody></table>'


def _figure(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:,.4g}"
        if abs(value) < 1000
        else f"{value:,.0f}"
    )


def _escaped(text: str) -> str:
    return html.escape(str(text))
