"""What all sinks have in common."""

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Self

from windrow._arguments import Arguments, argument, one_of, takes
from windrow._keys import path as path_of
from windrow._numbers import at_least
from windrow.data._datasets._columns import Columns, Layout, columns_of, layout_of
from windrow.data._datasets._episodes import Episodes
from windrow.data._datasets._folder import Folder
from windrow.data._part import Key


class SinkArguments(Arguments):
    """Arguments of every sink."""

    path: str | os.PathLike[str] = argument(
        "the folder of the data set; one that is there goes on", kw_only=False
    )
    rows_per_file: int | None = argument(
        "frames from which on a file is written; by default only bytes_per_file decides",
        more="a file has whole episodes, so it has more frames than that, by less than a batch and an episode",
        default=None,
        check=at_least(1),
    )
    bytes_per_file: int = argument(
        "bytes of frames from which on a file is written", default=64 * 2**20, check=at_least(1)
    )
    unfinished: Literal["truncate", "drop"] = argument(
        "what becomes of episodes that have not ended",
        more='when the sink is closed: ``"truncate"`` marks the last frame of each as truncated, ``"drop"`` leaves them out',
        default="truncate",
        check=one_of("truncate", "drop"),
    )
    keys: Sequence[Key] | None = argument(
        "the entries that are written; all by default",
        more="flags of the ends of episodes are written in any case; an ``episode_index`` stands for ids of trajectories",
        default=None,
    )


class Writer:
    """Writes files of a format into a folder."""

    #: Names of columns that the format adds: no entry can have one.
    reserved: ClassVar[frozenset[str]] = frozenset()
    #: Frames and episodes in the files of the folder.
    rows = episodes = 0
    #: Of the frames in them, where there are any.
    layout: Layout | None = None

    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    def accept(self, columns: Columns) -> None:
        """Looks at the first batch.

        Raises:
            ValueError: the format cannot have it.
        """

    def foreign(self, path: os.PathLike[str]) -> ValueError:
        """The error that another program wrote the file."""
        return ValueError(
            f"{path} was not written by windrow, which cannot go on with its data set: give the sink another folder"
        )

    def save(self, columns: Columns, lengths: Any) -> None:
        """Adds whole episodes, of so many frames each: all of them become visible, or none."""
        raise NotImplementedError


class _Core:
    """A sink without the object that the user has: it outlives that by its last write."""

    def __init__(self, writer: Writer, arguments: SinkArguments) -> None:
        self.writer, self.arguments = writer, arguments
        keys = [arguments.keys] if isinstance(arguments.keys, str) else arguments.keys
        self.keys = None if keys is None else [path_of(key) for key in keys]
        self.episodes = Episodes()
        self.layout = writer.layout
        self.is_accepted = False
        self.lock = threading.Lock()
        self.is_closed = False
        self.process = os.getpid()

    def write(self, batch: Any, author: int | None) -> None:
        columns, shape = columns_of(batch, self.keys)
        with self.lock:
            if self.is_closed:
                raise RuntimeError(
                    f"the data set {self.writer.folder.path} is closed: make another sink, which goes on with it"
                )
            layout = layout_of(columns)
            self._check(layout)
            if not self.is_accepted:
                self._check_names(layout)
                self.writer.accept(columns)
                self.is_accepted = True
            # Before the batch is taken: a batch whose write fails was not, and can be written
            # again.
            rows = self.arguments.rows_per_file
            if self.episodes.bytes >= self.arguments.bytes_per_file or (
                rows is not None and self.episodes.rows >= rows
            ):
                self._save()
            self.episodes.add(columns, shape, author)
            self.layout = layout

    def _check(self, layout: Layout) -> None:
        """Checks that a batch has the entries of those before."""
        for key in dict.fromkeys([*self.layout, *layout]) if self.layout else ():
            before, now = (_shown(found.get(key)) for found in (self.layout or {}, layout))
            if before != now:
                raise ValueError(
                    f"entry {'.'.join(key)}: expected {before}, as in the rest of {self.writer.folder.path}, got {now}"
                )

    def _check_names(self, layout: Layout) -> None:
        """Checks that no entry would take the place of a column that the format adds."""
        for name in (".".join(key) for key in layout):
            if name in self.writer.reserved:
                raise ValueError(
                    f"entry {name}: the format has a column of its own with this name, in "
                    f"{self.writer.folder.path}: rename the entry, or name those to write without it, keys=[...]"
                )

    def flush(self) -> None:
        with self.lock:
            if not self.is_closed:
                self._save()

    def _save(self) -> None:
        if self.episodes.whole:
            self.writer.save(*self.episodes.take())
            self.episodes.clear()

    def close(self) -> None:
        # A process that was forked has a copy.
        if os.getpid() != self.process:
            return
        with self.lock:
            if self.is_closed:
                return
            self.episodes.cut(keep=self.arguments.unfinished == "truncate")
            self._save()
            self.is_closed = True
            self.writer.folder.close()


