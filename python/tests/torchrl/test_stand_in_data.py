"""Buffers of ``windrow.torchrl``: windrow's, unless a part is one that only TorchRL has."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torchrl.data
from tensordict import TensorDict

import windrow.data
from windrow.torchrl.data import (
    CompressedListStorage,
    HERReplayBuffer,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    StalenessAwareSampler,
    TensorDictReplayBuffer,
)
from windrow.torchrl.envs import (
    Compose,
    GymEnv,
    InitTracker,
    RewardSum,
    StepCounter,
    TransformedEnv,
)


def test_a_buffer_is_windrows(recwarn: pytest.WarningsRecorder) -> None:
    further: dict[str, Any] = {
        "sample_unit": None,
        "service_backend": "direct",
        "service_backend_options": {},
        "transport": "auto",
    }
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(30), sampler=SamplerWithoutReplacement(), batch_size=4, **further
    )
    assert isinstance(buffer, windrow.data.ReplayBuffer)
    buffer.extend(TensorDict({"value": torch.arange(20)}, [20]))
    assert len(buffer.sample()) == 4 and not recwarn


@pytest.mark.parametrize(
    "storage", [LazyTensorStorage(30), LazyTensorStorage, partial(LazyTensorStorage, 30)], ids=str
)
def test_with_a_part_of_torchrl_a_buffer_is_torchrls(storage: Any) -> None:
    storage = partial(storage, 30) if storage is LazyTensorStorage else storage
    writer = RoundRobinWriter(track_generations=True)
    with pytest.warns(
        UserWarning,
        match="windrow has no sampler=StalenessAwareSampler and no .*: this TensorDictReplayBuffer is TorchRL's",
    ):
        buffer = TensorDictReplayBuffer(
            storage=storage,
            sampler=StalenessAwareSampler(max_staleness=3),
            writer=writer,
            batch_size=4,
        )
    assert type(buffer) is torchrl.data.TensorDictReplayBuffer and buffer._writer._track_generations
    assert (
        type(buffer._storage) is torchrl.data.LazyTensorStorage and buffer._storage.max_size == 30
    )


def test_what_makes_a_part_of_torchrl_counts_as_one() -> None:
    with pytest.warns(UserWarning, match="storage=CompressedListStorage"):
        assert (
            type(ReplayBuffer(storage=partial(CompressedListStorage, max_size=10)))
            is torchrl.data.ReplayBuffer
        )


def test_a_derived_buffer_takes_no_part_of_torchrl() -> None:
    class Own(ReplayBuffer):
        pass

    assert isinstance(Own(storage=LazyTensorStorage(3)), windrow.data.ReplayBuffer)
    with pytest.raises(
        TypeError, match="in a class derived from Own, got storage=CompressedListStorage"
    ):
        Own(storage=CompressedListStorage(max_size=10))


def test_a_buffer_that_tracks_generations_is_torchrls() -> None:
    with pytest.warns(UserWarning, match=r"no writer=RoundRobinWriter\(track_generations=True\)"):
        buffer: Any = TensorDictReplayBuffer(
            storage=LazyTensorStorage(4), writer=RoundRobinWriter(track_generations=True)
        )
    rows = buffer.extend(TensorDict({"value": torch.zeros(4)}, [4]))
    generation = buffer.writer.generations_of(rows)
    buffer.extend(TensorDict({"value": torch.full((2,), 7.0)}, [2]))
    update = {"index": rows, "generation": generation, "patch": {"value": torch.ones(4)}}
    assert buffer.update_if_present(**update).updated.tolist() == [False, False, True, True]
    assert buffer[:]["value"].tolist() == [7, 7, 1, 1]
    assert buffer.submit_update_if_present(**update).result().updated_count == 2


def test_what_makes_a_writer_that_tracks_generations_counts_as_one() -> None:
    with pytest.warns(UserWarning, match="this ReplayBuffer is TorchRL's"):
        buffer = ReplayBuffer(
            storage=LazyTensorStorage(4), writer=partial(RoundRobinWriter, track_generations=True)
        )
    assert type(buffer) is torchrl.data.ReplayBuffer


def test_a_buffer_without_generations_says_how_to_have_some() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(4), writer=RoundRobinWriter())
    rows = buffer.extend(TensorDict({"value": torch.zeros(4)}, [4]))
    assert buffer.writer.generations_of(rows).tolist() == [-1] * 4
    with pytest.raises(RuntimeError, match=r"make it with .*track_generations=True"):
        buffer.update_if_present(index=rows, generation=rows, patch={"value": torch.ones(4)})
    assert not buffer[:]["value"].any()


@pytest.mark.parametrize("room", [300, 130], ids=["not full", "overwritten"])
def test_hooks_save_frames_as_torchrl_does_and_bring_them_back(room: int, tmp_path: Path) -> None:
    saved = ReplayBuffer(storage=LazyTensorStorage(room))
    saved.register_save_hook(torchrl.data.TED2Flat())
    for frames in GymEnv("CartPole-v1").rollout(200, break_when_any_done=False).split(50):
        saved.extend(frames)
    saved.dumps(tmp_path)
    assert len(TensorDict.load_memmap(tmp_path / "storage")["action"]) == len(saved)
    loaded = ReplayBuffer(storage=LazyTensorStorage(300))
    loaded.register_load_hook(torchrl.data.Flat2TED())
    loaded.extend(saved[:3])
    loaded.loads(tmp_path)
    oldest_first = saved.state_dict()["frames"]
    for key in ("observation", "action"):
        assert torch.equal(loaded[:][key], oldest_first[key])
    assert torch.equal(loaded[:]["next", "observation"], oldest_first["next"]["observation"])


def test_hooks_refuse_what_is_no_frames(tmp_path: Path) -> None:
    for buffer in (ReplayBuffer(storage=LazyTensorStorage(3)), ReplayBuffer(storage=ListStorage())):
        buffer.register_save_hook(torchrl.data.TED2Flat())
        if isinstance(buffer.storage, ListStorage):
            buffer.extend(["a", "b"])
        with pytest.raises(RuntimeError, match="save hooks need TensorDicts of numbers"):
            buffer.dumps(tmp_path)


def goals(frames: int) -> TensorDict:
    """An episode whose goal is never achieved."""
    at = torch.arange(frames, dtype=torch.float32)[:, None]
    following = {
        "achieved_goal": at + 1,
        "desired_goal": torch.full_like(at, -1),
        "reward": torch.zeros_like(at),
        "done": at == frames - 1,
    }
    root = {"achieved_goal": at, "desired_goal": torch.full_like(at, -1), "next": following}
    return TensorDict(root, [frames])


def reached(frames: TensorDict) -> torch.Tensor:
    return (frames["achieved_goal"] == frames["desired_goal"]).float()


@pytest.mark.parametrize("strategy", ["final", torchrl.data.HindsightStrategy.FINAL], ids=str)
def test_hindsight_reads_goals_at_the_root_as_torchrl(strategy: Any) -> None:
    buffers = [
        kind(reached, her_ratio=1.0, strategy=strategy, storage=storage(20), batch_size=64)
        for kind, storage in (
            (HERReplayBuffer, LazyTensorStorage),
            (torchrl.data.HERReplayBuffer, torchrl.data.LazyTensorStorage),
        )
    ]
    assert isinstance(buffers[0], windrow.data.TensorDictReplayBuffer)
    for buffer in buffers:
        for _ in range(2):
            buffer.extend(goals(10))
        sample = buffer.sample()
        assert (sample["desired_goal"] == 9).all() and (sample["next", "desired_goal"] == 9).all()
        assert torch.equal(sample["next", "reward"], (sample["achieved_goal"] == 9).float())


def test_hindsight_with_another_sampler_is_torchrls() -> None:
    with pytest.warns(UserWarning, match="no sampler=SamplerWithoutReplacement beside hindsight"):
        buffer: Any = HERReplayBuffer(
            reached,
            storage=LazyTensorStorage(10),
            sampler=RandomSampler(replacement=False),
            batch_size=10,
        )
    assert type(buffer) is torchrl.data.HERReplayBuffer
    buffer.extend(goals(10))
    assert sorted(buffer.sample()["index"].tolist()) == list(range(10))


def test_environments_take_torchrls_arguments(recwarn: pytest.WarningsRecorder) -> None:
    env = GymEnv(
        "CartPole-v1",
        batch_size=None,
        allow_done_after_reset=False,
        missing_obs_value=None,
        disable_env_checker=None,
    )
    assert env.backend == "native"
    around = TransformedEnv(
        env, Compose(transforms=[StepCounter(), RewardSum()]), cache_specs=True, auto_unwrap=None
    )
    assert around.rollout(3)["next", "step_count"].flatten().tolist() == [1, 2, 3] and not recwarn
    with pytest.warns(UserWarning, match="auto_reset has no effect"):
        GymEnv("CartPole-v1", auto_reset=True)


def test_configurations_do_not_take_transforms_for_their_own_nodes() -> None:
    for transform in (StepCounter(max_steps=3), RewardSum(), InitTracker()):
        assert not dataclasses.is_dataclass(transform)
    assert repr(StepCounter(max_steps=3)).startswith("StepCounter(max_steps=3")
