"""Data sets of LeRobot, as far as its format says; ``cargo xtask formats`` lets LeRobot read
them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from episodes import steps
from windrow.data import LeRobotSink, ReplayBuffer


def moving(lengths: list[int], *, first: int = 0, shape: tuple[int, ...] = (32, 48, 3)) -> Any:
    """Episodes whose pictures are of one brightness, by which each frame is known."""
    batch = steps(lengths, first=first)
    batch["next", "observation"] = batch["observation"] + torch.tensor([0.0, 1.0])
    batch["action"] = torch.nn.functional.one_hot(batch["observation"][:, 1].long() % 3, 3)
    bright = (batch["observation"] @ torch.tensor([60.0, 5.0])).to(torch.uint8)
    batch["camera", "pixels"] = (
        bright.reshape(-1, *[1 for _ in shape]).expand(-1, *shape).contiguous()
    )
    batch["next", "camera", "pixels"] = torch.zeros_like(batch["camera", "pixels"])
    batch["matrix"] = torch.rand(len(batch), 2, 3)
    return batch


@pytest.mark.parametrize("shape", [(32, 48, 3), (3, 32, 48), (1, 33, 47), (32, 48)])
def test_frames_are_read_as_they_were_but_for_what_videos_lose(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    for first in (0, 2):
        with LeRobotSink(tmp_path / "set", rows_per_file=1) as sink:
            sink.extend(moving([7, 3], first=first, shape=shape))
            sink.extend(moving([1], first=first + 4, shape=shape))
    assert (sink.num_rows, sink.num_episodes) == (22, 6)
    found = ReplayBuffer.from_dataset(tmp_path / "set")[:]
    given = [
        moving([7, 3], first=first, shape=shape)
        if many == 2
        else moving([1], first=first + 4, shape=shape)
        for first in (0, 2)
        for many in (2, 1)
    ]
    expected = torch.cat(given)
    for key in (
        "observation",
        "action",
        ("next", "reward"),
        ("next", "done"),
        ("next", "truncated"),
    ):
        assert torch.equal(found[key], expected[key]) and found[key].dtype == expected[key].dtype, (
            key
        )
    assert found["matrix"].shape == (22, 2, 3)
    pictures, before = found["camera", "pixels"], expected["camera", "pixels"]
    assert pictures.shape == before.shape and (pictures.int() - before.int()).abs().max() <= 3
    assert ("next", "observation") not in found.keys(True)


def test_meta_says_where_episodes_are(tmp_path: Path) -> None:
    with LeRobotSink(tmp_path / "set", fps=20, task="walk", rows_per_file=1) as sink:
        for first in (0, 2):
            sink.extend(moving([7, 3], first=first))
    info = json.loads((tmp_path / "set/meta/info.json").read_text())
    assert (
        info["codebase_version"],
        info["total_frames"],
        info["total_episodes"],
        info["fps"],
    ) == ("v3.0", 20, 4, 20)
    assert info["features"]["observation.images.camera.pixels"]["shape"] == [32, 48, 3]
    rows = [
        row
        for file in sorted((tmp_path / "set/meta/episodes").glob("*/*.parquet"))
        for row in pq.read_table(file).to_pylist()
    ]
    assert [(row["dataset_from_index"], row["dataset_to_index"]) for row in rows] == [
        (0, 7),
        (7, 10),
        (10, 17),
        (17, 20),
    ]
    place = "videos/observation.images.camera.pixels"
    assert [(row[f"{place}/file_index"], row[f"{place}/from_timestamp"]) for row in rows] == [
        (0, 0),
        (0, 0.35),
        (1, 0),
        (1, 0.35),
    ]
    stats = json.loads((tmp_path / "set/meta/stats.json").read_text())
    frames = torch.cat([moving([7, 3], first=first) for first in (0, 2)])["observation"].double()
    assert torch.allclose(
        torch.tensor(stats["observation.state"]["std"]).double(), frames.std(0, correction=0)
    )
    assert torch.allclose(
        torch.tensor(stats["observation.state"]["mean"]).double(), frames.mean(0)
    ) and stats["index"]["count"] == [20]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    with LeRobotSink(tmp_path / "set") as sink:
        sink.extend(moving([3]))
    (tmp_path / ".set.windrow-partial" / "data").mkdir(parents=True)
    # Where a system has no exchange of names, a process may be killed between two.
    (tmp_path / "set").rename(tmp_path / ".set.windrow-before")
    with LeRobotSink(tmp_path / "set") as sink:
        sink.extend(moving([2], first=1))
    assert sink.num_rows == 5 and [path.name for path in tmp_path.iterdir()] == ["set"]
    assert len(ReplayBuffer.from_dataset(tmp_path / "set")) == 5


def test_a_write_that_fails_or_is_interrupted_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LeRobotSink(tmp_path / "set") as sink:
        sink.extend(moving([3]))
        sink.flush()
        before = {
            path: path.read_bytes() for path in (tmp_path / "set").rglob("*") if path.is_file()
        }
        sink.extend(moving([2], first=1))
        monkeypatch.setattr(json, "dumps", interrupt)
        with pytest.raises(KeyboardInterrupt):
            sink.flush()
        monkeypatch.undo()
        assert {
            path: path.read_bytes() for path in (tmp_path / "set").rglob("*") if path.is_file()
        } == before
        assert [path.name for path in tmp_path.iterdir()] == ["set"]
    assert len(ReplayBuffer.from_dataset(tmp_path / "set")) == 5


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_folder_that_is_a_link_stays_one_and_its_frames_lie_where_it_leads(
    tmp_path: Path,
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "set").symlink_to(tmp_path / "disk" / "set")
    with LeRobotSink(tmp_path / "set", rows_per_file=1) as sink:
        for first in range(3):
            sink.extend(moving([2], first=first))
    assert (tmp_path / "set").is_symlink() and [
        path.name for path in (tmp_path / "disk").iterdir()
    ] == ["set"]
    assert len(ReplayBuffer.from_dataset(tmp_path / "set")) == sink.num_rows == 6


def test_a_folder_in_a_data_set_that_is_a_link_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "videos").symlink_to(tmp_path / "disk")
    with pytest.raises(
        ValueError, match=f"{tmp_path}/set/videos: expected a folder, got a link to {tmp_path}/disk"
    ):
        LeRobotSink(tmp_path / "set")


def test_a_data_set_has_one_task(tmp_path: Path) -> None:
    for task in ("walk", "", "walk"):
        with LeRobotSink(tmp_path / "set", task=task) as sink:
            sink.extend(moving([3], first=sink.num_episodes))
    with pytest.raises(ValueError, match="has the task 'walk', not 'run'"):
        LeRobotSink(tmp_path / "set", task="run")
    files = sorted((tmp_path / "set/meta/episodes").glob("*/*.parquet"))
    assert [row["tasks"] for file in files for row in pq.read_table(file).to_pylist()] == [
        ["walk"]
    ] * 3


def test_what_lerobot_cannot_have_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="codec: expected one of FFmpeg's encoders, got 'none'"):
        LeRobotSink(tmp_path / "set", codec="none")
    with LeRobotSink(tmp_path / "set") as sink:
        sink.extend(moving([3]))
    with pytest.raises(ValueError, match="has 30 frames per second, not 10"):
        LeRobotSink(tmp_path / "set", fps=10)


def test_two_entries_that_would_have_one_name_are_an_error(tmp_path: Path) -> None:
    batch = moving([3])
    batch["observation.images.camera", "pixels"] = torch.zeros(3)
    told = "observation.images.camera.pixels have one name in LeRobot, observation.images.camera.pixels: rename one"
    with LeRobotSink(tmp_path / "set") as sink, pytest.raises(ValueError, match=told):
        sink.extend(batch)


def test_an_entry_with_the_name_of_another_s_column_comes_back_as_it_was(tmp_path: Path) -> None:
    batch = moving([3]).exclude("observation", ("next", "observation"))
    batch["observation", "state"], batch["a.b"] = torch.rand(3, 2), torch.rand(3)
    with LeRobotSink(tmp_path / "set") as sink:
        sink.extend(batch)
    found = ReplayBuffer.from_dataset(tmp_path / "set")[:]
    for key in (("observation", "state"), "a.b"):
        assert torch.equal(found[key], batch[key]), key
