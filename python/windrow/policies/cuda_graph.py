"""Calls of a policy that a GPU replays without Python."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch

from windrow.policies.acting import unchecked
from windrow.policies.places import slots

Tensors = tuple[torch.Tensor, ...]

_HINT = (
    "cudagraph_policy: the policy was recorded as a CUDA graph. Expected one that only computes on the GPU: it must not look at results (`if`, "
    "`.item()`, `.cpu()`), nor make tensors of numbers or of the CPU's memory"
)


class CudaGraph:
    """A function of tensors on a CUDA device, recorded once. Each call runs the same kernels on
    other inputs of the same shapes: tensors that the function reads beside its inputs, such as
    weights, are read where they lay when it was recorded, and random numbers are drawn anew.

    Args:
        function: returns tensors on the device.
        inputs: tensors on the device, as in each call.
        device: of all of these.
        warmup: calls before the one that is recorded, in which libraries and compilers prepare
            themselves.
        module: what the function calls, if :meth:`is_current` is to look at it.

    Raises:
        RuntimeError: the function does something that cannot be recorded, such as to look at a
            result.
    """

    def __init__(
        self,
        function: Callable[..., Tensors],
        inputs: Sequence[torch.Tensor],
        device: torch.device,
        warmup: int,
        module: torch.nn.Module | None = None,
    ) -> None:
        self._function, self._device, self._warmup, self._module = function, device, warmup, module
        self._inputs = tuple(value.clone() for value in inputs)
        self.record()

    def record(self) -> None:
        """Records the function once more, for what it has become.

        Raises:
            RuntimeError: as when it was first recorded.
        """
        # Distributions would look at their parameters.
        with torch.cuda.device(self._device), unchecked():
            stream = torch.cuda.Stream(self._device)
            stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(stream):
                for _ in range(self._warmup):
                    self._function(*self._inputs)
            stream.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            try:
                # Learners and other workers go on using the GPU in their threads.
                with torch.cuda.graph(
                    self._graph, stream=stream, capture_error_mode="thread_local"
                ):
                    self._outputs = self._function(*self._inputs)
            except RuntimeError as error:
                error.add_note(_HINT)
                _end_of_recording(self._device)
                raise
        self._look()

    def _look(self) -> None:
        """Keeps what :meth:`is_current` compares."""
        parts = [] if self._module is None else [*self._module.modules()]
        # Tensors, parts and hooks stand in dictionaries of a part.
        own = [vars(part) for part in parts]
        inner = [one for held in own for one in held.values() if isinstance(one, dict)]
        self._slots = slots([*own, *inner])
        self._tensors = (
            [] if self._module is None else [*self._module.parameters(), *self._module.buffers()]
        )
        self._places = [tensor.data_ptr() for tensor in self._tensors]

    def is_current(self) -> bool:
        """Whether the module has the same parts, attributes, hooks and tensors as when it was
        recorded; their numbers may be others.
        """
        return self._slots.is_same() and self._places == [
            tensor.data_ptr() for tensor in self._tensors
        ]

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        """What the function returns for these inputs. The next call overwrites it.

        Raises:
            ValueError: an input has another shape than when the function was recorded.
        """
        for place, value in zip(self._inputs, inputs, strict=True):
            if place.shape != value.shape:
                raise ValueError(
                    f"a CUDA graph takes inputs of shape {tuple(place.shape)}, as when it was recorded, got {tuple(value.shape)}"
                )
            place.copy_(value, non_blocking=True)
        with torch.cuda.device(self._device):
            self._graph.replay()
        return self._outputs


def _end_of_recording(device: torch.device) -> None:
    """Lets torch's generator know that nothing is recorded any more: one that was recorded and
    failed would draw no numbers until the next.
    """
    with (
        contextlib.suppress(RuntimeError),
        torch.cuda.graph(torch.cuda.CUDAGraph(), stream=torch.cuda.Stream(device)),
    ):
        torch.empty(1, device=device).zero_()
