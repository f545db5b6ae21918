"""The progress bar of a collector: what ``progress=True`` shows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from windrow import _needs
from windrow._lazy import torch

if TYPE_CHECKING:
    from tensordict import TensorDictBase
    from windrow.collectors import BaseCollector

#: Episodes of which the mean return is shown.
RECENT = 100


class Returns:
    """Adds up the rewards of episodes, over environments and batches; the engine counts none.

    Each environment is in one episode at a time. Ids of trajectories tell episodes apart, and environments: that of environment ``i`` of ``n``
    is ``i`` more than a multiple of ``n``.

    Attributes:
        recent: returns of the ``most`` episodes that ended last.
    """

    def __init__(self, num_envs: int, most: int | None = RECENT) -> None:
        self._num_envs = num_envs
        #: The id of each environment's episode that has not ended, and its rewards so far.
        self._running: dict[int, tuple[int, float]] = {}
        self.recent: deque[float] = deque(maxlen=most)

    def add(self, batch: TensorDictBase) -> None:
        """Adds the frames of ``batch``, in any dimensions, each episode's in the order of time over batches."""
        mask = batch.get(("collector", "mask"), None)
        numbers, reward, done = (
            (values if mask is None else values[mask]).reshape(batch.numel() if mask is None else -1, *values.shape[batch.ndim :])
            for values in (batch["collector", "traj_ids"], batch["next", "reward"], batch["next", "done"])
        )
        ids, episode = numbers.unique(return_inverse=True)
        sums = torch.zeros(len(ids), dtype=torch.float64).index_add_(0, episode, reward.flatten(1).sum(-1, dtype=torch.float64))
        ended = torch.zeros(len(ids), dtype=torch.bool)
        ended[episode[done.flatten(1).any(-1)]] = True
        for number, gained, is_over in zip(ids.tolist(), sums.tolist(), ended.tolist()):
            self._add_to(number, gained, is_over)

    def _add_to(self, number: int, gained: float, is_over: bool) -> None:
        env = number % self._num_envs
        before, so_far = self._running.get(env, (number, 0.0))
        total = gained + (so_far if before == number else 0.0)
        if not is_over:
            self._running[env] = number, total
            return
        self.recent.append(total)
        if before == number:
            self._running.pop(env, None)

    def mean(self) -> float | None:
        """The mean of the recent ones; None before an episode has ended."""
        return sum(self.recent) / len(self.recent) if self.recent else None


class Progress:
    """Shows a bar of the frames of ``collector``: how many of all, frames a second, and beside them the mean return of recent episodes, of rewards
    as batches have them, and how many versions the weights that acted last are behind the newest.

    It does without a figure that cannot be known: returns where batches have no ids of trajectories, or ``set_truncated`` ends episodes that
    go on; the lag of versions before any weights were published.
    """

    def __init__(self, collector: BaseCollector) -> None:
        self._tqdm = _needs.progress_bar("progress=True")
        arguments, stats = collector._arguments, collector._core.stats()
        knows = arguments.track_traj_ids and not arguments.set_truncated
        self._returns = Returns(int(stats["num_envs"])) if knows else None
        self._name, self._total = type(collector).__name__, stats["total_frames"]
        self._bar: Any = None
        #: The batch that was counted last: one whose hooks or write an interruption has ended comes again.
        self._counted: tuple[int, int] | None = None

    def open(self, frames: int) -> None:
        """Shows the bar, unless it is there, at so many frames."""
        if self._bar is None:
            self._bar = self._tqdm(desc=self._name, total=self._total, initial=frames, unit=" frames", unit_scale=True, dynamic_ncols=True)

    def add_outside(self, batch: TensorDictBase) -> None:
        """Adds rewards of frames that are outside of the count."""
        if self._returns is not None:
            self._returns.add(batch)

    def add(self, batch: TensorDictBase, collector: BaseCollector) -> None:
        """Shows that ``batch`` has come, as the engine has delivered it."""
        stats = collector._core.stats()
        counted = stats["frames"], batch["next", "reward"].data_ptr()
        if counted == self._counted:
            return
        self._counted = counted
        if self._returns is not None:
            self._returns.add(batch)
        bar = self._bar
        if bar is None:
            return
        bar.set_postfix_str(self._beside(collector, stats), refresh=False)
        bar.update(stats["frames"] - bar.n)
        if stats["completed"]:
            self.close()

    def _beside(self, collector: BaseCollector, stats: dict[str, Any]) -> str:
        mean = None if self._returns is None else self._returns.mean()
        figures = [] if mean is None else [f"return={mean:.4g}"]
        if stats["policy_version"] > 0:
            lags = [worker["policy_lag"] for worker in collector._core.worker_stats() if worker["alive"]]
            figures += [f"lag={max(lags)}"] if lags else []
        return ", ".join(figures)

    def close(self) -> None:
        """Ends the bar; the next batch begins another one, at the frames that there are by then."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()


class Loop(Iterator[Any]):
    """A loop over a collector that shows its progress. The loop's end closes the bar, also where ``break`` has left it."""

    def __init__(self, collector: BaseCollector, progress: Progress) -> None:
        self._collector, self._progress = collector, progress

    def __next__(self) -> TensorDictBase:
        return next(self._collector)

    def __del__(self) -> None:
        self._progress.close()
