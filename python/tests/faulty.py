"""Environments that fail in worker processes, which import this module and no torch."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np


class Odd(Exception):
    """Its constructor does not take what it keeps."""

    def __init__(self, cause: str, *, place: int) -> None:
        super().__init__(f"{cause} at {place}")


class Alarm(BaseException):
    """No error."""


class Unwilling(Exception):
    """Ends whoever copies it."""

    def __reduce__(self) -> Any:
        sys.exit("no copies")


def ordinary() -> None:
    raise ValueError("no such road")


def odd() -> None:
    raise Odd("mud", place=3)


def held() -> None:
    raise LookupError("held", threading.Lock())


def unwilling() -> None:
    raise Unwilling("mine")


def long() -> None:
    raise ValueError("far " * (20 << 20))


def surrogates() -> None:
    raise OSError("caf\udce9")


def latin() -> None:
    raise ValueError(b"caf\xe9 \xff")


def group() -> None:
    raise ExceptionGroup("two", [ValueError("one of two"), OSError("two of two")])


def chained() -> None:
    try:
        raise ConnectionError("no wire")
    except ConnectionError as error:
        raise TimeoutError("nobody answers") from error


def recursion() -> None:
    recursion()


def memory() -> None:
    raise MemoryError("too little")


def stop_iteration() -> None:
    raise StopIteration("over")


def local() -> None:
    class Local(Exception):
        pass

    raise Local("only here")


def system_exit() -> None:
    sys.exit("enough")


def interrupt() -> None:
    raise KeyboardInterrupt("now")


def generator_exit() -> None:
    raise GeneratorExit("closed")


def alarm() -> None:
    raise Alarm("fire")


#: What is raised by each function: its type's name, and words of its message.
RAISES: dict[Callable[[], None], tuple[str, str]] = {
    ordinary: ("ValueError", "no such road"),
    # It cannot be read where it is received.
    odd: ("RuntimeError", "Odd: mud at 3"),
    held: ("RuntimeError", "LookupError: ('held', <unlocked"),
    unwilling: ("RuntimeError", "Unwilling: mine"),
    # Longer than what processes send each other at once.
    long: ("RuntimeError", "ValueError: far far"),
    surrogates: ("OSError", "caf\udce9"),
    latin: ("ValueError", r"caf\xe9 \xff"),
    group: ("ExceptionGroup", "two (2 sub-exceptions)"),
    chained: ("TimeoutError", "nobody answers"),
    recursion: ("RecursionError", "maximum recursion depth exceeded"),
    memory: ("MemoryError", "too little"),
    stop_iteration: ("StopIteration", "over"),
    local: ("Local", "only here"),
    system_exit: ("SystemExit", "enough"),
    interrupt: ("KeyboardInterrupt", "now"),
    generator_exit: ("GeneratorExit", "closed"),
    alarm: ("Alarm", "fire"),
}


def last_words() -> None:
    print("my last words", file=sys.stderr, flush=True)


def leave() -> None:
    last_words()
    os._exit(3)


def abort() -> None:
    last_words()
    os.abort()


def crash() -> None:
    last_words()
    ctypes.string_at(0)


def kill() -> None:
    last_words()
    os.kill(os.getpid(), signal.SIGKILL)


#: How each function ends its process.
ENDS: dict[Callable[[], None], str] = {
    leave: "exit status 3",
    abort: "signal 6 (SIGABRT)",
    crash: "signal 11 (SIGSEGV)",
    kill: "signal 9 (SIGKILL)",
}


def starve() -> None:
    """Takes memory until there is none."""
    pages = int(open("/proc/self/statm").read().split()[0])
    most = pages * resource.getpagesize() + (64 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
    taken = []
    while True:
        taken.append(np.ones(1 << 20))


PLACES = ("import", "constructor", "reset", "step", "close")


class Faulty(gym.Env):
    """Ten steps an episode. Calls ``act`` at one place: in its constructor, its second reset, its
    17th step, or when it is closed.
    """

    observation_space = gym.spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, act: Callable[[], object], place: str) -> None:
        self.act, self.place = act, place
        self.resets = self.total = 0
        self.large = np.broadcast_to(np.uint8(0), 65 << 20)
        self._at("constructor")

    def _at(self, place: str) -> None:
        if place == self.place:
            self.act()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.resets += 1
        if self.resets == 2:
            self._at("reset")
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.total += 1
        if self.total == 17:
            self._at("step")
        return np.full(2, self.total, np.float32), 1.0, False, self.steps >= 10, {}

    def close(self) -> None:
        self._at("close")


class Bad(gym.Env):
    """Its 17th step returns what it should not, as ``how`` says."""

    observation_space = gym.spaces.Dict(
        {"a": gym.spaces.Box(-1e6, 1e6, (2,), np.float32), "b": gym.spaces.Box(0, 9, (), np.int64)}
    )
    action_space = gym.spaces.Discrete(2)

    def __init__(self, how: str = "") -> None:
        self.how, self.total = how, 0
        self.kept = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._observed(), {}

    def step(self, action: Any) -> Any:
        self.total += 1
        observed, reward = self._observed(), 1.0
        if self.total == 17:
            match self.how:
                case "nan":
                    observed["a"][1] = np.nan
                case "reward":
                    reward = float("nan")
                case "shape":
                    observed["a"] = np.zeros(3, np.float32)
                case "dtype":
                    observed["b"] = np.array(0.5)
                case "missing":
                    del observed["b"]
                case "text":
                    observed["a"] = "two numbers"  # type: ignore[assignment]
                case "five":
                    return observed, reward, False, {}
        return observed, reward, False, self.total % 10 == 0, {}

    def _observed(self) -> dict[str, Any]:
        if self.how == "kept":
            # The same array each time, which changes with the next step.
            self.kept[:] = self.total
            return {"a": self.kept, "b": self.total % 10}
        return {"a": np.full(2, self.total, np.float32), "b": np.array(self.total % 10)}


def endless() -> None:
    last_words()
    while True:
        pass


def asleep() -> None:
    last_words()
    threading.Event().wait()


def stopped() -> None:
    last_words()
    os.kill(os.getpid(), signal.SIGSTOP)
