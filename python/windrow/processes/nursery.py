"""A process that has imported what workers need, and forks them:
``python -m windrow.processes.nursery MODULE ...``, which collectors start.

A worker then starts in some milliseconds, and shares most of its memory with the others, so that
they find it in the caches of a core that they take turns on. ``windrow_peer::Nursery`` is the other
side.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os
import pickle
import select
import signal
import socket
import struct
import sys
import traceback
from typing import NoReturn

from windrow.processes import worker

#: The variants of what a nursery says, in the order of the engine's type.
_BORN, _ENDED = 0, 1
#: Length of the body and number of descriptors, before the body of a frame.
_HEAD = struct.Struct("<QB")
#: Variant and number.
_BODY = struct.Struct("<Bi")


class _Nursery:
    def __init__(self, control: socket.socket, parent: int) -> None:
        self.control = control
        self.parent = parent
        #: By its descriptor: the socket that reports on a worker to the parent, and the worker's
        #: process.
        self.births: dict[int, tuple[socket.socket, int]] = {}
        self.is_serving = True
        self.has_complained = False
        self.poll = select.poll()
        self.poll.register(control, select.POLLIN)
        self.poll.register(parent, select.POLLIN)

    def run(self) -> None:
        """Forks workers until the parent has ended, or closes the connection and all workers have
        ended.
        """
        while self.is_serving or self.births:
            for fd, _ in self.poll.poll():
                if fd == self.parent:
                    return
                if fd == self.control.fileno():
                    self.answer()
                else:
                    self.reap(fd)

    def answer(self) -> None:
        head, fds, _, _ = socket.recv_fds(self.control, _HEAD.size, 6, socket.MSG_CMSG_CLOEXEC)
        if not head:
            self.poll.unregister(self.control)
            self.is_serving = False
            return
        try:
            # Fewer where there was no room. The parent hears of what is not done by the end of the
            # last one.
            if len(fds) == 6 and self.may_fork():
                with contextlib.suppress(OSError):
                    self.fork(fds)
        finally:
            for fd in fds:
                os.close(fd)

    def may_fork(self) -> bool:
        """A fork copies one thread alone, and no state of a GPU: locks of other threads would stay
        locked for ever.
        """
        threads = len(os.listdir("/proc/self/task"))
        on_gpu = "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized()
        if threads == 1 and not on_gpu:
            return True
        if not self.has_complained:
            self.has_complained = True
            found = "has used a GPU" if on_gpu else f"has {threads} threads"
            print(
                f"windrow: the process that would fork workers {found}; they are started one by one instead",
                file=sys.stderr,
            )
        if not self.births:
            sys.stderr.flush()
            os._exit(3)
        return False

    def fork(self, fds: list[int]) -> None:
        pid = os.fork()
        if pid == 0:
            self.become(fds)
        with contextlib.suppress(OSError):
            # As the worker does, whichever comes first.
            os.setpgid(pid, pid)
        birth = socket.socket(fileno=fds.pop())
        self.births[birth.fileno()] = birth, pid
        self.poll.register(birth, select.POLLIN)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            self.reap(birth.fileno())
            return
        try:
            _tell(birth, _BORN, pid, pidfd)
        finally:
            os.close(pidfd)

    def reap(self, fd: int) -> None:
        """The parent has seen the end of a worker, or wants it. Its number is no other's as long as
        it was not waited for.
        """
        birth, pid = self.births.pop(fd)
        self.poll.unregister(fd)
        with birth:
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(OSError):
                    kill(pid, signal.SIGKILL)
            _tell(birth, _ENDED, os.waitpid(pid, 0)[1])

    def become(self, fds: list[int]) -> NoReturn:
        """Runs this process, which was forked, as a worker."""
        try:
            os.setpgid(0, 0)
            control, output, errors, folder, request, _ = fds
            os.fchdir(folder)
            for place, fd in enumerate((control, output, errors)):
                os.dup2(fd, place)
            asked = os.pread(request, os.fstat(request).st_size, 0)
            # Others would wait in vain for the end of what this process holds open.
            for fd in (*fds, *self.births, self.control.fileno(), self.parent):
                os.close(fd)
            _prepare(*pickle.loads(asked))
            worker.serve()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)


def _tell(birth: socket.socket, variant: int, number: int, *fds: int) -> None:
    with contextlib.suppress(OSError):
        socket.send_fds(birth, [_HEAD.pack(_BODY.size, len(fds)), _BODY.pack(variant, number)], fds)


def _prepare(parent: int, path: list[str], variables: dict[str, str], threads: int) -> None:
    """Makes this process what it would be if the process ``parent`` had started it."""
    os.environ.clear()
    os.environ.update(variables, WINDROW_WORKER=f"2:{parent}:{os.getppid()}")
    sys.path[:] = path
    importlib.invalidate_caches()
    # Each worker would draw the same numbers. Python's own generator sees to that itself.
    sys.modules["numpy"].random.seed()
    if torch := sys.modules.get("torch"):
        torch.seed()
        torch.set_num_threads(threads)


def main() -> None:
    """Forks workers for the process that has started this one, and ends with it."""
    # No descriptor that comes later takes the place of a standard one that is closed.
    while (fd := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    try:
        control = socket.socket(fileno=os.dup(0))
        (peer,) = struct.unpack_from(
            "i", control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
        parent = os.pidfd_open(peer)
    except OSError:
        peer = None
    if peer != os.getppid():
        sys.exit("windrow.processes.nursery is started by collectors of windrow, which talk to it")
    os.dup2(fd, 0)
    os.close(fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in sys.argv[1:]:
        importlib.import_module(module)
    if importlib.util.find_spec("gymnasium"):
        importlib.import_module("gymnasium")
    # Not written to by a collection in a worker, so it stays shared.
    gc.collect()
    gc.freeze()
    _Nursery(control, parent).run()
    # Handlers at the exit belong to programs.
    os._exit(0)


if __name__ == "__main__":
    main()
