"""Environments that observe what the states of recurrent policies begin with."""

from __future__ import annotations

import gymnasium
import pytest
import torch
from tensordict.nn import TensorDictModule
from torchrl.data import Unbounded
from torchrl.envs import (
    GymEnv as TheirGymEnv,
    TensorDictPrimer,
    TransformedEnv as TheirTransformedEnv,
)

from recurrent import LSTM_STATE, check, lstm
from windrow.collectors import Collector
from windrow.envs import (
    Compose,
    GymEnv,
    GymWrapper,
    InitTracker,
    ParallelEnv,
    RewardSum,
    SerialEnv,
    TransformedEnv,
)


def primed(policy=None, base=None) -> TransformedEnv:
    env = TransformedEnv(
        base or GymEnv("CartPole-v1", categorical_action_encoding=True),
        Compose(InitTracker(), RewardSum()),
    )
    return env.append_transform((policy or lstm())[0].make_tensordict_primer())


def batched() -> GymEnv:
    return GymEnv("CartPole-v1", categorical_action_encoding=True, num_envs=2)


ENVS = {
    "one": primed,
    "inside": lambda: SerialEnv(2, primed),
    "around": lambda: primed(base=batched()),
}


@pytest.mark.parametrize("env", ENVS.values(), ids=ENVS)
@pytest.mark.parametrize("register", [True, False])
def test_collectors_begin_with_primers_and_carry_states_on(env, register) -> None:
    source = Collector(
        env(),
        lstm(),
        frames_per_batch=120,
        total_frames=240,
        seed=0,
        auto_register_policy_transforms=register,
    )
    check([batch.clone() for batch in source], lstm(), LSTM_STATE)


@pytest.mark.parametrize("env", ENVS.values(), ids=ENVS)
@pytest.mark.parametrize("stops", [True, False])
def test_rollouts_carry_states_on(env, stops) -> None:
    env, policy = env(), lstm()
    env.set_seed(0)
    with torch.no_grad():
        frames = env.rollout(60, policy, break_when_any_done=stops)
    assert bool(frames["next", "done"].any())
    # An episode of an environment has an id of its own.
    number = frames["is_init"].squeeze(-1).long().cumsum(-1)
    rows = torch.arange(max(env.numel(), 1)).reshape(*env.batch_size, 1) if env.batch_size else 0
    frames["collector", "traj_ids"] = number + 100 * rows
    if stops and not env.batch_size:
        again = env.rollout(60, policy)
        again["collector", "traj_ids"] = torch.full(again.shape, 7)
        frames = torch.cat([frames, again])
    check([frames], policy, LSTM_STATE)


def test_resets_and_specs_are_those_of_torchrl() -> None:
    theirs = TheirTransformedEnv(TheirGymEnv("CartPole-v1"), lstm()[0].make_tensordict_primer())
    own = TransformedEnv(GymEnv("CartPole-v1"), lstm()[0].make_tensordict_primer())
    for state in LSTM_STATE:
        assert own.observation_spec[state].shape == theirs.observation_spec[state].shape
        assert torch.equal(own.reset()[state], theirs.reset()[state])
    root, following = own.step_and_maybe_reset(own.rand_action(own.reset()))
    assert set(LSTM_STATE) <= {*root["next"].keys()} & {*following.keys()}


def test_states_begin_with_the_default_value() -> None:
    def step(observation, hidden, deep):
        return hidden[..., 0].long() % 2, hidden + 1, deep + 1

    specs = {"hidden": Unbounded((2,)), ("inner", "deep"): Unbounded((1, 3))}
    values = {"hidden": 3.0, ("inner", "deep"): torch.tensor(0.5)}
    keys = {
        "in_keys": ["observation", *specs],
        "out_keys": ["action", ("next", "hidden"), ("next", "inner", "deep")],
    }
    env = TransformedEnv(
        GymEnv("CartPole-v1", categorical_action_encoding=True),
        TensorDictPrimer(specs, default_value=values),
    )
    batch = next(
        Collector(env, TensorDictModule(step, **keys), frames_per_batch=60, max_frames_per_traj=5)
    )
    assert torch.equal(batch["hidden"], 3 + batch["step_count"].expand(60, 2).float())
    assert torch.equal(
        batch["inner", "deep"][:, 0], 0.5 + batch["step_count"].expand(60, 3).float()
    )
    assert torch.equal(batch["next", "hidden"], batch["hidden"] + 1)


@pytest.mark.parametrize(
    ("primer", "message"),
    [
        (
            TensorDictPrimer({"h": Unbounded((2,))}, random=True),
            "'h' begins with random numbers, expected a number",
        ),
        (
            TensorDictPrimer({"h": Unbounded((2,), dtype=torch.int64)}),
            r"'h' is torch.int64, expected torch.float32",
        ),
        (
            TensorDictPrimer({"h": Unbounded((2,))}, default_value=lambda: torch.zeros(2)),
            "expected a number as default_value",
        ),
    ],
)
def test_what_a_state_cannot_begin_with_is_named_and_left_to_torchrl(primer, message) -> None:
    with pytest.warns(UserWarning, match=message):
        env = GymEnv("CartPole-v1").append_transform(primer)
    assert env.reset()["h"].shape == (2,)


def test_environments_of_one_vector_have_the_same_states() -> None:
    with pytest.raises(ValueError, match="observe and accept the same"):
        ParallelEnv(
            2, [primed, lambda: GymEnv("CartPole-v1", categorical_action_encoding=True)]
        ).reset()


def test_what_a_policy_writes_for_the_next_step_stays_in_the_step() -> None:
    env = GymEnv("CartPole-v1")
    root = env.rand_action(env.reset()).set(("next", "note"), torch.ones(1))
    following = env.step(root)["next"]
    assert following["note"] == 1
    stale = env.step(env.rand_action(root))["next"]
    assert not torch.equal(stale["observation"], following["observation"])


@pytest.mark.parametrize(
    "make",
    [
        lambda package: package("CartPole-v1", policy=lstm()),
        lambda package: package("CartPole-v1", policy=torch.nn.Linear(4, 2)),
    ],
)
def test_an_environment_is_primed_for_the_policy_that_it_is_given(make) -> None:
    env, theirs = make(GymEnv), make(TheirGymEnv)
    assert set(env.reset().keys(True, True)) == {*theirs.reset().keys(True, True), "truncated"}
    specs = [
        {key: (spec.shape, spec.dtype) for key, spec in one.observation_spec.items(True, True)}
        for one in (env, theirs)
    ]
    assert specs[0] == specs[1]


def test_a_wrapper_is_primed_for_the_policy_that_it_is_given() -> None:
    env = GymWrapper(gymnasium.make("CartPole-v1"), policy=lstm(), categorical_action_encoding=True)
    assert {"observation", "is_init", *LSTM_STATE} <= set(
        env.reset().keys()
    ) and env.action_spec.shape == ()


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2}, {"num_envs": 2}, {"backend": "gymnasium"}]
)
def test_a_policy_acts_in_an_environment_that_is_primed_for_it(options) -> None:
    policy = lstm()
    env = GymEnv("CartPole-v1", policy=policy, categorical_action_encoding=True, **options)
    with Collector(env, policy, frames_per_batch=40) as collector:
        batch = next(collector)
    given, written = (batch[key] for key in (LSTM_STATE[0], ("next", LSTM_STATE[0])))
    went_on = ~batch["next", "done"][..., :-1, 0]
    assert torch.equal(given[..., 1:, :, :][went_on], written[..., :-1, :, :][went_on]) and bool(
        written.any()
    )
    assert not given[batch["is_init"][..., 0]].any()
