"""Pools of environments that keep TorchRL's word where it differs from that of
:mod:`windrow.envs`.
"""

from __future__ import annotations

from typing import Any

from windrow.envs import _pool
from windrow.envs._pool import Answers

#: Seconds that a poll waits at least for ``min_get`` answers. TorchRL's threads answer while it is
#: still sending, so that scripts poll with ``timeout=0`` at once.
_LEAST = 0.05


class AsyncEnvPool(_pool.AsyncEnvPool):
    __doc__ = _pool.AsyncEnvPool.__doc__

    def __new__(cls, *args: Any, backend: str = "threading", **kwargs: Any) -> Any:
        kinds = {"threading": ThreadingAsyncEnvPool, "multiprocessing": ProcessorAsyncEnvPool}
        return object.__new__(kinds.get(backend, cls) if cls is AsyncEnvPool else cls)

    def _receive(
        self,
        call: str,
        min_get: int | None,
        env_index: int | None,
        max_get: int | None,
        timeout: float | None,
    ) -> Answers:
        try:
            return super()._receive(call, min_get, env_index, max_get, timeout)
        except TimeoutError:
            if timeout is None or timeout >= _LEAST:
                raise
            # What has come meanwhile stays for this call.
            return super()._receive(call, min_get, env_index, max_get, _LEAST)


class ThreadingAsyncEnvPool(AsyncEnvPool, _pool.ThreadingAsyncEnvPool):
    __doc__ = _pool.ThreadingAsyncEnvPool.__doc__


class ProcessorAsyncEnvPool(AsyncEnvPool, _pool.ProcessorAsyncEnvPool):
    __doc__ = _pool.ProcessorAsyncEnvPool.__doc__
