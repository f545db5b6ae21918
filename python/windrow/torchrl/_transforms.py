"""Transforms that keep TorchRL's word where it differs from that of :mod:`windrow.envs`."""

from __future__ import annotations

from windrow import envs
from windrow._lazy import torch


class RewardScaling(envs.RewardScaling):
    __doc__ = envs.RewardScaling.__doc__

    loc: torch.Tensor
    scale: torch.Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        # TorchRL's are tensors, which scripts change in place: the environment around follows.
        self.loc, self.scale = (torch.as_tensor(given).clone() for given in (self.loc, self.scale))

    @property
    def _version(self) -> tuple[int, int]:
        return self.loc._version, self.scale._version
