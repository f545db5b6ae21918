"""Messages of all kinds to servers of each kind of policy, after a valid greeting: vast numbers,
odd specs, lengths that are wrong, what comes twice. No server panics, reads a pickle or takes much
memory, and fair clients are answered as before.

``cargo xtask faults messages --count N`` runs this.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

from messages import wire
from messages.make import CHOICE, Maker

#: Messages of one connection, at most.
_TOGETHER = 24
#: Bytes after which no more follow: nobody reads answers meanwhile.
_BYTES = 1 << 16
#: Number of messages after which the servers are made anew.
_ROUND = 4000
#: MiB by which the peak memory of the servers may grow.
_ROOM = 600


class Servers:
    """The process with the servers."""

    def __init__(self) -> None:
        folder = Path(__file__).parent.parent
        command = [sys.executable, "-W", "ignore", "-m", "messages.served"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    def ask(self, question: str = "") -> dict[str, Any]:
        """What the process counts; ``"renew"`` makes the servers anew."""
        assert self._process.stdin and self._process.stdout
        try:
            print(question, file=self._process.stdin, flush=True)
            return json.loads(self._process.stdout.readline())
        except (OSError, ValueError):
            raise RuntimeError(
                f"the process of the servers has ended: {self.end()[-2000:]}"
            ) from None

    def end(self) -> str:
        """Ends it; what it has written to its standard error."""
        try:
            return self._process.communicate(timeout=60)[1]
        except subprocess.TimeoutExpired:
            self._process.kill()
            return f"it did not end\n{self._process.communicate()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class Fair:
    """A client that does what clients do, and gets the same answer each time."""

    def __init__(self, address: str, observation: Any) -> None:
        text = struct.pack("<I", 2) + b"ta"
        self._observation = struct.pack("<4f", 0.1, 0.2, 0.3, 0.4) + (
            text if "bytes" in json.dumps(observation) else b""
        )
        self._wire = wire.Wire(address)
        spec = {"id": "x", "observation": observation, "action": CHOICE}
        text = wire.counted(wire.bind_text(spec, has_first=True))
        self._kind = self._wire.ask(wire.BIND, (text,), self._observation).kind
        self._answer = self.act()

    def act(self) -> tuple[int, bytes]:
        answer = self._wire.ask(wire.ACT, (0, 1), wire.act_body(1, self._observation))
        return answer.kind, answer.body

    def violations(self) -> list[str]:
        found = [] if self._kind == wire.BOUND else ["a fair client was not bound"]
        answer = self.act()
        # Weights may be other ones by now.
        if answer[0] != wire.ACTED or len(answer[1]) != len(self._answer[1]):
            found.append(f"a fair client got {answer} and not {self._answer}")
        return found


def converse(address: str, maker: Maker, most: int) -> tuple[int, int]:
    """Sends messages over a connection, at most ``most``; their number and that of the answers."""
    link = wire.Wire(address)
    out, made, goes_on = bytearray(), 0, True
    if maker.draw.random() < 0.7:
        spec = {"id": "x", "observation": maker.observation, "action": CHOICE}
        text = wire.bind_text(spec, has_first=maker.has_text)
        out += wire.bind(1, text, maker.rows(1) if maker.has_text else b"")
        made = 1
    while goes_on and made < most and len(out) < _BYTES:
        message, goes_on = maker.message(made + 1)
        out += message
        made += 1
    answered = 0
    try:
        link.stream.sendall(out)
        link.stream.shutdown(1)
        while True:
            answered += link.read().kind != wire.CLOSED
    except (EOFError, ConnectionError, BrokenPipeError):
        link.close()
    return made, answered


def run(count: int, seed: int) -> tuple[str, list[str]]:
    """Sends ``count`` messages; a line that says what came of them, and what went wrong."""
    draw, violations, began = random.Random(seed), list[str](), time.monotonic()
    sent = answered = rounds = 0
    with Servers() as servers:
        before = state = servers.ask()
        while sent < count:
            makers = {
                address: Maker(draw, observation)
                for address, observation in state["addresses"].values()
            }
            # In every other round, those who send messages may be the first to bind.
            fair = (
                [Fair(address, maker.observation) for address, maker in makers.items()]
                if rounds % 2 == 0
                else []
            )
            end = min(count, sent + _ROUND)
            while sent < end:
                for address, maker in makers.items():
                    made, got = converse(address, maker, max(2, min(_TOGETHER, end - sent)))
                    sent, answered = sent + made, answered + got
            violations += [violation for client in fair for violation in client.violations()]
            for address in makers:
                answer = wire.Wire(address).ask(wire.PULL, (0,))
                if answer.kind not in (wire.CURRENT, wire.PIECE):
                    violations.append(f"the server at {address} answers no more: {answer}")
            rounds += 1
            state = servers.ask("renew" if sent < count else "")
            if violations:
                break
        grown, said = state["peak"] - before["now"], servers.end()
    panics = state["panicked"] + said.count("panicked at")
    if panics:
        violations.append(f"panics: {said[-3000:]}")
    if state["reached"]:
        violations.append(f"pickles were read: {sorted(set(state['reached']))}")
    if grown > _ROOM:
        violations.append(f"the servers took {grown} MiB more")
    seconds = time.monotonic() - began
    line = f"{sent} messages, {answered} answered, {panics} panics, {len(state['reached'])} pickles reached, {grown} MiB at most, {seconds:.0f} s"
    return line, violations


def main() -> int:
    parser = argparse.ArgumentParser(prog="messages", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="messages; 10000 unless given")
    parser.add_argument(
        "--seed", type=int, default=None, help="of the messages; drawn unless given"
    )
    arguments = parser.parse_args()
    seed = random.randrange(2**32) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    line, violations = run(arguments.count, seed)
    print(line)
    for violation in violations[:20]:
        print(f"violation: {violation}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
