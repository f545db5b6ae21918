"""From what a user calls a policy to what the engine takes."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from windrow._arguments import one_of
from windrow._lazy import module, torch
from windrow._types import Policy, Weights
from windrow._warnings import PerformanceWarning, RenamedWarning, warn, warn_once
from windrow.modules import RandomPolicy
from windrow.policies.weights import (
    BESIDE,
    devices_of,
    original,
    source_of,
    tensors_of,
    weights_of,
    widened,
)

if TYPE_CHECKING:
    from windrow._data import Data
    from windrow.policies.audit import Audit
    from windrow.policies.beside import Beside
    from windrow.policies.called import Called
    from windrow.policies.lower.lowering import Lowered
    from windrow.policies.torch_policy import TorchPolicy

_acting, _beside = module("windrow.policies.acting"), module("windrow.policies.beside")
_instead = module("windrow.policies.called")
_onnx = module("windrow.policies.onnx.reading")
_held, _predictors = module("windrow.policies.held"), module("windrow.policies.predictors")
_lower = module("windrow.policies.lower.lowering")
_torch_policy = module("windrow.policies.torch_policy")
_values = module("windrow.policies.lower.values")

BACKENDS = ("auto", "native", "torch")
EXPLORATION_TYPES = ("random", "mode", "mean", "deterministic")
_Often = Literal["once", "each time"]


@dataclass(frozen=True)
class Conditions:
    """How a policy is called where torch evaluates it.

    Attributes:
        exploration_type: name of the exploration type that holds.
        threads: the policy is called in threads of the engine, not in the user's.
        device: where it is evaluated; None for where its inputs are, which are on the CPU.
        is_here: it is evaluated on this machine; another one may lack the device of its weights.
        copies: it is called as a copy, which takes weights that are published; otherwise as the
            user's own object.
        apart: it is called in other processes.
        source: the user's own module, which is called itself; ``written`` takes the names of its
            buffers that a call writes.
        made: a function has made it for its worker.
        trust: it maps a TensorDict to a TensorDict, whatever its signature.
        register: environments observe ``is_init`` if it reads that, and its states begin as its
            modules say.
        evaluates: its module is put into evaluation mode, since nothing else uses it.
        aggregates: how it aggregates the log-probabilities of several actions.
        named: the device that the TensorDicts which it is given say that they are on; None for no
            device.
        served: each call has any number of rows, of any environments.
        alone: which calls with one observation there may be: with 1 row, and None for one that has
            no dimension for rows.
        rows: fill calls of a served policy up to so many rows, with copies of the first; None to
            call it with those that there are.
        warmup: calls before its call is recorded as a CUDA graph, which is replayed from then on;
            None to call it each time.
        room: bytes for the state beside its weights that is published with them; 0 where a policy
            acts as it is.
        codec: reads values that no array holds; None for the codec of this process.
        pid: the process that has the user's own policy.
    """

    exploration_type: str
    threads: bool
    device: Any = None
    is_here: bool = True
    copies: bool = False
    apart: bool = False
    source: Any = None
    written: set[str] = field(default_factory=set)
    made: bool = False
    trust: bool = False
    register: bool = True
    evaluates: bool = False
    aggregates: Any = None
    named: Any = None
    served: bool = False
    alone: tuple[int | None, ...] = (1, None)
    rows: int | None = None
    warmup: int | None = None
    room: int = 0
    codec: Data | None = None
    pid: int = field(default_factory=os.getpid)


@dataclass(frozen=True)
class Choice:
    """A policy in the form that the engine takes.

    Attributes:
        core: None for random actions, functions that make an object for each worker, or a
            description of a network, or of a server.
        source: the user's module, where weights come from when none are given; None without one.
        shared: the collector acts with the user's own module, not with copies of it.
        beside: the policy's state beside its weights, which is published with them; None where
            there is none.
        doubt: why torch evaluates the policy.
        surprise: how often to warn of that, where a user may expect Rust to evaluate it; None where
            nobody does.
        has_weights: there are weights that a ``source`` would give: workers have policies that
            functions made, or that a server evaluates.
        written: names of buffers that a call of the user's own module writes itself, known after
            the first call.
        audit: compares delivered rows of a policy that the engine evaluates with its module.
    """

    core: Any
    source: Any = None
    shared: bool = False
    beside: Beside | None = None
    doubt: str | None = None
    surprise: _Often | None = None
    has_weights: bool = False
    written: Collection[str] = ()
    audit: Audit | None = None

    def tell(self) -> None:
        """Warns that Python calls the policy, once it is known that it can: each time where its
        author can mend that, otherwise once in a process.
        """
        if self.doubt is not None and self.surprise is not None:
            tell_of_python(self.doubt, self.surprise)

    @property
    def reason(self) -> str | None:
        """Why torch evaluates the policy by now."""
        return self.doubt if self.beside is None else self.doubt or self.beside.lost

    def published(self, given: Weights) -> dict[str, Any]:
        """The weights of ``given`` in the form in which workers take them: with the policy's state
        beside them.

        Raises:
            TypeError: ``given`` is neither a module nor weights.
            RuntimeError: part of that state cannot be sent.
        """
        weights = weights_of(given)
        return widened(weights if self.beside is None else self.beside.added_to(weights))


def exploration_name(exploration_type: object, exploration_mode: object = None) -> str:
    """The engine's name for ``exploration_type``: a member of ``ExplorationType``, its name, or
    None for random.

    ``exploration_mode`` is the former name of the argument.

    Raises:
        ValueError: the type is unknown.
    """
    if exploration_mode is not None:
        warn("exploration_mode is called exploration_type now", RenamedWarning)
        exploration_type = exploration_mode if exploration_type is None else exploration_type
    if exploration_type is None:
        return "random"
    name = str(getattr(exploration_type, "name", exploration_type)).lower()
    if name not in EXPLORATION_TYPES:
        raise ValueError(
            f"exploration_type must be RANDOM, MODE, MEAN or DETERMINISTIC, got {exploration_type!r}"
        )
    return name


def is_random(policy: Any, env: object) -> bool:
    """Whether the engine's random policy does what ``policy`` would do in ``env``."""
    if policy is None:
        return True
    if not isinstance(policy, RandomPolicy) and type(policy).__name__ != "RandomPolicy":
        return False
    spec = policy.action_spec
    if spec is None or spec is getattr(env, "action_spec", None):
        return True
    # The number of actions is all that could differ in these.
    if type(spec).__name__ in (
        "Categorical",
        "OneHot",
        "MultiCategorical",
        "MultiOneHot",
        "Binary",
    ):
        return getattr(spec, "mask", None) is None
    return bool(spec == getattr(env, "action_spec", None))


