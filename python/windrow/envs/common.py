"""The base of all environments, where TorchRL has it."""

from windrow.envs._base import EnvBase

__all__ = ["EnvBase"]
