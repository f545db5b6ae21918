from __future__ import annotations

import gc
import signal
import sys
from typing import Any

import pytest
import torch
from torch import nn

from windrow import _warnings
from windrow._windrow import native_ids

# A shell lets what it starts in the background ignore Ctrl-C, and so the programs of tests that are
# about it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """What torch draws in a test is always the same, whatever tests came before."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def untold() -> None:
    """What is told once in a program is told in each test, whatever tests came before."""
    _warnings._told.clear()
    if around := sys.modules.get("windrow.torchrl._around"):
        around._told.clear()
    if batched := sys.modules.get("windrow.envs._batched"):
        batched.warn_of_turns.cache_clear()


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[BaseException | None]:
    """Errors that are shown to ``sys.unraisablehook`` in this test."""
    # Those of objects that tests before this one have left are shown by then. What threads without
    # the interpreter's lock have dropped is given up at the next call of windrow, whatever it is.
    for _ in range(2):
        native_ids()
        gc.collect()
    seen: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda shown: seen.append(shown.exc_value))
    return seen


@pytest.fixture
def network() -> nn.Module:
    """A small network for CartPole."""
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))


#: Values that other processes have compared, where tests run in several.
_elsewhere = 0


def _compared() -> int:
    compare = sys.modules.get("transforms._compare")
    return compare.compared if compare is not None else 0


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tells the process that has started this one how much was compared here."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["compared"] = _compared()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Adds what another process has compared."""
    global _elsewhere
    _elsewhere += getattr(node, "workeroutput", {}).get("compared", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how much was compared with TorchRL."""
    if count := _compared() + _elsewhere:
        terminalreporter.write_line(f"{count:,} transformed values compared with TorchRL's")
