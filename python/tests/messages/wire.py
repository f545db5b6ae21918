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

VERSION = 4
#: The vocabularies.
GREETING, REQUEST, ANSWER = range(3)
#: The places of messages in theirs.
CHALLENGE, SHOWN, PROOF = range(3)
HELLO, BYE, BIND, ACT, PUSH, PULL = range(6)
WELCOME, FORGOTTEN, CLOSED, FAILED, BOUND, ACTED, PROGRESS, PUSHED, PIECE, CURRENT = range(10)
#: Bytes of id, frame, first flag and noise of a row.
ROW = 29

_HEAD = struct.Struct("<IIIIQ")
_WORD = 2**64 - 1


class Answer(NamedTuple):
    """A frame of the server: the vocabulary and place of its message, the rest of the message,
    and the bytes behind it.
    """

    vocabulary: int
    kind: int
    seq: int
    message: bytes
    body: bytes


def opening(version: int = VERSION) -> bytes:
    begin = b"windrow\n" + struct.pack("<I", version)
    return begin + struct.pack("<I", zlib.crc32(begin))


def varint(number: int) -> bytes:
    """``number`` in groups of seven bits, the lowest first."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def counted(content: bytes) -> bytes:
    """``content`` behind the number of its bytes."""
    return varint(len(content)) + content


def frame(
    kind: int,
    seq: int = 0,
    fields: tuple[int | bytes, ...] = (),
    body: bytes = b"",
    vocabulary: int = REQUEST,
) -> bytes:
    """A frame with the message ``kind`` of ``vocabulary``: fields are numbers without a sign, or
    bytes as they are.
    """
    message = varint(kind) + b"".join(
        field if isinstance(field, bytes) else varint(field & _WORD) for field in fields
    )
    content = message + body
    head = _HEAD.pack(zlib.crc32(content), len(message), len(body), vocabulary, seq & _WORD)
    return struct.pack("<I", zlib.crc32(head)) + head + content


def challenge(number: bytes) -> bytes:
    """The first frame of a client."""
    return frame(CHALLENGE, fields=(number,), vocabulary=GREETING)


def proof(code: bytes) -> bytes:
    """The second frame of a client."""
    return frame(PROOF, fields=(counted(code),), vocabulary=GREETING)


def connect(address: str, timeout: float) -> socket.socket:
    if address.startswith("unix:"):
        stream = socket.socket(socket.AF_UNIX)
        stream.settimeout(timeout)
        stream.connect(address[5:])
        return stream
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout)


def bind_text(spec: Any, num_envs: Any = 1, has_first: bool = False, **more: Any) -> bytes:
    """The text of a request to bind, behind which first observations come if there are any."""
    place = {
        "spec": spec,
        "num_envs": num_envs,
        "batched": True,
        "worker": 0,
        "first_rows": has_first,
        **more,
    }
    return json.dumps(place).encode()


def bind(seq: int, text: bytes, first: bytes = b"") -> bytes:
    """A request to bind."""
    return frame(BIND, seq, (counted(text),), first)


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
        self.stream.sendall(opening() + challenge(own))
        if self.exactly(16) != opening():
            raise ConnectionError("the server speaks another version")
        theirs = self.read().message[:32]
        code = b""
        if token is not None:
            key = hashlib.pbkdf2_hmac("sha256", token.encode(), b"windrow", 100_000)
            code = hmac.digest(
                key, b"windrow client" + struct.pack("<I", VERSION) + own + theirs, "sha256"
            )
        hello = frame(HELLO, 0, (varint(secrets.randbits(128)), 0, 1 << 22))
        self.stream.sendall(proof(code) + hello)
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
        _, _, message_length, length, vocabulary, seq = struct.unpack("<IIIIIQ", self.exactly(28))
        kind, *message = self.exactly(message_length)
        return Answer(vocabulary, kind, seq, bytes(message), self.exactly(length))

    def ask(self, kind: int, fields: tuple[int | bytes, ...] = (), body: bytes = b"") -> Answer:
        self.seq += 1
        self.stream.sendall(frame(kind, self.seq, fields, body))
        return self.read()

    def close(self) -> None:
        self.stream.close()
