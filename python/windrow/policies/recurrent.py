"""The state of policies that remember something from one step to the next.

A policy that reads ``k`` and writes ``("next", k)`` has a state called ``k``. It reads at each step
what it wrote at the step before, row by row; in rows that begin an episode, it reads a first value.
A module that reads and writes under one name has a state too, and so has one with outputs whose
names begin with an underscore.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, unravel_key
from torch import nn

from windrow import _fence
from windrow._keys import Key, path
from windrow._warnings import warn

Tensors = dict[Key, torch.Tensor]

#: The observation that is true where an episode begins.
IS_INIT = "is_init"


class Memory:
    """The state of a policy, for all of its rows, or places where rows are others in each call.

    Args:
        sources: under which name the policy writes each of its states.
        keys: names of the observations. A state that is one of them begins with what is observed,
            and goes on by itself.
        start: values of the states before the first step. ``[*batch, *shape]``.
        draw: first values for the states that are not observed.
    """

    def __init__(
        self,
        sources: dict[Key, Key],
        keys: Sequence[Key],
        start: Tensors,
        draw: Callable[[], Tensors],
    ) -> None:
        #: Names of all inputs of the policy.
        self.keys = [*keys, *(key for key in sources if key not in keys)]
        #: The states that the policy read last.
        self.given = start
        self._sources = sources
        #: What was observed of each state when the episode began.
        self._began = {key: start[key] for key in sources if key in keys}
        self._draw = draw
        self._places: torch.Tensor | None = None
        self._kept: list[Tensors] = [{}, {}]

    def recall(
        self,
        observed: Sequence[torch.Tensor],
        first: torch.Tensor,
        places: torch.Tensor | None = None,
    ) -> list[torch.Tensor]:
        """The inputs of the policy, in the order of :attr:`keys`.

        Args:
            observed: the observations.
            first: rows that begin an episode. ``[*batch]``.
            places: where states of the rows are kept, if rows are others in each call. ``[rows]``,
                int64.

        Raises:
            RuntimeError: the environment changes a state too.
        """
        self._places = places
        if places is not None:
            self.given, self._began = (
                self._fetched(kept, like, places)
                for kept, like in zip(self._kept, (self.given, self._began))
            )
        inputs = dict(zip(self.keys, observed))
        seen = {key: inputs[key] for key in self._began}
        if bool(first.any()):
            for key, value in {
                **self._drawn(len(first) if places is not None else None),
                **seen,
            }.items():
                self.given[key] = _where(first, value, self.given[key])
                if key in seen:
                    self._began[key] = _where(first, value, self._began[key])
        for key, value in seen.items():
            if not torch.equal(value, self._began[key]):
                raise RuntimeError(
                    f"both the policy and the environment write {('next', *path(key))}: expected an environment that leaves "
                    f"{key!r} as it was when the episode began, since the policy carries it on"
                )
        return list({**inputs, **self.given}.values())

    def keep(self, returned: TensorDictBase) -> None:
        """Remembers the states that the policy has returned."""
        self.given = {
            key: returned.get(source, self.given[key]) for key, source in self._sources.items()
        }
        if self._places is not None:
            for kept, values in zip(self._kept, (self.given, self._began)):
                for key, value in values.items():
                    kept[key][self._places] = value.detach()

    def state(self) -> list[Tensors]:
        """What is remembered."""
        remembered = [self.given, self._began, *self._kept]
        return [{key: value.detach().cpu() for key, value in part.items()} for part in remembered]

    def set_state(self, state: list[Tensors]) -> None:
        """Goes on from what :meth:`state` returned.

        Raises:
            ValueError: another policy remembers something else.
        """
        given, began, *kept = state
        for own, other in ((self.given, given), (self._began, began)):
            if own.keys() != other.keys():
                raise ValueError(
                    f"the state is that of another policy: expected {list(own)}, got {list(other)}"
                )
        devices = {key: value.device for key, value in self.given.items()}
        parts = [
            {key: value.to(devices[key]) for key, value in part.items()}
            for part in (given, began, *kept)
        ]
        self.given, self._began, *self._kept = parts

    def _drawn(self, rows: int | None) -> Tensors:
        """First values, for so many rows where their number differs from that of the first call."""
        drawn = [self._draw()]
        if rows is None or not drawn[0]:
            return drawn[0]
        while sum(len(next(iter(part.values()))) for part in drawn) < rows:
            drawn.append(self._draw())
        return {key: torch.cat([part[key] for part in drawn])[:rows] for key in drawn[0]}

    @staticmethod
    def _fetched(kept: Tensors, like: Tensors, places: torch.Tensor) -> Tensors:
        """What is kept at ``places``, with room for all of them."""
        needed = int(places.max()) + 1
        for key, value in like.items():
            known = kept.get(key, value[:0])
            if len(known) < needed:
                kept[key] = torch.cat(
                    [known, value.new_zeros((needed - len(known), *value.shape[1:]))]
                )
        return {key: kept[key][places] for key in like}


def find(
    policy: Callable[..., Any],
    inputs: Tensors,
    evaluate: Callable[[Tensors], TensorDictBase],
    *,
    batch: torch.Size,
    prime: bool,
) -> tuple[Memory | None, Tensors]:
    """Calls ``policy`` as at the first step of an episode. Returns the memory that it needs, if
    any, and all of its inputs, states and outputs.

    Args:
        inputs: observations.
        evaluate: calls the policy; always with the same random numbers.
        batch: dimensions of a batch of observations.
        prime: take the first values of states from modules that know them.

    Raises:
        KeyError: a module reads a key that neither the environment observes nor the policy writes.
        TypeError: the policy cannot be called without a first value of its state.
        ValueError: a state does not begin with zeros, or the policy writes it with another shape.
    """
    observed = {
        key: torch.ones_like(value) if key == IS_INIT else value for key, value in inputs.items()
    }
    read, declared = keys_of(policy, "in_keys"), keys_of(policy, "out_keys") or []
    primers = primers_of(policy, batch) if prime else []
    primed = {
        key: value for key, value in _drawn(primers, batch).items() if _is_among(key, read or ())
    }
    first = {**primed, **observed}
    unknown = [key for key in read or () if not any(_covers(key, leaf) for leaf in first)]
    for key in unknown:
        if not any(_covers(key, out) or _covers(("next", *path(key)), out) for out in declared):
            raise KeyError(
                f"the policy reads {key!r}, which neither the environment observes nor the policy writes"
            )
    try:
        found = _leaves(evaluate(first))
    except Exception as error:
        if not unknown:
            raise
        raise TypeError(
            f"the policy failed without {unknown}, which it writes only for its next step ({error}): let it begin with zeros "
            "where it is given None, or give its module a method make_tensordict_primer() that tells the first value"
        ) from error
    sources = _sources({**first, **found}, inputs, read, declared)
    fresh = {
        key: torch.zeros_like(found[source]) for key, source in sources.items() if key not in first
    }
    if fresh:
        without, found = found, _leaves(evaluate({**first, **fresh}))
        _check_zeros({key: sources[key] for key in fresh}, without, found)
    start, begun = {}, {**first, **fresh}
    for key, source in sources.items():
        value, written = begun[key], {**begun, **found}[source]
        if value.shape != written.shape:
            raise ValueError(
                f"the policy writes {source!r} with shape {tuple(written.shape)}, expected {tuple(value.shape)}, as {key!r} "
                "has at first"
            )
        start[key] = value.to(written)
    outputs = {**start, **found}
    if not sources:
        return None, outputs

    def draw() -> Tensors:
        drawn = {**fresh, **_drawn(primers, batch)}
        return {key: drawn[key].to(start[key]) for key in sources if key in drawn}

    return Memory(sources, list(inputs), start, draw), outputs


def stepwise() -> AbstractContextManager[Any]:
    """A context in which recurrent modules of TorchRL take one step, whatever its surroundings have
    set.
    """
    # A policy with such a module has imported it.
    modules = _fence.loaded("modules")
    return contextlib.nullcontext() if modules is None else modules.set_recurrent_mode(False)


def _sources(
    written: Tensors, inputs: Tensors, read: list[Key] | None, declared: list[Key]
) -> dict[Key, Key]:
    """Each state, and the name under which it is written."""
    sources: dict[Key, Key] = {}
    for key in written:
        names = path(key)
        state = unravel_key(names[1:]) if names[0] == "next" and len(names) > 1 else None
        # What a function reads is unknown.
        if state is not None and (state not in inputs if read is None else _is_among(state, read)):
            sources[state] = key
    for key in written:
        own = _is_among(key, read or ()) or (is_private(key) and _is_among(key, declared))
        if own and key not in inputs and key not in sources:
            sources[key] = key
    return sources


def _check_zeros(sources: dict[Key, Key], without: Tensors, with_zeros: Tensors) -> None:
    """Checks that a policy begins with zeros where it is given no state."""
    for key, source in sources.items():
        before, after = without[source].double(), with_zeros[source].double()
        if before.shape != after.shape or not torch.allclose(
            before, after, rtol=1e-4, atol=1e-6, equal_nan=True
        ):
            raise ValueError(
                f"the policy begins with something else than zeros where it is given no {key!r}: give its module a method "
                "make_tensordict_primer() that tells the first value, or let it put one in itself where 'is_init' is true"
            )


def primers_of(policy: object, batch: torch.Size) -> list[Any]:
    """Transforms that give the first values of the states of the modules of ``policy``, for a whole
    batch.

    Raises:
        Exception: what ``make_tensordict_primer`` of a module raises, but for
            :class:`RuntimeError`, by which modules of TorchRL say that they know no first value: a
            warning says so too.
    """
    found = []
    for module in policy.modules() if isinstance(policy, nn.Module) else ():
        make = getattr(module, "make_tensordict_primer", None)
        if make is None:
            continue
        try:
            primer = make()
        except RuntimeError as error:
            told = f"{type(module).__name__} knows no first value of its state, which therefore begins with zeros: {error}"
            warn(told)
            continue
        if primer.expand_specs is not False:
            primer.primers = primer.primers.expand((*batch, *primer.primers.shape))
        found.append(primer)
    return found


def _drawn(primers: Iterable[Any], batch: torch.Size) -> Tensors:
    drawn: Tensors = {}
    for primer in primers:
        drawn.update(_leaves(primer(TensorDict({}, batch_size=batch))))
    return drawn


def _leaves(tensordict: TensorDictBase) -> Tensors:
    leaves = tensordict.items(include_nested=True, leaves_only=True)
    return {key: value for key, value in leaves if isinstance(value, torch.Tensor)}


def _where(rows: torch.Tensor, value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.where(rows.reshape(rows.shape + (1,) * (value.dim() - rows.dim())), value, other)


def keys_of(policy: object, name: str) -> list[Key] | None:
    """The keys that a module declares; None for a function."""
    keys = getattr(policy, name, None)
    return None if keys is None else [unravel_key(key) for key in keys]


def _is_among(leaf: Key, keys: Iterable[Key]) -> bool:
    return any(_covers(key, leaf) for key in keys)


def _covers(key: Key, leaf: Key) -> bool:
    """Whether ``leaf`` is ``key``, or an entry below it."""
    names = path(key)
    return path(leaf)[: len(names)] == names


def is_private(key: Key) -> bool:
    """Whether ``key`` is left out of batches."""
    return any(name.startswith("_") for name in path(key))
