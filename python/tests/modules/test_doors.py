"""Strangers at the door of a server: messages that no client sends, and connections that are
silent, slow or without the token.
"""

from __future__ import annotations

import socket
import threading
import time

import pytest

from messages import __main__ as messages, wire
from windrow.modules import RemotePolicy, RemoteServer

TOKEN = "a-secret-that-clients-know"


def test_messages_that_no_client_sends_end_at_most_their_connection() -> None:
    line, violations = messages.run(10_000, seed=7)
    assert violations == [], line


@pytest.fixture
def server():
    with RemoteServer(address="127.0.0.1:0", token=TOKEN) as server:
        yield server


def dripping(link: socket.socket, until: threading.Event) -> None:
    """Greets a byte at a time."""
    for byte in wire.opening() + wire.challenge(bytes(32)):
        try:
            link.sendall(bytes([byte]))
        except OSError:
            return
        if until.wait(0.05):
            return


def greeting(address: str, count: int) -> None:
    """Greets as somebody without the token, ``count`` times."""
    for number in range(count):
        try:
            link = wire.connect(address, 60)
        except OSError:
            # The server has ended.
            return
        try:
            link.sendall(
                wire.opening() + wire.challenge(bytes(32)) + wire.proof(bytes(number % 64))
            )
        except OSError:
            # Others got its place.
            pass
        finally:
            link.close()


def test_fair_clients_are_served_beside_strangers_and_a_shutdown_waits_for_no_stranger(
    server,
) -> None:
    over = threading.Event()
    silent = [wire.connect(server.address, 60) for _ in range(300)]
    slow = [wire.connect(server.address, 60) for _ in range(30)]
    threads = [threading.Thread(target=dripping, args=(link, over)) for link in slow]
    threads += [threading.Thread(target=greeting, args=(server.address, 500)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        # Each has a connection of its own, and an answer long before the greeting of a stranger is
        # over.
        assert RemotePolicy(server.address, token=TOKEN, timeout=8).newer_weights() is None
    assert server.stats()["accepted"] == 50
    last = wire.connect(server.address, 60)
    began = time.monotonic()
    server.shutdown()
    assert time.monotonic() - began < 8
    over.set()
    for link in [*silent, *slow, last]:
        link.close()
    for thread in threads:
        thread.join()
