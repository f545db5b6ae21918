"""Collection over Ray on 1 to 1000 machines, simulated: ``python python/benches/scale.py``. ``docs/scaling.md`` has the results.

The costs were measured on one machine, by ``hops.py``. Times are seconds, sizes bytes.

An actor fills a batch on a core of its machine. The batch leaves through its machine's network, comes in through the learner's, and
the learner's thread takes it. An actor fills one batch ahead of the one that was not taken yet. After an interval, the learner's thread
publishes weights before it takes the next batch: one object, which each machine fetches once from a machine that has it, and one call
for each actor. Every station serves in the order of arrival. The learner of a single machine uses that machine's cores and no network.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import pathlib
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heappop, heappush, heapreplace

#: A gigabit in bytes.
GIGABIT = 1e9 / 8
#: Batches of each actor that are simulated; the first half is not counted.
BATCHES = 24
#: Batches that an actor may fill before the first of them was taken.
AHEAD = 2
#: The largest difference of a batch's time from its mean, as a share.
JITTER = 0.2
#: The largest factor between a prediction and the measurement.
TOLERANCE = 1.5
MACHINES = (1, 10, 100, 1000)
#: A name, bytes of a frame, seconds of a core for one. CartPole's were measured, the others are assumed.
KINDS = (("native CartPole", 59.3, 1.5e-6), ("HalfCheetah", 330.0, 60e-6), ("Atari, 4 x 84 x 84", 56_480.0, 400e-6))
#: The environments that ``hops.py`` steps: a slow one and a quick one.
STEPPED = ("gymnasium", "native")


@dataclass(frozen=True)
class Costs:
    """Costs of a cluster."""

    #: Time of the actor's core for each batch, beside the frames.
    actor_call: float
    #: Time of the learner's thread for each batch.
    learner_call: float
    #: Processor time of the learner's process for each batch, with the threads of Ray.
    learner_process: float
    #: Time of the learner's thread to send weights to one actor.
    weights_call: float
    #: Bytes a second of a copy into or out of the object store.
    copy: float
    #: Bytes a second of a machine's network, each way.
    network: float


#: Measured on two virtual cores, beside other work, in November 2026 by ``hops.py``.
MEASURED = Costs(0.29e-3, 0.84e-3, 1.27e-3, 0.27e-3, copy=8.9e9, network=10 * GIGABIT)


@dataclass(frozen=True)
class Job:
    """A simulated run."""

    machines: int
    cores: int
    #: Actors of a machine.
    actors: int
    #: Cores that fill an actor's batch together.
    workers: int
    frames_per_batch: float
    frame_bytes: float
    #: Time of a core for each frame.
    frame_time: float
    weight_bytes: float
    #: Seconds between two versions of weights.
    weights_every: float


@dataclass(frozen=True)
class Outcome:
    """The result of a simulation."""

    #: Frames a second that the learner has taken.
    rate: float
    #: Frames a second of the actors alone.
    ideal: float
    #: Share of the time in which each kind of station was busy.
    busy: dict[str, float]
    #: Share of the time in which the learner's thread published weights.
    publishing: float
    #: Time from the publication of weights until the last actor has them, without queues.
    fan_out: float

    def saturated(self) -> str:
        """The station that limits the rate."""
        name = max(reversed(self.busy), key=lambda station: self.busy[station])
        weights = f", {100 * self.publishing:.0f} % for weights" if name.startswith("thread") and self.publishing > 0.1 else ""
        return f"{name} ({100 * self.busy[name]:.0f} %{weights})"


class Station:
    """Serves one batch at a time."""

    def __init__(self) -> None:
        self.free = self.busy = 0.0

    def serve(self, now: float, time: float) -> float:
        """The end of a service of ``time`` for what arrived ``now``."""
        self.free = max(self.free, now) + time
        self.busy += time
        return self.free


class Cores:
    """A machine's cores, as many as can fill batches side by side: the first that is free serves."""

    def __init__(self, count: int) -> None:
        self.free, self.busy = [0.0] * count, 0.0

    def serve(self, now: float, time: float) -> float:
        """The end of a service of ``time`` for what arrived ``now``."""
        end = max(self.free[0], now) + time
        heapreplace(self.free, end)
        self.busy += time
        return end