def is_model(policy: Any) -> bool:
    """Whether ``policy`` is a path, or a model that ``onnx`` has loaded."""
    return isinstance(policy, (str, os.PathLike)) or (
        type(policy).__name__ == "ModelProto" and type(policy).__module__.startswith("onnx")
    )


def choose(
    policy: Policy | None,
    factories: Sequence[Callable[[], Any]] | None,
    conditions: Conditions,
    *,
    backend: str = "auto",
    env: object = None,
) -> Choice:
    """The form in which the engine takes ``policy``, or what ``factories`` make for each worker.

    Args:
        policy: the user's policy; only a source of weights beside ``factories``.
        factories: functions that make a policy, one for each worker.
        conditions: how the policy is called if torch evaluates it.
        backend: one of :data:`BACKENDS`.
        env: an environment of the collector, or a function that makes one.

    Raises:
        TypeError: the policy cannot be called.
        ValueError: the backend is unknown, or the policy has no native form although ``backend`` is
            ``"native"``.
    """
    one_of(*BACKENDS)("policy_backend", backend)
    if factories is not None:
        return _made(policy, factories, conditions, backend)
    if is_random(policy, env):
        return Choice(None)
    if hasattr(policy, "_remote_options"):
        return _remote(policy, conditions, backend)
    return _evaluated(policy, conditions, backend, env)


def _made(
    policy: Any, factories: Sequence[Callable[[], Any]], conditions: Conditions, backend: str
) -> Choice:
    if all(getattr(factory, "makes_random", False) for factory in factories):
        return Choice(None, source=policy)
    if backend == "native":
        raise ValueError(
            'policy_backend="native": Python calls what policy_factory makes, give the module itself as policy'
        )
    made = replace(conditions, aggregates=_acting.aggregation(), made=True)
    makers = [partial(_called, factory, made) for factory in factories]
    return Choice(makers, source=policy, has_weights=True)


def _remote(policy: Any, conditions: Conditions, backend: str) -> Choice:
    if conditions.device is not None or backend != "auto":
        raise ValueError(
            "a RemotePolicy is evaluated where its server is: policy_device and policy_backend must be left out"
        )
    return Choice({"remote": policy._remote_options}, has_weights=True)


