"""Snippets of documents, made ready to run: windrow in place of TorchRL, few frames in place of
many.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "snippets"

_IMPORT = re.compile(r"^(from|import) torchrl\.(collectors|data|envs)\b", re.MULTILINE)


def with_windrow(source: str) -> str:
    """``source`` with the imports of what windrow stands in for changed, and nothing else."""
    return _IMPORT.sub(r"\1 windrow.\2", source)


def with_changes(source: str, changes: dict[str, str]) -> str:
    """``source`` with each text in ``changes`` replaced wherever it occurs.

    Raises:
        AssertionError: a text does not occur.
    """
    for old, new in changes.items():
        assert old in source, f"expected {old!r} in the snippet"
        source = source.replace(old, new)
    return source


def run(name: str, names: dict[str, Any], changes: dict[str, str]) -> dict[str, Any]:
    """Runs the snippet called ``name`` among ``names``, which are defined before it, and returns
    all names after it.
    """
    path = FOLDER / f"{name}.py"
    source = with_changes(with_windrow(path.read_text()), changes)
    # Functions that a snippet defines find the snippet's names.
    scope = {"__name__": path.stem, **names}
    exec(compile(source, str(path), "exec"), scope)
    return scope
