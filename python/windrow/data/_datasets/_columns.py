"""Frames as columns: one array for each entry, ``[rows, ...]``, in a data set under the names of
its key, joined by dots.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from windrow._keys import path as path_of
from windrow._lazy import numpy, tensordict, torch
from windrow._types import Array
from windrow._values import unheld
from windrow.data._content import frames_of, is_frames, kind_of

Path = tuple[str, ...]
#: Arrays of equal length, by the keys of their entries.
Columns = dict[Path, Any]
#: Arrays of equal length by the names of their columns or, if the data set records the entries of
#: its columns, by the keys of the entries.
Named = dict[str | Path, Any]

IDS, MASK = ("collector", "traj_ids"), ("collector", "mask")
DONE, TRUNCATED, TERMINATED = ("next", "done"), ("next", "truncated"), ("next", "terminated")
#: What a data set has in place of ids of trajectories, which differ from one run to the next.
EPISODE = ("episode_index",)


@dataclass(frozen=True)
class Format:
    """A format that buffers read."""

    #: As messages call it.
    name: str
    #: Whether a file or folder is of this format.
    is_at: Callable[[pathlib.Path], bool]
    #: The columns of what is there, whole episodes at a time.
    read: Callable[[pathlib.Path], Iterator[Named]]
    #: Classes of other libraries, by package and name, and what reads their objects.
    objects: Mapping[tuple[str, str], Callable[[Any], Iterator[Named]]] = field(
        default_factory=dict
    )


def files_at(path: pathlib.Path, suffix: str) -> list[pathlib.Path]:
    """The file itself, or those below the folder that are not hidden, of those that end so."""
    if path.is_dir():
        return sorted(file for file in path.rglob(f"*{suffix}") if not file.name.startswith("."))
    return [path] if path.suffix == suffix else []


def columns_of(
    batch: tensordict.TensorDictBase, keys: Iterable[Path] | None
) -> tuple[Columns, tuple[int, ...]]:
    """The columns of a batch, views where that is possible, and the batch's shape.

    Args:
        keys: the entries that are wanted beside flags, ids and mask; all of them by default.

    Raises:
        TypeError: the batch is no TensorDict, or an entry is no tensor that numpy has a type for.
        KeyError: an entry is not there.
        ValueError: two entries have one name in a data set, or none says where episodes end.
    """
    frames = frames_of(batch)
    if not is_frames(frames):
        raise TypeError(f"expected a batch as a TensorDict, got {kind_of(batch)}")
    shape = tuple(frames.batch_size)
    if not shape:
        raise ValueError(
            "expected a batch [time] or [..., time], got a single frame without dimensions: frame.unsqueeze(0) is a batch"
        )
    if 0 in shape:
        raise ValueError(f"expected a batch of at least one frame, got {list(shape)}")
    odd = dict(unheld(frames))
    wanted = None if keys is None else {*keys, IDS, MASK, DONE, TRUNCATED, TERMINATED}
    there = list(dict.fromkeys([*map(path_of, frames.keys(True, True)), *odd]))
    if keys is not None and (missing := [key for key in keys if key not in there]):
        raise KeyError(
            f"the batch has no entry {missing[0]!r}; it has {', '.join(map(repr, there))}"
        )
    names = {".".join(key): key for key in there}
    if same := [key for key in there if names[".".join(key)] != key]:
        raise ValueError(
            f"entries {same[0]!r} and {names['.'.join(same[0])]!r} have one name in a data set, {'.'.join(same[0])}: rename one"
        )
    columns = {}
    for key in there:
        if wanted is None or key in wanted:
            why = (
                None
                if key not in odd
                else "changes its shape from frame to frame"
                if odd[key]
                else "is no tensor"
            )
            columns[key] = _array(key, None if why else frames.get(key), len(shape), why)
    flags = [columns[key] for key in (TERMINATED, TRUNCATED) if key in columns]
    if DONE not in columns:
        if not flags:
            raise ValueError(
                f'expected an entry ("next", "done"), which says where episodes end; the batch has {", ".join(map(repr, there))}'
            )
        columns[DONE] = numpy.logical_or.reduce(flags)
    return columns, shape


def _array(key: Path, value: Any, dims: int, why: str | None) -> Array:
    """The values of an entry as an array ``[rows, ...]``; or the error that says ``why`` it is
    none.
    """
    if why is None:
        try:
            return value.detach().cpu().numpy().reshape(-1, *value.shape[dims:])
        except TypeError:
            why = f"is {value.dtype}, for which numpy has no type"
    raise TypeError(
        f"entry {'.'.join(key)} {why}: name the entries that are to be written, keys=[...], without it"
    )


def frames_from(columns: Columns) -> tensordict.TensorDictBase:
    """Columns as a TensorDict ``[rows]``."""
    rows = len(next(iter(columns.values())))
    made = tensordict.TensorDict({}, [rows])
    for key, values in columns.items():
        made.set(key, torch.from_numpy(values))
    return made


def joined(chunks: list[Columns]) -> Columns:
    """The rows of several chunks, one after the other."""
    return (
        chunks[0]
        if len(chunks) == 1
        else {key: numpy.concatenate([chunk[key] for chunk in chunks]) for key in chunks[0]}
    )


def size(columns: Columns) -> int:
    """Bytes of all values."""
    return sum(values.nbytes for values in columns.values())


#: Type and shape of a row of each column, by its key.
Layout = dict[Path, tuple[str, tuple[int, ...]]]


def layout_of(columns: Columns) -> Layout:
    """The layout of what a data set has of ``columns``."""
    return {
        key: (values.dtype.name, values.shape[1:])
        for key, values in columns.items()
        if key not in (IDS, MASK)
    }


def described(layout: Layout) -> dict[str, dict[str, Any]]:
    """A layout in plain values, by the names that columns have in a data set."""
    return {
        ".".join(key): {"key": list(key), "dtype": dtype, "shape": list(shape)}
        for key, (dtype, shape) in layout.items()
    }


def by_entry(named: dict[str, Any], described: dict[str, dict[str, Any]]) -> Named:
    """Columns by the keys of their entries, and in their shapes, if the data set describes
    them.
    """
    found: Named = {}
    for name, values in named.items():
        about = described.get(name)
        found[tuple(about["key"]) if about else name] = (
            values.reshape(-1, *about["shape"]) if about else values
        )
    return found


def layout_from(described: dict[str, dict[str, Any]]) -> Layout:
    """The layout that :func:`described` was given."""
    return {
        tuple(column["key"]): (column["dtype"], tuple(column["shape"]))
        for column in described.values()
    }
