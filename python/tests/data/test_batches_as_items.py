"""Batches that are one item of a buffer each, beside TorchRL's buffers."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torchrl.data
from tensordict import NonTensorStack, TensorDict
from torchrl.envs import RandomCropTensorDict

import windrow.data
from windrow.collectors import Collector
from windrow.data import LazyMemmapStorage, LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from windrow.envs import GymEnv, SerialEnv

STORAGES = ["LazyTensorStorage", "LazyMemmapStorage", "ListStorage"]


def batch(*shape: int, first: int = 0) -> TensorDict:
    numbers = torch.arange(first, first + torch.Size(shape).numel()).reshape(shape)
    after = TensorDict(
        {"done": torch.zeros(*shape, 1, dtype=torch.bool), "half": numbers.half()}, shape
    )
    return TensorDict({"number": numbers, "next": after}, shape)


def buffers(storage: str = "LazyTensorStorage", **arguments: Any) -> list[Any]:
    """One of windrow and one of TorchRL."""
    made = []
    for library in (windrow.data, torchrl.data):
        kept = getattr(library, storage)(10)
        made.append(library.TensorDictReplayBuffer(storage=kept, batch_size=4, **arguments))
    return made


def crop(dim: int = 1) -> Any:
    with pytest.warns(UserWarning, match="positive shape") if dim > 0 else nullcontext():
        return RandomCropTensorDict(2, sample_dim=dim)


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
@pytest.mark.parametrize("storage", STORAGES)
def test_an_added_batch_is_one_item(storage: str, shape: tuple[int, ...]) -> None:
    ours, theirs = buffers(storage)
    items = [batch(*shape), batch(*shape, first=100)]
    for buffer in (ours, theirs):
        assert [int(buffer.add(item)) for item in items] == [0, 1] and len(buffer) == 2
    sample, expected = ours.sample(), theirs.sample()
    assert (
        sample.shape == expected.shape == (4, *shape) and sample["next"].batch_size == sample.shape
    )
    described = [
        {key: (value.shape, value.dtype) for key, value in of.items(True, True)}
        for of in (sample, expected)
    ]
    assert described[0] == described[1]
    for item, row in zip(sample, sample["index"].reshape(4, -1)[:, 0].tolist(), strict=True):
        assert (item.exclude("index") == items[row]).all()
    for index in (0, -1, slice(None), [1, 0]):
        assert (
            ours[index] == (items[index] if isinstance(index, int) else torch.stack(items)[index])
        ).all()
    ours[0] = items[1]
    assert (ours[0] == items[1]).all() and ours["number"].shape == (2, *shape)


def test_items_of_another_shape_and_single_frames_are_refused() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4)
    buffer.add(batch(3))
    for write in (
        lambda: buffer.add(batch()),
        lambda: buffer.add(batch(4)),
        lambda: buffer.extend(batch(3)),
    ):
        with pytest.raises(ValueError, match=r"\(batch 3\)"):
            write()
    with pytest.raises(
        TypeError,
        match=r"entry word: expected a tensor, as the item is a batch \[2\], got an object",
    ):
        buffer.add(TensorDict({"word": NonTensorStack("a", "b")}, [2]))
    assert len(buffer) == 1


def test_items_that_are_batches_are_saved(tmp_path: Path) -> None:
    buffer = TensorDictReplayBuffer(storage=LazyMemmapStorage(10), batch_size=4)
    buffer.add(batch(3))
    buffer.dumps(tmp_path)
    restored = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4)
    restored.load_state_dict(buffer.state_dict())
    loaded = TensorDictReplayBuffer(storage=LazyMemmapStorage(10), batch_size=4)
    loaded.loads(tmp_path)
    for again in (restored, loaded, copy.deepcopy(buffer)):
        assert again.sample().shape == (4, 3) and (again[0] == batch(3)).all()


@pytest.mark.parametrize("dim", [1, -1])
def test_a_buffer_that_crops_in_time_has_trajectories_as_items(dim: int) -> None:
    for buffer in buffers(transform=crop(dim)):
        assert buffer.extend(batch(3, 5)).tolist() == [0, 1, 2] and len(buffer) == 3
        sample = buffer.sample()
        assert sample.shape == (4, 2)
        starts = sample["number"][:, 0]
        assert (sample["number"][:, 1] == starts + 1).all() and (
            starts // 5 == sample["index"][:, 0]
        ).all()


def test_frames_of_slices_are_cropped_as_their_transforms_shape_them() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100), sampler=SliceSampler(num_slices=2), batch_size=6
    )
    buffer.append_transform(lambda sample: sample.reshape(2, 3)).append_transform(crop())
    frames = batch(2, 10)
    frames["next", "done"][:, -1] = True
    buffer.extend(frames)
    assert len(buffer) == 20 and buffer.sample().shape == (2, 2)


def test_a_priority_for_each_item() -> None:
    for library in (windrow.data, torchrl.data):
        storage = library.LazyTensorStorage(10)
        buffer = library.TensorDictPrioritizedReplayBuffer(
            alpha=1.0, beta=1.0, storage=storage, batch_size=50
        )
        for first in (0, 100, 200):
            buffer.add(batch(3, first=first))
        sample = buffer.sample()
        sample["td_error"] = 1e9 * (sample["index"] == 1)
        buffer.update_tensordict_priority(sample)
        assert (buffer.sample()["index"] == 1).all() and sample["priority_weight"].shape == (50, 3)


def test_collectors_of_several_environments_write_trajectories_to_a_buffer_that_crops_them() -> (
    None
):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4, transform=crop(-1))
    for _ in Collector(
        lambda: SerialEnv(2, lambda: GymEnv("CartPole-v1")),
        frames_per_batch=20,
        total_frames=40,
        replay_buffer=buffer,
    ):
        pass
    assert len(buffer) == 4 and buffer[:].shape == (4, 10) and buffer.sample().shape == (4, 2)
