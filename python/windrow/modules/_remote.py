"""Policies that a server evaluates in another process, or on another machine, for collectors
anywhere.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from windrow import _codecs, _needs, envs
from windrow._arguments import Arguments, argument, takes
from windrow._numbers import at_least, real
from windrow._types import Env, Policy, Weights
from windrow._windrow import RemoteServerCore, RemoteWeightsCore
from windrow.collectors._ending import ALIVE, Ending
from windrow.policies.choose import Conditions, choose, exploration_name
from windrow.policies.weights import copy_weights, tensors_of, weights_of, widened

_FILES = ("certificate", "key", "authority")


def _tls(name: str, value: Mapping[str, Any]) -> dict[str, str]:
    """The contents of the files that ``tls`` names."""
    unknown = sorted(set(value) - {*_FILES, "server_name"})
    if unknown:
        raise ValueError(
            f"{name} has {', '.join(unknown)}: expected {', '.join(_FILES)} and server_name"
        )
    if ("certificate" in value) != ("key" in value):
        given, missing = (
            ("certificate", "key") if "certificate" in value else ("key", "certificate")
        )
        raise ValueError(f"{name} has a {given} without a {missing}: expected both or neither")
    return {
        key: Path(given).read_text() if key in _FILES else str(given)
        for key, given in value.items()
    }


def _token(name: str, value: object) -> str:
    """Checks that a token is text. The error shows only the type, since the value may be secret."""
    if not isinstance(value, str):
        raise TypeError(f"expected {name} as str, got {type(value).__name__}")
    return value


class RemoteArguments(Arguments):
    """How a server and those who ask it find and know each other."""

    token: str | None = argument(
        "a secret of at least 16 visible ASCII characters, which both sides have to know",
        more="each side proves to the other that it knows the token, the server first; the token itself does not travel. Choose a random one, such as "
        "``secrets.token_hex()``. A server at a port needs a token, or ``tls`` on both sides",
        default=None,
        check=_token,
    )
    tls: Mapping[str, Any] | None = argument(
        "encrypts, and lets both sides show who they are",
        more="``certificate`` and ``key`` of this side, and the ``authority`` that has signed the other's, as paths of PEM files; "
        "``server_name`` where the server's certificate has another name than its address",
        default=None,
        check=_tls,
    )
    allow_pickle: bool = argument(
        "exchange pickled objects with the other end, if that allows it too",
        more="whoever sends an object can run any code where it is read. Without it, only data crosses the connection",
        default=False,
    )
    max_message_bytes: int = argument(
        "bytes of a request or an answer, at most", default=4 << 20, check=at_least(1024)
    )
    max_weights_bytes: int = argument(
        "bytes of all weights, at most", default=1 << 30, check=at_least(1024)
    )

    def options(self) -> dict[str, Any]:
        """What the engine takes."""
        names = (
            "address",
            "token",
            "allow_pickle",
            "max_message_bytes",
            "max_weights_bytes",
            "timeout",
        )
        return {**{name: getattr(self, name) for name in names}, **(self.tls or {})}


class ClientArguments(RemoteArguments):
    """The arguments of one who asks."""

    address: str = argument(
        'where the server is, such as "unix:/run/user/1000/policy.sock" or "127.0.0.1:7777"',
        more="the path of a Unix socket, or host and port. A port, also one of this machine, needs a ``token`` or ``tls``",
        kw_only=False,
    )
    timeout: float = argument(
        "seconds that a call takes at most, in which a lost connection is opened again",
        default=30.0,
        check=real,
    )


class ServerArguments(RemoteArguments):
    """The arguments of a server."""

    address: str | None = argument(
        "as of RemotePolicy; port 0 lets the system choose",
        more="by default a Unix socket in the folder for temporary files, which only the same user can connect to. A port, also one of this "
        'machine such as ``"127.0.0.1:0"``, needs a ``token`` or ``tls``',
        default=None,
    )
    policy: Policy | None = argument(
        "a policy as of a collector; random actions by default",
        more="the server has a copy of a module",
        default=None,
        kw_only=False,
    )
    env: Env | None = argument(
        "an environment that the policy acts in, or an id",
        more="with it, more policies are evaluated in Rust",
        default=None,
    )
    policy_backend: str = argument("as of a collector", default="auto")
    exploration_type: "envs.ExplorationType | str | None" = argument(
        "as of a collector, where torch evaluates the policy", default=None
    )
    max_batch_size: int | None = argument(
        "most observations in one call of the policy", default=None, check=at_least(1)
    )
    timeout: float = argument(
        "seconds that an observation waits for others at most", default=0.01, check=real
    )


class RemotePolicy:
    """The policy of a :class:`RemoteServer`, for a collector:
    ``Collector(env, RemotePolicy(address), ...)``. Collectors with several workers, in threads or
    in processes, have a client for each.

    Observations of one step travel at once, and so do actions. ``track_policy_version`` tells of
    each frame which version of the server's weights acted. A request that was lost is asked again,
    within ``timeout``, and is answered once. An error of the policy, or the end of the server, is
    an error of the worker. It can be pickled, with its token.

    Raises:
        TypeError: an argument is missing, unknown or of the wrong type.
        ValueError: the address is malformed, or a port without ``token`` or ``tls``; the token is
            too short; a certificate cannot be read.
        OSError: a file cannot be read.
    """

    @takes(ClientArguments)
    def __init__(self, arguments: ClientArguments) -> None:
        self._remote_options = arguments.options()
        self._core = RemoteWeightsCore(self._remote_options)

    @property
    def address(self) -> str:
        """Where the server is."""
        return str(self._remote_options["address"])

    def update_policy_weights_(self, policy_or_weights: Weights) -> int:
        """Pushes weights to the server, for all who ask it; returns their version.

        Args:
            policy_or_weights: a module, a TensorDict of parameters or a ``state_dict``.

        Raises:
            RuntimeError: the weights belong to another policy, or the server did not take them; the
                message says whether that is sure.
            ConnectionError: there is no server, or it lets this client not in.
            TimeoutError: there was no answer in time.
        """
        return self._core.push(widened(weights_of(policy_or_weights)))

    def newer_weights(self, version: int | None = None) -> tuple[int, Any] | None:
        """The newest weights that were pushed, with their version; None where that is ``version``,
        or where none were pushed.

        Raises:
            ConnectionError: there is no server, or it lets this client not in.
            TimeoutError: there was no answer in time.
        """
        return self._core.pull(version)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _again, (self._remote_options,)

    def __repr__(self) -> str:
        return f"RemotePolicy({self.address!r})"


def _again(options: dict[str, Any]) -> RemotePolicy:
    policy = RemotePolicy.__new__(RemotePolicy)
    policy._remote_options, policy._core = options, RemoteWeightsCore(options)
    return policy


class RemoteServer(Ending):
    """Evaluates a policy for collectors anywhere, which have a :class:`RemotePolicy`: observations
    of those that ask at the same time make one call. Begins as it is made, and ends with its
    context or :meth:`shutdown`.

    Nothing that comes in is pickled, or is code: names, numbers, and weights as safetensors.

    Raises:
        TypeError: an argument is unknown or of the wrong type.
        ValueError: as of :class:`RemotePolicy`.
        OSError: the server cannot listen at the address; a file cannot be read.

    Example:
        >>> from torch import nn
        >>> from windrow.collectors import Collector
        >>> from windrow.modules import RemotePolicy, RemoteServer
        >>> with RemoteServer(nn.Linear(4, 2)) as server:
        ...     collector = Collector("CartPole-v1", RemotePolicy(server.address), frames_per_batch=100)
        ...     next(collector).shape
        torch.Size([100])
    """

    # Behind `__init__`, which may fail.
    _core: RemoteServerCore

    @takes(ServerArguments)
    def __init__(self, arguments: ServerArguments) -> None:
        _needs.torch("RemoteServer")
        codec = _codecs.codec(arguments.allow_pickle, arguments.max_message_bytes)
        conditions = Conditions(
            exploration_name(arguments.exploration_type), threads=True, served=True, codec=codec
        )
        choice = choose(
            arguments.policy, None, conditions, backend=arguments.policy_backend, env=arguments.env
        )
        self._source, self._choice = choice.source, choice
        if choice.beside is not None:
            # The first who asks shows whether the policy is called from the beginning.
            choice.beside.begin_attributes()
        self._core = RemoteServerCore(
            {**arguments.options(), "max_batch_size": arguments.max_batch_size}, choice.core
        )
        choice.tell()
        ALIVE.add(self)

    @property
    def address(self) -> str:
        """Where it listens: the socket, or host and port."""
        return self._core.address()

    @property
    def policy_version(self) -> int:
        """Version of the weights that were published last; 0 before the first were."""
        return int(self._core.stats()["policy_version"])

    def update_policy_weights_(self, policy_or_weights: Weights | None = None) -> int:
        """Publishes weights, which act from the next call of the policy on; returns their version.

        Args:
            policy_or_weights: a module, a TensorDict of parameters or a ``state_dict``; by default
                the module that the server was made with.

        Raises:
            ValueError: the weights belong to another policy.
            RuntimeError: there are no weights to take.
        """
        given = self._source if policy_or_weights is None else policy_or_weights
        if given is None:
            raise RuntimeError(
                "no weights were given, and the server has no module to take them from"
            )
        if self._choice.shared:
            # A function is called itself, with the modules that it holds.
            copy_weights(tensors_of(self._source), weights_of(given))
            given = {}
        return self._core.publish(self._choice.published(given))

    def stats(self) -> dict[str, Any]:
        """Figures of the calls of the policy, as of ``AsyncBatchedCollector.server_stats``, and of
        connections.
        """
        return self._core.stats()

    def shutdown(self) -> None:
        """Ends the server within a few seconds. Those who ask get an error."""
        if self._core.belongs_here():
            self._core.shutdown()

    def _leave(self, seconds: float) -> bool:
        self._core.leave()
        return True

    def _end_with(self, error: BaseException) -> None:
        self._core.leave()

    def __repr__(self) -> str:
        return (
            f"RemoteServer({self.address!r})"
            if self._core.belongs_here()
            else "RemoteServer(of another process)"
        )
