from __future__ import annotations

import difflib
from typing import Any

from windrow.collectors._base import BaseCollector


class Collector(BaseCollector):
    """One worker, which runs in the thread that asks for batches.

    It acts with the policy as it is when a batch is asked for, without :meth:`update_policy_weights_`.

    Args:
        create_env_fn: as of :class:`BaseCollector`, as are all others; there is one environment, or ``num_envs`` of it.
        policy: who acts; None acts at random.
        arguments: those of :class:`BaseCollector`, by name.

    Raises:
        ValueError: an argument makes no sense, or is for several workers.

    Example:
        >>> from windrow.collectors import Collector
        >>> collector = Collector("CartPole-v1", frames_per_batch=100, total_frames=300)
        >>> [batch.shape for batch in collector]
        [torch.Size([100]), torch.Size([100]), torch.Size([100])]
    """

    _direct = True

    def __init__(self, create_env_fn: Any, policy: Any = None, **arguments: Any) -> None:
        backend = arguments.pop("backend", None)
        if backend not in (None, "direct"):
            raise ValueError(f"backend={backend!r}: use MultiSyncCollector or MultiAsyncCollector for several workers")
        for name in ("sync", "num_collectors", "backend_options"):
            if arguments.pop(name, None) not in (None, 1):
                raise ValueError(f"{name} is for several workers: use MultiCollector")
        super().__init__(create_env_fn, policy, **arguments)


class AsyncCollector(BaseCollector):
    """One worker in the background, which collects the next batch while the present one is being used.

    Its arguments are those of :class:`BaseCollector`. It acts with the weights that :meth:`update_policy_weights_` gave it.
    """

    _sync = False
    _threads = True


class MultiCollector(BaseCollector):
    """Several workers: a :class:`MultiSyncCollector` or a :class:`MultiAsyncCollector`, as ``sync`` says.

    Workers act with the weights that :meth:`update_policy_weights_` gave them.

    Args:
        create_env_fn: a list with an environment for each worker, an id or a function that makes one; or one of these, with
            ``num_workers``.
        policy: who acts; None acts at random.
        sync: whether each batch has a share of every worker.
        arguments: those of :class:`BaseCollector`, by name.

    Raises:
        TypeError: ``sync`` is missing, or the number of workers.
        ValueError: an argument makes no sense; the message names what would.
    """

    _threads = True
    _single = False

    def __new__(cls, *_: Any, sync: bool | None = None, **arguments: Any) -> MultiCollector:
        if cls is not MultiCollector:
            return super().__new__(cls)
        if sync is None:
            near = difflib.get_close_matches("sync", arguments, n=1)
            raise TypeError(f"MultiCollector needs sync=True or sync=False{f', got {near[0]}' if near else ''}")
        return super().__new__(MultiSyncCollector if sync else MultiAsyncCollector)

    def __init__(self, create_env_fn: Any, policy: Any = None, *, sync: bool | None = None, **arguments: Any) -> None:
        if sync is not None and sync != self._sync:
            raise ValueError(f"{type(self).__name__} with sync={sync}: leave sync out, or use MultiCollector")
        super().__init__(create_env_fn, policy, **arguments)


class MultiSyncCollector(MultiCollector):
    """Several workers; each batch has a share of every one, collected after it was asked for.

    Its arguments are those of :class:`MultiCollector`, without ``sync``.
    """

    _sync = True


class MultiAsyncCollector(MultiCollector):
    """Several workers; each batch is one worker's, whichever is ready first, and the others go on meanwhile.

    Its arguments are those of :class:`MultiCollector`, without ``sync``.
    """

    _sync = False
