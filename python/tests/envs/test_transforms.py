"""What is done to environments."""

from __future__ import annotations

import pickle
import warnings
import weakref
from copy import deepcopy
from typing import Any

import gymnasium
import pytest
import torch

from windrow import _fence
from windrow.collectors import Collector
from windrow.envs import (
    Compose,
    DoubleToFloat,
    GymEnv,
    InitTracker,
    ObservationNorm,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    VecNorm,
    check_env,
)


@pytest.fixture(params=["native", "gymnasium"])
def pendulum(request: pytest.FixtureRequest) -> GymEnv:
    return GymEnv("Pendulum-v1", backend=request.param)


def rollout(env: Any, steps: int = 50) -> Any:
    torch.manual_seed(0)
    env.set_seed(0)
    return env.rollout(steps, break_when_any_done=False)


def test_steps_are_counted_and_limited(pendulum: GymEnv) -> None:
    played = rollout(TransformedEnv(pendulum, StepCounter(max_steps=3)), 7)
    assert played["step_count"].flatten().tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert played["next", "step_count"].flatten().tolist() == [1, 2, 3, 1, 2, 3, 1]
    assert played["next", "truncated"].flatten().tolist() == [False, False, True] * 2 + [False]
    with pytest.raises(ValueError, match="max_steps must be 1 or more, got 0"):
        StepCounter(0)


def test_rewards_are_summed(pendulum: GymEnv) -> None:
    played = rollout(TransformedEnv(pendulum, Compose(StepCounter(5), RewardSum())), 10)
    sums = played["next", "reward"].reshape(2, 5).cumsum(-1).flatten()
    torch.testing.assert_close(played["next", "episode_reward"].flatten(), sums)
    assert played["episode_reward"].flatten()[[0, 5]].tolist() == [0, 0]


def test_beginnings_are_marked(pendulum: GymEnv) -> None:
    env = TransformedEnv(pendulum, InitTracker())
    env.append_transform(StepCounter(4))
    assert rollout(env, 9)["is_init"].flatten().tolist() == [True, False, False, False] * 2 + [True]
    assert [type(transform).__name__ for transform in env.transform] == [
        "InitTracker",
        "StepCounter",
    ]


@pytest.mark.parametrize("standard_normal", [False, True])
def test_observations_are_normalised_with_given_numbers(
    pendulum: GymEnv, standard_normal: bool
) -> None:
    loc, scale = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, 2.0, 4.0])
    norm = ObservationNorm(loc, scale, in_keys=["observation"], standard_normal=standard_normal)
    plain, normed = (
        rollout(pendulum)["observation"],
        rollout(TransformedEnv(pendulum, norm))["observation"],
    )
    expected = (plain - loc) / scale if standard_normal else plain * scale + loc
    torch.testing.assert_close(normed, expected)


def test_results_may_have_names_of_their_own(pendulum: GymEnv) -> None:
    norm = ObservationNorm(1.0, 2.0, in_keys=["observation"], out_keys=["normed"])
    played = rollout(TransformedEnv(pendulum, norm))
    torch.testing.assert_close(played["normed"], played["observation"] * 2 + 1)
    torch.testing.assert_close(played["next", "normed"], played["next", "observation"] * 2 + 1)


