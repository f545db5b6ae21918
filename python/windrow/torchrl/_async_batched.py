"""A collector whose environments ask one policy, with TorchRL's further arguments."""

from __future__ import annotations

from typing import Any

from windrow._arguments import warn_all_ignored, warn_ignored
from windrow._types import Envs
from windrow.collectors import _async_batched
from windrow.torchrl._collectors import AsTorchRL
from windrow.torchrl._servers import configured

#: Arguments that TorchRL has and that have no effect, each with the value that holds and its
#: reason.
_IGNORED = {
    "env_exchange": ("auto", "processes share memory"),
    "envs_per_worker": (1, "each environment of Python has a process of its own"),
    "transition_chunk_size": ("auto", "frames are written where batches lie"),
    "worker_affinity": (None, "the system places processes"),
    "driver_affinity": (None, "the system places processes"),
}
_BATCHING = {
    "max_batch_size": "max_batch_size",
    "min_batch_size": "min_batch_size",
    "timeout": "server_timeout",
}
_DEVICES = {name: name for name in ("policy_device", "env_device", "storing_device")}


class AsyncBatchedCollector(AsTorchRL, _async_batched.AsyncBatchedCollector):
    """As :class:`windrow.collectors.AsyncBatchedCollector`, with TorchRL's further arguments.

    Args:
        create_env_fn: a list with an environment for each index; see there.
        server_config: an ``InferenceServerConfig`` of TorchRL, in place of ``max_batch_size``,
            ``min_batch_size`` and ``server_timeout``.
        device_config: an ``InferenceDeviceConfig`` of TorchRL, in place of ``policy_device``,
            ``env_device`` and ``storing_device``.
        policy_backend: where TorchRL evaluates the policy, such as ``"threading"``, has no effect;
            otherwise as of any collector.
        arguments: those of :class:`windrow.collectors.AsyncBatchedCollector`.

    Raises:
        ValueError: a configuration and arguments that it stands for are given.
    """

    def __init__(
        self,
        create_env_fn: Envs,
        *,
        server_config: object = None,
        device_config: object = None,
        policy_backend: str | None = None,
        **arguments: Any,
    ) -> None:
        warn_all_ignored(arguments, _IGNORED)
        arguments = {name: value for name, value in arguments.items() if name not in _IGNORED}
        if policy_backend in ("auto", "native", "torch"):
            arguments["policy_backend"] = policy_backend
        else:
            warn_ignored(
                "policy_backend",
                policy_backend,
                "threading",
                "a thread of this process evaluates the policy",
            )
        configured(arguments, "server_config", server_config, _BATCHING)
        configured(arguments, "device_config", device_config, _DEVICES)
        super().__init__(create_env_fn, **arguments)
