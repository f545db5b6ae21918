"""Policies of the tests that remember, and what their states ought to be."""

from __future__ import annotations

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictModule, TensorDictModule, TensorDictSequential
from torch import nn
from torch.distributions import Categorical
from torchrl.modules import GRUModule, LSTMModule

HIDDEN, LAYERS = 6, 2
LSTM_STATE = ("recurrent_state_h", "recurrent_state_c")


def head(width: int = HIDDEN) -> list[nn.Module]:
    return [
        TensorDictModule(nn.Linear(width, 2), in_keys=["embedded"], out_keys=["logits"]),
        ProbabilisticTensorDictModule(
            in_keys=["logits"],
            out_keys=["action"],
            distribution_class=Categorical,
            return_log_prob=True,
        ),
    ]


def lstm() -> TensorDictSequential:
    torch.manual_seed(0)
    return TensorDictSequential(
        LSTMModule(4, HIDDEN, LAYERS, in_key="observation", out_key="embedded"), *head()
    )


def gru() -> TensorDictSequential:
    torch.manual_seed(0)
    keys = {"in_keys": ["observation", "h"], "out_keys": ["embedded", ("next", "h")]}
    return TensorDictSequential(GRUModule(4, HIDDEN, **keys), *head())


class Cell(nn.Module):
    """Begins with zeros where it is given nothing, as the cells of torch do."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, HIDDEN)

    def forward(
        self, observation: torch.Tensor, hidden: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.cell(observation, hidden)
        return hidden, hidden


def cell() -> TensorDictSequential:
    torch.manual_seed(0)
    keys = {"in_keys": ["observation", "hidden"], "out_keys": ["embedded", ("next", "hidden")]}
    return TensorDictSequential(TensorDictModule(Cell(), **keys), *head())


POLICIES = {"lstm": (lstm, LSTM_STATE), "gru": (gru, ("h",)), "cell": (cell, ("hidden",))}


def check(
    batches: list[TensorDictBase], policy: TensorDictSequential, state: tuple[str, ...]
) -> None:
    """Steps ``policy`` through each trajectory by hand, from a state of zeros."""
    frames = torch.cat([batch.reshape(-1) for batch in batches])
    ids = frames["collector", "traj_ids"]
    assert len(ids.unique()) > 1
    for number in ids.unique():
        trajectory = frames[ids == number]
        carried = {key: torch.zeros_like(trajectory[key][0]) for key in state}
        for step in range(len(trajectory)):
            frame = trajectory[step]
            own = TensorDict(
                {
                    "observation": frame["observation"],
                    "is_init": torch.tensor([step == 0]),
                    **carried,
                },
                [],
            )
            with torch.no_grad():
                policy[:-1](own)
            torch.testing.assert_close(frame["logits"], own["logits"], rtol=1e-6, atol=1e-6)
            for key in state:
                torch.testing.assert_close(frame[key], carried[key], rtol=1e-6, atol=1e-6)
                torch.testing.assert_close(
                    frame["next", key], own["next", key], rtol=1e-6, atol=1e-6
                )
            carried = {key: own["next", key] for key in state}
    if "is_init" in frames.keys():
        firsts = [frames[ids == number]["is_init"].flatten() for number in ids.unique()]
        assert all(first.tolist() == [True] + [False] * (len(first) - 1) for first in firsts)
