"""A policy as a graph that torch has captured, with what says whether the graph still holds.

:class:`Captures` has torch read a call of a policy, whole, and write nothing. What comes of it, a
:class:`Capture`, has the graph, the objects that its inputs are read from, and conditions under
which the same call would give the same graph. The object itself is captured, never a copy. Whatever
cannot be shown to be harmless is :class:`~windrow.policies.lower.values.Unproved`.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from windrow._keys import Key, path
from windrow.policies.arguments import Place, tree
from windrow.policies.lower.closed import Closed, check_likeness
from windrow.policies.lower.recorded import Eager, Record, Recorder
from windrow.policies.lower.sources import SCOPE, expression, name_of
from windrow.policies.lower.values import Unproved, same_numbers

#: Whether policies are captured at all.
ENABLED = True
#: How many captures of a policy are kept, for states that return.
KEPT = 4
#: How many captures may follow one another without one that holds twice.
IN_A_ROW = 8
#: What is compared by its value wherever it is read.
BY_VALUE = (
    *(type(None), bool, int, float, complex, str, bytes, tuple),
    *(type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType),
)
#: Guards that compare a plain value.
CONSTANTS = {"EQUALS_MATCH", "CONSTANT_MATCH", "BOOL_MATCH", "NONE_MATCH", "ID_MATCH"}
#: From Python 3.13 on, an attribute that is set leaves the version of its object's dictionary as it
#: is, by which guards of torch pass over plain values: those are compared here.
PASSED_OVER = sys.version_info >= (3, 13)
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Form:
    """How a policy is called.

    Attributes:
        keys: the columns that it is given: observations, states, and where episodes begin.
        arguments: the columns that it takes as arguments, by their number, or dictionaries of them;
            None for one TensorDict of all of them.
        batched: columns have a dimension for rows, and the TensorDict is of that size.
        device: the device that the TensorDict says that it is on.
    """

    keys: tuple[Key, ...]
    arguments: tuple[Place, ...] | None
    batched: bool = True
    device: torch.device | None = None

    def function(self) -> types.FunctionType:
        """A function of a policy and its columns that calls the policy. Its code is its own, and so
        is its file, by which torch remembers which numbers change.
        """
        names = self.names()
        lines = [f"def call(policy, {', '.join(names)}):", "    if not is_capturing(): raise Eager"]
        if self.arguments is None:
            size = f"[{names[0]}.shape[0]]" if self.batched else "[]"
            columns = _argument(tree((path(key), place) for place, key in enumerate(self.keys)))
            lines += [
                f"    given = TensorDict({columns}, batch_size={size}, device=device)",
                "    returned = policy(given)",
                "    if returned is None: returned = given",
                "    return {key: value for key, value in returned.items(True, True)}",
            ]
        else:
            lines.append(f"    return policy({', '.join(map(_argument, self.arguments))})")
        space: dict[str, Any] = {
            "__builtins__": __builtins__,
            # Torch 2.8 imports the module of this name.
            "__name__": __name__,
            "Eager": Eager,
            "is_capturing": torch.compiler.is_dynamo_compiling,
            "device": self.device,
        }
        if self.arguments is None:
            from tensordict import TensorDict

            space["TensorDict"] = TensorDict
        exec(compile("\n".join(lines), f"<windrow {next(_NUMBERS)}>", "exec"), space)
        made: types.FunctionType = space["call"]
        return made

    def names(self) -> list[str]:
        """The name of each column in that function."""
        return [f"c{number}" for number in range(len(self.keys))]


def _argument(place: Place) -> str:
    """A column, or a dictionary of columns, in that function."""
    if isinstance(place, int):
        return f"c{place}"
    return "{" + ", ".join(f"{name!r}: {_argument(one)}" for name, one in place.items()) + "}"


@dataclass(frozen=True)
class _Returned:
    """In the place of a tensor that a call returns: a result of the graph, or a column as it is."""

    is_result: bool
    number: int


class Capture:
    """One capture of a policy.

    Attributes:
        conditions: what has to hold of the number of rows, as expressions of sympy.
        counts: the graph has numbers that depend on the number of rows.

    Raises:
        Unproved: an input of the graph is read where nothing can read it anew, or the call reads
            something whose changes nobody would see.
    """

    def __init__(
        self,
        record: Record,
        function: types.FunctionType,
        arguments: Mapping[str, Any],
        originals: Sequence[object] = (),
    ) -> None:
        self.conditions, self.counts = record.conditions, record.counts
        self._graph, self._entry = record.graph, record.entry
        #: Torch replaces these where an object that they name by its id is freed.
        self._guards = record.entry.guard_manager
        self._arguments = arguments
        space = {**SCOPE, "L": arguments, "G": function.__globals__}
        #: For each input of the graph: the number of a column or of an input; None for rows.
        self._places: list[tuple[str, int] | None] = []
        texts: list[str] = []
        names = list(arguments)[1:]
        for source, is_number in record.inputs:
            place = _place(source, names)
            if place is not None and place[0] == "input":
                text = expression(source)
                place = "input", len(texts)
                texts.append(f"number({text})" if is_number else text)
            self._places.append(place)
        self._read = eval(f"lambda: [{', '.join(texts)}]", space)
        values = [value for _, value in record.read] + _values(record.guarded, space)
        if originals:
            check_likeness(record.codes, values, originals)
        self._closed = Closed(record.codes, values)
        self._is_one = eval(_same_objects(record.read), space)
        self._constants = eval(_constants(record.guarded) if PASSED_OVER else "lambda: []", space)
        self._were = self._constants()
        self._types = [_type(one) for one in self._read()]
        #: All that says whether it holds, by name.
        self._looks: set[Any] = {
            *((_place_of(source), what) for source, what in record.guarded),
            *((_place_of(source), "read") for source, _ in record.read if source is not None),
            *record.codes,
        }
        self._returned: Any = None

    def is_current(self) -> bool:
        """Whether the same call would give the same graph, asked under the conditions of the call.

        Never raises: what cannot be asked has changed.
        """
        try:
            return (
                self._entry.guard_manager is self._guards
                and self._closed.is_same()
                and self._is_one()
                and self._constants() == self._were
                and self.guards_hold()
                and [_type(one) for one in self._read()] == self._types
            )
        except Exception:
            return False

    def guards_hold(self) -> bool:
        """Whether torch itself sees no difference."""
        return bool(self._guards.check(self._arguments))

    def covers(self, other: Capture) -> bool:
        """Whether everything that ``other`` looks at is looked at here."""
        return other._looks <= self._looks

    def holds_for(self, rows: int) -> bool:
        """Whether the graph is the one of a call with so many rows, 2 or more."""
        columns = {
            name: column[:1].expand(rows, *column.shape[1:]).clone()
            for name, column in list(self._arguments.items())[1:]
        }
        for column in columns.values():
            torch._dynamo.mark_dynamic(column, 0)
        # Guards of some versions of torch leave conditions out.
        return all(_is_met(condition, rows) for condition in self.conditions) and bool(
            self._guards.check({**self._arguments, **columns})
        )

    def inputs(self) -> list[Any]:
        """The tensors that the graph reads beside the columns, read anew."""
        read: list[Any] = self._read()
        return read

    def evaluate(self, columns: Sequence[torch.Tensor], inputs: Sequence[Any]) -> list[Any]:
        """The results of the graph, which torch computes."""
        given = [
            len(columns[0])
            if place is None
            else (columns if place[0] == "column" else inputs)[place[1]]
            for place in self._places
        ]
        return list(self._graph(*given))

    def answer(self, columns: Sequence[torch.Tensor], inputs: Sequence[Any]) -> Any:
        """What the policy returns: entries by key where it is given a TensorDict."""
        return _filled(self._returned, self.evaluate(columns, inputs), columns)

    def check(self, recorder: Recorder) -> None:
        """Evaluates the graph once, on copies, and looks at what it writes; then has the rest of
        the call say where results go.

        Raises:
            Unproved: the graph writes an input, or the call returns something else than tensors.
        """
        own = list(self._arguments.values())[1:]
        columns = [column.clone() for column in own]
        inputs = self.inputs()
        copies = [one.detach().clone() if isinstance(one, torch.Tensor) else one for one in inputs]
        tensors = [one for one in (*columns, *copies) if isinstance(one, torch.Tensor)]
        with torch.random.fork_rng(devices=[]), _Writes(tensors) as writes:
            results = self.evaluate(columns, copies)
        # Not all operations say what they write.
        unequal = any(
            isinstance(one, torch.Tensor) and not same_numbers(one, other)
            for one, other in zip((*own, *inputs), (*columns, *copies))
        )
        if writes.found is not None or unequal:
            raise Unproved(f"it writes what it reads{': ' + writes.found if writes.found else ''}")
        # One object for each result, which nothing else is.
        marks = [one.clone() if isinstance(one, torch.Tensor) else one for one in results]
        returned = recorder.returned(list(self._arguments.values()), marks)
        self._returned = _form(returned, marks, own)


class Captures:
    """The captures of one policy, called in one form under the same conditions.

    Args:
        policy: a module, or a method of one.
        form: how it is called.
        columns: an example of each column. ``[rows, *shape]``.
        conditions: makes the context in which it is called.
        originals: the modules that the policy and its parts stand for, where it is no module of the
            user's itself.
    """

    def __init__(
        self,
        policy: Callable[..., Any],
        form: Form,
        columns: Sequence[torch.Tensor],
        conditions: Callable[[], Any],
        originals: Sequence[object] = (),
    ) -> None:
        self._policy, self._form, self._conditions = policy, form, conditions
        self._originals = originals
        self._arguments = {
            "policy": policy,
            **{name: one.clone() for name, one in zip(form.names(), columns)},
        }
        #: The newest first.
        self._known: list[Capture] = []
        self._in_a_row = 0
        self._begin()

    def now(self) -> Capture:
        """A capture that holds now: one of those that are known, or a new one. Asked under the
        conditions of the call.

        Raises:
            Unproved: there is none.
        """
        for known in self._known:
            if known.is_current():
                if known is not self._known[0]:
                    self._known.remove(known)
                    self._known.insert(0, known)
                self._in_a_row = 0
                return known
        if self._in_a_row == IN_A_ROW:
            raise Unproved(f"what it reads was another at each of {IN_A_ROW} times")
        self._in_a_row += 1
        try:
            made = self._made()
        except Unproved:
            # Torch may keep what was refused.
            self._begin()
            raise
        self._known = [made, *self._known[: KEPT - 1]]
        return made

    def _begin(self) -> None:
        if not ENABLED:
            raise Unproved("captures are switched off")
        self._function = self._form.function()
        self._recorder = Recorder(self._function, self._conditions)

    def _made(self) -> Capture:
        if any(known.guards_hold() for known in self._known):
            # Torch sees no difference, and would take that one.
            self._begin()
        columns: list[Any] = list(self._arguments.values())[1:]
        if self._form.batched and len(columns[0]) > 1:
            for column in columns:
                torch._dynamo.mark_dynamic(column, 0)
        record = self._recorder.record(list(self._arguments.values()), self._policy)
        made = Capture(record, self._function, self._arguments, self._originals)
        if not made.is_current():
            raise Unproved("what it reads changes while it is read")
        made.check(self._recorder)
        return made


def _place_of(source: Any) -> str:
    # Torch numbers the dictionaries of builtins that it has met.
    return re.sub(r"__builtins_dict___\d+", "builtins", name_of(source))


def _place(source: Any, names: Sequence[str]) -> tuple[str, int] | None:
    """Where an input is: a column, another input, or None for the number of rows."""
    kind = type(source).__name__
    if kind == "LocalSource" and source.local_name in names:
        return "column", names.index(source.local_name)
    if kind != "TensorPropertySource":
        return "input", -1
    base = source.base
    is_rows = type(base).__name__ == "LocalSource" and base.local_name in names
    if is_rows and source.idx == 0 and source.prop.name == "SIZE":
        return None
    raise Unproved("it reads the size of a tensor that is no observation")


def _values(guarded: Sequence[tuple[Any, str]], space: dict[str, Any]) -> list[Any]:
    """The objects that guards look at, and those on the way to them."""
    found: dict[str, Any] = {}
    for source, _ in guarded:
        while source is not None:
            try:
                text = expression(source)
                if text in found:
                    break
                found[text] = eval(text, space)
            except Exception:
                # What cannot be read is guarded by torch alone.
                pass
            source = getattr(source, "base", None)
    return list(found.values())


def _constants(guarded: Sequence[tuple[Any, str]]) -> str:
    """An expression of what guards compare with plain values, by class, and of lengths."""
    found: dict[str, None] = {}
    for source, what in guarded:
        with contextlib.suppress(Unproved):
            if what in CONSTANTS:
                found["type({0}), {0}".format(expression(source))] = None
            elif what == "SEQUENCE_LENGTH":
                found[f"len({expression(source)})"] = None
    return f"lambda: [{', '.join(found)}]"


def _same_objects(read: Sequence[tuple[Any, Any]]) -> str:
    """An expression that says whether what was one object, by whatever way, still is."""
    found: dict[int, dict[str, None]] = {}
    for source, value in read:
        if isinstance(value, BY_VALUE):
            continue
        try:
            text = expression(source)
        except Unproved:
            continue
        found.setdefault(id(value), {})[text] = None
    tests = []
    for first, *others in found.values():
        tests += [f"{first} is {other}" for other in others]
    return "lambda: " + (" and ".join(tests) or "True")


def _type(one: Any) -> Any:
    return (one.dtype, one.shape, one.device) if isinstance(one, torch.Tensor) else type(one)


def _is_met(condition: Any, rows: int) -> bool:
    try:
        return bool(condition.subs(dict.fromkeys(condition.free_symbols, rows)))
    except Exception:
        return False


class _Writes(TorchDispatchMode):
    """Looks for operations that write any of some tensors.

    Attributes:
        found: the name of the first, if any.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._owned = {tensor.untyped_storage()._cdata for tensor in tensors}
        self.found: str | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.is_mutable:
            for argument, value in zip(func._schema.arguments, args):
                info = argument.alias_info
                is_written = info is not None and info.is_write and isinstance(value, torch.Tensor)
                if is_written and value.untyped_storage()._cdata in self._owned:
                    self.found = func._schema.name
        return func(*args, **(kwargs or {}))


def _form(returned: Any, results: Sequence[Any], columns: Sequence[torch.Tensor]) -> Any:
    """``returned`` with numbers of ``results`` and ``columns`` in their place."""
    for is_result, own in ((True, results), (False, columns)):
        for number, one in enumerate(own):
            if returned is one:
                return _Returned(is_result, number)
    if isinstance(returned, torch.Tensor):
        raise Unproved("it returns a tensor that it does not compute")
    if isinstance(returned, dict):
        return {key: _form(value, results, columns) for key, value in returned.items()}
    if isinstance(returned, (list, tuple)):
        kind = list if type(returned) is list else tuple
        return kind(_form(value, results, columns) for value in returned)
    if returned is None or isinstance(returned, (int, float, str)):
        return returned
    raise Unproved(f"it returns {type(returned).__name__}")


def _filled(form: Any, results: Sequence[Any], columns: Sequence[torch.Tensor]) -> Any:
    if isinstance(form, _Returned):
        return (results if form.is_result else columns)[form.number]
    if isinstance(form, dict):
        return {key: _filled(value, results, columns) for key, value in form.items()}
    if isinstance(form, (list, tuple)):
        return type(form)(_filled(value, results, columns) for value in form)
    return form