@pytest.mark.parametrize("standard_normal", [False, True])
def test_statistics_are_estimated_once(pendulum: GymEnv, standard_normal: bool) -> None:
    norm = ObservationNorm(in_keys=["observation"], standard_normal=standard_normal)
    env = TransformedEnv(pendulum, Compose(norm, RewardSum()))
    with pytest.warns(UserWarning, match="estimating them from 1000 random frames"):
        first = rollout(env, 400)["observation"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(rollout(env, 400)["observation"], first)
        batch = next(Collector(env, None, frames_per_batch=2000, seed=0))
    assert norm.initialized and norm.loc.shape == (3,)
    # Episodes of a pendulum are so alike in themselves that few of them make a rough mean.
    assert batch["observation"].mean(0).abs().max() < 1
    assert (batch["observation"].std(0) - 1).abs().max() < 0.5


def test_statistics_do_not_depend_on_who_estimates_them() -> None:
    def make() -> TransformedEnv:
        return TransformedEnv(GymEnv("Pendulum-v1"), ObservationNorm(in_keys=["observation"]))

    with pytest.warns(UserWarning, match="estimating"):
        one, other = make(), make()
        one.reset(), other.reset()
    assert torch.equal(one.transform.loc, other.transform.loc)  # type: ignore[attr-defined]


def test_statistics_can_be_asked_for(pendulum: GymEnv) -> None:
    norm = ObservationNorm(in_keys=["observation"], standard_normal=True)
    env = TransformedEnv(
        SerialEnv(2, pendulum if pendulum.backend == "native" else lambda: pendulum), norm
    )
    norm.init_stats(num_iter=300, reduce_dim=0, cat_dim=0)
    assert norm.scale.min() > 0.1
    rollout(env)
    with pytest.raises(RuntimeError, match="has loc and scale already"):
        norm.init_stats(10)


@pytest.mark.parametrize(
    ("several", "arguments"),
    [
        (False, {}),
        (False, {"reduce_dim": -2, "cat_dim": -2}),
        (False, {"reduce_dim": [-2], "cat_dim": 0}),
        (False, {"key": ("next", "observation")}),
        (True, {}),
        (True, {"reduce_dim": (0, 1), "cat_dim": 1}),
        (True, {"reduce_dim": (-3, -2), "cat_dim": -2}),
    ],
)
def test_each_feature_has_statistics_of_its_own(several: bool, arguments: dict[str, Any]) -> None:
    norm = ObservationNorm(in_keys=["observation"], standard_normal=True)
    one = GymEnv("Pendulum-v1")
    TransformedEnv(SerialEnv(2, one) if several else one, norm)
    norm.init_stats(num_iter=200, **arguments)
    assert norm.scale.shape == (3,) and norm.scale[2] > 2 * norm.scale[:2].max()


@pytest.mark.parametrize("several", [False, True])
def test_features_share_statistics_where_they_are_averaged_over(several: bool) -> None:
    norm = ObservationNorm(in_keys=["observation"], standard_normal=True)
    one = GymEnv("Pendulum-v1")
    TransformedEnv(SerialEnv(2, one) if several else one, norm)
    norm.init_stats(num_iter=200, reduce_dim=(0, 1, 2) if several else (0, 1), cat_dim=0)
    assert norm.scale.shape == (3,) and len(set(norm.scale.tolist())) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reduce_dim": 1}, r"reduce_dim must have 0, 1 in it, environments and time, got 1"),
        ({"reduce_dim": (0, 2)}, r"reduce_dim must have 0, 1 in it"),
        (
            {"reduce_dim": (0, 1, 3)},
            r"observations have 3 dimensions, environments and time included",
        ),
        (
            {"reduce_dim": (0, 1), "cat_dim": 2},
            r"cat_dim must be one of reduce_dim=\(0, 1\), got 2",
        ),
    ],
)
def test_statistics_over_other_dimensions_are_refused(
    arguments: dict[str, Any], message: str
) -> None:
    norm = ObservationNorm(in_keys=["observation"])
    TransformedEnv(SerialEnv(2, GymEnv("Pendulum-v1")), norm)
    with pytest.raises(ValueError, match=message):
        norm.init_stats(num_iter=10, **arguments)


def test_transforms_tell_what_they_go_around() -> None:
    assert StepCounter().parent is None
    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(StepCounter(), RewardSum()))
    counter, total = env.transform
    assert (
        set(counter.parent.observation_keys) == {"observation"}
        and counter.parent.base_env is env.base_env
    )
    assert set(total.parent.observation_keys) == {"observation", "step_count"}
    assert set(env.rollout(2).keys()) >= {"episode_reward", "step_count"}


