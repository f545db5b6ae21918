"""Buffers with parts of their own, under the names that TorchRL has for them."""

from __future__ import annotations

from typing import Any

from windrow._arguments import takes
from windrow.data._arguments import (
    PrioritizedBufferArguments,
    TensorDictBufferArguments,
    TensorDictPrioritizedBufferArguments,
)
from windrow.data._buffers import ReplayBuffer
from windrow.data._samplers import PrioritizedSampler

__all__ = ["PrioritizedReplayBuffer", "TensorDictPrioritizedReplayBuffer", "TensorDictReplayBuffer"]


class TensorDictReplayBuffer(ReplayBuffer):
    """A buffer whose samples have the entries that the sampler adds: ``"index"``, with a prioritized sampler
    ``"priority_weight"``, and with slices ``("next", "truncated")`` and ``("next", "done")``, set with the last frame of each,
    and ``"is_init"``, if frames have it, with the first.
    """

    _with_info = True

    @takes(TensorDictBufferArguments)
    def __init__(self, arguments: TensorDictBufferArguments) -> None:
        self.priority_key = arguments.priority_key
        self._begin(arguments, arguments.sampler)

    def update_tensordict_priority(self, data: Any) -> None:
        """Sets the priorities of a sample's frames, if the sampler has priorities. Several values of a frame make one as the
        sampler's ``reduction`` says.

        Raises:
            KeyError: the sample has no entry ``priority_key``, or no ``"index"``.
        """
        if not self.sampler.has_priorities:
            return
        priorities = data[self.priority_key].detach().float().reshape(data.numel(), -1)
        self.update_priority(data["index"], self.sampler.reduced(priorities))


class PrioritizedReplayBuffer(ReplayBuffer):
    """A buffer with a :class:`PrioritizedSampler`."""

    @takes(PrioritizedBufferArguments)
    def __init__(self, arguments: PrioritizedBufferArguments) -> None:
        alpha, beta, eps, dtype = arguments.alpha, arguments.beta, arguments.eps, arguments.dtype
        self._begin(arguments, PrioritizedSampler(alpha=alpha, beta=beta, eps=eps, dtype=dtype))


class TensorDictPrioritizedReplayBuffer(TensorDictReplayBuffer):
    """A :class:`TensorDictReplayBuffer` with a :class:`PrioritizedSampler`."""

    @takes(TensorDictPrioritizedBufferArguments)
    def __init__(self, arguments: TensorDictPrioritizedBufferArguments) -> None:
        self.priority_key = arguments.priority_key
        alpha, beta, eps, reduction = arguments.alpha, arguments.beta, arguments.eps, arguments.reduction
        self._begin(arguments, PrioritizedSampler(alpha=alpha, beta=beta, eps=eps, reduction=reduction))
