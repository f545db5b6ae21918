"""Policies that Python evaluates, behind the few methods that the engine calls."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import CellType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase

from windrow._values import Shown, public, unheld
from windrow._warnings import warn
from windrow.envs._specs import Key, short
from windrow.policies import recurrent
from windrow.policies.acting import act_from_now_on, acting
from windrow.policies.beside import attributes_in, check_attributes, load_attributes
from windrow.policies.weights import BESIDE, check_weights, original, tensors_of, widened

if TYPE_CHECKING:
    from windrow.policies.choose import Conditions

#: Observations that wrappers add.
BOOKKEEPING = ("step_count", "is_init", "episode_reward")


class TorchPolicy:
    """A callable as the engine sees it.

    The engine calls :meth:`bind` once, then :meth:`act` for each step; :meth:`load` with new weights between batches.

    Args:
        policy: a module, or any callable that one of the rules of :func:`calls_with_tensordict` fits.
        conditions: how it is called.
        copied: call a copy of the module instead of the user's own object.

    Attributes:
        wants_first: :meth:`act` takes a flag for each row that begins an episode, after the observations: the policy has a state.
        wants_places: then the place of each row, too: rows are others in each call.
        reads_init: the environment has to observe ``is_init``.
    """

    wants_first = wants_places = False

    def __init__(self, policy: Callable[..., Any], conditions: Conditions, *, copied: bool) -> None:
        self.module = policy if isinstance(policy, torch.nn.Module) else None
        if self.module is not None and (copied or conditions.device is not None):
            self.module = policy = copied_module(self.module).to(conditions.device)
        if self.module is not None and conditions.evaluates:
            self.module.eval()
        self.policy = policy
        self.conditions = conditions
        self.reads_init = conditions.register and reads_init(policy, conditions.trust)
        self.call: Callable[..., tuple[torch.Tensor, ...]] = self._not_bound
        self._beside = torch.zeros(conditions.room, dtype=torch.uint8)
        #: What the policy has written and no array holds.
        self._left_out: list[Key] = []
        self._shown: Shown | None = None

    def bind(
        self,
        inputs: dict[Key, torch.Tensor],
        action_keys: list[Key],
        batch: list[int],
        groups: Sequence[tuple[Key, list[int]]] = (),
        examples: Sequence[tuple[Key, bytes]] = (),
    ) -> list[tuple[list[str], torch.Tensor]]:
        """Calls the policy once, and returns what it writes: the actions in the order of ``action_keys``, then the rest, such as
        observations that it has replaced. It has to write the same keys at each step.

        Args:
            inputs: a first observation, or zeros, for each key of the environment, ``[*batch, *shape]``.
            action_keys: the actions that the environment wants.
            batch: dimensions of a batch of observations: none for one environment.
            groups: batch sizes of nested entries that have dimensions of their own, outer ones first.
            examples: observations that no array holds, each with the bytes of what the policy is given where there is none.

        Raises:
            TypeError: the policy cannot be called with these observations, or does not return tensors.
            KeyError: it writes no action.
        """
        self.keys = list(inputs)
        held = {key: b"" for key, given in inputs.items() if isinstance(given, tuple)} | dict(examples)
        shown = Shown(held.items(), action_keys)
        self._shown = shown if shown.examples or shown.split else None
        if self._shown is not None:
            inputs = dict(zip(self.keys, self._shown.taken(inputs.values()), strict=True))
        self.batch = torch.Size(batch)
        self.groups = [(key, torch.Size(size[len(batch) :])) for key, size in groups]
        with acting(self.conditions.exploration_type, self.conditions.aggregates):
            if calls_with_tensordict(self.policy, self.conditions.trust):
                found = self._bind_tensordict(inputs, action_keys)
            else:
                with self._forked():
                    found = self._bind_tensors(inputs, action_keys)
        if self._left_out:
            warn(f"the policy writes what no array holds, which batches leave out: {sorted(map(str, self._left_out))}")
        return [([key] if isinstance(key, str) else list(key), value) for key, value in found]

    def act(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs for one step, in the order that :meth:`bind` gave.

        Args:
            inputs: the observations, which rows begin an episode where :attr:`wants_first`, and their places where :attr:`wants_places`.
        """
        # In the user's thread, the collector has entered `acting`.
        if self.conditions.threads:
            act_from_now_on(self.conditions.exploration_type, self.conditions.aggregates)
        if self._shown is not None and any(isinstance(given, tuple) for given in inputs):
            inputs = tuple(self._shown.taken(inputs))
        if self.conditions.device is not None:
            inputs = tuple(value.to(self.conditions.device) for value in inputs)
        if self.conditions.served and inputs:
            self.batch = inputs[0].shape[:1]
        return self.call(*inputs)

    def load(self, weights: TensorDictBase) -> None:
        """Copies ``weights`` into the module; none are given for the user's own module, which already has them."""
        given, tensors = dict(weights.items()), self._tensors()
        beside = given.pop(BESIDE, None)
        with torch.no_grad():
            for name, value in given.items():
                tensors[name].copy_(value)
        if beside is not None and not torch.equal(beside, self._beside):
            is_elsewhere = os.getpid() != self.conditions.pid
            load_attributes(attributes_in(beside), self.module, is_elsewhere=is_elsewhere)  # type: ignore[arg-type]
            self._beside = beside.clone()

    def check(self, weights: TensorDictBase) -> None:
        """Checks that :meth:`load` would take these weights.

        Raises:
            ValueError: they belong to another policy.
        """
        given = dict(weights.items())
        beside = given.pop(BESIDE, None)
        if beside is not None:
            check_attributes(attributes_in(beside))
        if given or self.conditions.threads:
            check_weights(self._tensors(), given)

    def weights(self) -> dict[str, torch.Tensor]:
        """The module's tensors by name, in element types that the engine has, and room for its state beside them."""
        own = widened(self._tensors())
        return {**own, BESIDE: self._beside} if self.conditions.room else own

    def state(self, with_generator: bool) -> bytes:
        """What the policy remembers of each row. ``with_generator``: the state of torch's generators, too."""
        state: dict[str, Any] = {"memory": self.memory.state() if self.wants_first else None}
        if with_generator:
            state["generator"] = torch.get_rng_state()
            device = self.conditions.device
            if device is not None and torch.device(device).type == "cuda":
                state["cuda"] = torch.cuda.get_rng_state(device)
        file = io.BytesIO()
        torch.save(state, file)
        return file.getvalue()

    def set_state(self, state: bytes) -> None:
        """Goes on from what :meth:`state` returned.

        Raises:
            ValueError: it is the state of another policy.
        """
        saved = torch.load(io.BytesIO(state), weights_only=True, map_location="cpu")
        if (saved["memory"] is not None) != self.wants_first:
            raise ValueError("the state is that of another policy: one of the two remembers nothing")
        if saved["memory"] is not None:
            self.memory.set_state(saved["memory"])
        if "generator" in saved:
            torch.set_rng_state(saved["generator"])
        if "cuda" in saved:
            torch.cuda.set_rng_state(saved["cuda"], self.conditions.device)

    def _tensors(self) -> dict[str, torch.Tensor]:
        # Looked up at each call, since the user may replace tensors of the module.
        return {} if self.module is None else tensors_of(self.module)

    def _not_bound(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        raise RuntimeError("a policy has to see an environment's observations before it acts")

    def _bind_tensordict(
        self, inputs: dict[Key, torch.Tensor], action_keys: list[Key]
    ) -> list[tuple[Key, torch.Tensor]]:
        self.stepwise = recurrent.stepwise()
        self.call = self._whole_output
        memory, found = recurrent.find(self.policy, inputs, self._probe, batch=self.batch, prime=self.conditions.register)
        left = self._left_alone if memory is None else self._left_alone - memory.given.keys()
        outputs = {key: value for key, value in found.items() if key not in left and not recurrent.is_private(key)}
        missing = [key for key in action_keys if key not in outputs]
        if missing:
            raise KeyError(f"the policy writes {list(outputs)}, but no {public(missing[0])!r}, which the environment takes")
        self.out_keys = [*action_keys, *(key for key in outputs if key not in action_keys)]
        self.call = self._call_tensordict
        self.wants_first = memory is not None
        self.wants_places = self.wants_first and self.conditions.served
        if memory is not None:
            self.memory, self.keys, self.call = memory, memory.keys, self._call_remembering
        return [(key, outputs[key]) for key in self.out_keys]

    def _probe(self, inputs: dict[Key, torch.Tensor]) -> Any:
        self.keys = list(inputs)
        with self._forked(), self.stepwise:
            return self.act(*inputs.values())[0]

    def _forked(self) -> AbstractContextManager[None]:
        """A context that leaves random numbers as they were."""
        device = self.conditions.device
        is_cuda = device is not None and torch.device(device).type == "cuda"
        return torch.random.fork_rng(devices=[device] if is_cuda else [])

    def _whole_output(self, *given: torch.Tensor) -> tuple[Any, ...]:
        rows = self.batch
        inputs = self._filled(given)
        # Tensors of inference mode do not count writes, so they are taken for written.
        versions = [None if value.is_inference() else value._version for value in inputs]
        returned = self._without_shown(self._evaluate(inputs))
        declared = getattr(self.policy, "out_keys", None) or ()
        self._left_alone = {
            key
            for key, value, version in zip(self.keys, inputs, versions)
            if key not in declared
            and version is not None
            and returned.get(key, value) is value
            and value._version == version
        }
        return (self._cut(returned, rows),)

    def _without_shown(self, returned: TensorDictBase) -> TensorDictBase:
        """``returned`` without observations that are no arrays, which the policy may not write.

        Raises:
            TypeError: it does.
        """
        held = [] if self._shown is None else [key for key in self._shown.examples if key in self.keys]
        for key in held:
            if key in (getattr(self.policy, "out_keys", None) or ()) or (self._shown is not None and not self._shown.is_left(returned, key)):
                raise TypeError(f"the policy writes {key!r}, which the environment observes and no array holds: expected that it reads it only")
        returned = returned.exclude(*held) if held else returned
        self._left_out = [short(names) for names, _ in unheld(returned)]
        return returned

    def _filled(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """``inputs`` of as many rows as each call has: the last are copies of the first."""
        rows = self.conditions.rows
        if rows is None or not inputs or len(inputs[0]) >= rows:
            return inputs
        self.batch = torch.Size([rows])
        missing = rows - len(inputs[0])
        return [torch.cat([value, value[:1].expand(missing, *value.shape[1:])]) for value in inputs]

    def _cut(self, returned: Any, rows: torch.Size) -> Any:
        """The first ``rows`` of what a call has returned."""
        return returned if rows == self.batch else returned[: rows[0]]

    def _evaluate(self, inputs: Sequence[torch.Tensor]) -> TensorDictBase:
        given = TensorDict(dict(zip(self.keys, inputs)), batch_size=self.batch, device=self.conditions.named)
        for group, size in self.groups:
            # A group may hold only actions and rewards, which the policy does not see.
            inner = given.get(group, None)
            if inner is not None:
                inner.batch_size = self.batch + size
        if self._shown is not None:
            given = self._shown.shown(given, self.conditions.device)
        returned = self.policy(given)
        if returned is None:
            returned = given
        if not isinstance(returned, TensorDictBase):
            raise TypeError(
                f"a policy that is given a TensorDict returns one, got {type(returned).__name__}; to be called with tensors, "
                "name its parameters after the observations"
            )
        return returned if self._shown is None else self._shown.parted(returned)

    def _call_tensordict(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = self.batch
        returned = self._cut(self._evaluate(self._filled(inputs)), rows)
        return tuple(returned.get(key) for key in self.out_keys)

    def _call_remembering(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        count = len(inputs) - self.wants_first - self.wants_places
        rows = self.batch
        with self.stepwise:
            returned = self._evaluate(self._filled(self.memory.recall(inputs[:count], *inputs[count:])))
        returned = self._cut(returned, rows)
        given = self.memory.given
        self.memory.keep(returned)
        return tuple(returned.get(key, given.get(key)) for key in self.out_keys)

    def _bind_tensors(
        self, inputs: dict[Key, torch.Tensor], action_keys: list[Key]
    ) -> list[tuple[Key, torch.Tensor]]:
        self.arguments = arguments_of(self.policy, self.keys)
        self.call = self._call_tensors
        values = self.act(*inputs.values())
        if len(values) < len(action_keys):
            raise TypeError(f"the policy returns {len(values)} tensors, expected one for each of {list(map(public, action_keys))}")
        extra = [f"output{number}" for number in range(1, len(values) - len(action_keys) + 1)]
        return list(zip([*action_keys, *extra], values))

    def _call_tensors(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = self.batch
        inputs: Sequence[Any] = self._filled(given)
        if self._shown is not None:
            shown = self._shown
            inputs = [shown.value(key, one) if key in shown.examples else one for key, one in zip(self.keys, inputs, strict=True)]
        returned = self.policy(*[inputs[index] for index in self.arguments])
        values = returned if isinstance(returned, tuple) else (returned,)
        # Asked once, not for each value: a quick module takes no longer than some hundred of these lookups.
        return values if rows == self.batch else tuple(value[: rows[0]] for value in values)


def copied_module(module: torch.nn.Module) -> torch.nn.Module:
    """A deep copy of ``module``. Functions that its parts go around have the same code, and copies of what they close over: a module of
    tensordict would pickle them, which makes a program's own classes anew, in the copy and in the program."""
    memo: dict[int, Any] = {}
    # Those within come last, and are copied first.
    for part in reversed(list(module.modules())):
        function = part.__dict__.get("module")
        if inspect.ismethod(function) or inspect.isfunction(function):
            memo[id(part)] = copied = type(part).__new__(type(part))
            attributes = {name: copy.deepcopy(value, memo) for name, value in part.__dict__.items() if name != "module"}
            if inspect.ismethod(function):
                function = MethodType(function.__func__, copy.deepcopy(function.__self__, memo))
            else:
                function = _copied_function(function, memo)
            copied.__dict__.update(attributes, module=function)
    return copy.deepcopy(module, memo)


def _copied_function(function: FunctionType, memo: dict[int, Any]) -> FunctionType:
    """``function`` with copies of its defaults and of what it closes over, where copies can be made."""
    # A copy that fails leaves half of one in its memo.
    tried = dict(memo)
    try:
        cells = tuple(_copied_cell(cell, tried) for cell in function.__closure__ or ())
        defaults, named = copy.deepcopy((function.__defaults__, function.__kwdefaults__), tried)
    except Exception:
        return function
    memo.update(tried)
    copied = FunctionType(function.__code__, function.__globals__, function.__name__, defaults, cells)
    copied.__kwdefaults__ = named
    for name in functools.WRAPPER_ASSIGNMENTS:
        setattr(copied, name, getattr(function, name))
    copied.__dict__.update(function.__dict__)
    return copied


def _copied_cell(cell: CellType, memo: dict[int, Any]) -> CellType:
    if id(cell) not in memo:
        try:
            contents = cell.cell_contents
        except ValueError:
            # Not filled yet.
            memo[id(cell)] = CellType()
        else:
            memo[id(cell)] = CellType(copy.deepcopy(contents, memo))
    return memo[id(cell)]


def calls_with_tensordict(policy: Callable[..., Any], trust: bool = False) -> bool:
    """Whether ``policy`` maps a TensorDict to a TensorDict.

    Modules of tensordict do, and callables with exactly one parameter that is called ``tensordict`` or ``td`` or annotated as a
    TensorDict; any other callable does if ``trust`` says so.

    Raises:
        TypeError: it has ``in_keys`` and ``out_keys``, but is no module of tensordict.
    """
    policy = original(policy)
    if trust or isinstance(policy, TensorDictModuleBase):
        return True
    if hasattr(policy, "in_keys") and hasattr(policy, "out_keys"):
        raise TypeError(
            f"{type(policy).__name__} has in_keys and out_keys, but is no tensordict.nn.TensorDictModuleBase: derive it from that "
            "class, or pass trust_policy=True if it takes a TensorDict"
        )
    parameters = _parameters(policy)
    if len(parameters) != 1:
        return False
    annotation = parameters[0].annotation
    is_annotated = inspect.isclass(annotation) and issubclass(annotation, TensorDictBase)
    return parameters[0].name in ("tensordict", "td") or is_annotated


def reads_init(policy: Callable[..., Any], trust: bool = False) -> bool:
    """Whether ``policy`` reads where episodes begin."""
    if not calls_with_tensordict(policy, trust):
        return any(parameter.name == recurrent.IS_INIT for parameter in _parameters(policy))
    if recurrent.IS_INIT in (recurrent.keys_of(policy, "in_keys") or ()):
        return True
    # Some modules say so in another way than by their keys.
    modules = policy.modules() if isinstance(policy, torch.nn.Module) else ()
    return any(getattr(module, "is_init_key", None) == recurrent.IS_INIT for module in modules)


def arguments_of(policy: Callable[..., Any], keys: Sequence[Key]) -> list[int]:
    """The index of the observation that each parameter of ``policy`` takes: the observation of its name. A single parameter, or
    one such as ``*inputs``, takes the only observation whatever its name.

    Raises:
        TypeError: no observation has the name of a parameter.
    """
    empty = inspect.Parameter.empty
    required = [parameter for parameter in _parameters(policy) if parameter.default is empty]
    names = [parameter.name for parameter in required]
    if all(name in keys for name in names) and names:
        return [list(keys).index(name) for name in names]
    observed = [index for index, key in enumerate(keys) if key not in BOOKKEEPING]
    takes_one = len(names) == 1 or (not names and bool(_parameters(policy, inspect.Parameter.VAR_POSITIONAL)))
    if takes_one and len(observed) == 1:
        return observed
    raise TypeError(
        f"expected a policy whose parameters are observations of the environment, {list(keys)}, or a single TensorDict; got "
        f"{names}. Wrap it in a TensorDictModule, or pass trust_policy=True if it takes a TensorDict all the same"
    )


def _parameters(policy: Callable[..., Any], *kinds: Any) -> list[inspect.Parameter]:
    """The parameters of ``policy`` of these kinds; positional ones unless given."""
    kinds = kinds or (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    policy = original(policy)
    function = policy.forward if isinstance(policy, torch.nn.Module) else policy
    try:
        try:
            signature = inspect.signature(function, eval_str=True)
        except Exception:
            # Some annotations cannot be evaluated.
            signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise TypeError(f"the signature of the policy {policy!r} cannot be read: wrap it in a function") from error
    return [parameter for parameter in signature.parameters.values() if parameter.kind in kinds]


def read_by(policy: Any, trust: bool, observed: Sequence[Key], info: Sequence[Key]) -> list[Key]:
    """The observations that ``policy`` gets. One that is called with tensors gets entries of ``info`` where it names them: it may take
    the only other observation under any name.
    """
    if calls_with_tensordict(policy, trust):
        return list(observed)
    try:
        arguments_of(policy, observed)
    except TypeError:
        return [key for key in observed if key not in info]
    return list(observed)
