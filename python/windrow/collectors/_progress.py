"""What a collector shows of its progress: a bar, ``progress=True``, and figures for a
``logger``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from windrow import _needs
from windrow._lazy import torch
from windrow._logger import NAMES, log_to

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from windrow._windrow import CollectorCore
    from windrow.collectors import BaseCollector

#: Episodes of which the mean return is shown.
RECENT = 100


class Returns:
    """Adds up the rewards of episodes, over environments and batches; the engine counts none.

    Each environment is in one episode at a time. Ids of trajectories tell episodes apart, and
    environments: that of environment ``i`` of ``n`` is ``i`` more than a multiple of ``n``.

    Attributes:
        recent: returns of the ``most`` episodes that ended last.
        lengths: how many frames of each were delivered.
        ended: how many have ended.
    """

    def __init__(self, num_envs: int, most: int | None = RECENT) -> None:
        self._num_envs = num_envs
        #: The id of each environment's episode that has not ended, its rewards and its frames so
        #: far.
        self._running: dict[int, tuple[int, float, int]] = {}
        self.recent: deque[float] = deque(maxlen=most)
        self.lengths: deque[int] = deque(maxlen=most)
        self.ended = 0

    def add(self, batch: TensorDictBase) -> None:
        """Adds the frames of ``batch``, in any dimensions, each episode's in the order of time over
        batches.
        """
        mask = batch.get(("collector", "mask"), None)
        numbers, reward, done = (
            (values if mask is None else values[mask]).reshape(
                batch.numel() if mask is None else -1, *values.shape[batch.ndim :]
            )
            for values in (
                batch["collector", "traj_ids"],
                batch["next", "reward"],
                batch["next", "done"],
            )
        )
        ids, episode, frames = numbers.unique(return_inverse=True, return_counts=True)
        sums = torch.zeros(len(ids), dtype=torch.float64, device=ids.device).index_add_(
            0, episode, reward.flatten(1).sum(-1, dtype=torch.float64)
        )
        ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        ended[episode[done.flatten(1).any(-1)]] = True
        for number, gained, length, is_over in zip(
            ids.tolist(), sums.tolist(), frames.tolist(), ended.tolist()
        ):
            self._add_to(number, gained, length, is_over)

    def _add_to(self, number: int, gained: float, length: int, is_over: bool) -> None:
        env = number % self._num_envs
        before, total, frames = self._running.get(env, (number, 0.0, 0))
        if before != number:
            total, frames = 0.0, 0
        total, frames = total + gained, frames + length
        if not is_over:
            self._running[env] = number, total, frames
            return
        self.recent.append(total)
        self.lengths.append(frames)
        self.ended += 1
        if before == number:
            self._running.pop(env, None)

    def mean(self) -> float | None:
        """The mean of the recent ones; None before an episode has ended."""
        return sum(self.recent) / len(self.recent) if self.recent else None


class Progress:
    """Follows the batches of ``collector``, for its bar and its logger.

    Returns are of rewards as batches have them. They are not known where batches have no ids of
    trajectories, or ``set_truncated`` ends episodes that go on.
    """

    def __init__(self, collector: BaseCollector) -> None:
        arguments, stats = collector._arguments, collector._core.stats()
        knows = arguments.track_traj_ids and not arguments.set_truncated
        self._returns = Returns(int(stats["num_envs"])) if knows else None
        self._bar = (
            Bar(type(collector).__name__, stats["total_frames"]) if arguments.progress else None
        )
        self._rows = Rows(collector) if arguments.logger is not None else None
        #: The batch that was counted last: one whose hooks or write an interruption has ended comes
        #: again.
        self._counted: tuple[int, int] | None = None

    def open(self, frames: int) -> None:
        """Shows the bar, unless it is there, at so many frames."""
        if self._bar is not None:
            self._bar.open(frames)

    def asked(self) -> None:
        """A batch is asked for."""
        if self._rows is not None:
            self._rows.phases.next("collecting")

    def answered(self) -> None:
        """A batch, or an error, is given to whoever has asked for it."""
        if self._rows is not None:
            self._rows.phases.next("learning")

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
        if self._bar is not None:
            self._bar.update(stats, self._returns, collector)
        if self._rows is not None:
            self._rows.update(stats, self._returns)

    def close(self) -> None:
        """Ends the bar, and logs what was not logged yet; the next batch begins another bar, at the
        frames that there are by then.
        """
        if self._bar is not None:
            self._bar.close()
        if self._rows is not None:
            self._rows.flush(self._returns)


class Bar:
    """A bar of frames: how many of all, frames a second, and beside them the mean return of recent
    episodes, and how many versions the weights that acted last are behind the newest, once weights
    were published.
    """

    def __init__(self, name: str, total: int | None) -> None:
        self._tqdm = _needs.module("progress=True", "tqdm.auto", "progress").tqdm
        self._name, self._total = name, total
        self._shown: Any = None

    def open(self, frames: int) -> None:
        if self._shown is None:
            self._shown = self._tqdm(
                desc=self._name,
                total=self._total,
                initial=frames,
                unit=" frames",
                unit_scale=True,
                dynamic_ncols=True,
            )

    def update(
        self, stats: dict[str, Any], returns: Returns | None, collector: BaseCollector
    ) -> None:
        bar = self._shown
        if bar is None:
            return
        mean = None if returns is None else returns.mean()
        figures = [] if mean is None else [f"return={mean:.4g}"]
        lags = _lags(collector._core) if stats["policy_version"] > 0 else []
        bar.set_postfix_str(
            ", ".join([*figures, *([f"lag={max(lags)}"] if lags else [])]), refresh=False
        )
        bar.update(stats["frames"] - bar.n)
        if stats["completed"]:
            self.close()

    def close(self) -> None:
        bar, self._shown = self._shown, None
        if bar is not None:
            bar.close()


class Rows:
    """Logs figures of ``collector`` under the names that people plot, ``log_interval`` seconds
    apart at least, and with its last frames.
    """

    def __init__(self, collector: BaseCollector) -> None:
        arguments = collector._arguments
        # The collector refers to this: what it refers to in turn would keep it.
        self._core, self._buffer = collector._core, collector.replay_buffer
        self._log = log_to("logger", arguments.logger)
        self._names, self._interval = NAMES[arguments.log_names], arguments.log_interval
        self.phases = Phases()
        self._logged_at = -float("inf")
        self._logged_frames = 0

    def update(self, stats: dict[str, Any], returns: Returns | None) -> None:
        """Logs a row if it is time for one, or the end."""
        if stats["completed"] or time.monotonic() - self._logged_at >= self._interval:
            self._write(stats, returns)

    def flush(self, returns: Returns | None) -> None:
        """Logs frames that came after the last row."""
        stats = self._core.stats()
        if stats["frames"] > self._logged_frames:
            self._write(stats, returns)

    def _write(self, stats: dict[str, Any], returns: Returns | None) -> None:
        self._logged_at, self._logged_frames = time.monotonic(), stats["frames"]
        figures = {
            self._names.get(name, name): value
            for name, value in self._figures(stats, returns).items()
        }
        self._log(figures, stats["frames"])

    def _figures(self, stats: dict[str, Any], returns: Returns | None) -> dict[str, float]:
        figures: dict[str, float] = {
            "time/total_timesteps": stats["frames"],
            "time/fps": stats["recent_frames_per_second"],
        }
        if returns is not None and returns.recent:
            figures["rollout/ep_rew_mean"] = sum(returns.recent) / len(returns.recent)
            figures["rollout/ep_len_mean"] = sum(returns.lengths) / len(returns.lengths)
        if returns is not None:
            figures["rollout/episodes"] = returns.ended
        figures |= {f"time/{phase}": seconds for phase, seconds in self.phases.take().items()}
        figures["policy/version"] = stats["policy_version"]
        figures["policy/age_max"] = stats["policy_age"]
        lags = _lags(self._core)
        if lags:
            figures |= {"policy/lag_mean": sum(lags) / len(lags), "policy/lag_max": max(lags)}
        buffer = self._buffer
        if buffer is not None and hasattr(buffer, "__len__"):
            figures["buffer/size"] = size = len(buffer)
            capacity = getattr(getattr(buffer, "storage", None), "max_size", None)
            if capacity:
                figures["buffer/fill"] = size / capacity
        lost = stats["workers"] - stats["workers_alive"]
        return figures | {
            "workers/alive": stats["workers_alive"],
            "workers/losses": stats["restarts"] + lost,
        }


class Phases:
    """Measures how long a loop over a collector waits for batches, and how long it works on
    them.
    """

    _PHASES = ("collecting", "learning")

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._now: tuple[str, float] | None = None

    def next(self, phase: str) -> None:
        """Another phase begins."""
        began = time.perf_counter()
        if self._now is None:
            self._seconds = dict.fromkeys(self._PHASES, 0.0)
        else:
            name, since = self._now
            self._seconds[name] += began - since
        self._now = phase, began

    def take(self) -> dict[str, float]:
        """Seconds in each phase since they were taken last; none where nothing loops over the
        collector.
        """
        if self._now is not None:
            self.next(self._now[0])
        seconds, self._seconds = self._seconds, dict.fromkeys(self._seconds, 0.0)
        return seconds


def _lags(core: CollectorCore) -> list[int]:
    """How many versions behind the newest weights those are that each worker has acted with
    last.
    """
    return [worker["policy_lag"] for worker in core.worker_stats() if worker["alive"]]


class Loop(Iterator[Any]):
    """A loop over a collector that shows its progress. The loop's end closes the bar, also where
    ``break`` has left it.
    """

    def __init__(self, collector: BaseCollector, progress: Progress) -> None:
        self._collector, self._progress = collector, progress

    def __next__(self) -> TensorDictBase:
        return next(self._collector)

    def __del__(self) -> None:
        self._progress.close()
