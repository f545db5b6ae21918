"""Policies that windrow evaluates itself, as graphs of what torch computes.

:func:`lower` has two steps. A :class:`~windrow.policies.lower.trace.Trace` follows a policy's
operations, whatever its class, for two numbers of rows, and gives a graph, or raises
:class:`NotLowerable`. Then the graph has to give the same numbers as the policy for random inputs,
with the same draws. Otherwise torch evaluates the policy.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from types import CodeType, MethodType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from windrow._windrow import evaluate_graph
from windrow.envs._specs import Key, path
from windrow.policies import recurrent
from windrow.policies.acting import acting, borrowing, unchecked
from windrow.policies.audit import Audit
from windrow.policies.lower import random_rules as random_rules
from windrow.policies.lower import rules as rules
from windrow.policies.lower.inputs import Leaf, asked_for, observed_by
from windrow.policies.lower.trace import Calls, Replay, Trace
from windrow.policies.lower.values import DTYPES, Doubtful, NotLowerable, Value
from windrow.policies.reads import State
from windrow.policies.torch_policy import TorchPolicy, copied_module
from windrow.policies.watch import Watch
from windrow.policies.weights import original, source_of, tensors_of

if TYPE_CHECKING:
    from windrow.policies.choose import Conditions


#: Rows of the two traces. Primes, since what is a multiple of them is taken for rows.
ROWS = (37, 41)
#: How many graphs of a policy are kept, for what it reads that takes turns.
KNOWN = 2
#: Rows of other calls that the graph is compared with: as of one environment alone, and of few.
FEWER = (None, 1, 2)
#: Names by which code asks how many rows there are, and the largest number that it is taken to
#: compare them with.
SIZES, MANY = {"shape", "size", "len", "numel", "__len__", "batch_size"}, 4096
#: How many such numbers are tried.
TRIED = 16
#: Relative and absolute difference allowed between torch and the graph, which adds in another order
#: and approximates tanh and exp; a hundred times as much for log-probabilities.
TOLERANCE = (1e-4, 1e-5)
#: Of eight rows that are drawn, which one has large numbers, and which one small ones.
LARGE, SMALL = 1, 2


@dataclass
class Lowered:
    """A policy that was lowered.

    Attributes:
        core: the description that the engine reads.
        inputs: the names of what the graph reads.
        graph: gives the graph that the policy is by now, as bytes.
        source: the module that has the weights.
        audit: compares rows that were delivered; None for a policy with a state, and for one that
            reads no observation.
    """

    core: dict[str, Any]
    inputs: list[Key]
    graph: Callable[[], bytes]
    source: nn.Module
    audit: Audit | None


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
    if source is None:
        raise NotLowerable(f"expected a module, or a method of one, got {type(policy).__name__}")
    if conditions.threads and source is not policy:
        raise NotLowerable("a method of a module, which acts in a worker of its own")
    with _as_usual():
        return _lowered(policy, source, conditions, env)


def _lowered(
    policy: Callable[..., Any], source: nn.Module, conditions: Conditions, env: object
) -> Lowered:
    known, is_lazy = (
        observed_by(env, policy, conditions),
        any(map(nn.parameter.is_lazy, source.parameters())),
    )
    if is_lazy and not known:
        raise NotLowerable(
            "it has lazy layers, whose sizes are not known before the environment is made"
        )
    asked = [iter(known)] if known else asked_for(policy, conditions, env)
    first: NotLowerable | None = None
    for observed, actions in itertools.chain.from_iterable(asked):
        try:
            if is_lazy:
                # Before it is copied: a copy would get weights of its own.
                _Reading(
                    policy,
                    source,
                    replace(conditions, threads=False, evaluates=False, served=False),
                    observed,
                    actions,
                    ROWS[0],
                )
            return _Follower(policy, source, conditions, observed, actions).lowered()
        except NotLowerable as reason:
            first = first or reason
            if any(leaf.dtype == torch.float64 for leaf in observed.values()):
                # It can be called with float64, and computes something else with float32.
                break
        except Exception as error:
            first = first or NotLowerable(
                f"it cannot be called: {type(error).__name__}: {error}".splitlines()[0]
            )
    raise first or NotLowerable("what it observes is not known before the environment is made")


@contextlib.contextmanager
def _as_usual() -> Iterator[None]:
    """A context in which tensors are made on the CPU, and operations can be recorded, whatever the
    program has chosen.
    """
    with contextlib.ExitStack() as stack:
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        yield


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
        self._policy, self._source, self._conditions = policy, source, conditions
        self._observed, self._actions = observed, actions
        self._names = set(tensors_of(source))
        #: What was read before, the graph that it led to, and how it was read: the newest last.
        self._known: list[tuple[State, _Graph, _Reading]] = []
        self._state: State
        self._graph: _Graph
        self._reading: _Reading
        self._take(*self._read())

    def lowered(self) -> Lowered:
        text, used, reads_init = self._graph
        core = {
            "graph": text,
            "weights": tensors_of(self._source),
            "used": used,
            "reads_init": reads_init,
        }
        # Rows are compared by what was observed in them.
        compares = self._reading.memory is None and self._reading.inputs
        audit = Audit(self._difference, self._reading.inputs) if compares else None
        return Lowered(core, self._reading.inputs, self._now, self._source, audit)

    def _read(self, before: State | None = None) -> tuple[State, _Graph, _Reading]:
        """The graph, and all that was read beside weights; ``before`` is what was to be read a
        moment ago, as far as that is known.
        """
        like = (self._graph[0], self._reading.tried) if self._known else None
        for _ in range(3):
            with borrowing(), _as_usual():
                theirs = _copied(self._policy)
                graph, reading = _compared(
                    theirs, self._conditions, self._observed, self._actions, like
                )
                like = graph[0], reading.tried
                reading.forget()
            state = State(self._policy, reading.watch.codes, self._tensors())
            if state.doubt is not None:
                raise Doubtful(state.doubt)
            # Another thread may have changed something since it was copied.
            if before is not None and before.difference(state) is None:
                return state, graph, reading
            before = state
        raise Doubtful("what it reads changes while it is read")

    def _tensors(self) -> Iterable[torch.Tensor]:
        return tensors_of(self._source).values()

    def _now(self) -> bytes:
        """The graph as the engine reads it, which is read again where something that it read has
        changed.

        Raises:
            RuntimeError: the engine cannot evaluate what the policy computes by now.
        """
        if not self._state.is_same():
            self._refresh()
        return self._written

    def _refresh(self) -> None:
        now = self._state.again(self._policy, self._tensors())
        changed = self._state.difference(now)
        if changed is None and now.doubt is None:
            self._state = now
            return
        # Such as that of training and that of evaluation, in turn.
        for state, graph, reading in self._known:
            if now.doubt is None and state.difference(now) is None:
                self._take(now, graph, reading)
                return
        try:
            if set(tensors_of(self._source)) != self._names:
                raise NotLowerable("it has other weights")
            state, graph, reading = self._read(now)
            if graph[2] != self._graph[2]:
                raise NotLowerable("it reads is_init, or no longer does")
        except Exception as reason:
            raise RuntimeError(
                f"{type(self._source).__name__} computes something that windrow does not evaluate since {changed or 'a part of it'} has "
                f"changed ({reason}): build a new collector, or one with policy_backend='torch', which calls the policy as it is"
            ) from None
        self._take(state, graph, reading)

    def _take(self, state: State, graph: _Graph, reading: _Reading) -> None:
        self._state, self._graph, self._reading = state, graph, reading
        self._known = [*self._known[1 - KNOWN :], (state, graph, reading)]
        self._written = _as_bytes(graph)

    def _difference(self, given: dict[Key, torch.Tensor]) -> tuple[int, str] | None:
        """The first row of the observations ``given`` for which the user's module and the graph
        compute something else, and what.
        """
        if not self._state.is_same():
            # It is read again before the next batch.
            return None
        with borrowing(), _as_usual():
            theirs = _copied(self._policy)
            module, rows = source_of(theirs), len(next(iter(given.values())))
            assert module is not None
            if self._conditions.evaluates:
                module.eval()
            called = _Reading(
                theirs, module, self._reading.conditions, self._observed, self._actions, rows
            )
            called.given = {**called.given, **given}
            found = self._reading.difference(self._graph[0], called)
            if found is None or not self._state.is_same():
                return None
            # A row that rounding decides, such as one with two actions that are as good, is none to
            # complain of.
            called.given = {
                key: value * (1 + 1e-5) if value.is_floating_point() else value
                for key, value in called.given.items()
            }
            again = self._reading.difference(self._graph[0], called)
        return found if again is not None and again[0] == found[0] else None


def _copied(policy: Any) -> nn.Module | MethodType:
    """A copy of a module, or of a method of one, on the CPU."""
    if isinstance(policy, nn.Module):
        return copied_module(policy).to("cpu")
    return MethodType(policy.__func__, copied_module(policy.__self__).to("cpu"))


# Reading


def _as_bytes(graph: _Graph) -> bytes:
    return json.dumps({"graph": graph[0], "used": graph[1]}).encode()


#: The graph of a policy as JSON, the names of the weights that it reads, and whether it reads where
#: episodes begin.
_Graph = tuple[str, list[str], bool]


def _compared(
    theirs: Callable[..., Any],
    conditions: Conditions,
    observed: dict[Key, Leaf],
    actions: list[Key],
    like: tuple[str, list[int]] | None,
) -> tuple[_Graph, _Reading]:
    """The graph of ``theirs``, a copy of the policy, and how it was read. One that has other
    constants than the graph ``like``, and is the same otherwise, is compared with torch once, and
    for numbers of rows that were not tried with that.
    """
    module = source_of(theirs)
    assert module is not None
    if conditions.evaluates:
        module.eval()
    called = replace(conditions, threads=False, evaluates=False, served=False)
    watch = Watch()
    few = _Reading(theirs, module, called, observed, actions, ROWS[0], watch)
    graph = few.watched()
    text = json.dumps(graph)
    found = (text, few.used, few.policy.reads_init), few

    def compare_for(sizes: Iterable[int | None]) -> None:
        for rows in sizes:
            try:
                other = _Reading(theirs, module, called, observed, actions, rows, watch)
            except Exception:
                # Torch could not call it so either.
                continue
            few.compare(text, other)

    few.tried = _thresholds(watch.codes, few.facts)
    if like is not None and _shape(graph) == _shape(json.loads(like[0])):
        few.compare(text, few)
        compare_for(rows for rows in few.tried if rows not in like[1])
        return found
    modes = [part.training for part in module.modules()]
    module.train(not module.training)
    many = _Reading(theirs, module, called, observed, actions, ROWS[1], watch)
    try:
        is_same = many.trace() == graph
    except NotLowerable:
        is_same = False
    for part, mode in zip(module.modules(), modes):
        part.training = mode
    if not is_same:
        if module.training:
            raise NotLowerable(
                "it computes something else in training mode, such as Dropout or batch normalisation: call eval()"
            )
        if many.trace() != graph:
            raise NotLowerable("it computes something else for another number of rows")
    few.compare(text, few)
    if few.asked_of_rows():
        few.compare(text, few)
    compare_for((*FEWER, *few.tried))
    return found


def _thresholds(codes: Iterable[CodeType], facts: dict[str, Any]) -> list[int]:
    """Numbers of rows for which code that looks at sizes may do something else: the whole numbers
    in it, and those among the ``facts`` that it reads under a name in it, each with the next one.
    """
    asking = [code for code in codes if SIZES & set(code.co_names)]
    held = [constant for code in asking for constant in code.co_consts]
    named = {name for code in asking for name in (*code.co_names, *code.co_freevars)}
    # Keys of dictionaries are texts in code, and defaults have no name.
    named.update(
        ("__defaults__", "__kwdefaults__"), (text for text in held if isinstance(text, str))
    )
    # What is read in a list has the name of the list.
    held += [
        value
        for path, value in facts.items()
        if type(value) is int and re.split(r"\.|'s ", re.sub(r"\[.*?\]", "", path))[-1] in named
    ]
    numbers = {number for number in held if type(number) is int and 2 < number <= MANY}
    return sorted({rows for number in sorted(numbers)[:TRIED] for rows in (number, number + 1)})


def _shape(graph: dict[str, Any]) -> dict[str, Any]:
    """``graph`` without its numbers, by which no code decides what is computed."""
    nodes = [
        {**node, "op": {"Constant": len(node["op"]["Constant"])}}
        if "Constant" in node["op"]
        else node
        for node in graph["graph"]["nodes"]
    ]
    return {**graph, "graph": {**graph["graph"], "nodes": nodes}}


class _Reading:
    """One way of calling a policy: with ``rows`` rows of observations, or with one observation
    alone where that is None.
    """

    def __init__(
        self,
        policy: Callable[..., Any],
        module: nn.Module,
        conditions: Conditions,
        observed: dict[Key, Leaf],
        actions: list[Key],
        rows: int | None,
        watch: Watch | None = None,
    ) -> None:
        self.policy = TorchPolicy(policy, conditions)
        self.module, self.conditions, self.rows = module, conditions, 1 if rows is None else rows
        self.watch = Watch() if watch is None else watch
        batch = [] if rows is None else [rows]
        if self.policy.reads_init and recurrent.IS_INIT not in observed:
            observed = {**observed, recurrent.IS_INIT: Leaf((1,), torch.bool)}
        self._generator = torch.Generator().manual_seed(self.rows)
        self._leaves, self._batch, self._is_small = observed, batch, False
        self.given: dict[Key, torch.Tensor] = {}
        #: Other numbers of rows that were tried.
        self.tried: list[int] = []
        try:
            found = self._bind(actions)
        except Exception:
            if all(leaf.dtype.is_floating_point for leaf in observed.values()):
                raise
            # Integers may be indices.
            self._is_small = True
            found = self._bind(actions)
        self.names = [names for names, _ in found]
        self.results = [value for _, value in found]
        self.memory = self.policy.memory if self.policy.wants_first else None
        self.first: dict[Key, torch.Tensor] = {}
        if self.memory is not None:
            if self.memory._began:
                raise NotLowerable(
                    f"it carries on {next(iter(self.memory._began))!r}, which is observed"
                )
            if any(
                not torch.equal(one, other)
                for one, other in zip(self.memory._draw().values(), self.memory._draw().values())
            ):
                raise NotLowerable("its first states are drawn")
            self.first = {key: value.clone() for key, value in self.memory._draw().items()}
            # Any numbers will do, as long as they differ by row.
            states = {
                key: torch.randn(value.shape, generator=self._generator).to(value)
                for key, value in self.first.items()
            }
            self.given = {**self.given, **states}

    def _bind(self, actions: list[Key]) -> list[tuple[list[str], torch.Tensor]]:
        self.given = self._observations()
        with unchecked(), torch.random.fork_rng(devices=[]), self.watch:
            return self.policy.bind(self.given, actions, self._batch)

    def forget(self) -> None:
        """Lets go of the copy of the policy, and keeps how it was read."""
        del self.policy, self.module, self.results, self.facts

    def _observations(self) -> dict[Key, torch.Tensor]:
        drawn = {
            key: _drawn(leaf, self.rows, self._generator, is_small=self._is_small)
            for key, leaf in self._leaves.items()
        }
        return {key: value.reshape(*self._batch, *value.shape[1:]) for key, value in drawn.items()}

    def call(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The outputs of the policy and its next states."""
        given = list(self.given.values())
        with (
            acting(self.conditions.exploration_type, self.conditions.aggregates),
            unchecked(),
            torch.random.fork_rng(devices=[]),
        ):
            if self.memory is None:
                return list(self.policy.call(*given)), []
            with self.policy.stepwise:
                self.policy.keys = list(self.given)
                returned = self.policy._evaluate(given)
        outputs = [returned.get(key, self.given.get(key)) for key in self.policy.out_keys]
        return outputs, [returned.get(source) for source in self.memory._sources.values()]

    def watched(self) -> dict[str, Any]:
        """As :meth:`trace`, with a look at what the call changes.

        Raises:
            NotLowerable: it changes something, or does something else than to compute.
        """
        while True:
            known = set(self.watch.codes)
            before = self._state()
            # Others than before: whoever keeps them has something else then.
            self.given = {**self.given, **self._observations()}
            # Not while operations are traced, when thousands of functions run for each.
            with self.watch:
                self.call()
            # Functions that did not run when the policy was called first may change what nobody has
            # looked at.
            if known == self.watch.codes.keys():
                break
        after = self._state()
        self.facts = after.facts
        changed = before.difference(after)
        if changed is not None:
            raise Doubtful(f"it changes {changed}")
        if self.watch.doubt is not None:
            raise Doubtful(self.watch.doubt)
        return self.trace()

    def _state(self) -> State:
        # Parts of the policy that have weights of their own are parts of the module, which may be a
        # part of the policy.
        return State(self.policy.policy, dict(self.watch.codes), [])

    def trace(self) -> dict[str, Any]:
        """The policy as the engine reads it."""
        drawn = _generators()
        trace = Trace(self.rows, tensors_of(self.module))
        for key, tensor in self.given.items():
            leaf = self._leaves.get(key)
            low, high = (None, None) if leaf is None else leaf[2:]
            trace.input(
                tensor,
                is_flag=key == recurrent.IS_INIT,
                is_state=key in self.first,
                low=low,
                high=high,
            )
        try:
            with trace, Calls(trace):
                outputs, states = self.call()
        except Exception:
            if trace.doubt is not None:
                raise NotLowerable(trace.doubt) from None
            raise
        if trace.doubt is not None:
            raise NotLowerable(trace.doubt)
        if _generators() != drawn:
            raise Doubtful("it draws random numbers in Python")
        values = [self._by_row(trace, tensor) for tensor in (*outputs, *states)]
        draws = [value for value, _ in trace.draws]
        graph, nodes, inputs, self.used = trace.graph([*values, *draws])
        self._draws, self._asked = trace.draws, trace.asked
        self.outputs = list(zip(self.names, outputs, values))
        self.inputs = [list(self.given)[index] for index in inputs]
        self.states = values[len(outputs) :]
        written = {
            key: nodes[len(outputs) + number]
            for number, key in enumerate(self.memory._sources if self.memory else ())
        }
        columns = [
            [self._leaf(names, tensor), node]
            for (names, tensor, _), node in zip(self.outputs, nodes)
        ]
        # Not columns, but values to compare.
        self.extra = nodes[len(values) :]
        read = [self._input(key, written) for key in self.inputs]
        return {"graph": graph, "inputs": read, "outputs": columns}

    def _by_row(self, trace: Trace, tensor: object) -> Value:
        if (
            not isinstance(tensor, torch.Tensor)
            or tensor.dim() == 0
            or tensor.shape[0] != self.rows
            or tensor.dtype not in DTYPES
        ):
            what = (
                f"{tensor.dtype} {list(tensor.shape)}"
                if isinstance(tensor, torch.Tensor)
                else type(tensor).__name__
            )
            raise NotLowerable(f"an output is {what}, expected one entry for each row")
        return trace.spread(trace.output(tensor), tensor.shape, 0)

    def _leaf(self, names: list[str], tensor: torch.Tensor) -> dict[str, Any]:
        return {
            "key": names,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape[1:]),
        }

    def _input(self, key: Key, written: dict[Key, int]) -> dict[str, Any]:
        if key in written:
            first = self.first[key]
            if bool((first != first[:1]).any()):
                raise NotLowerable("its first states differ by row")
            return {
                "State": {
                    "next": written[key],
                    "first": [float(number) for number in first[0].flatten()],
                }
            }
        return {"Observation": self._leaf(list(path(key)), self.given[key])}

    # Comparing

    def asked_of_rows(self) -> bool:
        """Whether the policy asks if any row begins an episode; from now on, none does."""
        if self._asked:
            self.given[recurrent.IS_INIT] = torch.zeros_like(self.given[recurrent.IS_INIT])
        return self._asked

    def compare(self, graph: str, called: _Reading) -> None:
        """Compares torch, as it is ``called``, and ``graph``, with the same draws.

        Raises:
            NotLowerable: they differ.
        """
        for what, expected, own in self._both(graph, called):
            _check_equal(what, expected, own)

    def difference(self, graph: str, called: _Reading) -> tuple[int, str] | None:
        """As :meth:`compare`: the first row that differs, and what of it, if any."""
        for what, expected, own in self._both(graph, called):
            try:
                _check_equal(what, expected, own)
            except NotLowerable:
                pass
            else:
                continue
            for row, (theirs, ours) in enumerate(zip(expected.reshape(own.shape), own)):
                try:
                    _check_equal(what, theirs, ours)
                except NotLowerable:
                    return (
                        row,
                        f"expected {what} {theirs.tolist()}, as the module computes it, got {ours.tolist()}",
                    )
        return None

    def _both(
        self, graph: str, called: _Reading
    ) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """Each output and state by its name: what torch computes, as it is ``called``, and what
        ``graph`` does.
        """
        described = json.loads(graph)
        # Draws are outputs too.
        for number, (node, (value, _)) in enumerate(zip(self.extra, self._draws)):
            shape = [self.rows, math.prod(value.shape) // self.rows]
            described["outputs"].append(
                [self._leaf(["draw", str(number)], torch.empty(shape)), node]
            )
        weights = tensors_of(called.module)
        asked = {
            "graph": json.dumps(described),
            "weights": weights,
            "used": self.used,
            "reads_init": False,
        }
        flat = [
            called.given[key].reshape(called.rows, -1).float().contiguous() for key in self.inputs
        ]
        own = evaluate_graph(asked, flat, called.rows)
        count = len(self.outputs)
        draws = [
            self._tensor(value, dtype, given, called.rows)
            for (value, dtype), given in zip(self._draws, own[count:])
        ]
        try:
            with Replay(draws):
                outputs, states = called.call()
        except Exception:
            # Nor could torch be called so.
            if called is not self:
                return
            raise
        for (names, _, _), expected, got in zip(self.outputs, outputs, own):
            yield ".".join(names), expected, got
        kept = [
            key for key in self.inputs if self.memory is not None and key in self.memory._sources
        ]
        sources = list(self.memory._sources) if self.memory is not None else []
        for key, got in zip(kept, own[count + len(self._draws) :]):
            yield f"state {key!r}", states[sources.index(key)], got

    def _tensor(
        self, value: Value, dtype: torch.dtype, own: torch.Tensor, rows: int
    ) -> torch.Tensor:
        """A draw as torch would have given it for ``rows`` rows."""
        before, _, batch, after = value.split(self.rows)
        shape = [
            size // self.rows * rows if dim == int(value.batch or 0) else size
            for dim, size in enumerate(value.shape)
        ]
        return own.view(rows, before, batch, after).transpose(0, 1).reshape(shape).to(dtype)


def _drawn(
    leaf: Leaf, rows: int, generator: torch.Generator, *, is_small: bool = False
) -> torch.Tensor:
    """Random observations that differ by row: integers from all that their bounds, or the type,
    allow, or 0 and 1 alone if ``is_small``. Of eight rows, one has what is largest, and two have
    zeros and ones, as masks have them.
    """
    (inner, dtype, low, high), shape = leaf, (rows, *leaf.shape)
    row = torch.arange(rows).view(rows, *(1 for _ in inner)) % 8
    if dtype.is_floating_point:
        scale = torch.where(row == LARGE, 20.0, torch.where(row == SMALL, 0.01, 1.0))
        return (2 * scale * torch.randn(shape, generator=generator)).to(dtype)
    least, most = (
        (0, 1)
        if is_small or dtype == torch.bool
        else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    )
    ends = [torch.full(inner, end, dtype=torch.int64) for end in (least, most)]
    if not is_small and low is not None and high is not None:
        least, most = max(least, -(2**62)), min(most, 2**62)
        ends = [
            torch.as_tensor(end).double().clamp(least, most).to(torch.int64).expand(inner)
            for end in (low, high)
        ]
    # Without bounds, most integers are small.
    near = [end.clamp(-(2**15), 2**15) for end in ends]
    unit = torch.rand(shape, generator=generator, dtype=torch.float64)
    drawn = near[0] + (unit * (near[1] - near[0] + 1).double()).to(torch.int64)
    drawn = torch.where(row == LARGE, torch.where(unit < 0.5, ends[0], ends[1]), drawn)
    if bool(((ends[0] <= 0) & (ends[1] >= 1)).all()):
        drawn = torch.where(
            (row == SMALL) | (row == SMALL + 1), (unit < 0.5).to(torch.int64), drawn
        )
        if shape[-1] > 1:
            # A mask that allows something.
            drawn[..., 0] |= (drawn == 0).all(-1)
    return drawn.to(dtype)


def _check_equal(what: str, expected: torch.Tensor, own: torch.Tensor) -> None:
    rtol, atol = (number * (100 if "log_prob" in what else 1) for number in TOLERANCE)
    expected = expected.reshape(own.shape).float()
    group = torch.arange(len(own)) % 8
    for rows in (group == LARGE, group == SMALL, (group != LARGE) & (group != SMALL)):
        theirs, ours = expected[rows], own[rows]
        is_large = bool(rows[LARGE]) if len(own) > LARGE else False
        # Sums of large numbers may be small: what is lost is a share of those.
        usual = theirs.nan_to_num(0.0, 0.0, 0.0).double().square().mean(0).sqrt().float()
        allowed = atol * (20 if is_large else 1) + rtol * (
            theirs.abs() + (usual if is_large else 0.1 * usual)
        )
        same = torch.isclose(theirs, ours, rtol=rtol, atol=atol, equal_nan=True) | (
            (theirs - ours).abs() <= allowed
        )
        if not bool(same.all() if not is_large or "log_prob" not in what else True):
            raise NotLowerable(
                f"{what}: torch and the graph differ by {float((theirs - ours).abs().max()):.2g}"
            )


def _generators() -> tuple[Any, Any]:
    """The states of Python's and NumPy's generators."""
    numpy = np.random.get_state()
    return random.getstate(), (numpy[1].tobytes(), numpy[2])  # type: ignore[index]
