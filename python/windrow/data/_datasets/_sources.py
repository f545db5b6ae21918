"""Frames of data sets, for buffers: those of windrow's sinks as they were, and those of others under windrow's keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from windrow._lazy import numpy
from windrow._types import Array
from windrow.data._content import is_frames, kind_of
from windrow.data._datasets import _lerobot, _minari, _parquet, _safetensors
from windrow.data._datasets._columns import DONE, IDS, TERMINATED, TRUNCATED, Columns, frames_from
from windrow.data._part import Key
from windrow.envs._specs import path as path_of

#: Columns by their names.
Named = dict[str, Any]
#: Names that data sets have for entries of windrow.
_KNOWN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("observations", "obs", "state", "observation.state"), ("observation",)),
    **dict.fromkeys(("next_observations", "next_observation", "next_obs", "next_state"), ("next", "observation")),
    "actions": ("action",),
    **dict.fromkeys(("reward", "rewards"), ("next", "reward")),
    **dict.fromkeys(("terminations", "terminals"), TERMINATED),
    **dict.fromkeys(("truncations", "timeouts"), TRUNCATED),
    **dict.fromkeys(("episode_index", "episode_id", "episode_ids", "episode"), IDS),
}
_FLAGS = (DONE, TERMINATED, TRUNCATED)


def frames_of_dataset(dataset: Any, keys: Mapping[str, Key] | None) -> Iterator[Any]:
    """The frames of a data set in several TensorDicts ``[rows]``, each with whole episodes.

    Raises:
        FileNotFoundError: there is nothing at a path.
        TypeError: it is no data set that is known.
        ValueError: a column cannot be read, or ``keys`` name one that is not there.
        ImportError: a package is missing that reads it.
    """
    for named in _pieces(dataset):
        yield frames_from(_columns(named, keys or {}))


def _pieces(dataset: Any) -> Iterator[Named]:
    if isinstance(dataset, (str, os.PathLike)):
        return _at(Path(dataset))
    for cls in type(dataset).__mro__:
        if read := _OBJECTS.get((cls.__module__.partition(".")[0], cls.__name__)):
            return read(dataset)
    # After those: some of them are dictionaries, too.
    if isinstance(dataset, Mapping) and not is_frames(dataset):
        return iter([{name: _numbers(name, values) for name, values in dataset.items()}])
    known = ", ".join(f"{package}.{name}" for package, name in _OBJECTS)
    raise TypeError(f"expected the path of a data set, or one of {known}, got {kind_of(dataset)}")


def _numbers(name: str, values: object) -> Array:
    made = numpy.asarray(values)
    if made.dtype.kind not in "biuf" or made.ndim == 0:
        raise ValueError(f"column {name}: expected an array of numbers [rows, ...], got {kind_of(values)}")
    return made


def _at(path: Path) -> Iterator[Named]:
    if not path.exists():
        raise FileNotFoundError(f"there is no data set at {path}")
    for format in (_lerobot, _minari):
        if path.is_dir() and format.is_here(path):
            return format.read(path)
    for suffix, read in ((".parquet", _parquet.read), (".safetensors", _safetensors.read)):
        if path.suffix == suffix or (path.is_dir() and any(path.rglob(f"*{suffix}"))):
            return read(path)
    raise FileNotFoundError(f"expected a data set of Parquet or safetensors files, of Minari or of LeRobot at {path}; there is none")


def _of_table(table: Any) -> Iterator[Named]:
    yield _parquet.columns_in(table)


def _of_datasets(dataset: Any) -> Iterator[Named]:
    # Selected rows are in another order than the table below.
    yield _parquet.columns_in(dataset.with_format("arrow")[:])


def _of_splits(dataset: Any) -> Iterator[Named]:
    if len(dataset) != 1:
        raise TypeError(f"expected one split of the data set, such as dataset[{next(iter(dataset))!r}], got {len(dataset)}")
    return _of_datasets(next(iter(dataset.values())))


def _of_lerobot(dataset: Any) -> Iterator[Named]:
    if dataset.episodes is not None:
        raise TypeError("expected all episodes of a data set of LeRobot, got a selection of them: leave episodes=... out")
    return _lerobot.read(Path(dataset.root))


#: Classes of other libraries, and what reads their objects.
_OBJECTS: dict[tuple[str, str], Callable[[Any], Iterator[Named]]] = {
    ("datasets", "Dataset"): _of_datasets,
    ("datasets", "DatasetDict"): _of_splits,
    ("lerobot", "LeRobotDataset"): _of_lerobot,
    ("minari", "MinariDataset"): _minari.read_dataset,
    ("pyarrow", "Table"): _of_table,
}


def _columns(named: Named, keys: Mapping[str, Key]) -> Columns:
    """The columns under the keys of windrow; those of ``keys`` under the keys that it says."""
    if strange := [name for name in keys if name not in named]:
        raise ValueError(f"keys: the data set has no column {strange[0]!r}; it has {', '.join(named)}")
    taken = {path_of(key) for key in keys.values()}
    columns: Columns = {}
    for name, values in named.items():
        key = path_of(keys[name]) if name in keys else _KNOWN.get(name, tuple(name.split(".")))
        # Another column has the entry.
        if name not in keys and (key in taken or key in columns or (name in _KNOWN and ".".join(key) in named)):
            key = tuple(name.split("."))
        # The same entry, or one inside the other.
        if clash := next((other for other in columns if other[: len(key)] == key[: len(other)]), None):
            there, here = ".".join(clash), ".".join(key)
            raise ValueError(f"column {name}: it would be the entry {here}, and another one is {there}: name its entry, keys={{{name!r}: ...}}")
        columns[key] = values
    for key in (*_FLAGS, ("next", "reward")):
        # Flags and rewards are [1] in each frame.
        if key in columns and columns[key].ndim == 1:
            columns[key] = columns[key][:, None]
    for key in _FLAGS:
        if key in columns:
            columns[key] = columns[key].astype(bool)
    if DONE not in columns and (ends := [columns[key] for key in (TERMINATED, TRUNCATED) if key in columns]):
        columns[DONE] = numpy.logical_or.reduce(ends)
    if IDS in columns:
        columns[IDS] = columns[IDS].reshape(len(columns[IDS])).astype(numpy.int64)
    return columns
