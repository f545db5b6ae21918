"""How torch captures a call: all of torch's internals that captures touch.

:class:`Recorder` has ``torch.compile`` read a call, whole, and stops it where the graph would run.
Torch installs its guards by then, and writes nothing. A :class:`Record` is what torch knows at that
moment. Any name that a version of torch lacks, and any error, is a :class:`Unproved`.
"""

from __future__ import annotations

import contextlib
import logging
import random
import sys
import sysconfig
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.utils._device
import torch.utils._python_dispatch
from torch import nn

from windrow.policies.lower.closed import is_library
from windrow.policies.lower.sources import name_of
from windrow.policies.lower.values import Unproved

#: Versions of torch for which all forms of ``cargo xtask stale`` were tried. What guards see, and
#: what torch tells a backend, differs by version: others capture nothing.
TRIED = {(2, 11), (2, 15)}
#: Settings of torch that hold while it captures, where it has them.
SETTINGS = {
    "allow_rnn": True,
    "capture_scalar_outputs": False,
    "invalidate_compile_context_weakrefs": True,
    "recompile_limit": 64,
    "skip_nnmodule_hook_guards": False,
    # Torch would not look at weights and classes below dictionaries that have not changed.
    "skip_tensor_guards_with_matching_dict_tags": False,
    "suppress_errors": False,
    "use_recursive_dict_tags_for_guards": False,
}
#: One capture at a time: parts of torch are replaced meanwhile.
CAPTURING = threading.RLock()
#: How much of torch's reasons is shown.
SHOWN = 200


class Eager(BaseException):
    """Raised by a call that torch would run instead of capturing it."""


class _Stop(BaseException):
    """Raised where a captured graph would run."""


@dataclass
class Record:
    """What torch knows of a call that it has captured.

    Attributes:
        graph: what the call computes, in functions of torch.
        inputs: for each input of the graph: where it comes from, and whether it is a number that is
            passed as a tensor.
        guarded: the sources that guards look at, each with what they look at.
        conditions: what has to hold of sizes that differ by call, as expressions of sympy.
        counts: the graph has numbers that depend on these sizes.
        doubt: what the call does beside computing, if anything.
        codes: the code that was inlined, with its globals.
        read: the objects that were read, each with where.
        entry: what torch keeps of the call, with its guards.
    """

    graph: torch.fx.GraphModule
    inputs: list[tuple[Any, bool]]
    guarded: list[tuple[Any, str]]
    conditions: list[Any]
    counts: bool
    doubt: str | None
    codes: dict[types.CodeType, dict[str, Any]] = field(default_factory=dict)
    read: list[tuple[Any, Any]] = field(default_factory=list)
    entry: Any = None


class Recorder:
    """Captures calls of one function, whose code nobody else has.

    Args:
        function: what is called.
        conditions: makes the context in which it is called.
    """

    def __init__(self, function: types.FunctionType, conditions: Callable[[], Any]) -> None:
        check_version()
        self._function, self._conditions = function, conditions
        self._found: Record | None = None
        self._answers: tuple[Any, ...] | None = None
        with _settings():
            self._compiled = torch.compile(function, fullgraph=True, backend=_backend)

    def record(self, arguments: Sequence[Any], policy: Any) -> Record:
        """Captures a call of ``policy``, without running it.

        Raises:
            Unproved: torch does not capture it, it does something beside computing, or capturing it
                leaves a trace.
        """
        if (mode := foreign_mode()) is not None:
            raise Unproved(f"{mode} is entered, which changes what functions of torch do")
        with CAPTURING, _settings(), self._conditions(), _untouched(policy):
            _THREAD.recorder = self
            try:
                return self._recorded(arguments)
            except Unproved:
                raise
            except Eager:
                raise Unproved("torch does not capture it") from None
            except Exception as error:
                raise Unproved(_explained(error)) from None
            finally:
                _THREAD.recorder = None

    def returned(self, arguments: Sequence[Any], results: Sequence[Any]) -> Any:
        """What the call that was recorded last returns if its graph gives ``results``. The rest of
        the call writes nothing.
        """
        with CAPTURING, _settings(), self._conditions():
            self._answers = tuple(results)
            _THREAD.recorder = self
            try:
                return self._compiled(*arguments)
            finally:
                self._answers = _THREAD.recorder = None

    def _recorded(self, arguments: Sequence[Any]) -> Record:
        from torch._dynamo.eval_frame import _debug_get_cache_entry_list

        code = self._function.__code__
        before = {id(entry) for entry in _debug_get_cache_entry_list(code)}
        self._found = None
        with _watched() as watched:
            try:
                self._compiled(*arguments)
            except _Stop:
                pass
        # Torch's own record refers to the weights, which could not be swapped.
        found, self._found = self._found, None
        if found is None:
            raise Unproved("it computes nothing that depends on its inputs")
        doubt = found.doubt or next(iter(watched.caught), None)
        if doubt is not None:
            raise Unproved(doubt)
        entries = list(_debug_get_cache_entry_list(code))
        # The newest is the first.
        fresh = [one for one in entries if id(one) not in before] or entries[:1]
        if not fresh:
            raise Unproved("torch keeps no guards")
        found.codes, found.read, found.entry = watched.codes, watched.read, fresh[0]
        return found

    def take(self, graph: torch.fx.GraphModule) -> None:
        """Notes what torch has captured, and what it knows of that by now."""
        output = _output_graph()
        # Torch forgets most of it once it has the graph.
        self._found = Record(
            graph,
            [_source(node) for node in _inputs(graph)],
            [(one.originating_source, one.inner_create_fn().__name__) for one in output.guards],
            _conditions(output.shape_env, graph),
            _counts(graph),
            _written(output) or _foreign_draw(graph),
        )

    def results(self) -> tuple[Any, ...]:
        """What the graph gives in :meth:`returned`; raises where it would run otherwise."""
        if self._answers is None:
            raise _Stop
        return self._answers


