"""What holds while torch evaluates a policy: no gradients, and the modes that modules look up.

Tensordict keeps each mode once for the whole process: how modules explore, whether they aggregate the log-probabilities of
several actions, whether they leave entries that exist as they are. Where a learner, collectors and an evaluator live in one
process, each would act as another one was told to, so threads that act have modes of their own here.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from tensordict.nn import probabilistic
from tensordict.nn import utils as modes

from windrow._exploration import interaction_type


class _Own(threading.local):
    """The mode of one thread, if it has one."""

    acts = False
    mode: Any = None


class _PerThread:
    """In place of what tensordict keeps a mode in: a thread that acts sees its own, all others the one that they share."""

    def __init__(self, shared: Any) -> None:
        self._shared = shared
        self.own = _Own()

    def get_mode(self) -> Any:
        own = self.own
        return own.mode if own.acts else self._shared.get_mode()

    def set_mode(self, mode: Any) -> None:
        if self.own.acts:
            self.own.mode = mode
        else:
            self._shared.set_mode(mode)


_EXPLORATION = probabilistic._interaction_type = _PerThread(probabilistic._interaction_type)
_AGGREGATION = modes._composite_lp_aggregate = _PerThread(modes._composite_lp_aggregate)
_SKIPPING = modes._skip_existing = _PerThread(modes._skip_existing)


def aggregation() -> Any:
    """How log-probabilities of several actions are aggregated in this thread."""
    return _AGGREGATION.get_mode()


@contextlib.contextmanager
def acting(exploration_type: str, aggregates: Any) -> Iterator[None]:
    """Lets this thread act in this context, as :func:`act_from_now_on` does."""
    kept = (_EXPLORATION.own, _AGGREGATION.own, _SKIPPING.own)
    before = [(own.acts, own.mode) for own in kept]
    _begin(exploration_type, aggregates)
    try:
        with torch.no_grad():
            yield
    finally:
        for own, (acts, mode) in zip(kept, before, strict=True):
            own.acts, own.mode = acts, mode


def act_from_now_on(exploration_type: str, aggregates: Any) -> None:
    """Lets this thread, which does nothing else, act until it ends; costs next to nothing if it does so already.

    Args:
        exploration_type: name of the exploration type.
        aggregates: how log-probabilities of several actions are aggregated.
    """
    if _EXPLORATION.own.acts:
        # Modules put back what they have found, or what another thread has.
        _SKIPPING.own.mode = False
        return
    _begin(exploration_type, aggregates)
    torch.set_grad_enabled(False)


def _begin(exploration_type: str, aggregates: Any) -> None:
    modes_of_one = (_EXPLORATION, interaction_type(exploration_type)), (_AGGREGATION, aggregates), (_SKIPPING, False)
    for kept, mode in modes_of_one:
        kept.own.acts, kept.own.mode = True, mode