def test_transforms_are_put_where_they_are_wanted() -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(StepCounter(3)))
    env.insert_transform(0, RewardSum())
    env.transform.insert(0, InitTracker())  # type: ignore[attr-defined]
    env.transform.append(StepCounter(step_count_key="other"))  # type: ignore[attr-defined]
    kinds = [type(transform).__name__ for transform in env.transform]  # type: ignore[attr-defined]
    assert kinds == ["InitTracker", "RewardSum", "StepCounter", "StepCounter"]
    batch = next(Collector(env, None, frames_per_batch=6))
    assert {"is_init", "episode_reward", "step_count", "other"} <= set(batch.keys())


def test_a_transform_that_is_assigned_takes_the_place_of_the_others(pendulum: GymEnv) -> None:
    env = TransformedEnv(pendulum, Compose(StepCounter(), RewardSum()))
    env.rollout(3)
    env.transform = StepCounter(max_steps=2)
    assert isinstance(env.transform, StepCounter)
    assert "episode_reward" not in env.rollout(5).keys() and len(env.rollout(5)) == 2
    env.transform = Compose(RewardSum(), StepCounter(max_steps=4))
    assert isinstance(env.transform, Compose) and len(env.rollout(5)["episode_reward"]) == 4


def test_a_transform_that_is_added_later_is_not_passed_over() -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose())
    assert "step_count" not in env.reset().keys()
    env.transform.append(StepCounter())  # type: ignore[attr-defined]
    assert "step_count" in env.reset().keys() and "step_count" in env.observation_keys


def test_clones_of_transforms_go_around_another_environment() -> None:
    norm = ObservationNorm(in_keys=["observation"], standard_normal=True)
    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(StepCounter(3), norm))
    norm.init_stats(50)
    other = TransformedEnv(GymEnv("Pendulum-v1"), env.transform.clone())  # type: ignore[attr-defined]
    assert other.transform[1] is not norm  # type: ignore[index]
    torch.testing.assert_close(rollout(env)["observation"], rollout(other)["observation"])


def test_samples_of_buffers_are_transformed_by_torchrl() -> None:
    pytest.importorskip("torchrl")
    played = rollout(GymEnv("Pendulum-v1"), 5)
    expected = played["observation"] * 2
    norm = ObservationNorm(loc=0.0, scale=2.0, in_keys=["observation"])
    torch.testing.assert_close(norm(played)["observation"], expected)
    torch.testing.assert_close(Compose(norm, norm.clone())(played)["observation"], expected * 4)


def test_statistics_are_exchanged_with_torchrl() -> None:
    theirs = pytest.importorskip("torchrl.envs").ObservationNorm(
        loc=1.0, scale=2.0, in_keys=["observation"], standard_normal=True
    )
    own = ObservationNorm(in_keys=["observation"])
    own.load_state_dict(theirs.state_dict())
    again = ObservationNorm(in_keys=["observation"], **own.state_dict())
    for norm in (own, again):
        assert norm.standard_normal is True and (norm.loc.item(), norm.scale.item()) == (1.0, 2.0)
    assert set(own.state_dict()) == set(theirs.state_dict())


def test_statistics_are_saved_and_loaded() -> None:
    def make() -> TransformedEnv:
        return TransformedEnv(
            GymEnv("Pendulum-v1"), Compose(StepCounter(), ObservationNorm(in_keys=["observation"]))
        )

    trained, fresh = make(), make()
    trained.transform[1].init_stats(100)  # type: ignore[attr-defined]
    fresh.load_state_dict(trained.state_dict())
    torch.testing.assert_close(rollout(fresh)["observation"], rollout(trained)["observation"])
    with pytest.raises(KeyError, match="no transform 7"):
        fresh.load_state_dict({"7": {}})