def _evaluated(policy: Any, conditions: Conditions, backend: str, env: object) -> Choice:
    """In Rust if that is possible, otherwise in torch."""
    called: Any = (
        _onnx.policy_of(policy, backend) if is_model(policy) else _predictors.adapted(policy)
    )
    if not callable(called):
        raise TypeError(
            f"expected a policy that can be called, or a model with a method predict, got {type(called).__name__}"
        )
    if backend == "native" and conditions.device is not None:
        raise ValueError("a native policy runs on the CPU: policy_device must be left out")
    # As it is where the collector is built, whatever learners set later.
    given = replace(conditions, aggregates=_acting.aggregation())
    placed = _placed(called, given, backend)
    if backend == "torch" or getattr(placed.device, "type", "cpu") != "cpu":
        return _form(called, placed)
    try:
        lowered = _lower.lower(called, placed, env)
        if placed.served and lowered.core["rows"] != [[1, None]]:
            raise _values.NotLowerable(
                "it takes other branches for other numbers of rows, and is served"
            )
    except _values.NotLowerable as reason:
        doubt = (getattr(called, "reason", None) if is_model(policy) else None) or str(reason)
        if backend == "native":
            raise ValueError(f'policy_backend="native": {doubt}') from None
        surprise = _surprise(called, reason)
    else:
        return _form(called, placed, lowered, gives_way=backend != "native")
    return _form(_onnx.in_python(called), placed, doubt=doubt, surprise=surprise)


def _form(
    called: Any,
    placed: Conditions,
    lowered: Lowered | None = None,
    *,
    gives_way: bool = False,
    doubt: str | None = None,
    surprise: _Often | None = None,
) -> Choice:
    """A policy as its graph, which ``gives_way`` to Python where it does not hold any more, or as
    what makes those that torch evaluates.
    """
    is_module = isinstance(called, torch.nn.Module)
    source = _source(called, placed) if lowered is None else lowered.source
    # A function of this process is called itself, with the modules that it holds.
    may_copy = is_module or placed.apart or lowered is not None
    conditions = _copying(called, source, placed, may_copy=may_copy)
    instead = _instead.Called(called, conditions) if gives_way else None
    beside, with_room = _state_beside(called, source, conditions, lowered, instead)
    if instead is not None:
        instead.conditions = with_room
    core: Any
    if lowered is None:
        # Other processes need no GPU for it.
        on_cpu = is_module and placed.device is not None and placed.device.type == "cpu"
        acts = _torch_policy.copied_module(called).to(placed.device) if on_cpu else called
        first = source if placed.apart and not is_module else None
        core = [partial(_called, lambda: acts, with_room, first)]
    else:
        weights = {**lowered.core["weights"], BESIDE: beside.leaf}
        fallback = None if instead is None else [instead]
        core = {**lowered.core, "weights": weights, "fallback": fallback}
    return Choice(
        core,
        source=source,
        shared=source is not None and not conditions.copies,
        beside=beside,
        doubt=doubt,
        surprise=surprise,
        written=conditions.written,
        audit=None if lowered is None else lowered.audit,
    )


def _surprise(policy: Callable[..., Any], reason: Exception) -> _Often | None:
    """How often to warn of the ``reason`` why Python calls ``policy``. Nobody expects Rust to
    evaluate a function, nor a module that ``compile_policy`` compiles.
    """
    if source_of(original(policy)) is None or "_windrow_compiled" in getattr(
        policy, "__dict__", {}
    ):
        return None
    return "each time" if isinstance(reason, _values.Unproved) else "once"


def unfit(refusal: str) -> str:
    """The reason why Python calls a policy whose graph the engine refuses."""
    return f"its graph does not fit the environments ({refusal})"


def tell_of_python(doubt: str, often: _Often = "once") -> None:
    """Warns that Python calls the policy."""
    told = f'the policy is called in Python, since {doubt}: policy_backend="torch" says so without this warning'
    if often == "each time":
        warn(told, PerformanceWarning)
    else:
        warn_once(
            "python policy",
            f'{told}, policy_backend="native" makes it an error',
            PerformanceWarning,
        )


def _state_beside(
    policy: Callable[..., Any],
    source: torch.nn.Module | None,
    conditions: Conditions,
    lowered: Lowered | None = None,
    instead: Called | None = None,
) -> tuple[Any, Conditions]:
    """The state that is published beside the weights of ``policy``, which ``instead`` calls where
    it is no graph any more, and ``conditions`` with room for it; None where the policy acts itself.
    """
    is_copied = isinstance(source, torch.nn.Module) and conditions.copies
    if lowered is None and not is_copied:
        return None, conditions
    evaluates = conditions.evaluates and isinstance(policy, torch.nn.Module)
    attributes = (
        partial(_beside.Attributes, policy, source, evaluates=evaluates, elsewhere=conditions.apart)
        if is_copied
        else None
    )
    beside = _beside.Beside(lowered, attributes, instead, is_served=conditions.served)
    room = len(beside.leaf) if conditions.copies else 0
    return beside, replace(conditions, room=room)


