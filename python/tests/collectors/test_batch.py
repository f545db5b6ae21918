"""What batches look like, and how long their memory lives."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from cartpole import cartpole
from windrow.collectors import Collector, MultiAsyncCollector, MultiSyncCollector


def collector(**arguments: object) -> Collector:
    return Collector(
        cartpole, **{"frames_per_batch": 50, "total_frames": 100, "seed": 3, **arguments}
    )


def test_a_batch_is_a_tensordict_with_the_keys_of_torchrl() -> None:
    batch = next(collector())
    assert type(batch) is TensorDict
    assert batch.batch_size == torch.Size([50])
    assert batch.names == ["time"] == batch["next"].names
    assert set(batch.keys(True, True)) == {
        "observation",
        "action",
        "done",
        "terminated",
        "truncated",
        ("next", "observation"),
        ("next", "reward"),
        ("next", "done"),
        ("next", "terminated"),
        ("next", "truncated"),
        ("collector", "traj_ids"),
    }


@pytest.mark.parametrize(
    ("key", "dtype", "shape"),
    [
        ("observation", torch.float32, [50, 4]),
        (("next", "observation"), torch.float32, [50, 4]),
        (("next", "reward"), torch.float32, [50, 1]),
        ("done", torch.bool, [50, 1]),
        (("next", "terminated"), torch.bool, [50, 1]),
        (("collector", "traj_ids"), torch.int64, [50]),
    ],
)
def test_columns_have_dtype_and_shape(key: object, dtype: torch.dtype, shape: list[int]) -> None:
    value = next(collector())[key]
    assert (value.dtype, list(value.shape)) == (dtype, shape)


def test_observations_follow_each_other() -> None:
    batch = next(collector())
    done = batch["next", "done"].squeeze(-1)
    following, root = batch["next", "observation"][:-1], batch["observation"][1:]
    assert torch.equal(following[~done[:-1]], root[~done[:-1]])
    assert done.any(), "a random policy lets the pole fall within 50 steps"
    assert not torch.equal(following[done[:-1]], root[done[:-1]])
    assert torch.equal(
        batch["collector", "traj_ids"][1:] != batch["collector", "traj_ids"][:-1], done[:-1]
    )


def test_kept_tensors_keep_their_values() -> None:
    source = collector(total_frames=-1, max_frames_per_traj=20)
    kept = [
        (batch["observation"], batch["next"][3:7], batch.clone())
        for _, batch in zip(range(5), source)
    ]
    for _ in range(100):
        next(source)
    for observation, crop, copied in kept:
        assert torch.equal(observation, copied["observation"])
        assert (crop == copied["next"][3:7]).all()


def test_memory_is_used_again_once_a_batch_is_dropped() -> None:
    source = collector(total_frames=-1)
    for _ in range(20):
        next(source)
    assert source.stats()["slab_bytes"] <= 2 * 64 * 1024


def test_a_tensor_outlives_its_collector() -> None:
    source = collector()
    batch = next(source)
    observation, copied = batch["observation"], batch["observation"].clone()
    del batch
    source.shutdown()
    del source
    assert torch.equal(observation, copied)


def test_writing_into_a_batch_leaves_later_ones_alone() -> None:
    source = collector(total_frames=-1)
    for _ in range(4):
        batch = next(source)
        assert not batch["done"].any()
        batch["done"].fill_(True)
        batch["observation"].fill_(7.0)
        del batch


def test_batches_go_through_tensordicts_operations() -> None:
    batch = next(Collector(cartpole, frames_per_batch=40, num_envs=4, seed=0))
    assert batch.batch_size == torch.Size([4, 10])
    assert batch.names == [None, "time"]
    assert batch.reshape(-1).batch_size == torch.Size([40])
    assert batch[torch.tensor([2, 0])].batch_size == torch.Size([2, 10])
    assert torch.equal(batch[1:3, 4]["observation"], batch["observation"][1:3, 4])


def test_shapes_of_several_workers() -> None:
    def shape(**arguments: object) -> list[int]:
        with MultiSyncCollector(
            cartpole, num_workers=3, placement="threads", frames_per_batch=60, seed=0, **arguments
        ) as source:
            return list(next(source).batch_size)

    assert shape() == [60]
    assert shape(cat_results="stack") == [3, 20]
    assert shape(num_envs=2) == [6, 10]
    assert shape(num_envs=2, cat_results=-1) == [2, 30]
    assert shape(num_envs=2, cat_results="stack") == [3, 2, 10]
    with MultiAsyncCollector(
        cartpole, num_workers=3, placement="threads", frames_per_batch=60
    ) as source:
        assert list(next(source).batch_size) == [60]


def test_whole_trajectories_are_padded_or_one_after_the_other() -> None:
    batch = next(collector(trajs_per_batch=4, total_frames=-1))
    mask = batch["collector", "mask"]
    assert batch.batch_size == mask.shape and batch.batch_size[0] == 4
    assert batch["next", "done"].squeeze(-1)[mask].sum() == 4
    flat = next(collector(trajs_per_batch=4, traj_format="cat", total_frames=-1))
    assert flat.ndim == 1 and int(flat["next", "done"].sum()) == 4


@pytest.mark.parametrize(
    "form", [{}, {"split_trajs": True}, {"trajs_per_batch": 2}, {"num_envs": 2}], ids=" ".join
)
def test_tracked_versions_stand_at_the_root_and_under_next(form: dict[str, object]) -> None:
    from torchrl.collectors import Collector as TheirCollector
    from torchrl.envs import GymEnv

    theirs = next(
        iter(
            TheirCollector(
                GymEnv("CartPole-v1"), None, frames_per_batch=50, track_policy_version=True
            )
        )
    )
    assert ("next", "policy_version") not in next(collector()).keys(True)
    batch = next(collector(track_policy_version=True, **form))
    root, following = batch["policy_version"], batch["next", "policy_version"]
    assert root.dtype == following.dtype == theirs["next", "policy_version"].dtype
    assert root.shape == following.shape == batch.batch_size
    assert torch.equal(root, following)
    if "split_trajs" not in form and "trajs_per_batch" not in form:
        assert root.data_ptr() == following.data_ptr()


def test_pieces_of_trajectories_are_rows() -> None:
    batch = next(collector(split_trajs=True))
    assert batch.ndim == 2
    assert int(batch["collector", "mask"].sum()) == 50


@pytest.mark.parametrize("kind", [Collector, MultiAsyncCollector])
def test_batches_are_kept_in_any_number_with_a_warning(kind) -> None:
    workers = {} if kind is Collector else {"num_workers": 2, "placement": "threads"}
    with kind(cartpole, frames_per_batch=10, total_frames=2000, **workers) as collector:
        with pytest.warns(
            UserWarning, match=r"\d+ batches of \d+ bytes each are kept alive"
        ) as warned:
            kept = [(batch["observation"], batch["observation"].clone()) for batch in collector]
    assert len(kept) == 200
    assert len(warned) == 1
    # Workers that collect ahead may have more at work by the time that somebody asks.
    told = int(str(warned[0].message).split()[0])
    assert told == 65 if kind is Collector else told >= 65
    assert all(torch.equal(seen, copy) for seen, copy in kept)
    assert collector.stats()["slabs"] >= 200


@pytest.mark.parametrize("named", [{"device": "cpu"}, {"storing_device": torch.device("cpu")}, {}])
def test_a_batch_tells_its_device_where_one_was_named(named: dict[str, object]) -> None:
    batch = next(collector(**named))
    expected = torch.device("cpu") if named else None
    assert batch.device == batch["next"].device == batch["collector"].device == expected