def test_doubles_are_narrowed(echo: Any) -> None:
    space = gymnasium.spaces.Dict({name: gymnasium.spaces.Box(-1, 1, (2,), float) for name in "ab"})

    def make() -> Any:
        return echo(deepcopy(space), gymnasium.spaces.Discrete(2))

    plain = rollout(TransformedEnv(make(), Compose()))
    every = rollout(TransformedEnv(make(), Compose(DoubleToFloat(), StepCounter())))
    torch.testing.assert_close(every["a"], plain["a"].float())
    some = rollout(TransformedEnv(make(), DoubleToFloat(in_keys=["b"])))
    assert (some["a"].dtype, some["b"].dtype) == (torch.float64, torch.float32)
    with pytest.raises(ValueError, match='Echo has no observation "c"'):
        TransformedEnv(make(), DoubleToFloat(in_keys=["c"])).reset()


def test_transforms_go_around_any_environment() -> None:
    env = TransformedEnv(gymnasium.make("CartPole-v1"), StepCounter(9))
    check_env(env)
    assert env.rollout(100)["next", "step_count"].max() <= 9


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (StepCounter(3, step_count_key="n"), "StepCounter(3, step_count_key='n')"),
        (InitTracker("start"), "InitTracker('start')"),
        (RewardSum(["reward"], ["gain"]), "RewardSum(['reward'], ['gain'])"),
        (RewardSum(["reward"], [("stats", "gain")]), "RewardSum(['reward'], [('stats', 'gain')])"),
        (StepCounter(3, truncated_key="late"), "StepCounter(3, truncated_key='late')"),
        (
            Compose(StepCounter(5), StepCounter(2, step_count_key="n")),
            "Compose(StepCounter(5), StepCounter(2, step_count_key='n'))",
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_names_are_those_that_were_asked_for(ours: Any, theirs: str) -> None:
    from torchrl import envs

    played = rollout(TransformedEnv(GymEnv("Pendulum-v1", backend="gymnasium"), ours), 7)
    transform = eval(theirs, vars(envs))
    expected = envs.TransformedEnv(envs.GymEnv("Pendulum-v1"), transform).rollout(
        7, break_when_any_done=False
    )
    assert set(played.keys(True, True)) == set(expected.keys(True, True))
    for key in expected.keys(True, True):
        assert (played[key].dtype, played[key].shape) == (
            expected[key].dtype,
            expected[key].shape,
        ), key
        # An episode ends here where a flag of another name ends it there.
        if expected[key].dtype in (torch.bool, torch.int64) and not (
            key == ("next", "truncated") and "late" in theirs
        ):
            assert torch.equal(played[key], expected[key]), key
    gain = {"gain": ("next", "gain"), "stats": ("next", "stats", "gain")}
    for name, key in gain.items():
        if name in played.keys():
            torch.testing.assert_close(
                played[key].flatten(), played["next", "reward"].flatten().cumsum(0)
            )
    batch = next(Collector(TransformedEnv(GymEnv("Pendulum-v1"), ours), None, frames_per_batch=7))
    assert set(played.keys(True, True)) == set(batch.exclude("collector").keys(True, True))


def test_a_flag_need_not_end_the_episode(pendulum: GymEnv) -> None:
    played = rollout(
        TransformedEnv(pendulum, StepCounter(3, truncated_key="late", update_done=False)), 5
    )
    assert played["next", "late"].flatten().tolist() == [False, False, True, True, True]
    assert played["late"].flatten().tolist() == [False, False, False, True, True]
    assert not played["next", "done"].any()
    assert played["next", "step_count"].flatten().tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: InitTracker(("a", "b")), r"init_key has to be a name, got \('a', 'b'\)"),
        (lambda: RewardSum(in_keys=["gain"]), 'Pendulum-v1 has no observation "gain"'),
        (
            lambda: RewardSum(out_keys=["a", "b"]),
            r"a name for each of \['reward'\]: got out_keys=\['a', 'b'\]",
        ),
        (
            lambda: RewardSum(out_keys=[("a", 1)]),
            r"out_keys has to be a list of names, got \('a', 1\) in it",
        ),
        (
            lambda: StepCounter(step_count_key="observation"),
            'frames of Pendulum-v1 have "observation" already',
        ),
        (lambda: InitTracker("action"), 'frames of Pendulum-v1 have "action" already'),
        (
            lambda: RewardSum(out_keys=[("next", "sum")]),
            r'frames of Pendulum-v1 have \("next", "sum"\) already',
        ),
        (lambda: Compose(InitTracker("n"), StepCounter(step_count_key="n")), 'have "n" already'),
        (lambda: StepCounter(3, truncated_key="step_count"), 'have "step_count" already'),
    ],
)
def test_names_that_cannot_be_are_errors(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransformedEnv(GymEnv("Pendulum-v1"), make()).reset()


def test_misuse_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="needs in_keys"):
        ObservationNorm()
    with pytest.raises(ValueError, match="both loc and scale"):
        ObservationNorm(loc=0.0, in_keys=["observation"])
    with pytest.raises(RuntimeError, match="into a TransformedEnv first"):
        ObservationNorm(in_keys=["observation"]).init_stats(10)
    with pytest.raises(KeyError, match="no observation"):
        TransformedEnv(GymEnv("Pendulum-v1"), norm := ObservationNorm(in_keys=["pixels"]))
        norm.init_stats(10)
    with pytest.raises(ValueError, match="expected 1 number or 3, got 2"):
        TransformedEnv(
            GymEnv("Pendulum-v1"), ObservationNorm([0.0, 1.0], [1.0, 1.0], ["observation"])
        ).reset()
    with pytest.raises(
        TypeError,
        match=r"expected a transform, got the class StepCounter: write StepCounter\(\.\.\.\)",
    ):
        TransformedEnv(GymEnv("CartPole-v1"), StepCounter)
    with pytest.raises(
        TypeError, match="expected a transform, or a function of a TensorDict, got int"
    ):
        TransformedEnv(GymEnv("Pendulum-v1"), 3)


