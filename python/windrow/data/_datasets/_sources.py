"""Frames of data sets, for buffers: those of windrow's sinks as they were, and those of others
under windrow's keys.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from windrow._keys import path as path_of
from windrow._lazy import numpy
from windrow._types import Array
from windrow.data._content import is_frames, kind_of
from windrow.data._datasets import FORMATS
from windrow.data._datasets._columns import (
    DONE,
    IDS,
    TERMINATED,
    TRUNCATED,
    Columns,
    Named,
    frames_from,
)
from windrow.data._part import Key

#: Names that data sets have for entries of windrow.
_KNOWN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("observations", "obs", "state", "observation.state"), ("observation",)),
    **dict.fromkeys(
        ("next_observations", "next_observation", "next_obs", "next_state"), ("next", "observation")
    ),
    "actions": ("action",),
    **dict.fromkeys(("reward", "rewards"), ("next", "reward")),
    **dict.fromkeys(("terminations", "terminals", "terminated"), TERMINATED),
    **dict.fromkeys(("truncations", "timeouts", "truncated"), TRUNCATED),
    **dict.fromkeys(("dones", "done"), DONE),
    **dict.fromkeys(("episode_index", "episode_id", "episode_ids", "episode"), IDS),
}
_FLAGS = (DONE, TERMINATED, TRUNCATED)


def frames_of_dataset(dataset: Any, keys: Mapping[str, Key] | None) -> Iterator[Any]:
    """The frames of a data set in several TensorDicts ``[rows]``, each with whole episodes.

    Raises:
        FileNotFoundError: there is nothing at a path.
        TypeError: it is no data set that is known, or ``keys`` is no dictionary.
        ValueError: a column cannot be read, ``keys`` name one that is not there, or there are no
            frames.
        ImportError: a package is missing that reads it.
    """
    if not isinstance(keys, Mapping | None):
        raise TypeError(
            f"keys: expected a dictionary of columns and their entries, got {kind_of(keys)}"
        )
    is_empty = True
    for named in _pieces(dataset):
        columns = _columns(named, keys or {})
        if any(map(len, columns.values())):
            is_empty = False
            yield frames_from(columns)
    if is_empty:
        raise ValueError("the data set has no frames")


def _pieces(dataset: Any) -> Iterator[Named]:
    if isinstance(dataset, (str, os.PathLike)):
        return _at(Path(dataset))
    objects = {key: read for format in FORMATS for key, read in format.objects.items()}
    for cls in type(dataset).__mro__:
        if read := objects.get((cls.__module__.partition(".")[0], cls.__name__)):
            return read(dataset)
    # After those: some of them are dictionaries, too.
    if isinstance(dataset, Mapping) and not is_frames(dataset):
        return iter([{name: _numbers(name, values) for name, values in dataset.items()}])
    known = ", ".join(f"{package}.{name}" for package, name in sorted(objects))
    raise TypeError(
        f"expected the path of a data set, or one of {known}, or a dictionary of arrays, got {kind_of(dataset)}"
    )


def _numbers(name: object, values: Any) -> Array:
    if not isinstance(name, str):
        raise TypeError(f"expected the name of each column as a string, got {name!r}")
    try:
        made = numpy.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"column {name}: expected an array of numbers [rows, ...]: {error}"
        ) from error
    if made.dtype.kind not in "biuf" or made.ndim == 0:
        raise ValueError(
            f"column {name}: expected an array of numbers [rows, ...], got {made.dtype} {list(made.shape)} of {kind_of(values)}"
        )
    # Memory as torch takes it: a view may run backwards, and a file's array may have another byte
    # order.
    return numpy.require(made, made.dtype.newbyteorder("="), ["C", "W"])


def _at(path: Path) -> Iterator[Named]:
    if not path.exists():
        raise FileNotFoundError(f"there is no data set at {path}")
    for format in FORMATS:
        if format.is_at(path):
            return format.read(path)
    raise FileNotFoundError(
        f"expected a data set of {', of '.join(format.name for format in FORMATS)} at {path}; there is none"
    )


def _columns(named: Named, keys: Mapping[str, Key]) -> Columns:
    """The columns under the keys of windrow; those of ``keys`` under the keys that it says."""
    names = {column: column if isinstance(column, str) else ".".join(column) for column in named}
    there = set(names.values())
    if strange := [name for name in keys if name not in there]:
        raise ValueError(
            f"keys: the data set has no column {strange[0]!r}; it has {', '.join(names.values())}"
        )
    taken = {path_of(key) for key in keys.values()}
    columns: Columns = {}
    first, has_flags = next(iter(named), ""), any(".".join(key) in there for key in _FLAGS)
    for column, values in named.items():
        name = names[column]
        if values.shape[:1] != (rows := named[first].shape[:1]):
            raise ValueError(
                f"column {name}: expected {list(rows)} rows, as column {names[first]} has, got {list(values.shape[:1])}"
            )
        own = tuple(name.split(".")) if isinstance(column, str) else column
        key = path_of(keys[name]) if name in keys else own
        if name not in keys and isinstance(column, str) and name in _KNOWN:
            known = _KNOWN[name]
            # The column keeps its own name if another column already has the entry or is the same a
            # step later, or if TorchRL's flags at the root stand beside those under next.
            is_own = {".".join(known), f"next.{name}"} & there or (has_flags and known in _FLAGS)
            key = own if is_own or known in taken or known in columns else known
        # The same entry, or one inside the other.
        if clash := next(
            (other for other in columns if other[: len(key)] == key[: len(other)]), None
        ):
            other, here = ".".join(clash), ".".join(key)
            raise ValueError(
                f"column {name}: it would be the entry {here}, and another one is {other}: name its entry, keys={{{name!r}: ...}}"
            )
        columns[key] = values
    for key in (*_FLAGS, ("next", "reward")):
        # Flags and rewards are [1] in each frame.
        if key in columns and columns[key].ndim == 1:
            columns[key] = columns[key][:, None]
    for key in _FLAGS:
        if key in columns:
            columns[key] = _whole(key, columns[key], bool)
    if DONE not in columns and (
        ends := [columns[key] for key in (TERMINATED, TRUNCATED) if key in columns]
    ):
        columns[DONE] = numpy.logical_or.reduce(ends)
    if IDS in columns:
        if columns[IDS].size != len(columns[IDS]):
            raise ValueError(
                f"entry {'.'.join(IDS)}: expected one number for each row, got {list(columns[IDS].shape)}"
            )
        columns[IDS] = _whole(IDS, columns[IDS].reshape(-1), numpy.int64)
    return columns


def _whole(key: tuple[str, ...], values: Array, kind: Any) -> Array:
    """Flags or ids as ``kind``, which data sets may have in other types."""
    made = values if values.dtype == kind else values.astype(kind)
    if made is not values and (odd := values[made != values]).size:
        raise ValueError(
            f"entry {'.'.join(key)}: expected {'flags, 0 or 1' if kind is bool else 'whole numbers'}, got {odd.flat[0]}"
        )
    return made
