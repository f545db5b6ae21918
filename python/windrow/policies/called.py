"""A policy that Rust evaluates, as Python calls it where no graph is that policy, or none is any
more.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from windrow.policies.torch_policy import TorchPolicy, copied_module
from windrow.policies.weights import source_of, tensors_of
from windrow.processes import setup
from windrow.processes.blame import pickled
from windrow.processes.pickling import pickler

if TYPE_CHECKING:
    from windrow.policies.choose import Conditions


class Called:
    """Makes what acts for a worker of this process, and the bytes of it for other processes.

    Args:
        policy: a module, or a method of one.
        conditions: how it is called.
    """

    def __init__(self, policy: Callable[..., Any], conditions: Conditions) -> None:
        self._policy, self.conditions = policy, conditions
        #: What copies are made of.
        self._original = policy
        #: Why the engine has refused the graph of the policy; None where it has not.
        self.refusal: str | None = None

    def unfit(self, refusal: str) -> None:
        """Takes the reason why the engine refuses the graph of the policy."""
        self.refusal = refusal

    def __call__(self) -> TorchPolicy:
        if not self.conditions.copies:
            return _acting(self._policy, self.conditions)
        return _acting(copied(self._original), self.conditions)

    def freeze(self) -> None:
        """Has copies that are made later be of the policy as it is now."""
        if self.conditions.copies:
            self._original = copied(self._policy)

    def sent(self) -> bytes:
        """The policy as it is now, as :func:`windrow.processes.setup.policy` sends it, without its
        weights.

        Raises:
            NoProcesses: something that it is made of cannot be sent; the error names it.
        """
        stream, module = io.BytesIO(), source_of(self._policy)
        tensors = {} if module is None else tensors_of(module)
        names = {id(tensor): name for name, tensor in tensors.items()}

        class Pickler(pickler()):  # type: ignore[misc]
            def persistent_id(self, value: object) -> tuple[Any, ...] | None:
                if type(value) not in _TENSORS or id(value) not in names:
                    return None
                tensor: Any = value
                kind = isinstance(tensor, nn.Parameter), tensor.requires_grad
                return names[id(tensor)], tuple(tensor.shape), tensor.dtype, *kind

        try:
            Pickler(stream).dump((self._policy, self.conditions))
        except Exception:
            # The error that names the part that cannot be sent.
            pickled(self._policy, {"policy": self._policy})
            raise
        return setup.policy([partial(_read, stream.getvalue())])


_TENSORS = (torch.Tensor, nn.Parameter)


def copied(policy: Any) -> Any:
    """A deep copy of a module, or of a method of one."""
    if isinstance(policy, nn.Module):
        return copied_module(policy)
    return MethodType(policy.__func__, copied_module(policy.__self__))


def _acting(policy: Callable[..., Any], conditions: Conditions) -> TorchPolicy:
    """What acts: ``policy`` itself, which takes over weights."""
    acting = TorchPolicy(policy, replace(conditions, copies=False))
    if acting.module is None:
        acting.module = source_of(policy)
    return acting


def _read(sent: bytes) -> TorchPolicy:
    """What acts in another process than that of :meth:`Called.sent`, with zeros as weights."""
    made: dict[str, torch.Tensor] = {}

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, described: tuple[Any, ...]) -> torch.Tensor:
            name, shape, dtype, is_parameter, requires_grad = described
            if name not in made:
                value = torch.zeros(shape, dtype=dtype, device="cpu")
                made[name] = (
                    nn.Parameter(value, requires_grad)
                    if is_parameter
                    else value.requires_grad_(requires_grad)
                )
            return made[name]

    return _acting(*Unpickler(io.BytesIO(sent)).load())
