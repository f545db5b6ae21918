"""What TorchRL's environments bring beside observations and actions: rewards, states, masks,
seeds.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import windrow.envs as ours

torchrl = pytest.importorskip("torchrl")

from tensordict import TensorDict
from torchrl.collectors import Collector as TheirCollector
from torchrl.data import Binary, Categorical, Composite, NonTensor, OneHot, Unbounded
from torchrl.envs import (
    ActionMask,
    EnvBase,
    ExcludeTransform,
    GymEnv,
    LineariseRewards,
    StepCounter as TheirStepCounter,
    TransformedEnv,
)

from theirs import Agents, Counting
from windrow.collectors import Collector


@pytest.mark.parametrize("batch", [(), (2,)])
def test_rewards_of_agents_lie_where_torchrl_has_them(batch: tuple[int, ...]) -> None:
    theirs = next(iter(TheirCollector(Agents(batch), None, frames_per_batch=12, total_frames=12)))
    ours_ = next(Collector(Agents(batch), None, frames_per_batch=12))
    assert torch.equal(ours_["next", "agents", "reward"], theirs["next", "agents", "reward"])
    assert ("agents", "reward") not in ours_.keys(True)
    assert ours_["next", "reward"].unique().tolist() == [3]
    assert set(theirs.keys(True, True)) <= set(ours_.keys(True, True))


def test_a_reward_of_another_name_keeps_it() -> None:
    def policy(td: Any) -> Any:
        return td.set(("agents", "action"), td["agents", "observation"][..., :1] * 0)

    batch = next(Collector(Agents(name="income", shape=(1,)), policy, frames_per_batch=4))
    assert batch["next", "income"].tolist() == batch["next", "reward"].tolist() == [[1]] * 4
    assert "income" not in batch.keys()


@pytest.mark.parametrize("name", ["reward", "income"])
def test_rewards_that_are_not_one_number_are_refused(name: str) -> None:
    message = rf"reward '{name}' of Agents has shape \(3,\).*LineariseRewards\(in_keys=\['{name}'\], weights=\[1.0, 1.0, 1.0\]\)"
    with pytest.raises(ValueError, match=message):
        Collector(Agents(name=name, shape=(3,)), None, frames_per_batch=4)


def test_linearised_rewards_are_one_number() -> None:
    env = TransformedEnv(
        Agents(name="reward", shape=(3,)),
        LineariseRewards(in_keys=["reward"], weights=[1.0, 1.0, 2.0]),
    )
    assert next(Collector(env, None, frames_per_batch=4))["next", "reward"].tolist() == [[9]] * 4


def test_rewards_are_not_observed() -> None:
    env = ours.TransformedEnv(Agents(), ours.StepCounter())
    root = env.reset()
    assert ("agents", "reward") not in root.keys(True)
    step, root = env.step_and_maybe_reset(env.rand_action(root))
    assert step["next", "agents", "reward"].flatten().tolist() == [1, 2]
    assert ("agents", "reward") not in root.keys(True)
    assert env.reward_keys == ["reward", ("agents", "reward")]
    assert (
        env.reward_key == ("agents", "reward") and ours.GymEnv("CartPole-v1").reward_key == "reward"
    )
    assert env.full_reward_spec["agents", "reward"].shape == (2, 1)
    assert ("agents", "reward") not in env.observation_keys


class Masked(Counting):
    """One of five choices is legal at each step: the reward says whether it was taken."""

    def __init__(self, observe_mask: bool = True, dtype: Any = torch.bool) -> None:
        super().__init__()
        self.dtype = dtype
        mask = Composite(action_mask=Unbounded((5,), dtype=dtype))
        if observe_mask:
            self.observation_spec.update(mask)
        else:
            self.state_spec = mask
        self.action_spec = OneHot(5)

    def _root(self, count: Any) -> Any:
        self.legal = torch.nn.functional.one_hot(count[0].long() * 2 % 5, 5)
        return super()._root(count).set("action_mask", self.legal.to(self.dtype))

    def _step(self, tensordict: Any) -> Any:
        legal = (tensordict["action"] * self.legal).sum(-1, keepdim=True)
        return super()._step(tensordict).set("reward", legal.float())


@pytest.mark.parametrize("observe_mask", [True, False])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8])
@pytest.mark.parametrize("arguments", [{}, {"init_random_frames": 20}])
def test_random_actions_are_legal(
    observe_mask: bool, dtype: Any, arguments: dict[str, Any]
) -> None:
    policy = (lambda td: td.set("action", OneHot(5).zero())) if arguments else None
    env = TransformedEnv(Masked(observe_mask, dtype), ActionMask())
    batch = next(Collector(env, policy, frames_per_batch=20, **arguments))
    assert batch["next", "reward"].flatten().tolist() == [1] * 20
    assert torch.equal(batch["action"], batch["action_mask"].long())


class Playing(EnvBase):
    """Two players in a group, each with five choices, of which the spec of the action says which
    are legal: another two at each step. The reward says how many players took a legal one.

    Args:
        observed: the name under which the players observe what is legal; None where they do not.
        as_told: whether what they observe is what the spec says.
    """

    def __init__(self, observed: str | None = "action_mask", as_told: bool = True) -> None:
        super().__init__()
        self.observed, self.as_told, self.count = observed, as_told, 0
        players = {"board": Unbounded((2, 3))} | (
            {observed: Binary(5, (2, 5), dtype=torch.bool)} if observed else {}
        )
        self.observation_spec = Composite(players=Composite(players, shape=(2,)))
        self.action_spec = Composite(players=Composite(action=Categorical(5, (2,)), shape=(2,)))
        self.reward_spec = Unbounded((1,))
        self.full_done_spec = Categorical(2, (1,), dtype=torch.bool)

    def _root(self) -> Any:
        first = torch.arange(2)[:, None] + self.count
        self.legal = (
            torch.zeros(2, 5, dtype=torch.bool)
            .scatter(-1, first % 5, True)
            .scatter(-1, (first + 2) % 5, True)
        )
        self.full_action_spec["players", "action"].update_mask(self.legal)
        players = TensorDict({"board": torch.zeros(2, 3)}, (2,))
        if self.observed:
            players.set(self.observed, self.legal if self.as_told else ~self.legal)
        return TensorDict({"players": players, "done": torch.full((1,), self.count >= 4)}, [])

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
        self.count = 0
        return self._root()

    def _step(self, tensordict: Any) -> Any:
        right = (
            self.legal.gather(-1, tensordict["players", "action"][:, None]).sum().float().reshape(1)
        )
        self.count += 1
        return self._root().set("reward", right)

    def _set_seed(self, seed: int | None) -> None:
        return None


PLAYING = [{}, {"observed": None}, {"observed": "other"}, {"as_told": False}]

#: What can be around them, and how many of them that makes.
AROUND_PLAYERS = {
    "nothing": lambda make: make(),
    "a transform of TorchRL's": lambda make: TransformedEnv(make(), TheirStepCounter()),
    "a transform": lambda make: ours.TransformedEnv(make(), ours.StepCounter()),
    "lockstep": lambda make: ours.SerialEnv(2, make),
}


@pytest.mark.parametrize("around", AROUND_PLAYERS)
@pytest.mark.parametrize("how", PLAYING, ids=str)
def test_random_actions_obey_masks_in_specs(how: dict[str, Any], around: str) -> None:
    env = AROUND_PLAYERS[around](lambda: Playing(**how))
    batch = next(Collector(env, None, frames_per_batch=40))
    assert batch["next", "reward"].unique().tolist() == [2]


@pytest.mark.parametrize("how", PLAYING, ids=str)
def test_random_frames_obey_masks_in_specs(how: dict[str, Any]) -> None:
    def policy(td: Any) -> Any:
        return td.set(("players", "action"), torch.zeros((*td.batch_size, 2), dtype=torch.int64))

    batch = next(
        Collector(lambda: Playing(**how), policy, frames_per_batch=20, init_random_frames=20)
    )
    assert batch["next", "reward"].unique().tolist() == [2]


@pytest.mark.parametrize("how", PLAYING, ids=str)
def test_random_actions_by_hand_obey_masks(how: dict[str, Any]) -> None:
    env = ours.SerialEnv(2, lambda: Playing(**how))
    assert env.rollout(30, break_when_any_done=False)["next", "reward"].unique().tolist() == [2]
    env.reset()
    assert env.rand_step()["next", "reward"].tolist() == [[2], [2]]


class Choosing(Counting):
    """One player, whose actions are one-hot and of whom nobody observes what is legal."""

    def __init__(self) -> None:
        super().__init__()
        self.action_spec = OneHot(5)

    def _root(self, count: Any) -> Any:
        self.legal = torch.nn.functional.one_hot(count[0].long() * 2 % 5, 5).bool()
        self.action_spec.update_mask(self.legal)
        return super()._root(count)

    def _step(self, tensordict: Any) -> Any:
        assert tensordict["action"].bool().equal(self.legal)
        return super()._step(tensordict)


def test_one_hot_actions_obey_masks_in_specs() -> None:
    assert next(Collector(Choosing, None, frames_per_batch=20, num_envs=2)).numel() == 20
    assert ours.SerialEnv(2, Choosing).rollout(20, break_when_any_done=False).numel() == 40


def test_one_hot_actions_of_several_agents_are_refused() -> None:
    env = Playing()
    env.action_spec = Composite(players=Composite(action=OneHot(5, (2, 5)), shape=(2,)))
    with pytest.raises(
        TypeError,
        match=r"is OneHot of shape \(2, 5\): expected one vector, or indices .*categorical_actions=True",
    ):
        Collector(env, None, frames_per_batch=4)


def test_statistics_are_taken_of_legal_actions() -> None:
    class Strict(Playing):
        def _step(self, tensordict: Any) -> Any:
            following = super()._step(tensordict)
            assert following["reward"].item() == 2
            return following

    norm = ours.ObservationNorm(in_keys=[("players", "board")], standard_normal=True)
    ours.TransformedEnv(Strict(), norm).transform.init_stats(20)
    assert norm.initialized


class Reading(Counting):
    """Rewards with its goal, which it does not observe."""

    def __init__(self) -> None:
        super().__init__()
        self.state_spec = Composite(goal=Composite(value=Unbounded((1,))))

    def _root(self, count: Any) -> Any:
        return super()._root(count).set(("goal", "value"), torch.full((1,), 7.0))

    def _step(self, tensordict: Any) -> Any:
        following = super()._step(tensordict).set("reward", tensordict["goal", "value"])
        return following.exclude("goal")


def to_goals(td: Any) -> Any:
    td.set("action", torch.ones((*td.shape, 1), dtype=torch.bool))
    return td.set(("goal", "value"), td["data", "count"] * 10.0)


def test_state_is_passed_on_where_the_policy_writes_it() -> None:
    theirs = next(iter(TheirCollector(Reading(), to_goals, frames_per_batch=7, total_frames=7)))
    batch = next(Collector(Reading(), to_goals, frames_per_batch=7))
    for key in ("goal", "value"), ("next", "reward"):
        assert (
            batch[key].flatten().tolist()
            == theirs[key].flatten().tolist()
            == [0, 10, 20, 30, 40, 0, 10]
        )
    wrapped = ours.TransformedEnv(Reading(), ours.StepCounter())
    joined = next(Collector(lambda: wrapped, to_goals, frames_per_batch=7))
    assert joined["next", "reward"].flatten().tolist() == [0, 10, 20, 30, 40, 0, 10]
    lockstep = next(Collector(Reading, to_goals, frames_per_batch=14, num_envs=2))
    assert lockstep["next", "reward"].squeeze(-1).tolist() == [[0, 10, 20, 30, 40, 0, 10]] * 2


def test_state_stays_what_a_reset_gave_where_the_policy_does_not_write_it() -> None:
    theirs = next(iter(TheirCollector(Reading(), None, frames_per_batch=7, total_frames=7)))
    batch = next(Collector(Reading(), None, frames_per_batch=7))
    assert batch["next", "reward"].tolist() == theirs["next", "reward"].tolist() == [[7]] * 7


def test_state_of_another_shape_is_refused() -> None:
    def policy(td: Any) -> Any:
        return to_goals(td).set(("goal", "value"), torch.zeros(*td.shape, 2))

    message = r'state \("goal", "value"\) of Reading: expected \[1\], the policy writes \[2\]'
    with pytest.raises(ValueError, match=message):
        Collector(Reading(), policy, frames_per_batch=7)


class Telling(Counting):
    def __init__(self) -> None:
        super().__init__()
        self.observation_spec["data", "text"] = NonTensor(())

    def _root(self, count: Any) -> Any:
        return super()._root(count).set(("data", "text"), f"step {int(count)}")


class Growing(Counting):
    def __init__(self) -> None:
        super().__init__()
        self.observation_spec["data", "past"] = Unbounded((-1, 1))
        self.observation_spec["tail"] = Unbounded((-1,))

    def _root(self, count: Any) -> Any:
        past = torch.zeros(1 + int(count), 1)
        return super()._root(count).set(("data", "past"), past).set("tail", past[:, 0])


def test_shapes_that_change_come_from_members_of_a_parallel_env() -> None:
    batch = next(Collector(ours.ParallelEnv(2, Growing), None, frames_per_batch=4))
    assert [[len(frame["data", "past"]) for frame in row.unbind(0)] for row in batch.unbind(0)] == [
        [1, 2]
    ] * 2


def test_actions_whose_shapes_change_are_refused_with_a_way_out() -> None:
    env = Counting()
    env.full_action_spec = Composite(action=Unbounded((-1,)))
    with pytest.raises(TypeError, match=r"shapes change where they have -1.*'action' \(-1,\)"):
        Collector(env, None, frames_per_batch=4)


@pytest.mark.parametrize(
    ("make", "keys"),
    [(Growing, [("data", "past"), "tail"]), (Telling, [("data", "text")])],
    ids=["shape", "no tensor"],
)
def test_what_cannot_be_carried_can_be_excluded(make: Any, keys: list[Any]) -> None:
    env = TransformedEnv(make(), ExcludeTransform(*keys))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = next(Collector(env, None, frames_per_batch=7))
    assert batch["data", "count"].flatten().tolist() == [0, 1, 2, 3, 4, 0, 1]


def test_actions_that_are_no_tensors_are_refused() -> None:
    env = Counting()
    env.full_action_spec = Composite(action=Binary(1, (1,), dtype=torch.bool), word=NonTensor(()))
    with pytest.raises(
        TypeError, match="actions of Counting are no tensors, which no policy writes here: 'word'"
    ):
        Collector(env, None, frames_per_batch=4)


def test_what_is_no_tensor_passes_transforms_that_change_observations() -> None:
    batch = next(
        Collector(
            ours.TransformedEnv(Telling(), ours.CatTensors(["flag"], "flags")),
            None,
            frames_per_batch=4,
        )
    )
    assert batch["data", "count"].flatten().tolist() == [0, 1, 2, 3] and all(
        isinstance(one, str) for one in batch.get(("data", "text")).tolist()
    )


@pytest.mark.parametrize("make", [ours.GymEnv, GymEnv], ids=["own", "torchrl"])
@pytest.mark.parametrize("is_random", [True, False])
def test_an_environment_keeps_its_seed(make: Any, is_random: bool) -> None:
    def observed(own: int, collector: type = Collector, **arguments: Any) -> Any:
        torch.manual_seed(0)
        env = make("CartPole-v1")
        env.set_seed(own)
        policy = None if is_random else lambda td: td.set("action", torch.tensor([0, 1]))
        return next(
            iter(collector(env, policy, frames_per_batch=60, total_frames=60, **arguments))
        )["observation"].clone()

    assert torch.equal(observed(0), observed(0))
    assert not torch.equal(observed(0), observed(1))
    assert torch.equal(observed(0, seed=5), observed(1, seed=5))
    if make is GymEnv and not is_random:
        assert torch.equal(observed(0), observed(0, TheirCollector))


def test_the_seed_of_an_environment_is_used_once() -> None:
    env = ours.GymEnv("Pendulum-v1")
    env.set_seed(3)
    seen = [next(Collector(env, None, frames_per_batch=5))["observation"].clone() for _ in range(2)]
    seeded = next(Collector("Pendulum-v1", None, frames_per_batch=5, seed=3))["observation"]
    assert torch.equal(seen[0], seeded) and not torch.equal(seen[1], seeded)


def test_random_actions_in_torchrls_environments_follow_torchs_generator() -> None:
    def actions() -> Any:
        return next(Collector(GymEnv("Pendulum-v1"), None, frames_per_batch=20))["action"].clone()

    drawn = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        drawn.append([actions(), actions()])
    assert torch.equal(drawn[0][0], drawn[1][0]) and torch.equal(drawn[0][1], drawn[1][1])
    assert not torch.equal(drawn[0][0], drawn[2][0])
    # Another collector acts otherwise.
    assert not torch.equal(drawn[0][0], drawn[0][1])


def test_torchs_generator_is_left_to_modules() -> None:
    policy, before = nn.Linear(3, 1), torch.get_rng_state()
    Collector(GymEnv("Pendulum-v1"), policy, policy_backend="torch", frames_per_batch=20)
    assert torch.equal(torch.get_rng_state(), before)
