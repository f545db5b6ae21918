"""Buffers: the one that takes any parts, and those with parts of their own, under the names that
TorchRL has for them.
"""

from __future__ import annotations

from typing import Any, Literal, overload

from windrow._arguments import takes
from windrow._lazy import tensordict, torch
from windrow.data._arguments import (
    PrioritizedBufferArguments,
    TensorDictBufferArguments,
    TensorDictPrioritizedBufferArguments,
)
from windrow.data._content import (
    drawn_frames,
)
from windrow.data._part import Key
from windrow.data.replay_buffers._buffer import ReplayBuffer

__all__ = [
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "TensorDictPrioritizedReplayBuffer",
    "TensorDictReplayBuffer",
]


class TensorDictReplayBuffer(ReplayBuffer):
    """A buffer whose samples have the entries that the sampler adds: ``"index"``, with a
    prioritized sampler ``"priority_weight"`` and ``"index_generation"``, and with slices
    ``("next", "truncated")`` and ``("next", "done")``, set with the last frame of each, and
    ``"is_init"``, if frames have it, with the first.
    """

    _with_info = True

    @takes(TensorDictBufferArguments)
    def __init__(self, arguments: TensorDictBufferArguments) -> None:
        self._begin(arguments)

    @overload
    def sample(
        self,
        batch_size: int | None = None,
        return_info: Literal[False] = False,
        include_info: bool | None = None,
    ) -> tensordict.TensorDictBase: ...

    @overload
    def sample(
        self,
        batch_size: int | None = None,
        *,
        return_info: Literal[True],
        include_info: bool | None = None,
    ) -> tuple[tensordict.TensorDictBase, dict[Key, torch.Tensor]]: ...

    def sample(
        self,
        batch_size: int | None = None,
        return_info: bool = False,
        include_info: bool | None = None,
    ) -> Any:
        """As :meth:`ReplayBuffer.sample`.

        Args:
            batch_size: as there.
            return_info: as there.
            include_info: False leaves the entries of the sampler out of the sample.

        Raises:
            RuntimeError, Exception: as there.
        """
        return self._sampled(batch_size, return_info, include_info is not False)

    def update_tensordict_priority(self, data: tensordict.TensorDictBase) -> int:
        """Sets the priorities of a sample's frames, if the sampler has priorities. Several values
        of a frame make one as the sampler's ``reduction`` says. Returns the number of priorities
        set: like :meth:`update_priority`, this skips frames that were overwritten after the sample
        was drawn, which it knows by ``"index_generation"`` of the sample.

        Raises:
            KeyError: the sample has no entry ``priority_key``, or no ``"index"``.
        """
        if not self.sampler.has_priorities:
            return 0
        rows, generations = drawn_frames(data)
        priorities = data[self.priority_key].detach().float().reshape(len(rows), -1)
        return self.update_priority(rows, self.sampler.reduced(priorities), generations)


class PrioritizedReplayBuffer(ReplayBuffer):
    """A buffer with a :class:`PrioritizedSampler`."""

    @takes(PrioritizedBufferArguments)
    def __init__(self, arguments: PrioritizedBufferArguments) -> None:
        self._begin(arguments)


class TensorDictPrioritizedReplayBuffer(TensorDictReplayBuffer):
    """A :class:`TensorDictReplayBuffer` with a :class:`PrioritizedSampler`."""

    @takes(TensorDictPrioritizedBufferArguments)
    def __init__(self, arguments: TensorDictPrioritizedBufferArguments) -> None:
        self._begin(arguments)
