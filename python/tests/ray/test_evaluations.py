"""Evaluators in actors of Ray."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from tensordict import TensorDict
from torch import nn

from counting import Counting, raises_value_error
from waiting import runs, until
from windrow import WorkerError
from windrow.collectors import Evaluator

pytestmark = pytest.mark.usefixtures("cluster")


def build(env: Any, policy: Any = None, **options: Any) -> Evaluator:
    return Evaluator(
        env,
        policy,
        **{"num_trajectories": 2, "backend": "ray", "ray_kwargs": {"num_cpus": 0}, **options},
    )


def always(choice: int, width: int = 2) -> nn.Linear:
    policy = nn.Linear(width, 2)
    with torch.no_grad():
        policy.weight.zero_()
        policy.bias.copy_(torch.eye(2)[choice])
    return policy


def figures(batch: TensorDict) -> dict[str, float]:
    return {
        "actions": float(batch["action"][..., 1].float().mean()),
        "pid": float(batch["observation"][0, 0, 1]),
    }


@pytest.fixture(scope="module")
def seen() -> list[Any]:
    """Results that the evaluator of this module has told of."""
    return []


@pytest.fixture(scope="module")
def act(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that says what the environment of this module does once."""
    act = tmp_path_factory.mktemp("act") / "what"
    act.write_text("")
    return act


@pytest.fixture(scope="module")
def evaluator(cluster: Any, seen: list[Any], act: Path) -> Iterator[Evaluator]:
    def does() -> None:
        while (what := act.read_text()) == "wait":
            time.sleep(0.001)
        if what:
            act.write_text("")
            os._exit(1) if what == "die" else raises_value_error()

    def on_result(result: Any) -> None:
        seen.append((os.getpid(), int(result["eval/step"])))

    with build(
        lambda: Counting(does), always(0), metrics_fn=figures, on_result=on_result, seed=1
    ) as evaluator:
        yield evaluator


def test_an_actor_evaluates_as_a_thread_does() -> None:
    batches: dict[str, list[TensorDict]] = {"thread": [], "ray": []}
    results, policy = {}, nn.Linear(4, 2)
    for backend, kept in batches.items():

        def keep(batch: TensorDict, kept: list[TensorDict] = kept) -> dict[str, float]:
            kept.append(batch.clone())
            return {"frames": batch.numel()}

        with build(
            "CartPole-v1",
            policy,
            backend=backend,
            seed=4,
            max_steps=40,
            metrics_fn=keep,
            ray_kwargs=None,
        ) as evaluator:
            assert evaluator.backend == backend and backend in repr(evaluator)
            results[backend] = [
                evaluator.evaluate(),
                evaluator.evaluate(always(1, 4), step=9),
                evaluator.evaluate(),
            ]
    for ours, theirs in zip(*results.values(), strict=True):
        assert {**ours, "eval/fps": 0} == {**theirs, "eval/fps": 0}
    for ours, theirs in zip(*batches.values(), strict=True):
        assert set(ours.keys(True, True)) == set(theirs.keys(True, True))
        assert [
            key for key in ours.keys(True, True) if not torch.equal(ours[key], theirs[key])
        ] == []


def test_weights_of_each_evaluation_act_in_the_actor(evaluator: Evaluator, seen: list[Any]) -> None:
    before = evaluator.evaluate(step=3)
    assert (
        before["eval/actions"] == 0
        and before["eval/num_episodes"] == 2
        and before["eval/reward"] == 10
    )
    assert before["eval/pid"] != os.getpid() and seen[-1] == (os.getpid(), 3)
    for weights in (always(1), TensorDict.from_module(always(1)), always(1).state_dict()):
        assert evaluator.evaluate(weights)["eval/actions"] == 1
        # Those of the module that it was built with.
        assert evaluator.evaluate()["eval/actions"] == 0
    after = evaluator.evaluate(weights_dict={"policy": always(1)})
    assert (
        after["eval/policy_version"] == before["eval/policy_version"] + 7
        and after["eval/pid"] == before["eval/pid"]
    )
    with pytest.raises(ValueError, match="bias"):
        evaluator.evaluate({"weight": always(1).weight})
    assert evaluator.evaluate()["eval/actions"] == 0


