"""Data sets that windrow has written, read by the libraries whose formats they are.

``python -m formats write FOLDER`` writes one of each, ``python -m formats read FORMAT FOLDER``
reads it in an environment that has the library and need not have windrow. ``cargo xtask formats``
does both.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

#: Episodes that are written.
EPISODES = 60
#: Longest episode.
LONGEST = 23


def length(episode: int) -> int:
    """Frames of an episode, whose values are its number and steps."""
    return 1 + episode * 7 % LONGEST


def expected() -> np.ndarray:
    """Observation, action and reward of all frames, and whether they are last ones."""
    rows = [(episode, step) for episode in range(EPISODES) for step in range(length(episode))]
    return np.array(
        [(*row, *(np.array(row) + 0.5), row[1], row[1] + 1 == length(row[0])) for row in rows]
    )


def brightness(frames: np.ndarray) -> np.ndarray:
    """That of the frames' pictures."""
    return frames[:, :2].sum(1)


def write(folder: Path) -> None:
    """Writes a data set of each format, some episodes at a time."""
    from killed_sinks import SINKS, batch

    for name, make in SINKS.items():
        for half in range(2):
            # The second one goes on with the folder.
            with make(folder / name) as sink:
                for first in range(half * EPISODES // 2, (half + 1) * EPISODES // 2, 3):
                    sink.extend(batch(first, 3))
        print(f"{name}: {sink.num_rows} frames written")


def _of_table(columns: Any) -> np.ndarray:
    parts = [
        np.asarray(columns[name], np.float64).reshape(len(columns[name]), -1)
        for name in ("observation", "action", "next.reward", "next.done")
    ]
    return np.concatenate(parts, 1)


def _parquet(path: Path) -> Iterator[np.ndarray]:
    import pyarrow.parquet as pq

    import datasets

    loaded = datasets.load_dataset(str(path), split="train")
    assert [file["rows"] for file in _footers(path)] == [
        pq.read_metadata(file).num_rows for file in sorted(path.glob("data/*.parquet"))
    ]
    yield _of_table(loaded.with_format("numpy")[:])
    yield _of_table(pq.read_table(path / "data").to_pydict())


def _footers(path: Path) -> list[dict[str, Any]]:
    import json

    import pyarrow.parquet as pq

    return [
        json.loads(pq.read_metadata(file).metadata[b"windrow"])
        for file in sorted(path.glob("data/*.parquet"))
    ]


def _safetensors(path: Path) -> Iterator[np.ndarray]:
    from safetensors import safe_open

    parts = []
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, "np") as tensors:
            parts.append(_of_table({name: tensors.get_tensor(name) for name in tensors.keys()}))
            assert int(tensors.metadata()["rows"]) == len(parts[-1])
    yield np.concatenate(parts)


def _minari(path: Path) -> Iterator[np.ndarray]:
    import minari

    dataset = minari.MinariDataset(path / "data")
    episodes = list(dataset)
    assert (dataset.total_episodes, dataset.total_steps) == (len(episodes), sum(map(len, episodes)))
    for episode in episodes:
        assert (episode.observations[-1] == episode.observations[-2] + [0, 1]).all(), (
            "the last observation of an episode is another one"
        )
        assert dataset.observation_space.contains(
            episode.observations[0]
        ) and dataset.action_space.contains(episode.actions[0])
    ends = [episode.terminations | episode.truncations for episode in episodes]
    parts = [
        (one.observations[:-1], one.actions, one.rewards[:, None], end[:, None])
        for one, end in zip(episodes, ends, strict=True)
    ]
    yield np.concatenate([np.concatenate(part, 1) for part in parts])


def _lerobot(path: Path) -> Iterator[np.ndarray]:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    dataset = LeRobotDataset("tests/windrow", root=path, video_backend="pyav")
    assert (dataset.num_frames, dataset.num_episodes) == (len(dataset), EPISODES)
    rows, frames = [], expected()
    for at in range(len(dataset)):
        frame = dataset[at]
        rows.append(
            np.concatenate(
                [
                    np.ravel(frame[name])
                    for name in ("observation.state", "action", "next.reward", "next.done")
                ]
            )
        )
        assert frame["task"] == "" and frame["observation.images.pixels"].shape == (3, 16, 16)
        seen = frame["observation.images.pixels"].mean().item() * 255
        assert abs(seen - brightness(frames[at : at + 1])[0]) < 4, (
            f"frame {at} has the picture of another one: {seen}"
        )
    spread = LeRobotDataset(
        "tests/windrow",
        root=path,
        video_backend="pyav",
        delta_timestamps={"action": [0.0, 1 / dataset.fps]},
    )[0]
    assert spread["action"].shape == (2, 2)
    yield np.array(rows, np.float64)


READERS: dict[str, tuple[Callable[[Path], Iterator[np.ndarray]], list[str]]] = {
    "parquet": (_parquet, ["datasets", "pyarrow"]),
    "safetensors": (_safetensors, ["safetensors"]),
    "minari": (_minari, ["minari"]),
    "lerobot": (_lerobot, ["lerobot"]),
}


def read(name: str, folder: Path) -> None:
    """Reads a data set, and checks each frame."""
    # Nothing comes from anywhere else.
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache")}
    reader, packages = READERS[name]
    for found in reader(folder / name):
        if not np.array_equal(found, expected()):
            raise AssertionError(
                f"{name}: expected {len(expected())} frames as they were written, got {len(found)} others"
            )
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
    print(f"{name}: {len(expected())} frames in {EPISODES} episodes, read by {versions}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", folder]:
            write(Path(folder))
        case ["read", name, folder]:
            read(name, Path(folder))
        case _:
            sys.exit(__doc__)
