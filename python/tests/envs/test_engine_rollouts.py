"""Rollouts by the engine, against the same that are stepped from Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from windrow.collectors import Collector
from windrow.envs import (
    Compose,
    GymEnv,
    GymWrapper,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    VecNorm,
    _rollouts,
)


def policy_for(env: Any) -> TensorDictModule:
    torch.manual_seed(0)
    size = env.observation_spec["observation"].shape[-1]
    spec = env.action_spec
    core = nn.Sequential(
        nn.Linear(size, 16),
        nn.Tanh(),
        nn.Linear(16, spec.shape[-1] if spec.shape and spec.dtype.is_floating_point else 2),
    )
    last = (
        nn.Tanh()
        if spec.dtype.is_floating_point
        else _Best(one_hot=bool(spec.shape) and spec.shape[-1] == 2 and env.num_envs != 2)
    )
    return TensorDictModule(nn.Sequential(core, last), in_keys=["observation"], out_keys=["action"])


class _Best(nn.Module):
    def __init__(self, one_hot: bool) -> None:
        super().__init__()
        self.one_hot = one_hot

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        return (
            torch.nn.functional.one_hot(scores.argmax(-1), 2) if self.one_hot else scores.argmax(-1)
        )


def around(env: Any) -> TransformedEnv:
    return TransformedEnv(env, Compose(RewardSum(), StepCounter(40)))


ENVS: dict[str, Callable[[], Any]] = {
    "native": lambda: GymEnv("Pendulum-v1"),
    "one-hot": lambda: GymEnv("CartPole-v1"),
    "several": lambda: around(GymEnv("CartPole-v1", num_envs=3)),
    "transforms": lambda: around(GymEnv("CartPole-v1", categorical_action_encoding=True)),
    "statistics": lambda: TransformedEnv(GymEnv("Pendulum-v1"), VecNorm(in_keys=["observation"])),
    "gymnasium": lambda: around(GymWrapper(gymnasium.make("CartPole-v1"))),
    "serial": lambda: around(SerialEnv(3, lambda: GymEnv("Pendulum-v1"))),
    "device": lambda: GymEnv("Pendulum-v1", device="cpu"),
}


def same(one: TensorDict, other: TensorDict, tolerance: float) -> None:
    assert (
        one.batch_size == other.batch_size
        and one.names == other.names
        and one.device == other.device
    )
    own, theirs = dict(one.items(True, True)), dict(other.items(True, True))
    assert own.keys() == theirs.keys()
    for key, value in own.items():
        assert value.dtype == theirs[key].dtype, key
        torch.testing.assert_close(
            value, theirs[key], rtol=tolerance, atol=tolerance, msg=lambda told: f"{key}: {told}"
        )


@pytest.mark.parametrize("kind", ENVS)
@pytest.mark.parametrize("ends", [True, False])
def test_a_rollout_by_the_engine_is_one_by_hand(
    kind: str, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_rollouts, "STEPS", 50)
    results = []
    for callback in (None, lambda env, root: None):
        env = ENVS[kind]()
        policy = policy_for(env)
        env.set_seed(5)
        with torch.no_grad():
            rollouts = [
                env.rollout(steps, policy, callback, break_when_any_done=ends, set_truncated=cut)
                for steps, cut in [(120, False), (70, True), (3, False)]
            ]
            after = env.reset()
            action = policy(after)
        assert (
            getattr(env._engine, "_core", None) is not None
            if callback is None
            else env._engine is None
        ), kind
        results.append([*rollouts, env.step(action)])
    # Networks are rounded in other places.
    tolerance = 1e-4 if kind in ("native", "statistics", "serial", "device") else 1e-6
    for own, other in zip(*results, strict=True):
        same(own, other, tolerance)
    assert torch.equal(results[0][0]["next", "done"], results[1][0]["next", "done"])


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps that are taken by hand from now on."""
    steps: list[int] = []
    step = GymEnv._stepped

    def noted(self: Any, *args: Any) -> Any:
        steps.append(1)
        return step(self, *args)

    monkeypatch.setattr("windrow.envs._base.EnvBase._stepped", noted)
    return steps


def test_a_rollout_follows_its_policy_and_goes_on_after_steps_by_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = counted(monkeypatch)
    env = GymEnv("CartPole-v1", categorical_action_encoding=True)
    policy = policy_for(env)
    with torch.no_grad():
        env.rollout(100, policy)
        assert not steps
        policy.module[0][2].weight.zero_()
        policy.module[0][2].bias.copy_(torch.tensor([0.0, 1.0]))
        assert bool((env.rollout(100, policy)["action"] == 1).all())
        policy.module[0][2].bias.copy_(torch.tensor([1.0, 0.0]))
        env.rand_step(env.reset())
        assert bool((env.rollout(100, policy)["action"] == 0).all())
        assert bool((env.rollout(100, policy_for(env))["action"] == 1).any())
    assert len(steps) == 1


def test_what_needs_python_is_stepped_there(monkeypatch: pytest.MonkeyPatch) -> None:
    env = GymEnv("CartPole-v1", categorical_action_encoding=True)
    policy = policy_for(env)
    for arguments in [
        {},
        {"policy": lambda root: policy(root)},
        {"policy": policy, "callback": lambda env, root: None},
    ]:
        steps = counted(monkeypatch)
        with torch.no_grad():
            assert len(env.rollout(70, **arguments)) == len(steps)
    steps = counted(monkeypatch)
    with_gradients = env.rollout(70, policy)
    assert len(with_gradients) == len(steps)
    with torch.no_grad():
        root = env.reset().set("kept", torch.ones(1))
        assert "kept" in env.rollout(70, policy, auto_reset=False, tensordict=root).keys()


class Fails(gymnasium.Env[Any, int]):
    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return self.observation_space.sample(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == 90:
            raise ZeroDivisionError("in a step")
        return self.observation_space.sample(), 1.0, False, False, {}


def test_an_error_of_the_environment_is_raised_as_it_is_and_the_next_rollout_goes_on() -> None:
    env = GymWrapper(Fails(), categorical_action_encoding=True)
    policy = policy_for(env)
    with torch.no_grad():
        with pytest.raises(ZeroDivisionError, match="in a step"):
            env.rollout(100, policy)
        assert len(env.rollout(100, policy)) == 100


def test_an_environment_can_be_given_to_a_collector_after_a_rollout() -> None:
    env = GymWrapper(gymnasium.make("CartPole-v1"), categorical_action_encoding=True)
    policy = policy_for(env)
    with torch.no_grad():
        env.rollout(100, policy)
    assert len(next(Collector(env, policy, frames_per_batch=50))) == 50
    env.close()
