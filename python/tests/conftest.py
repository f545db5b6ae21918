from __future__ import annotations

import pytest
import torch
from torch import nn


@pytest.fixture
def network() -> nn.Module:
    """A small network for CartPole, always the same."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
