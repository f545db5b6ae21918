"""A ledger that dies: the environment of the workers, which import no torch."""

from __future__ import annotations

import hashlib
import os
import random
import struct
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np

MAX_LENGTH = 20
PAYLOAD = 64
#: Elements of an action, which is the version of the weights that acted: enough for a torn read to
#: show.
ACTIONS = 64
#: Steps after which an environment that dies by itself does so, in the middle of what it may draw.
LIFE = 3_000
#: How it says when: nanoseconds of a clock that all processes share.
LAST_WORDS = "dies at "

Record = tuple[int, int, int]


def digest(env: int, episode: int, t: int) -> bytes:
    """What follows from a record: the payload of its observation, and its reward."""
    return hashlib.blake2b(struct.pack("<3q", env, episode, t), digest_size=PAYLOAD).digest()


def length(env: int, episode: int) -> int:
    """Steps of an episode."""
    return 1 + digest(env, episode, -1)[0] % MAX_LENGTH


def ending(env: int, episode: int) -> tuple[bool, bool]:
    """Whether its last step is terminated, and whether it is truncated."""
    kind = digest(env, episode, -1)[1] % 3
    return kind != 1, kind != 0


def reward(record: Record, version: int) -> float:
    """That of the step which leads to ``record``."""
    return float(digest(*record)[0] + 256 * version)


class Mortal(gym.Env):
    """Observes ``[env, episode, t]``, where ``env`` is the seed that it was given, and what follows
    from them.
    """

    observation_space = gym.spaces.Dict(
        {
            "ledger": gym.spaces.Box(-(2**63), 2**63 - 1, (3,), np.int64),
            "payload": gym.spaces.Box(0, 255, (PAYLOAD,), np.uint8),
            "clock": gym.spaces.Box(0, MAX_LENGTH, (1,), np.float32),
        }
    )
    action_space = gym.spaces.Box(-1, 2**24, (ACTIONS,), np.float32)

    def __init__(self, way: str) -> None:
        self.way = way
        # Not the generator of the process: each life has another length.
        own = random.SystemRandom().randint(1, 2 * LIFE)
        self.left = own if way in ("exit", "raise", "abort") else -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.env, self.episode = seed % 2**62, -1
        self.episode, self.t = self.episode + 1, 0
        return self._observed(digest(self.env, self.episode, 0)), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.left -= 1
        if self.left == 0:
            self._die()
        told = digest(self.env, self.episode, self.t)
        ends = self.t == length(self.env, self.episode)
        terminated, truncated = ending(self.env, self.episode) if ends else (False, False)
        return (
            self._observed(told),
            float(told[0] + 256 * int(action[0])),
            terminated,
            truncated,
            {},
        )

    def _observed(self, told: bytes) -> Any:
        return {
            "ledger": np.array([self.env, self.episode, self.t], np.int64),
            "payload": np.frombuffer(told, np.uint8),
            "clock": np.array([self.t], np.float32),
        }

    def _die(self) -> None:
        words = f"{LAST_WORDS}{time.monotonic_ns()}"
        if self.way == "raise":
            raise LookupError(words)
        print(words, file=sys.stderr, flush=True)
        if self.way == "exit":
            os._exit(3)
        os.abort()
