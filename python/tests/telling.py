"""Environments of TorchRL that observe what no array holds, for tests."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
from tensordict import NonTensorStack, TensorDictBase
from torch import nn
from torchrl.data import NonTensor, Unbounded

from theirs import Counting

TEXT = ("data", "text")


class Telling(Counting):
    """Tells the number of its episode and of the step in it."""

    def __init__(self, batch: tuple[int, ...] = ()) -> None:
        super().__init__(batch)
        self.observation_spec[TEXT] = NonTensor(batch, example_data="0 0")
        self.episode = 0

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
        self.episode += 1
        return super()._reset(tensordict, **kwargs)

    def _root(self, count: Any) -> Any:
        told = [f"{self.episode} {number}" for number in count.flatten().tolist()]
        return super()._root(count).set(TEXT, NonTensorStack(*told) if self.batch_size else told[0])


class Growing(Counting):
    """Observes a tensor that is as long as the steps of its episode are many."""

    def __init__(self, batch: tuple[int, ...] = ()) -> None:
        super().__init__(batch)
        self.observation_spec["data", "past"] = Unbounded((*batch, -1, 2))

    def _root(self, count: Any) -> Any:
        steps = 1 + int(count.flatten()[0])
        return (
            super()
            ._root(count)
            .set(("data", "past"), torch.full((*self.batch_size, steps, 2), float(steps)))
        )


class Both(Growing):
    """Tells the number of the step, and observes a tensor of as many rows."""

    def __init__(self, batch: tuple[int, ...] = ()) -> None:
        super().__init__(batch)
        self.observation_spec[TEXT] = NonTensor(batch, example_data="0 0")

    def _root(self, count: Any) -> Any:
        told = [f"1 {number}" for number in count.flatten().tolist()]
        return super()._root(count).set(TEXT, NonTensorStack(*told) if self.batch_size else told[0])


class Varying(Telling):
    """Has episodes of three to five steps."""

    def _step(self, tensordict: Any) -> Any:
        following = super()._step(tensordict)
        return following.set("done", self.count >= 3 + self.episode % 3)


class Dying(Telling):
    """Ends its process with its 23rd step."""

    steps = 0

    def _step(self, tensordict: Any) -> Any:
        self.steps += 1
        if self.steps == 23:
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._step(tensordict)


class Raising(Telling):
    """Raises an error with its 23rd step."""

    steps = 0

    def _step(self, tensordict: Any) -> Any:
        self.steps += 1
        if self.steps == 23:
            raise ValueError("enough")
        return super()._step(tensordict)


class Reader(nn.Module):
    """Acts by what it is told, and says what it has read."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        told = tensordict[TEXT]
        numbers = torch.tensor(
            [[int(one.split()[1])] for one in ([told] if isinstance(told, str) else told)]
        )
        numbers = numbers if tensordict.ndim else numbers[0]
        return tensordict.set("action", numbers % 2 == 1).set("read", numbers)


def told(batch: Any, *side: str) -> list[Any]:
    """What each frame tells, flat."""
    values = batch.get((*side, *TEXT)).tolist()
    for _ in range(batch.ndim - 1):
        values = [value for inner in values for value in inner]
    return values


def agrees(batch: Any) -> bool:
    """Whether each frame tells the number of its step, before it and after it, in one episode."""
    pairs = list(zip(told(batch), told(batch, "next"), strict=True))
    own = [int(one.split()[1]) for one, _ in pairs] == batch["data", "count"].flatten().tolist()
    following = [int(one.split()[1]) for _, one in pairs] == batch[
        "next", "data", "count"
    ].flatten().tolist()
    return own and following and all(one.split()[0] == other.split()[0] for one, other in pairs)


def has_both(batch: Any) -> bool:
    """Whether each frame of :class:`Both` has the text and as many rows as it has steps, before its
    step and after it.
    """
    for frame in batch.reshape(-1).unbind(0):
        for side in (), ("next",):
            steps, past = int(frame[(*side, "data", "count")]), frame[(*side, "data", "past")]
            if (
                frame[(*side, *TEXT)] != f"1 {steps}"
                or past.shape != (steps + 1, 2)
                or not bool((past == steps + 1).all())
            ):
                return False
    return batch.numel() > 0
