"""TorchRL's transforms around windrow's environments."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import pytest
import torch

torchrl = pytest.importorskip("torchrl")

import windrow.envs as ours
import windrow.torchrl
from theirs import Counting
from windrow.collectors import Collector, MultiSyncCollector
from windrow.torchrl.envs import (
    Compose,
    EnvCreator,
    GymEnv,
    ParallelEnv,
    RewardSum,
    SerialEnv,
    StepCounter,
    Transform,
    TransformedEnv,
    check_env_specs,
)


class Twice(Transform):
    """A user's own: observes twice what ``count`` names, and remembers how often it was called."""

    def __init__(self, key: str = "observation") -> None:
        super().__init__(in_keys=[key], out_keys=["twice"])
        self.calls = 0

    def _apply_transform(self, obs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return obs * 2

    def _reset(self, tensordict: Any, tensordict_reset: Any) -> Any:
        return self._call(tensordict_reset)

    def transform_observation_spec(self, observation_spec: Any) -> Any:
        observation_spec["twice"] = observation_spec[self.in_keys[0]].clone()
        return observation_spec


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* is a transform of TorchRL's")
        yield


def pendulum(*transforms: Any) -> Any:
    return TransformedEnv(GymEnv("Pendulum-v1"), Compose(*transforms))


def is_twice(batch: Any, key: str = "observation") -> bool:
    return all(torch.equal(level["twice"], 2 * level[key]) for level in (batch, batch["next"]))


def test_a_users_transform_is_torchrls() -> None:
    assert issubclass(Twice, torchrl.envs.Transform) and isinstance(Twice(), Transform)
    assert not isinstance(Twice(), ours.Transform)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_it_stands_anywhere_between_others(place: int) -> None:
    env = pendulum(StepCounter(5), RewardSum())
    env.insert_transform(place, twice := Twice())
    assert env.transform[place] is twice and len(env.transform) == 3
    torch.manual_seed(0)
    env.set_seed(0)
    played = env.rollout(12, break_when_any_done=False)
    assert is_twice(played) and twice.calls > 12
    assert played["step_count"].flatten().tolist() == [0, 1, 2, 3, 4] * 2 + [0, 1]
    torch.manual_seed(0)
    plain = pendulum(StepCounter(5), RewardSum())
    plain.set_seed(0)
    expected = plain.rollout(12, break_when_any_done=False)
    for key in expected.keys(True, True):
        assert torch.equal(played[key], expected[key]), key
    check_env_specs(env)


def test_a_warning_names_it_and_its_cost_once() -> None:
    class Named(Twice):
        pass

    with pytest.warns(
        UserWarning, match="Named is a transform of TorchRL's.*around every step, which costs"
    ) as told:
        pendulum(Named(), Named())
        pendulum(Named())
    assert len(told) == 1 and told[0].filename == __file__


def test_several_are_reset_one_by_one() -> None:
    inner = SerialEnv(2, [lambda: pendulum(StepCounter(3)), lambda: pendulum(StepCounter(4))])
    env = TransformedEnv(inner, Twice())
    env.append_transform(StepCounter(step_count_key="outer"))
    played = env.rollout(8, break_when_any_done=False)
    assert played.shape == (2, 8) and is_twice(played)
    assert played["outer"].squeeze(-1).tolist() == [
        [0, 1, 2, 0, 1, 2, 0, 1],
        [0, 1, 2, 3, 0, 1, 2, 3],
    ]
    assert torch.equal(played["outer"], played["step_count"])


def test_collectors_take_it() -> None:
    env = pendulum(twice := Twice(), StepCounter(7))
    env.rollout(3)
    before = twice.calls
    with Collector(env, None, frames_per_batch=20, total_frames=20) as collector:
        (batch,) = collector
    # The user's own object was at work.
    assert is_twice(batch) and twice.calls > before + 20
    assert is_twice(env.rollout(3))


@pytest.mark.parametrize("placement", ["threads", "processes"])
def test_workers_have_copies(placement: str) -> None:
    env = pendulum(Twice(), StepCounter(7))
    with MultiSyncCollector(
        [env, env], None, frames_per_batch=20, total_frames=20, placement=placement
    ) as collector:
        (batch,) = collector
    assert (
        is_twice(batch)
        and batch["step_count"].flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2] * 2
    )


def test_it_is_in_members_and_around_them() -> None:
    env = TransformedEnv(ParallelEnv(2, EnvCreator(lambda: pendulum(Twice()))), RewardSum())
    try:
        assert is_twice(env.rollout(3)) and env.batch_size == (2,)
    finally:
        env.close()


def test_it_can_be_pickled_with_its_environment() -> None:
    env = pendulum(torchrl.envs.RemoveEmptySpecs(), StepCounter())
    env.rollout(2)
    assert pickle.loads(pickle.dumps(env)).rollout(3)["step_count"].flatten().tolist() == [0, 1, 2]


def test_functions_are_transforms() -> None:
    def add(tensordict: Any) -> Any:
        return (
            tensordict.set("reward", tensordict["reward"] + 100)
            if "reward" in tensordict.keys()
            else tensordict
        )

    env = GymEnv("Pendulum-v1").append_transform(add)
    assert (env.rollout(5)["next", "reward"] > 80).all()


