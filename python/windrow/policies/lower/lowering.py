"""Policies that windrow evaluates itself, as graphs of what torch computes.

:func:`lower` takes a policy only where it is proved what a call of it reads, and that it does
nothing beside computing: all its classes are listed (:mod:`windrow.policies.lower.listed`), or
torch captures the call whole (:mod:`windrow.policies.lower.capture`). A
:class:`~windrow.policies.lower.trace.Trace` then follows the operations, row by row, and gives a
graph. The graph has to give the same numbers as the policy for random inputs, with the same draws.
Otherwise torch evaluates the policy.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from windrow._keys import Key
from windrow._windrow import Readings
from windrow.policies.acting import acting, unchecked
from windrow.policies.audit import Audit
from windrow.policies.lower.capture import Capture, Captures
from windrow.policies.lower.inputs import Leaf, asked_for, observed_by
from windrow.policies.lower.listed import Listed
from windrow.policies.lower.origin import NotListed
from windrow.policies.lower.plain import plain_graph
from windrow.policies.lower.reading import ROWS, Graph, Reading
from windrow.policies.lower.recorded import foreign_mode
from windrow.policies.lower.twin import Twin
from windrow.policies.lower.values import NotLowerable, same_numbers
from windrow.policies.weights import original, slots_of, source_of, tensors_of

if TYPE_CHECKING:
    from windrow.policies.choose import Conditions


#: Rows of a second trace. A prime, too.
MORE = 41
#: Rows of other calls that the graph of a policy whose classes are listed is compared with: of one
#: environment alone, of few, and of more.
OTHERS = (None, 1, 2, MORE)
#: How often the second look compares a row again that differs, and after how many seconds.
AGAIN, PAUSE = 5, 0.002
#: How many calls with one row are compared.
ALONE = 8
#: The largest number of rows that a policy is evaluated for where it asks how many there are.
MANY = 4096
#: How many graphs of a policy are kept, for what it reads that takes turns.
KNOWN = 4
#: How often a policy is read that changes meanwhile.
TRIES = 3


@dataclass
class Lowered:
    """A policy that was lowered.

    Attributes:
        core: the description that the engine reads.
        inputs: the names of what the graph reads.
        first: the graph as bytes.
        graph: gives the graph that the policy is by now, as bytes; raises :class:`NotLowerable`
            where it is none.
        source: the module that has the weights.
        audit: compares rows that were delivered.
    """

    core: dict[str, Any]
    inputs: list[Key]
    first: bytes
    graph: Callable[[], bytes]
    source: nn.Module
    audit: Audit


def lower(policy: Callable[..., Any], conditions: Conditions, env: object = None) -> Lowered:
    """The graph of ``policy``.

    Args:
        conditions: how it is called.
        env: an environment, which tells what is observed, or a function that makes one, which does
            not.

    Raises:
        NotLowerable: torch has to evaluate the policy.
    """
    if "_windrow_compiled" in getattr(policy, "__dict__", {}):
        raise NotLowerable("compile_policy was asked for")
    policy = original(policy)
    source = source_of(policy)
    if isinstance(source, torch.jit.ScriptModule):
        raise NotLowerable("torch.jit has compiled it")
    if source is None:
        raise NotLowerable(f"expected a module, or a method of one, got {type(policy).__name__}")
    with _as_usual():
        return _lowered(policy, source, conditions, env)


def _lowered(
    policy: Callable[..., Any], source: nn.Module, conditions: Conditions, env: object
) -> Lowered:
    known = observed_by(env, policy, conditions)
    is_lazy = any(map(nn.parameter.is_lazy, source.parameters()))
    if is_lazy and not known:
        raise NotLowerable(
            "it has lazy layers, whose sizes are not known before the environment is made"
        )
    doubt: NotLowerable | None = None
    for candidates in [iter(known)] if known else asked_for(policy, conditions, env):
        first: NotLowerable | None = None
        for observed, actions in candidates:
            try:
                if is_lazy:
                    # Its layers get their sizes by a call.
                    Reading(policy, _called(conditions), observed, ROWS).bind(actions)
                return _Follower(policy, source, conditions, observed, actions).lowered()
            except NotLowerable as reason:
                first = first or reason
                if any(leaf.dtype == torch.float64 for leaf in observed.values()):
                    try:
                        Reading(policy, _called(conditions), observed, ROWS).bind(actions)
                    except Exception:
                        continue
                    # It can be called with float64, and computes something else with float32.
                    break
            except Exception as error:
                first = first or _NotCallable(
                    f"it cannot be called: {type(error).__name__}: {error}".splitlines()[0]
                )
        doubt = first or doubt
        if doubt is not None and not isinstance(doubt, _NotCallable):
            break
    raise doubt or NotLowerable("what it observes is not known before the environment is made")


class _NotCallable(NotLowerable):
    """A policy cannot be called with observations like these."""


def _called(conditions: Conditions) -> Conditions:
    """``conditions`` of a call here and now."""
    return replace(conditions, threads=False, evaluates=False, served=False, device=None)


@contextlib.contextmanager
def _as_usual() -> Iterator[None]:
    """A context in which tensors are made on the CPU, and operations can be recorded, whatever the
    program has chosen.
    """
    with contextlib.ExitStack() as stack:
        # Asked so, since torch takes ten times as long to say which device is the default.
        if torch.empty(0).device.type != "cpu":
            stack.enter_context(torch.device("cpu"))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        yield


class _Weights:
    """The tensors of a module by name."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._slots: Readings | None = None
        self._held: dict[str, torch.Tensor] = {}
        #: Buffers that no ``state_dict`` has.
        self.others: list[torch.Tensor] = []

    def now(self) -> dict[str, torch.Tensor]:
        """The same dictionary as long as each tensor is the same object."""
        if self._slots is None or not self._slots.is_same():
            self._slots = slots_of(self._module)
            self._held = tensors_of(self._module)
            named = set(map(id, self._held.values()))
            self.others = [one for one in self._module.buffers() if id(one) not in named]
        return self._held

    def copies(self) -> list[torch.Tensor]:
        """The numbers of each tensor: what is written below ``data`` has no version."""
        return [one.detach().clone() for one in self.now().values()]

    def have(self, copies: Sequence[torch.Tensor]) -> bool:
        """Whether the tensors have the same numbers as ``copies``."""
        now = self.now().values()
        return len(now) == len(copies) and all(map(same_numbers, now, copies))


