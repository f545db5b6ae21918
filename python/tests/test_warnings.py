"""The class of all warnings, by which they can be filtered."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from torch import nn

import windrow
from cartpole import cartpole
from windrow._warnings import warn
from windrow.collectors import (
    AsyncBatchedCollector,
    AsyncCollector,
    Collector,
    Evaluator,
    MultiAsyncCollector,
    MultiSyncCollector,
)
from windrow.data import LazyTensorStorage, ReplayBuffer
from windrow.envs import GymEnv
from windrow.modules import RemotePolicy, RemoteServer


def test_every_warning_is_given_by_one_function() -> None:
    package = Path(windrow.__file__).parent
    calls = {
        str(source.relative_to(package))
        for source in package.rglob("*.py")
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("warnings.warn", "warnings.warn_explicit")
    }
    assert calls == {"_warnings.py"}


def test_one_warning_lists_all_arguments_without_effect() -> None:
    with pytest.warns(windrow.Warning) as seen:
        Collector(
            cartpole, frames_per_batch=20, use_buffers=False, num_threads=3, no_cuda_sync=False
        )
    assert [str(warning.message) for warning in seen] == [
        "use_buffers has no effect: batches are always written in place; "
        "num_threads has no effect: the number of threads of torch is left alone"
    ]
    with pytest.warns(
        windrow.Warning, match="auto_reset has no effect: .*; run_type_checks has no effect: "
    ) as seen:
        GymEnv("CartPole-v1", run_type_checks=True, auto_reset=True)
    assert len(seen) == 1 and seen[0].filename == __file__


def test_a_filter_by_the_class_silences_them() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", windrow.Warning)
        Collector(cartpole, frames_per_batch=20, use_buffers=False, exploration_mode="mode")
        list(
            Collector(
                lambda: GymEnv("CartPole-v1", num_envs=2), frames_per_batch=21, total_frames=42
            )
        )


def test_old_names_are_deprecations_too() -> None:
    with pytest.warns(
        DeprecationWarning, match="exploration_mode is called exploration_type now"
    ) as seen:
        Collector(cartpole, frames_per_batch=20, exploration_mode="mode")
    assert issubclass(seen[0].category, windrow.Warning)


def test_warnings_of_the_engine_are_of_the_class() -> None:
    with pytest.warns(windrow.Warning, match="are kept alive"):
        kept = list(Collector("CartPole-v1", frames_per_batch=1, total_frames=2000))
    assert len(kept) == 2000


def line_of(act: Callable[[], object]) -> int:
    """The line of this file that the only warning of ``act`` points at."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        act()
    (only,) = (warning for warning in seen if issubclass(warning.category, windrow.Warning))
    assert only.filename == __file__
    return only.lineno


def test_warnings_point_at_the_line_of_the_user() -> None:
    buffer, collector = (
        ReplayBuffer(storage=LazyTensorStorage(10)),
        Collector("CartPole-v1", frames_per_batch=10),
    )
    entries: list[Callable[[], object]] = [
        lambda: Collector("CartPole-v1", frames_per_batch=20, use_buffers=False),
        lambda: Collector("CartPole-v1", num_collectors=1, frames_per_batch=20, use_buffers=False),
        lambda: MultiSyncCollector("CartPole-v1", num_workers=2, num_envs=2, frames_per_batch=21),
        lambda: AsyncBatchedCollector(["CartPole-v1"], frames_per_batch=20, verbose=True),
        lambda: GymEnv("CartPole-v1", run_type_checks=True),
        lambda: ReplayBuffer(storage=LazyTensorStorage(10, compilable=True)),
        lambda: LazyTensorStorage(10, compilable=True),
        lambda: buffer.empty(empty_write_count=False),
        lambda: collector.update_policy_weights_(policy_weights={}),
        lambda: collector.shutdown(close_env=False),
        lambda: Evaluator("CartPole-v1", nn.Linear(4, 2), weight_sync_schemes={}),
    ]
    for entry in entries:
        assert line_of(entry) == entry.__code__.co_firstlineno


def test_a_warning_points_at_the_innermost_code_of_the_user() -> None:
    def make() -> GymEnv:
        return GymEnv("CartPole-v1", run_type_checks=True)

    assert (
        line_of(lambda: next(Collector(make, frames_per_batch=10)))
        == make.__code__.co_firstlineno + 1
    )


def test_frames_of_torch_and_of_decorators_are_none_of_the_user() -> None:
    module = nn.Identity()
    code = compile("def hook(module, given):\n    warn('from within')", "hooks.py", "exec")
    hooks: dict[str, Any] = {"__name__": "windrow.hooks", "warn": warn}
    exec(code, hooks)
    module.register_forward_pre_hook(hooks["hook"])
    called = lambda: module(torch.zeros(1))  # noqa: E731
    assert line_of(called) == called.__code__.co_firstlineno


