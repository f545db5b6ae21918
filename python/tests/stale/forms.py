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
        kind: where state of its kind lies, as the module of this package says that has the form.
        is_shared: copies in threads of this process share the state, and may use newer ones.
        is_whole: each change is one write, so that no thread can see half of it.
        is_flag: there are two states.
        is_mode: it is about training mode, in which no evaluator acts.
        is_raced: a thread may change it without pause while a collector acts.
        is_local: it belongs to the thread that changes it, or reaches every process at once, so
            that no copy is asked what it makes of that.
        is_of_process: the interpreter or a library holds it, and so each process for itself.
        is_whole_copy: a copy of the module does what the module does.
        undo: puts back what a change has replaced for everybody.
        action: what the module computes of two observed numbers at a level.
    """

    name: str
    make: Callable[[], tuple[Any, Callable[[int], Any]]]
    names: str
    kind: str
    is_shared: bool = False
    is_whole: bool = False
    is_flag: bool = False
    is_mode: bool = False
    is_raced: bool = True
    is_local: bool = False
    is_of_process: bool = False
    is_whole_copy: bool = True
    undo: Callable[[], Any] | None = None
    action: Callable[[torch.Tensor, int], torch.Tensor] | None = None

    def level(self, number: int) -> int:
        """The level after a number of changes."""
        return number % 2 if self.is_flag else number

    def expected(self, observation: torch.Tensor, level: int) -> torch.Tensor:
        if self.action is not None:
            return self.action(observation, level)
        added = torch.tensor([float(level), -float(level)], dtype=observation.dtype)
        return observation + added


def form(names: str, **options: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Adds a form, which is named as the function that makes it."""

    def add(make: Callable[[], Any]) -> Callable[[], Any]:
        _add(make.__name__.replace("_", " ").strip(), make, names, make.__module__, options)
        return make

    return add


def state(
    name: str,
    held: Callable[[], Any],
    read: Callable[[Any], Any],
    change: Callable[[Any, int], Any],
    *,
    names: str = "held",
    start: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """Adds a form whose module holds what ``held()`` makes, and adds the number that
    ``read(module)`` gives to what it observes. ``change(module, level)`` makes that number
    ``level``; ``start`` are further attributes.
    """

    def make() -> tuple[Any, Callable[[int], Any]]:
        policy = type("Policy", (OfNumber,), {"number": read})(held())
        vars(policy).update(start or {})
        return policy, lambda level: change(policy, level)

    _add(name, make, names, read.__module__, options)


def _add(name: str, make: Any, names: str, module: str, options: dict[str, Any]) -> None:
    assert name not in FORMS, name
    # What is replaced for everybody is replaced between batches alone.
    if options.get("undo") is not None or options.get("is_local"):
        options.setdefault("is_raced", False)
    kind = module.rpartition("forms_of_")[2]
    FORMS[name] = Form(name, make, names, kind, **options)


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


class OfNumber(Base):
    """A module that holds something, and adds a number that it reads there."""

    def __init__(self, held: Any = None) -> None:
        super().__init__()
        self.held = held

    def number(self) -> Any:
        raise NotImplementedError

    def read(self) -> Any:
        value = self.number()
        return value, -value


class OfTensorDict(nn.Module):
    """Calls another module with an entry of a TensorDict, and writes what that returns."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tensordict: Any) -> Any:
        tensordict["action"] = self.inner(tensordict["observation"])
        return tensordict


def shifted(values: torch.Tensor, one: Any, other: Any) -> torch.Tensor:
    """``values`` with two numbers added."""
    return values + torch.stack([number(one), number(other)])


def number(value: Any) -> torch.Tensor:
    return value.float() if isinstance(value, torch.Tensor) else torch.tensor(float(value))


def pair(level: float) -> tuple[float, float]:
    return float(level), -float(level)
