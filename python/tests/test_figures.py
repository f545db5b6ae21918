"""What ``cargo xtask tidy`` and ``figures`` measure in files of Python, by
``xtask/src/scan.py``.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

PROGRAM = pathlib.Path(__file__).parents[2] / "xtask" / "src" / "scan.py"


def scanned(tmp_path: pathlib.Path, **texts: str) -> dict[str, dict[str, Any]]:
    """The measures of the modules of a package ``p`` with these texts, by their names."""
    folder = tmp_path / "p"
    for name, text in {"__init__": "", **texts}.items():
        path = folder / (name.replace("__in__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    output = subprocess.run(
        [sys.executable, PROGRAM, folder], check=True, stdout=subprocess.PIPE
    ).stdout
    return {measures["module"]: measures for measures in json.loads(output)}


def functions(tmp_path: pathlib.Path, text: str) -> list[tuple[Any, ...]]:
    """Name, first line, lines of the signature and in all, parameters by position and by name only
    of each function.
    """
    names = ("name", "line", "signature", "lines", "positional", "by_name")
    return [
        tuple(found[name] for name in names)
        for found in scanned(tmp_path, a=text)["p.a"]["functions"]
    ]


def test_functions_are_measured_with_their_docstring(tmp_path):
    text = '''\
class A:
    def f(
        self,
        a: dict[str, int],
        b=(1, 2),
        /,
        *,
        c: str = "a, b):",
        d=lambda x: {1: x},
        **rest,
    ) -> dict[str, int]:
        """Says
no def g(): here.
        """
        return max(
    1, 2)

    # About the next.
    async def g(cls, *args): pass

    @property
    def h(self):
        if self:
            def inner(): pass
            return 1

x = 1
'''
    assert functions(tmp_path, text) == [
        ("f", 2, 10, 15, 2, 3),
        ("g", 19, 1, 1, 1, 0),
        ("h", 22, 1, 4, 0, 0),
        ("inner", 24, 1, 1, 0, 0),
    ]


def test_lines_of_comments_and_docstrings_are_counted(tmp_path):
    text = "'''Module.\n\nMore.'''\n# why\nx = '''no\ndocs # no'''  # beside code\n\ndef f():\n    'Says.'\n"
    measures = scanned(tmp_path, a=text)["p.a"]
    assert (measures["lines"], measures["prose"]) == (9, 5)


def test_imports_are_found_in_functions_and_not_where_only_type_checkers_look(tmp_path):
    text = """\
import p.b, os
from typing import TYPE_CHECKING
from . import c
if TYPE_CHECKING:
    from .d import e
def f():
    from .sub import inner, other
    from . import X
"""
    measures = scanned(
        tmp_path,
        a=text,
        b="",
        c="",
        d="",
        sub__in____init__="",
        sub__in__inner="from ..a import f\nfrom .. import b\n",
    )
    assert measures["p.a"]["edges"]["imports"] == ["p.b", "p.c", "p.sub.inner"]
    assert measures["p.a"]["hidden_imports"] == ["p", "p.sub", "p.sub.inner"]
    assert measures["p.sub.inner"]["edges"]["imports"] == ["p.a", "p.b"]


def test_only_plain_any_is_counted(tmp_path):
    text = """\
def f(self, a: Any, b: typing.Any, c: list[Any], d, *e: Any, g: int = 1) -> Any: ...
def h() -> None: ...
"""
    assert scanned(tmp_path, a=text)["p.a"]["any_shares"] == [3, 5, 1, 2]
