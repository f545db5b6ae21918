"""A server that evaluates one model for many clients, in batches."""

import contextlib
import copy
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self, TypeVar

from windrow import _needs
from windrow._arguments import Arguments, argument, ignored, takes
from windrow._keys import Key
from windrow._lazy import module, tensordict, torch
from windrow._numbers import at_least, real
from windrow._types import Device
from windrow._windrow import PATIENCE, ClientCore, ServerCore
from windrow.collectors._ending import ALIVE, Ending
from windrow.collectors._workers import device_of
from windrow.modules._door import Door, RemoteClient
from windrow.policies.served import Figures
from windrow.policies.weights import check_model, copy_weights, devices_of, tensors_of, weights_of

_acting = module("windrow.policies.acting")
T = TypeVar("T")
_THREAD = "the server is a thread of this process"


class ServerArguments(Arguments):
    """The arguments of a server."""

    model: Callable[..., Any] | None = argument(
        "maps requests, a TensorDict [requests, ...], to answers of the same batch size",
        more="a module of tensordict or any other callable. The server calls a copy of a module, whose weights "
        ":meth:`~InferenceServer.update_policy_weights_` renews",
        default=None,
        kw_only=False,
    )
    policy_factory: Callable[[], Any] | None = argument(
        "a function that makes the model, in place of it", default=None
    )
    max_batch_size: int = argument(
        "most requests in one call of the model", default=64, check=at_least(1)
    )
    min_batch_size: int = argument(
        "requests that a call waits for, up to timeout",
        more="in any case it waits for those that are about to come, as far as that is known of their clients",
        default=1,
        check=at_least(1),
    )
    timeout: float = argument(
        "seconds that a request waits for others at most", default=0.01, check=real
    )
    collate_fn: "Callable[[list[tensordict.TensorDictBase]], tensordict.TensorDictBase] | None" = (
        argument("makes a batch of a list of requests; by default torch.stack", default=None)
    )
    device: Device | None = argument("the default of policy_device", default=None)
    policy_device: Device | None = argument(
        "where the model is, and requests are moved to; by default where its weights are",
        default=None,
    )
    output_device: Device | None = argument(
        "where answers are moved to; by default they stay where they are", default=None
    )
    policy_version: int = argument("version of the first weights", default=0, check=at_least(0))
    policy_version_key: Key | None = argument(
        "where answers hold the version of the weights that made them, int64; None for nowhere",
        default="policy_version",
    )
    allow_pickle: bool = argument(
        "exchange pickled objects with clients in other processes that allow it too",
        more="such a client is made by ``client(allow_pickle=True)``. Whoever sends an object can run any code where it is read. Without it, requests and "
        "answers between processes are data: tensors, numbers, text, and lists and dictionaries of these",
        default=False,
    )
    transport: object = ignored(
        "clients of this process hand requests over in memory, those of others through a socket",
        default="auto",
    )
    service_backend: str = ignored(_THREAD, default="thread")
    num_clients: int | None = ignored("any number of clients may ask", default=None)
    collect_stats: bool = ignored("figures cost next to nothing", default=True)
    stats_window_size: int = ignored("times are those of the last 1024", default=1024)
    weight_sync: object = ignored("update_policy_weights_ takes weights", default=None)
    weight_sync_model_id: str = ignored("there is one model", default="policy")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.model is None) == (self.policy_factory is None):
            raise TypeError(
                f"expected either model or policy_factory, got {'neither' if self.model is None else 'both'}"
            )
        for name in ("model", "policy_factory"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise TypeError(
                    f"{name} must be something that can be called, got {type(value).__name__}"
                )


class InferenceServer(Ending):
    """Evaluates a model for many clients: a thread gathers their requests and calls the model once
    for all that wait.

    Each request is a TensorDict; all of them have the same entries and shapes. Clients of one
    server may be in any threads, and pickled ones in any processes of this machine. The exploration
    type in which a client asks holds for its answer; those who ask in another one get theirs from
    another call. An error of the model is raised by those requests that it was called with, and the
    server goes on.

    Between processes, requests and answers are data, unless ``allow_pickle`` is given at both ends.
    Answers are on the CPU, or on the device that the request's TensorDict names. An error whose
    type is not built in becomes a ``RuntimeError`` that names the type.

    Raises:
        TypeError: an argument is missing, unknown or of the wrong type.
        ValueError: an argument has a value that cannot be used.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from windrow.modules import InferenceServer
        >>> policy = TensorDictModule(torch.nn.Linear(4, 2), in_keys=["observation"], out_keys=["action"])
        >>> with InferenceServer(policy, max_batch_size=8) as server:
        ...     answer = server.client()(TensorDict({"observation": torch.zeros(4)}))
        >>> answer["action"].shape, answer["policy_version"]
        (torch.Size([2]), tensor(0))
    """

    # Behind `__init__`, which may fail.
    _core: ServerCore
    _started = False
    _ended = False

    @takes(ServerArguments)
    def __init__(self, arguments: ServerArguments) -> None:
        _needs.torch("InferenceServer")
        self._model = _Model(arguments)
        self._figures = Figures(arguments.max_batch_size)
        self._allow_pickle = bool(arguments.allow_pickle)
        self._core = ServerCore(
            self._model.evaluate,
            arguments.max_batch_size,
            arguments.min_batch_size,
            arguments.timeout,
        )
        self._door: Door | None = None
        self._opening = threading.Lock()
        ALIVE.add(self)

    def start(self) -> Self:
        """Lets clients ask.

        Raises:
            RuntimeError: the server was started before.
        """
        if self._started:
            raise RuntimeError("the server was started already")
        self._started = True
        return self

    def __enter__(self) -> Self:
        return self if self._started else self.start()

    def client(self, *, allow_pickle: bool = False) -> "InferenceClient":
        """One who asks. A client that is pickled asks from the process where it is read, through a
        socket.

        Args:
            allow_pickle: whether a client in another process exchanges pickled objects with the
                server, which has to allow that too.

        Raises:
            RuntimeError: the server was not started, or has ended.
            ValueError: the server does not allow pickled objects.
        """
        self._check_running()
        self._check_allows(allow_pickle)
        return InferenceClient(self, allow_pickle)

    def clients(self, num_clients: int, *, allow_pickle: bool = False) -> "list[InferenceClient]":
        """``num_clients`` clients, each as :meth:`client` makes it."""
        return [self.client(allow_pickle=allow_pickle) for _ in range(num_clients)]

    @property
    def is_alive(self) -> bool:
        """Whether clients can ask."""
        return (
            self._started
            and not self._ended
            and self._core.belongs_here()
            and self._core.ended() is None
        )

    @property
    def policy_version(self) -> int:
        """Version of the weights that act."""
        return self._model.version

    def update_policy_weights_(
        self,
        policy_or_weights: object = None,
        *,
        weights: object = None,
        policy: object = None,
        model_id: str | None = None,
    ) -> None:
        """Copies weights into the served model, between two of its calls, as the next version.

        Args:
            policy_or_weights: a module, a TensorDict of parameters or a ``state_dict``; by default
                the module that the server was built with.
            weights: the same, by name.
            policy: a module.
            model_id: ``"policy"``, the only model there is.

        Raises:
            ValueError: weights were given twice, or belong to another model.
            RuntimeError: there are no weights to take.
        """
        given = [source for source in (policy_or_weights, weights, policy) if source is not None]
        if len(given) > 1:
            raise ValueError(f"expected weights from one source, got {len(given)}")
        if model_id is not None:
            check_model(model_id)
        self._model.load(given[0] if given else None)

    def update_model(self, fn: Callable[[Any], T], mark_weight_update: bool = True) -> T:
        """What ``fn`` returns, called with the served model between two of its calls: a new
        version, unless told otherwise.
        """
        with self._model.lock:
            returned = fn(self._model.served)
            self._model.version += bool(mark_weight_update)
        return returned

    def stats(self, *, reset: bool = False) -> dict[str, float | int]:
        """Figures: ``requests``; ``batches`` of them, and ``failed_batches`` among these;
        ``avg_batch_size`` and ``batch_fill``, its share of ``max_batch_size``; ``requests_per_s``,
        ``batches_per_s``; ``p50_queue_ms`` and ``p95_queue_ms`` of requests that wait for a call,
        ``p50_forward_ms`` and ``p95_forward_ms`` of calls, of the last 1024; ``clients`` of this
        process; ``policy_version``, ``weight_updates``.

        Args:
            reset: begin to count anew.
        """
        figures = self._figures.of(self._core.stats(), reset=reset)
        version = self._model.version
        return {
            **figures,
            "policy_version": version,
            "weight_updates": version - self._model.first_version,
        }

    def shutdown(self, timeout: float | None = 5.0) -> None:
        """Ends the server. Requests that wait, and later ones, raise an error.

        Raises:
            TimeoutError: a call of the model did not return in ``timeout`` seconds; its thread ends
                when it does.
        """
        if not self._core.belongs_here():
            return
        self._ended = True
        if self._door is not None:
            self._door.close()
        if not self._core.shutdown(float("inf") if timeout is None else timeout):
            raise TimeoutError(
                f"a call of the model did not return within {timeout} s: its thread ends when it does"
            )

    def _leave(self, seconds: float) -> bool:
        if not self._core.belongs_here():
            return True
        self._ended = True
        if self._door is not None:
            self._door.close()
        return self._core.leave(seconds)

    def _end_with(self, error: BaseException) -> None:
        if not self._leave(PATIENCE):
            error.add_note(self._left_behind())

    def _left_behind(self) -> str:
        return "InferenceServer was left with a call of its model that has not returned: its thread ends when it does"

    def _check_running(self) -> None:
        if not self._started:
            raise RuntimeError(
                "the server has to be started first: call start(), or use it in a with statement"
            )
        if self._ended:
            raise RuntimeError("the inference server was shut down")

    def _check_allows(self, allow_pickle: bool) -> None:
        if allow_pickle and not self._allow_pickle:
            raise ValueError(
                "client(allow_pickle=True) needs a server that lets objects cross: InferenceServer(..., allow_pickle=True)"
            )

    def _opened(self) -> Door:
        """Where clients of other processes ask."""
        with self._opening:
            self._check_running()
            if self._door is None:
                self._door = Door(self, self._allow_pickle)
            return self._door

    def __repr__(self) -> str:
        state = "ended" if self._ended else "running" if self._started else "not started"
        return f"InferenceServer({state}, version {self._model.version})"


class InferenceClient:
    """Asks an :class:`InferenceServer`: ``client(tensordict)`` waits for the answer, which is a
    TensorDict of the same batch size.

    Threads that share a client take turns: give each its own.

    Raises:
        RuntimeError: the server has ended, or ends meanwhile; or the client was made before a fork,
            in another process.
        Exception: what the model has raised.
    """

    def __init__(self, server: InferenceServer, allow_pickle: bool = False) -> None:
        # Keeps the server alive.
        self._server = server
        self._allow_pickle = allow_pickle
        self._core: ClientCore = server._core.client()

    def __call__(self, tensordict: "tensordict.TensorDictBase") -> "tensordict.TensorDictBase":
        return self._answer_to(tensordict, _acting.context())

    def _answer_to(
        self, tensordict: "tensordict.TensorDictBase", context: str | None
    ) -> "tensordict.TensorDictBase":
        self._server._check_running()
        model, number = self._server._model, next(self._server._model.numbers)
        model.requests[number] = tensordict, context
        try:
            self._core.ask(number, threading.current_thread() is threading.main_thread())
            return model.answers[number]
        finally:
            model.requests.pop(number)
            model.answers.pop(number, None)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return RemoteClient, (*self._server._opened().address, self._allow_pickle)


class _Model:
    """The model, and the requests and answers that wait, by number."""

    def __init__(self, arguments: ServerArguments) -> None:
        self._device = device_of("policy_device", arguments.policy_device, arguments.device)
        self._out = (
            None if arguments.output_device is None else torch.device(arguments.output_device)
        )
        self._collate = arguments.collate_fn or torch.stack
        self._version_key = arguments.policy_version_key
        self._source = arguments.model if isinstance(arguments.model, torch.nn.Module) else None
        served: Any = (
            arguments.model if arguments.policy_factory is None else arguments.policy_factory()
        )
        #: The model that is called.
        self.served = served if self._source is None else copy.deepcopy(served)
        if self._device is None and (
            arguments.policy_device is not None or arguments.device is not None
        ):
            self._device = torch.device("cpu")
        if isinstance(self.served, torch.nn.Module):
            devices = devices_of(self.served)
            if self._device is None and len(devices) == 1 and devices != {torch.device("cpu")}:
                (self._device,) = devices
            if self._device is not None:
                self.served.to(self._device)
        self.first_version = self.version = arguments.policy_version
        #: Held while the model is called or changed.
        self.lock = threading.Lock()
        self.numbers = itertools.count()
        self.requests: dict[int, tuple[Any, str | None]] = {}
        self.answers: dict[int, Any] = {}

    def evaluate(self, numbers: list[int]) -> None:
        """Answers the requests ``numbers``."""
        by_context: dict[str | None, dict[int, Any]] = {}
        for number in numbers:
            # One that was interrupted has gone.
            if (request := self.requests.get(number)) is not None:
                by_context.setdefault(request[1], {})[number] = request[0]
        with self.lock:
            for context, requests in by_context.items():
                self._evaluate(requests, context)

    def _evaluate(self, requests: dict[int, Any], context: str | None) -> None:
        batch: Any = self._collate(list(requests.values()))
        if self._device is not None:
            batch = batch.to(self._device)
        with _evaluating(context):
            answer = self.served(batch)
        answer = batch if answer is None else answer
        size = getattr(answer, "batch_size", None)
        if size is None or size[:1] != (len(requests),):
            got = type(answer).__name__ if size is None else f"one of {list(size)}"
            raise TypeError(
                f"expected a TensorDict with {len(requests)} answers, one for each request, from the model, got {got}"
            )
        if self._out is not None:
            answer = answer.to(self._out)
        if self._version_key is not None:
            answer.set(self._version_key, torch.full(size, self.version, device=answer.device))
        self.answers.update(
            (number, own)
            for number, own in zip(requests, answer.unbind(0))
            if number in self.requests
        )

    def load(self, given: object) -> None:
        """Takes weights over, as the next version."""
        given = self._source if given is None else given
        if given is None:
            raise RuntimeError(
                "no weights were given, and the server has no module to take them from"
            )
        if not isinstance(self.served, torch.nn.Module):
            raise RuntimeError(
                f"the model is a {type(self.served).__name__}, which has no weights: update_model changes it"
            )
        weights: Mapping[str, Any] = weights_of(given)
        with self.lock:
            copy_weights(tensors_of(self.served), weights)
            self.version += 1


@contextlib.contextmanager
def _evaluating(context: str | None) -> Iterator[None]:
    if context is not None:
        with _acting.acting(context, _acting.aggregation()):
            yield
        return
    with torch.no_grad():
        yield
