"""The examples in docstrings run as they stand."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import pkgutil
from pathlib import Path

import pytest

import windrow


def with_examples() -> list[str]:
    """Modules of windrow that have one; those of the stand-in for torchrl have none."""
    names = [module.name for module in pkgutil.walk_packages(windrow.__path__, "windrow.", onerror=lambda _: None)]
    specs = {name: importlib.util.find_spec(name) for name in names if not name.startswith("windrow.torchrl")}
    sources = {name: spec.origin for name, spec in specs.items() if spec and str(spec.origin).endswith(".py")}
    return sorted(name for name, path in sources.items() if ">>> " in Path(path).read_text())


@pytest.mark.parametrize("name", with_examples())
def test_the_examples_of_a_module_print_what_they_say(name: str) -> None:
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert result.attempted and not result.failed
