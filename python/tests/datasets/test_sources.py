"""Buffers that begin with a data set."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from windrow.collectors import Collector
from windrow.data import (
    LazyTensorStorage,
    ParquetSink,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
)


def others() -> dict[str, np.ndarray]:
    """Columns under the names that other programs give them."""
    return {
        "observations": np.arange(12, dtype=np.float32).reshape(6, 2),
        "actions": np.arange(6),
        "rewards": np.ones(6, np.float32),
        "terminals": np.array([0, 0, 1, 0, 0, 0]),
        "timeouts": np.array([0, 0, 0, 0, 0, 1]),
        "episode_id": np.array([0, 0, 0, 1, 1, 1], np.int32),
    }


def test_columns_of_others_have_the_entries_that_their_names_stand_for() -> None:
    found = ReplayBuffer.from_dataset(others())[:]
    assert set(found.keys(True, True)) == {
        "observation",
        "action",
        ("next", "reward"),
        ("next", "terminated"),
        ("next", "truncated"),
        ("next", "done"),
        ("collector", "traj_ids"),
    }
    assert found["next", "done"].tolist() == [[False], [False], [True], [False], [False], [True]]
    assert (
        found["next", "reward"].shape == (6, 1)
        and found["collector", "traj_ids"].dtype == torch.int64
    )


def test_keys_say_what_columns_are() -> None:
    found = ReplayBuffer.from_dataset(
        others(), keys={"actions": ("expert", "action"), "rewards": "rewards"}
    )[:]
    assert (
        ("expert", "action") in found.keys(True)
        and "rewards" in found.keys()
        and "action" not in found.keys()
    )
    with pytest.raises(ValueError, match="has no column 'absent'; it has observations"):
        ReplayBuffer.from_dataset(others(), keys={"absent": "a"})


def test_a_second_column_for_one_entry_keeps_its_name() -> None:
    columns = {
        name: np.full(2, number)
        for number, name in enumerate(
            ["obs", "state", "rewards", "reward", "episode_id", "episode_index"]
        )
    }
    found = ReplayBuffer.from_dataset(columns)[:]
    expected = [
        ("observation", 0),
        ("state", 1),
        (("next", "reward"), 2),
        ("reward", 3),
        (("collector", "traj_ids"), 4),
        ("episode_index", 5),
    ]
    assert [(key, int(found[key].flatten()[0])) for key, _ in expected] == expected


def test_a_column_that_is_there_a_step_later_too_keeps_its_name() -> None:
    names = ["state", "next.state", "episode", "next.episode", "episode_index"]
    found = ReplayBuffer.from_dataset({name: np.zeros(2) for name in names})[:]
    expected = {
        "state",
        "episode",
        ("next", "state"),
        ("next", "episode"),
        ("collector", "traj_ids"),
    }
    assert set(found.keys(True, True)) == expected


def test_flags_have_the_names_of_gymnasium_too() -> None:
    flags = {"done": [0, 1], "terminated": [0.0, 1.0], "truncated": [False, False]}
    found = ReplayBuffer.from_dataset(flags)[:]
    assert {key: found[key].flatten().tolist() for key in found.keys(True, True)} == {
        ("next", name): list(map(bool, values)) for name, values in flags.items()
    }
    # Beside those under next, they are flags at the root.
    beside = ReplayBuffer.from_dataset({"next.done": [0, 1], "done": [0, 0], "terminated": [0, 0]})[
        :
    ]
    assert beside["next", "done"].flatten().tolist() == [False, True]
    assert {"done", "terminated"} <= set(beside.keys()) and (
        "next",
        "terminated",
    ) not in beside.keys(True)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(3.0)[::-1],
        np.arange(3, dtype=">i2"),
        np.broadcast_to(np.float32(1), 3),
        torch.ones(3, requires_grad=True),
        torch.arange(6).view(3, 2).T[0],
    ],
)
@pytest.mark.filterwarnings("error")
def test_arrays_of_a_dictionary_may_lie_in_memory_as_they_like(array: Any) -> None:
    assert ReplayBuffer.from_dataset({"a": array})[:]["a"].tolist() == array.tolist()


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({}, "the data set has no frames"),
        ({"obs": np.zeros((0, 3))}, "the data set has no frames"),
        (
            {"obs": np.zeros(3), "action": np.zeros(2)},
            r"column action: expected \[3\] rows, as column obs has, got \[2\]",
        ),
        ({"obs": [[1.0], [1.0, 2.0]]}, "column obs: expected an array of numbers"),
        ({"terminals": [0.0, np.nan]}, "entry next.terminated: expected flags, 0 or 1, got nan"),
        ({"episode_id": [0.0, 0.5]}, "entry collector.traj_ids: expected whole numbers, got 0.5"),
        (
            {"episode_id": [[0, 0], [0, 1]]},
            "entry collector.traj_ids: expected one number for each row",
        ),
    ],
)
def test_columns_that_make_no_frames_are_an_error_that_names_them(
    columns: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        ReplayBuffer.from_dataset(columns)


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        ("ab", {"a": "b"}),
        ("ab", {"b": "a"}),
        ("ab", {"a": "c", "b": "c"}),
        (["observation", "observation.state"], {}),
    ],
)
def test_two_columns_are_not_one_entry(names: Any, keys: dict[str, str]) -> None:
    with pytest.raises(
        ValueError,
        match=f"column {names[1]}: it would be the entry .*, and another one is .*: name its entry",
    ):
        ReplayBuffer.from_dataset({name: np.zeros(2) for name in names}, keys=keys)


def test_tables_and_files_of_others_are_read(tmp_path: Path) -> None:
    columns = others()
    lists = [list(map(float, row)) for row in columns["observations"]]
    table = pa.table(
        {
            **{name: pa.array(values) for name, values in columns.items() if values.ndim == 1},
            "observations": lists,
        }
    )
    pq.write_table(table, tmp_path / "part.parquet")
    expected = ReplayBuffer.from_dataset(columns)[:]
    for source in (table, tmp_path, str(tmp_path / "part.parquet"), table.slice(0, 6)):
        found = ReplayBuffer.from_dataset(source)[:]
        assert all(
            torch.equal(found[key].float(), expected[key].float())
            for key in expected.keys(True, True)
        )
    # A part of a table begins in the middle of its memory.
    assert ReplayBuffer.from_dataset(table.slice(2, 2))[:]["observation"].tolist() == [
        [4, 5],
        [6, 7],
    ]


@pytest.mark.parametrize(
    ("column", "told"),
    [
        ([[1.0], [1.0, 2.0]], "lists of one length, got 1, 2"),
        ([[1.0], [1.0, 2.0, 3.0]], "lists of one length, got 1, 3"),
        ([[], [1.0, 2.0]], "lists of one length, got 0, 2"),
        ([[1.0], None], "lists of one length, got 1, None"),
        (
            pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)),
            "lists of one length, got 2, None",
        ),
        ([[[1.0], [2.0, 3.0]]] * 2, "lists of one length, got 1, 2"),
        (["a", "b"], "expected numbers, got string"),
        ([1, None], "with missing values"),
    ],
)
def test_a_column_that_is_no_tensor_is_an_error_that_names_it(column: Any, told: str) -> None:
    with pytest.raises(ValueError, match=f"column odd: .*{told}"):
        ReplayBuffer.from_dataset(pa.table({"odd": column}))


class Loaded:
    """As a ``datasets.Dataset``."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def with_format(self, kind: str) -> Any:
        return self if kind == "arrow" else None

    def __getitem__(self, rows: slice) -> pa.Table:
        return self._table


