"""Arguments that nobody knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from cartpole import cartpole
from windrow.collectors import (
    AsyncBatchedCollector,
    AsyncCollector,
    BaseCollector,
    Collector,
    Evaluator,
    MultiAsyncCollector,
    MultiCollector,
    MultiSyncCollector,
)
from windrow.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    ReplayBuffer,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from windrow.envs import ParallelEnv, SerialEnv

COLLECTORS = [
    BaseCollector,
    Collector,
    AsyncCollector,
    AsyncBatchedCollector,
    MultiSyncCollector,
    MultiAsyncCollector,
]

#: What is called, which argument is misspelt, and what it may have been meant to be.
MISSPELT: list[tuple[Callable[..., Any], str, str | None]] = [
    *((kind, "frames_per_bach", "frames_per_batch") for kind in COLLECTORS),
    *((kind, "total_frame", "total_frames") for kind in COLLECTORS),
    (MultiSyncCollector, "num_worker", "num_workers"),
    (MultiSyncCollector, "no_cuda_synch", "no_cuda_sync"),
    (MultiCollector, "frames_per_bach", None),
    (Collector, "colour", None),
    (Evaluator, "polciy", "policy"),
    (Evaluator, "num_trajectory", "num_trajectories"),
    (ReplayBuffer, "batchsize", "batch_size"),
    (TensorDictReplayBuffer, "priority_keys", "priority_key"),
    (
        lambda **given: TensorDictPrioritizedReplayBuffer(alpha=0.5, beta=0.5, **given),
        "batchsize",
        "batch_size",
    ),
    (SliceSampler, "slice_length", "slice_len"),
    (SliceSamplerWithoutReplacement, "drop_lasts", "drop_last"),
    (lambda **given: PrioritizedSampler(100, 0.5, 0.5, **given), "colour", None),
    (
        lambda **given: PrioritizedSliceSampler(100, 0.5, 0.5, slice_len=3, **given),
        "cache_value",
        "cache_values",
    ),
    (lambda **given: LazyTensorStorage(100, **given), "devices", "device"),
    (lambda **given: LazyMemmapStorage(100, **given), "scratchdir", "scratch_dir"),
    (lambda **given: ListStorage(100, **given), "colour", None),
    (lambda **given: SerialEnv(2, cartpole, **given), "create_env_kwarg", "create_env_kwargs"),
    (lambda **given: ParallelEnv(2, cartpole, **given), "num_thread", "num_threads"),
]


@pytest.mark.parametrize(("make", "misspelt", "meant"), MISSPELT)
def test_a_misspelt_argument_is_named_before_anything_else(
    make: Callable[..., Any], misspelt: str, meant: str | None
) -> None:
    given: list[Any] = [cartpole] if make in (*COLLECTORS, MultiCollector, Evaluator) else []
    sync = {"sync": True} if make is MultiCollector else {}
    hint = rf" \(did you mean {meant}\?\)$" if meant else ""
    with pytest.raises(TypeError, match=rf"argument '?{misspelt}'?{hint}"):
        make(*given, **sync, **{misspelt: 3})


def test_every_unknown_argument_is_named() -> None:
    with pytest.raises(
        TypeError, match=r"^Evaluator has no argument colour, seeds \(did you mean seed\?\)$"
    ):
        Evaluator(cartpole, nn.Linear(4, 2), seeds=3, colour="red")


def test_a_misspelt_sync_is_named() -> None:
    with pytest.raises(TypeError, match="needs sync=True or sync=False, got snyc"):
        MultiCollector([cartpole], frames_per_batch=10, snyc=True)
