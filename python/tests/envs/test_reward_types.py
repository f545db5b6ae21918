"""Rewards keep the element type of their spec, as in TorchRL."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch

import windrow
import windrow.envs as ours

torchrl = pytest.importorskip("torchrl")

import gymnasium
from torchrl.collectors import Collector as TheirCollector
from torchrl.data import Unbounded
from torchrl.envs import GymEnv

from theirs import Counting
from windrow.collectors import Collector, Evaluator, MultiSyncCollector
from windrow.data import LazyTensorStorage, MultiStep, ReplayBuffer


class Paying(Counting):
    """Pays the count and a little more, which ``float32`` cannot hold."""

    def __init__(self, batch: tuple[int, ...] = (), dtype: torch.dtype = torch.float64) -> None:
        super().__init__(batch)
        self.reward_spec = Unbounded((*batch, 1), dtype=dtype)
        self.dtype_ = dtype

    def _step(self, tensordict: Any) -> Any:
        following = super()._step(tensordict)
        return following.set("reward", (following["reward"].double() + 2.0**-40).to(self.dtype_))


def exact(count: Any) -> Any:
    return count.double() + 2.0**-40


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.bool]
)
def test_rewards_have_the_type_of_their_spec(batch: tuple[int, ...], dtype: torch.dtype) -> None:
    arguments = {"frames_per_batch": 12, "total_frames": 12}
    theirs = next(iter(TheirCollector(Paying(batch, dtype), None, **arguments)))
    collector = Collector(Paying(batch, dtype), None, **arguments)
    fake, batch_ = collector.fake_tensordict(), next(collector)
    reward = batch_["next", "reward"]
    assert reward.dtype == theirs["next", "reward"].dtype == fake["next", "reward"].dtype == dtype
    assert torch.equal(reward, theirs["next", "reward"])
    assert "reward" not in batch_.keys()


def test_nothing_of_a_reward_is_lost_on_the_way() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=8)
    for _ in MultiSyncCollector(
        [Paying] * 2,
        None,
        placement="threads",
        frames_per_batch=20,
        total_frames=40,
        replay_buffer=buffer,
    ):
        pass
    sample = buffer.sample()
    assert torch.equal(sample["next", "reward"], exact(sample["next", "data", "count"]))
    whole = next(Collector(Paying, None, frames_per_batch=10, trajs_per_batch=2))
    assert torch.equal(whole["next", "reward"][0], exact(whole["next", "data", "count"][0]))


def test_sums_over_several_steps() -> None:
    batch = next(
        Collector(Paying, None, frames_per_batch=5, postproc=MultiStep(gamma=0.5, n_steps=2))
    )
    reward = exact(torch.arange(1, 6))
    after = torch.cat([reward[1:], torch.zeros(1, dtype=torch.float64)])
    assert torch.equal(batch["next", "reward"].flatten(), reward + 0.5 * after)


def test_environments_around_it() -> None:
    env = ours.TransformedEnv(Paying((2,)), ours.RewardSum())
    assert env.reward_spec.dtype == env.fake_tensordict()["next", "reward"].dtype == torch.float64
    step, root = env.step_and_maybe_reset(env.rand_action(env.reset()))
    assert torch.equal(step["next", "reward"], exact(step["next", "data", "count"]))
    assert "reward" not in root.keys() and env.reward_keys == ["reward"]
    batch = next(Collector(env, None, frames_per_batch=20))
    assert batch["next", "reward"].dtype == torch.float64
    assert batch["next", "episode_reward"].dtype == torch.float32


def test_evaluators_count_it() -> None:
    def policy(td: Any) -> Any:
        return td.set("action", torch.ones(1, dtype=torch.bool))

    with Evaluator(Paying, policy, num_trajectories=2) as evaluator:
        assert evaluator.evaluate()["eval/reward"] == 15


def test_a_policy_may_write_a_reward_of_its_own() -> None:
    def policy(td: Any) -> Any:
        assert "reward" not in td.keys()
        return td.set("action", torch.ones(1, dtype=torch.bool)).set(
            "reward", torch.full((1,), 7.0)
        )

    batch = next(Collector(Paying, policy, frames_per_batch=5))
    assert batch["reward"].dtype == torch.float32 and (batch["reward"] == 7).all()
    assert torch.equal(batch["next", "reward"], exact(batch["next", "data", "count"]))


def test_rewards_of_gymnasium_are_float32() -> None:
    class Doubles(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,))
        action_space = gymnasium.spaces.Box(-1, 1, (1,))

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            return self.observation_space.sample(), 0.1, False, False, {}

    for env in Doubles(), ours.GymWrapper(Doubles()), GymEnv("Pendulum-v1"):
        assert (
            next(Collector(env, None, frames_per_batch=5))["next", "reward"].dtype == torch.float32
        )


class Generous(gymnasium.Env):
    """Returns the given reward."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, reward: Any) -> None:
        self.reward = reward

    def reset(self, **_: Any) -> Any:
        return self.observation_space.low, {}

    def step(self, _: Any) -> Any:
        return self.observation_space.low, self.reward, False, False, {}


@pytest.mark.parametrize(
    ("reward", "told"), [(1e300, r"1e300 became inf"), (2**24 + 1, "16777217 became 16777216")]
)
def test_a_reward_that_its_column_cannot_hold_is_reported_once(reward: Any, told: str) -> None:
    with pytest.warns(windrow.Warning) as warned:
        next(Collector(lambda: Generous(reward), None, num_envs=2, frames_per_batch=10))
    messages = [str(one.message) for one in warned if "became" in str(one.message)]
    assert len(messages) == 1
    assert re.match(
        rf"reward of .*Generous.*, environment 0: {told}, since float32 cannot hold it", messages[0]
    )


@pytest.mark.parametrize("reward", [0.1, -3, 2**24, 1e20, float("inf"), float("nan")])
def test_a_reward_that_is_kept_up_to_its_last_digits_is_not_reported(reward: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(Collector(lambda: Generous(reward), None, frames_per_batch=10))
