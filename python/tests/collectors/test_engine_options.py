"""What the engine says of options that it cannot take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windrow._arguments import fields_of
from windrow._windrow import CollectorCore
from windrow.collectors._arguments import AsyncBatchedArguments, CollectorArguments

#: Where the engine declares its options.
TABLE = Path(__file__).parents[3] / "crates/windrow-collect/src/config/options.rs"

OBJECTS = {
    "envs": ["CartPole-v1"],
    "env_kwargs": [None],
    "policy": None,
    "replay_buffer": None,
    "takes_writes": False,
    "device": None,
    "flat": False,
    "init_fn": None,
    "worker_threads": 1,
    "launcher": None,
    "allow_pickle": False,
}


@pytest.mark.parametrize(
    ("name", "value", "kind", "expected"),
    [
        ("num_workers", "two", TypeError, "a whole number"),
        ("num_workers", True, TypeError, "a whole number"),
        ("num_workers", 2.5, TypeError, "a whole number"),
        ("num_workers", -1, ValueError, "a whole number from 0 to 18446744073709551615"),
        ("num_workers", 1 << 70, ValueError, "a whole number from 0 to 18446744073709551615"),
        ("frames_per_batch", "many", TypeError, "a whole number, or a list of one for each worker"),
        ("set_truncated", "yes", TypeError, "True or False"),
        ("preemptive_threshold", "half", TypeError, "a number"),
        ("traj_format", "flat", ValueError, '"padded" or "cat"'),
        ("traj_format", 3, TypeError, "a name"),
        ("on_loss", "stop", ValueError, '"raise", "continue" or a number of restarts'),
        ("on_loss", [], TypeError, '"raise", "continue" or a number of restarts'),
    ],
)
def test_an_option_is_refused_by_its_name_with_what_was_expected(
    name: str, value: Any, kind: type[Exception], expected: str
) -> None:
    with pytest.raises(kind) as refused:
        CollectorCore({"config": {name: value}, **OBJECTS})
    assert str(refused.value) == f"{name} must be {expected}, got {value!r}"


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="^unexpected argument frames$"):
        CollectorCore({"config": {"frames": 3}, **OBJECTS})


def test_numbers_of_numpy_are_numbers_and_none_is_not_given() -> None:
    options = {
        "frames_per_batch": np.int64(10),
        "preemptive_threshold": np.float32(0.5),
        "total_frames": None,
    }
    core = CollectorCore({"config": options, **OBJECTS})
    assert core.stats()["requested_frames_per_batch"] == 10
    assert core.len() is None


def options_of_the_engine() -> dict[str, Any]:
    """Defaults of the options that the engine's table declares, by name."""
    _, _, table = TABLE.read_text().partition("\noptions! {\n")
    entry = re.compile(r"^    (\w+)(?:\?| =>|:)[^=\n]*(?:= (\S+))?,$", re.MULTILINE)
    known = {"": None, "false": False, "true": True, "OnLoss::Raise": "raise"}
    return {name: known.get(default, default) for name, default in entry.findall(table)}


@pytest.mark.skipif(not TABLE.exists(), reason="needs the sources of the engine")
@pytest.mark.parametrize("declaration", [CollectorArguments, AsyncBatchedArguments])
def test_an_argument_of_the_engine_has_the_default_of_its_table(declaration: type) -> None:
    table = options_of_the_engine()
    declared = {
        field.name: field.default
        for field in fields_of(declaration)
        if field.metadata.get("engine") and field.name != "frames_per_batch"
    }
    # A negative number of frames is none, and frames tell of versions where workers share a policy.
    own = {"total_frames": None, "track_policy_version": False}
    assert len(declared) >= 14
    assert {name: table[name] for name in declared} == {**declared, **own}
