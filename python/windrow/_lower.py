"""Networks that windrow evaluates itself, read out of modules of PyTorch and tensordict.

A module is lowered when each part of it is one that is known, exactly, and when both give the same numbers for random
inputs. On any doubt the module is called.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    TensorDictModule,
    TensorDictSequential,
    set_interaction_type,
)
from torch import nn

from windrow import _weights
from windrow._exploration import interaction_type
from windrow._windrow import evaluate_network

#: Rows of random inputs on which module and network are compared.
ROWS = 16
#: How far numbers of both may lie apart, relative and absolute: networks add in another order and approximate tanh and exp.
TOLERANCE = (1e-4, 1e-5)
#: Classes of other packages that are known by their names, and the modules where users find each.
KNOWN: dict[str, tuple[str, ...]] = {
    "AddStateIndependentNormalScale": ("tensordict.nn",),
    "Categorical": ("torch.distributions",),
    "IndependentNormal": ("torchrl.modules",),
    "MLP": ("torchrl.modules",),
    "Normal": ("torch.distributions",),
    "NormalParamExtractor": ("tensordict.nn", "torchrl.modules"),
    "OneHotCategorical": ("torch.distributions", "tensordict.nn", "torchrl.modules"),
    "SafeModule": ("torchrl.modules",),
    "TanhNormal": ("torchrl.modules",),
}
#: The least deviation of networks, and what they add to a softplus; those of tensordict unless it is told otherwise.
LEAST_SCALE, LEAST_SOFTPLUS = 1e-4, 0.01


class Doubt(Exception):
    """A reason to call the module."""


@dataclass
class Network:
    """What was read out of a module.

    Attributes:
        layers: name and numbers of each layer.
        names: each parameter's name in the network and in the module.
        scale: what turns the second half of the outputs into deviations, with its bias; None where there is no such half.
        log_std: name of the parameter that deviations come from instead.
        least: the least deviation that comes from it.
    """

    layers: list[tuple[str, list[float]]] = field(default_factory=list)
    names: list[tuple[str, str]] = field(default_factory=list)
    scale: tuple[str, float] | None = None
    log_std: str | None = None
    least: float = 0.0

    @property
    def inputs(self) -> int:
        """Numbers that the first layer reads."""
        return next((int(n[0]) for name, n in self.layers if name in ("Linear", "LayerNorm")), 0)

    @property
    def outputs(self) -> int:
        """Numbers that the last layer writes."""
        widths = [int(n[1] if name == "Linear" else n[0]) for name, n in self.layers if name in ("Linear", "LayerNorm")]
        return widths[-1] if widths else 0


@dataclass
class Head:
    """What becomes of a network's outputs."""

    kind: str = "Deterministic"
    log_prob: bool = False
    params: bool = False
    bounds: tuple[list[float], list[float]] | None = None


def lower(policy: Any, exploration_type: str, *, strict: bool = False) -> dict[str, Any] | None:
    """A description of ``policy`` for the engine; None where the module is to be called.

    Args:
        exploration_type: name of the exploration type that will hold: what it chooses is compared too.
        strict: raise instead of returning None.

    Raises:
        ValueError: the policy cannot be lowered, and has to be.
    """
    try:
        return _lower(policy, exploration_type)
    except Doubt as doubt:
        if strict:
            raise ValueError(f'policy_backend="native": {doubt}') from None
        return None