# Policies that Python calls


class Squared(nn.Module):
    """What windrow has no operation for."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.linalg.matrix_exp(observation.new_zeros(2, 2)).sum() * observation[..., :2]


def told(program: str) -> list[str]:
    """Warnings of a program, each in a line."""
    head = "import torch\nfrom torch import nn\nfrom windrow.collectors import *\nfrom test_warnings import Squared\n"
    folders = [str(Path(__file__).parent), *sys.path]
    run = [
        sys.executable,
        "-W",
        "always",
        "-c",
        f"import sys; sys.path[:] = {folders}\n{head}{program}",
    ]
    shown = subprocess.run(run, capture_output=True, text=True, check=True).stderr
    return [line for line in shown.splitlines() if "PerformanceWarning" in line]


def test_a_policy_that_python_calls_is_told_of_once_in_a_program() -> None:
    (line,) = told("""
for kind, envs in ((Collector, "CartPole-v1"), (MultiSyncCollector, ["CartPole-v1"]), (AsyncCollector, "CartPole-v1")):
    kind(envs, Squared(), frames_per_batch=10).shutdown()
Evaluator("CartPole-v1", Squared()).shutdown()
Collector("CartPole-v1", nn.Sequential(nn.Linear(4, 2), Squared()), frames_per_batch=10)
""")
    assert (
        "the policy is called in Python, since no operation of windrow's graphs is linalg_matrix_exp"
        in line
        and 'policy_backend="native" makes it an error' in line
    )


def test_nobody_is_told_of_what_was_asked_for() -> None:
    assert (
        told("""
Collector("CartPole-v1", Squared(), frames_per_batch=10, policy_backend="torch")
Collector("CartPole-v1", policy_factory=Squared, frames_per_batch=10)
Collector("CartPole-v1", Squared(), frames_per_batch=10, compile_policy={"backend": "eager"})
Collector("CartPole-v1", lambda observation: torch.tensor(0), frames_per_batch=10)
Collector("CartPole-v1", nn.Linear(4, 2), frames_per_batch=10)
Collector("CartPole-v1", frames_per_batch=10)
""")
        == []
    )


@pytest.mark.parametrize(
    "kind",
    [
        Collector,
        AsyncCollector,
        MultiSyncCollector,
        MultiAsyncCollector,
        AsyncBatchedCollector,
        Evaluator,
        RemoteServer,
    ],
)
@pytest.mark.parametrize(
    "given",
    [
        {"policy": Squared()},
        {"policy": lambda observation: torch.tensor(0)},
        {"policy_factory": Squared},
    ],
    ids=["module", "function", "factory"],
)
def test_a_policy_that_python_would_call_is_an_error_of_every_class_that_demands_rust(
    kind: Any, given: dict[str, Any]
) -> None:
    if kind is RemoteServer:
        if "policy_factory" in given:
            pytest.skip("a server has one policy")
        options: dict[str, Any] = {"env": "CartPole-v1"}
    else:
        workers = {"num_workers": 2} if kind.__name__.startswith(("Multi", "AsyncB")) else {}
        options = (
            {"env": "CartPole-v1"}
            if kind is Evaluator
            else {"create_env_fn": "CartPole-v1", "frames_per_batch": 10, **workers}
        )
    with pytest.raises(ValueError, match='policy_backend="native": '):
        kind(**options, **given, policy_backend="native")


def test_a_remote_policy_is_evaluated_as_its_server_says() -> None:
    with pytest.raises(ValueError, match="policy_backend must be left out"):
        Collector(
            "CartPole-v1",
            RemotePolicy("unix:policy.sock"),
            frames_per_batch=10,
            policy_backend="native",
        )


class Switches(gymnasium.Env[Any, Any]):
    """Actions are two switches, which no graph chooses."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.MultiBinary(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


def test_a_policy_that_cannot_be_called_is_an_error_alone() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", windrow.Warning)
        with pytest.raises(Exception, match="cannot be multiplied"):
            Collector("CartPole-v1", nn.Linear(5, 2), frames_per_batch=10)


def test_a_graph_that_does_not_fit_an_environment_is_told_of() -> None:
    why = 'its graph does not fit the environments (graph policy does not fit Switches: action: expected "action" int8 [2], got "action" float32 [2])'
    with pytest.warns(
        windrow.PerformanceWarning,
        match=re.escape(f"the policy is called in Python, since {why}"),
    ):
        collector = Collector(Switches, nn.Linear(3, 2), frames_per_batch=4)
    assert collector.policy_backend == "torch" and why in repr(collector)
    with pytest.raises(ValueError, match="MultiBinary|multi-binary|action"):
        Collector(Switches, nn.Linear(3, 2), frames_per_batch=4, policy_backend="native")
