"""Policies whose parts are all of classes that windrow knows, so that it is known what their call
reads without a look at it.

A class is on the list if its call reads nothing but weights, modes, the order and identity of
parts, and attributes with plain values, and if it writes nothing that a later call reads. The tests
run each one and hold it to that. Whether it still has the code of its library is for
:mod:`windrow.policies.lower.origin` to say.
"""

from __future__ import annotations

import collections
import enum
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize

from windrow import _fence
from windrow._windrow import Readings
from windrow.policies.lower import origin
from windrow.policies.lower.origin import LIBRARIES, NotListed, global_hooks
from windrow.policies.lower.plain import LAYERS
from windrow.policies.places import Places

_Name = tuple[str, str]


def _names(table: dict[str, str]) -> set[_Name]:
    return {(module, name) for module, names in table.items() for name in names.split()}


_TORCHRL = f"{_fence.LIBRARY}.modules.tensordict_module"
_BASELINES = "stable_baselines3"
#: Classes that the trace of a call reads, by their modules.
TRACED = _names(
    {
        "torch.nn.modules.linear": "NonDynamicallyQuantizableLinear Bilinear",
        "torch.nn.modules.container": "ModuleDict",
        "torch.nn.modules.activation": "GLU LogSoftmax MultiheadAttention PReLU SELU Softmax "
        "Softmin Softsign Tanhshrink Threshold",
        "torch.nn.modules.batchnorm": "BatchNorm1d",
        "torch.nn.modules.flatten": "Flatten Unflatten",
        "torch.nn.modules.sparse": "Embedding",
        "torch.nn.modules.transformer": "TransformerEncoder TransformerEncoderLayer",
        "torch.nn.modules.normalization": "GroupNorm",
        "torch.nn.modules.conv": "Conv1d Conv2d",
        "torch.nn.modules.rnn": "GRU GRUCell LSTM LSTMCell",
        "torch.nn.utils.parametrize": "ParametrizationList",
        "torch.nn.utils.parametrizations": "_SpectralNorm _WeightNorm",
        "torch.distributions.categorical": "Categorical",
        "torch.distributions.normal": "Normal",
        "torch.distributions.independent": "Independent",
        "torch.distributions.beta": "Beta",
        "torch.distributions.dirichlet": "Dirichlet",
        "tensordict.nn.probabilistic": "ProbabilisticTensorDictModule "
        "ProbabilisticTensorDictSequential",
        "tensordict.nn.distributions.continuous": "AddStateIndependentNormalScale Delta",
        "tensordict.nn.distributions.composite": "CompositeDistribution",
        f"{_fence.LIBRARY}.modules.models.models": "ConvNet",
        f"{_fence.LIBRARY}.modules.models.utils": "SquashDims",
        f"{_TORCHRL}.actors": "Actor ProbabilisticActor QValueActor QValueModule ValueOperator "
        "ActorCriticOperator ActorCriticWrapper ActorValueOperator TanhModule",
        f"{_TORCHRL}.common": "SafeModule",
        f"{_TORCHRL}.sequence": "SafeSequential",
        f"{_TORCHRL}.probabilistic": "SafeProbabilisticModule "
        "SafeProbabilisticTensorDictSequential",
        f"{_TORCHRL}.exploration": "EGreedyModule AdditiveGaussianModule "
        "OrnsteinUhlenbeckProcessModule _OrnsteinUhlenbeckProcess",
        f"{_TORCHRL}.rnn": "LSTMModule GRUModule",
        f"{_fence.LIBRARY}.modules.distributions.continuous": "TanhNormal TanhDelta Delta IndependentNormal "
        "TruncatedNormal",
        f"{_fence.LIBRARY}.modules.distributions.discrete": "OneHotCategorical MaskedCategorical",
        f"{_fence.LIBRARY}.data.tensor_specs": "Composite Bounded BoundedContinuous Unbounded "
        "UnboundedContinuous OneHot Categorical ContinuousBox CategoricalBox",
        f"{_BASELINES}.common.policies": "ActorCriticPolicy MultiInputActorCriticPolicy "
        "ContinuousCritic",
        f"{_BASELINES}.common.torch_layers": "FlattenExtractor CombinedExtractor MlpExtractor",
        f"{_BASELINES}.common.distributions": "CategoricalDistribution DiagGaussianDistribution "
        "SquashedDiagGaussianDistribution",
        f"{_BASELINES}.dqn.policies": "DQNPolicy QNetwork",
        f"{_BASELINES}.sac.policies": "SACPolicy Actor",
        f"{_BASELINES}.td3.policies": "TD3Policy Actor",
        "gymnasium.spaces.box": "Box",
        "gymnasium.spaces.discrete": "Discrete",
        "gymnasium.spaces.dict": "Dict",
        "windrow.policies.predictors": "_Network _Called _OfDictionaries",
        "windrow.policies.onnx.reading": "OfArray OfEntries _Program _Port",
    }
)
#: Attributes that a call does not read, or writes before it reads them, of a class and those below
#: it.
UNREAD: dict[_Name, str] = {
    ("torch.nn.modules.rnn", "RNNBase"): "_flat_weight_refs",
    (f"{_fence.LIBRARY}.modules.models.models", "MLP"): "activation_class norm_class layer_class "
    "activation_kwargs norm_kwargs layer_kwargs _activation_kwargs_iter _norm_kwargs_iter "
    "_layer_kwargs_iter",
    (
        f"{_fence.LIBRARY}.modules.models.models",
        "ConvNet",
    ): "activation_class norm_class aggregator_class "
    "activation_kwargs norm_kwargs aggregator_kwargs _activation_kwargs_iter _norm_kwargs_iter",
    (f"{_fence.LIBRARY}.data.tensor_specs", "TensorSpec"): "_encode_memo_dict encode",
    (f"{_BASELINES}.common.policies", "BaseModel"): "optimizer optimizer_class optimizer_kwargs "
    "features_extractor_class features_extractor_kwargs activation_fn net_args actor_kwargs "
    "critic_kwargs lr_schedule",
    (f"{_BASELINES}.common.distributions", "Distribution"): "distribution gaussian_actions",
    ("gymnasium.spaces.space", "Space"): "_np_random low_repr high_repr",
}
#: Attributes that may be tensors or arrays which are no weights, or hold such.
TENSORS: dict[_Name, str] = {
    ("tensordict.nn.probabilistic", "ProbabilisticTensorDictModule"): "distribution_kwargs",
    (f"{_fence.LIBRARY}.data.tensor_specs", "ContinuousBox"): "_low _high",
    (f"{_TORCHRL}.actors", "TanhModule"): "non_trivial",
    ("gymnasium.spaces.space", "Space"): "low high bounded_below bounded_above",
    ("windrow.policies.predictors", "_Network"): "low high",
    ("windrow.policies.onnx.reading", "_Program"): "constants steps",
}
#: Hooks that libraries register themselves, and that do no more than their modules.
HOOKS = {(f"{_TORCHRL}.common", "_forward_hook_safe_action")}
#: The largest array that is compared by its bytes.
LARGEST = 1 << 16


