"""The folder of a data set: its files become visible when they are whole, and one process at a time
writes them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

_LOCK = ".windrow.lock"
#: Endings of hidden names: of a file or folder that is being written, so that no reader takes it
#: for a part of the data set, and of one that is being replaced. By these endings the next sink
#: knows what an earlier process left behind, and removes nothing else.
_PARTIAL, _OLD = ".windrow-partial", ".windrow-before"

_held: set[Path] = set()
_holding = threading.Lock()


class Folder:
    """A folder that this process writes. Files that an earlier process was writing when it ended
    are removed.

    ``path`` has all symbolic links resolved. So hidden names beside it are on the same disk, and a
    link remains one when the folder is exchanged.

    Raises:
        RuntimeError: it is being written already.
        OSError: it cannot be made; the message has the path.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.realpath(path))
        with named_errors(self.path):
            old, aside = (_beside(self.path, end) for end in (_OLD, _PARTIAL))
            if old.exists() and not self.path.exists():
                # A process was killed between two names.
                os.rename(old, self.path)
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = self._locked()
            for leftover in (old, aside):
                shutil.rmtree(leftover, ignore_errors=True)
            for leftover in self.path.rglob(f".*{_PARTIAL}"):
                leftover.unlink()

    def _locked(self) -> TextIO:
        busy = f"{self.path} is being written by %s: close that one first, or give this one a folder of its own"
        with _holding:
            if self.path in _held:
                raise RuntimeError(busy % "another sink of this program")
            file = open(self.path / _LOCK, "a")
            try:
                _lock_file(file)
            except OSError as error:
                file.close()
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise RuntimeError(busy % "another process") from None
                raise
            _held.add(self.path)
        return file

    def publish(self, name: str, write: Callable[[Path], object]) -> None:
        """Makes ``write`` write a file, which gets its name when all of it is on the disk.

        Raises:
            OSError: that failed; the message has the path. There is no file then, or the one
                before.
        """
        path = self.path / name
        partial = _beside(path, _PARTIAL)
        with named_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                write(partial)
                flush(partial)
                os.replace(partial, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    partial.unlink(missing_ok=True)
                raise
            flush(path.parent)

    def publish_text(self, name: str, text: str) -> None:
        """:meth:`publish` of a text."""
        self.publish(name, lambda path: path.write_text(text, encoding="utf-8"))

    def exchange(self, write: Callable[[Path], None]) -> None:
        """Makes ``write`` add files to a folder of links to all files, which takes the place of
        this one when all of it is on the disk.

        Raises:
            OSError: that failed; the message has the path. The folder is as it was.
        """
        aside = _beside(self.path, _PARTIAL)
        with named_errors(self.path):
            shutil.rmtree(aside, ignore_errors=True)
            try:
                before = _linked(self.path, aside)
                write(aside)
                for path in sorted(aside.rglob("*"), reverse=True):
                    if path.is_dir() or path.stat().st_ino not in before:
                        flush(path)
                flush(aside)
                _exchange(aside, self.path)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
            flush(self.path.parent)

    def check_exchange(self) -> None:
        """Checks that :meth:`exchange` can copy the folder by links to its files.

        Raises:
            ValueError: a folder in it is a symbolic link, which a folder would replace.
        """
        for path in self.path.rglob("*"):
            if path.is_symlink() and path.is_dir():
                raise ValueError(
                    f"{path}: expected a folder, got a link to {path.resolve()}: move that one here, "
                    f"or let {self.path} as a whole be a link"
                )

    def names(self, pattern: str) -> list[Path]:
        """The files of a pattern, in the order of their names."""
        return sorted(path for path in self.path.glob(pattern) if not path.name.startswith("."))

    def close(self) -> None:
        """Lets others write the folder."""
        with _holding:
            self._lock.close()
            _held.discard(self.path)


def _beside(path: Path, end: str) -> Path:
    return path.with_name(f".{path.name}{end}")


def _linked(folder: Path, copy: Path) -> set[int]:
    """Makes a folder of links to the files in another; returns their numbers."""
    copy.mkdir()
    found = set()
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            (copy / path.relative_to(folder)).mkdir()
        else:
            os.link(path, copy / path.relative_to(folder))
            found.add(path.stat().st_ino)
    return found


def _exchange(one: Path, other: Path) -> None:
    """Exchanges the names of two folders at once or, where the system cannot, one after the
    other.
    """
    call = (
        getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if sys.platform == "linux"
        else None
    )
    if (
        call is not None
        and call(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0
    ):
        return
    if call is not None and (number := ctypes.get_errno()) not in (errno.ENOSYS, errno.EINVAL):
        raise OSError(number, os.strerror(number))
    old = _beside(other, _OLD)
    os.rename(other, old)
    os.rename(one, other)
    os.rename(old, one)


#: Of the system call: names are relative to the working directory, and are exchanged.
_HERE, _EXCHANGE = -100, 2


def flush(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    if path.is_dir() and os.name == "nt":
        return
    file = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextlib.contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Errors of the system within have the path."""
    try:
        yield
    except OSError as error:
        number = error.errno or next(
            (
                one
                for one in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
                if os.strerror(one) in str(error)
            ),
            errno.EIO,
        )
        reason = os.strerror(number) if number != errno.EIO else str(error)
        raise OSError(number, f"a data set could not be written: {reason}", str(path)) from error


def _lock_file(file: TextIO) -> None:
    """Locks a file until it is closed, or the process ends."""
    try:
        import fcntl
    except ModuleNotFoundError:
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        # Of the process: those that it forks do not keep it.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