def test_results_come_while_the_caller_goes_on(evaluator: Evaluator, act: Path) -> None:
    assert evaluator.poll() is None and evaluator.wait() is None
    act.write_text("wait")
    assert evaluator.trigger_eval(step=5) and evaluator.pending and evaluator.poll(0.01) is None
    assert not evaluator.trigger_eval(), "it skips"
    with pytest.raises(RuntimeError, match="running"):
        evaluator.state_dict()
    act.write_text("")
    result = evaluator.wait(60) or {}
    assert (result["eval/step"], result["eval/actions"]) == (5, 0)
    assert not evaluator.pending and evaluator.wait(1.0) is None
    with pytest.raises(ValueError, match="timeout must be a number of seconds"):
        evaluator.poll(-1.0)


def test_an_exception_in_the_actor_is_what_it_was(evaluator: Evaluator, act: Path) -> None:
    act.write_text("raise")
    with pytest.raises(WorkerError, match="step 6") as caught:
        evaluator.evaluate()
    assert isinstance(caught.value.__cause__, ValueError) and "no such road" in str(
        caught.value.__cause__
    )
    # The next call raises what nobody has read.
    act.write_text("raise")
    evaluator.trigger_eval()
    until(lambda: not evaluator.pending)
    with pytest.raises(WorkerError, match="step 6"):
        evaluator.trigger_eval()
    assert evaluator.evaluate()["eval/num_episodes"] == 2


def test_an_actor_that_dies_is_the_error_of_an_evaluation(evaluator: Evaluator, act: Path) -> None:
    before = evaluator.evaluate(always(1))
    # In the middle, and while nothing is asked of it.
    act.write_text("die")
    with pytest.raises(WorkerError, match="its actor was lost"):
        evaluator.evaluate(always(1))
    pid = int(evaluator.evaluate(always(1))["eval/pid"])
    assert pid != before["eval/pid"]
    os.kill(pid, 9)
    until(lambda: not runs(pid))
    evaluator.trigger_eval()
    with pytest.raises(WorkerError, match="its actor was lost"):
        evaluator.wait(60)
    # As if no actor had been lost.
    after = evaluator._core.evaluate(None, 9)
    assert (
        after["eval/policy_version"] == before["eval/policy_version"] + 3
        and after["eval/actions"] == 0
    )


def test_a_shutdown_ends_the_actor_in_the_middle(tmp_path: Path) -> None:
    told = tmp_path / "pid"

    def first() -> None:
        assert "torch" not in sys.modules
        os.environ["PREPARED"] = "yes"

    def env() -> gym.Env[Any, Any]:
        assert os.environ["PREPARED"] == "yes"
        return Counting(stuck)

    def stuck() -> None:
        told.write_text(str(os.getpid()))
        time.sleep(600)

    evaluator = build(env, policy_factory=lambda: always(1), init_fn=first)
    assert "PREPARED" not in os.environ
    evaluator.trigger_eval()
    until(lambda: told.exists() and bool(told.read_text()))
    evaluator.shutdown(0.1)
    until(lambda: not runs(int(told.read_text())))
    evaluator.shutdown()
    for ask in (evaluator.evaluate, evaluator.trigger_eval, evaluator.wait):
        with pytest.raises(RuntimeError, match="was shut down"):
            ask()
    assert not evaluator.pending and evaluator.wait() is None


def test_what_cannot_be_built_is_told() -> None:
    with pytest.raises(ValueError, match="no such road"):
        build(raises_value_error, always(0))
    with pytest.raises(RuntimeError, match="an actor claims 3 GPU, but Ray has 0: .*num_gpus"):
        build("CartPole-v1", always(0, 4), num_gpus=3)
    lock = __import__("threading").Lock()
    with pytest.raises(TypeError, match='backend="ray" sends env to its actor, but env uses lock'):
        build(lambda: lock, always(0))


class Switches(gym.Env[Any, Any]):
    """Actions are two switches, which no graph chooses."""

    observation_space = gym.spaces.Box(-1, 1, (4,))
    action_space = gym.spaces.MultiBinary(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


def test_an_actor_that_refuses_the_graph_calls_the_policy() -> None:
    with build(Switches, always(0, 4), max_steps=3) as evaluator:
        assert evaluator.evaluate()["eval/num_episodes"] == 2
        assert "does not fit" in str(evaluator._repr_html_())
