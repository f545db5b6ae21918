"""A function of a module that other processes import anew, with weights of their own there."""

from __future__ import annotations

import torch

NET = torch.nn.Linear(2, 2)


def act(observation: torch.Tensor) -> torch.Tensor:
    return torch.stack([NET(row) for row in observation.reshape(-1, 2)]).reshape(observation.shape)
