"""Transforms of numbers beside TorchRL's of the same name."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import torchrl.envs as theirs

import windrow.envs as ours
from transforms._compare import assert_same, compare, play


class Wide(gymnasium.Env[Any, Any]):
    """Observes numbers of float64 and earns some of both signs; ends after 13 steps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (17,), np.float64)
    action_space = gymnasium.spaces.Box(np.array([-1, 0], np.float32), np.array([1, 5], np.float32))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.scale = 0, np.linspace(0.01, 30, 17)
        return self.seen(), {}

    def seen(self) -> Any:
        return self.np_random.normal(size=17) * self.scale + self.scale

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return (
            self.seen(),
            float(self.np_random.normal()) + float(action.sum()) - 2,
            self.steps == 13,
            False,
            {},
        )


CASES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "scaling": ("RewardScaling", (0.3, 2.5), {}),
    "standard": ("RewardScaling", (0.3, 2.5), {"standard_normal": True}),
    "small scale": ("RewardScaling", (1, 0), {}),
    "clipping": ("RewardClipping", (-0.5, 0.7), {}),
    "clip": ("ClipTransform", (["observation", "reward"],), {"low": -0.9, "high": 0.3}),
    "clip from below": ("ClipTransform", (["observation"],), {"low": -0.1}),
    "clip actions": ("ClipTransform", (), {"in_keys_inv": ["action"], "low": 0.2, "high": 0.4}),
    "sign": ("SignTransform", (["observation", "reward"],), {}),
    "sign of actions": ("SignTransform", (), {"in_keys_inv": ["action"]}),
    "cast": ("DTypeCastTransform", (torch.float64, torch.float32), {}),
    "cast rewards": ("DTypeCastTransform", (torch.float32, torch.float64), {"in_keys": ["reward"]}),
    "cast beside": (
        "DTypeCastTransform",
        (torch.float64, torch.int32),
        {"in_keys": ["observation"], "out_keys": ["whole"]},
    ),
    "double to float": ("DoubleToFloat", (), {"in_keys": ["observation"]}),
    "target": ("TargetReturn", (10.0,), {}),
    "constant target": ("TargetReturn", (10.0,), {"mode": "constant", "out_keys": ["aim"]}),
    "binary": ("BinarizeReward", (), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_those_of_torchrl(case: str) -> None:
    name, args, kwargs = CASES[case]
    compare(getattr(ours, name)(*args, **kwargs), getattr(theirs, name)(*args, **kwargs), Wide)


@pytest.mark.parametrize("case", ["clip", "cast", "target", "binary", "scaling"])
def test_sums_around_them_are_those_of_torchrl(case: str) -> None:
    name, args, kwargs = CASES[case]
    mine = ours.Compose(getattr(ours, name)(*args, **kwargs), ours.RewardSum(), ours.StepCounter(9))
    others = theirs.Compose(
        getattr(theirs, name)(*args, **kwargs), theirs.RewardSum(), theirs.StepCounter(9)
    )
    # Sums are of float32 here, and as wide as the reward there.
    compare(mine, others, Wide, but=["episode_reward"] if case == "binary" else ())


@pytest.mark.parametrize("version", ["VecNorm", "VecNormV2"])
@pytest.mark.parametrize("decay", [0.9999, 0.9, 0.3])
@pytest.mark.parametrize("keys", [["observation"], ["observation", "reward"]])
@pytest.mark.filterwarnings("ignore")
def test_running_statistics_are_those_of_torchrl(
    version: str, decay: float, keys: list[str]
) -> None:
    mine, others = (
        getattr(module, version)(in_keys=keys, decay=decay, eps=1e-2) for module in (ours, theirs)
    )
    # TorchRL corrects means in float32, where exponentials of two libraries may differ in the last
    # digit.
    far = {"rtol": 2e-5, "atol": 2e-5} if version == "VecNormV2" else {"rtol": 1e-6, "atol": 1e-6}
    env, other = compare(mine, others, Wide, **far)
    saved, expected = mine.state_dict(), others.state_dict()
    assert saved.keys() == expected.keys()
    for name, value in expected["_extra_state"].items():
        torch.testing.assert_close(
            saved["_extra_state"][name], value, rtol=1e-5, atol=1e-6, msg=name
        )
    assert len(saved["_extra_state"]) == len(expected["_extra_state"])
    torch.testing.assert_close(
        mine.loc["observation"], others.loc["observation"], rtol=2e-5, atol=1e-5
    )
    torch.testing.assert_close(
        mine.scale["observation"], others.scale["observation"], rtol=2e-5, atol=1e-5
    )
    # Both go on from each other's state.
    for one in (mine, others):
        one.freeze()
    others.load_state_dict(saved)
    assert_same(*play(env, other, seed=5), **far)
    moved = {name: value + 1 for name, value in expected["_extra_state"].items()}
    mine.load_state_dict({**expected, "_extra_state": moved})
    for name, value in mine.state_dict()["_extra_state"].items():
        torch.testing.assert_close(value, moved[name], rtol=1e-6, atol=0)


@pytest.mark.parametrize("sampling", [0, 1, 2])
@pytest.mark.parametrize("intervals", [4, torch.tensor([3, 6])])
@pytest.mark.parametrize("categorical", [True, False])
def test_choices_stand_for_the_numbers_of_torchrl(
    sampling: int, intervals: Any, categorical: bool
) -> None:
    class Told(Wide):
        def step(self, action: Any) -> Any:
            seen, reward, *flags = super().step(action)
            return np.concatenate([seen[2:], action]), reward, *flags

    transforms = [
        module.ActionDiscretizer(
            intervals, out_action_key="choice", sampling=sampling, categorical=categorical
        )
        for module in (ours, theirs)
    ]
    worlds = [Told(), Told()]
    mine = ours.TransformedEnv(ours.GymWrapper(worlds[0]), transforms[0])
    others = theirs.TransformedEnv(theirs.GymWrapper(worlds[1]), transforms[1])
    for world in worlds:
        world.reset(seed=0)
    roots = [mine.reset(), others.reset()]
    for _ in range(30):
        choice = others.rand_action(roots[1].clone())["choice"]
        frames = []
        for which, env in enumerate((mine, others)):
            frame, roots[which] = env.step_and_maybe_reset(
                roots[which].set("choice", choice if which else choice.to(torch.int64))
            )
            frames.append(frame.select("observation", ("next", "observation"), ("next", "reward")))
        assert_same(*frames)


class Halved(ours.RewardScaling):
    def __init__(self) -> None:
        super().__init__(0.0, 0.5)


class Paired(ours.CatFrames):
    def __init__(self) -> None:
        super().__init__(2, -1, in_keys=["observation"])


def test_a_class_that_is_derived_stands_for_the_transform_of_its_base() -> None:
    env = ours.TransformedEnv(ours.GymEnv("CartPole-v1"), ours.Compose(Halved(), Paired()))
    frames = env.rollout(3)
    assert frames["observation"].shape == (3, 8)
    assert frames["next", "reward"].flatten().tolist() == [0.5] * 3
