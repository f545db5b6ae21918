"""Whoever writes to a batch changes nothing but what he writes to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDictBase

from windrow.collectors import Collector, Interruptor, MultiSyncCollector
from windrow.data import MultiStep

KINDS = [
    pytest.param({}, id="frames"),
    pytest.param({"split_trajs": True}, id="pieces"),
    pytest.param({"trajs_per_batch": 3, "traj_format": "padded"}, id="padded trajectories"),
    pytest.param({"trajs_per_batch": 3, "traj_format": "cat"}, id="trajectories in a row"),
    pytest.param({"postproc": MultiStep(0.9, 3)}, id="several steps"),
]


def one(**arguments: Any) -> Collector:
    return Collector("CartPole-v1", num_envs=2, seed=0, **arguments)


def stacked(**arguments: Any) -> MultiSyncCollector:
    return MultiSyncCollector(["CartPole-v1"] * 2, seed=0, cat_results="stack", **arguments)


def leaves(batch: TensorDictBase) -> dict[Any, torch.Tensor]:
    return dict(batch.items(include_nested=True, leaves_only=True))


@pytest.mark.parametrize("arguments", KINDS)
@pytest.mark.parametrize("make", [one, stacked])
def test_later_batches_do_not_show_it(make: Any, arguments: dict[str, Any]) -> None:
    def batches(write: bool) -> list[TensorDictBase]:
        copies, held = [], []
        with make(frames_per_batch=120, total_frames=1200, **arguments) as collector:
            for number, batch in enumerate(collector):
                copies.append(batch.clone())
                if write:
                    for tensor in leaves(batch).values():
                        tensor.fill_(1)
                # The memory of some is used again, that of others is not.
                if number % 3 == 0:
                    held.append(batch)
        return copies

    left, written = batches(False), batches(True)
    assert len(left) == len(written) > 5
    assert all((a == b).all() for a, b in zip(left, written, strict=True))


@pytest.mark.parametrize("arguments", KINDS)
@pytest.mark.parametrize("make", [one, stacked])
def test_other_columns_do_not_show_it(make: Any, arguments: dict[str, Any]) -> None:
    with make(frames_per_batch=120, total_frames=1200, **arguments) as collector:
        batch = next(collector)
        for key, tensor in leaves(batch).items():
            before = batch.clone()
            tensor.copy_(~tensor if tensor.dtype == torch.bool else tensor + 1)
            for other, now in leaves(batch).items():
                assert other == key or torch.equal(now, before[other]), (
                    f"{other} shows what was written to {key}"
                )


@pytest.mark.parametrize("make", [one, stacked])
def test_a_batch_in_the_memory_of_one_that_was_cut_short_has_no_mask_of_it(make: Any) -> None:
    interruptor = Interruptor()
    with make(frames_per_batch=16, return_same_td=True, interruptor=interruptor) as collector:
        whole = set(next(collector).keys(True, True))
        interruptor.stop_collection()
        assert not next(collector)["collector", "mask"].all()
        interruptor.start_collection()
        assert set(next(collector).keys(True, True)) == whole
        assert next(collector) is next(collector)
