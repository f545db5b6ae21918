"""``windrow.torchrl`` answers each name and module of torchrl: windrow's where it has one,
torchrl's otherwise.
"""

from __future__ import annotations

import ast
import importlib
import pydoc
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torchrl.collectors
import torchrl.data
import torchrl.envs
import torchrl.modules

import windrow.data
import windrow.envs
import windrow.torchrl
from windrow.torchrl import _names

PACKAGES = ["collectors", "envs", "data", "modules"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_answered(package: str) -> None:
    own, theirs = (
        importlib.import_module(f"{of}.{package}") for of in ("windrow.torchrl", "torchrl")
    )
    for name in theirs.__all__:
        answer = getattr(own, name)
        if isinstance(answer, ModuleType):
            assert answer.__name__ == f"windrow.torchrl.{package}.{name}"
            continue
        # Those of tensordict have TorchRL's names here and there.
        assert answer is getattr(theirs, name) or (
            name in _names._OWN[package] and answer.__module__.startswith("windrow.")
        )
    assert {*theirs.__all__, *_names._OWN[package]} <= {*dir(own)}


@pytest.mark.parametrize(
    ("module", "name", "home"),
    [
        ("data.replay_buffers.storages", "LazyTensorStorage", "windrow.data"),
        ("data.replay_buffers.samplers", "SliceSampler", "windrow.data"),
        ("data.replay_buffers.scheduler", "LinearScheduler", "windrow.torchrl"),
        ("envs.libs.gym", "GymEnv", "windrow.torchrl"),
        ("envs.transforms.transforms", "RewardSum", "windrow.torchrl"),
        ("envs.batched_envs", "ParallelEnv", "windrow.torchrl.envs"),
        ("envs.env_creator", "env_creator", "windrow.envs"),
        ("collectors.collectors", "SyncDataCollector", "windrow.torchrl.collectors"),
        ("collectors.distributed", "RayCollector", "windrow.ray"),
        ("collectors.utils", "split_trajectories", "windrow.data"),
        ("data.postprocs", "MultiStep", "windrow.data"),
        ("modules.inference_server", "InferenceServer", "windrow.torchrl"),
        ("envs.libs.vmas", "VmasEnv", "torchrl.envs"),
        ("data.replay_buffers.samplers", "SamplerEnsemble", "torchrl.data"),
        ("data.tensor_specs", "Bounded", "torchrl.data"),
        ("objectives.value.advantages", "GAE", "torchrl.objectives"),
        ("weight_update", "MultiProcessWeightSyncScheme", "torchrl.weight_update"),
        ("trainers", "Trainer", "windrow.torchrl.trainers"),
        ("record.loggers.csv", "CSVLogger", "torchrl.record"),
        ("_utils", "timeit", "torchrl._utils"),
        ("testing.mocking_classes", "CountingEnv", "torchrl.testing"),
    ],
)
def test_modules_of_any_depth_answer(module: str, name: str, home: str) -> None:
    assert getattr(
        importlib.import_module(f"windrow.torchrl.{module}"), name
    ).__module__.startswith(home)


def test_star_imports_take_what_those_of_torchrl_do() -> None:
    taken: dict[str, object] = {}
    exec("from windrow.torchrl.envs import *", taken)
    assert {*torchrl.envs.__all__} <= {*taken}
    assert taken["EnvCreator"] is windrow.envs.EnvCreator


def test_a_module_is_the_same_however_it_is_reached() -> None:
    import windrow.torchrl.envs.libs.gym as gym

    assert windrow.torchrl.envs.libs.gym is gym and gym.GymEnv is windrow.torchrl.envs.GymEnv
    assert windrow.torchrl.envs.env_creator is windrow.envs.env_creator
    assert windrow.torchrl.__version__ == torchrl.__version__
    assert windrow.torchrl.objectives.SACLoss is torchrl.objectives.SACLoss


def test_unknown_names_are_refused() -> None:
    with pytest.raises(
        AttributeError,
        match="module 'windrow.torchrl.envs' has no attribute 'GymEmv', nor has torchrl.envs",
    ):
        windrow.torchrl.envs.GymEmv
    with pytest.raises(ImportError, match="cannot import name 'Storge'"):
        exec("from windrow.torchrl.data.replay_buffers.storages import Storge")
    with pytest.raises(ModuleNotFoundError, match="No module named 'windrow.torchrl.nowhere'"):
        importlib.import_module("windrow.torchrl.nowhere")


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_has_another_meaning_deeper_down(package: str) -> None:
    theirs = importlib.import_module(f"torchrl.{package}")
    meanings: dict[str, dict[int, str]] = {}
    for name in [
        theirs.__name__,
        *(name for name in sys.modules if name.startswith(f"{theirs.__name__}.")),
    ]:
        for own in _names._OWN[package]:
            value = vars(sys.modules[name]).get(own)
            if value is not None and not isinstance(value, ModuleType):
                meanings.setdefault(own, {})[id(value)] = name
    assert (
        len(meanings) > 1 and [several for several in meanings.values() if len(several) > 1] == []
    )


def run(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout.strip()


LOADED = "print(*sorted({name.partition('.')[0] for name in sys.modules} & {'torchrl', 'torch', 'tensordict', 'numpy', 'gymnasium'}))"


def test_windrows_own_names_import_no_torchrl() -> None:
    assert (
        run(f"""if True:
        import sys
        import windrow.torchrl.collectors, windrow.torchrl.data.replay_buffers.samplers, windrow.torchrl.envs.libs.gym as gym
        from windrow.torchrl.collectors import Collector, AsyncBatchedCollector
        from windrow.torchrl.envs import GymEnv, ParallelEnv, TransformedEnv
        from windrow.torchrl.data import LazyTensorStorage, ReplayBuffer
        from windrow.torchrl.modules import InferenceServer
        {LOADED}""")
        == ""
    )


def test_nothing_else_of_windrow_imports_the_stand_in() -> None:
    assert (
        run("""if True:
        import sys, windrow.collectors, windrow.envs, windrow.data, windrow.modules
        windrow.collectors.Collector, windrow.envs.GymEnv, windrow.envs.TransformedEnv, windrow.data.ReplayBuffer
        print(*(name for name in sys.modules if name.startswith("windrow.torchrl")))""")
        == ""
    )


WITHOUT = "import sys; sys.modules['torchrl'] = None"


def test_windrows_names_are_found_without_torchrl() -> None:
    assert (
        run(f"""if True:
        {WITHOUT}
        from windrow.torchrl.envs import *
        from windrow.torchrl.envs.libs.gym import GymEnv as same
        from windrow.torchrl.data.replay_buffers.storages import LazyTensorStorage
        import windrow.torchrl.envs as envs
        print(GymEnv is same, StepCounter(3).max_steps, hasattr(envs, "VmasEnv"), getattr(envs, "EnvBase", None))
        """)
        == "True 3 False None"
    )


@pytest.mark.parametrize(
    "statement",
    [
        "from windrow.torchrl.envs import VmasEnv",
        "from windrow.torchrl.envs import EnvBase",
        "from windrow.torchrl.envs.libs.gym import MOGymEnv",
        "from windrow.torchrl.objectives import SACLoss",
        "import windrow.torchrl.objectives.value",
        "import windrow.torchrl.envs; windrow.torchrl.envs.VmasEnv",
    ],
)
def test_an_import_of_a_name_that_only_torchrl_has_says_that_it_is_not_installed(
    statement: str,
) -> None:
    told = run(f"""if True:
        {WITHOUT}
        try:
            {statement}
        except (AttributeError, ImportError) as error:
            print(error)""")
    assert told.startswith("windrow.torchrl has no ") and told.endswith(
        " of its own, and torchrl, which may have it, is not installed: pip install torchrl"
    )


def test_a_module_that_torchrl_enters_under_another_name_is_found() -> None:
    from torchrl.modules.models import model_based_v3 as theirs

    module = importlib.import_module("windrow.torchrl.modules.models.model_based_v3")
    assert module.ObsEncoder is theirs.ObsEncoder


def test_trainers_make_windrows_collectors() -> None:
    helpers = importlib.import_module("windrow.torchrl.trainers.helpers.collectors")
    assert helpers.MultiAsyncCollector is windrow.torchrl.collectors.MultiAsyncCollector


def test_configurations_name_windrows_classes() -> None:
    pytest.importorskip("hydra")
    configs = importlib.import_module("windrow.torchrl.trainers.algorithms.configs")
    assert (
        configs.LazyTensorStorageConfig()._target_
        == "windrow.torchrl.data.replay_buffers.LazyTensorStorage"
    )


def said_in_code(source: Path) -> list[str]:
    """What a module says with "torchrl" in it, in names, imports and texts, but for docstrings."""
    tree = ast.parse(source.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and ast.get_docstring(node) is not None
    }
    said = []
    for node in ast.walk(tree):
        # A text in an f-string is a constant too.
        values = [
            value
            for name, value in ast.iter_fields(node)
            if isinstance(value, str) and name != "type_comment"
        ]
        said += [value for value in values if "torchrl" in value and id(node) not in docstrings]
    return said


def test_the_fence_is_closed() -> None:
    """The rest of windrow knows torchrl by one module, which says what of ``windrow.torchrl`` is
    imported when.
    """
    package = Path(windrow.__file__).parent
    sources = {str(source.relative_to(package)): source for source in package.rglob("*.py")}
    said = {
        name
        for name, source in sources.items()
        if not name.startswith("torchrl/") and said_in_code(source)
    }
    # The package lists its parts, and figures can have the names that they have in TorchRL.
    assert said == {"_fence.py", "__init__.py", "_logger.py"}


def test_no_class_outside_of_the_stand_in_changes_what_a_class_is() -> None:
    """A metaclass, a finder and an ``isinstance`` of their own are in ``windrow.torchrl`` alone."""
    hooks = ("metaclass=", "__instancecheck__", "__subclasshook__", "meta_path")
    package = Path(windrow.__file__).parent
    having = {
        source.relative_to(package).parts[0]
        for source in package.rglob("*.py")
        if any(hook in source.read_text() for hook in hooks)
    }
    assert having == {"torchrl"}


def test_texts_that_name_something_are_found() -> None:
    """As hydra looks for a ``_target_``."""
    assert pydoc.locate("windrow.torchrl.envs.GymEnv") is windrow.torchrl.envs.GymEnv
    assert (
        pydoc.locate("windrow.torchrl.data.replay_buffers.storages.LazyTensorStorage")
        is windrow.data.LazyTensorStorage
    )
    assert (
        pydoc.locate("windrow.torchrl.objectives.value.GAE")
        is importlib.import_module("torchrl.objectives.value").GAE
    )
    assert pydoc.locate("torchrl.envs.GymEnv") is torchrl.envs.GymEnv