class _Thread(threading.local):
    """The recorder that captures in a thread. Torch's caches, which nothing frees, refer to no
    recorder, and so to no policy.
    """

    recorder: Recorder | None = None


_THREAD = _Thread()


def _backend(graph: torch.fx.GraphModule, examples: Any) -> Callable[..., Any]:
    assert _THREAD.recorder is not None
    _THREAD.recorder.take(graph)
    return _results


def _results(*inputs: Any) -> tuple[Any, ...]:
    assert _THREAD.recorder is not None
    return _THREAD.recorder.results()


def check_version() -> None:
    """Raises Unproved where nobody has tried captures with this torch, or this Python."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version not in TRIED:
        raise Unproved(f"captures were not tried with torch {torch.__version__}")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise Unproved("captures were not tried without the interpreter's lock")


def foreign_mode() -> str | None:
    """The name of a mode that the program has entered, and in which functions of torch do something
    else, if any.
    """
    if torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack() == 0:
        return None
    modes = [
        *torch.overrides._get_current_function_mode_stack(),
        *torch.utils._python_dispatch._get_current_dispatch_mode_stack(),
    ]
    # Those of default devices.
    others = [mode for mode in modes if not isinstance(mode, torch.utils._device.DeviceContext)]
    return type(others[0]).__name__ if others else None


# While torch captures


class _Watched:
    """What torch does in this thread while it captures.

    Attributes:
        codes: the code that it inlines, with its globals.
        read: the objects that it reads, each with where.
        caught: exceptions that the user's code catches: what made them be raised has no guard.
    """

    def __init__(self) -> None:
        self.codes: dict[types.CodeType, dict[str, Any]] = {}
        self.read: list[tuple[Any, Any]] = []
        self.caught: list[str] = []


@contextlib.contextmanager
def _watched() -> Iterator[_Watched]:
    """A context in which three methods of torch also write down what they see."""
    import torch._dynamo.guards as Guards
    from torch._dynamo import exc
    from torch._dynamo.symbolic_convert import (
        InliningInstructionTranslator,
        InstructionTranslatorBase,
    )
    from torch._dynamo.variables.builder import VariableBuilder

    Inlining: Any = InliningInstructionTranslator
    Translator: Any = InstructionTranslatorBase
    Builder: Any = VariableBuilder
    watched, thread = _Watched(), threading.get_ident()
    begin, wrap, handle = Inlining.__init__, Builder.__call__, Translator.exception_handler
    measure = Guards.profile_guard_manager
    ends = exc.ObservedUserStopIteration, exc.ObservedGeneratorExit

    def begin_inlining(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        if threading.get_ident() == thread:
            watched.codes[self.f_code] = self.f_globals

    def wrap_object(self: Any, value: Any) -> Any:
        if threading.get_ident() == thread:
            watched.read.append((self.source, value))
        return wrap(self, value)

    def handle_exception(self: Any, error: Any) -> None:
        # It returns where the code catches the exception.
        handle(self, error)
        if threading.get_ident() == thread and not isinstance(error, ends):
            if not is_library(self.f_globals):
                kind = type(error).__name__.removeprefix("Observed")
                watched.caught.append(f"{self.f_code.co_name}() catches {kind}")

    Inlining.__init__, Builder.__call__ = begin_inlining, wrap_object
    Translator.exception_handler = handle_exception
    # Torch would empty the processor's caches to measure its guards, a sixth of a capture.
    Guards.profile_guard_manager = lambda *_: 0.0
    try:
        yield watched
    finally:
        Inlining.__init__, Builder.__call__ = begin, wrap
        Translator.exception_handler, Guards.profile_guard_manager = handle, measure


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """A context with the settings that captures need, in which torch says nothing."""
    import torch._dynamo.config as config

    logger = logging.getLogger("torch")
    level = logger.level
    settings: Any = {name: value for name, value in SETTINGS.items() if hasattr(config, name)}
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), config.patch(**settings):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _untouched(policy: Any) -> Iterator[None]:
    """Refuses a capture that changes random generators or the policy itself."""
    before, attributes = python_generators(), _attributes(policy)
    states = random.getstate(), torch.get_rng_state(), np.random.get_state()
    try:
        yield
        drew = python_generators() != before or not torch.equal(torch.get_rng_state(), states[1])
        if drew or _attributes(policy) != attributes:
            raise Unproved("capturing it changes it")
    finally:
        # Torch draws where the call would.
        random.setstate(states[0])
        torch.set_rng_state(states[1])
        np.random.set_state(states[2])


def _attributes(policy: Any) -> Any:
    """The attributes of the parts of a policy, by identity, and versions of tensors."""
    owner = policy if isinstance(policy, nn.Module) else getattr(policy, "__self__", None)
    parts = list(owner.modules()) if isinstance(owner, nn.Module) else [owner]
    return [
        [
            (name, id(value), value._version)
            if isinstance(value, torch.Tensor) and not value.is_inference()
            else (name, id(value), 0)
            for name, value in vars(part).items()
        ]
        for part in parts
        if hasattr(part, "__dict__")
    ]


def python_generators() -> Any:
    """The states of Python's and NumPy's generators."""
    numpy: Any = np.random.get_state()
    return random.getstate(), numpy[1].tobytes(), numpy[2]


# What torch keeps of a capture


def _output_graph() -> Any:
    """Torch's record of the capture that calls the backend."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if type(owner).__name__ == "OutputGraph":
            return owner
        frame = frame.f_back
    raise Unproved("this torch keeps no record of captures")


