"""Networks that windrow evaluates itself, read out of modules of PyTorch and tensordict.

:func:`lower` has two steps. :func:`_read` turns a policy into a :class:`Network`, or raises :class:`NotLowerable`; no other
function knows modules. Then the network has to give the same numbers as the policy for random inputs. Otherwise torch
evaluates the policy.
"""

from __future__ import annotations

import copy
import math
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    TensorDictModule,
    TensorDictSequential,
    set_interaction_type,
)
from torch import nn

from windrow import _weights
from windrow._windrow import evaluate_network

#: Rows of random inputs on which policy and network are compared.
ROWS = 16
#: Relative and absolute difference allowed between both: networks add in another order and approximate tanh and exp.
TOLERANCE = (1e-4, 1e-5)
#: Classes that are known by their names, wherever in their package they are defined.
KNOWN = {
    "torch": {"Categorical", "Normal", "OneHotCategorical"},
    "tensordict": {"AddStateIndependentNormalScale", "NormalParamExtractor", "OneHotCategorical"},
    "torchrl": {"IndependentNormal", "MLP", "NormalParamExtractor", "OneHotCategorical", "SafeModule", "TanhNormal"},
}
#: Head of the engine's networks for each known distribution.
HEADS = {
    "Categorical": "Categorical",
    "OneHotCategorical": "Categorical",
    "Normal": "Normal",
    "IndependentNormal": "Normal",
    "TanhNormal": "TanhNormal",
}
#: The least deviation of networks, and what they add to a softplus: the defaults of tensordict.
LEAST_SCALE, LEAST_SOFTPLUS = 1e-4, 0.01


class NotLowerable(Exception):
    """Why torch has to evaluate a policy."""


@dataclass
class Network:
    """A network as the engine describes it; the fields are those of its description, but for the weights.

    Attributes:
        in_keys: the observations that it reads.
        layers: name and numbers of each layer.
        names: each parameter's name in the network and in the policy.
        head: what turns outputs into an action.
        scale: ``"exp"`` or ``"softplus"``, which turns the second half of the outputs into deviations; None without that half.
        bias: what the softplus adds to its input, as its value at 0.
        least: the least deviation that comes from a parameter.
        return_log_prob: write the log-probability of actions.
        return_params: write the parameters of the distribution.
        bounds: lower and upper bounds of a squashed distribution.
    """

    in_keys: list[list[str]] = field(default_factory=lambda: [["observation"]])
    layers: list[tuple[str, list[float]]] = field(default_factory=list)
    names: list[tuple[str, str]] = field(default_factory=list)
    head: str = "Deterministic"
    scale: str | None = None
    bias: float = 0.0
    least: float = 0.0
    return_log_prob: bool = False
    return_params: bool = False
    bounds: tuple[list[float], list[float]] | None = None

    @property
    def widths(self) -> list[tuple[int, int]]:
        """Numbers that each layer of a known size reads and writes."""
        sized = [(name, numbers) for name, numbers in self.layers if name in ("Linear", "LayerNorm")]
        return [(int(numbers[0]), int(numbers[1] if name == "Linear" else numbers[0])) for name, numbers in sized]

    @property
    def has_scales(self) -> bool:
        """Whether the layers end with what makes deviations."""
        return self.scale is not None or any(own == "log_std" for own, _ in self.names)

    @property
    def actions(self) -> int:
        """Numbers of an action, or options of a choice."""
        return self.widths[-1][1] // (1 if self.scale is None else 2)


def lower(policy: Any, exploration_type: str, *, strict: bool = False) -> dict[str, Any] | None:
    """A description of ``policy`` for the engine; None if torch has to evaluate it.

    Args:
        exploration_type: name of the exploration type that will hold: the actions that it chooses are compared too.
        strict: raise an error instead of returning None.

    Raises:
        ValueError: the policy cannot be lowered, although ``strict``.
    """
    try:
        network = _read(policy)
        weights = _weights.tensors_of(policy)
        _check_weights(weights, network)
        # Samples are compared by their densities.
        guess = "deterministic" if exploration_type == "random" else exploration_type
        _compare(policy, network, weights, guess)
        return {**asdict(network), "weights": weights}
    except NotLowerable as reason:
        if strict:
            raise ValueError(f'policy_backend="native": {reason}') from None
        return None


def _read(policy: Any) -> Network:
    """The network in ``policy``: every part of it is one that is known, exactly.

    Raises:
        NotLowerable: a part is not known.
    """
    if not isinstance(policy, nn.Module):
        raise NotLowerable(f"expected a module, got {type(policy).__name__}")
    for name, module in policy.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            raise NotLowerable(f"{name or 'the policy'} has hooks")
    network = Network()
    if isinstance(policy, TensorDictSequential):
        parts = list(policy.module)
        if len(parts) != 2 or not isinstance(parts[1], ProbabilisticTensorDictModule):
            raise NotLowerable("expected a module, and one that draws an action from its outputs")
        _set_head(network, _add_declared(network, parts[0], "module.0.module."), parts[1])
    elif type(policy) is TensorDictModule or _is(policy, "SafeModule"):
        out_keys = _add_declared(network, policy, "module.")
        if out_keys != ["action"]:
            raise NotLowerable(f"the module writes {out_keys}, expected 'action' alone")
    else:
        _add(network, policy, "")
    if not network.widths:
        raise NotLowerable("a network without a layer of a known size")
    return network


