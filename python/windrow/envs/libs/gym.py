"""Gymnasium's environments, where TorchRL has them."""

from windrow.envs._gym import GymEnv, GymWrapper

__all__ = ["GymEnv", "GymWrapper"]
