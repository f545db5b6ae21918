"""The socket by which clients in other processes send requests to an inference server. Messages
are read without pickle, unless both ends allow it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import AuthenticationError, util
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import TYPE_CHECKING, Any

from windrow import _codecs, _data
from windrow._lazy import module, tensordict

if TYPE_CHECKING:
    from windrow.modules._inference import InferenceServer

_acting = module("windrow.policies.acting")

#: Seconds that a greeting may take, and for which a client tries to connect.
_GREETING, _PATIENCE = 10.0, 60.0
#: Most connections that have not proved yet that they know the key. Another one displaces the
#: oldest.
_STRANGERS = 256
#: Most bytes of a request or an answer.
_MOST = 1 << 30
#: Seconds between attempts to accept or open a connection, after one has failed.
_PAUSE = 0.1

_data_alone = _codecs.codec(False)

Address = str | tuple[str, int]


class _Line:
    """A connection, which any thread can cut."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(True)
        self._socket = end
        self._connection = Connection(end.dup().detach())

    def challenge(self, key: bytes) -> None:
        """Raises AuthenticationError unless the other side knows the key."""
        deliver_challenge(self._connection, key)

    def prove(self, key: bytes) -> None:
        """Proves to the other side that this side knows the key, without sending it."""
        answer_challenge(self._connection, key)

    def send(self, *message: object) -> None:
        """Sends the tuple ``message``, as data."""
        written = _data_alone.write(message)
        if len(written) > _MOST:
            raise ValueError(f"expected at most {_MOST} bytes to send at once, got {len(written)}")
        self._connection.send_bytes(written)

    def receive(self) -> Any:
        """The next tuple that the other side sends."""
        return _data_alone.read(self._connection.recv_bytes(_MOST))

    def cut(self) -> None:
        """Shuts the connection down, so that no thread waits at it any more."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the sockets. Only the thread that uses the connection calls this."""
        self._socket.close()
        self._connection.close()


