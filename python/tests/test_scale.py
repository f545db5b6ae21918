"""The simulation of collection over Ray: ``python/benches/scale.py``."""

from __future__ import annotations

import dataclasses
import pathlib
import runpy
from types import SimpleNamespace
from typing import Any

import pytest

PROGRAM = pathlib.Path(__file__).parents[1] / "benches" / "scale.py"
scale = SimpleNamespace(**runpy.run_path(str(PROGRAM)))

COSTS = scale.Costs(actor_call=0.0, learner_call=1e-3, learner_process=1e-3, weights_call=1e-3, copy=1e12, network=1e9)


def simulate(costs: Any = COSTS, machines: int = 10, weights_every: float = 1e9) -> Any:
    """Actors with two cores each, which fill a batch of 100 kB in 0.1 s."""
    return scale.Cluster(costs, scale.Job(machines, 2, 2, 1, 1000.0, 100.0, 1e-4, 1e6, weights_every)).run()


def about(value: float) -> Any:
    return pytest.approx(value, rel=0.05)


def test_few_machines_bring_all_that_their_cores_can():
    outcome = simulate()
    assert outcome.ideal == about(200_000)
    assert outcome.rate == about(outcome.ideal)
    assert outcome.saturated().startswith("cores")
    assert outcome.fan_out == about(4 * 1e-3 + 20 * 1e-3)


def test_the_thread_of_the_learner_saturates():
    # It takes 1000 batches a second, and 2000 arrive.
    outcome = simulate(machines=100)
    assert outcome.rate == about(1e6)
    assert outcome.saturated().startswith("thread")


def test_the_network_of_the_learner_saturates():
    # It carries 100 batches of 100 kB a second, and actors fill 200.
    outcome = simulate(dataclasses.replace(COSTS, network=1e7))
    assert outcome.rate == about(1e5)
    assert outcome.saturated().startswith("network of the learner")


def test_weights_take_the_time_of_the_learner():
    # 200 calls of 1 ms each quarter of a second leave a fifth of it.
    assert simulate(machines=100, weights_every=0.25).rate == about(2e5)


def test_a_learner_on_the_only_machine_uses_its_cores():
    # It takes 0.2 s of two cores for each batch.
    slow = dataclasses.replace(COSTS, learner_call=0.1, learner_process=0.1)
    assert simulate(slow, machines=1).rate == about(10_000)


def test_predictions_are_compared_with_measurements():
    def lines(rate: int) -> str:
        each = "".join(
            f"{env}_frame_us: 100 of a core\n{env}_learner_call_us: 300\n{env}_learner_process_us: 5e2\n"
            f"{env}_two_actors_frames_s: {rate}\n"
            for env in scale.STEPPED
        )
        costs = "cores: 2\nframes_per_batch: 1000\nframe_bytes: 60\nactor_call_us: 300\nweights_call_us: 100\ncopy_gb_s: 2\n"
        return f"a warning\nanother: one\n{costs}{each}"

    assert scale.check(lines(19_000))
    assert not scale.check(lines(10_000))
    with pytest.raises(SystemExit, match="actor_call_us"):
        scale.check("cores: 2")
