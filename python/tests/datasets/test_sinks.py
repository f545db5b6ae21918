"""Sinks of data sets: whole episodes, each frame once, whatever goes wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch

from episodes import DONE, IDS, TRUNCATED, by_content, frames, steps
from windrow.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from windrow.data import LeRobotSink, ParquetSink, ReplayBuffer, SafetensorsSink
from windrow.envs import GymEnv

SINKS = [ParquetSink, SafetensorsSink]
each_sink = pytest.mark.parametrize("make", SINKS)


@each_sink
@pytest.mark.parametrize(
    "collect",
    [
        lambda **to: Collector(
            "CartPole-v1", frames_per_batch=100, total_frames=1000, seed=3, **to
        ),
        lambda **to: Collector(
            GymEnv("CartPole-v1", num_envs=4), frames_per_batch=100, total_frames=1000, seed=3, **to
        ),
        lambda **to: MultiSyncCollector(
            ["CartPole-v1"] * 2, frames_per_batch=100, total_frames=1000, seed=3, **to
        ),
    ],
    ids=["one", "vector", "workers"],
)
def test_a_data_set_has_each_frame_that_was_collected_once_in_whole_episodes(
    make: Any, collect: Any, tmp_path: Path
) -> None:
    with make(tmp_path, rows_per_file=300) as sink:
        assert list(collect(replay_buffer=sink)) == [None] * 10
    assert sink.num_rows == 1000
    expected = torch.cat([batch.reshape(-1).clone() for batch in collect()])
    assert by_content(frames(tmp_path)) == by_content(expected)


@each_sink
def test_what_is_read_has_the_entries_types_and_shapes_that_were_written(
    make: Any, tmp_path: Path
) -> None:
    batch = steps([3, 4])
    batch["pixels"] = torch.arange(7 * 2 * 3, dtype=torch.uint8).reshape(7, 2, 3)
    batch["agents", "half"] = torch.rand(7, 2).half()
    batch["alone"] = torch.arange(7)
    with make(tmp_path) as sink:
        sink.extend(batch)
    found = frames(tmp_path)
    assert set(found.keys(True, True)) == set(batch.keys(True, True))
    for key in batch.keys(True, True):
        assert found[key].dtype == batch[key].dtype and torch.equal(found[key], batch[key]), key


#: Names that columns of other programs have for entries of windrow.
KNOWN = [
    "state",
    "obs",
    "observations",
    "actions",
    "rewards",
    "episode",
    "episode_id",
    "dones",
    "terminals",
]


@each_sink
def test_entries_with_the_names_of_others_columns_come_back_as_they_were(
    make: Any, tmp_path: Path
) -> None:
    batch = steps([3, 4]).exclude("observation")
    for name in KNOWN:
        batch[name], batch["next", name] = torch.rand(7, 2), torch.rand(7, 2)
    batch["a.b"], batch["observation", "state"] = torch.rand(7), torch.rand(7)
    with make(tmp_path) as sink:
        sink.extend(batch)
    found = frames(tmp_path)
    assert set(found.keys(True, True)) == set(batch.keys(True, True))
    assert all(torch.equal(found[key], batch[key]) for key in batch.keys(True, True))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (ParquetSink, "episode_index"),
        (ParquetSink, "__index_level_0__"),
        (SafetensorsSink, "episode_index"),
        (SafetensorsSink, "__metadata__"),
        (LeRobotSink, "episode_index"),
        (LeRobotSink, "timestamp"),
        (LeRobotSink, "frame_index"),
        (LeRobotSink, "index"),
        (LeRobotSink, "task_index"),
        (LeRobotSink, "task"),
    ],
)
def test_an_entry_with_the_name_of_a_column_of_the_format_is_refused(
    make: Any, name: str, tmp_path: Path
) -> None:
    batch = steps([2])
    with make(tmp_path) as sink:
        with pytest.raises(
            ValueError, match=f"entry {name}: the format has a column of its own with this name"
        ):
            sink.extend(batch.clone().set(name, torch.zeros(2)))
        sink.extend(batch)
    assert len(frames(tmp_path)) == 2


@each_sink
def test_hidden_files_of_other_programs_are_kept_and_those_of_a_killed_process_removed(
    make: Any, tmp_path: Path
) -> None:
    theirs = [
        tmp_path / "set" / "data" / ".download.partial",
        tmp_path / ".set.partial" / "a",
        tmp_path / ".set.before" / "a",
    ]
    ours = [
        tmp_path / "set" / "data" / ".train.windrow-partial",
        tmp_path / ".set.windrow-partial" / "a",
    ]
    for path in (*theirs, *ours):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a")
    with make(tmp_path / "set") as sink:
        sink.extend(steps([2]))
    assert [path.exists() for path in (*theirs, *ours)] == [True, True, True, False, False]


@each_sink
def test_an_episode_goes_on_in_the_next_batch_and_no_file_has_a_part_of_it(
    make: Any, tmp_path: Path
) -> None:
    sink = make(tmp_path, rows_per_file=1)
    whole = steps([5, 9, 2, 6])
    for start in range(0, len(whole), 3):
        sink.extend(whole[start : start + 3])
        if sink.num_rows:
            frames(tmp_path)
    sink.close()
    assert torch.equal(frames(tmp_path)["observation"], whole["observation"])


@each_sink
def test_an_episode_ends_where_any_flag_is_set(make: Any, tmp_path: Path) -> None:
    batch = steps([3, 4, 2])
    batch[DONE] = torch.cat([torch.zeros(9, 1, dtype=torch.bool), batch[DONE]], 1)
    with make(tmp_path) as sink:
        sink.extend(batch)
    assert sink.num_episodes == 3
    assert torch.equal(ReplayBuffer.from_dataset(tmp_path)[:][IDS], batch[IDS])


@each_sink
def test_without_ids_an_episode_goes_on_in_the_same_row(make: Any, tmp_path: Path) -> None:
    rows = torch.stack([steps([4, 8], ids=False), steps([7, 5], ids=False, first=10)])
    with make(tmp_path) as sink:
        for start in range(0, 12, 2):
            sink.extend(rows[:, start : start + 2])
    found = frames(tmp_path)["observation"]
    assert sorted(map(tuple, found.tolist())) == sorted(
        map(tuple, rows["observation"].reshape(-1, 2).tolist())
    )
    starts = found[:, 1] == 0
    assert torch.equal(found[1:, 0][~starts[1:]], found[:-1, 0][~starts[1:]]), (
        "two episodes were mixed"
    )


@each_sink
def test_padding_is_not_written(make: Any, tmp_path: Path) -> None:
    padded = torch.stack([steps([4]), torch.cat([steps([2], first=1), steps([2], first=1)])])
    padded["collector", "mask"] = torch.tensor([[True] * 4, [True, True, False, False]])
    with make(tmp_path) as sink:
        sink.extend(padded)
    assert frames(tmp_path)["observation"].tolist() == [
        [0, 0],
        [0, 1],
        [0, 2],
        [0, 3],
        [1, 0],
        [1, 1],
    ]


@each_sink
def test_two_collectors_number_their_episodes_alike_and_are_told_apart(
    make: Any, tmp_path: Path
) -> None:
    with make(tmp_path) as sink:
        both = [
            Collector(
                "CartPole-v1", frames_per_batch=7, total_frames=140, seed=seed, replay_buffer=sink
            )
            for seed in (1, 2)
        ]
        for _ in zip(*both, strict=True):
            pass
    found = frames(tmp_path)
    alone = [
        batch.reshape(-1).clone()
        for seed in (1, 2)
        for batch in Collector("CartPole-v1", frames_per_batch=7, total_frames=140, seed=seed)
    ]
    assert by_content(found) == by_content(torch.cat(alone))
    follows = found[IDS][1:] == found[IDS][:-1]
    assert torch.equal(
        found["observation"][1:][follows], found["next", "observation"][:-1][follows]
    )


@each_sink
@pytest.mark.parametrize(("unfinished", "rows"), [("truncate", 7), ("drop", 4)])
def test_an_episode_that_is_cut_by_the_end_is_marked_or_dropped(
    make: Any, unfinished: Any, rows: int, tmp_path: Path
) -> None:
    batch = steps([4, 3], ends=False)
    with make(tmp_path, unfinished=unfinished) as sink:
        sink.extend(batch)
    found = frames(tmp_path)
    assert len(found) == sink.num_rows == rows
    assert found[TRUNCATED][:, 0].nonzero()[:, 0].tolist() == ([6] if rows == 7 else [])
    assert not batch[DONE][-1], "the batch was changed"


@each_sink
def test_a_sink_of_a_folder_that_is_there_goes_on_with_it(make: Any, tmp_path: Path) -> None:
    for part in range(3):
        (tmp_path / "data").mkdir(exist_ok=True)
        # A process was killed while it wrote.
        for name in (
            ".000001.safetensors.windrow-partial",
            "data/.train-000001.parquet.windrow-partial",
        ):
            (tmp_path / name).write_bytes(b"PAR1")
        with make(tmp_path) as sink:
            sink.extend(steps([3, 2], first=2 * part))
    assert (sink.num_rows, sink.num_episodes) == (15, 6)
    assert torch.equal(frames(tmp_path)["observation"], steps([3, 2] * 3)["observation"])
    assert not list(tmp_path.rglob("*.windrow-partial"))
    with (
        make(tmp_path) as sink,
        pytest.raises(
            ValueError,
            match="entry more: expected no such entry, as in the rest of .*, got float32",
        ),
    ):
        sink.extend(steps([1]).set("more", torch.zeros(1)))


@each_sink
def test_a_batch_whose_file_cannot_be_written_is_not_lost(make: Any, tmp_path: Path) -> None:
    sink = make(tmp_path, rows_per_file=1)
    sink.extend(steps([3]))
    obstacle = tmp_path / ("data" if make is ParquetSink else ".000000.safetensors.windrow-partial")
    obstacle.write_text("") if make is ParquetSink else obstacle.mkdir()
    for _ in range(2):
        with pytest.raises(OSError, match=f"a data set could not be written: .*{tmp_path}"):
            sink.extend(steps([2], first=1))
    obstacle.unlink() if make is ParquetSink else obstacle.rmdir()
    sink.extend(steps([2], first=1))
    sink.close()
    assert torch.equal(frames(tmp_path)["observation"], steps([3, 2])["observation"])


def test_a_full_disk_is_an_error_of_the_next_batch_which_names_the_file(tmp_path: Path) -> None:
    program = f"""
