"""Environments and servers of ``windrow.torchrl`` keep TorchRL's word."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import torchrl.collectors
import torchrl.envs
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.envs import GymEnv as TorchRLGymEnv, SerialEnv as TorchRLSerialEnv
from torchrl.modules.inference_server import InferenceServerConfig, MPTransport, ThreadingTransport

import windrow.envs
from windrow.torchrl.envs import (
    AsyncEnvPool,
    Compose,
    GymEnv,
    ParallelEnv,
    RewardScaling,
    SerialEnv,
    StepCounter,
    ThreadingAsyncEnvPool,
    TransformedEnv,
)
from windrow.torchrl.modules import InferenceServer


@pytest.mark.parametrize("kind", [SerialEnv, ParallelEnv])
def test_environments_of_several_have_torchrls_batch_size(kind: Any) -> None:
    def several(serial: Any, gym: Any) -> Any:
        return lambda: serial(3, lambda: gym("CartPole-v1"))

    theirs = TorchRLSerialEnv(2, several(TorchRLSerialEnv, TorchRLGymEnv))
    for ours in (
        kind(2, several(SerialEnv, GymEnv)),
        TransformedEnv(kind(2, several(SerialEnv, GymEnv)), StepCounter()),
    ):
        assert ours.batch_size == theirs.batch_size == (2, 3)
        assert (
            ours.observation_spec["observation"].shape
            == theirs.observation_spec["observation"].shape
        )
        rollout = ours.rollout(4, break_when_any_done=False)
        assert rollout.shape == (2, 3, 4) and rollout["next", "reward"].shape == (2, 3, 4, 1)
        reset = ours.reset(TensorDict({"_reset": torch.ones(2, 3, 1, dtype=torch.bool)}, [2, 3]))
        assert reset.shape == (2, 3)


def test_environments_in_lockstep_keep_their_batch_size() -> None:
    env = SerialEnv(3, lambda: GymEnv("CartPole-v1"))
    assert env.batch_size == (3,) and env.rollout(2).shape == (3, 2)


def policy() -> Any:
    return TensorDictModule(torch.nn.Linear(4, 2), in_keys=["observation"], out_keys=["action"])


def test_a_server_answers_the_clients_of_a_transport() -> None:
    transport, request = ThreadingTransport(), TensorDict({"observation": torch.zeros(4)})
    model = policy()
    with InferenceServer(
        model, transport, server_config=InferenceServerConfig(max_batch_size=4)
    ) as server:
        assert server.max_batch_size == 4
        for answer in (
            transport.client()(request),
            transport.client().submit(request).result(),
            server.client().submit(request).result(),
        ):
            torch.testing.assert_close(answer["action"], model.module.bias.detach())
        with pytest.raises(Exception, match="observation"):
            transport.client()(TensorDict({"nowhere": torch.zeros(4)}))
        assert server.stats()["requests"] == 4


def ask(client: Any, answers: Any) -> None:
    answers.put(client(TensorDict({"observation": torch.zeros(4)}))["action"].tolist())


def test_a_server_answers_processes_through_a_transport() -> None:
    context = multiprocessing.get_context("spawn")
    transport, answers = MPTransport(ctx=context), context.Queue()
    client, model = transport.client(), policy()
    with InferenceServer(model, transport):
        process = context.Process(target=ask, args=(client, answers))
        process.start()
        assert answers.get(timeout=120) == pytest.approx(model.module.bias.tolist())
        process.join()


def test_a_configuration_stands_for_arguments() -> None:
    with pytest.raises(ValueError, match="server_config stands for timeout: give one of them"):
        InferenceServer(policy(), timeout=1.0, server_config=InferenceServerConfig())


def test_a_scale_that_is_changed_in_place_is_followed() -> None:
    scaling = RewardScaling(loc=0.0, scale=2.0)
    env = TransformedEnv(GymEnv("CartPole-v1"), scaling)
    assert env.rollout(2)["next", "reward"].flatten().tolist() == [2.0, 2.0]
    for transform in env.transform if isinstance(env.transform, Compose) else [env.transform]:
        transform.scale.fill_(1.0)
    assert env.rollout(2)["next", "reward"].flatten().tolist() == [1.0, 1.0]


def test_a_rollout_of_one_environment_ends_when_all_are_done() -> None:
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    rollout = env.rollout(500, break_when_all_done=True)
    assert rollout["next", "done"].flatten().tolist() == [False] * (len(rollout) - 1) + [True]
    with pytest.raises(TypeError, match="break_when_any_done and break_when_all_done"):
        env.rollout(2, break_when_any_done=True, break_when_all_done=True)
    with pytest.raises(ValueError, match="3 environments step together"):
        SerialEnv(3, lambda: GymEnv("CartPole-v1")).rollout(2, break_when_all_done=True)


class Slow(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        time.sleep(self.seconds)
        return np.zeros(1, np.float32), {}


def test_a_poll_gives_environments_that_were_told_just_before_a_moment() -> None:
    with AsyncEnvPool([lambda: Slow(0.01)] * 2) as pool:
        assert type(pool) is ThreadingAsyncEnvPool
        pool.async_reset_send()
        assert len(pool.async_reset_recv(min_get=1, timeout=0.0)) >= 1


def test_a_poll_does_not_wait_for_slow_environments() -> None:
    with AsyncEnvPool([lambda: Slow(1.0)]) as pool:
        pool.async_reset_send()
        with pytest.raises(TimeoutError, match="expected 1 results within"):
            pool.async_reset_recv(min_get=1, timeout=0.0)
        assert len(pool.async_reset_recv(min_get=1)) == 1


def own() -> Any:
    return windrow.envs.GymEnv("CartPole-v1")


OWN: dict[str, Any] = {
    "GymEnv": own,
    "SerialEnv": lambda: windrow.envs.SerialEnv(2, own),
    "TransformedEnv": lambda: windrow.envs.TransformedEnv(own(), windrow.envs.StepCounter()),
    "ThreadingAsyncEnvPool": lambda: windrow.envs.AsyncEnvPool([own] * 2),
    "the stand-in's": lambda: GymEnv("CartPole-v1"),
}
AROUND: dict[str, Any] = {
    "TransformedEnv": lambda make: torchrl.envs.TransformedEnv(make()).rollout(2),
    "SerialEnv": lambda make: torchrl.envs.SerialEnv(2, make).rollout(2),
    "ParallelEnv": lambda make: torchrl.envs.ParallelEnv(2, make),
    "EnvCreator": lambda make: torchrl.envs.EnvCreator(make),
    "check_env_specs": lambda make: torchrl.envs.check_env_specs(make()),
    "Collector": lambda make: next(
        iter(torchrl.collectors.Collector(make, None, frames_per_batch=4, total_frames=4))
    ),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("env", OWN)
def test_torchrls_wrappers_of_windrows_environments_name_those_that_take_them(
    env: str, around: str
) -> None:
    with pytest.raises(TypeError, match=r"torchrl expected .* got .* windrow\.torchrl\.envs"):
        AROUND[around](OWN[env])


def test_a_transform_inside_reads_what_one_outside_writes() -> None:
    def every_other(base: Any) -> Any:
        skip = torchrl.envs.ConditionalSkip(lambda frames: frames["outer"] % 2 == 1)
        inner = TransformedEnv(base, Compose(StepCounter(step_count_key="inner"), skip))
        return TransformedEnv(inner, StepCounter(step_count_key="outer"), auto_unwrap=False)

    with pytest.warns(UserWarning, match="StepCounter is .*transforms inside read what it writes"):
        env = every_other(GymEnv("Pendulum-v1"))
    rollout = env.rollout(6)
    assert rollout["outer"].flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert rollout["inner"].flatten().tolist() == [0, 1, 1, 2, 2, 3]


def test_transforms_that_nothing_inside_can_read_stay_windrows() -> None:
    with pytest.warns(UserWarning, match="auto_unwrap has no effect"):
        env = TransformedEnv(
            TransformedEnv(GymEnv("Pendulum-v1"), StepCounter()),
            RewardScaling(0.0, 2.0),
            auto_unwrap=False,
        )
    assert isinstance(env.transform, windrow.envs.RewardScaling)
