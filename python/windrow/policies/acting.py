"""What holds while torch evaluates a policy: no gradients, and the modes that modules look up.

Tensordict keeps each mode once for the whole process: how modules explore, whether they aggregate the log-probabilities of
several actions, whether they leave existing entries as they are. A learner, collectors and an evaluator in one process would
act in each other's modes, so each thread that acts has modes of its own. That takes objects in place of three of tensordict's;
they are put there when torch first evaluates a policy for windrow, and change nothing for threads that do not act.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from tensordict.nn import InteractionType, probabilistic, set_interaction_type
from tensordict.nn import utils as shared_modes


class _Thread(threading.local):
    """The modes of one thread, by name; None while it does not act."""

    modes: dict[str, Any] | None = None
    #: Whether it acts without objects of its own, where there are none yet.
    borrows = False


_THREAD = _Thread()
_INSTALLING = threading.Lock()


class _PerThread:
    """In place of what tensordict keeps a mode in: a thread that acts sees its own, all others share the process's."""

    def __init__(self, name: str, shared: Any) -> None:
        self._name = name
        self._shared = shared

    def get_mode(self) -> object:
        modes = _THREAD.modes
        return self._shared.get_mode() if modes is None else modes[self._name]

    def set_mode(self, mode: object) -> None:
        if _THREAD.modes is None:
            self._shared.set_mode(mode)
        else:
            _THREAD.modes[self._name] = mode


def aggregation() -> bool | None:
    """How log-probabilities of several actions are aggregated in this thread."""
    return shared_modes._composite_lp_aggregate.get_mode()


@contextlib.contextmanager
def acting(exploration_type: str, aggregates: bool | None) -> Iterator[None]:
    """Lets this thread act in this context, as :func:`act_from_now_on` does."""
    if _THREAD.borrows and not isinstance(probabilistic._interaction_type, _PerThread):
        with torch.no_grad(), set_interaction_type(InteractionType(exploration_type)):
            yield
        return
    before = _THREAD.modes
    _THREAD.modes = _modes(exploration_type, aggregates)
    try:
        with torch.no_grad():
            yield
    finally:
        _THREAD.modes = before


@contextlib.contextmanager
def borrowing() -> Iterator[None]:
    """A context in which :func:`acting` sets the mode of the whole process for a moment, unless torch evaluates a policy already."""
    _THREAD.borrows = True
    try:
        yield
    finally:
        _THREAD.borrows = False


def act_from_now_on(exploration_type: str, aggregates: bool | None) -> None:
    """Lets this thread, which does nothing else, act until it ends. Costs next to nothing if it acts already.

    Args:
        exploration_type: name of the exploration type.
        aggregates: how log-probabilities of several actions are aggregated.
    """
    if _THREAD.modes is not None:
        # Modules restore what they found, which may be the mode of another thread.
        _THREAD.modes["skips_existing"] = False
        return
    _THREAD.modes = _modes(exploration_type, aggregates)
    torch.set_grad_enabled(False)


def _modes(exploration_type: str, aggregates: bool | None) -> dict[str, Any]:
    """Modes of a thread that acts, which tensordict asks for from now on."""
    with _INSTALLING:
        if not isinstance(probabilistic._interaction_type, _PerThread):
            probabilistic._interaction_type = _PerThread("explores", probabilistic._interaction_type)
            shared_modes._composite_lp_aggregate = _PerThread("aggregates", shared_modes._composite_lp_aggregate)
            shared_modes._skip_existing = _PerThread("skips_existing", shared_modes._skip_existing)
    return {"explores": InteractionType(exploration_type), "aggregates": aggregates, "skips_existing": False}