class Door:
    """Serves clients in other processes of this machine, each in a thread of its own.

    Each greeting has a time limit, and runs in the thread of its connection: so silent connections
    keep nobody out. :meth:`close` waits for none of them.
    """

    def __init__(self, server: InferenceServer, allow_pickle: bool) -> None:
        self._server = weakref.ref(server, lambda _: self.close())
        self._codec, self._key = _codecs.codec(allow_pickle), secrets.token_bytes(32)
        self._socket, address = _listening()
        self.address = address, self._key
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._is_closed = False
        #: Connections that have not proved yet that they know the key, the oldest first, each with
        #: the time when its greeting ends; and connections that have.
        self._strangers: dict[_Line, float] = {}
        self._guests: set[_Line] = set()
        threading.Thread(target=self._receive, name="windrow-door", daemon=True).start()

    def close(self) -> None:
        """Ends all connections. Called once the server has ended."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")
        if isinstance(self.address[0], str):
            with contextlib.suppress(OSError):
                os.unlink(self.address[0])
        for line in [*self._strangers, *self._guests]:
            line.cut()

    def _receive(self) -> None:
        with self._socket, self._wake, self._woken, selectors.DefaultSelector() as selector:
            for end in (self._socket, self._woken):
                selector.register(end, selectors.EVENT_READ)
            while not self._is_closed:
                selector.select(self._until_next())
                self._drop_late()
                if not self._is_closed:
                    self._let_in()
        # A connection may have been accepted since the first `close`.
        self.close()

    def _until_next(self) -> float | None:
        """Seconds until the oldest greeting reaches its time limit; None without greetings."""
        end = next(iter(self._strangers.values()), None)
        return None if end is None else max(0.0, end - time.monotonic())

    def _drop_late(self) -> None:
        """Ends greetings whose time is over, and the oldest ones if there are too many."""
        now = time.monotonic()
        for line, end in list(self._strangers.items()):
            if end <= now or len(self._strangers) >= _STRANGERS:
                self._strangers.pop(line, None)
                line.cut()

    def _let_in(self) -> None:
        try:
            end, _ = self._socket.accept()
            line = _Line(end)
        except BlockingIOError:
            return
        except OSError:
            # No file descriptor is left, or the other side has gone.
            time.sleep(_PAUSE)
            return
        self._strangers[line] = time.monotonic() + _GREETING
        threading.Thread(
            target=self._serve, args=(line,), name="windrow-guest", daemon=True
        ).start()

    def _serve(self, line: _Line) -> None:
        try:
            # A bad message ends only its own connection.
            with contextlib.suppress(Exception):
                line.challenge(self._key)
                line.prove(self._key)
                self._guests.add(line)
                if self._strangers.pop(line, None) is not None and not self._is_closed:
                    self._answer(line)
        finally:
            self._strangers.pop(line, None)
            self._guests.discard(line)
            line.close()

    def _answer(self, line: _Line) -> None:
        """Answers requests until the connection or the server ends."""
        server = self._server()
        client: Any = None if server is None else server.client()
        del server
        while client is not None:
            context, request = line.receive()
            # The answer has objects only if the request has, which says that the client reads them.
            codec = self._codec if request[:1] == _data.OBJECT else _data_alone
            try:
                given = self._codec.read(request)
                if not isinstance(given, tensordict.TensorDictBase) or not (
                    context is None or isinstance(context, str)
                ):
                    raise TypeError(
                        f"expected a TensorDict as request, got a {type(given).__name__}"
                    )
                answer = codec.write(client._answer_to(given, context))
            except Exception as error:
                line.send(True, codec.write_error(error))
            else:
                line.send(False, answer)


def _listening() -> tuple[socket.socket, Address]:
    """A listening socket that only this machine reaches, and its address."""
    if os.name == "posix":
        end = socket.socket(socket.AF_UNIX)
        # In a folder that only this user can open, and that is removed when the program ends.
        address: Address = os.path.join(util.get_temp_dir(), f"windrow-{secrets.token_hex(8)}")
    else:
        end, address = socket.socket(), ("127.0.0.1", 0)
    end.bind(address)
    end.listen(128)
    end.setblocking(False)
    return end, end.getsockname()


class RemoteClient:
    """An :class:`~windrow.modules.InferenceClient` in a process other than its server's."""

    def __init__(self, address: Address, key: bytes, allow_pickle: bool = False) -> None:
        self._made_with = address, key, allow_pickle
        self._codec = _codecs.codec(allow_pickle)
        self._lock = threading.Lock()
        self._line: _Line | None = None

    def __call__(self, tensordict: tensordict.TensorDictBase) -> tensordict.TensorDictBase:
        request = self._codec.write(tensordict)
        with self._lock:
            try:
                if self._line is None:
                    self._line = _connected(*self._made_with[:2])
                self._line.send(_acting.context(), request)
                is_raised, sent = self._line.receive()
            except BaseException as error:
                # The answer may still arrive, and must not be taken for that of the next request.
                line, self._line = self._line, None
                if line is not None:
                    line.close()
                if isinstance(error, (EOFError, OSError)):
                    raise RuntimeError(
                        "the inference server has ended: its process closed the connection"
                    ) from error
                raise
        if is_raised:
            raise self._codec.read_error(sent)
        answer = self._codec.read(sent)
        return (
            answer
            if tensordict.device is None or answer.device == tensordict.device
            else answer.to(tensordict.device)
        )

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return RemoteClient, self._made_with


def _connected(address: Address, key: bytes) -> _Line:
    """A connection to the server, after a greeting in which both have proved that they know
    ``key``.

    Raises:
        OSError: no server listens at ``address``, or no greeting was completed in time.
        EOFError: the server closed every connection during its greeting.
        AuthenticationError: the server has another key.
    """
    until = time.monotonic() + _PATIENCE
    while True:
        end = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        try:
            end.connect(address)
        except BaseException:
            end.close()
            raise
        line = _Line(end)
        try:
            with _cut_after(line, _GREETING):
                line.prove(key)
                line.challenge(key)
            return line
        except (EOFError, OSError, AuthenticationError) as error:
            line.close()
            # A server with too many new connections may have dropped this one.
            if isinstance(error, AuthenticationError) or time.monotonic() > until:
                raise
            time.sleep(_PAUSE)


@contextlib.contextmanager
def _cut_after(line: _Line, seconds: float) -> Iterator[None]:
    """Cuts ``line`` if the block has not ended within ``seconds``."""
    timer = threading.Timer(seconds, line.cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
