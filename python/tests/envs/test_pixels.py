"""Environments that are seen as pictures."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from windrow.collectors import Collector
from windrow.envs import GymEnv, GymWrapper, SerialEnv, check_env


class Drawn(gymnasium.Env[Any, Any]):
    """Observes the number of its steps, which is also how bright its pictures are."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = gymnasium.spaces.Box(0, 255, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None, length: int = 4) -> None:
        self.render_mode, self.length, self.steps = render_mode, length, 0

    def _seen(self) -> Any:
        return np.array([self.steps], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._seen(), 1.0, self.steps == self.length, False, {}

    def render(self) -> Any:
        return np.full((6, 8, 3), self.steps, np.uint8)


class Blind(Drawn):
    """Cannot be drawn."""

    def render(self) -> Any:
        raise RuntimeError("no screen")


class Named(Drawn):
    """Observes a dictionary."""

    observation_space = gymnasium.spaces.Dict(
        {"steps": Drawn.observation_space, "more": Drawn.observation_space}
    )

    def _seen(self) -> Any:
        return {"steps": super()._seen(), "more": super()._seen()}


for kind in (Drawn, Blind, Named):
    gymnasium.register(f"windrow/{kind.__name__}-v0", kind)


def test_pictures_take_the_place_of_observations() -> None:
    env = GymEnv("windrow/Drawn-v0", from_pixels=True)
    check_env(env)
    assert env.observation_keys == ["pixels"]
    played = env.rollout(10)
    assert (played["pixels"].dtype, played["pixels"].shape) == (torch.uint8, (4, 6, 8, 3))
    assert played["pixels"][:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert played["next", "pixels"][:, -1, -1, -1].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("pixels_only", [True, False])
@pytest.mark.parametrize("name", ["Drawn", "Named"])
def test_batches_are_those_of_torchrl(name: str, pixels_only: bool) -> None:
    import torchrl.envs as theirs

    arguments: dict[str, Any] = {"from_pixels": True, "pixels_only": pixels_only}
    played = GymEnv(f"windrow/{name}-v0", **arguments).rollout(10)
    expected = theirs.GymEnv(f"windrow/{name}-v0", **arguments).rollout(10)
    assert set(played.keys(True, True)) == set(expected.keys(True, True))
    for key in expected.exclude("action").keys(True, True):
        assert (played[key].dtype, played[key].shape) == (
            expected[key].dtype,
            expected[key].shape,
        ), key
        assert torch.equal(played[key], expected[key]), key


@pytest.mark.parametrize("placement", ["inline", "threads"])
def test_collectors_see_pictures_also_of_several_environments(placement: str) -> None:
    env = SerialEnv(2, lambda: GymEnv("windrow/Drawn-v0", from_pixels=True, pixels_only=False))
    with Collector(env, None, frames_per_batch=12, placement=placement) as collector:
        batch = next(collector)
    assert batch["pixels"].shape == (2, 6, 6, 8, 3)
    assert torch.equal(batch["pixels"][..., 0, 0, :1].float(), batch["observation"])
    assert batch["next", "pixels"][0, :, 0, 0, 0].tolist() == [1, 2, 3, 4, 1, 2]


def test_an_object_is_drawn_too() -> None:
    env = GymWrapper(Drawn("rgb_array"), from_pixels=True, pixels_only=False)
    assert env.observation_keys == ["observation", "pixels"]
    for _ in range(2):
        with Collector(env, None, frames_per_batch=4) as collector:
            assert next(collector)["next", "pixels"][:, 0, 0, 0].tolist() == [1, 2, 3, 4]


def test_what_cannot_be_drawn_says_so() -> None:
    with pytest.raises(ValueError, match="from_pixels: .*Blind.* cannot be drawn: no screen"):
        GymEnv("windrow/Blind-v0", from_pixels=True).reset()
    with pytest.raises(ValueError, match="cannot be drawn: .*render_mode"):
        GymWrapper(Drawn(), from_pixels=True).reset()
    with pytest.raises(ValueError, match='from_pixels needs backend="gymnasium"'):
        GymEnv("CartPole-v1", from_pixels=True, backend="native")
    vector = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    with pytest.raises(ValueError, match="give from_pixels to single environments"):
        GymWrapper(vector, from_pixels=True).reset()


class Seeing(Drawn):
    """Observes pictures by itself."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)

    def _seen(self) -> Any:
        return np.full(self.observation_space.shape, self.steps, np.uint8)


@pytest.mark.parametrize(
    ("shape", "key"), [((6, 8, 3), "pixels"), ((6, 8), "observation"), ((3, 6, 8), "observation")]
)
def test_a_picture_has_the_name_that_torchrl_gives_it(shape: tuple[int, ...], key: str) -> None:
    theirs = pytest.importorskip("torchrl.envs")
    assert list(theirs.GymWrapper(Seeing(*shape)).observation_spec.keys()) == [key]
    env = GymWrapper(Seeing(*shape))
    assert env.observation_keys == [key]
    batch = next(Collector(env, frames_per_batch=4))
    assert (batch[key].dtype, batch[key].shape) == (torch.uint8, (4, *shape))
    assert batch["next", key].flatten(1)[:, 0].tolist() == [1, 2, 3, 4]
    vector = gymnasium.vector.SyncVectorEnv([lambda: Seeing(*shape)] * 2)
    assert next(Collector(GymWrapper(vector), frames_per_batch=8))[key].shape == (2, 4, *shape)


def test_cartpole_is_drawn_where_it_can_be() -> None:
    env = GymEnv("CartPole-v1", from_pixels=True)
    assert env.backend == "gymnasium"
    try:
        import pygame  # noqa: F401
    except ImportError:
        with pytest.raises(ValueError, match="cannot be drawn: .*pygame"):
            env.reset()
    else:
        assert env.reset()["pixels"].shape == (400, 600, 3)


class Painted(Drawn):
    """Observes pictures, which are smaller than those that are drawn of it."""

    observation_space = gymnasium.spaces.Box(0, 255, (2, 4, 3), np.uint8)

    def _seen(self) -> Any:
        return np.full((2, 4, 3), self.steps, np.uint8)


@pytest.mark.parametrize("from_pixels", [False, True])
def test_what_is_a_picture_already_is_called_so(from_pixels: bool) -> None:
    env = GymWrapper(Painted("rgb_array"), from_pixels=from_pixels)
    check_env(env)
    batch = next(Collector(env, None, frames_per_batch=8))
    assert "observation" not in batch.keys()
    assert batch["pixels"].shape == (8, 2, 4, 3)
    assert batch["pixels"][:, 0, 0, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert batch["next", "pixels"][:, -1, -1, -1].tolist() == [1, 2, 3, 4, 1, 2, 3, 4]


def test_pictures_have_the_name_and_numbers_the_shape_that_torchrl_gives_them() -> None:
    theirs = pytest.importorskip("torchrl.envs")
    collectors = pytest.importorskip("torchrl.collectors")

    class Scalar(Drawn):
        observation_space = gymnasium.spaces.Box(-1, 9, (), np.float32)

        def _seen(self) -> Any:
            return np.array(self.steps, np.float32)

    for make in Painted, Scalar:
        ours_ = next(Collector(GymWrapper(make()), None, frames_per_batch=8))
        batch = next(
            iter(
                collectors.Collector(
                    theirs.GymWrapper(make()), None, frames_per_batch=8, total_frames=8
                )
            )
        )
        assert {key: value.shape for key, value in ours_.items(True, True)} == {
            key: value.shape for key, value in batch.items(True, True)
        }
