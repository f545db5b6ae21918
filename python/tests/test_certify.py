"""The program that compares native environments with Gymnasium's: what it finds where they differ,
and the certificates that it wrote.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import certify
from windrow._windrow import native_ids

CERTIFICATES = Path(__file__).parents[2] / "docs" / "certificates"


@pytest.mark.parametrize(
    ("env_name", "arguments", "theirs"),
    [
        ("FrozenLake-v1", {}, {"success_rate": 0.3333}),
        ("Taxi-v4", {}, {"fickle_passenger": True}),
        ("Blackjack-v1", {"sab": False}, {"sab": False, "natural": True}),
        ("Pendulum-v1", {}, {"g": 10.0001}),
    ],
)
def test_environments_that_differ_are_found(
    env_name: str, arguments: dict[str, Any], theirs: dict[str, Any]
) -> None:
    run = certify.Run(env_name, arguments, theirs).go(4000)
    assert run.differing and run.ulps and run.values > 5 * 4000


def test_the_distance_of_numbers_is_counted_in_units_in_the_last_place() -> None:
    ones = np.array([1.0, -0.0, -1.0], np.float32)
    near = np.array(
        [
            np.nextafter(np.float32(1), np.float32(2)),
            0.0,
            np.nextafter(np.float32(-1), np.float32(0)),
        ],
        np.float32,
    )
    assert (certify._bits(near) - certify._bits(ones)).tolist() == [1, 1, 1]


def test_a_space_that_differs_is_refused() -> None:
    with pytest.raises(
        SystemExit, match="observation_space is Discrete.16., Gymnasium's is Discrete.64."
    ):
        certify.Run("FrozenLake-v1", {}, {"map_name": "8x8"})


@pytest.mark.parametrize("env_name", native_ids())
def test_each_native_environment_has_a_certificate(env_name: str) -> None:
    found = json.loads((CERTIFICATES / f"{env_name}.json").read_text())
    assert found["environment"] == env_name and certify.holds(found)
    assert bool(found["tolerance"]["ulps"]) == bool(found["tolerance"]["reason"])
    first, *others = found["runs"]
    assert first["steps"] >= 1_000_000 and first["arguments"] == {}
    # As lists, which JSON makes of tuples.
    assert [run["arguments"] for run in others] == json.loads(
        json.dumps(certify.ARGUMENTS.get(env_name, []))
    )
    assert first["terminated"] or first["truncated"]


@pytest.mark.parametrize("path", sorted(CERTIFICATES.glob("*.json")), ids=lambda path: path.stem)
def test_certificates_leave_out_nothing(path: Path) -> None:
    found = json.loads(path.read_text())
    assert certify.holds(found)
    assert [run["info"]["left_out"] for run in found["runs"]] == [[]] * len(found["runs"])


def test_info_of_another_environment_is_found() -> None:
    pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install mujoco")
    run = certify.Run("Hopper-v5", {}, {"ctrl_cost_weight": 0.1}).go(160)
    assert run.differing and run.info > {"reward_ctrl", "x_position"} and not run.left_out
