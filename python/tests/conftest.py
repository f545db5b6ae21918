from __future__ import annotations

import signal
import sys

import pytest
import torch
from torch import nn

# A shell lets what it starts in the background ignore Ctrl-C, and so the programs of tests that are about it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """What torch draws in a test is always the same, whatever tests came before."""
    torch.manual_seed(0)


@pytest.fixture
def network() -> nn.Module:
    """A small network for CartPole."""
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how much was compared with TorchRL."""
    compare = sys.modules.get("transforms._compare")
    if compare is not None and (line := compare.summary()):
        terminalreporter.write_line(line)
