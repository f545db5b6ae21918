"""What importing the package brings, and what it leaves alone."""

from __future__ import annotations

import importlib
import inspect
import pydoc
import re
import subprocess
import sys
import tomllib
import typing
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

import windrow
from windrow import _needs

PROJECT = Path(__file__).parents[2]
#: What an installer calls the package.
DISTRIBUTION = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
HEAVY = ["gymnasium", "numpy", "tensordict", "torch", "torchrl"]


@pytest.mark.parametrize("module", ["", ".collectors", ".envs", ".data", ".modules"])
def test_importing_brings_no_framework(module) -> None:
    program = (
        f"import sys, windrow{module}; print([name for name in {HEAVY} if name in sys.modules])"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == "[]" and told.stderr == ""


PACKAGES = ["collectors", "data", "envs", "modules", "ray"]


def told(program: str) -> str:
    """What a new interpreter prints."""
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_packages_are_reached_and_list_their_names_without_a_framework() -> None:
    program = f"""
import sys, windrow
assert {{*{PACKAGES}, "torchrl", "Warning", "__version__"}} <= {{*dir(windrow)}}
for package in {PACKAGES}:
    names, module = dir(getattr(windrow, package)), sys.modules[f"windrow.{{package}}"]
    assert {{*module.__all__}} <= {{*names}}, package
    assert not any(name.startswith("_") or name in ("annotations", "names_of", "TYPE_CHECKING", "Any") for name in names), names
assert "utils" in dir(windrow.collectors) and "libs" in dir(windrow.envs) and "samplers" in dir(windrow.data.replay_buffers)
print([name for name in {[*HEAVY, "ray", "tqdm", "click"]} if name in sys.modules])
"""
    assert told(program) == "[]"


@pytest.mark.parametrize("name", ["collectors.Collector", "envs.GymEnv"])
def test_a_class_imports_no_framework_and_no_package_that_it_does_not_need(name: str) -> None:
    others = ["windrow.data", "windrow.ray", "windrow.torchrl", "windrow.vectors", "windrow._cli"]
    program = f"""
import sys, windrow
windrow.{name}
print([name for name in {[*HEAVY, "ray", *others]} if name in sys.modules])
"""
    assert told(program) == "[]"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_listed_name_is_there(package: str) -> None:
    module = importlib.import_module(f"windrow.{package}")
    assert [name for name in dir(module) if not hasattr(module, name)] == []


@pytest.mark.parametrize("package", ["", *(f".{package}" for package in PACKAGES)])
def test_help_shows_the_public_names(package: str) -> None:
    shown = pydoc.plaintext.document(importlib.import_module(f"windrow{package}"))
    names = importlib.import_module(f"windrow{package}").__all__
    assert [
        name for name in names if name != "__version__" and not re.search(rf"\b{name}\b", shown)
    ] == []


def test_a_stand_in_lists_names_and_modules_without_those_of_its_own_code() -> None:
    names = dir(importlib.import_module("windrow.torchrl"))
    assert {"collectors", "data", "envs", "modules", "objectives", "trainers"} <= {*names}
    below = dir(importlib.import_module("windrow.torchrl.collectors"))
    assert {"Collector", "MultiSyncDataCollector", "distributed"} <= {*below} and not {
        "register",
        "stand_in",
        "annotations",
    } & {*below}


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="module 'windrow' has no attribute 'clectors'"):
        windrow.clectors