def _add_declared(network: Network, module: Any, path: str) -> list[Any]:
    """Adds the layers of a module of tensordict and the observation that it reads; returns the names of its outputs."""
    if not isinstance(module, TensorDictModule) or isinstance(module, TensorDictSequential):
        raise NotLowerable(f"{type(module).__name__} is not a TensorDictModule with one module")
    network.in_keys = [[key] if isinstance(key, str) else list(key) for key in module.in_keys]
    if len(network.in_keys) != 1:
        raise NotLowerable("several observations for one module")
    _add(network, module.module, path)
    return list(module.out_keys)


def _is(module: Any, name: str) -> bool:
    """Whether ``module`` is of the class that is :data:`KNOWN` as ``name``, not of one derived from it."""
    return type(module).__name__ == name and _is_known(type(module))


def _is_known(kind: type) -> bool:
    return kind.__name__ in KNOWN.get(kind.__module__.split(".")[0], ())


def _add(network: Network, module: nn.Module, path: str) -> None:
    """Adds the layers of ``module``, whose parameters have names that begin with ``path``."""
    if network.has_scales:
        raise NotLowerable("layers behind those that make a distribution's parameters")
    if type(module) is nn.Sequential or _is(module, "MLP"):
        # `named_children` names a layer once that stands in several places.
        for name, child in module._modules.items():
            if child is not None:
                _add(network, child, f"{path}{name}.")
    elif _is(module, "NormalParamExtractor"):
        network.scale, network.bias = _scale_of(module)
    elif _is(module, "AddStateIndependentNormalScale"):
        _add_scale(network, module, path)
    else:
        number = len(network.layers)
        network.layers.append(_layer(module))
        network.names += [(f"{number}.{name}", f"{path}{name}") for name, _ in module.named_parameters()]


def _layer(module: Any) -> tuple[str, list[float]]:
    kind = type(module)
    if kind is nn.Linear:
        return "Linear", [module.in_features, module.out_features, float(module.bias is not None)]
    if kind is nn.LayerNorm:
        if len(module.normalized_shape) != 1 or module.weight is None or module.bias is None:
            raise NotLowerable("a LayerNorm over several dimensions or without parameters")
        return "LayerNorm", [module.normalized_shape[0], module.eps]
    if kind is nn.GELU:
        return ("GELUTanh" if module.approximate == "tanh" else "GELU"), []
    if kind is nn.ELU:
        return "ELU", [module.alpha]
    if kind in (nn.Tanh, nn.ReLU, nn.Sigmoid, nn.SiLU, nn.Flatten):
        return kind.__name__, []
    raise NotLowerable(f"{kind.__name__} is not one of windrow's layers")


def _scale_of(extractor: Any) -> tuple[str, float]:
    """The name and the bias of what makes deviations. tensordict keeps only a function, which is compared with known ones:
    the outputs of the whole policy may all lie where several of them agree."""
    points = torch.linspace(-6.0, 6.0, 49)
    with torch.no_grad():
        scales = extractor(torch.stack([points, points], -1))[1].flatten()
    bias = float(scales[24])
    shift = math.log(max(math.expm1(bias - LEAST_SOFTPLUS), 1e-6))
    known = {"exp": points.exp(), "softplus": nn.functional.softplus(points + shift) + LEAST_SOFTPLUS}
    for name, expected in known.items():
        if extractor.scale_lb == LEAST_SCALE and torch.allclose(scales, expected, *TOLERANCE):
            return name, 0.0 if name == "exp" else bias
    raise NotLowerable("deviations are neither exp nor a biased softplus, with scale_lb=1e-4, of the outputs")


def _add_scale(network: Network, module: Any, path: str) -> None:
    parameter = module.state_independent_scale
    outputs = network.widths[-1][1] if network.widths else 0
    if parameter.numel() != outputs or parameter.dim() != 1:
        raise NotLowerable("deviations of another shape than the action")
    if module.scale_mapping != "exp":
        raise NotLowerable(
            f"scale_mapping={module.scale_mapping!r} of deviations that no observation changes: expected 'exp'"
        )
    network.least = float(module.scale_lb)
    network.names.append(("log_std", f"{path}state_independent_scale"))


