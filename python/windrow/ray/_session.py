"""Ray: how it begins and ends, and how batches, weights and errors travel through it.

Batches and weights travel as one array of bytes (:func:`pack`), which Ray carries without pickling.
What Ray delivers lies in memory that several processes may share: a write would change it for all
of them, or end the process. So :func:`unpack` copies it once, unless it is told that nobody will
write.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from windrow import _needs, _windrow
from windrow.collectors._ending import _end_all
from windrow.processes.exceptions import RemoteTraceback

if TYPE_CHECKING:
    import torch
    from ray.actor import ActorHandle
    from ray.exceptions import RayTaskError
    from tensordict import TensorDictBase

    from ray import ObjectRef
    from windrow._types import Array, Device

    Packable: TypeAlias = TensorDictBase | Mapping[str, torch.Tensor]

#: Arrays of fewer bytes go with a call, larger ones through Ray's object store, once for all who
#: get them.
INLINE = 100_000

#: Seconds that an actor may take to start, after which a warning says that it waits, and that it
#: may take to end by itself.
PATIENCE, TELL_AFTER, FAREWELL = 120.0, 10.0, 5.0

_lock = threading.Lock()
#: How many collectors, buffers and others use Ray, where the first of them has started it.
_leases = 0


def pack(batch: Packable) -> Array:
    """A TensorDict, or a dictionary of tensors by name, as one array of bytes.

    Raises:
        TypeError: an entry has an element type that windrow does not have, or cannot be pickled;
            the message names it.
    """
    return _windrow.pack(batch)


def unpack(
    packed: Array,
    *more: Array,
    copy: bool = True,
    dim: int = 0,
    stack: bool = False,
    device: Device | None = None,
) -> TensorDictBase:
    """The TensorDict that was packed; of several, one after the other along dimension ``dim``, or
    along a new one where they are to ``stack``.

    Without ``copy``, the tensors of one are views of the array: nobody may write to them, and they
    keep what Ray holds of it.

    Raises:
        ValueError: an array was not packed, or the TensorDicts do not fit each other.
    """
    return _windrow.unpack([packed, *more], copy, dim, stack, device)


def acquire(who: str, config: Mapping[str, Any] | None = None) -> tuple[Any, Callable[[], None]]:
    """Ray, started with the arguments ``config`` unless it runs already, and a function that gives
    it back: a Ray that was started here is shut down when the last one who has acquired it gives it
    back; one that was found is left alone.

    Raises:
        ImportError: Ray is not installed.
        Exception: what ``ray.init`` raises.
    """
    global _leases
    ray = _needs.module(who, "ray", "ray")
    _end_before_ray()
    with _lock:
        if not ray.is_initialized():
            ray.init(**{"include_dashboard": False, **(config or {})})
            _leases = 0
        elif not _leases:
            return ray, lambda: None
        _leases += 1
    held = [None]

    def release() -> None:
        global _leases
        with _lock:
            if held:
                held.clear()
                _leases -= 1
                if not _leases and ray.is_initialized():
                    ray.shutdown()

    return ray, release


@functools.cache
def _end_before_ray() -> None:
    """Ends collectors and evaluators before Ray at the end of the interpreter: Ray's end was
    registered when it was imported.
    """
    atexit.register(_end_all)


def actor(
    ray: ModuleType, kind: type, options: Mapping[str, Any] | None, *args: Any, **kwargs: Any
) -> ActorHandle[Any]:
    """An actor of class ``kind``, with one CPU unless ``options`` of ``ray.remote`` say
    otherwise.
    """
    return ray.remote(**{"num_cpus": 1, **(options or {})})(kind).remote(*args, **kwargs)


def _claims(options: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What actors with these options claim together, by the names of resources."""
    claims: dict[str, float] = {}
    for each in options:
        named = {
            "CPU": each.get("num_cpus", 1),
            "GPU": each.get("num_gpus"),
            "memory": each.get("memory"),
            **(each.get("resources") or {}),
        }
        for name, amount in named.items():
            claims[name] = claims.get(name, 0) + (amount or 0)
    return claims


def wants(ray: ModuleType, options: Mapping[str, Any]) -> str:
    """What an actor with these options waits for: what it claims, and what is free of it."""
    has, free = ray.cluster_resources(), ray.available_resources()
    claims = {name: amount for name, amount in _claims([options]).items() if amount}
    left = ", ".join(f"{free.get(name, 0):g} of {has.get(name, 0):g} {name}" for name in claims)
    return f"it claims {', '.join(f'{amount:g} {name}' for name, amount in claims.items())}, and of what Ray has, {left} are free"


def check_claims(ray: ModuleType, options: Sequence[Mapping[str, Any]], advice: str) -> None:
    """Raises RuntimeError where Ray has less than actors with these options claim together: they
    would wait for ever. What others use now may be free soon.
    """
    claims, has = _claims(options), ray.cluster_resources()
    for name, amount in claims.items():
        if amount > has.get(name, 0):
            what = f"{amount:g} {name}" if len(options) == 1 else f"{amount:g} {name} together"
            actors = "an actor claims" if len(options) == 1 else f"{len(options)} actors claim"
            raise RuntimeError(f"{actors} {what}, but Ray has {has.get(name, 0):g}: {advice}")


def get(refs: Any, timeout: float | None = None) -> Any:
    """What ``ray.get`` returns. An exception in an actor is raised as it was there, with the
    traceback there as its cause.

    Raises:
        ray.exceptions.RayError: the actor has died, or Ray has lost its answer.
        ray.exceptions.GetTimeoutError: there was no answer within ``timeout`` seconds.
    """
    import ray

    try:
        return ray.get(refs, timeout=timeout)
    except ray.exceptions.RayTaskError as error:
        raise_cause(error)


def raise_cause(error: RayTaskError) -> NoReturn:
    """Raises the exception behind a ``RayTaskError``, of the innermost actor."""
    from ray.exceptions import RayTaskError

    cause: object = error
    while isinstance(cause, RayTaskError):
        cause = cause.cause
    if not isinstance(cause, BaseException):
        raise error
    raise cause from RemoteTraceback(str(error))


class Sender:
    """Packs weights, and makes of them what to call several actors with: an array that is small, or
    a reference to a large one.
    """

    #: The array that was packed last, which Ray has copied.
    _memory: Any = None

    def __call__(self, weights: Packable) -> Array | ObjectRef[Any]:
        """Raises TypeError as :func:`pack`."""
        import ray

        packed = _windrow.pack(weights, self._memory)
        if packed.nbytes < INLINE:
            return packed
        self._memory = packed
        return ray.put(packed)


def drain(refs: Sequence[Any], timeout: float) -> None:
    """Waits at most ``timeout`` seconds for answers that nobody wants. Ray prints the errors among
    those that nobody has taken.
    """
    import ray

    for ref in ray.wait(list(refs), num_returns=len(refs), timeout=timeout)[0] if refs else ():
        with contextlib.suppress(Exception):
            ray.get(ref)


def kill(actors: Sequence[Any]) -> None:
    """Ends actors at once, also those that are gone already."""
    import ray

    for one in actors if ray.is_initialized() else ():
        with contextlib.suppress(Exception):
            ray.kill(one)
