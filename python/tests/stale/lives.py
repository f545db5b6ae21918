"""A collector or an evaluator from its build to its end, while the state of its policy changes."""

from __future__ import annotations

import copy
import pickle
import re
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import cloudpickle
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase

from stale.forms import Form, OfTensorDict
from stale.worlds import STEPS, World, Wrapper
from windrow.collectors import (
    AsyncBatchedCollector,
    AsyncCollector,
    Collector,
    Evaluator,
    MultiAsyncCollector,
    MultiSyncCollector,
)

FRAMES_PER_BATCH = 12
#: Differences of float32 that are none.
TOLERANCE = 1e-3
#: Batches after which the newest weights act.
PATIENCE = 40

CLASSES: dict[str, Any] = {
    "Collector": Collector,
    "AsyncCollector": AsyncCollector,
    "MultiSyncCollector": MultiSyncCollector,
    "MultiAsyncCollector": MultiAsyncCollector,
    "AsyncBatchedCollector": AsyncBatchedCollector,
    "Evaluator": Evaluator,
}
#: Where each class acts with its policy: in the calling thread, with copies, or for all
#: environments together.
PLACES = {
    "Collector": ("inline", "threads", "processes"),
    "AsyncCollector": ("threads", "processes"),
    "MultiSyncCollector": ("inline", "threads", "processes"),
    "MultiAsyncCollector": ("threads", "processes"),
    "AsyncBatchedCollector": ("threading", "multiprocessing"),
    "Evaluator": ("thread", "process"),
}
BACKENDS = ("auto", "torch", "native")
#: What changes the state: the program between batches; an environment's step or a wrapper around
#: it; a hook before or after a batch; or a thread of the program that does nothing else.
CHANGERS = ("program", "step", "wrapper", "before", "after", "thread")


#: How the life of a collector may go.
LIVES = ("followed", "recaptured", "called after", "called", "refused")


@dataclass(frozen=True)
class Cell:
    """Which policy is changed by whom, and who acts with it where."""

    form: Form
    kind: str
    place: str
    backend: str
    changer: str
    #: Whether the policy maps a TensorDict to a TensorDict.
    is_wrapped: bool = False

    def __str__(self) -> str:
        given = " of a tensordict" if self.is_wrapped else ""
        return f"{self.form.name}{given}, changed by {self.changer}, {self.kind} {self.place} {self.backend}"

    @property
    def pairs(self) -> set[tuple[str, object]]:
        """What comes together in it, that should be seen together."""
        kind = self.form.kind
        return {
            (kind, self.kind),
            (kind, self.is_wrapped),
            (self.kind, self.place),
            (self.kind, self.changer),
            (self.kind, self.is_wrapped),
        }

    @property
    def is_together(self) -> bool:
        """Whether a worker's policy acts for two environments that step together."""
        takes = self.kind not in ("Evaluator", "AsyncBatchedCollector")
        return takes and zlib.crc32(str(self).encode()) % 4 != 0

    @property
    def is_copied(self) -> bool:
        return self.place != "inline"

    @property
    def in_process(self) -> bool:
        """Whether the policy acts in another process; that of a served one does not."""
        return self.place in ("processes", "process")

    @property
    def cost(self) -> int:
        """How many things make it take longer: another process, a TensorDict, several changes,
        several captures.
        """
        several = self.changer in ("step", "wrapper", "thread")
        return self.in_process + self.is_wrapped + several + (not self.is_together)

    @property
    def makes_sense(self) -> bool:
        form, changer = self.form, self.changer
        if form.is_local and self.is_copied:
            return False
        if self.kind == "Evaluator" and (form.is_mode or changer != "program"):
            return False
        if changer in ("step", "wrapper"):
            # The environments have no policy to change, or it is not theirs to change.
            elsewhere = self.in_process or self.place == "multiprocessing"
            return not elsewhere and not form.is_local and form.undo is None
        if changer == "thread":
            return form.is_raced and form.action is None and not form.is_flag
        return True


