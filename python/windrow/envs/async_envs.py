"""Environments that run free, where TorchRL has them."""

from windrow.envs._pool import AsyncEnvPool, ProcessorAsyncEnvPool, ThreadingAsyncEnvPool

__all__ = ["AsyncEnvPool", "ProcessorAsyncEnvPool", "ThreadingAsyncEnvPool"]
