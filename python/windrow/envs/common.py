"""What all environments have in common, where TorchRL has it."""

from windrow.envs._base import EnvBase

__all__ = ["EnvBase"]