def _set_head(network: Network, outputs: list[Any], drawn: ProbabilisticTensorDictModule) -> None:
    """Takes the head from the module that draws an action from outputs of these names."""
    kind, in_keys, out_keys = drawn.distribution_class, list(drawn.in_keys), list(drawn.out_keys)
    if out_keys[0] != "action" or set(in_keys) != set(outputs):
        raise NotLowerable(f"an action drawn from {in_keys}, where the module writes {outputs}")
    if not _is_known(kind) or kind.__name__ not in HEADS:
        raise NotLowerable(f"{kind.__module__}.{kind.__name__} is no known distribution")
    network.head = HEADS[kind.__name__]
    is_normal = network.head != "Categorical"
    if sorted(in_keys) != (["loc", "scale"] if is_normal else ["logits"]) or is_normal != network.has_scales:
        raise NotLowerable(f"{kind.__name__} of {in_keys}")
    if set(out_keys) != ({"action", "action_log_prob"} if drawn.return_log_prob else {"action"}):
        raise NotLowerable(f"outputs {out_keys}")
    network.return_log_prob, network.return_params = bool(drawn.return_log_prob), True
    arguments = dict(drawn.distribution_kwargs or {})
    if is_normal and arguments.get("tanh_loc"):
        raise NotLowerable("tanh_loc")
    if network.head == "TanhNormal":
        limits = [torch.as_tensor(arguments.get(*bound), dtype=torch.float32) for bound in (("low", -1.0), ("high", 1.0))]
        low, high = ([float(number) for number in limit.expand(network.actions)] for limit in limits)
        network.bounds = low, high


def _check_weights(weights: dict[str, torch.Tensor], network: Network) -> None:
    unknown = sorted(set(weights) - {theirs for _, theirs in network.names})
    if unknown:
        raise NotLowerable(f"{unknown[0]} is a parameter of no known layer")
    for name, tensor in weights.items():
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            raise NotLowerable(f"{name} is {tensor.dtype} on {tensor.device}, expected float32 on the CPU")


def _compare(policy: Any, network: Network, weights: dict[str, torch.Tensor], guess: str) -> None:
    """Compares policy and network for random inputs: their outputs, their actions by the exploration type ``guess``, and the
    log-probabilities that they give to actions of the network.

    Raises:
        NotLowerable: they differ, or cannot be compared.
    """
    generator = torch.Generator().manual_seed(0)
    inputs = 2 * torch.randn(ROWS, network.widths[0][0], generator=generator)
    is_drawn = network.head != "Deterministic"
    asked = {**asdict(network), "weights": weights, "in_keys": [["input"]], "return_log_prob": is_drawn}
    own = evaluate_network(asked, [inputs], network.actions, guess)
    # A copy is called, since a call may change buffers.
    theirs = copy.deepcopy(policy)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), set_interaction_type(InteractionType(guess)):
            given = TensorDict({tuple(network.in_keys[0]): inputs}, batch_size=[ROWS])
            is_declared = isinstance(policy, TensorDictModule)
            expected = dict(theirs(given).items()) if is_declared else {"action": theirs(inputs)}
            if is_drawn:
                distribution = theirs.module[1].get_dist(given)
                if network.return_log_prob:
                    _compare_log_prob("the best guess", distribution, network, own)
                sample = evaluate_network(asked, [inputs], network.actions, "random")
                _compare_log_prob("a sample", distribution, network, sample)
    except NotLowerable:
        raise
    except Exception as error:
        raise NotLowerable(f"the module cannot be called with {list(inputs.shape)} numbers: {error}") from error
    action = expected["action"]
    is_one_hot = network.head == "Categorical" and action.dim() > 1
    _check_equal("action", action.argmax(-1) if is_one_hot else action, own["action"])
    for name in ("loc", "scale", "logits"):
        if name in own:
            _check_equal(name, expected.get(name), own[name])


def _compare_log_prob(what: str, distribution: Any, network: Network, own: dict[str, torch.Tensor]) -> None:
    action = own["action"]
    if "OneHot" in type(distribution).__name__:
        action = nn.functional.one_hot(action, network.actions)
    log_prob = distribution.log_prob(action)
    if log_prob.dim() > 1 and not network.return_log_prob:
        log_prob = log_prob.flatten(1).sum(1)
    _check_equal(f"log_prob of {what}", log_prob, own["action_log_prob"], 100.0)


def _check_equal(what: str, expected: torch.Tensor | None, got: torch.Tensor, tolerance: float = 1.0) -> None:
    if expected is None or expected.shape != got.shape:
        shape = None if expected is None else list(expected.shape)
        raise NotLowerable(f"{what}: shape {shape} of the module, {list(got.shape)} of the network")
    rtol, atol = (tolerance * number for number in TOLERANCE)
    if not torch.allclose(expected.to(got.dtype), got, rtol=rtol, atol=atol):
        error = (expected.to(got.dtype) - got).abs().max()
        raise NotLowerable(f"{what}: module and network differ by {float(error):.2g}")
