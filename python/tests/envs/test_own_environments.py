"""Environments that users write as TorchRL's tutorials do, with classes of
``windrow.torchrl.envs``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

torchrl = pytest.importorskip("torchrl")

from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded

import windrow.envs as ours
import windrow.torchrl
from windrow.collectors import Collector, MultiSyncCollector
from windrow.torchrl.envs import (
    CatTensors,
    EnvBase,
    GymEnv,
    StepCounter,
    Transform,
    TransformedEnv,
    UnsqueezeTransform,
    check_env_specs,
)


class Fall(EnvBase):
    """A state that falls by the action: differentiable, for any batch size, with parameters in the
    TensorDict.
    """

    batch_locked = False

    def __init__(self, start: float = 1.0, seed: int | None = None, device: Any = "cpu") -> None:
        super().__init__(device=device, batch_size=[])
        self.start = start
        params = Composite(g=Unbounded((), device=device), shape=())
        self.observation_spec = Composite(x=Unbounded((), device=device), params=params, shape=())
        self.state_spec = self.observation_spec.clone()
        self.action_spec = Bounded(-1, 1, (1,), device=device)
        self.reward_spec = Unbounded((1,), device=device)
        self.set_seed(0 if seed is None else seed)

    def gen_params(self, batch_size: Any = ()) -> TensorDictBase:
        return TensorDict(
            {"params": TensorDict({"g": torch.full(tuple(batch_size), 2.0)}, batch_size)},
            batch_size,
        )

    def _reset(self, tensordict: Any) -> Any:
        if tensordict is None or tensordict.is_empty():
            tensordict = self.gen_params(self.batch_size)
        shape = tensordict.shape
        return TensorDict(
            {"x": torch.full(shape, self.start), "params": tensordict["params"]}, shape
        )

    def _step(self, tensordict: Any) -> Any:
        x = tensordict["x"] - tensordict["params", "g"] * tensordict["action"].squeeze(-1)
        shape = tensordict.shape
        done = torch.zeros((*shape, 1), dtype=torch.bool)
        return TensorDict(
            {
                "x": x,
                "params": tensordict["params"],
                "reward": -x.square().unsqueeze(-1),
                "done": done,
            },
            shape,
        )

    def _set_seed(self, seed: int | None) -> None:
        self.rng = torch.manual_seed(seed)


class Masked(EnvBase):
    """Of four actions, the one that the number of steps names is legal."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(action_mask=Binary(4, dtype=torch.bool))
        self.action_spec = Categorical(4)
        self.reward_spec = Unbounded((1,))
        self.number = 0

    def _seen(self) -> dict[str, Any]:
        return {"action_mask": torch.arange(4) == self.number % 4}

    def _reset(self, tensordict: Any) -> Any:
        self.number = 0
        return TensorDict(self._seen())

    def _step(self, tensordict: Any) -> Any:
        self.number += 1
        return TensorDict(
            {**self._seen(), "reward": torch.ones(1), "done": torch.zeros(1, dtype=torch.bool)}
        )

    def _set_seed(self, seed: int | None) -> None:
        pass


def test_it_is_an_environment_of_torchrl() -> None:
    env = Fall()
    assert isinstance(env, EnvBase) and isinstance(env, torchrl.envs.EnvBase)
    assert not isinstance(env, ours.EnvBase)
    check_env_specs(env)
    assert env.rollout(3).shape == (3,)


@pytest.mark.parametrize("kind", ["EnvBase", "Transform", "StepCounter", "TransformedEnv"])
def test_a_class_of_the_stand_in_has_instances_of_both_packages(kind: str) -> None:
    own, both, theirs = (
        getattr(package.envs, kind) for package in (windrow, windrow.torchrl, torchrl)
    )
    members: list[Any] = [ours.StepCounter(), torchrl.envs.StepCounter(), 3]
    members += [ours.TransformedEnv(GymEnv("Pendulum-v1")), torchrl.envs.TransformedEnv(Fall())]
    for member in members:
        assert isinstance(member, both) == (isinstance(member, own) or isinstance(member, theirs))
    assert not any(isinstance(member, own) and isinstance(member, theirs) for member in members)


@pytest.mark.parametrize(
    ("base", "method", "way"),
    [
        (ours.EnvBase, "_step", "windrow.torchrl.envs.EnvBase"),
        (ours.EnvBase, "helper", "windrow.torchrl.envs.EnvBase"),
        (ours.Transform, "_apply_transform", "windrow.torchrl.envs.Transform"),
        (ours.GymEnv, "_step", "windrow.torchrl.envs.GymEnv"),
        (ours.StepCounter, "_call", "windrow.torchrl.envs.StepCounter"),
    ],
)
def test_a_class_whose_methods_windrow_never_calls_is_refused(
    base: type, method: str, way: str
) -> None:
    with pytest.raises(TypeError, match=rf"Own derives from {base.__name__}.* from {way},"):
        type("Own", (base,), {method: lambda self: None, "__module__": __name__})


