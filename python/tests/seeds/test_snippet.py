"""The means by which snippets are made ready to run."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from seeds import snippet


def test_only_imports_of_what_windrow_stands_in_for_change() -> None:
    source = (
        "import torchrl.data\n"
        "from torchrl.collectors import Collector\n"
        "from torchrl.envs.libs.gym import GymEnv\n"
        "from torchrl.objectives import ClipPPOLoss\n"
        "from torchrl.data_2 import x\n"
        "print('from torchrl.envs import y')\n"
    )
    assert snippet.with_windrow(source) == (
        "import windrow.data\n"
        "from windrow.collectors import Collector\n"
        "from windrow.envs.libs.gym import GymEnv\n"
        "from torchrl.objectives import ClipPPOLoss\n"
        "from torchrl.data_2 import x\n"
        "print('from torchrl.envs import y')\n"
    )


def test_changes_are_made_wherever_they_apply() -> None:
    source = "Collector(total_frames=1_000_000)\nCollector(total_frames=1_000_000)\n"
    changed = snippet.with_changes(source, {"total_frames=1_000_000": "total_frames=100"})
    assert changed == "Collector(total_frames=100)\nCollector(total_frames=100)\n"


def test_a_change_that_does_not_apply_is_an_error() -> None:
    with pytest.raises(AssertionError, match="expected 'total_frames=7' in the snippet"):
        snippet.with_changes("Collector(total_frames=100)", {"total_frames=7": "total_frames=1"})


def test_every_snippet_has_a_test() -> None:
    snippets = {f"{path.parent.name}/{path.stem}" for path in snippet.FOLDER.glob("*/*.py")}
    run = set()
    for path in Path(__file__).parent.glob("test_00*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "run"
            ):
                name = node.args[0]
                assert isinstance(name, ast.Constant)
                run.add(name.value)
    assert len(snippets) == 20
    assert run == snippets


@pytest.mark.parametrize(
    "path",
    sorted(snippet.FOLDER.glob("*/*.py")),
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)
def test_a_snippet_imports_the_package_it_was_written_for(path: Path) -> None:
    """What is run with windrow is what was written for TorchRL."""
    assert "windrow" not in path.read_text()
