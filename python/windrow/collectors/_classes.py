import difflib
import inspect
from typing import Any, Self

from windrow._arguments import takes
from windrow.collectors._arguments import MultiArguments, SingleArguments
from windrow.collectors._base import BaseCollector


class Collector(BaseCollector):
    """One worker, which runs in the thread that asks for batches.

    It acts with the policy as it is when a batch is asked for, without :meth:`update_policy_weights_`.

    Raises:
        TypeError: an argument is missing, unknown or of the wrong type.
        ValueError: an argument makes no sense, or is for several workers.

    Example:
        >>> from windrow.collectors import Collector
        >>> collector = Collector("CartPole-v1", frames_per_batch=100, total_frames=300)
        >>> [batch.shape for batch in collector]
        [torch.Size([100]), torch.Size([100]), torch.Size([100])]
    """

    _direct = True

    @takes(SingleArguments)
    def __init__(self, arguments: SingleArguments) -> None:
        self._build(arguments)


class AsyncCollector(BaseCollector):
    """One worker in the background, which collects the next batch while the present one is being used.

    It acts with the weights that :meth:`update_policy_weights_` gave it.
    """

    _sync = False
    _threads = True


class MultiCollector(BaseCollector):
    """Several workers: a :class:`MultiSyncCollector` or a :class:`MultiAsyncCollector`, as ``sync`` says.

    ``create_env_fn`` is a list with an environment for each worker, an id or a function that makes one; or one of these, with
    ``num_workers``. Workers act with the weights that :meth:`update_policy_weights_` gave them.

    Raises:
        TypeError: ``sync`` is missing, or the number of workers.
        ValueError: an argument makes no sense; the message names what would.
    """

    _threads = True
    _single = False

    # `__new__` chooses the class alone: what users may give stands in `__init__`.
    __signature__ = inspect.signature(MultiArguments)

    def __new__(cls, *_: Any, **arguments: Any) -> Self:
        chosen: Any = cls
        if cls is MultiCollector:
            sync = arguments.get("sync")
            if sync is None:
                near = difflib.get_close_matches("sync", arguments, n=1)
                raise TypeError(f"MultiCollector needs sync=True or sync=False{f', got {near[0]}' if near else ''}")
            chosen = MultiSyncCollector if sync else MultiAsyncCollector
        return super().__new__(chosen)

    @takes(MultiArguments)
    def __init__(self, arguments: MultiArguments) -> None:
        if arguments.sync is not None and arguments.sync != self._sync:
            raise ValueError(f"{type(self).__name__} with sync={arguments.sync}: leave sync out, or use MultiCollector")
        self._build(arguments)


class MultiSyncCollector(MultiCollector):
    """Several workers; each batch has a share of every one, collected after it was asked for.

    Its arguments are those of :class:`MultiCollector`; ``sync`` can be left out.
    """

    _sync = True


class MultiAsyncCollector(MultiCollector):
    """Several workers; each batch is one worker's, whichever is ready first, and the others go on meanwhile.

    Its arguments are those of :class:`MultiCollector`; ``sync`` can be left out.
    """

    _sync = False