def _copying(
    policy: Callable[..., Any], source: object, placed: Conditions, *, may_copy: bool
) -> Conditions:
    """``placed`` with whether workers act with copies of ``policy``, or with the module ``source``
    itself.

    Raises:
        TypeError: they would act with copies of a module whose lazy layers have no weights yet.
    """
    if not (may_copy and (placed.threads or not _lies_on(source, placed.device))):
        return replace(placed, copies=False, source=source)
    if isinstance(policy, torch.nn.Module) and any(
        map(torch.nn.parameter.is_lazy, policy.parameters())
    ):
        raise TypeError(
            "policy has lazy layers, which would get other weights in each copy of it: call it once before, such as by policy(env.reset())"
        )
    return replace(placed, copies=True)


def _placed(policy: Any, conditions: Conditions, backend: str = "auto") -> Conditions:
    """``conditions`` with the device of a policy whose weights are on a GPU, where the user has
    named none: that one. The CPU if it was named, if Rust is to evaluate the policy, or if another
    machine is.
    """
    module = source_of(original(policy))
    if conditions.device is not None or module is None:
        return conditions
    devices = devices_of(module)
    if all(device.type == "cpu" for device in devices):
        return conditions
    if conditions.named is not None or backend == "native" or not conditions.is_here:
        return replace(conditions, device=torch.device("cpu"))
    # Where it is on several, it moves what it is given itself.
    return replace(conditions, device=devices.pop()) if len(devices) == 1 else conditions


def _lies_on(source: object, device: torch.device | None) -> bool:
    """Whether the tensors of a module are on ``device``; None for where they are."""
    if device is None or not isinstance(source, torch.nn.Module):
        return True
    index = (
        torch.cuda.current_device()
        if device.type == "cuda" and device.index is None
        else device.index or 0
    )
    return all(own.type == device.type and (own.index or 0) == index for own in devices_of(source))


def _source(called: Any, conditions: Conditions) -> Any:
    """The module that the weights of ``called`` come from; None for a function without weights that
    is called in this process. What a copy in another one holds beside weights travels with them,
    even if there are none.
    """
    if hasattr(called, "state_dict"):
        return original(called)
    source = _held.source_of_weights(called)
    return source if conditions.apart or tensors_of(source) else None


def _called(
    make: Callable[[], Any], conditions: Conditions, source: torch.nn.Module | None = None
) -> TorchPolicy:
    """What acts for one worker, where torch evaluates its policy. A function begins with the
    weights of ``source``.
    """
    policy = _predictors.adapted(make())
    return _torch_policy.TorchPolicy(policy, _placed(policy, conditions), source)


def compiled(policy: Any, compile_policy: bool | dict[str, Any] | None) -> Any:
    """``policy``, compiled if that was asked for."""
    if compile_policy:
        options = dict(compile_policy) if isinstance(compile_policy, dict) else {}
        # How often TorchRL calls a policy before it relies on the compiled one.
        options.pop("warmup", None)
        policy = torch.compile(policy, **options)
        # A worker process compiles it anew. A compiled module would pass an attribute on to the
        # module in it.
        vars(policy)["_windrow_compiled"] = options
    return policy


def warmup_of(
    cudagraph_policy: bool | dict[str, Any] | None, device: torch.device | None
) -> int | None:
    """How often a policy is called before its call is recorded as a CUDA graph; None if that was
    not asked for.

    Raises:
        RuntimeError: the policy is on no CUDA device.
        ValueError: another option than ``warmup`` was given, or no number of calls.
    """
    if not cudagraph_policy:
        return None
    if device is None or device.type != "cuda":
        raise RuntimeError(
            f"cudagraph_policy needs a CUDA device as policy_device, got {'none' if device is None else device}"
        )
    options = dict(cudagraph_policy) if isinstance(cudagraph_policy, dict) else {}
    # The default of tensordict's CudaGraphModule.
    warmup = options.pop("warmup", 2)
    if options or not isinstance(warmup, int) or warmup < 1:
        raise ValueError(
            f'cudagraph_policy must be True or {{"warmup": calls}}, of 1 call or more, got {cudagraph_policy!r}'
        )
    return warmup


def copied_now(core: Any) -> Any:
    """The form ``core`` with policies that are made, and so copied, at once instead of when a
    worker needs them.
    """
    if isinstance(core, list):
        return [partial(lambda made: made, make()) for make in core]
    for called in (core.get("fallback") or ()) if isinstance(core, dict) else ():
        called.freeze()
    return core
