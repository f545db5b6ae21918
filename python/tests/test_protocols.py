"""Python's protocols of modules and attributes, with and without the packages that are optional."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Leaves packages out, as where they are not installed.
WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""

PROGRAM = """
import importlib, inspect, pickle, pydoc
from unittest import mock

import numpy as np

import windrow

packages = ["windrow"] + [
    f"windrow.{name}" for name in "collectors data data.replay_buffers envs modules vectors".split()
]
for name in packages:
    package = importlib.import_module(name)
    assert not hasattr(package, "not_there")
    assert getattr(package, "not_there", 3) == 3
    assert "not_there" not in dir(package)
    with mock.patch.object(package, "not_there", 4, create=True):
        assert package.not_there == 4
    assert all(hasattr(package, one) for one in package.__all__), name
    exec(f"from {name} import *", {})
    pydoc.render_doc(package, renderer=pydoc.plaintext)
    inspect.getmembers(package)
# Pickle looks for an object without a module in all of them.
try:
    pickle.dumps(np.frompyfunc(abs, 1, 1))
except pickle.PicklingError:
    pass
print("done")
"""


@pytest.mark.parametrize(
    "missing",
    [(), ("torchrl",), ("gymnasium",), ("torchrl", "tensordict", "torch"), ("ray",)],
    ids=lambda missing: "without " + " ".join(missing or ("nothing",)),
)
def test_modules_answer_as_modules_do(missing: tuple[str, ...]) -> None:
    program = f"MISSING = {missing!r}\n{WITHOUT if missing else ''}\n{PROGRAM}"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.stdout, run.returncode) == ("done\n", 0), run.stderr[-2000:]


@pytest.mark.parametrize(
    ("module", "name"),
    [("envs", "R3MTransform"), ("envs.utils", "step_mdp"), ("data", "Bounded")],
)
def test_what_only_torchrl_has_is_behind_its_own_door(module: str, name: str) -> None:
    program = f"import windrow.{module} as it; print(hasattr(it, {name!r}))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("False\n", "")
    found = (
        f"from windrow.torchrl.{module} import {name}; print({name}.__module__.partition('.')[0])"
    )
    run = subprocess.run([sys.executable, "-c", found], capture_output=True, text=True)
    assert run.stdout == "torchrl\n"


def test_what_people_type_first_is_found_without_torch() -> None:
    program = "import sys, windrow; print(windrow.Collector, windrow.GymEnv, windrow.ReplayBuffer, 'torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.endswith(" False\n") and run.stdout.count("<class") == 3, run.stderr
