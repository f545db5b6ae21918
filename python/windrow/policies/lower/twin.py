"""A policy under another mode, or on another device, than its own."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import nn

from windrow._windrow import Readings
from windrow.policies.places import slots


class Twin:
    """A policy that acts in evaluation mode, and on the CPU, while the user's own stays as it is.
    Its parts have the attribute objects and the tensors of the user's, but tensors on other
    devices, which are copied. Where the policy is so already, it is itself.

    Args:
        policy: a module, or a method of one.
        source: the module that has its weights.
        evaluates: it is in evaluation mode.
    """

    def __init__(self, policy: Callable[..., Any], source: nn.Module, *, evaluates: bool) -> None:
        self._policy, self._source, self._evaluates = policy, source, evaluates
        self._made: Callable[..., Any] = policy
        self._readings: Readings | None = None
        #: The parts of the policy that others stand for.
        self.originals: list[nn.Module] = []
        #: Tensors on the CPU, each with the user's own.
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def is_same(self) -> bool:
        """Whether :meth:`now` gives the same object as before; tensors on other devices are copied
        anew.
        """
        if self._readings is None:
            return not self._evaluates or not self._differs()
        if not self._readings.is_same():
            return False
        with torch.no_grad():
            for copy, tensor in self._copies:
                copy.copy_(tensor)
        return True

    def now(self) -> Callable[..., Any]:
        """The policy that acts."""
        self._made, self._readings, self._copies = self._policy, None, []
        self.originals = []
        if not self._differs():
            return self._policy
        parts = self.originals = list(self._owner().modules())
        dictionaries = [
            one
            for part in parts
            for one in (vars(part), part._modules, part._parameters, part._buffers)
        ]
        self._readings = slots(dictionaries)
        twins: dict[int, nn.Module] = {id(part): type(part).__new__(type(part)) for part in parts}
        for part in parts:
            twin = twins[id(part)]
            vars(twin).update(vars(part))
            tensors = {
                name: {key: self._placed(one) for key, one in vars(part)[name].items()}
                for name in ("_parameters", "_buffers")
            }
            inner = {
                name: None if one is None else twins[id(one)] for name, one in part._modules.items()
            }
            vars(twin).update(tensors, _modules=inner)
            if self._evaluates:
                vars(twin)["training"] = False
        owner = twins[id(self._owner())]
        is_module = isinstance(self._policy, nn.Module)
        self._made = owner if is_module else MethodType(self._policy.__func__, owner)  # type: ignore[attr-defined]
        return self._made

    def _owner(self) -> nn.Module:
        if isinstance(self._policy, nn.Module):
            return self._policy
        owner: nn.Module = self._policy.__self__  # type: ignore[attr-defined]
        return owner

    def _differs(self) -> bool:
        """Whether the policy itself is in another mode, or on another device."""
        owner = self._policy if isinstance(self._policy, nn.Module) else self._source
        is_elsewhere = any(
            one.device.type != "cpu" for one in (*owner.parameters(), *owner.buffers())
        )
        return is_elsewhere or (self._evaluates and any(part.training for part in owner.modules()))

    def _placed(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        if tensor is None or tensor.device.type == "cpu":
            return tensor
        copy: torch.Tensor = tensor.detach().cpu()
        if isinstance(tensor, nn.Parameter):
            copy = nn.Parameter(copy, requires_grad=tensor.requires_grad)
        self._copies.append((copy, tensor))
        return copy
