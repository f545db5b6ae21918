"""The actors of a collector, in place of the engine's collector: they are called, awaited, counted, replaced and ended here."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from windrow import _ray
from windrow._lazy import module
from windrow._windrow import ReplayBufferCore, WorkerError

_ray_actor = module("windrow.collectors._ray_actor")
#: Seconds between two looks at the end of the collector while an answer is awaited.
_LOOK = 0.2
#: Calls that an actor has before it, so that it need not wait for the next: where batches are one actor's.
_AHEAD = 2
#: Seconds of collecting that one call asks for: a call costs actor and consumer about 1 ms each. And the most batches of a call.
_CALL, _MOST = 0.04, 8

#: What an actor answers for a batch: packed, None where its replay buffer has it, or False where nobody has; and its frames.
Answer = tuple[Any, int]


@dataclass
class Plan:
    """How one actor is made.

    Attributes:
        sent: what it builds its collector of.
        options: of ``ray.remote``.
        frames: in each of its batches; None where these differ.
        num_envs: environments, as far as that is known before.
    """

    sent: bytes
    options: dict[str, Any]
    frames: int | None
    num_envs: int


class Call(NamedTuple):
    """What an actor was called for.

    Attributes:
        ref: of the answer.
        batches: that it is to bring; 0 of the call by which the actor begins.
    """

    ref: Any
    batches: int


@dataclass(eq=False)
class Seat:
    """The place of one actor, which others take after it was lost."""

    number: int
    plan: Plan
    actor: Any = None
    #: Those that were not answered yet, the first called first.
    calls: deque[Call] = field(default_factory=deque)
    #: When its last answer arrived, and how many seconds after the one before each of its batches came.
    heard: float | None = None
    pace: float = math.inf
    #: What it has answered to ``begin``.
    info: dict[str, Any] = field(default_factory=dict)
    #: Its share of the next batch, where that waits for others.
    share: Answer | None = None
    #: By which a replay buffer in an actor knows the present actor, and how many batches that has told of having written there.
    name: str = ""
    told: int = 0
    #: Batches of answers that were not asked for yet, and what lost actors had written and not told of.
    found: deque[Answer] = field(default_factory=deque)
    #: What new actors take up.
    weights: Any = None
    #: The collector's version that an actor, which counts from 0, was begun with.
    version: int = 0
    #: How many actors have had it before.
    restarts: int = 0
    frames: int = 0
    batches: int = 0
    is_alive: bool = True


class RayCore:
    """Answers what :class:`windrow._windrow.CollectorCore` answers.

    Args:
        ray: the module.
        release: gives Ray back.
        plans: one for each actor.
        sync: whether each batch has a share of all.
        join: how the shares are put together: the dimension, and whether it is a new one.
        seed: of the first environment.
        total: frames in all.
        on_loss: as the argument of collectors.
        device: what batches say that they are on.
        buffer: the replay buffer that actors write to themselves; None if they do not.
        several: whether one call may bring several batches that are quick.
    """

    def __init__(
        self,
        ray: Any,
        release: Callable[[], None],
        plans: Sequence[Plan],
        *,
        sync: bool,
        join: tuple[int, bool],
        seed: int,
        total: int | None,
        on_loss: str | int,
        device: Any,
        buffer: Any,
        several: bool,
    ) -> None:
        self._ray, self._release = ray, release
        self._sync, self._join, self._total, self._on_loss = sync, join, total, on_loss
        self._seed, self._static, self._device, self._buffer, self._several = seed, False, device, buffer, several
        self._pid = os.getpid()
        self._seats = [Seat(number, plan) for number, plan in enumerate(plans)]
        #: The seat whose answer is taken first, where several are there.
        self._order = deque(self._seats)
        #: Handles of the actors, by number.
        self.actors: list[Any] = [None] * len(plans)
        self._losses: list[str] = []
        self._frames = self._batches = self._dropped = self._unanswered = self.version = 0
        self._failure: str | None = None
        self._is_ending = self._is_over = False
        self._began: float | None = None
        #: Held by whoever collects a batch, or pauses. The thread of `start` waits for the event first.
        self._turn, self._go = threading.Lock(), threading.Event()
        self._go.set()
        self._thread: threading.Thread | None = None
        self._owner: Callable[[], Any] = lambda: None
        #: An answer that an interrupted call has not delivered.
        self._held: tuple[list[Seat], list[Answer]] | None = None
        #: The number by which a replay buffer of this process, whose samples wait for it, knows the thread of `start`.
        self._author: int | None = None
        #: Seconds that a shutdown waits for actors.
        self._patience = _ray.FAREWELL
        self._firsts = [sum(plan.num_envs for plan in plans[:number]) for number in range(len(plans))]
        try:
            options = [seat.plan.options for seat in self._seats]
            _ray.check_claims(ray, options, "take fewer actors, or let each claim less by remote_configs")
            for seat in self._seats:
                self._start(seat)
            self._await_start()
        except BaseException:
            self.leave(0)
            raise

    # Actors

    def _start(self, seat: Seat) -> None:
        options = {"concurrency_groups": _ray_actor.THREADS, **seat.plan.options}
        seat.actor = self.actors[seat.number] = _ray.actor(self._ray, _ray_actor.CollectorActor, options)
        updater = getattr(self._owner(), "weight_updater", None)
        weights = getattr(updater, "_newest", None)
        weights = seat.weights if weights is None else weights
        seat.version = max(0, self.version - 1) if weights is not None else self.version
        seat.name, seat.told = uuid.uuid4().hex, 0
        begun = seat.actor.begin.remote(seat.plan.sent, weights, self._seed_of(seat), seat.name)
        seat.calls.append(Call(begun, 0))
        seat.heard, seat.pace = None, math.inf

    def _seed_of(self, seat: Seat) -> int:
        """The seed of a new actor's first environment, which no other actor has had."""
        lives = seat.restarts * sum(self._envs_of(other) for other in self._seats)
        return self._seed + lives + (0 if self._static else self._firsts[seat.number])

    def _envs_of(self, seat: Seat) -> int:
        return int(seat.info.get("num_envs", seat.plan.num_envs))

    def _await_start(self) -> None:
        until = time.monotonic() + _ray.PATIENCE
        waiting = [call.ref for seat in self._seats for call in seat.calls]
        while waiting:
            _, waiting = self._ray.wait(waiting, num_returns=len(waiting), timeout=_LOOK)
            if waiting and time.monotonic() > until:
                raise RuntimeError(
                    f"{len(waiting)} of {len(self._seats)} actors have not started within {_ray.PATIENCE:.0f} s; Ray has "
                    f"{self._ray.available_resources()} left"
                )
        for seat in self._seats:
            try:
                seat.info = _ray.get(seat.calls.popleft().ref)
            except Exception as error:
                raise self._told(seat, error) from error.__cause__
        numbers = [self._envs_of(seat) for seat in self._seats]
        firsts = [sum(numbers[:number]) for number in range(len(numbers))]
        if firsts != self._firsts:
            self._firsts = firsts
            self.set_seed(self._seed, False)

    def _told(self, seat: Seat, error: Exception) -> Exception:
        """The error that says how the actor of ``seat`` was lost."""
        who = f"actor {seat.number} of {len(self._seats)}"
        if isinstance(error, self._ray.exceptions.RayError):
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            lost = WorkerError(f"{who} was lost: {' '.join(lines[:1])}")
            lost.__cause__ = error
            return lost
        error.add_note(f"It was raised in {who}.")
        return error

    def _lose(self, seat: Seat, error: Exception) -> None:
        """Counts a loss, and replaces the actor, goes on without it, or raises the error."""
        told = self._told(seat, error)
        seat.info["pid"] = None
        _ray.kill([seat.actor])
        self._find(seat)
        if isinstance(self._on_loss, int) and seat.restarts < self._on_loss:
            seat.restarts += 1
            self._losses.append(f"{type(told).__name__}: {told}")
            self._start(seat)
            return
        seat.is_alive = False
        if self._on_loss == "continue" and any(other.is_alive for other in self._seats):
            self._losses.append(f"{type(told).__name__}: {told}")
            return
        self._failure = f"the collector was ended by an error: {told}; build a new one to go on"
        self._end(0)
        raise told

    def _find(self, seat: Seat, seconds: float = _ray.FAREWELL) -> None:
        """Asks the replay buffer what the seat's actor, which has ended, has written there and not told of; the rest of what it was
        asked for is lost."""
        self._unanswered += sum(call.batches for call in seat.calls)
        seat.calls.clear()
        settle = getattr(self._buffer, "_settle", None)
        # The buffer may have ended, too.
        with contextlib.suppress(Exception):
            found = settle(seat.name, seat.told, seconds) if settle else ()
            seat.told += len(found)
            seat.found += [(None, frames) for frames in found]
            self._unanswered -= len(found)

    # Batches

    def serve(self, owner: Any) -> None:
        """Sets the collector whose methods prepare and finish batches."""
        self._owner = weakref.ref(owner)

    def next(self) -> Any:
        if self._thread is not None and self._thread is not threading.current_thread():
            raise RuntimeError("the collector was started: its batches go to the replay buffer")
        with self._turn:
            return self._next()

    def _next(self) -> Any:
        self._check_over()
        owner = self._owner()
        self._began = self._began or time.monotonic()
        if self._held is None:
            if self._total is not None and self._frames >= self._total:
                raise StopIteration
            owner._prepare()
            self._held = self._all() if self._sync else self._first()
        seats, shares = self._held
        batch = self._deliver(owner, seats, shares)
        self._held = None
        owner._delivered_from([seat.number for seat in seats])
        if not self._sync:
            self._call()
        return batch

    def _deliver(self, owner: Any, seats: list[Seat], shares: list[Answer]) -> Any:
        """The batch of these shares, counted; None where a replay buffer has it."""
        batch, frames = self._made(owner, seats, shares)
        if batch is not None:
            batch = owner._finish(batch)
            if owner.replay_buffer is not None:
                owner._write(batch, self._author, threading.current_thread() is self._thread)
                batch = None
        self._frames += frames
        self._batches += 1
        for seat, share in zip(seats, shares, strict=True):
            seat.frames += share[1]
            seat.batches += 1
        return batch

    def _first(self) -> tuple[list[Seat], list[Answer]]:
        """The next answer of any actor."""
        while True:
            self._call()
            if (arrived := self._arrived()) is not None:
                seat, answer = arrived
                return [seat], [answer]

    def _all(self) -> tuple[list[Seat], list[Answer]]:
        """An answer of each actor."""
        while True:
            self._call()
            if all(seat.share is not None or not (seat.is_alive or seat.found) for seat in self._seats):
                break
            if (arrived := self._arrived()) is not None:
                arrived[0].share = arrived[1]
        seats = [seat for seat in self._seats if seat.share is not None]
        shares = [seat.share for seat in seats if seat.share is not None]
        for seat in seats:
            seat.share = None
        return seats, shares

    def _call(self) -> None:
        """Asks actors for as many batches as they may have before them."""
        for seat in self._order:
            while seat.is_alive and (batches := self._wanted(seat)):
                seat.calls.append(Call(seat.actor.next.remote(batches), batches))

    def _wanted(self, seat: Seat) -> int:
        """How many batches an actor is to bring with one more call; 0 where it has enough before it.

        A call of its own for each batch that takes a few milliseconds would cost nearly as much as the batch. Where the consumer takes
        its time, batches wait for it, and each has a call of its own.
        """
        calls = sum(call.batches > 0 for call in seat.calls)
        if self._sync:
            return int(not calls and not seat.found and seat.share is None)
        if calls >= _AHEAD:
            return 0
        batches = max(1, min(_MOST, math.ceil(_CALL / max(seat.pace, 1e-6)))) if self._several else 1
        if self._total is None:
            return batches
        held = 0 if self._held is None else sum(frames for _, frames in self._held[1])
        due = sum((other.plan.frames or 0) * call.batches for other in self._seats for call in other.calls)
        due += sum(frames for other in self._seats for _, frames in other.found)
        left = self._total - self._frames - held - due
        if left <= 0:
            return 0
        return min(batches, math.ceil(left / seat.plan.frames)) if seat.plan.frames else 1

    def _arrived(self) -> tuple[Seat, Answer] | None:
        """The first answer there is, of the actors in turn; None where an actor was lost meanwhile, or a new one has begun."""
        for seat in self._order:
            if seat.found and seat.share is None:
                return seat, seat.found.popleft()
        firsts = {seat.calls[0].ref: seat for seat in self._order if seat.calls}
        ready: list[Any] = []
        while not ready:
            ready, _ = self._ray.wait(list(firsts), num_returns=1, timeout=_LOOK)
            self._check_over()
        seat = firsts[ready[0]]
        call = seat.calls[0]
        try:
            answers = _ray.get(call.ref)
        except Exception as error:
            self._lose(seat, error)
            return None
        seat.calls.popleft()
        self._order.remove(seat)
        self._order.append(seat)
        if not call.batches:
            seat.info = answers
            return None
        return seat, self._heard(seat, answers)

    def _heard(self, seat: Seat, answers: list[Answer]) -> Answer:
        """The first answer of a call. The others come next."""
        now = time.monotonic()
        if seat.heard is not None:
            seat.pace = (now - seat.heard) / len(answers)
        seat.heard = now
        seat.told += sum(packed is None for packed, _ in answers)
        seat.found += answers[1:]
        return answers[0]

    def _made(self, owner: Any, seats: list[Seat], shares: list[Answer]) -> tuple[Any, int]:
        """The batch of these shares, not more of it than ``total_frames`` leaves, and its frames."""
        frames = sum(share[1] for share in shares)
        if self._buffer is not None:
            return None, frames
        dim, stacks = self._join
        stack = stacks and len(self._seats) > 1 and self._sync
        batch = _ray.unpack(*(share[0] for share in shares), dim=dim, stack=stack, device=self._device)
        self._mark(batch, seats, shares, stack)
        if owner.replay_buffer is not None and not owner._arguments.split_trajs:
            batch = _ray.unpadded(batch)
        left = frames if self._total is None else self._total - self._frames
        if left < frames and batch.numel() == frames:
            steps = left * batch.shape[-1] // frames
            batch = batch[..., :steps]
            self._dropped += frames - batch.numel()
            frames = batch.numel()
            if not frames:
                raise StopIteration
        return batch, frames

    def _mark(self, batch: Any, seats: list[Seat], shares: list[Answer], stack: bool) -> None:
        """Makes numbers that each actor counts by itself the collector's."""
        total = sum(frames for _, frames in shares)
        dim = self._join[0]
        for key in (("collector", "traj_ids"), "policy_version", ("next", "policy_version")):
            numbers = batch.get(key, None)
            if numbers is None:
                continue
            if stack:
                pieces = numbers.unbind(0)
            elif len(seats) == 1:
                pieces = [numbers]
            else:
                pieces = numbers.split([frames * batch.shape[dim] // total for _, frames in shares], dim % batch.ndim)
            for seat, piece in zip(seats, pieces, strict=True):
                shift = (seat.restarts * len(self._seats) + seat.number) << 32 if isinstance(key, tuple) and key[1] == "traj_ids" else seat.version
                if shift:
                    # Padding has negative numbers.
                    piece.add_((piece >= 0).to(piece.dtype), alpha=shift)

    def _whole(self, name: str) -> Any:
        """What a method of each actor's collector returns, which makes a batch."""
        self._check_over()
        refs = [seat.actor.whole.remote(name) for seat in self._seats if seat.is_alive][: None if self._sync else 1]
        dim, stacks = self._join
        return _ray.unpack(*_ray.get(refs), dim=dim, stack=stacks and len(refs) > 1, device=self._device)

    def fake_batch(self) -> Any:
        return self._owner()._processed(self._whole("fake_tensordict"))

    def rollout(self) -> Any:
        return self._whole("rollout")

    # In the background, and its end

    def start(self) -> None:
        owner = self._owner()
        if owner.replay_buffer is None:
            raise RuntimeError("start() writes to a replay buffer: give the collector one, or iterate over it")
        self._check_over()
        if self._thread is not None:
            raise RuntimeError("the collector was started before")

        core: Any = getattr(owner.replay_buffer, "_core", None)
        author = self._author = core.attach() if isinstance(core, ReplayBufferCore) else None

        def run(owner: Any) -> None:
            try:
                while not self._is_ending:
                    self._go.wait()
                    if self._turn.acquire(timeout=_LOOK):
                        try:
                            self._next()
                        finally:
                            self._turn.release()
            except StopIteration:
                pass
            except BaseException as error:
                if not self._is_ending:
                    owner._fail(error)
            finally:
                if self._is_ending:
                    self._end(self._patience)
                if author is not None:
                    core.detach(author)

        self._thread = threading.Thread(target=run, args=(owner,), name="windrow-collector", daemon=True)
        self._thread.start()

    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def pause(self, seconds: float) -> None:
        self._go.clear()
        if not self._turn.acquire(timeout=seconds):
            self._go.set()
            raise RuntimeError(f"the present batch was not finished within {seconds:.0f} s")
        # What was called for is collected, and is delivered after the pause.
        waiting = [call.ref for seat in self._seats for call in seat.calls]
        if waiting:
            self._ray.wait(waiting, num_returns=len(waiting), timeout=seconds)

    def resume(self) -> None:
        self._turn.release()
        self._go.set()

    def shutdown(self, seconds: float | None) -> None:
        self._patience = _ray.FAREWELL if seconds is None else min(seconds, _ray.FAREWELL)
        self._is_ending = True
        self._go.set()
        if self._thread is threading.current_thread():
            # A function that it calls asks for it: it ends after that.
            return
        if self._thread is not None:
            # What has not answered until then is ended.
            self._thread.join(None if seconds is None else seconds + 1.0)
            if self._thread.is_alive():
                raise TimeoutError(f"the thread of start() did not end within {seconds} s")
        self._end(self._patience)

    def leave(self, seconds: float) -> bool:
        self._is_ending = True
        with contextlib.suppress(Exception):
            self._end(min(seconds, 1.0))
        return True

    def finalize(self) -> None:
        if self.belongs_here():
            self.leave(0)

    def _end(self, seconds: float) -> None:
        """Ends all actors. They have so many seconds to cut short what they have under way, and to close what they have."""
        if self._is_over:
            return
        self._is_over = True
        seats = [seat for seat in self._seats if seat.actor is not None and seat.is_alive]
        try:
            if self._ray.is_initialized():
                try:
                    if seconds:
                        self._take_rest(seats, time.monotonic() + seconds)
                finally:
                    _ray.kill([seat.actor for seat in seats])
                for seat in seats:
                    self._find(seat, max(seconds, 1.0))
            self._take_held()
        finally:
            for seat in self._seats:
                seat.calls.clear()
                seat.weights = None
            self._release()

    def _take_rest(self, seats: list[Seat], until: float) -> None:
        """Takes what actors have under way, which each cuts short at its next step."""
        ends = [seat.actor.stop.remote() for seat in seats]
        self._take_held()
        while (firsts := {seat.calls[0].ref: seat for seat in seats if seat.calls}) and (left := until - time.monotonic()) > 0:
            for ref in self._ray.wait(list(firsts), num_returns=1, timeout=left)[0]:
                seat = firsts[ref]
                try:
                    answers = _ray.get(ref)
                except Exception:
                    self._find(seat)
                    continue
                if seat.calls.popleft().batches:
                    self._take(seat, self._heard(seat, answers))
                    self._take_held()
        ends += [seat.actor.shutdown.remote() for seat in seats]
        _ray.drain(ends, max(0.1, until - time.monotonic()))

    def _take_held(self) -> None:
        """Takes what has arrived and was not delivered."""
        held, self._held = self._held or ([], []), None
        for seat, answer in zip(*held, strict=True):
            self._take(seat, answer)
        for seat in self._seats:
            answers, seat.share = [seat.share, *seat.found], None
            seat.found.clear()
            for answer in filter(None, answers):
                self._take(seat, answer)

    def _take(self, seat: Seat, answer: Answer) -> None:
        """Counts what nobody will ask for any more. The thread of :meth:`start` writes it, unless the write would have to wait."""
        packed, frames = answer
        owner = self._owner()
        writes = threading.current_thread() is self._thread and owner._failure is None
        try:
            if packed is None or (packed is not False and writes):
                self._deliver(owner, [seat], [answer])
                return
        except StopIteration:
            return
        except Exception as error:
            # What has to wait raises this.
            if type(error) is not RuntimeError:
                owner._fail(error)
        self._dropped += frames

    def _check_over(self) -> None:
        if self._failure is not None and self._is_over:
            raise RuntimeError(self._failure)
        if self._is_ending or self._is_over:
            raise RuntimeError("the collector was shut down")
        if not self._ray.is_initialized():
            raise RuntimeError("Ray was shut down, and the collector's actors with it")

    def is_ending(self) -> bool:
        return self._is_ending or self._is_over

    def belongs_here(self) -> bool:
        return os.getpid() == self._pid

    def is_within(self) -> bool:
        return False

    def check_outside(self) -> None:
        """Actors cannot ask."""

    # Questions and orders

    def ask(self, method: str, *args: Any, of: Sequence[Seat] | None = None, each: Sequence[tuple[Any, ...]] | None = None) -> list[Any]:
        """What a method of actors returns, by default of all that are alive."""
        self._check_over()
        seats = [seat for seat in self._seats if seat.is_alive] if of is None else list(of)
        given = each or [args] * len(seats)
        refs = [getattr(seat.actor, method).remote(*own) for seat, own in zip(seats, given, strict=True)]
        answers = []
        for seat, ref in zip(seats, refs, strict=True):
            try:
                answers.append(_ray.get(ref))
            except self._ray.exceptions.RayActorError as error:
                raise self._told(seat, error) from error
        return answers

    def publish(self, sent: Any, workers: Sequence[int] | None) -> None:
        """Publishes what a :class:`windrow._ray.Sender` has made of weights as a new version. An actor that is lost meanwhile does not
        get them, the one in its place does."""
        self._check_over()
        seats = self._seats if workers is None else [self._seats[worker] for worker in workers]
        before = [seat.weights for seat in seats]
        refs = []
        for seat in seats:
            seat.weights = sent
            refs += [seat.actor.update_policy_weights_.remote(sent)] if seat.is_alive else []
        self.version += 1
        for ref in refs:
            try:
                _ray.get(ref)
            except self._ray.exceptions.RayActorError:
                # Told by the next batch.
                continue
            except Exception:
                for seat, weights in zip(seats, before, strict=True):
                    seat.weights = weights
                self.version -= 1
                raise

    def renew(self) -> None:
        """Counts a new version of the weights that actors have."""
        self.ask("call", "increment_version")
        self.version += 1

    def cut(self, short: bool) -> None:
        if not self._is_over:
            self.ask("cut", short)

    def set_seed(self, seed: int, static_seed: bool) -> int:
        self._seed, self._static = seed, static_seed
        seats = [seat for seat in self._seats if seat.is_alive]
        each = [("set_seed", seed if static_seed else seed + self._firsts[seat.number], static_seed) for seat in seats]
        return int(self.ask("call", of=seats, each=each)[-1])

    def reset(self) -> None:
        self.ask("call", "reset")

    def state(self) -> dict[str, Any]:
        """What a later run needs; see ``state_dict``."""
        return {"frames": self._frames, "iter": self._batches, "seed": self._seed, "actors": self.ask("call", "state_dict")}

    def load(self, state: dict[str, Any]) -> None:
        """Goes on from what :meth:`state` has returned."""
        seats = [seat for seat in self._seats if seat.is_alive]
        actors = state.get("actors", ())
        if len(actors) != len(seats):
            raise ValueError(f"expected the state of {len(seats)} actors, got {len(actors)}")
        self.ask("call", of=seats, each=[("load_state_dict", its) for its in actors])
        self._frames, self._batches, self._seed = int(state["frames"]), int(state["iter"]), int(state["seed"])

    def take_losses(self) -> list[str]:
        losses, self._losses = self._losses, []
        return losses

    def len(self) -> int | None:
        return None if self._total is None else -(-self._total // self.frames_per_batch)

    def deltas(self) -> list[tuple[Any, str]]:
        return list(self._seats[0].info["deltas"])

    def dimensions(self) -> list[int]:
        return list(self._seats[0].info["dimensions"])

    def policy_backend(self) -> str:
        return str(self._seats[0].info["policy_backend"])

    @property
    def frames_per_batch(self) -> int:
        each = [seat.info["frames_per_batch"] for seat in self._seats]
        return sum(each) if self._sync else max(each)

    def stats(self) -> dict[str, Any]:
        seconds = 0.0 if self._began is None else time.monotonic() - self._began
        return {
            "frames": self._frames,
            "batches": self._batches,
            "dropped_frames": self._dropped,
            "unanswered_batches": self._unanswered,
            "total_frames": self._total,
            "completed": self._total is not None and self._frames >= self._total,
            "requested_frames_per_batch": self.frames_per_batch,
            "workers": len(self._seats),
            "workers_alive": sum(seat.is_alive for seat in self._seats) if not self._is_over else 0,
            "restarts": sum(seat.restarts for seat in self._seats),
            "num_envs": sum(self._envs_of(seat) for seat in self._seats),
            "frames_per_second": self._frames / seconds if seconds else 0.0,
            "policy_version": self.version,
            "seed": self._seed,
        }

    def worker_stats(self) -> list[dict[str, Any]]:
        return [
            {
                "frames": seat.frames,
                "parts": seat.batches,
                "restarts": seat.restarts,
                "alive": seat.is_alive and not self._is_over,
                "pid": seat.info.get("pid"),
                "node": seat.info.get("node"),
            }
            for seat in self._seats
        ]
