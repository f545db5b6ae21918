"""Whole trajectories that are written to buffers, so many at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cartpole import cartpole
from ledger import Ledger, check_ledger, length, trajectories_of
from windrow.collectors import AsyncCollector, Collector, MultiAsyncCollector, MultiSyncCollector
from windrow.data import LazyTensorStorage, ReplayBuffer

COLLECTORS = [
    pytest.param(lambda **arguments: Collector(Ledger, **arguments), id="Collector"),
    pytest.param(
        lambda **arguments: Collector(Ledger, num_envs=3, **arguments), id="three in lockstep"
    ),
    pytest.param(
        lambda **arguments: AsyncCollector(Ledger, placement="threads", **arguments),
        id="AsyncCollector",
    ),
    pytest.param(
        lambda **arguments: MultiSyncCollector([Ledger] * 2, placement="threads", **arguments),
        id="MultiSyncCollector",
    ),
    pytest.param(
        lambda **arguments: MultiAsyncCollector([Ledger] * 2, placement="threads", **arguments),
        id="MultiAsyncCollector",
    ),
]


class Recorder:
    """A buffer of someone else's."""

    def __init__(self) -> None:
        self.writes: list[Any] = []

    def extend(self, batch: Any) -> None:
        self.writes.append(batch.clone())


class Recording(ReplayBuffer):
    """A buffer of windrow's, whose transform sees what is written."""

    def __init__(self) -> None:
        self.writes: list[Any] = []
        super().__init__(storage=LazyTensorStorage(2000), transform=self)

    def __call__(self, batch: Any) -> Any:
        return batch

    def inv(self, batch: Any) -> Any:
        self.writes.append(batch.clone())
        return batch


@pytest.mark.filterwarnings("ignore:.*take turns")
@pytest.mark.parametrize("make", COLLECTORS)
@pytest.mark.parametrize("buffer", [Recorder, Recording])
@pytest.mark.parametrize("trajs_per_write", [1, 3, None])
def test_nothing_is_lost_or_written_twice(
    make: Any, buffer: Any, trajs_per_write: int | None
) -> None:
    recorder = buffer()
    with make(
        frames_per_batch=18,
        total_frames=360,
        trajs_per_batch=2,
        trajs_per_write=trajs_per_write,
        replay_buffer=recorder,
    ) as collector:
        assert len(collector) == 20
        written: list[tuple[int, int]] = []
        for batch in collector:
            assert batch is None
            new, recorder.writes = recorder.writes, []
            groups = [trajectories_of(write) for write in new]
            # Only the last group of what one batch completes is smaller.
            if trajs_per_write is None:
                assert len(groups) <= 1
            else:
                assert all(len(group) == trajs_per_write for group in groups[:-1])
                assert all(0 < len(group) <= trajs_per_write for group in groups)
            written += [trajectory for group in groups for trajectory in group]
        check_ledger(written)
        stats = collector.stats()
        frames = sum(length(number, episode) for number, episode in written)
        assert (stats["frames"], frames + stats["dropped_frames"]) == (360, 360)
        assert stats["batches"] == 20


def test_the_engine_and_python_write_the_same() -> None:
    def kept(**arguments: Any) -> Any:
        buffer = ReplayBuffer(storage=LazyTensorStorage(2000))
        collector = MultiSyncCollector(
            [cartpole] * 2,
            placement="threads",
            frames_per_batch=50,
            total_frames=1000,
            seed=3,
            trajs_per_batch=2,
            trajs_per_write=2,
            replay_buffer=buffer,
            **arguments,
        )
        assert list(collector) == [None] * 20
        return buffer[:]

    plain = kept()
    assert 0 < len(plain) <= 1000
    assert (kept(postproc=lambda batch: batch) == plain).all()
    compact = kept(compact_obs=True)
    assert ("next", "observation") not in compact.keys(True)
    assert torch.equal(compact["observation"], plain["observation"])


def test_every_write_is_post_processed() -> None:
    recorder, seen = Recorder(), []

    def postproc(batch: Any) -> Any:
        seen.append(len(trajectories_of(batch)))
        return batch.set("seen", torch.full(batch.shape, len(seen)))

    with Collector(
        Ledger,
        frames_per_batch=30,
        total_frames=90,
        trajs_per_batch=1,
        trajs_per_write=2,
        replay_buffer=recorder,
        postproc=postproc,
    ) as collector:
        assert list(collector) == [None] * 3
    assert max(seen) == 2
    assert [int(write["seen"][0]) for write in recorder.writes] == list(range(1, len(seen) + 1))


def test_buffers_of_torchrl_are_filled_in_the_background() -> None:
    data = pytest.importorskip("torchrl.data")
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(1000))
    collector = Collector(
        Ledger,
        frames_per_batch=20,
        total_frames=400,
        trajs_per_batch=4,
        trajs_per_write=2,
        replay_buffer=buffer,
    )
    collector.start()
    while collector.is_running():
        pass
    collector.async_shutdown()
    check_ledger(trajectories_of(buffer[:]))
    assert len(buffer) == 400 - collector.stats()["dropped_frames"]


def test_what_ctrl_c_kept_from_being_written_is_written_later() -> None:
    class Interrupted(Recorder):
        def extend(self, batch: Any) -> None:
            if len(self.writes) == 1 and not self.interrupted:
                self.interrupted = True
                raise KeyboardInterrupt
            super().extend(batch)

        interrupted = False

    recorder = Interrupted()
    with Collector(
        Ledger,
        frames_per_batch=40,
        total_frames=40,
        trajs_per_batch=1,
        trajs_per_write=1,
        replay_buffer=recorder,
    ) as collector:
        with pytest.raises(KeyboardInterrupt):
            next(collector)
        # The batch that was interrupted, whose writes are done now.
        assert list(collector) == [None]
        written = [trajectory for write in recorder.writes for trajectory in trajectories_of(write)]
        assert len(written) > 2
        check_ledger(written)


@pytest.mark.parametrize(
    "arguments",
    [
        {"trajs_per_write": 2},
        {"trajs_per_write": 2, "trajs_per_batch": 2},
        {"trajs_per_write": 2, "replay_buffer": Recorder()},
        {"trajs_per_write": 0, "trajs_per_batch": 2, "replay_buffer": Recorder()},
    ],
)
def test_groups_that_make_no_sense(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="trajs_per_write"):
        Collector(Ledger, frames_per_batch=20, **arguments)