def test_exploration_types_are_those_of_tensordict() -> None:
    from tensordict.nn.probabilistic import InteractionType

    from windrow.envs import ExplorationType, set_exploration_type
    from windrow.envs.utils import exploration_type

    assert ExplorationType is InteractionType
    with set_exploration_type(ExplorationType.MEAN):
        assert exploration_type() is ExplorationType.MEAN


@pytest.mark.parametrize("transform", [RewardSum(), Compose(RewardSum())], ids=repr)
def test_a_transform_of_samples_says_that_it_needs_torchrl(
    transform: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_fence, "is_installed", lambda: False)
    with pytest.raises(
        TypeError,
        match="the engine does RewardSum to environments: to do it to a TensorDict needs torchrl",
    ):
        transform(torch.zeros(1))


def test_a_transform_has_its_environment() -> None:
    env = TransformedEnv(GymEnv("CartPole-v1"), Compose(RewardSum()))
    env.append_transform(StepCounter())
    assert all(transform.container is env for transform in (*env.transform, env.transform))
    assert env.transform[1].parent is not None
    assert env.transform[1].container is env
    assert RewardSum().container is None


@pytest.mark.parametrize("copied", [deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_the_transforms_of_a_copy_have_the_copy(copied: Any) -> None:
    env = TransformedEnv(GymEnv("CartPole-v1"), Compose(RewardSum(), VecNorm()))
    other = copied(env)
    assert [transform.container is other for transform in other.transform] == [True, True]
    assert [transform.clone().container for transform in env.transform] == [None, None]


def test_a_transform_does_not_keep_its_environment() -> None:
    transform = RewardSum()
    env = TransformedEnv(GymEnv("CartPole-v1"), transform)
    gone = weakref.ref(env)
    del env
    assert gone() is None and transform.container is None
