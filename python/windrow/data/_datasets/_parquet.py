"""Parquet, in the layout that ``datasets.load_dataset`` of Hugging Face reads: a card, and files in
``data``.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from windrow import _needs
from windrow._arguments import argument, one_of
from windrow._lazy import numpy
from windrow._types import Array
from windrow.data._datasets._columns import (
    EPISODE,
    Columns,
    Format,
    Named,
    by_entry,
    described,
    files_at,
    layout_from,
    layout_of,
)
from windrow.data._datasets._folder import Folder
from windrow.data._datasets._sink import Sink, SinkArguments, Writer, takes

#: The configuration that `datasets` reads first. It is a hidden file, unlike a card, because other
#: readers take every file that is not hidden for one of Parquet.
CONFIG = ".huggingface.yaml"
_CONFIG = """# Frames of reinforcement learning, one a row, in whole episodes: rows of one episode have one
# `episode_index` and follow each other.
configs:
- config_name: default
  data_files:
  - split: train
    path: data/*.parquet
"""
#: The name that pandas gives to a column of row numbers.
_ROW_NUMBERS = "__index_level_0__"
#: The entry of a file's metadata that is windrow's.
METADATA = b"windrow"


class ParquetArguments(SinkArguments):
    """Arguments of a Parquet sink."""

    compression: str = argument(
        "of the files: ``zstd``, ``snappy``, ``lz4``, ``gzip``, ``brotli`` or ``none``",
        default="zstd",
        check=one_of("zstd", "snappy", "lz4", "gzip", "brotli", "none"),
    )


class ParquetSink(Sink):
    """Writes whole episodes into Parquet files, a row for each frame, which
    ``datasets.load_dataset(path)`` of Hugging Face loads.

    A column has the names of its entry's key, joined by dots, such as ``next.reward``, and is a
    list of fixed size where a frame has several values. ``episode_index`` numbers the episodes. A
    file appears when it is whole and on the disk, so a program that is killed at any moment leaves
    a data set of whole episodes. A sink of a folder that is there goes on with it.

    Raises:
        ImportError: pyarrow is not installed.
        RuntimeError: another sink writes the folder.
        OSError: the folder cannot be written.

    Example:
        >>> import tempfile
        >>> from windrow.collectors import Collector
        >>> from windrow.data import ParquetSink, ReplayBuffer
        >>> folder = tempfile.mkdtemp()
        >>> with ParquetSink(folder) as sink:
        ...     for _ in Collector("CartPole-v1", frames_per_batch=500, total_frames=1000, replay_buffer=sink):
        ...         pass
        >>> sink.num_rows, len(ReplayBuffer.from_dataset(folder))
        (1000, 1000)
    """

    @takes(ParquetArguments)
    def __init__(self, arguments: ParquetArguments) -> None:
        pq = _needs.module("ParquetSink", "pyarrow.parquet", "parquet")
        self._begin(arguments, lambda folder: _ParquetWriter(folder, pq, arguments.compression))


class _ParquetWriter(Writer):
    reserved = frozenset({".".join(EPISODE), _ROW_NUMBERS})

    def __init__(self, folder: Folder, parquet: Any, compression: str) -> None:
        super().__init__(folder)
        self._parquet, self._compression = parquet, compression
        self._files = 0
        for path in folder.names("data/*.parquet"):
            metadata = parquet.read_metadata(path)
            self._files = max(self._files, int(path.stem.rpartition("-")[2] or -1) + 1)
            self.rows += metadata.num_rows
            if METADATA not in (metadata.metadata or {}):
                raise self.foreign(path)
            about = json.loads(metadata.metadata[METADATA])
            self.episodes, self.layout = about["end_episode"], layout_from(about["columns"])
        if not (folder.path / CONFIG).exists():
            folder.publish_text(CONFIG, _CONFIG)

    def save(self, columns: Columns, lengths: Any) -> None:
        import pyarrow

        rows, end = int(lengths.sum()), self.episodes + len(lengths)
        about = {
            "rows": rows,
            "first_episode": self.episodes,
            "end_episode": end,
            "columns": described(layout_of(columns)),
        }
        columns = {EPISODE: numpy.repeat(numpy.arange(self.episodes, end), lengths), **columns}
        names, values = (
            [".".join(key) for key in columns],
            [arrow_of(values) for values in columns.values()],
        )
        table = pyarrow.Table.from_arrays(values, names=names)
        table = table.replace_schema_metadata({METADATA: json.dumps(about)})
        # Floats do not repeat, and a dictionary of them takes most of the time.
        options = {
            "compression": self._compression,
            "use_dictionary": False,
            "write_statistics": False,
        }
        self.folder.publish(
            f"data/train-{self._files:06}.parquet",
            lambda path: self._parquet.write_table(table, path, **options),
        )
        self._files, self.rows, self.episodes = self._files + 1, self.rows + rows, end


def arrow_of(values: Array) -> Any:
    """An array ``[rows, ...]`` as one of Arrow: lists of fixed size, of lists where a row has
    several dimensions.
    """
    import pyarrow

    shape = values.shape[1:]
    made = pyarrow.array(numpy.ascontiguousarray(values).reshape(-1))
    if shape not in ((), (1,)):
        for length in reversed(shape):
            made = pyarrow.FixedSizeListArray.from_arrays(made, length)
    return made


def array_of(name: str, column: Any) -> Array:
    """A column of Arrow as an array ``[rows, ...]``.

    Raises:
        ValueError: its lists differ in length, values are missing, or are no numbers.
    """
    import pyarrow
    from pyarrow import compute

    types, shape = pyarrow.types, [len(column)]
    made = column.combine_chunks() if isinstance(column, pyarrow.ChunkedArray) else column
    if isinstance(made, pyarrow.ChunkedArray):
        made = pyarrow.concat_arrays(made.chunks)
    while (
        types.is_fixed_size_list(made.type)
        or types.is_list(made.type)
        or types.is_large_list(made.type)
    ):
        lengths = compute.list_value_length(made).unique().to_pylist()
        # A list that is missing has the length None.
        if len(lengths) > 1 or None in lengths:
            raise ValueError(
                f"column {name}: expected lists of one length, got {', '.join(map(str, lengths[:4]))}"
            )
        made = made.flatten()
        shape.append(lengths[0] if lengths else 0)
    if made.null_count or not (
        types.is_boolean(made.type) or types.is_integer(made.type) or types.is_floating(made.type)
    ):
        raise ValueError(
            f"column {name}: expected numbers, got {made.type}"
            + (" with missing values" if made.null_count else "")
        )
    values = made.to_numpy(zero_copy_only=False).reshape(shape)
    return values if values.flags.writeable else values.copy()


def _columns_in(table: Any) -> Named:
    """The columns of a table; those of windrow have the keys and shapes of their entries."""
    about = json.loads((table.schema.metadata or {}).get(METADATA, b"{}")).get("columns", {})
    found = {
        name: array_of(name, table.column(name))
        for name in table.column_names
        if name != _ROW_NUMBERS
    }
    return by_entry(found, about)


def _read(path: Path) -> Iterator[Named]:
    pq = _needs.module("a data set of Parquet files", "pyarrow.parquet", "parquet")
    for file in files_at(path, ".parquet"):
        yield _columns_in(pq.read_table(file))


def _of_table(table: Any) -> Iterator[Named]:
    yield _columns_in(table)


def _of_dataset(dataset: Any) -> Iterator[Named]:
    # Selected rows are in another order than the table below.
    yield _columns_in(dataset.with_format("arrow")[:])


def _of_splits(dataset: Any) -> Iterator[Named]:
    if len(dataset) != 1:
        raise TypeError(
            f"expected one split of the data set, such as dataset[{next(iter(dataset))!r}], got {len(dataset)}"
        )
    return _of_dataset(next(iter(dataset.values())))


PARQUET = Format(
    "Parquet files",
    lambda path: bool(files_at(path, ".parquet")),
    _read,
    {
        ("datasets", "Dataset"): _of_dataset,
        ("datasets", "DatasetDict"): _of_splits,
        ("pyarrow", "Table"): _of_table,
    },
)
