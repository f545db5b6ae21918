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


#: What takes arguments of another function: ``gymnasium.make``, and the function that makes
#: environments.
PASSES_ON = {"GymEnv", "EnvCreator"}


def test_every_argument_is_visible() -> None:
    classes = [
        kind
        for kind in (getattr(windrow.envs, name) for name in windrow.envs.__all__)
        if isinstance(kind, type) and kind.__module__.startswith("windrow")
    ]
    hiding = set()
    for kind in classes:
        parameters = inspect.signature(kind).parameters.values()
        if any(
            parameter.kind is parameter.VAR_KEYWORD and parameter.name != "legacy"
            for parameter in parameters
        ):
            hiding.add(kind.__name__)
    assert len(classes) > 12 and hiding == PASSES_ON


def test_modules_are_found_without_being_imported() -> None:
    program = "import sys, windrow.envs as envs; envs.libs; envs.utils.RandomPolicy; print('torchrl' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (told.stdout, told.stderr) == ("False\n", "")


def test_nobody_has_some_names() -> None:
    with pytest.raises(ImportError, match="cannot import name 'Nonsense'"):
        from windrow.envs import Nonsense  # type: ignore[attr-defined]  # noqa: F401
    with pytest.raises(AttributeError, match="module 'windrow.envs' has no attribute 'Nonsense'"):
        windrow.envs.Nonsense
    assert not hasattr(windrow.envs, "nonsense") and not hasattr(windrow.envs, "__wrapped__")
