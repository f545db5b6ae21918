"""Which way of reading values holds where: data alone, or objects too."""

from __future__ import annotations

from windrow._data import Data
from windrow._objects import Objects

_DATA, _OBJECTS = Data(), Objects()
_own: Data = _OBJECTS


def codec(allow_pickle: bool, limit: int | None = None) -> Data:
    """Reads and writes what a connection brings: data, with a ``limit`` as of
    :class:`~windrow._data.Data`, and objects where both ends ``allow_pickle``.
    """
    return _OBJECTS if allow_pickle else _DATA if limit is None else Data(limit)


def own() -> Data:
    """Reads and writes what this program keeps in batches, buffers and files, and what its
    processes say to each other.
    """
    return _own


def become_elsewhere(allow_pickle: bool) -> None:
    """Notes that this process is a worker, whose collector reads objects where it may
    ``allow_pickle``, and otherwise data alone.
    """
    global _own
    _own = codec(allow_pickle)
