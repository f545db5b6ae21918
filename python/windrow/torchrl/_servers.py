"""An inference server that takes TorchRL's transports and configurations."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from windrow._arguments import warn_all_ignored
from windrow.modules import _inference

if TYPE_CHECKING:
    from tensordict import TensorDictBase

#: Seconds after which the thread that waits for a transport looks whether its server has ended.
_LOOK = 0.1
#: Arguments that TorchRL has and that have no effect, each with the value that holds and its
#: reason.
_IGNORED = {
    "service_backend_options": (None, "the server is a thread of this process"),
    "transport_options": (None, "clients of this process hand requests over in memory"),
    "request_spec": (None, "requests of any form are taken"),
    "response_spec": (None, "answers of any form are given"),
    "static_batch_size": (None, "no graph is captured"),
    "shutdown_event": (None, "shutdown() ends the server"),
}


class InferenceClient(_inference.InferenceClient):
    __doc__ = _inference.InferenceClient.__doc__

    _server: InferenceServer

    def submit(self, td: TensorDictBase) -> Future[TensorDictBase]:
        """Asks without waiting: the answer is the future's result."""
        return self._server._helpers.submit(self, td)


class InferenceServer(_inference.InferenceServer):
    """As :class:`windrow.modules.InferenceServer`, with TorchRL's further arguments.

    Args:
        model: maps requests to answers; see there.
        transport: an ``InferenceTransport`` of TorchRL, such as ``ThreadingTransport()`` or
            ``MPTransport()``, whose clients this server answers too; a name has no effect.
        server_config: an ``InferenceServerConfig`` of TorchRL, in place of arguments with the names
            of its fields.
        device_config: an ``InferenceDeviceConfig`` of TorchRL, in place of ``policy_device`` and
            ``output_device``.
        arguments: those of :class:`windrow.modules.InferenceServer`.

    Raises:
        ValueError: a configuration and arguments that it stands for are given.
    """

    def __init__(
        self,
        model: Callable[..., Any] | None = None,
        transport: object = "auto",
        *,
        server_config: object = None,
        device_config: object = None,
        **arguments: Any,
    ) -> None:
        warn_all_ignored(arguments, _IGNORED)
        arguments = {name: value for name, value in arguments.items() if name not in _IGNORED}
        configured(arguments, "server_config", server_config, {name: name for name in _BATCHING})
        configured(
            arguments,
            "device_config",
            device_config,
            {name: name for name in ("policy_device", "output_device")},
        )
        # None stands for the default.
        super().__init__(
            model,
            **{
                name: value
                for name, value in arguments.items()
                if value is not None or name == "policy_version_key"
            },
        )
        self.max_batch_size: int = arguments.get("max_batch_size") or 64
        self._transport: Any = transport if hasattr(transport, "drain") else None
        self._helpers = ThreadPoolExecutor(self.max_batch_size, "windrow-transport")

    def start(self) -> InferenceServer:
        super().start()
        if self._transport is not None:
            threading.Thread(target=self._serve, name="windrow-transport", daemon=True).start()
        return self

    def client(self, *, allow_pickle: bool = False) -> InferenceClient:
        self._check_running()
        self._check_allows(allow_pickle)
        return InferenceClient(self, allow_pickle)

    def shutdown(self, timeout: float | None = 5.0) -> None:
        super().shutdown(timeout)
        self._helpers.shutdown(wait=False)

    def _serve(self) -> None:
        """Answers the requests of the transport, while the server runs."""
        transport, own = self._transport, threading.local()

        def answer(request: TensorDictBase, callback: object) -> None:
            try:
                if not hasattr(own, "client"):
                    own.client = self.client()
                transport.resolve(callback, own.client(request))
            except Exception as error:
                transport.resolve_exception(callback, error)

        while self.is_alive:
            transport.wait_for_work(_LOOK)
            for request, callback in zip(*transport.drain(self.max_batch_size), strict=True):
                try:
                    self._helpers.submit(answer, request, callback)
                except RuntimeError as error:
                    # The server ends meanwhile.
                    transport.resolve_exception(callback, error)


_BATCHING = (
    "service_backend",
    "max_batch_size",
    "min_batch_size",
    "timeout",
    "collect_stats",
    "stats_window_size",
)


def configured(
    arguments: dict[str, Any], name: str, config: object, fields: dict[str, str]
) -> None:
    """Adds what ``config`` says to ``arguments``: its ``fields``, each with the name of the
    argument.

    Raises:
        ValueError: one of these is given as well.
    """
    if config is None:
        return
    twice = sorted(argument for argument in fields.values() if arguments.get(argument) is not None)
    if twice:
        raise ValueError(f"{name} stands for {', '.join(twice)}: give one of them")
    arguments.update((argument, getattr(config, field)) for field, argument in fields.items())
