"""What holds while torch evaluates a policy: no gradients, and the modes that modules look up.

Tensordict keeps each mode once for the whole process: how modules explore, whether they aggregate
the log-probabilities of several actions, whether they leave existing entries as they are. A
learner, collectors and an evaluator in one process would act in each other's modes, so each thread
that acts has modes of its own. That takes objects in place of three of tensordict's; they are put
there when torch first evaluates a policy for windrow, and change nothing for threads that do not
act.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from tensordict.nn import InteractionType, probabilistic, utils as shared_modes
from torch.distributions import Distribution

from windrow import _fence


class _Thread(threading.local):
    """The modes of one thread. No dictionary holds them: torch.compile takes what a thread has of
    its own for constants.
    """

    acts = False
    explores: InteractionType | None = None
    aggregates: bool | None = None
    skips_existing = False

    def taken(self) -> tuple[bool, InteractionType | None, bool | None, bool]:
        return self.acts, self.explores, self.aggregates, self.skips_existing

    def take(self, modes: tuple[bool, InteractionType | None, bool | None, bool]) -> None:
        """Takes modes in the order of :meth:`taken`."""
        self.acts, self.explores, self.aggregates, self.skips_existing = modes


_THREAD = _Thread()
_INSTALLING = threading.Lock()
_CHECKING = threading.RLock()


class _PerThread:
    """In place of what tensordict keeps a mode in: a thread that acts sees its own, all others
    share the process's.
    """

    def __init__(self, name: str, shared: Any) -> None:
        self._name = name
        self._shared = shared

    def get_mode(self) -> object:
        mode: object = getattr(_THREAD, self._name) if _THREAD.acts else self._shared.get_mode()
        return mode

    def set_mode(self, mode: object) -> None:
        if _THREAD.acts:
            setattr(_THREAD, self._name, mode)
        else:
            self._shared.set_mode(mode)


def aggregation() -> bool | None:
    """How log-probabilities of several actions are aggregated in this thread."""
    return shared_modes._composite_lp_aggregate.get_mode()


def context() -> str | None:
    """The exploration type that holds in this thread, if one was set."""
    kind = probabilistic.interaction_type()
    return None if kind is None else kind.name.lower()


class acting:
    """A context in which this thread acts, as :func:`act_from_now_on` has it do.

    A class, since a generator takes longer than all that is asked in it before a batch.
    """

    __slots__ = ("_before", "_grad", "_modes")

    def __init__(self, exploration_type: str, aggregates: bool | None) -> None:
        self._modes = exploration_type, aggregates

    def __enter__(self) -> None:
        self._before, self._grad = _THREAD.taken(), torch.is_grad_enabled()
        _act(*self._modes)
        torch._C._set_grad_enabled(False)

    def __exit__(self, *_: object) -> None:
        torch._C._set_grad_enabled(self._grad)
        _THREAD.take(self._before)


def act_from_now_on(exploration_type: str, aggregates: bool | None) -> None:
    """Lets this thread, which does nothing else, act until it ends. Costs next to nothing if it
    acts already.

    Args:
        exploration_type: name of the exploration type.
        aggregates: how log-probabilities of several actions are aggregated.
    """
    if _THREAD.acts:
        # Modules restore what they found, which may be the mode of another thread.
        _THREAD.skips_existing = False
        return
    _act(exploration_type, aggregates)
    torch.set_grad_enabled(False)


def _act(exploration_type: str, aggregates: bool | None) -> None:
    """Gives this thread modes of its own, which tensordict asks for from now on."""
    with _INSTALLING:
        if not isinstance(probabilistic._interaction_type, _PerThread):
            probabilistic._interaction_type = _PerThread(
                "explores", probabilistic._interaction_type
            )
            shared_modes._composite_lp_aggregate = _PerThread(
                "aggregates", shared_modes._composite_lp_aggregate
            )
            shared_modes._skip_existing = _PerThread("skips_existing", shared_modes._skip_existing)
    _THREAD.take((True, InteractionType(exploration_type), aggregates, False))


class unchecked:
    """A context in which distributions and specs take numbers without looking at them. One thread
    is in it at a time.
    """

    __slots__ = ("_compiles", "_specs", "_validates")

    def __enter__(self) -> None:
        _CHECKING.acquire()
        self._validates = Distribution._validate_args
        self._specs = _fence.loaded("data.tensor_specs")
        self._compiles = getattr(self._specs, "is_compiling", None)
        Distribution.set_default_validate_args(False)
        if self._compiles is not None:
            vars(self._specs)["is_compiling"] = _yes

    def __exit__(self, *_: object) -> None:
        Distribution.set_default_validate_args(self._validates)
        if self._compiles is not None:
            vars(self._specs)["is_compiling"] = self._compiles
        _CHECKING.release()


def _yes() -> bool:
    # One function: captures see whether it is another.
    return True
