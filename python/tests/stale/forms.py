"""The ways in which a module holds what it computes with. Each form makes a module and changes it;
all add two numbers to what they observe, ``level`` to the first and ``-level`` to the second, so
that each action tells which state it was computed with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

#: All forms, by their names.
FORMS: dict[str, Form] = {}

Levels = Callable[[int], float]


@dataclass(frozen=True)
class Form:
    """A way of holding state.

    Attributes:
        name: what it is called in reports.
        make: returns a module, and a function that changes its state to that of a level.
        names: a pattern of what an error may call it.
        is_shared: copies in threads of this process share the state, and may use newer ones.
        is_whole: each change is one write, so that no thread can see half of it.
        is_flag: there are two states.
        is_mode: it is about training mode, in which no evaluator acts.
        action: what the module computes of two observed numbers at a level.
    """

    name: str
    make: Callable[[], tuple[Any, Callable[[int], Any]]]
    names: str
    is_shared: bool = False
    is_whole: bool = False
    is_flag: bool = False
    is_mode: bool = False
    action: Callable[[torch.Tensor, int], torch.Tensor] | None = None

    def level(self, number: int) -> int:
        """The level after a number of changes."""
        return number % 2 if self.is_flag else number

    def expected(self, observation: torch.Tensor, level: int) -> torch.Tensor:
        if self.action is not None:
            return self.action(observation, level)
        return observation + torch.tensor([float(level), -float(level)])


def form(names: str, **options: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Adds a form, which is named as the function that makes it."""

    def add(make: Callable[[], Any]) -> Callable[[], Any]:
        name = make.__name__.replace("_", " ").strip()
        assert name not in FORMS
        FORMS[name] = Form(name, make, names, **options)
        return make

    return add


class Base(nn.Module):
    """A module whose layer changes nothing, and that adds what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 2)
        with torch.no_grad():
            self.net.weight.copy_(torch.eye(2))
            self.net.bias.zero_()

    def read(self) -> Any:
        raise NotImplementedError

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        one, other = self.read()
        return shifted(self.net(observation), one, other)


def shifted(values: torch.Tensor, one: Any, other: Any) -> torch.Tensor:
    """``values`` with two numbers added."""
    return values + torch.stack([number(one), number(other)])


def number(value: Any) -> torch.Tensor:
    return value.float() if isinstance(value, torch.Tensor) else torch.tensor(float(value))


def pair(level: float) -> tuple[float, float]:
    return float(level), -float(level)