def _training(part: nn.Module) -> str | None:
    return "is in training mode: call eval()" if part.training else None


def _dropping(part: Any) -> str | None:
    return _training(part) if part.dropout else None


#: What parts of a class may not be, and why, by their class and those above it.
REFUSED: dict[_Name, Callable[[Any], str | None]] = {
    ("torch.nn.modules.dropout", "_DropoutNd"): _training,
    ("torch.nn.modules.batchnorm", "_NormBase"): _training,
    ("torch.nn.utils.parametrizations", "_SpectralNorm"): _training,
    ("torch.nn.modules.activation", "MultiheadAttention"): _dropping,
    ("torch.nn.modules.rnn", "RNNBase"): _dropping,
    ("torch.nn.modules.sparse", "Embedding"): lambda part: (
        None if part.max_norm is None else "scales its weights when it is called"
    ),
    ("tensordict.nn.probabilistic", "ProbabilisticTensorDictModule"): lambda part: (
        "keeps its distribution from call to call" if part.cache_dist else None
    ),
    (f"{_TORCHRL}.exploration", "EGreedyModule"): lambda part: (
        None if part.action_mask_key is None else "writes its mask into its spec"
    ),
}


class Listed:
    """Proof that a call of a policy reads nothing but weights, modes and what is compared here.

    Parts, their order, modes and attributes are compared by identity, and so are the tensors in
    their dictionaries, with their types and shapes: a weight that is replaced is seen. The numbers
    in weights are not looked at, since the engine reads them anew.

    Attributes:
        plain: :func:`~windrow.policies.lower.plain.plain_graph` can write the graph down, as far as
            classes tell.

    Raises:
        NotListed: a part is no instance of a class on the list, or is more than that.
    """

    def __init__(self, policy: nn.Module) -> None:
        self.plain = True
        self._met: set[int] = set()
        self._kept: list[object] = []
        self._weights: dict[int, torch.Tensor] = {}
        #: Classes and functions of libraries.
        self._known: dict[Any, Readings] = {}
        self._places = Places()
        for held in (*global_hooks(), origin.own_dict(torch.Tensor)):
            self._places.size(held)
        self._sets: list[tuple[Any, Any]] = []
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._arrays: list[tuple[Any, bytes]] = []
        if any(map(len, global_hooks())):
            raise NotListed("hooks are registered for all modules")
        parts = list(policy.named_modules())
        for _, part in parts:
            for tensors in (part._parameters, part._buffers):
                self._weights.update((id(one), one) for one in tensors.values() if one is not None)
        for name, part in parts:
            self._object(f"policy.{name}" if name else "policy", part)
        if any(name[0] == parametrize.__name__ for name in map(_name, self._known)):
            if parametrize._cache_enabled:
                raise NotListed("parametrizations are cached")
            self._places.entry(vars(parametrize), "_cache_enabled")
        full = [one for one in self._weights.values() if one.numel()]
        if len({(one.untyped_storage()._cdata, one.storage_offset()) for one in full}) < len(full):
            # A trace knows them by their places in memory.
            raise NotListed("two of its weights are the same numbers")
        self._readings = self._places.readings(
            tensors=[(one, one.dtype, one.shape) for one in self._weights.values()],
            parts=list(self._known.values()),
        )

    def is_same(self) -> bool:
        """Whether all that was looked at is what it was. If not, it may still be listed."""
        try:
            return (
                self._readings.is_same()
                and all(held == items for held, items in self._sets)
                and all(tensor._version == version for tensor, version in self._versions)
                and all(array.tobytes() == held for array, held in self._arrays)
            )
        except RuntimeError:
            # Another thread changes a dictionary at this moment.
            return False

    # What is reached

    def _object(self, where: str, value: Any) -> None:
        """An instance of a class on the list, with its attributes."""
        if id(value) in self._met:
            return
        self._met.add(id(value))
        self._kept.append(value)
        self._places.kind(value)
        kind, is_part = type(value), isinstance(value, nn.Module)
        self._kind(where, kind)
        self.plain = self.plain and (not is_part or _name(kind) in LAYERS)
        bases = [_name(base) for base in kind.__mro__]
        for refused in (REFUSED.get(base) for base in bases):
            if refused is not None and (reason := refused(value)) is not None:
                raise NotListed(f"{where}, a {kind.__name__}, {reason}")
        unread, tensors = (
            {name for base in bases for name in table.get(base, "").split()}
            for table in (UNREAD, TENSORS)
        )
        held = vars(value)
        self._places.size(held)
        for name, attribute in held.items():
            if name in unread:
                continue
            if is_part and name.startswith("_load_state_dict"):
                # No call runs these.
                continue
            if is_part and name.endswith(("_hooks", "_hooks_with_kwargs", "_always_called")):
                self._hooks(f"{where}.{name}", attribute)
            elif _is_shadow(kind, name):
                raise NotListed(f"{where} has {name} of its own in place of its class's")
            elif not is_part or name not in ("_parameters", "_buffers", "_modules"):
                self._value(f"{where}.{name}", attribute, are_tensors=name in tensors)
            else:
                self._parts(where, attribute)
            self._places.note(held, name, attribute)

    def _hooks(self, where: str, hooks: Any) -> None:
        if hooks is None:
            return
        self._places.whole(hooks)
        for hook in hooks.values():
            if _name(hook) not in HOOKS:
                raise NotListed(f"{where}: there are hooks")
            self._function(where, hook)

    def _parts(self, where: str, held: dict[str, Any]) -> None:
        """The parameters, buffers or modules in a part."""
        self._places.whole(held)
        for name, one in held.items():
            if isinstance(one, nn.Module):
                self._object(f"{where}.{name}", one)
            elif one is not None and (
                type(one) not in (torch.Tensor, nn.Parameter) or id(one) not in self._weights
            ):
                raise NotListed(f"{where}.{name} is no tensor, or none of the policy's own")

    def _value(self, where: str, value: Any, *, are_tensors: bool = False) -> None:
        """What an attribute holds."""
        # Classes below plain values have attributes.
        if isinstance(value, origin.FIXED) and (
            origin.root(type(value).__module__) in ("builtins", "numpy", "torch")
        ):
            return
        if isinstance(value, torch.Tensor):
            self._tensor(where, value, are_tensors)
        elif isinstance(value, np.ndarray):
            self._array(where, value, are_tensors)
        elif isinstance(value, type):
            self._kind(where, value)
        elif isinstance(value, enum.Enum) and origin.root(type(value).__module__) in LIBRARIES:
            self._value(where, value.value)
        elif type(value) in (list, tuple, dict, collections.OrderedDict, set, frozenset):
            self._container(where, value, are_tensors)
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            self._kind(where, type(value))
            self._container(where, value, are_tensors)
        elif isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
            self._function(where, value)
        else:
            self._object(where, value)

    def _container(self, where: str, value: Any, are_tensors: bool) -> None:
        if id(value) in self._met:
            return
        self._met.add(id(value))
        self._kept.append(value)
        if isinstance(value, (set, frozenset)):
            self._sets.append((value, set(value)))
        elif not isinstance(value, tuple):
            self._places.whole(value)
        if isinstance(value, (list, tuple)):
            inner: Any = enumerate(value)
        else:
            inner = value.items() if isinstance(value, dict) else ()
            for key in value:
                self._value(f"{where}'s key {key!r}", key)
        for key, one in inner:
            self._value(f"{where}[{key!r}]", one, are_tensors=are_tensors)

    def _tensor(self, where: str, tensor: torch.Tensor, is_known: bool) -> None:
        if id(tensor) in self._weights:
            return
        if not is_known or type(tensor) is not torch.Tensor or tensor.is_inference():
            raise NotListed(f"{where} is a tensor that is no parameter or buffer")
        self._kept.append(tensor)
        self._versions.append((tensor, tensor._version))

    def _array(self, where: str, array: Any, is_known: bool) -> None:
        if not is_known or type(array) is not np.ndarray or array.nbytes > LARGEST:
            raise NotListed(f"{where} is an array")
        self._arrays.append((array, array.tobytes()))

    def _function(self, where: str, function: Any) -> None:
        """A function of a library, or a method of an object on the list."""
        if isinstance(function, types.MethodType):
            self._object(where, function.__self__)
            function = function.__func__
        if not origin.is_theirs(function):
            raise NotListed(f"{where} is {getattr(function, '__qualname__', 'a function')}()")
        if isinstance(function, types.FunctionType) and function not in self._known:
            self._known[function] = origin.known(function)

    def _kind(self, where: str, kind: type) -> None:
        if kind in self._known:
            return
        if not is_listed(kind):
            name = f"{kind.__module__}.{kind.__qualname__}"
            raise NotListed(f"{where} is an instance of {name}, no class that windrow knows")
        for base in kind.__mro__:
            if base not in self._known and base is not object:
                self._known[base] = origin.known(base)


def is_listed(kind: type) -> bool:
    """Whether ``kind`` is the class of its name on the list."""
    name = _name(kind)
    if name in LAYERS or name in TRACED:
        return getattr(sys.modules.get(name[0]), name[1], None) is kind
    # Those of layers with parametrizations, which are made for each.
    base = kind.__base__
    is_parametrized = base is not None and name == (
        parametrize.__name__,
        f"Parametrized{base.__name__}",
    )
    return is_parametrized and kind.__bases__ == (base,) and is_listed(base or object)


def _name(kind: Any) -> _Name:
    return getattr(kind, "__module__", ""), getattr(kind, "__qualname__", "")


def _is_shadow(kind: type, name: str) -> bool:
    """Whether an attribute of an instance hides a function of its class."""
    found = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
    return callable(found) or isinstance(found, (staticmethod, classmethod))
