"""Several environments in lockstep, where TorchRL has them."""

from windrow.envs._batched import ParallelEnv, SerialEnv

__all__ = ["ParallelEnv", "SerialEnv"]
