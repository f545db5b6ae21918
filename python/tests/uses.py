"""Uses of the package as users write them, which type checkers read and nobody runs; behind each
``reveal_type`` stands the type that a checker shows.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import reveal_type

import gymnasium
import torch
from torch import nn

import windrow
from windrow.collectors import (
    AsyncBatchedCollector,
    AsyncCollector,
    Collector,
    Evaluator,
    MultiAsyncCollector,
    MultiCollector,
    MultiSyncCollector,
)
from windrow.data import LazyTensorStorage, ReplayBuffer, SliceSampler
from windrow.envs import Compose, GymEnv, ParallelEnv, RewardSum, StepCounter, TransformedEnv
from windrow.modules import InferenceServer, RandomPolicy, export_onnx


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 32), nn.Tanh(), nn.Linear(32, outputs))


own = partial(gymnasium.make, "CartPole-v1")
policy = network(4, 2)
collector = Collector("CartPole-v1", policy, frames_per_batch=100, total_frames=-1, num_envs=4)
reveal_type(collector)  # Collector
for batch in collector:
    reveal_type(batch)  # TensorDictBase
    reveal_type(batch["action"])  # TensorDictBase | Tensor | Unknown | Any
    reveal_type(batch["next", "reward"])  # TensorDictBase | Tensor | Unknown | Any
    break
reveal_type(next(collector))  # TensorDictBase
reveal_type(collector.next())  # TensorDictBase | None
reveal_type(collector.stats())  # dict[str, Any]
reveal_type(collector.state_dict())  # dict[str, Any]
reveal_type(collector.policy_version)  # int
reveal_type(collector.policy_backend)  # str
reveal_type(collector.shutdown())  # None
reveal_type(collector.update_policy_weights_())  # None
reveal_type(collector.set_seed(3))  # int
reveal_type(collector.frames_per_batch)  # int
with Collector(own, None, frames_per_batch=10) as closing:
    reveal_type(closing)  # Collector
reveal_type(
    list(Collector(lambda: own(), policy, frames_per_batch=10, total_frames=20))
)  # list[TensorDictBase]
several = MultiSyncCollector([partial(GymEnv, "CartPole-v1")] * 2, policy, frames_per_batch=100)
reveal_type(several)  # MultiSyncCollector
reveal_type(
    MultiAsyncCollector("CartPole-v1", policy, num_workers=2, frames_per_batch=100)
)  # MultiAsyncCollector
reveal_type(
    MultiCollector(["CartPole-v1"], policy, frames_per_batch=100, sync=False)
)  # MultiCollector
reveal_type(AsyncCollector("CartPole-v1", policy, frames_per_batch=100))  # AsyncCollector
reveal_type(
    AsyncBatchedCollector([own, own], policy, frames_per_batch=100)
)  # AsyncBatchedCollector
env = TransformedEnv(GymEnv("CartPole-v1"), Compose(RewardSum(), StepCounter(100)))
reveal_type(env)  # TransformedEnv
reveal_type(env.reset())  # TensorDictBase
reveal_type(env.rollout(10))  # TensorDictBase
reveal_type(env.action_spec)  # Any
reveal_type(env.transform)  # Any
reveal_type(env.batch_size)  # Size
reveal_type(env.rand_step())  # TensorDictBase
reveal_type(env.step_and_maybe_reset(env.reset()))  # tuple[TensorDictBase, TensorDictBase]
reveal_type(ParallelEnv(2, GymEnv("CartPole-v1")))  # ParallelEnv
buffer = ReplayBuffer(
    storage=LazyTensorStorage(1000), sampler=SliceSampler(slice_len=8), batch_size=32
)
reveal_type(buffer)  # ReplayBuffer
reveal_type(buffer.sample())  # TensorDictBase
reveal_type(buffer.extend(next(several)))  # Tensor
reveal_type(len(buffer))  # int
reveal_type(buffer.save(Path("folder")))  # None
evaluator = Evaluator("CartPole-v1", policy, num_trajectories=3)
reveal_type(evaluator.evaluate())  # dict[str, Any]
reveal_type(evaluator.trigger_eval())  # bool
reveal_type(evaluator.wait())  # dict[str, Any] | None
envs = windrow.make_vec("CartPole-v1", 8)
reveal_type(envs)  # VectorEnv
reveal_type(envs.reset())  # tuple[Any, dict[str, Any]]
reveal_type(envs.step([0] * 8))  # tuple[Any, Any, Any, Any, dict[str, Any]]
reveal_type(windrow.minibatches(next(several), 32, 4))  # Iterator[TensorDictBase]
reveal_type(
    windrow.generalized_advantage_estimate(
        0.99, 0.95, torch.ones(1), torch.ones(1), torch.ones(1), torch.ones(1)
    )
)  # tuple[Any, Any]
reveal_type(export_onnx(policy, "policy.onnx"))  # Any
reveal_type(InferenceServer(policy))  # InferenceServer
reveal_type(RandomPolicy())  # RandomPolicy