@dataclass(eq=False)
class _Known:
    """A graph, and what it was read from.

    Attributes:
        proof: what says that the policy is still the same.
        weights: the tensors that the graph reads by name.
        names: the name of each input of the capture that is such a tensor; None for others.
        constants: all others, which are in the graph.
        graph: the graph.
    """

    proof: Listed | tuple[Capture, ...]
    weights: dict[str, torch.Tensor]
    names: list[str | None]
    constants: list[Any]
    graph: Graph

    def holds(
        self,
        captured: tuple[Capture, ...],
        weights: dict[str, torch.Tensor],
        read: Sequence[Any],
    ) -> bool:
        """Whether the graph is what the policy computes.

        Args:
            captured: the captures that hold now, if any.
            weights: the weights that the policy has.
            read: the inputs of the first capture; for a policy without one, buffers that are no
                weights.
        """
        if isinstance(self.proof, tuple):
            is_proved = self.proof == captured
        else:
            is_proved = not _changes_calls() and self.proof.is_same()
        return (
            is_proved
            and weights is self.weights
            and len(read) == len(self.names)
            and all(
                _is_equal(one, held) if name is None else one is weights[name]
                for name, one, held in zip(self.names, read, self.constants)
            )
        )


def _changes_calls() -> bool:
    """Whether something that the program has entered changes what functions of torch do."""
    return torch.is_autocast_enabled("cpu") or foreign_mode() is not None


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return same_numbers(one.detach(), other)
    return bool(one == other)


