"""Batches cut into whole episodes."""

from __future__ import annotations

from typing import Any

from windrow._lazy import numpy
from windrow.data._datasets._columns import DONE, IDS, MASK, TRUNCATED, Columns, joined, size

#: A trajectory: its author, and its number there.
Trajectory = tuple[int | None, int]


class Episodes:
    """Frames that no file has yet: those of whole episodes, and those of episodes that have not
    ended.

    A batch costs a few operations on arrays, and one more for each episode that it does not hold
    from its first frame to its last.
    """

    def __init__(self) -> None:
        #: Pieces of episodes that have not ended.
        self.open: dict[Trajectory, list[Columns]] = {}
        #: Whole episodes, one after the other.
        self.whole: list[Columns] = []
        #: Of batches without ids: how many episodes each row of the batch has ended.
        self._ended: dict[int, int] = {}

    @property
    def rows(self) -> int:
        """Frames of whole episodes."""
        return sum(len(chunk[DONE]) for chunk in self.whole)

    @property
    def bytes(self) -> int:
        """Size of whole episodes."""
        return sum(map(size, self.whole))

    def add(self, columns: Columns, shape: tuple[int, ...], author: int | None) -> None:
        """Adds the frames of a batch, whose columns are views of its memory.

        Raises:
            ValueError: they do not say which episodes they belong to.
        """
        columns = dict(columns)
        mask = columns.pop(MASK, None)
        ids, done, ended = self._marks(columns, shape, author)
        if mask is not None:
            there = numpy.flatnonzero(mask.reshape(len(done), -1).all(1))
            columns = {key: values[there] for key, values in columns.items()}
            ids, done = ids[there], done[there]
        if not len(done):
            return
        ends = numpy.flatnonzero(numpy.append((ids[1:] != ids[:-1]) | done[:-1], True)) + 1
        starts = numpy.concatenate([[0], ends[:-1]])
        numbers, has_ended = ids[starts], done[ends - 1]
        # In pieces: episodes that began in an earlier batch, and those that have a piece without an
        # end in this one.
        known = [number for owner, number in self.open if owner == author]
        pieces = numpy.isin(
            numbers, numpy.concatenate([numbers[~has_ended], numpy.asarray(known, numbers.dtype)])
        )
        whole = numpy.flatnonzero(numpy.repeat(~pieces, ends - starts))
        new = (
            [{key: values.take(whole, axis=0) for key, values in columns.items()}]
            if len(whole)
            else []
        )
        open = dict(self.open)
        for at in numpy.flatnonzero(pieces):
            trajectory = author, int(numbers[at])
            # Copies: the collector uses the memory of the batch again.
            piece = {key: values[starts[at] : ends[at]].copy() for key, values in columns.items()}
            earlier = [*open.pop(trajectory, ()), piece]
            if has_ended[at]:
                new.append(joined(earlier))
            else:
                open[trajectory] = earlier
        # All of the batch or, where something above failed, nothing.
        self.open, self.whole, self._ended = open, [*self.whole, *new], ended

    def take(self) -> tuple[Columns, Any]:
        """The whole episodes, and the number of frames of each. They stay until :meth:`clear`."""
        columns = joined(self.whole)
        self.whole = [columns]
        ends = numpy.flatnonzero(columns[DONE].reshape(len(columns[DONE]), -1).any(1)) + 1
        return columns, numpy.diff(ends, prepend=0)

    def clear(self) -> None:
        """Lets go of the whole episodes."""
        self.whole = []

    def cut(self, *, keep: bool) -> None:
        """Ends the episodes that have not ended: the last frame of each is marked as truncated, or
        all its frames are dropped.
        """
        for pieces in self.open.values() if keep else ():
            columns = joined(pieces)
            # A copy: an array of one piece may be one of the batch.
            for key in (DONE, TRUNCATED):
                if key in columns:
                    columns[key] = columns[key].copy()
                    columns[key][-1] = True
            self.whole.append(columns)
        self.open = {}

    def _marks(
        self, columns: Columns, shape: tuple[int, ...], author: int | None
    ) -> tuple[Any, Any, dict[int, int]]:
        """The number of each frame's episode, whether it ends with the frame, and the next
        ``_ended``. Takes the ids out of the columns.
        """
        rows = len(columns[DONE])
        done = columns[DONE].reshape(rows, -1).any(1)
        ids = columns.pop(IDS, None)
        if ids is not None:
            return ids.reshape(rows, -1)[:, 0], done, self._ended
        if author is not None:
            raise ValueError(
                'expected an entry ("collector", "traj_ids"), which track_traj_ids=False leaves out: episodes need it'
            )
        by_row = done.reshape(-1, shape[-1])
        before = numpy.cumsum(by_row, axis=1) - by_row
        first = numpy.array([self._ended.get(row, 0) for row in range(len(by_row))])
        after = {
            **self._ended,
            **{row: int(first[row] + ended) for row, ended in enumerate(by_row.sum(1))},
        }
        return (
            ((first[:, None] + before) * _ROWS + numpy.arange(len(by_row))[:, None]).reshape(-1),
            done,
            after,
        )


#: Most rows of a batch without ids.
_ROWS = 2**24