def _shown(column: tuple[str, tuple[int, ...]] | None) -> str:
    return "no such entry" if column is None else f"{column[0]} {list(column[1])}"


class Sink:
    """Writes batches into a data set. Give it to a collector as its ``replay_buffer``, or batches
    to :meth:`extend`.
    """

    #: Collectors number their trajectories alike.
    _tells_writers_apart: ClassVar[bool] = True
    _target: _Core

    def _begin(self, arguments: SinkArguments, writer: Callable[[Folder], Writer]) -> None:
        folder = Folder(arguments.path)
        try:
            self._target = _Core(writer(folder), arguments)
        except BaseException:
            folder.close()
            raise
        # Frames of a sink that nobody closes are written when the program ends.
        self._end = weakref.finalize(self, self._target.close)

    def extend(self, batch: Any) -> None:
        """Takes a batch, and first writes a file if the frames before fill one.

        Episodes go on in the next batch: under the same id of ``("collector", "traj_ids")`` or,
        without ids, in the same row. Rows that the entry ``("collector", "mask")`` leaves out are
        padding.

        Args:
            batch: a TensorDict ``[time]`` or ``[..., time]``, with ``("next", "done")``.

        Raises:
            OSError: the file could not be written; the message has its path. The batch was not
                taken, and those before are kept: what was in the way can be removed, and the batch
                written again.
            TypeError: an entry is no tensor, or of a type that no data set has.
            ValueError: entries differ from those of the batches before, or do not say where
                episodes end; or an entry has the name of a column that the format adds.
            RuntimeError: the sink was closed.
        """
        self._target.write(batch, None)

    def _write(
        self, batch: Any, given_up: Callable[[], bool] | None = None, collector: int | None = None
    ) -> None:
        """As :meth:`extend`, for the collector with this number. A write waits for the disk only,
        so it is not given up.
        """
        self._target.write(batch, collector)

    def flush(self) -> None:
        """Writes the episodes that are whole into a file.

        Raises:
            OSError: as of :meth:`extend`.
        """
        self._target.flush()

    def close(self) -> None:
        """Writes what there is, ends the episodes that have not ended as ``unfinished`` says, and
        lets others write the folder.

        A sink that is not closed is when it is freed, and at the end of the program.

        Raises:
            OSError: as of :meth:`extend`; closing again tries again.
        """
        self._target.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> str:
        """The folder of the data set."""
        return str(self._target.writer.folder.path)

    @property
    def num_rows(self) -> int:
        """Frames in the files of the data set, those of earlier programs included. They are safe,
        however the program ends.
        """
        return self._target.writer.rows

    @property
    def num_episodes(self) -> int:
        """Episodes in the files of the data set."""
        return self._target.writer.episodes

    def __repr__(self) -> str:
        closed = ", closed" if self._target.is_closed else ""
        return f"{type(self).__name__}({self.path!r}, {self.num_rows} frames and {self.num_episodes} episodes in files{closed})"


__all__ = ["Sink", "SinkArguments", "Writer", "takes"]
