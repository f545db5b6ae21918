"""A client of a RemoteServer that keeps to the README of windrow-remote and to nothing else."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
import zlib
from typing import Any, NamedTuple

VERSION = 3
HELLO, WELCOME, BYE, CLOSED, FAILED, CHALLENGE, PROOF, BIND, BOUND, ACT, ACTED = (
    1,
    2,
    4,
    5,
    6,
    9,
    10,
    16,
    17,
    18,
    19,
)
PUSH, PROGRESS, PUSHED, PULL, PIECE, CURRENT = 32, 33, 34, 35, 36, 37
#: Bytes of id, frame, first flag and noise of a row.
ROW = 29

_HEAD = struct.Struct("<IIHHQQQQ")
_WORD = 2**64 - 1


class Answer(NamedTuple):
    """A frame of the server."""

    kind: int
    seq: int
    words: tuple[int, int, int]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


def opening(version: int = VERSION) -> bytes:
    begin = b"windrow\n" + struct.pack("<I", version)
    return begin + struct.pack("<I", zlib.crc32(begin))


def frame(
    kind: int,
    seq: int = 0,
    words: tuple[int, int, int] = (0, 0, 0),
    body: bytes = b"",
    flags: int = 0,
) -> bytes:
    words = tuple(word & _WORD for word in words)  # type: ignore[assignment]
    head = _HEAD.pack(zlib.crc32(body), len(body), kind, flags, seq & _WORD, *words)
    return struct.pack("<I", zlib.crc32(head)) + head + body


def connect(address: str, timeout: float) -> socket.socket:
    if address.startswith("unix:"):
        stream = socket.socket(socket.AF_UNIX)
        stream.settimeout(timeout)
        stream.connect(address[5:])
        return stream
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout)


def bind_body(spec: Any, num_envs: Any = 1, first: bytes | None = None, **more: Any) -> bytes:
    """The body of a request to bind."""
    place = {
        "spec": spec,
        "num_envs": num_envs,
        "batched": True,
        "worker": 0,
        "first_rows": first is not None,
        **more,
    }
    text = json.dumps(place).encode()
    return struct.pack("<Q", len(text)) + text + (first or b"")


def act_body(rows: int, observations: bytes) -> bytes:
    """The body of a request to act for environments at their first frame."""
    return (
        b"".join(struct.pack("<IQB", row, 0, 1) + bytes(16) for row in range(rows)) + observations
    )


class Wire:
    """A connection that has greeted, as a producer of its own."""

    def __init__(self, address: str, token: str | None = None, timeout: float = 60.0) -> None:
        self.stream = connect(address, timeout)
        self._came = bytearray()
        self.seq = 0
        own = secrets.token_bytes(32)
        self.stream.sendall(opening() + frame(CHALLENGE, body=own))
        if self.exactly(16) != opening():
            raise ConnectionError("the server speaks another version")
        theirs = self.read().body[:32]
        proof = b""
        if token is not None:
            key = hashlib.pbkdf2_hmac("sha256", token.encode(), b"windrow", 100_000)
            proof = hmac.digest(
                key, b"windrow client" + struct.pack("<I", VERSION) + own + theirs, "sha256"
            )
        hello = frame(
            HELLO, 0, (secrets.randbits(64), secrets.randbits(64), 0), struct.pack("<Q", 1 << 22)
        )
        self.stream.sendall(frame(PROOF, body=proof) + hello)
        self.welcome = self.read()

    def exactly(self, count: int) -> bytes:
        while len(self._came) < count:
            more = self.stream.recv(1 << 16)
            if not more:
                raise EOFError(f"closed after {len(self._came)} of {count} bytes")
            self._came += more
        out = bytes(self._came[:count])
        del self._came[:count]
        return out

    def read(self) -> Answer:
        head = self.exactly(48)
        _, _, length, kind, _, seq, *words = struct.unpack("<IIIHHQQQQ", head)
        return Answer(kind, seq, tuple(words), self.exactly(length))

    def ask(self, kind: int, words: tuple[int, int, int] = (0, 0, 0), body: bytes = b"") -> Answer:
        self.seq += 1
        self.stream.sendall(frame(kind, self.seq, words, body))
        return self.read()

    def close(self) -> None:
        self.stream.close()
