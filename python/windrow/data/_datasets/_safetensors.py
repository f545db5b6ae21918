"""Safetensors: a file for each piece of the data set, with a tensor for each entry."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from windrow import _needs
from windrow._lazy import numpy
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


class SafetensorsSink(Sink):
    """Writes whole episodes into files of safetensors, each a tensor ``[rows, ...]`` for each
    entry, as they are in memory.

    A tensor has the names of its entry's key, joined by dots, such as ``next.reward``.
    ``episode_index`` numbers the episodes. The metadata of a file count its rows and episodes. A
    file appears when it is whole and on the disk, and a sink of a folder that is there goes on with
    it.

    Raises:
        ImportError: safetensors is not installed.
        RuntimeError: another sink writes the folder.
        OSError: the folder cannot be written.
    """

    @takes(SinkArguments)
    def __init__(self, arguments: SinkArguments) -> None:
        library = _needs.module("SafetensorsSink", "safetensors.numpy", "safetensors")
        self._begin(arguments, lambda folder: _SafetensorsWriter(folder, library))


class _SafetensorsWriter(Writer):
    reserved = frozenset({".".join(EPISODE), "__metadata__"})

    def __init__(self, folder: Folder, library: Any) -> None:
        super().__init__(folder)
        self._library = library
        self._files = 0
        for path in folder.names("*.safetensors"):
            about = _metadata(path)
            if "end_episode" not in about:
                raise self.foreign(path)
            self._files, self.rows, self.episodes = (
                int(path.stem) + 1,
                self.rows + int(about["rows"]),
                int(about["end_episode"]),
            )
            self.layout = layout_from(json.loads(about["columns"]))

    def save(self, columns: Columns, lengths: Any) -> None:
        rows, end = int(lengths.sum()), self.episodes + len(lengths)
        about = {"rows": rows, "first_episode": self.episodes, "end_episode": end}
        metadata = {
            **{name: str(value) for name, value in about.items()},
            "columns": json.dumps(described(layout_of(columns))),
        }
        columns = {EPISODE: numpy.repeat(numpy.arange(self.episodes, end), lengths), **columns}
        tensors = {
            ".".join(key): numpy.ascontiguousarray(values) for key, values in columns.items()
        }
        self.folder.publish(
            f"{self._files:06}.safetensors",
            lambda path: path.write_bytes(self._library.save(tensors, metadata)),
        )
        self._files, self.rows, self.episodes = self._files + 1, self.rows + rows, end


def _metadata(path: Path) -> dict[str, str]:
    with open(path, "rb") as file:
        header: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return dict(header.get("__metadata__", {}))


def _read(path: Path) -> Iterator[Named]:
    library = _needs.module("a data set of safetensors files", "safetensors.numpy", "safetensors")
    for file in files_at(path, ".safetensors"):
        yield by_entry(library.load_file(file), json.loads(_metadata(file).get("columns", "{}")))


SAFETENSORS = Format("safetensors files", lambda path: bool(files_at(path, ".safetensors")), _read)