def _inputs(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def _source(node: torch.fx.Node) -> tuple[Any, bool]:
    given = node.meta.get("grapharg")
    if given is None:
        raise Unproved("this torch does not say where inputs come from")
    is_number = given.pass_arg_as_tensor and "Numpy" not in type(given.source).__name__
    return given.source, is_number


def _written(output: Any) -> str | None:
    """What the call writes beside objects of its own, if anything."""
    from torch._dynamo.variables.base import AttributeMutationNew, ValueMutationNew

    effects = output.side_effects
    for variable in effects.id_to_variable.values():
        if isinstance(variable.mutation_type, (AttributeMutationNew, ValueMutationNew)):
            continue
        if effects.is_modified(variable) and not _is_restored(effects, variable):
            source = getattr(variable, "source", None)
            where = type(variable).__name__ if source is None else name_of(source)
            names = ", ".join(map(str, effects.store_attr_mutations.get(variable, ())))
            return f"it writes {where}{'.' + names if names else ''}"
    if effects.tensor_hooks or effects.save_for_backward:
        return "it adds hooks to tensors"
    return None


def _is_restored(effects: Any, variable: Any) -> bool:
    """Whether each attribute that the call writes is what it was before, as after ``with``."""
    written = effects.store_attr_mutations.get(variable)
    owner = getattr(variable, "value", None)
    if not written or not hasattr(owner, "__dict__"):
        return False
    for name, value in written.items():
        try:
            if value.as_python_constant() is not vars(owner)[name]:
                return False
        except Exception:
            return False
    # Its dictionary may have been written, too.
    inner = getattr(variable, "dict_vt", None)
    is_modified = getattr(getattr(inner, "mutation_type", None), "is_modified", False)
    return not is_modified or not hasattr(inner, "original_items")


def _foreign_draw(graph: torch.fx.GraphModule) -> str | None:
    """Whether the graph draws in place of another generator than torch's."""
    for node in graph.graph.nodes:
        where = str(getattr(node.target, "__module__", ""))
        if where.startswith("torch._numpy") and "random" in where:
            return "it draws random numbers of NumPy's"
    return None


def _conditions(shapes: Any, graph: torch.fx.GraphModule) -> list[Any]:
    """What torch has found out about the number of rows, beside that it is 2 or more."""
    import sympy

    sizes = {
        size.node.expr
        for node in _inputs(graph)
        if isinstance(size := node.meta.get("example_value"), torch.SymInt)
    }
    found = [guard.expr for guard in shapes.guards]
    found += [one.expr for many in shapes.deferred_runtime_asserts.values() for one in many]
    found += list(getattr(shapes, "divisible", ()))
    for symbol in sizes:
        limits = shapes.var_to_range.get(symbol)
        if limits is not None and (limits.lower > 2 or "oo" not in str(limits.upper)):
            found.append((symbol >= limits.lower) & (symbol <= limits.upper))
    # Every column has as many rows, which torch does not know.
    rows = sympy.Symbol("rows", integer=True, positive=True)
    own = [
        one.subs(dict.fromkeys(one.free_symbols, rows))
        for one in found
        if sizes & getattr(one, "free_symbols", set())
    ]
    return [one for one in own if one is not sympy.true]


def _counts(graph: torch.fx.GraphModule) -> bool:
    """Whether there are numbers in a graph that depend on sizes which differ by call."""
    kinds = torch.SymInt, torch.SymFloat, torch.SymBool
    return any(isinstance(node.meta.get("example_value"), kinds) for node in graph.graph.nodes)


def _explained(error: BaseException) -> str:
    """What torch says in a line: what it does not capture, and of what."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    about = next((line.split(":", 1)[1] for line in lines if "debug context" in line), "").strip()
    what = lines[0].removesuffix(".").strip()
    return f"torch does not capture it: {what}{': ' + about if about else ''}"[:SHOWN]
