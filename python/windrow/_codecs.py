"""Chooses the codec that reads and writes values: data only, or pickled objects too."""

from __future__ import annotations

from windrow._data import Data
from windrow._objects import Objects

_DATA, _OBJECTS = Data(), Objects()
_own_codec: Data = _OBJECTS


def codec(allow_pickle: bool, limit: int | None = None) -> Data:
    """The codec of a connection: objects if its ends ``allow_pickle``, otherwise only data, with
    the ``limit`` of :class:`~windrow._data.Data`.
    """
    return _OBJECTS if allow_pickle else _DATA if limit is None else Data(limit)


def own_codec() -> Data:
    """The codec of this process: for values in its batches, buffers and files, and for messages to
    the other processes of the program.
    """
    return _own_codec


def set_own_codec(allow_pickle: bool) -> None:
    """Sets the codec of this process, a worker: objects if its collector allows pickle
    (``allow_pickle``), otherwise only data.
    """
    global _own_codec
    _own_codec = codec(allow_pickle)