import resource
from windrow.collectors import MultiAsyncCollector
from windrow.data import ParquetSink
sink = ParquetSink({str(tmp_path)!r}, rows_per_file=1)
# As if the disk had room for 100 bytes.
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
collector = MultiAsyncCollector(["CartPole-v1"], frames_per_batch=500, total_frames=5000, replay_buffer=sink)
try:
    for _ in collector:
        pass
except OSError as error:
    print(type(error).__name__, error)
import os
os._exit(0)
"""
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert (
        f"could not be written: File too large: '{tmp_path}/data/train-000000.parquet'"
        in told.stdout
    ), told


def test_an_error_of_the_background_is_raised_by_the_next_call(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path, rows_per_file=1)
    (tmp_path / "data").write_text("")
    collector = MultiAsyncCollector(
        ["CartPole-v1"], frames_per_batch=200, total_frames=100_000, replay_buffer=sink
    )
    collector.start()
    with pytest.raises(OSError, match="could not be written"):
        while collector.is_running():
            pass
        collector.shutdown()
    (tmp_path / "data").unlink()
    sink.close()
    frames(tmp_path)


def test_frames_of_a_sink_that_nobody_closes_are_written_at_the_end_of_the_program(
    tmp_path: Path,
) -> None:
    program = f"""
