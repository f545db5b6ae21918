"""Buffers with parts of their own, under the names that TorchRL has for them."""

from __future__ import annotations

from typing import Any

from windrow.data._buffers import ReplayBuffer
from windrow.data._samplers import Key, PrioritizedSampler


class TensorDictReplayBuffer(ReplayBuffer):
    """A buffer whose samples carry what the sampler knows of them: ``"index"``, ``"priority_weight"`` where it is prioritized,
    and of slices ``("next", "truncated")`` and ``("next", "done")``, set with the last frame of each, and ``"is_init"``, where
    there is such an entry, with the first.

    Args:
        priority_key: the entry that priorities are taken from, by :meth:`update_tensordict_priority` and of frames that are
            written, where they have it.
        arguments: of :class:`ReplayBuffer`.
    """

    _with_info = True

    def __init__(self, *, priority_key: Key = "td_error", **arguments: Any) -> None:
        self.priority_key = priority_key
        super().__init__(**arguments)

    def update_tensordict_priority(self, data: Any) -> None:
        """Takes over the priorities that a sample was given, where the sampler has any. Several values of a frame make one
        as the sampler's ``reduction`` says.

        Raises:
            KeyError: it has none, or no ``"index"``.
        """
        reduction = getattr(self.sampler, "reduction", None)
        if reduction is None:
            return
        priority = data[self.priority_key].detach().float().reshape(data.numel(), -1)
        reduced = getattr(priority, reduction)(dim=-1)
        self.update_priority(data["index"], reduced[0] if isinstance(reduced, tuple) else reduced)


class PrioritizedReplayBuffer(ReplayBuffer):
    """A buffer with a :class:`PrioritizedSampler`.

    Args:
        alpha: exponent of priorities.
        beta: exponent of weights.
        eps: what is added to priorities.
        dtype: as of the sampler.
        arguments: of :class:`ReplayBuffer`.
    """

    def __init__(self, *, alpha: float, beta: float, eps: float = 1e-8, dtype: Any = None, **arguments: Any) -> None:
        super().__init__(sampler=PrioritizedSampler(alpha=alpha, beta=beta, eps=eps, dtype=dtype), **arguments)


class TensorDictPrioritizedReplayBuffer(TensorDictReplayBuffer):
    """A :class:`TensorDictReplayBuffer` with a :class:`PrioritizedSampler`.

    Args:
        alpha: exponent of priorities.
        beta: exponent of weights.
        eps: what is added to priorities.
        reduction: how several priorities of a frame make one.
        arguments: of :class:`TensorDictReplayBuffer`.
    """

    def __init__(
        self, *, alpha: float, beta: float, eps: float = 1e-8, reduction: str = "max", **arguments: Any
    ) -> None:
        sampler = PrioritizedSampler(alpha=alpha, beta=beta, eps=eps, reduction=reduction)
        super().__init__(sampler=sampler, **arguments)
