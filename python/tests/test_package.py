"""What importing the package brings, and what it leaves alone."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import windrow

HEAVY = ["gymnasium", "numpy", "tensordict", "torch", "torchrl"]


@pytest.mark.parametrize("module", ["", ".collectors", ".envs", ".data", ".modules"])
def test_importing_brings_no_framework(module) -> None:
    program = f"import sys, windrow{module}; print([name for name in {HEAVY} if name in sys.modules])"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]" and told.stderr == ""


def test_types_are_shipped() -> None:
    folder = Path(windrow.__file__).parent
    assert (folder / "py.typed").exists() and (folder / "_windrow.pyi").exists()
    assert windrow.__version__ == version("windrow")


def test_every_public_name_is_there_and_documented() -> None:
    from windrow import collectors, envs, modules

    for module in (collectors, envs, modules):
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, type) and value.__module__.startswith("windrow"):
                assert value.__doc__, f"{module.__name__}.{name}"
