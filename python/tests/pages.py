"""The snippets of the README and of the site's pages, as tests run them.

``python python/tests/pages.py docs/start-python.md`` runs those of one page in the current folder,
as its readers would, and so draws the page's picture anew. What a page needs beside what it shows
is in comments of it:

- ``<!-- python`` … ``-->`` is run, and not shown;
- ``<!-- in tests: 100_000 is 4_000 -->`` changes the next snippet, in tests only.

A block of ``python,no_run`` is compiled only; one of ``text,printed`` is what the snippet before it
has printed, with ``...`` for any text.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2]
#: All pages with snippets, by their paths in the repository.
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]

_BLOCK = re.compile(
    r"^```(?P<kind>python(?:,no_run)?|text,printed)\n(?P<shown>.*?)^```$"
    r"|^<!-- python\n(?P<hidden>.*?)^-->$"
    r"|^<!-- in tests: (?P<old>.+?) is (?P<new>.+?) -->$",
    re.MULTILINE | re.DOTALL,
)


@dataclass
class Block:
    """A snippet, or what it has printed: ``python``, ``python,no_run``, ``hidden`` or
    ``text,printed``.
    """

    kind: str
    #: Below as many empty lines as stand before it in the file, so that errors name its lines.
    text: str
    #: Replacements in tests.
    shorter: dict[str, str]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page."""
    text, found, shorter = page.read_text(), [], {}
    for match in _BLOCK.finditer(text):
        if match["old"]:
            shorter[match["old"]] = match["new"]
            continue
        code = match["shown"] if match["kind"] else match["hidden"]
        lines = text.count("\n", 0, match.start("shown" if match["kind"] else "hidden"))
        found.append(
            Block(
                match["kind"] or "hidden",
                code if match["kind"] == "text,printed" else "\n" * lines + code,
                shorter,
            )
        )
        shorter = {}
    assert not shorter, f"{page.name}: {shorter} is below the last snippet"
    return found


def run(page: Path, *, whole: bool) -> dict[str, Any]:
    """Runs the snippets of ``page``, one after the other, among the same names, and returns these.

    Raises:
        AssertionError: a snippet printed something else, or does not have what is to be replaced.
    """
    scope: dict[str, Any] = {"__name__": f"page_{page.stem.replace('-', '_')}"}
    printed = ""
    for block in blocks(page):
        if block.kind == "text,printed":
            checker, flags = (
                doctest.OutputChecker(),
                doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE,
            )
            assert whole or checker.check_output(block.text, printed, flags), (
                f"{page.name}: expected\n{block.text}printed\n{printed}"
            )
            continue
        code = block.text
        for old, new in ({} if whole else block.shorter).items():
            assert old in code, f"{page.name}: expected {old!r} in {code.strip()!r}"
            code = code.replace(old, new)
        program = compile(code, str(page), "exec")
        if block.kind == "python,no_run":
            continue
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(program, scope)
        printed = output.getvalue()
        if whole:
            print(printed, end="", flush=True)
    return scope


if __name__ == "__main__":
    run(Path(sys.argv[1]), whole=True)
