"""A collector with several workers, where a ``Collector`` is asked for one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windrow._numbers import whole

if TYPE_CHECKING:
    from windrow.collectors import BaseCollector, MultiCollector


def several_for(
    kind: type[MultiCollector], args: tuple[Any, ...], given: dict[str, Any]
) -> BaseCollector | None:
    """The collector of ``kind`` with several workers that the arguments of a :class:`Collector` ask
    for; None if they do not.

    Raises:
        TypeError: ``num_collectors`` is not a whole number, or ``sync`` is not a bool.
        ValueError: arguments contradict each other.
    """
    backend, count = given.get("backend"), given.get("num_collectors")
    if backend not in (None, "direct", "process", "multiprocessing", "ray"):
        raise ValueError(f'backend must be "direct", "process" or "ray", got {backend!r}')
    if backend == "direct" or (backend is None and count is None):
        return None
    names = ("create_env_fn", "policy")
    rest = {**dict(zip(names, args)), **given}
    options = dict(rest.pop("backend_options", None) or {})
    sync = rest.pop("sync", None)
    for name in ("backend", "num_collectors"):
        rest.pop(name, None)
    twice = sorted(options.keys() & (rest.keys() | {"num_collectors", "num_workers", "sync"}))
    if twice:
        raise ValueError(f"backend_options has {', '.join(twice)}, which Collector takes itself")
    if sync is not None and not isinstance(sync, bool):
        raise TypeError(f"sync must be True or False, got {sync!r}")
    envs = rest.get("create_env_fn")
    if backend == "ray":
        return kind._on_ray(**rest, **options, num_collectors=count, sync=bool(sync))
    if not isinstance(envs, (list, tuple)):
        options["num_workers"] = 1 if count is None else whole("num_collectors", count, 1)
    elif count not in (None, len(envs)):
        raise ValueError(f"num_collectors={count}, but create_env_fn is a list of {len(envs)}")
    return kind(**rest, **options, sync=bool(sync))
