"""States of buffers, collectors and evaluators in files that ``torch.load`` reads without trusting
them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from cartpole import cartpole, in_threads
from windrow.collectors import (
    AsyncCollector,
    Collector,
    Evaluator,
    MultiAsyncCollector,
    MultiSyncCollector,
)
from windrow.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    RateLimiter,
    ReplayBuffer,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
)

SAMPLERS = {
    "random": RandomSampler,
    "without replacement": SamplerWithoutReplacement,
    "priorities": lambda: PrioritizedSampler(100, 0.7, 0.9),
    "slices": lambda: SliceSampler(slice_len=2),
    "slices without replacement": lambda: SliceSamplerWithoutReplacement(slice_len=2),
    "slices by priority": lambda: PrioritizedSliceSampler(100, 0.7, 0.9, slice_len=2),
}


def frames(count: int = 40) -> TensorDict:
    done = torch.zeros(count, 1, dtype=torch.bool)
    done[4::5] = True
    return TensorDict(
        {
            "number": torch.arange(count),
            "next": TensorDict(
                {"done": done, "reward": torch.arange(count).float().unsqueeze(-1)}, [count]
            ),
            "agents": TensorDict({"position": torch.rand(count, 3, 2)}, [count, 3]),
        },
        [count],
    )


def reloaded(state: Any, tmp_path: Path) -> Any:
    torch.save(state, tmp_path / "state.pt")
    return torch.load(tmp_path / "state.pt", weights_only=True)


def check_goes_on(build: Any, tmp_path: Path) -> None:
    """Whether a buffer goes on from a file as the one that it was saved of."""
    buffer, other = build(), build()
    buffer.extend(frames())
    buffer.sample()
    other.load_state_dict(reloaded(buffer.state_dict(), tmp_path))
    assert (other[:] == buffer[:]).all()
    assert other.stats() == buffer.stats()
    mine, its = buffer.sample(), other.sample()
    assert (mine == its).all() and mine["agents"].batch_size == its["agents"].batch_size


@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage, ListStorage])
def test_a_buffer(storage: Any, sampler: str, kind: Any, tmp_path: Path) -> None:
    check_goes_on(
        lambda: kind(storage=storage(100), sampler=SAMPLERS[sampler](), batch_size=8, seed=0),
        tmp_path,
    )


@pytest.mark.parametrize("writer", [RoundRobinWriter, TensorDictMaxValueWriter])
@pytest.mark.parametrize("sampler", ["random", "without replacement", "priorities"])
def test_a_buffer_that_is_full(sampler: str, writer: Any, tmp_path: Path) -> None:
    limiter = RateLimiter.min_size(5)
    storage = LazyTensorStorage(17)
    check_goes_on(
        lambda: ReplayBuffer(
            storage=storage,
            sampler=SAMPLERS[sampler](),
            writer=writer(),
            limiter=limiter,
            batch_size=8,
            seed=0,
        ),
        tmp_path,
    )


def test_a_buffer_without_frames(tmp_path: Path) -> None:
    other = ReplayBuffer(storage=LazyTensorStorage(10))
    other.extend(frames(3))
    other.load_state_dict(
        reloaded(ReplayBuffer(storage=LazyTensorStorage(10)).state_dict(), tmp_path)
    )
    assert len(other) == 0 and other.write_count == 0


def test_a_state_as_a_tensordict_is_read_too() -> None:
    buffer, other = (ReplayBuffer(storage=ListStorage(100), batch_size=4, seed=0) for _ in range(2))
    buffer.extend(frames())
    other.load_state_dict(buffer._core.state_dict())
    assert (other.sample() == buffer.sample()).all()


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        (None, TypeError, "expected the state_dict of a buffer, got builtins.NoneType"),
        ({}, ValueError, "of a buffer of windrow, with 'rows'; it has nothing"),
        ({"_storage": {}, "_writer": {}}, ValueError, "with 'rows'; it has _storage, _writer"),
    ],
)
def test_what_is_no_state_is_refused(state: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ReplayBuffer(storage=LazyTensorStorage(10)).load_state_dict(state)


def test_a_state_that_lacks_frames_is_refused() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100))
    buffer.extend(frames())
    state = buffer.state_dict()
    state["frames"]["number"] = state["frames"]["number"][:7]
    with pytest.raises(ValueError, match="expected 40 frames in the state_dict"):
        buffer.load_state_dict(state)
    assert len(buffer) == 40


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize(
    "kind", [Collector, AsyncCollector, MultiSyncCollector, MultiAsyncCollector]
)
def test_a_collector(kind: Any, backend: str, network: torch.nn.Module, tmp_path: Path) -> None:
    def make() -> Any:
        envs = [cartpole] * 2 if kind in (MultiSyncCollector, MultiAsyncCollector) else cartpole
        return kind(
            envs,
            network,
            policy_backend=backend,
            frames_per_batch=20,
            total_frames=60,
            **in_threads(kind),
        )

    with make() as collector, make() as other:
        next(collector)
        other.load_state_dict(reloaded(collector.state_dict(), tmp_path))
        assert other.stats()["frames"] == 20
        assert sum(batch.numel() for batch in other) == 40


def test_a_collector_of_an_environment_with_statistics(tmp_path: Path) -> None:
    envs = pytest.importorskip("torchrl.envs")

    def make() -> Any:
        env = envs.TransformedEnv(envs.GymEnv("Pendulum-v1"), envs.VecNorm(in_keys=["observation"]))
        return Collector(env, frames_per_batch=20)

    with make() as collector, make() as other:
        next(collector)
        state = reloaded(collector.state_dict(), tmp_path)
        assert state["env_state_dict"]
        other.load_state_dict(state)


def test_an_evaluator(tmp_path: Path) -> None:
    with Evaluator(
        cartpole, lambda td: td.set("action", torch.zeros(2)), num_trajectories=1
    ) as evaluator:
        evaluator.evaluate()
        assert reloaded(evaluator.state_dict(), tmp_path) == evaluator.state_dict()
