"""What no array holds, from several workers, in trajectories, through postprocessing and replay
buffers; and that it is let go of.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

torchrl = pytest.importorskip("torchrl")

import torchrl.data as theirs
from tensordict import LazyStackedTensorDict, TensorDict

import windrow.data as ours
from telling import Dying, Growing, Raising, Reader, Telling, Varying, agrees, told
from waiting import until
from windrow.collectors import (
    AsyncBatchedCollector,
    AsyncCollector,
    Collector,
    Evaluator,
    MultiAsyncCollector,
    MultiSyncCollector,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:environments written in Python share:UserWarning"),
    pytest.mark.filterwarnings("ignore:environments run in threads:UserWarning"),
]


def lengths(batch: Any, *side: str) -> list[int]:
    """How long the changing tensor of each frame is, after a look at its numbers."""
    found = [frame[(*side, "data", "past")] for frame in batch.reshape(-1).unbind(0)]
    assert all((one == len(one)).all() for one in found)
    return [len(one) for one in found]


@pytest.mark.parametrize("placement", ["threads", "processes"])
@pytest.mark.parametrize("kind", [AsyncCollector, MultiSyncCollector, MultiAsyncCollector])
def test_workers_bring_them(kind: Any, placement: str) -> None:
    several = {} if kind is AsyncCollector else {"num_workers": 2}
    with kind(
        Telling, Reader(), frames_per_batch=14, total_frames=280, placement=placement, **several
    ) as collector:
        for batch in collector:
            assert agrees(batch) and torch.equal(batch["read"], batch["data", "count"].long())
    with kind(
        Growing, None, frames_per_batch=14, total_frames=140, placement=placement, **several
    ) as collector:
        for batch in collector:
            assert lengths(batch) == [
                count + 1 for count in batch["data", "count"].flatten().tolist()
            ]
            assert lengths(batch, "next") == [
                count + 1 for count in batch["next", "data", "count"].flatten().tolist()
            ]


def test_the_same_from_any_number_of_workers() -> None:
    def first(workers: int, placement: str) -> list[Any]:
        with MultiSyncCollector(
            [Telling] * workers,
            None,
            frames_per_batch=28,
            num_envs=4 // workers,
            placement=placement,
        ) as collector:
            return told(next(collector))

    assert (
        first(1, "threads")
        == first(2, "threads")
        == first(4, "processes")
        == [f"{1 + step // 5} {step % 5}" for step in range(7)] * 4
    )


def test_environments_that_ask_one_policy() -> None:
    for batch in AsyncBatchedCollector(
        [Telling, Telling], Reader(), frames_per_batch=14, total_frames=42
    ):
        assert agrees(batch) and torch.equal(batch["read"], batch["data", "count"].long())


def test_values_of_environments_that_wait_are_kept() -> None:
    # The first episode of one environment is longer than many of the other.
    class Patient(Telling):
        def _step(self, tensordict: Any) -> Any:
            return super()._step(tensordict).set("done", self.count >= 60)

    kinds = iter([Patient, Telling])
    collector = Collector(
        lambda: next(kinds)(),
        None,
        num_envs=2,
        frames_per_batch=20,
        total_frames=240,
        trajs_per_batch=1,
    )
    batches = list(collector)
    assert max(batch.shape[-1] for batch in batches) == 60
    for batch in batches:
        mask = (
            batch["collector", "mask"]
            if ("collector", "mask") in batch.keys(True)
            else torch.ones(batch.shape, dtype=torch.bool)
        )
        assert list(told(batch)) == [
            f"{told(batch)[0].split()[0]} {step}" for step in range(int(mask.sum()))
        ]


def test_padding_has_none() -> None:
    for batch in Collector(
        Varying(), None, frames_per_batch=14, total_frames=140, trajs_per_batch=2
    ):
        mask = batch["collector", "mask"].flatten().tolist()
        numbers = batch["data", "count"].flatten().tolist()
        assert [one and int(one.split()[1]) for one in told(batch)] == [
            number if is_frame else None for number, is_frame in zip(numbers, mask, strict=True)
        ]
    batch = next(Collector(Growing(), None, frames_per_batch=7, split_trajs=True))
    assert batch.shape == (2, 5) and [
        len(frame["data", "past"]) for frame in batch[1].unbind(0)
    ] == [1, 2, 0, 0, 0]


def test_frames_that_were_not_collected_have_none() -> None:
    arguments: dict[str, Any] = {
        "preemptive_threshold": 0.5,
        "cat_results": "stack",
        "placement": "threads",
    }
    for batch in MultiSyncCollector(
        [Telling] * 3, None, frames_per_batch=21, total_frames=210, **arguments
    ):
        mask = batch["collector", "mask"].flatten().tolist()
        assert (
            [one is not None for one in told(batch)]
            == [one is not None for one in told(batch, "next")]
            == mask
        )


@pytest.mark.parametrize("placement", ["threads", "processes"])
def test_a_worker_that_is_lost_is_replaced(placement: str) -> None:
    lost = Dying if placement == "processes" else Raising
    with MultiSyncCollector(
        [lost, Telling],
        None,
        frames_per_batch=14,
        total_frames=420,
        placement=placement,
        on_loss=100,
    ) as collector:
        assert all(agrees(batch) for batch in collector)
        assert collector.stats()["restarts"] > 5


@pytest.mark.parametrize("backend", ["thread", "process"])
@pytest.mark.parametrize("is_made", [True, False])
def test_evaluators_show_them_to_policies(backend: str, is_made: bool) -> None:
    env = Telling if is_made else Telling()
    with Evaluator(env, Reader(), num_trajectories=3, max_steps=20, backend=backend) as evaluator:
        assert evaluator.evaluate()["eval/episode_length"] == 5

    def measure(batch: Any) -> dict[str, float]:
        assert all(agrees(episode) for episode in batch.unbind(0)) and torch.equal(
            batch["read"], batch["data", "count"].long()
        )
        return {"told": float(len(set(told(batch))))}

    with Evaluator(
        env, Reader(), num_trajectories=3, max_steps=20, backend=backend, metrics_fn=measure
    ) as evaluator:
        assert evaluator.evaluate()["eval/told"] == evaluator.evaluate()["eval/told"] == 15


def test_compact_observations_have_those_before_the_step() -> None:
    batch = next(Collector(Telling(), None, frames_per_batch=7, compact_obs=True))
    assert told(batch)[:2] == ["1 0", "1 1"] and batch["next", "data"].is_empty()


def test_batches_of_every_form_have_them() -> None:
    first = Collector(Telling(), None, frames_per_batch=7)
    assert told(first.rollout()) + told(next(first)) == [
        f"{1 + step // 5} {step % 5}" for step in range(14)
    ]
    assert told(first.fake_tensordict()) == [None] * 7
    for make in Telling, Growing:
        same = Collector(make(), None, frames_per_batch=7, total_frames=21, return_same_td=True)
        assert [int(batch["data", "count"][0]) for batch in same] == [0, 2, 4]
    told_again = [
        told(batch)[0]
        for batch in Collector(
            Telling(), None, frames_per_batch=7, total_frames=21, return_same_td=True
        )
    ]
    assert told_again == ["1 0", "2 2", "3 4"]
    assert agrees(next(Collector(Telling(), None, frames_per_batch=7, device="cpu")))


def test_several_steps_as_one_lead_to_the_object_after_them() -> None:
    batch = next(Collector(Telling(), None, frames_per_batch=7, postproc=ours.MultiStep(0.9, 2)))
    assert told(batch, "next") == ["1 2", "1 3", "1 4", "1 5", "1 5", "2 2", "2 2"]
    batch = next(Collector(Growing(), None, frames_per_batch=7, postproc=ours.MultiStep(0.9, 2)))
    assert lengths(batch) == [1, 2, 3, 4, 5, 1, 2] and lengths(batch, "next") == [
        3,
        4,
        5,
        6,
        6,
        3,
        3,
    ]
    split = ours.split_trajectories(next(Collector(Telling(), None, frames_per_batch=7)))
    assert told(split) == [*(f"1 {step}" for step in range(5)), "2 0", "2 1", None, None, None]


@pytest.mark.parametrize("storage", ["ListStorage", "LazyTensorStorage"])
@pytest.mark.parametrize("package", [ours, theirs], ids=["windrow", "torchrl"])
@pytest.mark.parametrize("is_given", [True, False])
def test_replay_buffers_keep_objects(package: Any, storage: str, is_given: bool) -> None:
    buffer = package.ReplayBuffer(storage=getattr(package, storage)(100), batch_size=16)
    collector = Collector(
        Telling(),
        None,
        frames_per_batch=7,
        total_frames=21,
        replay_buffer=buffer if is_given else None,
    )
    for batch in collector:
        if not is_given:
            buffer.extend(batch)
    assert len(buffer) == 21 and agrees(buffer.sample())


@pytest.mark.parametrize("storage", ["ListStorage", "LazyTensorStorage"])
def test_replay_buffers_keep_tensors_whose_shape_changes(storage: str) -> None:
    sampler = ours.SliceSampler(slice_len=2, traj_key=("collector", "traj_ids"))
    buffer = ours.ReplayBuffer(storage=getattr(ours, storage)(50), sampler=sampler, batch_size=16)
    for _ in Collector(Growing(), None, frames_per_batch=7, total_frames=70, replay_buffer=buffer):
        pass
    sample = buffer.sample()
    assert lengths(sample) == [count + 1 for count in sample["data", "count"].flatten().tolist()]
    assert lengths(sample, "next") == [length + 1 for length in lengths(sample)]
    assert len(buffer) == 50 and len(buffer[0]["data", "past"]) == buffer[0]["data", "count"] + 1
    single = ours.ReplayBuffer(storage=getattr(ours, storage)(50), batch_size=4)
    single.extend(
        LazyStackedTensorDict(*(TensorDict({"x": torch.ones(length)}) for length in (1, 2, 3)))
    )
    assert all(
        (frame["x"] == 1).all() and 1 <= len(frame["x"]) <= 3 for frame in single.sample().unbind(0)
    )


def test_writing_in_the_background() -> None:
    buffer = ours.ReplayBuffer(storage=ours.LazyTensorStorage(1000), batch_size=32)
    collector = MultiAsyncCollector(
        [Telling] * 2, None, frames_per_batch=7, total_frames=140, replay_buffer=buffer
    )
    collector.start()
    until(lambda: buffer.write_count == 140)
    collector.async_shutdown()
    assert len(buffer) == 140 and agrees(buffer.sample())


class Own:
    """A class of a test, which a worker process gets with the environment."""

    def __init__(self, number: int) -> None:
        self.number = number


class Stubborn(Own):
    def __reduce__(self) -> Any:
        raise ValueError("not to be pickled")


def test_objects_are_pickled() -> None:
    class Showing(Telling):
        def __init__(self, kind: Any) -> None:
            super().__init__()
            self.kind = kind

        def _root(self, count: Any) -> Any:
            root = super()._root(count)
            root["data"].set_non_tensor("text", self.kind(int(count)))
            return root

    for placement in ("threads", "processes"):
        with MultiSyncCollector(
            [lambda: Showing(Own)], None, frames_per_batch=7, placement=placement
        ) as collector:
            found = told(next(collector))
        assert all(type(one) is Own for one in found) and [one.number for one in found] == [
            0,
            1,
            2,
            3,
            4,
            0,
            1,
        ]
        message = (
            r"\('data', 'text'\): expected what can be pickled.*got a Stubborn: not to be pickled"
        )
        with pytest.raises((TypeError, RuntimeError), match=message):
            with MultiSyncCollector(
                [lambda: Showing(Stubborn)], None, frames_per_batch=7, placement=placement
            ) as collector:
                next(collector)
