"""Types of what users give, where the same union of types is taken in many places.

Nothing here imports torch: those of other libraries are looked up when somebody asks for them, such
as by ``typing.get_type_hints``. Until then a text stands for each, which ``help`` shows of declared
arguments.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ForwardRef, Protocol, TypeAlias

from windrow import modules
from windrow._lazy import numpy, tensordict, torch


class Environment(Protocol):
    """An environment of windrow, Gymnasium, TorchRL or any other library with an adapter."""

    @property
    def reset(self) -> Callable[..., Any]:
        """Begins an episode."""
        ...

    @property
    def step(self) -> Callable[..., Any]:
        """Takes an action."""
        ...


class Buffer(Protocol):
    """A replay buffer of windrow or TorchRL."""

    @property
    def extend(self) -> Callable[..., Any]:
        """Writes a batch."""
        ...


class Model(Protocol):
    """A model of Stable-Baselines3, or of another library that has such a method."""

    @property
    def predict(self) -> Callable[..., Any]:
        """Returns actions and the next state."""
        ...


class OnnxModel(Protocol):
    """A model that ``onnx`` has loaded."""

    @property
    def SerializeToString(self) -> Callable[..., bytes]:
        """The model as bytes."""
        ...


def _later(shown: str) -> ForwardRef:
    return ForwardRef(shown, module=__name__)


if TYPE_CHECKING:
    #: A transform of windrow or TorchRL, or a function.
    AnyTransform: TypeAlias = Callable[[tensordict.TensorDictBase], tensordict.TensorDictBase]
    Array: TypeAlias = numpy.ndarray[Any, Any]
    Device: TypeAlias = torch.device | str | int
    #: One for all workers, or a list with an entry for each.
    WorkerDevices: TypeAlias = Device | Sequence[Device]
    #: An environment, its id, or a function that makes one.
    Env: TypeAlias = Environment | Callable[..., Environment] | str
    #: One for all workers, or a list with an entry for each.
    Envs: TypeAlias = Env | Sequence[Env]
    Numbers: TypeAlias = float | Sequence[float] | Array | torch.Tensor
    #: A module can be called; a path is that of a model of ONNX.
    Policy: TypeAlias = (
        Callable[..., Any] | Model | OnnxModel | str | os.PathLike[str] | modules.RemotePolicy
    )
    #: Those of a module: itself, a TensorDict of its parameters, or its ``state_dict``.
    Weights: TypeAlias = torch.nn.Module | tensordict.TensorDictBase | Mapping[str, torch.Tensor]
else:
    AnyTransform = _later("Callable[[tensordict.TensorDictBase], tensordict.TensorDictBase]")
    Array = _later("numpy.ndarray")
    Device = _later("torch.device | str | int")
    WorkerDevices = _later("torch.device | str | int | list")
    Env = _later("Environment | Callable[..., Environment] | str")
    Envs = _later("Environment | Callable[..., Environment] | str | list")
    Numbers = _later("float | Sequence[float] | numpy.ndarray | torch.Tensor")
    Policy = _later(
        "torch.nn.Module | Callable[..., Any] | Model | OnnxModel | str | os.PathLike[str] | modules.RemotePolicy"
    )
    Weights = _later("torch.nn.Module | tensordict.TensorDictBase | Mapping[str, torch.Tensor]")