@pytest.mark.parametrize(
    "first",
    [
        "windrow.ray._buffer",
        "windrow.ray",
        "windrow.data",
        "windrow.data.replay_buffers",
        "windrow.collectors",
    ],
)
def test_names_are_in_their_packages_whichever_is_imported_first(first: str) -> None:
    program = f"""
import {first}, windrow.data, windrow.data.replay_buffers, windrow.ray
assert windrow.ray.RayReplayBuffer is windrow.data.RayReplayBuffer is windrow.data.replay_buffers.RayReplayBuffer
assert windrow.ray.RayReplayBuffer.__module__ == "windrow.ray._buffer"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_types_are_shipped() -> None:
    folder = Path(windrow.__file__).parent
    assert (folder / "py.typed").exists() and (folder / "_windrow.pyi").exists()
    assert windrow.__version__ == version(DISTRIBUTION["name"])


def test_every_public_name_is_there_and_documented() -> None:
    from windrow import collectors, envs, modules

    for module in (collectors, envs, modules):
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, type) and value.__module__.startswith("windrow"):
                assert value.__doc__, f"{module.__name__}.{name}"


def test_types_of_every_public_name_can_be_read() -> None:
    pytest.importorskip("torchrl")
    found = []
    for home in (
        "windrow",
        "windrow.collectors",
        "windrow.data",
        "windrow.envs",
        "windrow.modules",
        "windrow.ray",
    ):
        package = importlib.import_module(home)
        for name in getattr(package, "__all__", None) or dir(package):
            found += [
                (f"{home}.{name}", function) for function in functions_of(getattr(package, name))
            ]
    for name, function in found:
        try:
            typing.get_type_hints(function)
        except NameError as error:
            raise AssertionError(f"{name}: {function!r}") from error
    assert len(found) > 500


def functions_of(value: object) -> list[Callable[..., object]]:
    """A function or class of this package, and the methods of the class."""
    if not callable(value) or not getattr(value, "__module__", "").startswith("windrow"):
        return []
    found = [value]
    for name, member in inspect.getmembers_static(value) if isinstance(value, type) else ():
        if not name.startswith("_") or name == "__init__":
            functions = [getattr(member, name, None) for name in ("fget", "__func__")] + [member]
            found += [
                one
                for one in functions
                if inspect.isfunction(one) and one.__module__.startswith("windrow")
            ]
    return found


#: What needs torch and tensordict.
NEEDING_TORCH = {
    "a collector": "windrow.collectors.Collector('CartPole-v1', frames_per_batch=10)",
    "several workers": "windrow.collectors.MultiSyncCollector(['CartPole-v1'], frames_per_batch=10)",
    "an evaluator": "windrow.collectors.Evaluator('CartPole-v1', print)",
    "a replay buffer": "windrow.data.ReplayBuffer()",
    "an environment": "windrow.envs.GymEnv('CartPole-v1').reset()",
    "a spec": "windrow.envs.GymEnv('CartPole-v1').observation_spec",
    "a type of exploration": "windrow.envs.utils.ExplorationType",
}


@pytest.mark.parametrize("what", NEEDING_TORCH)
@pytest.mark.parametrize("missing", ["torch", "tensordict"])
def test_what_needs_torch_says_how_to_install_it(what: str, missing: str) -> None:
    program = f"""
import sys
sys.modules[{missing!r}] = None
import windrow.collectors, windrow.data, windrow.envs, windrow.envs.utils
try:
    {NEEDING_TORCH[what]}
except ImportError as error:
    print(error)
"""
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert f'{missing}, which is not installed: pip install "windrow-rl[torch]"' in told.stdout


def test_commands_that_install_extras_name_this_distribution() -> None:
    """`windrow` on PyPI is somebody else's."""
    texts = [
        path
        for folder in ("docs", "examples", "python/windrow")
        for path in PROJECT.glob(f"{folder}/**/*.*")
        if path.suffix in (".md", ".py")
    ]
    written = "".join(path.read_text() for path in [PROJECT / "README.md", *texts])
    named = re.findall(r"pip install [\"'`]*([\w-]*)\[(\w+)\]", written + _needs.install("torch"))
    assert named and {name for name, _ in named} == {DISTRIBUTION["name"]}
    asked = {extra for _, extra in named} | set(
        re.findall(r"_needs\.(?:install\('|module\(.+, \")(\w+)['\"]\)", written)
    )
    assert {"torch", "gymnasium", "ray"} <= asked <= set(DISTRIBUTION["optional-dependencies"])


@pytest.mark.parametrize("elsewhere", ["macOS", "Windows"])
def test_what_the_extension_lacks_on_other_systems_is_an_error_where_it_is_used(
    elsewhere: str,
) -> None:
    program = f"""
from windrow import _needs, _windrow
for needed, names in _needs._SYSTEMS.items():
    for name in names if needed == "Linux" or {elsewhere!r} == "Windows" else ():
        delattr(_windrow, name)
_needs.fill(_windrow)
from windrow import collectors, data, envs, modules
for package in (collectors, data, envs, modules):
    for name in dir(package):
        getattr(package, name)
from windrow.collectors import *
print(next(MultiSyncCollector(["CartPole-v1"] * 2, frames_per_batch=20)).shape)
try:
    CommandLauncher(["ssh", "node"])
except OSError as error:
    print(error)
"""
    told = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr
    assert (
        told.stdout
        == f"torch.Size([20])\nCommandLauncher needs Linux, and this is {sys.platform}\n"
    )