def test_a_primer_may_draw_states() -> None:
    primer = torchrl.envs.TensorDictPrimer({"h": torchrl.data.Unbounded((2,))}, random=True)
    played = pendulum(primer).rollout(2)
    assert played["h"].shape == (2, 2) and played["h"].unique().numel() > 1


def test_arguments_that_windrow_refuses_name_the_stand_in_which_makes_torchrls() -> None:
    with pytest.raises(ValueError, match=r"; windrow\.torchrl\.envs\.StepCounter takes this"):
        ours.StepCounter(3, update_done=False)
    counter = StepCounter(3, update_done=False)
    assert type(counter) is torchrl.envs.StepCounter and isinstance(counter, StepCounter)
    with pytest.warns(
        UserWarning,
        match=r"StepCounter is a transform of TorchRL's, not of windrow's \(update_done=False: an episode",
    ):
        env = pendulum(counter)
    assert (
        env.rollout(5).shape
        == torchrl.envs.TransformedEnv(
            torchrl.envs.GymEnv("Pendulum-v1"), torchrl.envs.StepCounter(3, update_done=False)
        )
        .rollout(5)
        .shape
    )


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("StepCounter", {"max_steps": 0}, "max_steps must be 1 or more, got 0"),
        ("StepCounter", {"max_step": 3, "update_done": False}, "max_step"),
        ("CatFrames", {"N": 0, "dim": -1}, "N of 1 or more"),
        ("RewardScaling", {"loc": 0, "scale": 1, "out_keys": ["a", "b"]}, "as many out_keys"),
    ],
)
def test_a_mistake_is_an_error_of_windrows_in_the_stand_in_too(
    name: str, arguments: dict[str, Any], error: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        getattr(windrow.torchrl.envs, name)(**arguments)


def test_around_an_environment_of_torchrl() -> None:
    env = TransformedEnv(
        Counting(), Compose(ours.RenameTransform([("data", "count")], ["n"]), StepCounter())
    )
    played = env.rollout(4)
    assert played["n"].flatten().tolist() == played["step_count"].flatten().tolist() == [0, 1, 2, 3]


def test_clones_and_calls_on_all_parts() -> None:
    env = pendulum(StepCounter(), Twice())
    cloned = TransformedEnv(GymEnv("Pendulum-v1"), env.transform.clone())
    assert [type(t).__name__ for t in cloned.transform] == ["StepCounter", "Twice"]
    assert cloned.transform[1] is not env.transform[1] and is_twice(cloned.rollout(3))
    seen: list[str] = []
    env.apply(lambda part: seen.append(type(part).__name__))
    assert seen == ["StepCounter", "Twice", "GymEnv", "TransformedEnv"]
    assert env.eval() is env and not env.transform[1].training
    assert type(env.transform.pop()).__name__ == "Twice" and "twice" not in env.rollout(2).keys()


def test_recorders_see_pictures_of_the_own_environment() -> None:
    class Recorder(Twice):
        dumped = 0

        def dump(self, **_: Any) -> None:
            self.dumped += self.calls

    env = pendulum(Recorder(), StepCounter())
    env.rollout(4)
    env.transform.dump()
    assert env.transform[0].dumped == env.transform[0].calls > 4
    assert isinstance(env.transform[:1], Compose) and len(env.transform[:1]) == 1


def test_statistics_of_torchrls_are_kept_by_evaluators() -> None:
    from windrow.collectors import Evaluator

    env = pendulum(StepCounter(), torchrl.envs.VecNormV2(in_keys=["observation"]), RewardSum())
    norm = env.transform[1]
    env.rollout(20)
    assert norm._count["observation"] == 21
    with Evaluator(
        env, ours.RandomPolicy(env.action_spec), num_trajectories=1, max_steps=30
    ) as evaluator:
        evaluator.evaluate()
    assert norm._count["observation"] == 21 and not norm.frozen
    state = env.state_dict()
    fresh = pendulum(StepCounter(), torchrl.envs.VecNormV2(in_keys=["observation"]), RewardSum())
    fresh.rollout(2)
    fresh.load_state_dict(state)
    torch.testing.assert_close(fresh.state_dict()["1"], state["1"])


def test_transforms_in_a_compose_of_torchrl_find_their_environment() -> None:
    from torchrl import envs as theirs

    inside, count = Twice(), theirs.StepCounter()
    several = theirs.Compose(theirs.Compose(inside), count)
    first, second = (TransformedEnv(GymEnv("Pendulum-v1"), several) for _ in range(2))
    with (
        Collector(first, frames_per_batch=10) as collector,
        Collector(second, frames_per_batch=10) as other,
    ):
        batch = next(collector)
        assert torch.equal(batch["twice"], 2 * batch["observation"]) and batch[
            "step_count"
        ].flatten().tolist() == list(range(10))
        calls = inside.calls
        assert calls >= 10, "the first environment has the transforms themselves"
        assert (
            next(other)["step_count"].flatten().tolist() == list(range(10))
            and inside.calls == calls
        ), "the second has copies"
