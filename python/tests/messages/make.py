"""Makes messages that are almost those of a client: each has some part that no client sends."""

from __future__ import annotations

import functools
import json
import random
import struct
from collections.abc import Callable
from typing import Any

from messages import wire

#: Numbers at which something ends, or begins to be too much.
ODD = [
    0,
    1,
    2,
    3,
    7,
    255,
    256,
    2**15,
    2**16,
    2**16 + 1,
    2**20,
    2**31 - 1,
    2**31,
    2**32,
    2**40,
    2**53 + 1,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
]
NOT_NUMBERS = [-1, -(2**63), 2**64, 1.5, 1e300, True, None, "3", [], {}]
DTYPES = [
    "float32",
    "float64",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
    "bytes",
    "float16",
    "object",
    "",
]
NAMES = [
    "observation",
    "action",
    "reward",
    "done",
    "next",
    "",
    "a.b",
    "(members)",
    "\u0000",
    "é" * 50,
    "x" * 1000,
]
BOX = {"Unbounded": {"dtype": "float32", "shape": [4]}}
CHOICE = {"Discrete": {"n": 2}}
TEXT = {"Unbounded": {"dtype": "bytes", "shape": []}}
#: First bytes of values of variable size, with which the package says what they are, and others.
TAGS = b"ntros\x00\xff{("

Random = random.Random


def number(draw: Random) -> Any:
    """A number, now and then something else."""
    return draw.choice(ODD if draw.random() < 0.85 else NOT_NUMBERS)


def shape(draw: Random) -> Any:
    if draw.random() < 0.1:
        return number(draw)
    sizes = [
        number(draw) if draw.random() < 0.3 else draw.randrange(4)
        for _ in range(draw.choice([0, 1, 1, 2, 3, 8, 40]))
    ]
    # Few places in many dimensions.
    return sizes if draw.random() < 0.9 else [1] * draw.choice([8, 30])


def runs(draw: Random) -> Any:
    """Bounds: numbers, and runs of them."""
    run = [
        lambda: [draw.choice([0.0, -1.0, "inf", "NaN", "x"]), number(draw)],
        lambda: draw.choice([0.5, "-inf", -1e308, None]),
    ]
    return [draw.choice(run)() for _ in range(draw.randrange(4))]


def leaf(draw: Random) -> Any:
    """A spec of one leaf."""
    dtype = draw.choice(DTYPES)
    kinds: list[Callable[[], Any]] = [
        lambda: {"Unbounded": {"dtype": dtype, "shape": shape(draw)}},
        lambda: {
            "Bounded": {"dtype": dtype, "shape": shape(draw), "low": runs(draw), "high": runs(draw)}
        },
        lambda: {"Bounded": {"dtype": dtype, "shape": [4], "low": [[0.0, 4]], "high": [[1.0, 4]]}},
        lambda: {"Discrete": {"n": number(draw)}},
        lambda: {"Binary": {"shape": shape(draw)}},
        lambda: {"MultiDiscrete": {"nvec": shape(draw)}},
        lambda: {"OneHot": {"nvec": shape(draw)}},
        lambda: {draw.choice(["Graph", "Composite", ""]): {"n": 1}},
        lambda: draw.choice([BOX, CHOICE, TEXT]),
    ]
    return draw.choice(kinds)()


def space(draw: Random, depth: int = 0) -> Any:
    """A leaf, or a tree of them."""
    if depth == 0 and draw.random() < 0.03:
        return functools.reduce(
            lambda inner, _: {"Composite": [["d", inner]]},
            range(draw.choice([20, 33, 60])),
            leaf(draw),
        )
    if depth > 3 or draw.random() < 0.7:
        return leaf(draw)
    entries = [
        [draw.choice(NAMES), space(draw, depth + 1)] for _ in range(draw.choice([0, 1, 2, 3]))
    ]
    return {"Composite": entries * draw.choice([1, 1, 1, 2])}