def _lower(policy: Any, exploration_type: str) -> dict[str, Any]:
    if not isinstance(policy, nn.Module):
        raise Doubt(f"expected a module, got {type(policy).__name__}")
    for name, module in policy.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            raise Doubt(f"{name or 'the policy'} has hooks")
    module, in_keys, path, probabilistic = _take_apart(policy)
    network = _read(module, path)
    head = Head() if probabilistic is None else _read_head(probabilistic, network)
    tensors = _weights.tensors_of(policy)
    strange = sorted(set(tensors) - {theirs for _, theirs in network.names})
    if strange:
        raise Doubt(f"{strange[0]} is a parameter of no known layer")
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            raise Doubt(f"{name} is {tensor.dtype} on {tensor.device}, expected float32 on the CPU")
    described = {
        "layers": network.layers,
        "head": head.kind,
        "scale": None if network.scale is None else network.scale[0],
        "bias": 0.0 if network.scale is None else network.scale[1],
        "least": network.least,
        "in_keys": in_keys,
        "return_log_prob": head.log_prob,
        "return_params": head.params,
        "weights": tensors,
        "names": network.names,
        "bounds": head.bounds,
    }
    # Samples are compared by their densities.
    _compare(policy, network, described, "deterministic" if exploration_type == "random" else exploration_type)
    return described


def _take_apart(policy: Any) -> tuple[nn.Module, list[list[str]], str, ProbabilisticTensorDictModule | None]:
    """The module that computes numbers, the observations that it reads, its path, and what draws from these numbers."""
    if type(policy) is TensorDictModule or _is(policy, "SafeModule"):
        if list(policy.out_keys) != ["action"]:
            raise Doubt(f"the module writes {list(policy.out_keys)}, expected 'action' alone")
        return policy.module, _keys(policy.in_keys), "module.", None
    if not isinstance(policy, TensorDictSequential):
        return policy, [["observation"]], "", None
    parts = list(policy.module)
    if len(parts) != 2 or not isinstance(parts[1], ProbabilisticTensorDictModule):
        raise Doubt("expected one module and what draws an action from its outputs")
    first = parts[0]
    if isinstance(first, TensorDictSequential) and len(first.module) == 1:
        raise Doubt("modules within modules")
    if not isinstance(first, TensorDictModule):
        raise Doubt(f"{type(first).__name__} is no TensorDictModule")
    if list(parts[1].out_keys)[0] != "action" or set(parts[1].in_keys) != set(first.out_keys):
        raise Doubt(f"an action drawn from {list(parts[1].in_keys)}, with {list(first.out_keys)} at hand")
    return first.module, _keys(first.in_keys), "module.0.module.", parts[1]


def _keys(keys: Any) -> list[list[str]]:
    return [[key] if isinstance(key, str) else list(key) for key in keys]


def _is(module: Any, name: str) -> bool:
    """Whether ``module`` is of the class that is :data:`KNOWN` as ``name``, not of one that was derived from it."""
    return _is_known(type(module)) and type(module).__name__ == name


def _is_known(kind: type) -> bool:
    """Whether ``kind`` is one of the :data:`KNOWN` classes, wherever in its package it is defined."""
    packages = {home.split(".")[0] for home in KNOWN.get(kind.__name__, ())}
    return kind.__module__.split(".")[0] in packages


def _read(module: nn.Module, path: str) -> Network:
    network = Network()
    _add(network, module, path)
    if network.inputs == 0:
        raise Doubt("a network without a layer of a known size")
    return network


def _add(network: Network, module: nn.Module, path: str) -> None:
    if network.scale is not None or network.log_std is not None:
        raise Doubt("layers behind those that make a distribution's parameters")
    if type(module) is nn.Sequential or _is(module, "MLP"):
        # `named_children` names a layer once that stands in several places.
        for name, child in module._modules.items():
            if child is not None:
                _add(network, child, f"{path}{name}.")
        return
    if _is(module, "NormalParamExtractor"):
        network.scale = _scale_of(module)
        return
    if _is(module, "AddStateIndependentNormalScale"):
        _add_scale(network, module, path)
        return
    network.layers.append(_layer(module))
    number = len(network.layers) - 1
    network.names += [(f"{number}.{name}", f"{path}{name}") for name, _ in module.named_parameters()]


