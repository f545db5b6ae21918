"""Evaluations beside a training."""

from __future__ import annotations

import _thread
import gc
import math
import subprocess
import sys
import threading
import time
import warnings

import pytest
import torch
from tensordict import TensorDict
from torch import nn

import recurrent
from cartpole import cartpole
from windrow.collectors import Evaluator, _evaluator
from windrow.envs import StepCounter, TransformedEnv


@pytest.fixture(autouse=True)
def in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluators of these tests run in threads. `test_process_evaluator.py` has those in
    processes.
    """
    monkeypatch.setattr(_evaluator, "_stays", lambda *_: True)


def always(choice: int) -> nn.Linear:
    policy = nn.Linear(4, 2)
    with torch.no_grad():
        policy.weight.zero_()
        policy.bias.copy_(torch.eye(2)[choice])
    return policy


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_an_evaluation_reports_whole_episodes(backend) -> None:
    with Evaluator(
        cartpole, always(0), num_trajectories=3, max_steps=7, seed=0, policy_backend=backend
    ) as evaluator:
        result = evaluator.evaluate(step=5)
    assert result["eval/num_episodes"] == 3 and result["eval/step"] == 5
    assert result["eval/reward"] == result["eval/episode_length"] == 7.0
    assert isinstance(result["eval/step"], int) and result["eval/reward_std"] == 0.0


def test_results_come_while_the_caller_goes_on() -> None:
    seen: list[TensorDict] = []
    called = threading.Event()

    def on_result(result: TensorDict) -> None:
        seen.append(result)
        called.set()

    policy = always(0)
    with Evaluator(
        cartpole,
        policy,
        num_trajectories=2,
        on_result=on_result,
        busy_policy="queue",
        log_prefix="test",
    ) as evaluator:
        assert evaluator.poll() is None
        assert evaluator.trigger_eval(policy, step=1) and evaluator.trigger_eval(policy)
        assert [evaluator.wait(60)["test/step"] for _ in range(2)] == [1, 2]
        assert called.wait(60) and not evaluator.pending
        # As a TensorDict, as TorchRL hands it on.
        assert seen[0]["test/step"].item() == 1 and seen[0]["test/reward"].dtype == torch.float32
        assert evaluator.state_dict() == {"step": 3}


def test_the_policy_is_copied_and_takes_new_weights() -> None:
    policy = always(0)
    figures = {"batches": 0.0}

    def metrics(batch) -> dict[str, float]:
        figures["batches"] += 1
        return {"actions": float(batch["action"][batch["collector", "mask"]].float().mean())}

    with Evaluator(cartpole, policy, num_trajectories=2, metrics_fn=metrics, seed=1) as evaluator:
        assert evaluator.evaluate()["eval/actions"] == 0.0
        assert evaluator.evaluate(always(1))["eval/actions"] == 1.0
        assert (
            evaluator.evaluate(weights_dict={"policy": always(0).state_dict()})["eval/actions"]
            == 0.0
        )
        with pytest.raises(ValueError, match="weights_dict names all weights"):
            evaluator.evaluate(always(1), weights_dict={"policy": always(0)})
    assert figures["batches"] == 3 and torch.equal(policy.bias.detach(), torch.eye(2)[0])


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_without_a_policy_actions_are_random(backend) -> None:
    with Evaluator(
        cartpole,
        num_trajectories=20,
        seed=0,
        backend=backend,
        metrics_fn=lambda batch: {"right": batch["action"].float().mean()},
    ) as evaluator:
        assert 0.2 < evaluator.evaluate()["eval/right"] < 0.8


def test_wrong_arguments_are_explained() -> None:
    with pytest.raises(ValueError, match="busy_policy"):
        Evaluator(cartpole, always(0), busy_policy="wait")
    with pytest.raises(ValueError, match="a policy or a policy_factory, got both"):
        Evaluator(cartpole, always(0), policy_factory=lambda: always(0))
    with pytest.raises(ValueError, match="num_trajectories"):
        Evaluator(cartpole, always(0), num_trajectories=0)
    with pytest.raises(ValueError, match="backend"):
        Evaluator(cartpole, always(0), backend="rays")
    with pytest.raises(TypeError, match="Evaluator has no argument num_episodes"):
        Evaluator(cartpole, always(0), num_episodes=3)
    with pytest.raises(
        ValueError, match=r"reward_keys must be \('next', 'reward'\).*got \('next', 'score'\)"
    ):
        Evaluator(cartpole, always(0), reward_keys=("next", "score"))
    with pytest.raises(ValueError, match="done_keys"):
        Evaluator(cartpole, always(0), done_keys="terminated")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("frames_per_batch", 100),
        ("collector_cls", object),
        ("collector_kwargs", {"split_trajs": True}),
        ("weight_sync_schemes", {"policy": object()}),
        ("num_gpus", 1),
        ("ray_kwargs", {"num_cpus": 2}),
    ],
)
def test_arguments_without_a_meaning_are_told(name, value) -> None:
    with pytest.warns(UserWarning, match=f"{name} has no effect: ") as told:
        Evaluator(cartpole, always(0), **{name: value}).shutdown()
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Evaluator(
            cartpole,
            always(0),
            reward_keys=[("next", "reward")],
            done_keys=("next", "done"),
            **{name: None},
        ).shutdown()


@pytest.mark.parametrize("timeout", [None, math.inf, 1e300, 60.0])
def test_nobody_waits_where_nothing_is_pending(timeout) -> None:
    evaluator = Evaluator(cartpole, always(0), num_trajectories=1)
    assert evaluator.wait(timeout) is None
    evaluator.evaluate()
    assert evaluator.wait(timeout) is None and evaluator.poll(60) is None
    evaluator.trigger_eval(step=2)
    assert evaluator.wait(timeout)["eval/step"] == 2
    assert evaluator.wait(timeout) is None
    evaluator.shutdown()


@pytest.mark.parametrize("seconds", [-1.0, math.nan, -math.inf])
def test_times_are_checked(seconds) -> None:
    with pytest.raises(
        ValueError, match="shutdown_timeout must be a number of seconds, 0 or more, got"
    ):
        Evaluator(cartpole, always(0), shutdown_timeout=seconds)
    evaluator = Evaluator(cartpole, always(0), shutdown_timeout=math.inf)
    with pytest.raises(ValueError, match="^timeout must be a number of seconds"):
        evaluator.poll(seconds)
    with pytest.raises(ValueError, match="^timeout must be a number of seconds"):
        evaluator.wait(seconds)
    evaluator.shutdown()


def until_idle(evaluator: Evaluator) -> None:
    while evaluator.pending:
        time.sleep(0.01)


def held(**arguments) -> tuple[Evaluator, threading.Event, threading.Event]:
    """An evaluator, what tells that its policy is being asked, and what lets it answer."""
    asked, go_on = threading.Event(), threading.Event()

    def waits(observation):
        if probed:
            asked.set()
            go_on.wait(60)
            asked.clear()
        return torch.zeros((), dtype=torch.int64)

    probed: list[bool] = []
    evaluator = Evaluator(cartpole, waits, num_trajectories=1, **arguments)
    probed.append(True)
    return evaluator, asked, go_on


def test_an_interrupt_ends_the_wait_for_a_shutdown() -> None:
    evaluator, asked, go_on = held(shutdown_timeout=math.inf)
    evaluator.trigger_eval()
    assert asked.wait(60)

    def interrupt() -> None:
        until_idle(evaluator)
        _thread.interrupt_main()

    other = threading.Thread(target=interrupt)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        evaluator.shutdown()
        other.join()
    assert asked.is_set(), "the policy has come back"
    other.join()
    go_on.set()
    evaluator.shutdown()


def test_a_shutdown_that_takes_too_long_says_so() -> None:
    evaluator, asked, go_on = held(shutdown_timeout=0)
    evaluator.trigger_eval()
    assert asked.wait(60)
    with pytest.raises(RuntimeError, match="1 of 1 threads were still busy"):
        evaluator.shutdown()
    go_on.set()


def failing(*errors: BaseException):
    """Raises these errors one after another, and then none."""
    left = list(errors)

    def function(_: object) -> dict[str, float]:
        if left:
            raise left.pop(0)
        return {"calls": 1.0}

    return function


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_error_of_metrics_is_that_of_the_evaluation(kind) -> None:
    metrics = failing(kind("no metrics yet"), kind("not now either"))
    evaluator = Evaluator(cartpole, always(0), num_trajectories=1, metrics_fn=metrics)
    with pytest.raises(kind, match="no metrics yet"):
        evaluator.evaluate()
    evaluator.trigger_eval()
    with pytest.raises(kind, match="not now either"):
        evaluator.wait(60)
    assert evaluator.evaluate()["eval/calls"] == 1.0
    evaluator.shutdown()


def test_metrics_that_are_no_numbers_are_told() -> None:
    with Evaluator(
        cartpole, always(0), num_trajectories=1, metrics_fn=lambda batch: {"name": "long"}
    ) as evaluator:
        with pytest.raises(TypeError, match="str"):
            evaluator.evaluate()


@pytest.mark.parametrize("ask", [Evaluator.evaluate, Evaluator.trigger_eval, Evaluator.shutdown])
def test_an_error_that_nobody_read_is_raised_by_the_next_call(ask) -> None:
    evaluator = Evaluator(
        cartpole, always(0), num_trajectories=1, metrics_fn=failing(ValueError("unread"))
    )
    evaluator.trigger_eval()
    until_idle(evaluator)
    with pytest.raises(ValueError, match="unread"):
        ask(evaluator)
    evaluator.shutdown()


def test_an_error_that_leaves_a_context_is_the_one_to_be_seen(unraisable) -> None:
    with pytest.raises(KeyError, match="mine"):
        with Evaluator(
            cartpole, always(0), num_trajectories=1, metrics_fn=failing(ValueError("unread"))
        ) as evaluator:
            evaluator.trigger_eval()
            until_idle(evaluator)
            raise KeyError("mine")
    assert [str(error) for error in unraisable] == ["unread"]


def test_an_error_that_nobody_asks_for_is_shown(unraisable) -> None:
    evaluator = Evaluator(
        cartpole, always(0), num_trajectories=1, metrics_fn=failing(SystemExit("unread"))
    )
    evaluator.trigger_eval()
    until_idle(evaluator)
    del evaluator
    gc.collect()
    assert [str(error) for error in unraisable] == ["unread"]


def test_an_error_of_on_result_is_shown_and_changes_nothing(unraisable) -> None:
    on_result = failing(ValueError("first"), SystemExit("second"))
    with Evaluator(cartpole, always(0), num_trajectories=1, on_result=on_result) as evaluator:
        assert [evaluator.evaluate()["eval/num_episodes"] for _ in range(3)] == [1, 1, 1]
    assert [str(error) for error in unraisable] == ["first", "second"]


def test_a_program_ends_all_its_evaluators_quietly() -> None:
    program = """
