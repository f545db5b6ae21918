"""Ways of calling a policy, and the graphs that come of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from windrow._keys import Key, path
from windrow._windrow import evaluate_graph
from windrow.policies import recurrent
from windrow.policies.acting import acting, unchecked
from windrow.policies.arguments import arguments_of, calls_with_tensordict
from windrow.policies.lower import random_rules as random_rules, rules as rules
from windrow.policies.lower.capture import Form
from windrow.policies.lower.inputs import Leaf
from windrow.policies.lower.recorded import python_generators
from windrow.policies.lower.trace import Calls, Replay, Trace
from windrow.policies.lower.values import DTYPES, NotLowerable, Value
from windrow.policies.torch_policy import TorchPolicy
from windrow.policies.weights import source_of, tensors_of

if TYPE_CHECKING:
    from windrow.policies.choose import Conditions

#: Rows of a trace. A prime, since what is a multiple of it is taken for rows.
ROWS = 37
#: Relative and absolute difference allowed between torch and the graph, which adds in another order
#: and approximates tanh and exp; a hundred times as much for log-probabilities.
TOLERANCE = (1e-4, 1e-5)
#: Of eight rows that are drawn, which one has large numbers, and which one small ones.
LARGE, SMALL = 1, 2


@dataclass
class Graph:
    """A policy as the engine reads it.

    Attributes:
        text: nodes, inputs and outputs as JSON.
        used: names of the weights that it reads.
        inputs: the observations and states that it reads.
        names: the name of each output.
        sources: for each state, the name under which the policy writes it.
        draws: the random values in it, and their nodes.
        reads_init: it reads where episodes begin.
        rows: the numbers of environments that it holds for, in calls with a dimension for them, as
            the first and the last of each range; None for no end.
        single: it holds for one environment without that dimension, too.
    """

    text: str
    used: list[str]
    inputs: list[Key]
    names: list[list[str]]
    sources: dict[Key, Key] = field(default_factory=dict)
    draws: list[tuple[tuple[Value, torch.dtype], int]] = field(default_factory=list)
    reads_init: bool = False
    rows: list[list[int | None]] = field(default_factory=lambda: [[1, None]])
    single: bool = True

    def described(self) -> dict[str, Any]:
        """What the engine reads, but for weights."""
        return {
            "graph": self.text,
            "used": self.used,
            "reads_init": self.reads_init,
            "rows": self.rows,
            "single": self.single,
        }

    def as_bytes(self) -> bytes:
        """What the engine reads of a graph that takes the place of another."""
        described = self.described()
        del described["reads_init"]
        return json.dumps(described).encode()

    def compare(self, called: Reading) -> None:
        """Compares torch, as it is ``called``, and the graph, with the same draws.

        Raises:
            NotLowerable: they differ.
            Exception: torch cannot be called so.
        """
        for what, expected, own in self._both(called):
            _check_equal(what, expected, own)

    def difference(self, called: Reading) -> tuple[int, str] | None:
        """As :meth:`compare`: the first row that differs, and what of it, if any."""
        for what, expected, own in self._both(called):
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

    def _both(self, called: Reading) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """Each output and state by its name: what torch computes, as it is ``called``, and what
        the graph does.
        """
        described = json.loads(self.text)
        # Draws are outputs too.
        for number, ((value, _), node) in enumerate(self.draws):
            size = math.prod(value.shape) // ROWS
            leaf = leaf_of(["draw", str(number)], torch.float32, [size])
            described["outputs"].append([leaf, node])
        module = source_of(called.policy.policy)
        asked = {
            **self.described(),
            "graph": json.dumps(described),
            "weights": {} if module is None else tensors_of(module),
            "reads_init": False,
        }
        flat = [
            called.given[key].reshape(called.rows, -1).float().contiguous() for key in self.inputs
        ]
        own = evaluate_graph(asked, flat, called.rows)
        count = len(self.names)
        draws = [
            _drawn_as(value, dtype, given, called.rows)
            for ((value, dtype), _), given in zip(self.draws, own[count:])
        ]
        with Replay(draws):
            outputs, states = called.call()
        for names, expected, got in zip(self.names, outputs, own):
            yield ".".join(names), expected, got
        kept = [key for key in self.inputs if key in self.sources]
        for key, got in zip(kept, own[count + len(self.draws) :]):
            yield f"state {key!r}", states[list(self.sources).index(key)], got


def _drawn_as(value: Value, dtype: torch.dtype, own: torch.Tensor, rows: int) -> torch.Tensor:
    """A draw as torch would have given it for ``rows`` rows."""
    before, _, batch, after = value.split(ROWS)
    shape = [
        size // ROWS * rows if dim == int(value.batch or 0) else size
        for dim, size in enumerate(value.shape)
    ]
    return own.view(rows, before, batch, after).transpose(0, 1).reshape(shape).to(dtype)


def leaf_of(names: Sequence[str], dtype: torch.dtype, shape: Sequence[int]) -> dict[str, Any]:
    """An observation or output of one environment, as the engine reads it."""
    return {"key": list(names), "dtype": str(dtype).removeprefix("torch."), "shape": list(shape)}


class Reading:
    """One way of calling a policy: with ``rows`` rows of observations, or with one observation
    alone where that is None.
    """

    def __init__(
        self,
        policy: Callable[..., Any],
        conditions: Conditions,
        observed: dict[Key, Leaf],
        rows: int | None,
    ) -> None:
        self.policy = TorchPolicy(policy, conditions)
        self.conditions, self.rows = conditions, 1 if rows is None else rows
        self._batch = [] if rows is None else [rows]
        self._takes_tensordict = calls_with_tensordict(policy, conditions.trust)
        if self.policy.reads_init and recurrent.IS_INIT not in observed:
            observed = {**observed, recurrent.IS_INIT: Leaf((1,), torch.bool)}
        self._generator = torch.Generator().manual_seed(self.rows)
        self._leaves, self._is_small = observed, False
        self.given: dict[Key, torch.Tensor] = {}
        self.memory: recurrent.Memory | None = None
        self.first: dict[Key, torch.Tensor] = {}
        self.draw()

    def bind(self, actions: list[Key]) -> None:
        """Calls the policy, and finds out what it writes."""
        try:
            found = self._bind(actions)
        except Exception:
            if all(leaf.dtype.is_floating_point for leaf in self._leaves.values()):
                raise
            # Integers may be indices.
            self._is_small = True
            self.draw()
            found = self._bind(actions)
        self.names = [names for names, _ in found]
        self.memory = self.policy.memory if self.policy.wants_first else None
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
            self.draw()

    def _bind(self, actions: list[Key]) -> list[tuple[list[str], torch.Tensor]]:
        observed = {key: value for key, value in self.given.items() if key in self._leaves}
        with unchecked(), torch.random.fork_rng(devices=[]):
            return self.policy.bind(observed, actions, self._batch)

    def draw(self) -> None:
        """Draws other observations and states."""
        drawn = {
            key: _drawn(leaf, self.rows, self._generator, is_small=self._is_small)
            for key, leaf in self._leaves.items()
        }
        self.given = {
            key: value.reshape((*self._batch, *value.shape[1:])) for key, value in drawn.items()
        }
        # Any numbers will do, as long as they differ by row.
        self.given |= {
            key: torch.randn(value.shape, generator=self._generator).to(value)
            for key, value in self.first.items()
        }

    def form(self) -> Form:
        """How the policy is called."""
        keys = tuple(self.given)
        arguments = (
            None if self._takes_tensordict else tuple(arguments_of(self.policy.policy, keys))
        )
        return Form(keys, arguments, bool(self._batch), self.conditions.named)

    def call(
        self, evaluate: Callable[[list[torch.Tensor]], Any] | None = None
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The outputs of the policy and its next states; of ``evaluate``, which answers in the
        place of the policy.
        """
        given = list(self.given.values())
        with (
            acting(self.conditions.exploration_type, self.conditions.aggregates),
            unchecked(),
            torch.random.fork_rng(devices=[]),
        ):
            if evaluate is not None:
                returned = evaluate(given)
                if not self._takes_tensordict:
                    return list(self.policy._tensors_of(returned)), []
            elif self.memory is None:
                return list(self.policy.call(*given)), []
            else:
                with self.policy.stepwise:
                    self.policy.keys = list(self.given)
                    returned = self.policy._evaluate(given)
        outputs = [returned.get(key, self.given.get(key)) for key in self.policy.out_keys]
        sources = [] if self.memory is None else self.memory._sources.values()
        return outputs, [returned.get(source) for source in sources]

    def trace(
        self,
        weights: dict[str, torch.Tensor],
        evaluate: Callable[[list[torch.Tensor]], Any] | None,
    ) -> Graph:
        """The policy as the engine reads it, see :meth:`call`."""
        drawn = python_generators()
        trace = Trace(self.rows, weights)
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
                outputs, states = self.call(evaluate)
        except Exception:
            if trace.doubt is not None:
                raise NotLowerable(trace.doubt) from None
            raise
        if trace.doubt is not None:
            raise NotLowerable(trace.doubt)
        if python_generators() != drawn:
            raise NotLowerable("it draws random numbers in Python")
        self._asked = trace.asked
        values = [self._by_row(trace, tensor) for tensor in (*outputs, *states)]
        draws = [value for value, _ in trace.draws]
        graph, nodes, numbers, used = trace.graph([*values, *draws])
        inputs = [list(self.given)[number] for number in numbers]
        sources = {} if self.memory is None else self.memory._sources
        written = dict(zip(sources, nodes[len(outputs) :]))
        columns = [
            [leaf_of(names, tensor.dtype, tensor.shape[1:]), node]
            for names, tensor, node in zip(self.names, outputs, nodes)
        ]
        read = [self._input(key, written) for key in inputs]
        return Graph(
            json.dumps({"graph": graph, "inputs": read, "outputs": columns}),
            used,
            inputs,
            self.names,
            sources,
            # Not columns, but values to compare.
            list(zip(trace.draws, nodes[len(values) :])),
            self.policy.reads_init,
        )

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
        given = self.given[key]
        return {"Observation": leaf_of(path(key), given.dtype, given.shape[1:])}

    def asked_of_rows(self) -> bool:
        """Whether the policy asked if any row begins an episode; from now on, none does."""
        if self._asked:
            self.given[recurrent.IS_INIT] = torch.zeros_like(self.given[recurrent.IS_INIT])
        return self._asked


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
