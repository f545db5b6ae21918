"""What scripts read of environments, as TorchRL has it."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
import torch
from torch import nn

import windrow.envs as ours

theirs = pytest.importorskip("torchrl.envs")

SPECS = [
    f"{full}{kind}_spec{unbatched}"
    for kind in ("observation", "action", "reward", "done", "state")
    for full in ("", "full_")
    for unbatched in ("", "_unbatched")
]


def shapes(spec: Any) -> Any:
    if hasattr(spec, "items"):
        return {key: (tuple(leaf.shape), leaf.dtype) for key, leaf in spec.items(True, True)}
    return tuple(spec.shape), spec.dtype


@pytest.mark.parametrize("name", [*SPECS, "input_spec", "output_spec", "specs"])
def test_specs_are_torchrls(name: str) -> None:
    envs = [
        package.SerialEnv(2, lambda: package.GymEnv("Pendulum-v1")) for package in (ours, theirs)
    ]
    own, other = (getattr(env, name) for env in envs)
    assert shapes(own) == shapes(other)


@pytest.mark.parametrize("name", ["shape", "batch_size", "batch_dims", "ndim"])
def test_dimensions_are_torchrls(name: str) -> None:
    for number in (None, 2):
        envs = [_env(package, number) for package in (ours, theirs)]
        own, other = (getattr(env, name) for env in envs)
        assert (
            own == other
            and envs[0].numel() == envs[1].numel()
            and envs[0].ndimension() == envs[1].ndimension()
        )


def _env(package: Any, number: int | None) -> Any:
    if number is None:
        return package.GymEnv("Pendulum-v1")
    return package.SerialEnv(number, lambda: package.GymEnv("Pendulum-v1"))


def test_there_is_no_other_mode() -> None:
    env = ours.GymEnv("Pendulum-v1")
    assert env.eval() is env and env.train() is env and env.train(False) is env


@pytest.mark.parametrize("backend", ["native", "gymnasium"])
def test_one_id_makes_several(backend: str) -> None:
    env = ours.GymEnv("Pendulum-v1", num_envs=3, backend=backend)
    assert env.batch_size == (3,) and env.rollout(5).shape == (3, 5)
    with pytest.raises(ValueError, match="num_envs=2 needs an id"):
        ours.GymEnv(gymnasium.make("CartPole-v1"), num_envs=2)


def test_rollouts_call_plain_modules_with_observations() -> None:
    module = nn.Linear(3, 1)
    batch = ours.GymEnv("Pendulum-v1").rollout(5, module, auto_cast_to_device=True)
    assert torch.allclose(batch["action"], module(batch["observation"]))


def test_rollouts_mark_their_last_step() -> None:
    for package in (ours, theirs):
        batch = package.GymEnv("Pendulum-v1").rollout(
            4, set_truncated=True, return_contiguous=True, trust_policy=True
        )
        for name in ("truncated", "done"):
            assert batch["next", name].flatten().tolist() == [False, False, False, True]


def test_rollouts_call_back_after_each_step_but_the_last() -> None:
    for package in (ours, theirs):
        seen: list[Any] = []
        env = package.GymEnv("Pendulum-v1")
        batch = env.rollout(4, None, lambda env, root: seen.append((env, root["observation"])))
        assert all(caller is env for caller, _ in seen)
        assert torch.equal(
            torch.stack([observed for _, observed in seen]), batch["observation"][1:]
        )


def test_a_single_transform_is_no_compose() -> None:
    for package in (ours, theirs):
        norm = package.ObservationNorm(in_keys=["observation"])
        env = package.TransformedEnv(package.GymEnv("Pendulum-v1"), norm)
        env.transform.init_stats(20)
        assert env.transform is norm and norm.loc.shape == (3,)
        env.append_transform(package.StepCounter())
        assert [type(transform).__name__ for transform in env.transform] == [
            "ObservationNorm",
            "StepCounter",
        ]


@pytest.mark.parametrize(
    "ask",
    [
        lambda env: env.set_seed(0),
        lambda env: env.action_spec,
        lambda env: env.append_transform(ours.StepCounter()),
    ],
)
def test_asking_what_an_environment_is_estimates_nothing(ask: Any) -> None:
    norm = ours.ObservationNorm(in_keys=["observation"])
    inner = ours.TransformedEnv(ours.GymEnv("Pendulum-v1"), norm)
    env = ours.TransformedEnv(inner, ours.InitTracker())
    ask(env)
    assert env.observation_spec["observation"].shape == (3,) and not norm.initialized
    norm.init_stats(50)
    env.set_seed(0)
    batch = env.rollout(100)
    assert norm.initialized and abs(batch["observation"][:, 2].std() - 1) < 1
    with pytest.raises(RuntimeError, match="loc and scale already: .* call init_stats before that"):
        norm.init_stats(50)
