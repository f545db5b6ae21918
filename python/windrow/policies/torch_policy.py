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
from torch.overrides import TorchFunctionMode

from windrow._codecs import own_codec
from windrow._keys import Key, short
from windrow._values import Shown, public, unheld
from windrow._warnings import warn
from windrow.policies import answers, recurrent
from windrow.policies.acting import act_from_now_on, acting
from windrow.policies.arguments import (
    Convert,
    arguments_of,
    calls_with_tensordict,
    conversion,
    placed,
    reads_init,
    to_numpy,
)
from windrow.policies.beside import attributes_in, load_attributes
from windrow.policies.compared import Named, led_to
from windrow.policies.cuda_graph import CudaGraph
from windrow.policies.held import source_of_weights
from windrow.policies.places import MISSING, contents
from windrow.policies.predictors import Predictor
from windrow.policies.weights import BESIDE, check_weights, copy_weights, tensors_of, widened

if TYPE_CHECKING:
    from windrow.policies.choose import Conditions


class TorchPolicy:
    """A callable as the engine sees it.

    The engine calls :meth:`bind` once, then :meth:`act` for each step; :meth:`load` with new
    weights between batches.

    Args:
        policy: a module, or any callable that one of the rules of :func:`calls_with_tensordict`
            fits.
        conditions: how it is called.
        source: has the weights that a function begins with in another process, where a module that
            it refers to by name may be a new one.

    Attributes:
        wants_first: :meth:`act` takes a flag for each row that begins an episode, after the
            observations: the policy has a state.
        wants_places: then the place of each row, too: rows are others in each call.
        reads_init: the environment has to observe ``is_init``.
    """

    wants_first = wants_places = False

    def __init__(
        self,
        policy: Callable[..., Any],
        conditions: Conditions,
        source: torch.nn.Module | None = None,
    ) -> None:
        self.module: torch.nn.Module | None = None
        if isinstance(policy, torch.nn.Module):
            # In another process, it is a copy already.
            if conditions.copies and os.getpid() == conditions.pid:
                policy = copied_module(policy)
            if conditions.device is not None:
                policy = policy.to(conditions.device)
            if conditions.evaluates:
                policy.eval()
            self.module = policy
        elif conditions.apart or conditions.made:
            self.module = source_of_weights(policy)
            if source is not None:
                copy_weights(tensors_of(self.module), tensors_of(source))
        self.policy = policy
        self.conditions = conditions
        self.reads_init = conditions.register and reads_init(policy, conditions.trust)
        self.call: Callable[..., tuple[torch.Tensor, ...]] = self._not_bound
        self._beside = torch.zeros(conditions.room, dtype=torch.uint8, device="cpu")
        #: How tensors become the arrays that the policy takes; None for tensors.
        self._convert: Convert | None = None
        #: What the policy has written and no array holds.
        self._left_out: list[Key] = []
        self._shown: Shown | None = None
        #: Replays what the policy computes, where that was asked for.
        self._graph: CudaGraph | None = None

    def bind(
        self,
        inputs: dict[Key, torch.Tensor],
        action_keys: list[Key],
        batch: list[int],
        groups: Sequence[tuple[Key, list[int]]] = (),
        examples: Sequence[tuple[Key, bytes]] = (),
    ) -> list[tuple[list[str], torch.Tensor]]:
        """Calls the policy once, and returns what it writes: the actions in the order of
        ``action_keys``, then the rest, such as observations that it has replaced. It has to write
        the same keys at each step.

        Args:
            inputs: a first observation, or zeros, for each key of the environment,
                ``[*batch, *shape]``.
            action_keys: the actions that the environment wants.
            batch: dimensions of a batch of observations: none for one environment.
            groups: batch sizes of nested entries that have dimensions of their own, outer ones
                first.
            examples: observations that no array holds, each with the bytes of what the policy is
                given where there is none.

        Raises:
            TypeError: the policy cannot be called with these observations, or does not return
                tensors.
            KeyError: it writes no action.
            RuntimeError: it was to be recorded as a CUDA graph, and cannot be.
        """
        self.keys, self._action_keys = list(inputs), action_keys
        held = {key: b"" for key, given in inputs.items() if isinstance(given, tuple)} | dict(
            examples
        )
        shown = Shown(held.items(), action_keys, self.conditions.codec or own_codec())
        self._shown = shown if shown.examples or shown.split else None
        if self._shown is not None:
            inputs = dict(zip(self.keys, self._shown.taken(inputs.values()), strict=True))
        if self.conditions.device is not None:
            inputs = {key: value.to(self.conditions.device) for key, value in inputs.items()}
        self.batch = torch.Size(batch)
        self.groups = [(key, torch.Size(size[len(batch) :])) for key, size in groups]
        before = self._written_buffers()
        with acting(self.conditions.exploration_type, self.conditions.aggregates):
            try:
                found = self._first_call(inputs, action_keys)
            except Exception as error:
                error.add_note(f"the policy was called with {_described(inputs)}")
                raise
            if self.conditions.warmup is not None:
                with self._forked():
                    self._record(list(inputs.values()), self.conditions.warmup)
        self.conditions.written.update(
            name for name, known in self._written_buffers().items() if known != before.get(name)
        )
        if self._left_out:
            warn(
                f"the policy writes what no array holds, which batches leave out: {sorted(map(str, self._left_out))}"
            )
        return [([key] if isinstance(key, str) else list(key), value) for key, value in found]

    def _first_call(
        self, inputs: dict[Key, torch.Tensor], action_keys: list[Key]
    ) -> list[tuple[Key, torch.Tensor]]:
        """What the policy writes, from a call with ``inputs``, by which it is known how to call
        it.
        """
        if isinstance(self.policy, Predictor):
            return self._bind_predictor(inputs, action_keys)
        if calls_with_tensordict(self.policy, self.conditions.trust):
            return self._bind_tensordict(inputs, action_keys)
        with self._forked():
            return self._bind_tensors(inputs, action_keys)

    def act(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs for one step, in the order that :meth:`bind` gave.

        Args:
            inputs: the observations, which rows begin an episode where :attr:`wants_first`, and
                their places where :attr:`wants_places`.
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
        """Copies ``weights`` into the module; none are given for the user's own module, which
        already has them.
        """
        given, tensors = dict(weights.items()), self._tensors()
        beside = given.pop(BESIDE, None)
        with torch.no_grad():
            for name, value in given.items():
                tensors[name].copy_(value)
        if beside is not None and not torch.equal(beside, self._beside):
            load_attributes(attributes_in(beside), self.policy, self.module)  # type: ignore[arg-type]
            self._beside = beside.clone()

    def check(self, weights: TensorDictBase) -> None:
        """Checks that :meth:`load` would take these weights.

        Raises:
            ValueError: they belong to another policy.
        """
        given = dict(weights.items())
        given.pop(BESIDE, None)
        if given or self.conditions.threads:
            check_weights(self._tensors(), given)

    def weights(self) -> dict[str, torch.Tensor]:
        """The module's tensors by name, in element types that the engine has, and room for its
        state beside them.
        """
        own = widened(self._tensors())
        return {**own, BESIDE: self._beside} if self.conditions.room else own

    def state(self, with_generator: bool) -> bytes:
        """What the policy remembers of each row. ``with_generator``: the state of torch's
        generators, too.
        """
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
            raise ValueError(
                "the state is that of another policy: one of the two remembers nothing"
            )
        if saved["memory"] is not None:
            self.memory.set_state(saved["memory"])
        if "generator" in saved:
            torch.set_rng_state(saved["generator"])
        if "cuda" in saved:
            torch.cuda.set_rng_state(saved["cuda"], self.conditions.device)

    def _tensors(self) -> dict[str, torch.Tensor]:
        # Looked up at each call, since the user may replace tensors of the module.
        return {} if self.module is None else tensors_of(self.module)

    def _written_buffers(self) -> dict[str, tuple[int, int]]:
        """What tells of each buffer of the user's own module whether it was written."""
        if self.conditions.source is None:
            return {}
        return {
            name: (id(buffer), 0 if buffer.is_inference() else buffer._version)
            for name, buffer in self.conditions.source.named_buffers()
        }

    def _not_bound(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        raise RuntimeError("a policy has to see an environment's observations before it acts")

    def _bind_tensordict(
        self, inputs: dict[Key, torch.Tensor], action_keys: list[Key]
    ) -> list[tuple[Key, torch.Tensor]]:
        self.stepwise = recurrent.stepwise()
        self.call = self._whole_output
        memory, found = recurrent.find(
            self.policy, inputs, self._probe, batch=self.batch, prime=self.conditions.register
        )
        left = self._left_alone if memory is None else self._left_alone - memory.given.keys()
        outputs = {
            key: value
            for key, value in found.items()
            if key not in left and not recurrent.is_private(key)
        }
        missing = [key for key in action_keys if key not in outputs]
        if missing:
            raise KeyError(
                f"the policy writes {list(outputs)}, but no {public(missing[0])!r}, which the environment takes"
            )
        self.out_keys = [*action_keys, *(key for key in outputs if key not in action_keys)]
        self.call = self._call_tensordict
        self.wants_first = memory is not None
        self.wants_places = self.wants_first and self.conditions.served
        if memory is not None:
            self.memory, self.keys, self.call = memory, memory.keys, self._call_remembering
        return [(key, outputs[key]) for key in self.out_keys]

    def _probe(self, inputs: dict[Key, torch.Tensor]) -> TensorDictBase:
        self.keys = list(inputs)
        with self._forked(), self.stepwise:
            # Of a policy that is being bound, a call gives everything that it returns.
            whole: Any = self.act(*inputs.values())[0]
            return whole

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
        held = (
            [] if self._shown is None else [key for key in self._shown.examples if key in self.keys]
        )
        for key in held:
            if key in (getattr(self.policy, "out_keys", None) or ()) or (
                self._shown is not None and not self._shown.is_left(returned, key)
            ):
                raise TypeError(
                    f"the policy writes {key!r}, which the environment observes and no array holds: expected that it reads it only"
                )
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

    def _cut(self, returned: TensorDictBase, rows: torch.Size) -> TensorDictBase:
        """The first ``rows`` of what a call has returned."""
        return returned if rows == self.batch else returned[: rows[0]]

    def _evaluate(self, inputs: Sequence[torch.Tensor]) -> TensorDictBase:
        given = TensorDict(
            dict(zip(self.keys, inputs)), batch_size=self.batch, device=self.conditions.named
        )
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
            outputs = answers.named(returned, self._action_keys)
            if outputs is not None:
                returned = given.update(
                    {
                        key: answers.tensor_of(key, value, self.batch)
                        for key, value in outputs.items()
                    }
                )
        if not isinstance(returned, TensorDictBase):
            raise TypeError(
                f"a policy that is given a TensorDict returns one, got {type(returned).__name__}; to be called with tensors, "
                "name its parameters after the observations"
            )
        return returned if self._shown is None else self._shown.parted(returned)

    def _record(self, inputs: list[torch.Tensor], warmup: int) -> None:
        """Records what the policy computes of ``inputs``, the observations, as a CUDA graph."""
        if (
            isinstance(self.policy, Predictor)
            or self._convert is not None
            or self._shown is not None
        ):
            raise TypeError(
                "cudagraph_policy records what a policy computes on the GPU, expected one that takes and returns tensors alone"
            )
        rows = self.batch
        if self.call == self._call_tensors:
            compute: Callable[..., tuple[torch.Tensor, ...]] = self._computed
        else:
            if self.wants_first:
                inputs = list({**dict(zip(self.keys, inputs)), **self.memory.given}.values())
            compute = self._computed_leaves
        self._graph = CudaGraph(
            compute, self._filled(inputs), self.conditions.device, warmup, self.module
        )
        self.batch = rows

    def _computed(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self._tensors_of(self._answer(inputs))

    def _computed_leaves(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with self.stepwise:
            returned = self._evaluate(inputs)
        leaves = dict(returned.items(include_nested=True, leaves_only=True))
        self._recorded = list(leaves)
        return tuple(leaves.values())

    def _replayed(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The outputs of the graph for these inputs. It is recorded anew first where the module has
        changed.
        """
        graph: Any = self._graph
        if not graph.is_current():
            with self._forked():
                graph.record()
        outputs: tuple[torch.Tensor, ...] = graph(*inputs)
        return outputs

    def _returned(self, inputs: Sequence[torch.Tensor]) -> TensorDictBase:
        """What a policy that takes a TensorDict returns for these inputs."""
        if self._graph is None:
            return self._evaluate(inputs)
        # The next call overwrites what a policy with a state has to remember.
        values = (
            [value.clone() for value in self._replayed(inputs)]
            if self.wants_first
            else self._replayed(inputs)
        )
        return TensorDict(dict(zip(self._recorded, values, strict=True)), batch_size=self.batch)

    def _call_tensordict(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = self.batch
        returned = self._cut(self._returned(self._filled(inputs)), rows)
        return tuple(returned.get(key) for key in self.out_keys)

    def _call_remembering(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        count = len(inputs) - self.wants_first - self.wants_places
        rows = self.batch
        with self.stepwise:
            returned = self._returned(
                self._filled(self.memory.recall(inputs[:count], *inputs[count:]))
            )
        returned = self._cut(returned, rows)
        given = self.memory.given
        self.memory.keep(returned)
        return tuple(returned.get(key, given.get(key)) for key in self.out_keys)

    def _bind_tensors(
        self, inputs: dict[Key, torch.Tensor], action_keys: list[Key]
    ) -> list[tuple[Key, torch.Tensor]]:
        self.arguments = arguments_of(self.policy, self.keys)
        self.call = self._call_tensors
        self._convert = conversion(self.policy)
        self._named: list[Key] | None = None
        rows = self.batch
        given = list(self._filled(list(inputs.values())))
        try:
            answer = self._answer(given)
        except (TypeError, AttributeError) as error:
            answer = self._answer_to_arrays(given, error)
        outputs = answers.named(answer, action_keys)
        if outputs is not None:
            self._named = [*action_keys, *(key for key in outputs if key not in action_keys)]
            return list(zip(self._named, self._first(rows, self._tensors_of(answer))))
        count = len(answer) if isinstance(answer, tuple) else 1
        if count < len(action_keys):
            raise TypeError(
                f"the policy returns {count} tensors, expected one for each of {list(map(public, action_keys))}"
            )
        self._ordered = answers.ordered(self.policy, action_keys, count, self.keys)
        return list(zip(self._ordered, self._first(rows, self._tensors_of(answer))))

    def _answer_to_arrays(self, given: list[torch.Tensor], error: Exception) -> Any:
        """What a policy answers that has failed with ``error``: a function that says nothing of
        what it takes may be written for NumPy arrays.

        Raises:
            Exception: the policy fails with these, too.
        """
        if any(isinstance(place, dict) for place in self.arguments):
            error.add_note(
                f"the policy was given observations as a dictionary, of {self.keys}: parameters of their names take them one by one"
            )
        if self._convert is not None or isinstance(self.policy, torch.nn.Module):
            raise error
        self._convert = to_numpy
        try:
            return self._answer(given)
        except Exception as second:
            error.add_note(
                f"with NumPy arrays in the place of tensors: {type(second).__name__}: {second}"
            )
            raise error from None

    def _call_tensors(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = self.batch
        filled = self._filled(given)
        return self._first(
            rows, self._computed(*filled) if self._graph is None else self._replayed(filled)
        )

    def _first(
        self, rows: torch.Size, values: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        """The first ``rows`` of what a call has returned."""
        # Asked once, not for each value: a quick module takes no longer than some hundred of these
        # lookups.
        return values if rows == self.batch else tuple(value[: rows[0]] for value in values)

    def _answer(self, inputs: Sequence[Any]) -> Any:
        """What the policy returns for these inputs."""
        if self._shown is not None:
            shown = self._shown
            inputs = [
                shown.value(key, one) if key in shown.examples else one
                for key, one in zip(self.keys, inputs, strict=True)
            ]
        if self._convert is not None:
            inputs = [
                self._convert(one) if isinstance(one, torch.Tensor) else one for one in inputs
            ]
        return self.policy(*[placed(place, inputs) for place in self.arguments])

    def _tensors_of(self, answer: Any) -> tuple[torch.Tensor, ...]:
        """The outputs in ``answer``, in the order that :meth:`bind` gave.

        Raises:
            KeyError: it has other names than when the policy was first called.
            TypeError: an output is no array.
        """
        if self._named is not None:
            outputs = answers.named(answer, self._action_keys)
            if outputs is None or outputs.keys() != set(self._named):
                raise KeyError(
                    f"expected the outputs {self._named}, as when it was first called, got {list(outputs or ())}"
                )
            return tuple(answers.tensor_of(key, outputs[key], self.batch) for key in self._named)
        values = answer if isinstance(answer, tuple) else (answer,)
        if all(isinstance(value, torch.Tensor) for value in values) or len(values) != len(
            self._ordered
        ):
            return values
        return tuple(
            answers.tensor_of(key, value, self.batch) for key, value in zip(self._ordered, values)
        )

    def _bind_predictor(
        self, inputs: dict[Key, torch.Tensor], action_keys: list[Key]
    ) -> list[tuple[Key, torch.Tensor]]:
        if len(action_keys) != 1:
            raise TypeError(
                f"a model's predict returns one action, the environment takes {list(map(public, action_keys))}"
            )
        self._named, self._ordered, self._state = None, list(action_keys), None
        self.call = self._call_predictor
        with self._forked():
            (actions,) = self._call_predictor(*inputs.values())
        if self._state is not None:
            if self.conditions.served:
                raise TypeError(
                    "the model's predict returns a state for the rows of one call, and a served policy is called with any rows"
                )
            self.wants_first, self._state = True, None
        return [(action_keys[0], actions)]

    def _call_predictor(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        count, rows = len(self.keys), self.batch
        arrays = [to_numpy(one) for one in self._filled(inputs[:count])]
        first = to_numpy(inputs[count]) if len(inputs) > count else None
        predictor: Any = self.policy
        given = predictor.given(self.keys, arrays, self.batch)
        deterministic = self.conditions.exploration_type != "random"
        actions, self._state = predictor(given, self._state, first, deterministic)
        return (self._cut(answers.tensor_of(self._ordered[0], actions, self.batch), rows),)


def _described(inputs: dict[Key, torch.Tensor]) -> str:
    """Names, element types and shapes of ``inputs``, for a message."""
    return ", ".join(
        f"{public(key)!r}: {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
        if isinstance(value, torch.Tensor)
        else repr(public(key))
        for key, value in inputs.items()
    )


def copied_module(module: torch.nn.Module) -> torch.nn.Module:
    """A deep copy of ``module``. Functions that its parts go around have the same code, and copies
    of what they close over: a module of tensordict would pickle them, which makes a program's own
    classes anew, in the copy and in the program. Other functions among its attributes refer to the
    parts of the copy, where they refer to those of ``module``.
    """
    with _Detaching(module):
        return _copied_module(module)


class _Detaching(TorchFunctionMode):
    """A context in which deep copies have results of computations, which torch does not copy,
    without how these were computed: modules may keep the last ones. What is a part of a weight is
    none of these.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._weights = {
            tensor.untyped_storage()._cdata for tensor in (*module.parameters(), *module.buffers())
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (
            func is torch.Tensor.__deepcopy__
            and not args[0].is_leaf
            and args[0].untyped_storage()._cdata not in self._weights
        ):
            return args[0].detach().clone()
        return func(*args, **(kwargs or {}))


def _copied_module(module: torch.nn.Module) -> torch.nn.Module:
    memo: dict[int, Any] = {}
    over = _Over(module)
    memo.update({id(function): copied for function, copied in over.functions})
    # Those within come last, and are copied first.
    for part in reversed(list(module.modules())):
        function = part.__dict__.get("module")
        if inspect.ismethod(function) or inspect.isfunction(function):
            memo[id(part)] = copied = type(part).__new__(type(part))
            attributes = {
                name: copy.deepcopy(value, memo)
                for name, value in part.__dict__.items()
                if name != "module"
            }
            if inspect.ismethod(function):
                function = MethodType(function.__func__, copy.deepcopy(function.__self__, memo))
            else:
                function = _copied_function(function, memo)
            copied.__dict__.update(attributes, module=function)
    whole = copy.deepcopy(module, memo)
    over.fill(memo)
    for weights in module.parameters():
        # Which torch leaves out.
        if vars(weights):
            vars(memo[id(weights)]).update(copy.deepcopy(vars(weights), memo))
    return whole


class _Over:
    """The functions among attributes of ``module`` that refer to parts or weights of it, in their
    closures or defaults, each with a copy that refers to nothing yet. What else they refer to, the
    copies share.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        own = (*module.modules(), *module.parameters(), *module.buffers())
        self._own = Named(("own", one) for one in own)
        found = {
            id(one): one
            for part in module.modules()
            for one in led_to(vars(part), self._own)
            if isinstance(one, FunctionType)
        }
        self.functions = [(one, self._blank(one)) for one in found.values() if self._refers(one)]

    def _refers(self, value: Any) -> bool:
        """Whether ``value`` refers to the module."""
        return any(self._own.name_of(one) is not None for one in led_to(value, self._own))

    def _blank(self, function: FunctionType) -> FunctionType:
        cells = [
            CellType() if self._refers(contents(cell)) else cell
            for cell in function.__closure__ or ()
        ]
        return _named_as(function, None, tuple(cells))

    def fill(self, memo: dict[int, Any]) -> None:
        """Lets the copies refer to what ``memo`` has copies of."""

        def moved(value: Any) -> Any:
            return copy.deepcopy(value, memo) if self._refers(value) else value

        for function, copied in self.functions:
            for cell, own in zip(function.__closure__ or (), copied.__closure__ or ()):
                if cell is not own:
                    own.cell_contents = moved(cell.cell_contents)
            copied.__defaults__ = function.__defaults__ and tuple(map(moved, function.__defaults__))
            copied.__kwdefaults__ = function.__kwdefaults__ and {
                name: moved(value) for name, value in function.__kwdefaults__.items()
            }


def _copied_function(function: FunctionType, memo: dict[int, Any]) -> FunctionType:
    """``function`` with copies of its defaults and of what it closes over, where copies can be
    made.
    """
    # A copy that fails leaves half of one in its memo.
    tried = dict(memo)
    try:
        cells = tuple(_copied_cell(cell, tried) for cell in function.__closure__ or ())
        defaults, named = copy.deepcopy((function.__defaults__, function.__kwdefaults__), tried)
    except Exception:
        return function
    memo.update(tried)
    copied = _named_as(function, defaults, cells)
    copied.__kwdefaults__ = named
    return copied


def _named_as(
    function: FunctionType, defaults: tuple[Any, ...] | None, cells: tuple[CellType, ...]
) -> FunctionType:
    """``function`` with other defaults and another closure."""
    code, scope = function.__code__, function.__globals__
    copied = FunctionType(code, scope, function.__name__, defaults, cells)
    for name in functools.WRAPPER_ASSIGNMENTS:
        setattr(copied, name, getattr(function, name))
    copied.__dict__.update(function.__dict__)
    return copied


def _copied_cell(cell: CellType, memo: dict[int, Any]) -> CellType:
    if id(cell) not in memo:
        held = contents(cell)
        # It may not be filled yet.
        is_empty = held is MISSING
        memo[id(cell)] = CellType() if is_empty else CellType(copy.deepcopy(held, memo))
    return memo[id(cell)]
