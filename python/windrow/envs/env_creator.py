"""Functions that make environments, where TorchRL has them."""

from windrow.envs._batched import EnvCreator, env_creator

__all__ = ["EnvCreator", "env_creator"]