@dataclass
class Sum:
    """Counts of all changes by their result."""

    changes: int = 0
    rows: int = 0
    #: Lives of policies that Rust evaluated to the end, by the first proof or by a later one as
    #: well; of those that were called from some batch on, or from the first; and of those that
    #: ended in an error, or were not built for one, where that is an answer.
    lives: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LIVES, 0))
    forms: set[str] = field(default_factory=set)
    #: Forms of which no copy can be made.
    uncopied: set[str] = field(default_factory=set)
    #: Actions of an older state, of no state, and of none before anything changed.
    stale: int = 0
    first: int = 0
    torn: int = 0
    #: What else is wrong.
    other: int = 0
    violations: list[str] = field(default_factory=list)

    def add(self, other: Sum) -> None:
        """Adds what came of others."""
        for how, count in other.lives.items():
            self.lives[how] += count
        self.forms |= other.forms
        self.uncopied |= other.uncopied
        self.violations += other.violations
        for name in ("changes", "rows", "stale", "torn", "first", "other"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Wrong(Exception):
    """An action that the state does not explain."""


class Life:
    """One collector whose policy changes ``changes`` times."""

    def __init__(self, cell: Cell, total: Sum, changes: int) -> None:
        self.cell, self.total, self.changes = cell, total, changes
        self.form = cell.form
        self.policy, self._change = cell.form.make()
        if cell.is_wrapped and is_wrappable(self.policy):
            self.policy = OfTensorDict(self.policy)
        #: How many changes have begun, and have ended.
        self.begun = self.done = 0
        self._changing = threading.Lock()
        #: The first and the last number of changes that each version of weights may have.
        self.versions: dict[int, tuple[int, int]] = {0: (0, 0)}
        self._steps = 0
        self._is_over = threading.Event()
        self.backend = "called"
        self._collector: Any = None
        self._captured = 0

    def change(self) -> None:
        # Environments of several workers change it. One that is late would bring an older state
        # back.
        with self._changing:
            self.begun += 1
            with torch.no_grad():
                self._change(self.form.level(self.begun))
            self.done += 1

    def run(self) -> None:
        """Lives, and adds what came of it to the sum."""
        self.total.forms.add(self.form.name)
        try:
            collector = self._built()
        except Exception as error:
            self._hear_at_build(str(error))
            return
        try:
            with collector:
                self._live(collector)
                self._end()
        except Wrong as wrong:
            what, _, text = str(wrong).partition(": ")
            is_copied = self.form.is_whole_copy and not (
                self.form.is_of_process and self.cell.in_process
            )
            if is_copied or not self.cell.is_copied or not self._is_called():
                self._wrong(what, text)
            else:
                self.total.uncopied.add(self.form.name)
        except Exception as error:
            self._hear(error)
        finally:
            self._is_over.set()

    def _wrong(self, what: str, text: str) -> None:
        setattr(self.total, what, getattr(self.total, what) + 1)
        self.total.violations.append(f"{what}: {self.cell} ({self.backend}): {text}")

    def _hear_at_build(self, text: str) -> None:
        if self.cell.backend == "native" and "policy" in text:
            self.total.lives["refused"] += 1
        elif self.cell.in_process or (
            self.cell.is_copied and not (self.form.is_whole_copy and is_copyable(self.policy))
        ):
            # A collector that acts with copies needs a form that can be copied.
            self.total.uncopied.add(self.form.name)
        else:
            self._wrong("other", f"was not built: {text}")

    def _hear(self, error: Exception) -> None:
        """An error is an answer where it was asked for, and where a copy cannot follow; there it
        names what has changed.
        """
        text = str(error)
        # A thread may begin to change it as soon as this error is raised.
        has_changed = self.begun > 0 or self.cell.changer == "thread"
        names = self.cell.in_process and re.search(rf"\b({self.form.names})|pickle", text)
        # Weights keep their names, and attributes of copies are sent as pickles.
        unfit = self.cell.is_copied and re.search(
            "no weight called|is missing, expected shape|weights of another policy|cannot be sent|parts of .* have changed",
            text,
        )
        unfit = unfit or (self.cell.is_copied and not self.form.is_whole_copy)
        if has_changed and (names or unfit or self.cell.backend == "native" and "policy" in text):
            self.total.changes += 1
            self.total.lives["refused"] += 1
        else:
            self._wrong("other", f"{type(error).__name__}: {text[-600:]}")

    def _end(self) -> None:
        """Notes who evaluated the policy."""
        if self.backend == "called":
            how = "called"
        elif self._is_called():
            how = "called after"
        else:
            how = "recaptured" if captures() > self._captured else "followed"
        self.total.lives[how] += 1

    def _is_called(self) -> bool:
        """Whether torch evaluates the policy now."""
        now = getattr(self._collector, "policy_backend", self.backend)
        return self.backend == "called" or now not in ("native", self.backend)

    # Building

    def _built(self) -> Any:
        cell = self.cell
        kind: Any = CLASSES[cell.kind]
        make: Callable[[], Any] = World
        if cell.changer == "step":
            make = partial(World, self._stepped)
        elif cell.changer == "wrapper":
            make = partial(_wrapped, self._stepped)
        if cell.kind == "Evaluator":
            evaluator = kind(
                make,
                self.policy,
                backend=cell.place,
                policy_backend=cell.backend,
                num_trajectories=2,
                metrics_fn=self._metrics,
                exploration_type="random",
            )
            self.backend = "native" if isinstance(evaluator._choice.core, dict) else "called"
            self._captured = captures()
            return evaluator
        several = cell.kind not in ("Collector", "AsyncCollector")
        place = (
            {"backend": cell.place}
            if cell.kind == "AsyncBatchedCollector"
            else {"placement": cell.place}
        )
        options: dict[str, Any] = {"num_envs": 2} if cell.is_together else {}
        if cell.changer == "before":
            options["pre_collect_hook"] = self._before
        if cell.changer == "after":
            options["post_collect_hook"] = lambda batch: self.change()
        collector = kind(
            [make] * 2 if several else make,
            self.policy,
            frames_per_batch=FRAMES_PER_BATCH,
            total_frames=-1,
            policy_backend=cell.backend,
            track_policy_version=True,
            **place,
            **options,
        )
        self._collector = collector
        self.backend = "native" if collector.policy_backend == "native" else "called"
        self._captured = captures()
        return collector

    def _stepped(self) -> None:
        self._steps += 1
        if self._steps % (2 * FRAMES_PER_BATCH // 3) == 0 and self.begun < 4 * self.changes:
            self.change()

    def _before(self) -> None:
        if self.begun < self.changes:
            self.change()
            if self.cell.is_copied:
                self._publish(self._collector)

    def _metrics(self, batch: Any) -> dict[str, float]:
        self._episodes = batch.clone()
        return {}

    # Living

    def _live(self, collector: Any) -> None:
        if self.cell.kind == "Evaluator":
            self._evaluate(collector)
        elif self.cell.changer == "thread":
            self._race(collector)
        elif self.cell.is_copied:
            self._collect_with_copies(collector)
        else:
            self._collect_here(collector)

    def _evaluate(self, evaluator: Any) -> None:
        for number in range(self.changes + 1):
            if number:
                self.change()
            evaluator.evaluate(self.policy if isinstance(self.policy, torch.nn.Module) else None)
            self._check(self._episodes, lambda _: (number, number))
            self._follow(1 if number else 0)

    def _follow(self, count: int) -> None:
        self.total.changes += count

    def _collect_here(self, collector: Any) -> None:
        for number in range(self.changes + 1):
            if number and self.cell.changer == "program":
                self.change()
            before = self.done + (self.cell.changer == "before" and self.begun < self.changes)
            batch = collector.next()
            # A hook after the batch changes what the batch did not have.
            after = self.done - (self.cell.changer == "after")
            self._check(batch, lambda _, before=before, after=after: (before, max(after, before)))
        self._follow(self.begun)

    def _publish(self, collector: Any) -> None:
        low = self.done
        collector.update_policy_weights_()
        self.versions[len(self.versions)] = low, self.begun

    def _collect_with_copies(self, collector: Any) -> None:
        self._check(collector.next(), self._of_version)
        for _ in range(self.changes):
            if self.cell.changer == "program":
                self.change()
                # A copy does not have it yet.
                self._check(collector.next(), self._of_version)
            if self.cell.changer != "before":
                self._publish(collector)
            newest = len(self.versions) - 1
            for _ in range(PATIENCE):
                batch = collector.next()
                newest_in = self._check(batch, self._of_version)
                if newest_in >= newest:
                    break
            else:
                raise Wrong(f"stale: version {newest} did not act within {PATIENCE} batches")
        self._follow(self.begun)

    def _of_version(self, version: int) -> tuple[int, int]:
        if version < 0:
            # Weights moved while it acted.
            return min(low for low, _ in self.versions.values()), self.begun
        low, high = self.versions.get(version, self.versions[len(self.versions) - 1])
        # State that threads share may be newer.
        lives = self.form.is_shared and self._is_called() and not self.cell.in_process
        return low, self.begun if lives else high

    def _race(self, collector: Any) -> None:
        """A thread changes the state without pause, while this one collects."""
        learner = threading.Thread(target=self._learn)
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        learner.start()
        try:
            for _ in range(self.changes):
                if self.cell.is_copied:
                    self._publish(collector)
                low = self.done
                batch = collector.next()
                high = self.begun
                of_version = self._of_version
                self._check(
                    batch,
                    of_version
                    if self.cell.is_copied
                    else lambda _, low=low, high=high: (low, high),
                    races=True,
                )
        finally:
            sys.setswitchinterval(before)
            self._is_over.set()
            learner.join()
        self._follow(self.changes)

    def _learn(self) -> None:
        while not self._is_over.wait(1e-3) and self.begun < 20_000:
            self.change()

    # Checking

    def _check(
        self, batch: Any, allowed: Callable[[int], tuple[int, int]], *, races: bool = False
    ) -> int:
        """Checks each row; returns the newest version in it."""
        there = (
            batch["collector", "mask"]
            if ("collector", "mask") in batch.keys(True)
            else torch.ones(batch.shape, dtype=torch.bool)
        )
        observed, acted = (
            batch["observation"][there].reshape(-1, 2),
            batch["action"][there].reshape(-1, 2),
        )
        versions = (
            batch["policy_version"][there].flatten().tolist()
            if "policy_version" in batch.keys()
            else [0] * len(acted)
        )
        self.total.rows += len(acted)
        # A reader beside a writer sees the present value.
        is_own = (
            races
            and self._is_called()
            and (not self.cell.is_copied or self.form.is_shared and not self.cell.in_process)
        )
        for observation, action, version in zip(observed, acted, versions):
            low, high = allowed(int(version))
            if races:
                self._check_race(observation, action, low, high, is_own)
            elif not any(self._is(observation, action, number) for number in range(low, high + 1)):
                self._accuse(observation, action, low, high)
        return max(map(int, versions))

    def _is(self, observation: torch.Tensor, action: torch.Tensor, number: int) -> bool:
        expected = self.form.expected(observation, self.form.level(number))
        return bool(torch.allclose(expected, action, atol=TOLERANCE))

    def _accuse(self, observation: torch.Tensor, action: torch.Tensor, low: int, high: int) -> None:
        shown = f"{action.tolist()} for {observation.tolist()}, expected the state after {low} to {high} changes of {self.begun}"
        matches = [
            number for number in range(self.begun + 1) if self._is(observation, action, number)
        ]
        if not self.begun:
            raise Wrong(f"first: {shown}")
        if not matches:
            raise Wrong(f"torn: {shown}")
        raise Wrong(
            f"stale: {shown}, got that after {matches[-1]}"
            if matches[0] < low
            else f"other: {shown}, got that after {matches[0]}, too early"
        )

    def _check_race(
        self, observation: torch.Tensor, action: torch.Tensor, low: int, high: int, is_own: bool
    ) -> None:
        one, other = (action - observation).tolist()
        first, second = round(one), round(-other)
        shown = f"{first} and {second}, expected {low} to {high}"
        if not low <= first <= high or not low <= second <= high + 1:
            raise Wrong(f"stale: {shown}")
        # Between two writes, the state is that as well.
        if not is_own and first != second and (self.form.is_whole or first != second + 1):
            raise Wrong(f"torn: {shown}")


def _wrapped(on_step: Callable[[], Any]) -> Any:
    return Wrapper(World(), on_step)


def captures() -> int:
    """How often torch has captured something in this process."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else utils.counters["stats"]["unique_graphs"]


def is_wrappable(policy: Any) -> bool:
    """Whether it is a module that does not take a TensorDict already."""
    return isinstance(policy, torch.nn.Module) and not isinstance(policy, TensorDictModuleBase)


def is_copyable(policy: Any) -> bool:
    """Whether a copy can be made of it, and can be sent."""
    try:
        copy.deepcopy(policy)
        pickle.loads(cloudpickle.dumps(policy))
    except Exception:
        return False
    return True


def contradiction(form: Form, changes: int) -> str | None:
    """What torch computes of a form otherwise than it says, if there is anything."""
    policy, change = form.make()
    try:
        for number in range(changes + 1):
            with torch.no_grad():
                if number:
                    change(form.level(number))
                observed = torch.rand(3, 2, dtype=torch.float32)
                if isinstance(policy, TensorDictModuleBase):
                    acted = policy(TensorDict({"observation": observed}, [3]))["action"]
                else:
                    acted = policy(observed)
            expected = form.expected(observed, form.level(number)).to(acted.dtype)
            if not torch.allclose(acted, expected, atol=TOLERANCE):
                return f"{form.name}: after {number} changes torch computes {acted.tolist()}, expected {expected.tolist()}"
    finally:
        if form.undo is not None:
            form.undo()
    return None


def cells(forms: dict[str, Form]) -> Iterator[Cell]:
    """Every form, class, place, backend and changer that make sense together."""
    ways = [
        (kind, place, backend, changer, is_wrapped)
        for kind, places in PLACES.items()
        for place in places
        for backend in BACKENDS
        for changer in CHANGERS
        for is_wrapped in (False, True)
    ]
    for form in forms.values():
        for way in ways:
            cell = Cell(form, *way)
            if cell.makes_sense:
                yield cell


def live(cell: Cell, total: Sum, changes: int) -> None:
    """Runs one collector."""
    try:
        Life(cell, total, changes).run()
    finally:
        if cell.form.undo is not None:
            cell.form.undo()


assert STEPS < FRAMES_PER_BATCH