def _layer(module: Any) -> tuple[str, list[float]]:
    kind = type(module)
    if kind is nn.Linear:
        return "Linear", [module.in_features, module.out_features, float(module.bias is not None)]
    if kind is nn.LayerNorm:
        if len(module.normalized_shape) != 1 or module.weight is None or module.bias is None:
            raise Doubt("a LayerNorm over several dimensions or without parameters")
        return "LayerNorm", [module.normalized_shape[0], module.eps]
    if kind is nn.GELU:
        return ("GELUTanh" if module.approximate == "tanh" else "GELU"), []
    if kind is nn.ELU:
        return "ELU", [module.alpha]
    if kind in (nn.Tanh, nn.ReLU, nn.Sigmoid, nn.SiLU, nn.Flatten):
        return kind.__name__, []
    raise Doubt(f"{kind.__name__} is not one of windrow's layers")


def _scale_of(extractor: Any) -> tuple[str, float]:
    """The name and the bias of what makes deviations. tensordict keeps a function only, which is compared with known ones:
    outputs of the whole module may all lie where several of them agree."""
    points = torch.linspace(-6.0, 6.0, 49)
    with torch.no_grad():
        scales = extractor(torch.stack([points, points], -1))[1].flatten()
    bias = float(scales[24])
    shift = math.log(max(math.expm1(bias - LEAST_SOFTPLUS), 1e-6))
    known = {"exp": points.exp(), "softplus": nn.functional.softplus(points + shift) + LEAST_SOFTPLUS}
    for name, expected in known.items():
        if extractor.scale_lb == LEAST_SCALE and torch.allclose(scales, expected, *TOLERANCE):
            return name, 0.0 if name == "exp" else bias
    raise Doubt("deviations are neither exp nor a biased softplus, with scale_lb=1e-4, of the outputs")


def _add_scale(network: Network, module: Any, path: str) -> None:
    parameter = module.state_independent_scale
    if parameter.numel() != network.outputs or parameter.dim() != 1:
        raise Doubt("deviations of another shape than the action")
    if module.scale_mapping != "exp":
        raise Doubt(f"scale_mapping={module.scale_mapping!r} of deviations that no observation changes: expected 'exp'")
    network.log_std = f"{path}state_independent_scale"
    network.least = float(module.scale_lb)
    network.names.append(("log_std", network.log_std))


def _read_head(drawn: ProbabilisticTensorDictModule, network: Network) -> Head:
    kind = drawn.distribution_class
    arguments = dict(drawn.distribution_kwargs or {})
    is_normal = kind.__name__ in ("Normal", "IndependentNormal", "TanhNormal")
    wanted = ["loc", "scale"] if is_normal else ["logits"]
    if sorted(drawn.in_keys) != wanted or is_normal != (network.scale is not None or network.log_std is not None):
        raise Doubt(f"{kind.__name__} of {list(drawn.in_keys)}")
    if not _is_known(kind):
        raise Doubt(f"{kind.__module__}.{kind.__name__} is no known distribution")
    head = Head(log_prob=_returns_log_prob(drawn), params=True)
    if kind.__name__ in ("Categorical", "OneHotCategorical"):
        head.kind = "Categorical"
    elif kind.__name__ in ("Normal", "IndependentNormal"):
        head.kind = "Normal"
        if float(arguments.pop("tanh_loc", False)):
            raise Doubt("tanh_loc")
    elif kind.__name__ == "TanhNormal":
        head.kind = "TanhNormal"
        head.bounds = _bounds(arguments, network)
    else:
        raise Doubt(f"{kind.__name__} is not one of windrow's heads")
    return head


def _bounds(arguments: dict[str, Any], network: Network) -> tuple[list[float], list[float]]:
    size = network.outputs if network.scale is None else network.outputs // 2

    def numbers(name: str, default: float) -> list[float]:
        value = torch.as_tensor(arguments.get(name, default), dtype=torch.float32)
        return [float(number) for number in value.expand(size)]

    if arguments.get("tanh_loc"):
        raise Doubt("tanh_loc")
    return numbers("low", -1.0), numbers("high", 1.0)