from windrow.collectors import Collector
from windrow.data import ParquetSink
for _ in Collector("CartPole-v1", frames_per_batch=100, total_frames=300, replay_buffer=ParquetSink({str(tmp_path)!r})):
    pass
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert len(frames(tmp_path)) == 300


def test_two_sinks_do_not_write_one_folder(tmp_path: Path) -> None:
    first = ParquetSink(tmp_path)
    with pytest.raises(RuntimeError, match="is being written by another sink of this program"):
        ParquetSink(f"{tmp_path}/../{tmp_path.name}")
    program = f"from windrow.data import ParquetSink; ParquetSink({str(tmp_path)!r})"
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "is being written by another process" in told.stderr
    first.close()
    ParquetSink(tmp_path).close()
    with pytest.raises(RuntimeError, match="is closed"):
        first.extend(steps([1]))


@pytest.mark.parametrize(
    ("batch", "error", "told"),
    [
        ([1], TypeError, "expected a batch as a TensorDict, got builtins.list"),
        (steps([2])[0], ValueError, "a single frame without dimensions"),
        (steps([2])[:0], ValueError, "expected a batch of at least one frame, got \\[0\\]"),
        (steps([2]).exclude(DONE, TRUNCATED), ValueError, 'expected an entry \\("next", "done"\\)'),
        (
            steps([2]).set("short", torch.zeros(2, dtype=torch.bfloat16)),
            TypeError,
            "entry short is torch.bfloat16, for which numpy has no type",
        ),
        (steps([2]).set_non_tensor("text", "a"), TypeError, "entry text is no tensor"),
        (
            steps([2]).set("next.reward", torch.zeros(2)),
            ValueError,
            "have one name in a data set, next.reward",
        ),
    ],
)
def test_what_no_data_set_can_have_is_an_error_that_names_it(
    batch: Any, error: Any, told: str, tmp_path: Path
) -> None:
    with ParquetSink(tmp_path) as sink, pytest.raises(error, match=told):
        sink.extend(batch)


@pytest.mark.parametrize("keys", [["observation"], "observation"])
def test_keys_choose_what_is_written(keys: Any, tmp_path: Path) -> None:
    with ParquetSink(tmp_path, keys=keys) as sink:
        sink.extend(steps([2]).set_non_tensor("text", "a"))
    assert set(frames(tmp_path).keys(True, True)) == {"observation", DONE, TRUNCATED, IDS}
    with (
        ParquetSink(tmp_path, keys=["absent"]) as sink,
        pytest.raises(KeyError, match="has no entry .'absent'"),
    ):
        sink.extend(steps([2]))


def test_a_compression_that_is_none_is_an_error_before_frames_are_taken(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="compression must be .*, got 'zip'"):
        ParquetSink(tmp_path, compression="zip")


def test_collectors_must_number_episodes(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    with pytest.raises(ValueError, match="track_traj_ids=False leaves out"):
        next(
            Collector("CartPole-v1", frames_per_batch=100, track_traj_ids=False, replay_buffer=sink)
        )
    sink.close()


def test_pyarrow_reads_the_folder_of_a_parquet_sink(tmp_path: Path) -> None:
    with ParquetSink(tmp_path) as sink:
        sink.extend(steps([3, 4]))
    assert parquet.read_table(tmp_path).num_rows == 7