def test_objects_of_hugging_face_are_known_by_their_classes() -> None:
    """``cargo xtask formats`` has the library itself."""
    one = type("Dataset", (Loaded,), {"__module__": "datasets.arrow_dataset"})(
        pa.table({"rewards": [1.0, 2.0]})
    )
    assert ReplayBuffer.from_dataset(one)[:]["next", "reward"].tolist() == [[1], [2]]
    splits = type("DatasetDict", (dict,), {"__module__": "datasets.dataset_dict"})
    assert len(ReplayBuffer.from_dataset(splits(train=one))) == 2
    with pytest.raises(
        TypeError, match=r"expected one split of the data set, such as dataset\['train'\], got 2"
    ):
        ReplayBuffer.from_dataset(splits(train=one, test=one))
    with pytest.raises(ValueError, match="column a: expected an array of numbers"):
        ReplayBuffer.from_dataset({"a": ["text"]})


def test_what_is_no_data_set_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"no data set at {tmp_path}/absent"):
        ReplayBuffer.from_dataset(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match="there is none"):
        ReplayBuffer.from_dataset(tmp_path)
    with pytest.raises(
        TypeError, match=r"expected a dictionary of columns and their entries, got builtins.list"
    ):
        ReplayBuffer.from_dataset(others(), keys=["rewards"])  # type: ignore[arg-type]
    with pytest.raises(
        TypeError,
        match="expected the path of a data set, or one of datasets.*, or a dictionary of arrays, got builtins.int",
    ):
        ReplayBuffer.from_dataset(3)
    with pytest.raises(
        ValueError, match="the data set has 6 frames, and the storage has room for 5"
    ):
        ReplayBuffer.from_dataset(others(), storage=LazyTensorStorage(5))


def test_a_buffer_of_a_data_set_has_the_parts_it_is_given_and_takes_more_frames(
    tmp_path: Path,
) -> None:
    with ParquetSink(tmp_path) as sink:
        for _ in Collector(
            "CartPole-v1", frames_per_batch=200, total_frames=600, seed=0, replay_buffer=sink
        ):
            pass
    buffer = TensorDictReplayBuffer.from_dataset(
        tmp_path, storage=LazyTensorStorage(1000), sampler=SliceSampler(slice_len=4), batch_size=32
    )
    assert type(buffer) is TensorDictReplayBuffer and len(buffer) == 600
    pieces = buffer.sample()["collector", "traj_ids"].reshape(8, 4)
    assert torch.equal(pieces, pieces[:, :1].expand(8, 4)), "a slice has frames of two episodes"
    next(Collector("CartPole-v1", frames_per_batch=100, replay_buffer=buffer))
    assert len(buffer) == 700


@pytest.mark.parametrize(
    ("package", "call"),
    [("pyarrow", "ParquetSink(folder)"), ("safetensors", "SafetensorsSink(folder)")],
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    package: str, call: str, tmp_path: Path
) -> None:
    program = f"""
import sys
sys.modules[{package!r}] = None
folder = {str(tmp_path)!r}
from windrow.data import ParquetSink, SafetensorsSink
try:
    {call}
except ImportError as error:
    print(error)
"""
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    extra = {"pyarrow": "parquet"}.get(package, package)
    assert f'{package}, which is not installed: pip install "windrow-rl[{extra}]"' in told.stdout
