"""Values as bytes, any object among them, by pickle: for bytes that this program wrote itself.

Whoever wrote such bytes can run any code where they are read. So :class:`windrow._data.Data`, which
has no pickle, reads what a connection brings, unless the user gives ``allow_pickle=True`` at both
ends.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from typing import Any

from windrow import _data
from windrow._data import NONE, OBJECT, TEXT, Data, shown
from windrow._lazy import torch
from windrow.processes.pickling import dumps

#: Exceptions that take more bytes than this are sent by their text alone.
_LONG = 1 << 20


class Objects(Data):
    """A codec for any object. It writes text and tensors as :class:`~windrow._data.Data` does, and
    pickles everything else.
    """

    allow_pickle = True

    def write(self, value: object, names: str | Sequence[str] = ()) -> bytes:
        """The value of the entry ``names`` as bytes.

        Raises:
            TypeError: the value cannot be pickled.
        """
        if value is None:
            return NONE
        if type(value) is str:
            return TEXT + value.encode("utf-8", "surrogatepass")
        try:
            # No tensor is made where torch is not imported.
            if (
                "torch" in sys.modules
                and isinstance(value, torch.Tensor)
                and value.layout is torch.strided
            ):
                return _data.tensor(value)
            return OBJECT + pickle.dumps(value)
        except Exception:
            try:
                # Classes of a script or a notebook.
                return OBJECT + dumps(value)
            except Exception as error:
                raise TypeError(
                    f"{shown((names,) if isinstance(names, str) else names)}expected what can be pickled, as batches and buffers keep "
                    f"objects, got a {type(value).__name__}: {error}. Leave the entry out, or make text or tensors of it"
                ) from error

    def read(self, given: bytes) -> Any:
        """The value that the bytes ``given`` encode; None if they are empty.

        Raises:
            ValueError: the bytes encode no value.
            Exception: whatever unpickling an object raises.
        """
        return pickle.loads(given[1:]) if given[:1] == OBJECT else super().read(given)

    def write_error(self, error: BaseException) -> bytes:
        """An exception as data and, if it can be unpickled again, also pickled."""
        try:
            pickled = dumps(error)
            # Some exceptions can be pickled and not unpickled: their constructors take other
            # arguments.
            pickle.loads(pickled)
            pickled = pickled if len(pickled) <= _LONG else b""
        except BaseException:
            pickled = b""
        as_data = Data().write_error(error)
        return OBJECT + pickle.dumps((pickled, as_data)) if pickled else as_data

    def read_error(self, sent: bytes) -> BaseException:
        """The exception that :meth:`write_error` has written. It has its own type if that can be
        unpickled here.
        """
        if sent[:1] != OBJECT:
            return Data().read_error(sent)
        pickled, as_data = pickle.loads(sent[1:])
        made = Data().read_error(as_data)
        try:
            error = pickle.loads(pickled)
        except Exception:
            return made
        if not isinstance(error, BaseException):
            return made
        error.__cause__ = made.__cause__
        return error
