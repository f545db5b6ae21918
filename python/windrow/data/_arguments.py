"""The arguments of buffers, each declared once."""

from collections.abc import Callable
from typing import Any

from windrow._arguments import Arguments, argument, ignored
from windrow._lazy import torch
from windrow._numbers import at_least, real
from windrow.data._limiters import RateLimiter
from windrow.data._part import Key
from windrow.data.replay_buffers.samplers import PrioritizedSampler, Sampler
from windrow.data.replay_buffers.storages import Storage
from windrow.data.replay_buffers.writers import Writer


class CommonArguments(Arguments):
    """Arguments of every buffer."""

    storage: Storage | Callable[[], Storage] | None = argument(
        "where frames are kept; a list of 1000 by default", default=None
    )
    writer: Writer | Callable[[], Writer] | None = argument(
        "which rows they are written to; one after another by default", default=None
    )
    batch_size: int | None = argument(
        "frames of a sample that does not name a number", default=None, check=at_least(1)
    )
    transform: Callable[[Any], Any] | None = argument(
        "called with each sample; what it returns is the sample",
        more="its method ``inv``, where it has one, is called with what is written; where that returns None, nothing is",
        default=None,
    )
    transform_factory: Callable[[], Callable[[Any], Any]] | None = argument(
        "returns transform", default=None
    )
    collate_fn: Callable[[Any], Any] | None = argument(
        "called with the frames of each sample, before transforms; returns the sample",
        more="the frames of a ``ListStorage`` are a list of TensorDicts, others one TensorDict",
        default=None,
    )
    pin_memory: bool = argument(
        "put samples into memory that a GPU reads directly, where there is one", default=False
    )
    limiter: RateLimiter | None = argument(
        "makes samples and writes wait for each other; by default they do not", default=None
    )
    seed: int | None = argument("what all choices follow from", default=None, check=at_least(0))
    generator: "torch.Generator | None" = argument(
        "a torch.Generator that seed is drawn from", default=None
    )
    sample_timeout: float = argument(
        "seconds that a sample waits for frames, and a write for a limiter",
        default=60.0,
        check=real,
    )
    consume_after_n_samples: int | None = argument(
        "how often a frame is drawn before it is removed; by default none is",
        more="the sampler is then a ``ConsumingSampler``",
        default=None,
        check=at_least(1),
    )
    shared: bool = argument("threads share every buffer, whatever is given", default=False)
    prefetch: int | None = argument(
        "samples that a thread draws ahead, while a learner uses others",
        more="for ``sample()`` without a size and without ``return_info``, and for iterations. The thread calls the transforms and pins the memory, too. "
        "What changes afterwards, such as frames, priorities or beta, is not in these samples, and checkpoints do not have them. A sample below 1 MiB that has no "
        "transform, no ``collate_fn`` and no ``pin_memory`` is drawn when it is asked for, which takes less time than two threads do",
        default=None,
        check=at_least(0),
    )
    dim_extend: int | None = ignored(
        "frames are written one by one, along the last dimension of a batch, which is time",
        default=None,
    )
    compilable: bool = ignored("nothing is compiled", default=False)
    checkpointer: object = ignored("dumps has one format", default=None)
    delayed_init: bool = ignored("memory is laid out when the first frames come", default=False)


class BufferArguments(CommonArguments):
    """Arguments of a buffer whose sampler can be chosen."""

    sampler: Sampler | Callable[[], Sampler] | None = argument(
        "how frames are chosen; all with the same probability by default", default=None
    )


class TensorDictBufferArguments(BufferArguments):
    """Arguments of a buffer whose samples carry what the sampler knows of them."""

    priority_key: Key = argument(
        "the entry that priorities are taken from",
        more="by ``update_tensordict_priority``, and of written frames that have it",
        default="td_error",
    )


class PriorityArguments(Arguments):
    """Arguments of a buffer's own prioritized sampler."""

    alpha: float = argument("exponent of priorities")
    beta: float = argument("exponent of weights")
    eps: float = argument("what is added to priorities", default=1e-8)

    @property
    def sampler(self) -> PrioritizedSampler:
        """The sampler: its arguments that the buffer declares have the same names."""
        names = ("alpha", "beta", "eps", "dtype", "reduction")
        return PrioritizedSampler(
            **{name: getattr(self, name) for name in names if hasattr(self, name)}
        )


class PrioritizedBufferArguments(PriorityArguments, CommonArguments):
    """Arguments of a buffer with a prioritized sampler."""

    dtype: "torch.dtype | None" = argument("no effect: priorities are float32", default=None)


class TensorDictPrioritizedBufferArguments(PriorityArguments, CommonArguments):
    """Arguments of a buffer with a prioritized sampler whose samples carry what it knows of
    them.
    """

    priority_key: Key = argument("as of TensorDictReplayBuffer", default="td_error")
    reduction: str = argument(
        "how several priorities of a frame make one, as of PrioritizedSampler", default="max"
    )


AnyBufferArguments = (
    BufferArguments | PrioritizedBufferArguments | TensorDictPrioritizedBufferArguments
)
"""Of any class of buffers."""


def either(name: str, arguments: CommonArguments, other: str, made_of: Callable[[Any], Any]) -> Any:
    """The argument ``name``, or the value that ``made_of`` makes of the ``other``. Both together
    are a ``TypeError``.
    """
    value, source = getattr(arguments, name), getattr(arguments, other)
    if source is None:
        return value
    if value is not None:
        raise TypeError(f"{name} and {other}: expected one of them")
    return made_of(source)


def seed_from(generator: "torch.Generator") -> int:
    return int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
