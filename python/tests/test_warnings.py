"""The class of all warnings, by which they can be filtered."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path

import pytest
from cartpole import cartpole

import windrow
from windrow.collectors import Collector
from windrow.envs import GymEnv


def test_every_warning_is_given_by_one_function() -> None:
    package = Path(windrow.__file__).parent
    calls = {
        str(source.relative_to(package))
        for source in package.rglob("*.py")
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("warnings.warn", "warnings.warn_explicit")
    }
    assert calls == {"_warnings.py"}


def test_one_warning_lists_all_arguments_without_effect() -> None:
    with pytest.warns(windrow.Warning) as seen:
        Collector(cartpole, frames_per_batch=20, use_buffers=False, num_threads=3, no_cuda_sync=False)
    assert [str(warning.message) for warning in seen] == [
        "use_buffers has no effect: batches are always written in place; "
        "num_threads has no effect: the number of threads of torch is left alone"
    ]
    with pytest.warns(windrow.Warning, match="auto_reset has no effect: .*; run_type_checks has no effect: ") as seen:
        GymEnv("CartPole-v1", run_type_checks=True, auto_reset=True)
    assert len(seen) == 1 and seen[0].filename == __file__


def test_a_filter_by_the_class_silences_them() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", windrow.Warning)
        Collector(cartpole, frames_per_batch=20, use_buffers=False, exploration_mode="mode")
        list(Collector(lambda: GymEnv("CartPole-v1", num_envs=2), frames_per_batch=21, total_frames=42))


def test_old_names_are_deprecations_too() -> None:
    with pytest.warns(DeprecationWarning, match="exploration_mode is called exploration_type now") as seen:
        Collector(cartpole, frames_per_batch=20, exploration_mode="mode")
    assert issubclass(seen[0].category, windrow.Warning)


def test_warnings_of_the_engine_are_of_the_class() -> None:
    with pytest.warns(windrow.Warning, match="are kept alive"):
        kept = list(Collector("CartPole-v1", frames_per_batch=1, total_frames=2000))
    assert len(kept) == 2000