import threading
import torch
from windrow.collectors import Evaluator
from windrow.envs import StepCounter, TransformedEnv

def wait(observation):
    if probed:
        probed.append(1)
        threading.Event().wait()
    return torch.zeros((), dtype=torch.int64)

probed = []
evaluators = [Evaluator("CartPole-v1", wait, num_trajectories=1, shutdown_timeout=0.1) for _ in range(3)]
probed.append(1)
for evaluator in evaluators:
    evaluator.trigger_eval()
while len(probed) < 4:
    pass
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_busy_evaluator_may_refuse() -> None:
    evaluator, _, go_on = held(busy_policy="error")
    assert evaluator.trigger_eval()
    with pytest.raises(RuntimeError, match="busy_policy|queued|running"):
        evaluator.trigger_eval()
    go_on.set()
    assert evaluator.wait(60)["eval/num_episodes"] == 1
    evaluator.shutdown()


@pytest.mark.parametrize("name", recurrent.POLICIES)
def test_a_recurrent_policy_begins_each_episode_anew(name) -> None:
    make, state = recurrent.POLICIES[name]
    policy = make()
    seen: list[TensorDict] = []

    def metrics(batch: TensorDict) -> dict[str, float]:
        seen.append(batch[batch["collector", "mask"]].clone())
        return {}

    with Evaluator(
        cartpole, policy, num_trajectories=3, max_steps=12, seed=0, metrics_fn=metrics
    ) as evaluator:
        evaluator.evaluate()
        recurrent.check(seen, policy, state)
        other = make()
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.mul_(0.5)
        for weights in (other, TensorDict.from_module(other), other.state_dict()):
            seen.clear()
            evaluator.evaluate(weights)
            recurrent.check(seen, other, state)


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_a_compiled_policy_takes_weights_in_every_form(backend) -> None:
    def actions(batch: TensorDict) -> dict[str, float]:
        return {"actions": float(batch["action"][batch["collector", "mask"]].float().mean())}

    compiled = torch.compile(always(0), backend="eager")
    one = always(1)
    forms = [
        one,
        torch.compile(one),
        TensorDict.from_module(one),
        one.state_dict(),
        Evaluator.extract_weights(one),
    ]
    with Evaluator(
        cartpole, compiled, num_trajectories=1, metrics_fn=actions, policy_backend=backend
    ) as evaluator:
        for weights in forms:
            assert evaluator.evaluate(compiled)["eval/actions"] == 0.0
            assert evaluator.evaluate(weights)["eval/actions"] == 1.0
        with pytest.raises(ValueError, match='"bias" is missing|weight'):
            evaluator.evaluate({"weight": one.weight})
        assert evaluator.evaluate(one)["eval/actions"] == 1.0


def test_episodes_are_cut_although_the_environment_counts_its_steps() -> None:
    env = TransformedEnv(cartpole(), StepCounter())
    with Evaluator(
        env, lambda observation: observation[..., 2].gt(0).long(), max_steps=5, num_trajectories=3
    ) as evaluator:
        assert evaluator.evaluate()["eval/episode_length"] == 5
