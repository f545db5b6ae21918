"""The limiter that makes samples and writes wait for each other."""

from typing import Self

from windrow._arguments import argument
from windrow._numbers import at_least, real
from windrow.data._part import Part

__all__ = ["RateLimiter"]


class RateLimiter(Part, kind="RateLimiter"):
    """Lets samples and writes through, or makes them wait, counted in frames. :meth:`min_size` and
    :meth:`sample_to_insert_ratio` make one.

    It watches the cursor ``written * samples_per_insert - sampled``. A sample of ``n`` frames waits
    while the buffer holds fewer than ``min_size_to_sample`` frames, or the sample would take the
    cursor below ``samples_per_insert * min_size_to_sample - error_buffer``; a write waits while it
    would take the cursor as far above, but never before the buffer holds ``min_size_to_sample``
    frames.

    A sample waits for collectors that are writing to the buffer, and fails at once if there are
    none. A write waits for samples in other threads. Either fails after the buffer's
    ``sample_timeout``, but for the writes of a collector that was started, which wait until it is
    shut down.

    Only a ratio makes writes wait. With :meth:`min_size`, as without a limiter, a collector that
    was started collects as fast as it can, however slow the learner is: it may overwrite frames, or
    reach its end, before they were sampled.

    Example:
        >>> from windrow.data import LazyTensorStorage, RateLimiter, ReplayBuffer
        >>> limiter = RateLimiter.sample_to_insert_ratio(4.0, min_size_to_sample=1000, error_buffer=2000.0)
        >>> ReplayBuffer(storage=LazyTensorStorage(100_000), limiter=limiter, batch_size=256).limiter
        RateLimiter.sample_to_insert_ratio(4.0, 1000, 2000.0)
    """

    samples_per_insert: float | None = argument(
        "samples of each frame; with None, writes never wait",
        kw_only=False,
        check=lambda name, value: None if value is None else real(name, value),
    )
    min_size_to_sample: int = argument(
        "frames that samples wait for", kw_only=False, check=at_least(0)
    )
    error_buffer: float = argument("how far off the cursor may be", kw_only=False, check=real)

    @classmethod
    def min_size(cls, min_size_to_sample: int) -> Self:
        """Samples wait until the buffer holds ``min_size_to_sample`` frames; writes never wait."""
        return cls(None, min_size_to_sample, float("inf"))

    @classmethod
    def sample_to_insert_ratio(
        cls, samples_per_insert: float, min_size_to_sample: int, error_buffer: float
    ) -> Self:
        """Every frame written is sampled ``samples_per_insert`` times on average.

        Args:
            samples_per_insert: above 0.
            min_size_to_sample: frames that the buffer must hold before any are sampled, at least 1.
            error_buffer: how far off the cursor may be to either side, in sampled frames: at least
                half of what the largest write adds and the largest sample takes away.

        A buffer raises ``ValueError`` for figures that would let no call through, and for more
        frames to wait for than it has rows.
        """
        return cls(samples_per_insert, min_size_to_sample, error_buffer)

    def __repr__(self) -> str:
        if self.samples_per_insert is None:
            return f"RateLimiter.min_size({self.min_size_to_sample})"
        figures = (self.samples_per_insert, self.min_size_to_sample, self.error_buffer)
        return f"RateLimiter.sample_to_insert_ratio({', '.join(map(str, figures))})"
