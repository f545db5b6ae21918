"""windrow's specs as those of TorchRL."""

from __future__ import annotations

import torch
from torchrl.data import tensor_specs as theirs

from windrow._codecs import own_codec
from windrow.envs._specs import Agents, Composite, Spec


def converted(spec: Spec | Composite, group: tuple[int, ...] | None = None) -> theirs.TensorSpec:
    """``spec``, an entry of a composite of shape ``group``, of TorchRL's classes."""
    if isinstance(spec, Agents):
        return torch.stack([converted(agent) for agent in spec.agents], len(spec.shape) - 1)
    if isinstance(spec, Composite):
        entries = {name: converted(entry, spec.shape) for name, entry in spec.items()}
        return theirs.Composite(entries, shape=spec.shape, device=spec.device)
    if spec.is_bytes:
        value = own_codec().read(spec._leaf.example)
        if not isinstance(value, torch.Tensor):
            return theirs.NonTensor(shape=spec.shape, device=spec.device, example_data=value)
        return theirs.Unbounded(
            shape=(*spec.shape, *[-1] * value.ndim), dtype=value.dtype, device=spec.device
        )
    common = {"shape": spec.shape, "dtype": spec.dtype, "device": spec.device}
    match spec._leaf.kind:
        case "bounded":
            return theirs.Bounded(low=spec.low, high=spec.high, **common)
        case "binary":
            return theirs.Binary(n=spec.shape[-1] if spec.ndim else None, **common)
        case "discrete":
            return theirs.Categorical(spec.n, **common)
        # Each member of the group has one of these choices.
        case "multi_discrete" if spec.shape == group and len(set(spec.nvec)) == 1:
            return theirs.Categorical(spec.nvec[0], **common)
        case "multi_discrete":
            return theirs.MultiCategorical(spec.nvec, **common)
        case "one_hot":
            return (
                theirs.OneHot(spec.n, **common)
                if len(spec.nvec) == 1
                else theirs.MultiOneHot(spec.nvec, **common)
            )
    return theirs.Unbounded(**common)