def key(draw: Random) -> Any:
    return draw.choice(
        [
            draw.choice(NAMES),
            [draw.choice(NAMES)],
            [],
            ["next", "observation"],
            [draw.choice(NAMES)] * draw.choice([2, 40]),
            3,
        ]
    )


def value(draw: Random) -> bytes:
    """A value of variable size: a tag, and what may follow it."""
    tag = bytes([draw.choice(TAGS)])
    follows: list[Callable[[], bytes]] = [
        lambda: (
            bytes((draw.choice([0, 7, 200]), draw.choice([0, 1, 2, 60, 255])))
            + draw.choice([b"float32", b"int64", b"object", b"S99"])
        ),
        lambda: (
            bytes((7, 2))
            + b"float32"
            + struct.pack("<qq", draw.choice([1, -1, 2**28, 2**62]), draw.choice([0, 4, -4, 2**31]))
        ),
        lambda: (
            bytes((6, 1))
            + draw.choice([b"quint8", b"bits16", b"uint16", b"qint32"])
            + struct.pack("<q", draw.choice([1, 2, 4]))
            + bytes(4)
        ),
        lambda: b"\x80\x04cposix\nsystem\n(X\x04\x00\x00\x00truetR.",
        lambda: "text é".encode(),
        lambda: draw.randbytes(draw.randrange(40)),
    ]
    return tag + draw.choice(follows)()


def counted(draw: Random, content: bytes) -> bytes:
    """A value behind its length, or another one."""
    length = len(content) if draw.random() < 0.85 else draw.choice([0, 1, 2**16, 2**31, 2**32 - 1])
    return struct.pack("<I", length) + content


