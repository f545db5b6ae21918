"""A collector from its build to its end, while its workers die."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from tensordict.nn import TensorDictModule

from kills.books import Books
from kills.mortal import ACTIONS, LAST_WORDS, LIFE, Mortal
from windrow import WorkerError
from windrow.collectors import AsyncCollector, Collector, MultiAsyncCollector, MultiSyncCollector
from windrow.data import LazyTensorStorage, ReplayBuffer

FRAMES_PER_BATCH = 120
TRAJS_PER_BATCH = 8
#: Frames that are collected for each death.
FRAMES_PER_DEATH = 25 * FRAMES_PER_BATCH
WORKERS = 2
#: More than all environments step before they die by themselves, or than is collected before
#: somebody kills their worker.
MORE_THAN_A_LIFE = 2 * LIFE * WORKERS * 2 // FRAMES_PER_BATCH * FRAMES_PER_BATCH * 2
#: Seconds after which a collector from which nothing comes hangs.
PATIENCE = 60.0
#: Seconds between two looks for losses.
GLANCE = 2e-4

CLASSES: dict[str, Any] = {
    "Collector": Collector,
    "AsyncCollector": AsyncCollector,
    "MultiSyncCollector": MultiSyncCollector,
    "MultiAsyncCollector": MultiAsyncCollector,
}
USES = ("yield", "replay", "trajectories")
#: How a worker dies, and what the error says of it.
WAYS = {
    "kill": r"signal 9 \(SIGKILL\)",
    "stop": r"signal 9 \(SIGKILL\)",
    "exit": "exit status 3",
    "raise": f"LookupError: {LAST_WORDS}",
    "abort": r"signal 6 \(SIGABRT\)",
}
RULES = ("restart", "raise", "continue")


@dataclass(frozen=True)
class Cell:
    """Which collector, what becomes of its batches, how its workers die, and what their loss does
    to it.
    """

    kind: str
    use: str
    way: str
    rule: str
    num_envs: int
    #: Workers that are to die.
    deaths: int

    @property
    def workers(self) -> int:
        return WORKERS if self.kind.startswith("Multi") else 1

    @property
    def is_own(self) -> bool:
        """Whether the environment does it itself."""
        return self.way not in ("kill", "stop")

    @property
    def has_to_fail(self) -> bool:
        return self.rule == "raise" or self.rule == "continue" and self.deaths == self.workers

    @property
    def may_fail(self) -> bool:
        # Nobody knows how many die in time, where they do by themselves.
        return self.has_to_fail or self.rule == "continue" and self.is_own

    @property
    def total_frames(self) -> int:
        return MORE_THAN_A_LIFE if self.has_to_fail else self.deaths * FRAMES_PER_DEATH


def cells(deaths: int) -> list[Cell]:
    """Every class, use, death and rule, in an order of its own each time. ``deaths``: in a life in
    which workers are replaced.
    """
    found = []
    for kind, use, way, rule in (
        (k, u, w, r) for k in CLASSES for u in USES for w in WAYS for r in RULES
    ):
        cell = Cell(kind, use, way, rule, random.randint(1, 2), deaths if rule == "restart" else 1)
        if rule == "continue":
            if cell.workers == 1:
                # Nobody would be left to go on.
                continue
            cell = replace(cell, deaths=random.randint(1, cell.workers))
        found.append(cell)
    random.shuffle(found)
    return found


def weights(version: int) -> dict[str, torch.Tensor]:
    """Weights by which each element of an action is this version."""
    return {
        "module.weight": torch.zeros(ACTIONS, 1),
        "module.bias": torch.full((ACTIONS,), float(version)),
    }


@dataclass
class Life:
    """What came of one collector."""

    cell: Cell
    books: Books = field(default_factory=Books)
    #: Workers whose losses were told, in that order.
    told: list[int] = field(default_factory=list)
    #: Milliseconds from each death to the moment when it was told.
    noticed: list[float] = field(default_factory=list)
    failed: bool = False
    #: The worker that was killed and whose loss nobody has told, and when it was.
    victim: tuple[int, int] | None = None

    def run(self) -> Life:
        """Collects, has workers die, and checks."""
        cell, accuse = self.cell, self.books.accuse
        collector, buffer = built(cell, cell.total_frames)
        reaper = Reaper(self, collector)
        reaper.start()
        error, kept = None, []
        try:
            for batch in batches(collector, buffer):
                # Looked at later: this thread shall be waiting when a worker dies.
                kept.append(batch.clone())
        except WorkerError as raised:
            error, at = raised, time.monotonic_ns()
        except Exception as raised:
            accuse(f"I4: collection ended with {raised!r}")
        reaper.over.set()
        reaper.join()
        for batch in kept:
            self.books.enter(batch)
        self.books.close(whole=cell.use == "trajectories")
        delivered = self.books.rows
        if error is not None:
            self.failed = True
            self.hear(error.worker, str(error), at)
            if not cell.may_fail:
                accuse(f"I4: collection ended with {error}")
            self._after(collector)
        elif cell.has_to_fail:
            accuse(
                f"I4: the loss of a worker did not end the collector; told were those of {self.told}"
            )
        self._await_last(reaper)
        try:
            collector.shutdown()
        except WorkerError as late:
            # Another may have died by itself while the first one's error was on its way. Nobody
            # asked before.
            self.hear(late.worker, str(late), None)
            if not (cell.may_fail and cell.is_own):
                accuse(f"I4: the shutdown told of {late}")
        self._count(collector, delivered)
        return self

    def hear(self, worker: int, loss: str, now: int | None) -> None:
        """A worker was lost with this message, which was seen at ``now``, if that says when it
        could be.
        """
        self.told.append(worker)
        if not re.search(WAYS[self.cell.way], loss):
            self.books.accuse(f"I4: a loss with another reason: {loss}")
        if self.victim is not None and self.victim[0] == worker:
            died, self.victim = self.victim[1], None
        else:
            said = re.findall(rf"{LAST_WORDS}(\d+)", loss)
            if not said:
                self.books.accuse(f"I4: a loss that nobody has caused: {loss}")
                return
            died = int(said[-1])
        if now is not None:
            self.noticed.append((now - died) / 1e6)

    def _await_last(self, reaper: Reaper) -> None:
        """Of one who was killed beside the last frames, nobody may have heard yet."""
        begun = time.monotonic()
        reaper.hear()
        while self.victim is not None and time.monotonic() - begun < PATIENCE:
            time.sleep(GLANCE)
            reaper.hear()
        if self.victim is not None:
            self.books.accuse(f"I4: nobody tells that worker {self.victim[0]} was killed")

    def _after(self, collector: Any) -> None:
        """The error has come once, and another collector begins beside the one that is over."""
        try:
            next(collector)
        except (RuntimeError, StopIteration) as later:
            if isinstance(later, WorkerError):
                self.books.accuse(f"I4: the error came twice: {later}")
        else:
            self.books.accuse("I4: a batch came after the error")
        cell, total = replace(self.cell, way="kill"), 4 * FRAMES_PER_BATCH
        another, buffer = built(cell, total)
        books = Books()
        try:
            for batch in batches(another, buffer):
                books.enter(batch)
            figures = another.stats()
            if books.rows + figures["dropped_frames"] != total:
                books.accuse(f"I4: the next collector delivered {books.rows} of {total} frames")
        except Exception as error:
            books.accuse(f"I4: the next collector ended with {error!r}")
        another.shutdown(raise_on_error=False)
        books.close(whole=cell.use == "trajectories")
        self.books.rows += books.rows
        self.books.violations += books.violations

    def _count(self, collector: Any, delivered: int) -> None:
        """All frames that were collected were delivered or dropped, and each loss is known,
        once.
        """
        cell, told, figures = self.cell, self.told, collector._core.stats()
        frames, dropped = figures["frames"], figures["dropped_frames"]
        if delivered + dropped != frames or not self.failed and frames != cell.total_frames:
            self.books.accuse(
                f"I4: {delivered} rows were delivered and {dropped} dropped; {frames} of {cell.total_frames} were counted"
            )
        if cell.rule != "restart" and len(set(told)) < len(told):
            self.books.accuse(f"I4: a loss was told twice, of workers {told}")
        restarts = len(told) if cell.rule == "restart" else 0
        alive = max(0, cell.workers - len(told)) if cell.rule == "continue" else cell.workers
        if (figures["restarts"], figures["workers_alive"]) != (restarts, alive):
            self.books.accuse(
                f"I4: {len(told)} losses were told, {figures['restarts']} workers replaced, {figures['workers_alive']} alive"
            )


class Reaper(threading.Thread):
    """Until the run is over: kills workers, about evenly over the frames that are collected, unless
    they die by themselves; hears of losses; publishes weights.
    """

    def __init__(self, life: Life, collector: Any) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self._life = life
        # Asking the collector itself would take an error away from those who wait for its batches.
        self._core, self._collector = collector._core, collector
        self._published = collector._source._choice.published
        self._version = 0

    def run(self) -> None:
        left = 0 if self._life.cell.is_own else self._life.cell.deaths
        following = random.randrange(FRAMES_PER_DEATH)
        while not self.over.wait(GLANCE):
            self.hear()
            due = (
                left > 0 and self._life.victim is None and self._core.stats()["frames"] >= following
            )
            if due and self._kill():
                left, following = left - 1, following + FRAMES_PER_DEATH
            if random.randrange(64) == 0:
                self._publish()
        self.hear()

    def hear(self) -> None:
        """Notes the losses that the collector has told since."""
        # The collector's warning takes losses too, and keeps them.
        for loss in (*self._collector._warned_losses(), *self._core.take_losses()):
            now, worker = time.monotonic_ns(), re.match(r"worker (\d+)", loss)
            self._life.hear(int(worker[1]) if worker else -1, loss, now)

    def _kill(self) -> bool:
        """Kills any of those that have a process; whether there was one."""
        time.sleep(random.uniform(0, 5e-4))
        pids = [
            (worker, its["pid"])
            for worker, its in enumerate(self._core.worker_stats())
            if its["pid"] is not None
        ]
        if not pids:
            return False
        worker, pid = random.choice(pids)
        if self._life.cell.way == "stop":
            _signal(pid, signal.SIGSTOP)
            time.sleep(random.uniform(0, 5e-3))
        self._life.victim = worker, time.monotonic_ns()
        _signal(pid, signal.SIGKILL)
        return True

    def _publish(self) -> None:
        try:
            version = self._core.publish(self._published(weights(self._version + 1)), None)
        except RuntimeError:
            # Refused once the collector is over.
            return
        self._version += 1
        if version != self._version:
            self._life.books.accuse(f"I5: publication {self._version} became version {version}")


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        # It has died of something else.
        pass


def built(cell: Cell, total: int) -> tuple[Any, Any]:
    """The collector of ``cell``, and the replay buffer that it fills if it fills one."""
    buffer = (
        ReplayBuffer(storage=LazyTensorStorage(total), batch_size=1)
        if cell.use == "replay"
        else None
    )
    make = partial(Mortal, cell.way)
    policy = TensorDictModule(torch.nn.Linear(1, ACTIONS), ["clock"], ["action"])
    policy.load_state_dict(weights(0))
    collector = CLASSES[cell.kind](
        [make] * cell.workers if cell.workers > 1 else make,
        policy,
        policy_backend="native",
        placement="processes",
        num_envs=cell.num_envs if cell.num_envs > 1 else None,
        frames_per_batch=FRAMES_PER_BATCH,
        total_frames=total,
        trajs_per_batch=TRAJS_PER_BATCH if cell.use == "trajectories" else None,
        replay_buffer=buffer,
        track_policy_version=True,
        seed=random.getrandbits(48),
        on_loss=10**6 if cell.rule == "restart" else cell.rule,
        # Batches without a worker lack its frames, or have those of others.
        allow_partial_batch=random.choice([True, False]),
    )
    return collector, buffer


def batches(collector: Any, buffer: Any) -> Iterator[Any]:
    """All that a collector delivers. What it has written comes at once, in the end or before the
    error that has ended it.
    """
    if buffer is None:
        yield from collector
        return
    collector.start()
    last, frames = time.monotonic(), 0
    while collector.is_running():
        now = collector._core.stats()["frames"]
        if now != frames:
            last, frames = time.monotonic(), now
        if time.monotonic() - last > PATIENCE:
            raise TimeoutError("nothing is written")
        time.sleep(GLANCE)
    error = None
    try:
        # The error that has ended the collection, which the buffer would raise in place of its
        # frames.
        collector.stats()
    except WorkerError as raised:
        error = raised
    if len(buffer):
        yield buffer[:]
    if error is not None:
        raise error
