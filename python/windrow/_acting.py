"""What holds while torch evaluates a policy: no gradients, and the exploration type that modules look up.

Tensordict keeps that type once for the whole process. Where a learner, collectors and an evaluator live in one process, each
would act as another one was told to; so threads that act have a type of their own here.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from tensordict.nn import probabilistic

from windrow._exploration import interaction_type


class _Own(threading.local):
    """The type of one thread, if it acts."""

    acts = False
    type: Any = None


_OWN = _Own()


class _PerThread:
    """In place of what tensordict keeps the type in: a thread that acts sees its own, all others the one that they share."""

    def __init__(self, shared: Any) -> None:
        self._shared = shared

    def get_mode(self) -> Any:
        return _OWN.type if _OWN.acts else self._shared.get_mode()

    def set_mode(self, mode: Any) -> None:
        if _OWN.acts:
            _OWN.type = mode
        else:
            self._shared.set_mode(mode)


probabilistic._interaction_type = _PerThread(probabilistic._interaction_type)


@contextlib.contextmanager
def acting(exploration_type: str) -> Iterator[None]:
    """Lets this thread act in this context."""
    before = _OWN.acts, _OWN.type
    _OWN.acts, _OWN.type = True, interaction_type(exploration_type)
    try:
        with torch.no_grad():
            yield
    finally:
        _OWN.acts, _OWN.type = before


def act_from_now_on(exploration_type: str) -> None:
    """Lets this thread, which does nothing else, act until it ends; costs next to nothing if it does so already."""
    if not _OWN.acts:
        _OWN.acts, _OWN.type = True, interaction_type(exploration_type)
        torch.set_grad_enabled(False)
