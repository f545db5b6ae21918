"""Where TorchRL has what, and what windrow does not have."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

import windrow.envs

torchrl = pytest.importorskip("torchrl")


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("common", ["EnvBase"]),
        ("batched_envs", ["ParallelEnv", "SerialEnv"]),
        ("env_creator", ["EnvCreator", "env_creator"]),
        ("libs.gym", ["GymEnv", "GymWrapper"]),
        ("transforms", ["Compose", "StepCounter", "TransformedEnv"]),
    ],
)
def test_windrows_own_are_where_torchrl_has_them(module: str, names: list[str]) -> None:
    found = importlib.import_module(f"windrow.envs.{module}")
    for name in names:
        assert getattr(found, name) is getattr(windrow.envs, name)
        assert hasattr(importlib.import_module(f"torchrl.envs.{module}"), name)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("", "R3MTransform"),
        ("", "step_mdp"),
        ("", "set_gym_backend"),
        ("", "make_composite_from_td"),
        (".transforms", "RemoveEmptySpecs"),
        (".utils", "step_mdp"),
        (".libs.gym", "set_gym_backend"),
    ],
)
def test_what_windrow_has_not_is_torchrls(module: str, name: str) -> None:
    theirs = getattr(importlib.import_module(f"torchrl.envs{module}"), name)
    assert getattr(importlib.import_module(f"windrow.envs{module}"), name) is theirs


#: What takes arguments of another function: ``gymnasium.make``, and the function that makes
#: environments.
PASSES_ON = {"GymEnv", "EnvCreator"}


def test_every_argument_is_visible() -> None:
    classes = [
        kind
        for kind in vars(windrow.envs).values()
        if isinstance(kind, type) and kind.__module__.startswith("windrow")
    ]
    hiding = set()
    for kind in classes:
        parameters = inspect.signature(kind).parameters.values()
        if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
            hiding.add(kind.__name__)
    assert len(classes) > 12 and hiding == PASSES_ON


def test_modules_are_found_without_being_imported() -> None:
    program = "import sys, windrow.envs as envs; envs.libs; envs.utils.RandomPolicy; print('torchrl' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (told.stdout, told.stderr) == ("False\n", "")


def test_nobody_has_some_names() -> None:
    with pytest.raises(ImportError, match="cannot import name 'Nonsense'"):
        from windrow.envs import Nonsense  # type: ignore[attr-defined]  # noqa: F401
    with pytest.raises(AttributeError, match="no attribute 'Nonsense', nor has torchrl.envs"):
        windrow.envs.Nonsense
    assert not hasattr(windrow.envs, "nonsense") and not hasattr(windrow.envs, "__wrapped__")


@pytest.mark.parametrize(
    "line", ["from windrow.envs import R3MTransform", "from windrow.envs.utils import step_mdp"]
)
def test_without_torchrl_it_is_named(line: str) -> None:
    program = f"import sys; sys.modules['torchrl'] = None\n{line}"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (
        "ImportError: windrow.envs" in told.stderr
        and "torchrl, which may have it, is not installed" in told.stderr
    )