class Maker:
    """Makes messages of one client of a server whose environments have ``observation``."""

    def __init__(self, draw: Random, observation: Any) -> None:
        self.draw = draw
        self.observation = observation
        self.has_text = "bytes" in json.dumps(observation)

    def rows(self, count: int) -> bytes:
        """``count`` rows of observations, as a client sends them, or nearly."""
        if self.has_text:
            return struct.pack("<4f", 0.1, 0.2, 0.3, 0.4) * count + b"".join(
                counted(self.draw, value(self.draw)) for _ in range(count)
            )
        return self.draw.randbytes(16 * count)

    def spec(self) -> dict[str, Any]:
        """A spec with an oddity or two, now and then none."""
        draw = self.draw
        spec: dict[str, Any] = {"id": "x", "observation": self.observation, "action": CHOICE}
        oddities: list[Callable[[], dict[str, Any]]] = [
            lambda: {"observation": space(draw)},
            lambda: {"action": space(draw)},
            lambda: {draw.choice(["rewards", "states", "flags", "info"]): [key(draw)]},
            lambda: {"masks": [[key(draw), key(draw)]]},
            lambda: {"groups": [[key(draw), shape(draw)]]},
            lambda: {"dimensions": shape(draw)},
            lambda: {"deltas": [[key(draw), draw.choice(DTYPES)]]},
            lambda: {
                "examples": [
                    [draw.choice(["thing", ["thing"], key(draw)]), list(value(draw))]
                    for _ in range(draw.choice([1, 3]))
                ]
            },
            lambda: {"max_episode_steps": number(draw)},
            lambda: {
                "statistics": [
                    {"envs": number(draw), "groups": number(draw), "elements": [number(draw)]}
                ]
            },
            lambda: {"keeps_seed": draw.choice([True, 1]), "any_integers": True},
            lambda: {draw.choice(NAMES): number(draw)},
            lambda: {"id": draw.choice(NAMES)},
            dict,
        ]
        for _ in range(draw.choice([1, 1, 2, 3])):
            spec |= draw.choice(oddities)()
        if draw.random() < 0.03:
            spec.pop(draw.choice(list(spec)))
        return spec

    def bind(self, seq: int) -> tuple[bytes, bool]:
        """A request to bind, and whether it can be read."""
        draw = self.draw
        envs = number(draw) if draw.random() < 0.3 else draw.choice([1, 2, 3])
        count = envs if isinstance(envs, int) and 0 <= envs < 4 else 1
        first = self.rows(count) if draw.random() < 0.5 else None
        more = {"worker": number(draw)} if draw.random() < 0.1 else {}
        text = wire.bind_text(self.spec(), envs, first is not None, **more)
        if draw.random() < 0.05:
            return wire.frame(wire.BIND, seq, (draw.choice(ODD), text)), False
        if draw.random() < 0.03:
            text = b"[" * draw.choice([10, 200, 20_000])
        return wire.bind(seq, text, first or b""), True

    def act(self, seq: int) -> tuple[bytes, bool]:
        """A request to act, and whether it can be read."""
        draw = self.draw
        count = draw.choice([1, 1, 1, 2, 3])
        body = wire.act_body(count, self.rows(count))
        if draw.random() < 0.2:
            at = draw.randrange(len(body))
            body = draw.choice(
                [body[:at], body + body[at:], body[:at] + draw.randbytes(3) + body[at + 3 :]]
            )
        said = count if draw.random() < 0.9 else draw.choice(ODD)
        exploration = 0
        if draw.random() < 0.05:
            exploration = draw.choice([1, 2, 3, 4, 2**64 - 1])
        return wire.frame(wire.ACT, seq, (exploration, said), body), exploration < 4

    def push(self) -> tuple[tuple[int, int], bytes]:
        """Weights: a safetensors file whose header is odd."""
        draw = self.draw
        name = draw.choice(
            ["weight", "bias", "layer.weight", "0.weight", "_windrow_beside", *NAMES]
        )
        tensor = {
            "dtype": draw.choice(["F32", "F16", "U8", "BOOL", "X"]),
            "shape": shape(draw),
            "data_offsets": [0, draw.choice([0, 4, 32, *ODD])],
        }
        deep = {
            "version": 1,
            "tensors": {},
            "dicts": [
                {"path": ["d"] * at, "batch_size": [], "names": []}
                for at in range(draw.choice([1, 3, 150]))
            ],
        }
        metas = [
            {},
            {"__metadata__": {"windrow.tensordict": json.dumps(deep)}},
            {"__metadata__": {"x": "y"}},
        ]
        header = json.dumps(
            draw.choice(metas) | ({name: tensor} if draw.random() < 0.8 else {})
        ).encode()
        length = len(header) if draw.random() < 0.9 else draw.choice(ODD)
        body = struct.pack("<Q", length) + header + bytes(draw.choice([0, 4, 32]))
        total, before = len(body), 0
        if draw.random() < 0.2:
            total, before = draw.choice(ODD), draw.choice([0, 0, *ODD])
        return (total, before), body

    def message(self, seq: int) -> tuple[bytes, bool]:
        """A message with number ``seq``, and whether the next message has the next number. If it
        has not, the server may end the connection.
        """
        draw = self.draw
        if draw.random() < 0.02:
            odd = draw.choice([seq - 1, seq - 2, seq + 1, 0, 2**64 - 1])
            message = draw.choice([self.bind(odd)[0], wire.frame(wire.PULL, odd, (0,))])
            return message, False
        chance = draw.random()
        if chance < 0.45:
            return self.bind(seq)
        if chance < 0.8:
            return self.act(seq)
        if chance < 0.93:
            piece, body = self.push()
            return wire.frame(wire.PUSH, seq, piece, body), piece == (len(body), 0)
        if chance < 0.98:
            body = draw.choice([b"", b"x" * 100])
            return wire.frame(wire.PULL, seq, (draw.choice(ODD),), body), True
        fields = (draw.choice(ODD), draw.choice(ODD), draw.choice(ODD))
        return wire.frame(
            draw.choice([*range(10), 48, 65535]),
            seq,
            fields[: draw.randrange(4)],
            draw.randbytes(draw.choice([0, 8, 40])),
            draw.choice([wire.GREETING, wire.REQUEST, wire.ANSWER, 3, 2**32 - 1]),
        ), False
