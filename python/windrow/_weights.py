"""Weights by name, out of whatever holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def original(policy: Any) -> Any:
    """What ``policy`` was made from, where it was compiled or captured as a CUDA graph."""
    if type(policy).__name__ == "CudaGraphModule":
        policy = policy.module
    return getattr(policy, "_orig_mod", policy)


def tensors_of(module: Any) -> dict[str, Any]:
    """Parameters and buffers of ``module`` by their names in its ``state_dict``: the tensors themselves, not copies."""
    import torch

    state = original(module).state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def slots_of(module: Any) -> list[tuple[dict[str, Any], str, Any]]:
    """Where the parameters and buffers of ``module`` are kept: a dictionary, a name in it, and what was found there."""
    owners = [entries for child in module.modules() for entries in (child._parameters, child._buffers)]
    return [(entries, name, tensor) for entries in owners for name, tensor in entries.items() if tensor is not None]


class Anatomy:
    """Which modules a module consists of, to see whether it still does."""

    def __init__(self, module: Any) -> None:
        self._parts = [(part, dict(part._modules)) for part in module.modules()]

    def check(self) -> None:
        """Whether what was read out of the module is what it would do if it was called.

        Raises:
            RuntimeError: a part was replaced, or calls something else now.
        """
        for part, parts in self._parts:
            if part._modules != parts or part._forward_hooks or part._forward_pre_hooks or "forward" in part.__dict__:
                raise RuntimeError(
                    f"{type(part).__name__} of the policy has other parts or hooks than when windrow read it: build a new "
                    "collector, or one with policy_backend='torch', which calls the policy as it is"
                )


def weights_of(source: Any) -> dict[str, Any]:
    """Weights by name out of a module, a ``TensorDict`` of parameters, or a ``state_dict``.

    Raises:
        TypeError: ``source`` is none of these.
    """
    import torch

    if isinstance(source, torch.nn.Module) and not hasattr(source, "flatten_keys"):
        return tensors_of(source)
    if hasattr(source, "flatten_keys"):
        flat = source.flatten_keys(".")
        return {str(name): value for name, value in flat.items()}
    if isinstance(source, Mapping):
        return {name: value for name, value in source.items() if isinstance(value, torch.Tensor)}
    raise TypeError(
        f"expected a module, a TensorDict of its parameters or a state_dict as weights, got {type(source).__name__}"
    )


def widened(weights: Mapping[str, Any]) -> dict[str, Any]:
    """``weights`` with float32 in place of narrower floats, which the engine has not: nothing is lost on the way."""
    import torch

    narrow = (torch.bfloat16, torch.float16)
    return {name: value.float() if value.dtype in narrow else value for name, value in weights.items()}


def check(own: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
    """Whether ``weights`` are those of a module with the tensors ``own``.

    Raises:
        ValueError: a tensor is missing, unknown or of another shape.
    """
    missing = sorted(own.keys() - weights.keys())
    unknown = sorted(weights.keys() - own.keys())
    if missing or unknown:
        raise ValueError(f"weights of another policy: missing {missing or 'none'}, unknown {unknown or 'none'}")
    for name, value in own.items():
        if tuple(value.shape) != tuple(weights[name].shape):
            got = list(weights[name].shape)
            raise ValueError(f"weights of another policy: {name}: expected shape {list(value.shape)}, got {got}")


def fitted(own: Mapping[str, Any], weights: Mapping[str, Any]) -> dict[str, Any]:
    """``weights`` on the devices and of the types of the tensors ``own``.

    Raises:
        ValueError: as :func:`check`.
        Exception: what torch raises for a tensor without values.
    """
    check(own, weights)
    return {name: weights[name].detach().to(value.device, value.dtype) for name, value in own.items()}


def copy(own: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
    """Copies ``weights`` into the tensors ``own``, all of them or, on error, none.

    Raises:
        Exception: as :func:`fitted`.
    """
    import torch

    ready = fitted(own, weights)
    with torch.no_grad():
        for name, value in own.items():
            if value is not weights[name]:
                value.copy_(ready[name])