def test_models_of_the_world_go_into_the_stand_ins_class() -> None:
    with pytest.raises(ValueError, match=r"batch_locked=False.*; windrow\.torchrl\.envs\.Transf"):
        ours.TransformedEnv(Fall(), ours.StepCounter())


def test_states_of_any_batch_size_are_stepped() -> None:
    env = Fall()
    begun = env.reset(env.gen_params(batch_size=[10]))
    assert env.rand_step(begun)["next", "x"].shape == (10,)
    assert env.rollout(5, auto_reset=False, tensordict=env.reset(env.gen_params([3]))).shape == (
        3,
        5,
    )


@pytest.mark.filterwarnings("ignore:.* is a transform of TorchRL's")
def test_gradients_flow_through_transforms() -> None:
    class Shifted(Transform):
        def _apply_transform(self, obs: torch.Tensor) -> torch.Tensor:
            return obs + 1

        def _reset(self, tensordict: Any, tensordict_reset: Any) -> Any:
            return self._call(tensordict_reset)

        def transform_observation_spec(self, observation_spec: Any) -> Any:
            observation_spec["y"] = observation_spec["x"].clone()
            return observation_spec

    env = TransformedEnv(Fall(), StepCounter())
    env.append_transform(Shifted(in_keys=["x"], out_keys=["y"]))
    env.append_transform(UnsqueezeTransform(-1, in_keys=["x", "y"], out_keys=["x1", "y1"]))
    env.insert_transform(3, CatTensors(["x1", "y1"], out_key="both"))
    assert isinstance(env, TransformedEnv) and isinstance(env, torchrl.envs.TransformedEnv)
    check_env_specs(env)
    weight = torch.zeros((), requires_grad=True)

    def policy(tensordict: Any) -> Any:
        return tensordict.set("action", weight * tensordict["y"].unsqueeze(-1))

    played = env.rollout(4, policy, auto_reset=False, tensordict=env.reset(env.gen_params([6])))
    assert env.observation_spec["both"].shape == (2,) and torch.equal(
        played["both"], torch.stack([played["x"], played["y"]], -1)
    )
    assert played.shape == (6, 4) and played["step_count"][0].flatten().tolist() == [0, 1, 2, 3]
    (-played["next", "reward"].mean()).backward()
    assert weight.grad is not None and float(weight.grad) < 0


def test_collectors_take_it() -> None:
    with Collector(Fall(3.0), None, frames_per_batch=10, total_frames=10) as collector:
        (batch,) = collector
    torch.testing.assert_close(batch["next", "x"], batch["x"] - 2 * batch["action"].squeeze(-1))
    with MultiSyncCollector(
        [Masked, Masked], None, frames_per_batch=40, total_frames=40
    ) as collector:
        (batch,) = collector
    assert batch.shape == (40,)


@pytest.mark.filterwarnings("ignore:.* is a transform of TorchRL's")
def test_masks_are_obeyed_inside_and_around() -> None:
    masked = torchrl.envs.TransformedEnv(Masked(), torchrl.envs.ActionMask())
    env = TransformedEnv(TransformedEnv(masked, StepCounter()), torchrl.envs.RemoveEmptySpecs())
    for played in (env.rollout(12), next(Collector(env, None, frames_per_batch=12))):
        assert played["action"].tolist() == [0, 1, 2, 3] * 3 and played[
            "step_count"
        ].flatten().tolist() == list(range(12))


def test_a_class_derived_from_the_stand_ins_is_windrows_until_it_steps_itself() -> None:
    class Named(GymEnv):
        def __init__(self) -> None:
            super().__init__("Pendulum-v1", backend="native")

    class Stepped(GymEnv):
        def _step(self, tensordict: Any) -> Any:
            return super()._step(tensordict).set("mark", torch.ones(1))  # type: ignore[misc]

    assert not issubclass(Named, torchrl.envs.EnvBase) and Named().rollout(2).shape == (2,)
    assert issubclass(Stepped, torchrl.envs.GymEnv) and not issubclass(Stepped, ours.EnvBase)
    env = Stepped("Pendulum-v1")
    assert env.rand_step(env.reset())["next", "mark"].item() == 1


@pytest.mark.parametrize("package", ["data", "data.replay_buffers", "envs"])
def test_modules_of_a_package_are_windrows_in_any_order_of_imports(package: str) -> None:
    folder = Path(ours.__file__).parents[1].joinpath(*package.split("."))
    names = [path.stem for path in folder.glob("[!_]*.py")]
    for name in names:
        # One of them is called as a function in it is.
        program = f"from windrow.{package} import {name} as it; assert 'windrow.{package}.{name}' in (it.__name__, getattr(it, '__module__', '')), it"
        subprocess.run([sys.executable, "-c", program], check=True)


def test_closed_members_are_made_again() -> None:
    env = TransformedEnv(ours.SerialEnv(1, lambda: GymEnv("Pendulum-v1")), StepCounter())
    env.rollout(2)
    env.close()
    assert env.is_closed and env.rollout(2).shape == (1, 2) and not env.is_closed