class Cluster:
    """The stations of a job, and the events to come."""

    def __init__(self, costs: Costs, job: Job) -> None:
        self.costs, self.job = costs, job
        self.count = job.machines * job.actors
        self.slots = max(job.cores // job.workers, 1)
        self.cores = [Cores(self.slots) for _ in range(job.machines)]
        self.out = [Station() for _ in range(job.machines)]
        self.learner_in, self.learner = Station(), Station()
        batch_bytes = job.frames_per_batch * job.frame_bytes
        self.copy_time = batch_bytes / costs.copy
        self.travel = batch_bytes / costs.network if job.machines > 1 else 0.0
        self.fill_time = job.frames_per_batch * job.frame_time / job.workers + costs.actor_call + self.copy_time
        #: Time, number, stage and actor of each event.
        self.events: list[tuple[float, int, int, int]] = []
        self.number, self.random = 0, 1
        #: Actors whose batches have arrived.
        self.waiting: deque[int] = deque()
        self.is_taking = False
        self.published = self.publishing = 0.0
        #: Batches of each actor that were begun and not taken.
        self.pending = [0] * self.count
        self.filling = [False] * self.count

    def run(self) -> Outcome:
        """Simulates the job."""
        for actor in range(self.count):
            self.begin(actor, 0.0)
        stages = (self.fill, self.leave, self.arrive, self.taken)
        batches = self.count * BATCHES
        taken, half, now = 0, 0.0, 0.0
        while taken < batches:
            now, _, stage, actor = heappop(self.events)
            stages[stage](actor, now)
            if stage == 3:
                taken += 1
                if taken == batches // 2:
                    half = now
        rate = (taken - batches // 2) * self.job.frames_per_batch / (now - half)
        ideal = self.job.machines * min(self.slots, self.job.actors) * self.job.frames_per_batch / self.fill_time
        return Outcome(rate, ideal, self.busy(now), self.publishing / now, self.fan_out())

    def at(self, time: float, stage: int, actor: int) -> None:
        """Adds an event."""
        self.number += 1
        heappush(self.events, (time, self.number, stage, actor))

    def begin(self, actor: int, now: float) -> None:
        """Begins a batch, if the actor may."""
        if self.filling[actor] or self.pending[actor] == AHEAD:
            return
        self.filling[actor] = True
        self.pending[actor] += 1
        self.random = (self.random * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
        jitter = 1 + JITTER * (2 * (self.random >> 40) / 2**24 - 1)
        self.at(self.cores[actor // self.job.actors].serve(now, self.fill_time * jitter), 0, actor)

    def fill(self, actor: int, now: float) -> None:
        """A batch is full."""
        self.filling[actor] = False
        self.begin(actor, now)
        self.at(self.out[actor // self.job.actors].serve(now, self.travel), 1, actor)

    def leave(self, actor: int, now: float) -> None:
        """A batch has left its machine."""
        self.at(self.learner_in.serve(now, self.travel), 2, actor)

    def arrive(self, actor: int, now: float) -> None:
        """A batch has arrived at the learner's machine."""
        self.waiting.append(actor)
        if not self.is_taking:
            self.take(now)

    def taken(self, actor: int, now: float) -> None:
        """The learner's thread has taken a batch."""
        self.pending[actor] -= 1
        self.begin(actor, now)
        self.take(now)

    def take(self, now: float) -> None:
        """Takes the next batch that waits. On the only machine, this takes a core's time from actors."""
        self.is_taking = bool(self.waiting)
        if not self.is_taking:
            return
        costs, job = self.costs, self.job
        time = costs.learner_call + self.copy_time
        if now - self.published >= job.weights_every:
            self.published = now
            weights = self.count * costs.weights_call + job.weight_bytes / costs.copy
            self.publishing += weights
            time += weights
        self.at(self.learner.serve(now, time), 3, self.waiting.popleft())
        if job.machines == 1:
            # One of the cores that fill a batch together.
            self.cores[0].serve(now, (time - costs.learner_call + costs.learner_process) / job.workers)

    def busy(self, now: float) -> dict[str, float]:
        """Share of the time in which each kind of station was busy."""
        times = {
            "cores of actors": sum(cores.busy for cores in self.cores) / (self.job.machines * self.slots),
            "network of an actor's machine": max(station.busy for station in self.out),
            "network of the learner": self.learner_in.busy,
            "thread of the learner": self.learner.busy,
        }
        return {name: min(time / now, 1.0) for name, time in times.items()}

    def fan_out(self) -> float:
        """A copy, rounds in which each machine that has the object serves one that has not, and calls."""
        copies = 2 * self.job.weight_bytes / self.costs.copy
        network = math.ceil(math.log2(self.job.machines)) * self.job.weight_bytes / self.costs.network
        return copies + network + self.count * self.costs.weights_call


def table(options: argparse.Namespace) -> None:
    """Prints a line for each kind of frames, shape of actors and number of machines."""
    print(
        f"{options.cores} cores a machine, {options.network:g} Gbit/s, {options.frames:g} frames a worker and batch, "
        f"{options.parameters:.0f} parameters every {options.every:g} s; one learner\n"
    )
    print(f"{'':<20}{'an actor has':<22}{'machines':>9}{'frames/s':>14}{'share':>9}{'weights':>13}   saturated")
    costs = replace(MEASURED, network=options.network * GIGABIT)
    for name, frame_bytes, frame_time in KINDS:
        for shape, workers in (("one core", 1), ("a machine's cores", options.cores)):
            frames, actors = options.frames * workers, options.cores // workers
            for machines in MACHINES:
                job = Job(
                    machines, options.cores, actors, workers, frames, frame_bytes, frame_time, 4 * options.parameters, options.every
                )
                outcome = Cluster(costs, job).run()
                print(
                    f"{name:<20}{shape:<22}{machines:>9}{outcome.rate:>14.0f}{100 * outcome.rate / outcome.ideal:>8.0f}%"
                    f"{1e3 * outcome.fan_out:>10.0f} ms   {outcome.saturated()}",
                    flush=True,
                )


def predicted(numbers: dict[str, float], env: str) -> float:
    """Frames a second of two actors on the machine that ``hops.py`` measured."""
    costs = Costs(
        numbers["actor_call_us"] / 1e6,
        numbers[f"{env}_learner_call_us"] / 1e6,
        numbers[f"{env}_learner_process_us"] / 1e6,
        numbers["weights_call_us"] / 1e6,
        copy=numbers["copy_gb_s"] * 1e9,
        network=math.inf,
    )
    frame_time = numbers[f"{env}_frame_us"] / 1e6
    job = Job(1, int(numbers["cores"]), 2, 1, numbers["frames_per_batch"], numbers["frame_bytes"], frame_time, 0.0, math.inf)
    return Cluster(costs, job).run().rate


def check(text: str) -> bool:
    """Compares predictions for two actors with their measured rates, given the output of ``hops.py``."""
    numbers = {}
    for line in text.splitlines():
        name, _, rest = line.strip().partition(": ")
        with contextlib.suppress(ValueError, IndexError):
            numbers[name] = float(rest.split()[0])
    are_near = True
    for env in STEPPED:
        try:
            rate, measured = predicted(numbers, env), numbers[f"{env}_two_actors_frames_s"]
        except KeyError as missing:
            raise SystemExit(f"error: expected a line `{missing.args[0]}: number` of hops.py, got none") from None
        is_near = 1 / TOLERANCE <= rate / measured <= TOLERANCE
        print(f"two actors, {env} CartPole: predicted {rate:.0f} frames/s, measured {measured:.0f}")
        verdict = "ok" if is_near else "short"
        print(f"predicted over measured, {env}  {rate / measured:.2f}  {1 / TOLERANCE:.2f} to {TOLERANCE}  {verdict}")
        are_near &= is_near
    return are_near


def positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    """Reads a positive number of this type."""

    def read(text: str) -> float:
        number = kind(text)
        if not 0 < number < math.inf:
            raise argparse.ArgumentTypeError(f"expected a positive number, got {text}")
        return number

    return read


def main() -> None:
    """Reads the command line."""
    about = "Simulates collection over Ray on 1 to 1000 machines, with the costs of docs/scaling.md."
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--check", action="store_true", help="measure this machine, and compare predictions for two actors with it")
    parser.add_argument("--measured", type=pathlib.Path, help="compare predictions with this output of hops.py, instead of running it")
    parser.add_argument("--cores", type=positive(int), default=16, help="cores of each machine")
    parser.add_argument("--frames", type=positive(float), default=1000.0, help="frames of a worker's share of a batch")
    parser.add_argument("--parameters", type=positive(float), default=1e6, help="parameters of the policy, of four bytes")
    parser.add_argument("--every", type=positive(float), default=1.0, help="seconds between two versions of weights")
    parser.add_argument("--network", type=positive(float), default=10.0, help="Gbit/s of each machine's network, each way")
    options = parser.parse_args()
    if options.measured:
        sys.exit(not check(options.measured.read_text()))
    if options.check:
        program = pathlib.Path(__file__).with_name("hops.py")
        hops = subprocess.run([sys.executable, program], stdout=subprocess.PIPE, text=True, check=False)
        print(hops.stdout, end="")
        if hops.returncode:
            raise SystemExit(f"error: hops.py failed ({hops.returncode})")
        sys.exit(not check(hops.stdout))
    table(options)


if __name__ == "__main__":
    main()