def _returns_log_prob(drawn: ProbabilisticTensorDictModule) -> bool:
    if not drawn.return_log_prob:
        if list(drawn.out_keys) != ["action"]:
            raise Doubt(f"outputs {list(drawn.out_keys)}")
        return False
    if set(drawn.out_keys) != {"action", "action_log_prob"}:
        raise Doubt(f"outputs {list(drawn.out_keys)}")
    return True


def _compare(policy: Any, network: Network, described: dict[str, Any], guess: str) -> None:
    """Whether module and network give the same numbers for random inputs, their actions by the exploration type ``guess``.

    Raises:
        Doubt: they do not, or cannot be compared.
    """
    generator = torch.Generator().manual_seed(0)
    keys = described["in_keys"]
    if len(keys) > 1 and not _is(_take_apart(policy)[0], "MLP"):
        raise Doubt("several observations for one module")
    widths = [network.inputs] if len(keys) == 1 else None
    if widths is None:
        raise Doubt("several observations, whose sizes are not known")
    inputs = [2 * torch.randn(ROWS, width, generator=generator) for width in widths]
    asked = {**described, "in_keys": [[f"input{i}"] for i in range(len(inputs))]}
    actions = network.outputs if network.scale is None else network.outputs // 2
    is_distribution = described["head"] != "Deterministic"
    asked["return_log_prob"] = is_distribution
    own = evaluate_network(asked, inputs, actions, guess)
    drawn = evaluate_network(asked, inputs, actions, "random")
    # The module is called on a copy: a call may change buffers.
    theirs = copy.deepcopy(policy)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), set_interaction_type(interaction_type(guess)):
            if not is_distribution and not isinstance(policy, TensorDictModule):
                expected = {"action": theirs(*inputs)}
            else:
                given = TensorDict({tuple(key): value for key, value in zip(keys, inputs)}, batch_size=[ROWS])
                expected = dict(theirs(given).items())
            if is_distribution:
                _compare_distribution(theirs.module[1], given, described, own, drawn)
    except Doubt:
        raise
    except Exception as error:
        raise Doubt(f"the module cannot be called with [{ROWS}, {network.inputs}] numbers: {error}") from error
    _equal("action", _as_index(expected["action"], described), own["action"])
    for name in ("loc", "scale", "logits"):
        if name in own:
            _equal(name, expected.get(name), own[name])


def _compare_distribution(
    probabilistic: ProbabilisticTensorDictModule,
    evaluated: TensorDict,
    described: dict[str, Any],
    own: dict[str, torch.Tensor],
    drawn: dict[str, torch.Tensor],
) -> None:
    distribution = probabilistic.get_dist(evaluated)
    for name, sample in (("the best guess", own), ("a sample", drawn)):
        action = sample["action"]
        if "OneHot" in type(distribution).__name__:
            action = nn.functional.one_hot(action, own["logits"].shape[-1])
        if described["return_log_prob"] or name == "a sample":
            log_prob = distribution.log_prob(action)
            if log_prob.dim() > 1 and not described["return_log_prob"]:
                log_prob = log_prob.flatten(1).sum(1)
            _equal(f"log_prob of {name}", log_prob, sample["action_log_prob"], 100.0)


def _as_index(action: torch.Tensor, described: dict[str, Any]) -> torch.Tensor:
    return action.argmax(-1) if described["head"] == "Categorical" and action.dim() > 1 else action


def _equal(what: str, expected: torch.Tensor | None, got: torch.Tensor, tolerance: float = 1.0) -> None:
    if expected is None or expected.shape != got.shape:
        shape = None if expected is None else list(expected.shape)
        raise Doubt(f"{what}: shape {shape} of the module, {list(got.shape)} of the network")
    rtol, atol = (tolerance * number for number in TOLERANCE)
    if not torch.allclose(expected.to(got.dtype), got, rtol=rtol, atol=atol):
        error = (expected.to(got.dtype) - got).abs().max()
        raise Doubt(f"{what}: module and network differ by {float(error):.2g}")