class _Follower:
    """Reads a policy, and reads it again where something that it read has changed.

    Raises:
        NotLowerable: torch has to evaluate the policy.
    """

    def __init__(
        self,
        policy: Callable[..., Any],
        source: nn.Module,
        conditions: Conditions,
        observed: dict[Key, Leaf],
        actions: list[Key],
    ) -> None:
        self._source, self._conditions = source, _called(conditions)
        self._observed, self._actions = observed, actions
        self._names = set(tensors_of(source))
        self._twin = Twin(policy, source, evaluates=conditions.evaluates)
        self._begin()
        self._audit = Audit(self._difference, list(observed))
        #: The newest first.
        self._known: list[_Known] = []
        self._known.append(self._read())
        self._written = self._known[0].graph.as_bytes()

    def _begin(self) -> None:
        self._policy = self._twin.now()
        module = source_of(self._policy)
        assert module is not None
        self._weights = _Weights(module)
        #: The captures of the policy, for many rows and for those that are alone; none where its
        #: classes are listed.
        self._captures: list[Captures] = []
        self._alone: dict[int | None, Captures] = {}

    def lowered(self) -> Lowered:
        graph = self._known[0].graph
        core = {**graph.described(), "weights": tensors_of(self._source)}
        return Lowered(core, graph.inputs, self._written, self._now, self._source, self._audit)

    def _now(self) -> bytes:
        """The graph as the engine reads it, which is read again where something that it read has
        changed.

        Raises:
            NotLowerable: the engine cannot evaluate what the policy computes by now.
        """
        if not self._is_current():
            self._refresh()
            self._written = self._known[0].graph.as_bytes()
        return self._written

    def _is_current(self) -> bool:
        """Whether the newest graph is what the policy computes; an older one that is becomes the
        newest.
        """
        if not self._twin.is_same():
            return False
        try:
            held = self._held()
        except NotLowerable:
            # Its classes may be listed by now.
            return False
        for known in self._known:
            if known.holds(*held):
                if known is not self._known[0]:
                    self._known.remove(known)
                    self._known.insert(0, known)
                    self._written = known.graph.as_bytes()
                return True
        return False

    def _held(self) -> tuple[tuple[Capture, ...], dict[str, torch.Tensor], Sequence[Any]]:
        """What a graph is compared with: see :meth:`_Known.holds`."""
        captured: tuple[Capture, ...] = ()
        if self._captures:
            with self._calling():
                captured = tuple(captures.now() for captures in self._captures)
        weights = self._weights.now()
        read = captured[0].inputs() if captured else self._weights.others
        return captured, weights, read

    def _refresh(self) -> None:
        before = self._known[0]
        if not self._twin.is_same():
            self._begin()
        if set(tensors_of(self._source)) != self._names:
            raise NotLowerable("it has other weights than it had")
        known = self._read()
        if known.graph.reads_init != before.graph.reads_init:
            raise NotLowerable("it reads where episodes begin, or no longer does")
        self._known = [known, *self._known[: KNOWN - 1]]
        self._audit.be_due()

    def _read(self) -> _Known:
        with _as_usual():
            for _ in range(TRIES):
                known = self._listed()
                if known is None:
                    with self._calling():
                        known = self._captured()
                # Another thread may have changed something since.
                if known.holds(*self._held()):
                    return known
        raise NotLowerable("what it reads changes while it is read")

    def _listed(self) -> _Known | None:
        """The graph of a policy whose classes are listed; None where they are not."""
        if not isinstance(self._policy, nn.Module) or _changes_calls():
            return None
        try:
            proof = Listed(self._policy)
        except NotListed:
            return None
        self._captures = []
        weights, others = self._weights.now(), list(self._weights.others)
        constants = [one.detach().clone() for one in others]
        graph = self._written_down(proof) or self._traced(weights)
        return _Known(proof, weights, [None] * len(others), constants, graph)

    def _written_down(self, proof: Listed) -> Graph | None:
        """The graph of a plain network; None of another one."""
        if not proof.plain or self._conditions.trust:
            return None
        try:
            return plain_graph(self._policy, self._observed, self._actions)  # type: ignore[arg-type]
        except NotLowerable:
            return None

    def _traced(self, weights: dict[str, torch.Tensor]) -> Graph:
        """The graph that a trace of the policy itself gives."""
        graph = _compared(self._bound(ROWS), weights)
        for rows in OTHERS:
            try:
                other = self._bound(rows)
                other.call()
            except Exception:
                # Torch could not call it so either.
                continue
            graph.compare(other)
        return graph

    def _captured(self) -> _Known:
        """The graph of a policy that torch captures."""
        reading = Reading(self._policy, self._conditions, self._observed, ROWS)
        if not self._captures:
            # Before it is called: a call may do something beside computing.
            many = self._capturing(reading)
            many.now()
            reading.bind(self._actions)
            if reading.memory is not None:
                many = self._capturing(reading)
            self._captures = [many]
        else:
            self._captures[0].now()
            reading.bind(self._actions)
        many = self._captures[0]
        capture, weights = many.now(), self._weights.now()
        names = {id(one): name for name, one in weights.items()}
        read = capture.inputs()
        own = [names.get(id(one)) for one in read]
        constants = [
            one.detach().clone() if name is None and isinstance(one, torch.Tensor) else one
            for name, one in zip(own, read)
        ]
        graph = _compared(reading, weights, lambda given: capture.answer(given, constants))
        if capture.counts:
            # A number of rows that is no size but a value is another one here.
            more = self._bound(MORE)
            again = more.trace(weights, lambda given: capture.answer(given, constants))
            if again.text != graph.text:
                raise NotLowerable("it computes something else for another number of rows")
        graph.rows = rows = _ranges(capture)
        others = []
        graph.single = False
        for count in self._conditions.alone:
            holds, captures = self._alone_holds(reading, graph, count)
            if count is None:
                graph.single = holds
            elif holds and rows and rows[0][0] == 2:
                rows[0][0] = 1
            elif holds:
                rows.insert(0, [1, 1])
            # What looks at nothing else need not be asked, too.
            if captures is not None and not capture.covers(captures.now()):
                others.append(captures)
        if not rows and not graph.single:
            raise NotLowerable("it computes something else for each number of rows")
        self._captures = [many, *others]
        proof = tuple(one.now() for one in self._captures)
        return _Known(proof, weights, own, constants, graph)

    def _capturing(self, reading: Reading) -> Captures:
        columns = list(reading.given.values())
        originals = self._twin.originals
        return Captures(self._policy, reading.form(), columns, self._calling, originals)

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        fast = torch.backends.mha.get_fastpath_enabled()
        with (
            _as_usual(),
            unchecked(),
            acting(self._conditions.exploration_type, self._conditions.aggregates),
        ):
            # One operation for a whole layer would be one more rule.
            torch.backends.mha.set_fastpath_enabled(False)
            try:
                yield
            finally:
                torch.backends.mha.set_fastpath_enabled(fast)

    def _alone_holds(
        self, reading: Reading, graph: Graph, rows: int | None
    ) -> tuple[bool, Captures | None]:
        """Whether the graph is what a call computes with one row, or with one observation without a
        dimension for rows, and the captures of such calls. It stands in for calls that torch cannot
        do.
        """
        other = Reading(self._policy, self._conditions, self._observed, rows)
        other.given |= {
            key: value[:1] if rows == 1 else value[0]
            for key, value in reading.given.items()
            if key not in other.given
        }
        try:
            # Kept, since torch finds out by several captures which numbers change.
            if rows not in self._alone:
                self._alone[rows] = self._capturing(other)
            captures = self._alone[rows]
            captures.now()
            other.bind(self._actions)
        except Exception:
            try:
                other.bind(self._actions)
            except Exception:
                return True, None
            return False, None
        try:
            for _ in range(ALONE):
                graph.compare(other)
                other.draw()
        except NotLowerable:
            return False, None
        return True, captures

    def _bound(self, rows: int | None) -> Reading:
        other = Reading(self._policy, self._conditions, self._observed, rows)
        other.bind(self._actions)
        return other

    def _difference(
        self, given: dict[Key, torch.Tensor], rows: int | None
    ) -> tuple[int, str] | None:
        """The first row of the observations ``given``, called with ``rows``, for which the user's
        module and the graph compute something else, and what. Other observations, and states, are
        drawn.
        """
        if not self._is_current():
            # It is read again before the next batch.
            return None
        graph, weights = self._known[0].graph, self._weights
        with _as_usual():
            try:
                called = self._bound(rows)
            except Exception:
                # Torch cannot call it so.
                return None
            called.given |= {
                key: value.reshape(called.given[key].shape).to(called.given[key].dtype)
                for key, value in given.items()
                if key in called.given
            }
            found = graph.difference(called)
            for _ in range(AGAIN):
                # Another thread may change the module, and change it back; and read another graph.
                if found is None or not self._is_current() or self._known[0].graph is not graph:
                    return None
                time.sleep(PAUSE)
                # A row that rounding decides, such as one with two actions that are as good, is
                # none to complain of.
                called.given = {
                    key: value * (1 + 1e-5) if value.is_floating_point() else value
                    for key, value in called.given.items()
                }
                # Or write weights, which module and graph read one after the other.
                before = weights.copies()
                again = graph.difference(called)
                if again is None or again[0] != found[0] or not weights.have(before):
                    return None
        return found


def _compared(
    reading: Reading,
    weights: dict[str, torch.Tensor],
    evaluate: Callable[[list[torch.Tensor]], Any] | None = None,
) -> Graph:
    """The graph that a trace gives, see :meth:`Reading.trace`, once it computes what torch does."""
    graph = reading.trace(weights, evaluate)
    graph.compare(reading)
    if reading.asked_of_rows():
        graph.compare(reading)
    return graph


def _ranges(capture: Capture) -> list[list[int | None]]:
    """The numbers of rows for which a capture holds, 2 or more, as the first and the last of each
    range; None for no end.
    """
    if not capture.conditions:
        return [[2, None]]
    found: list[list[int | None]] = []
    for rows in range(2, MANY + 1):
        if not capture.holds_for(rows):
            continue
        if found and found[-1][1] == rows - 1:
            found[-1][1] = rows
        else:
            found.append([rows, rows])
    return found
