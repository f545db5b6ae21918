"""What workers in processes bring and cost, with TorchRL and Gymnasium beside:
``cargo xtask bench processes-python``.

Each line is ``name  value  target  ok|short``, as the benchmarks in Rust print it; a target of
``-`` is none. Ratios are medians over alternating repeats of both sides, times are medians too.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

REPEATS = 5
#: Frames that a worker brings to each batch.
SHARE = 1000
CORES = len(os.sched_getaffinity(0))

#: Does some work, and returns how many frames, steps or updates it was.
Side = Callable[[], int]


def cartpole() -> Any:
    """CartPole of Gymnasium."""
    import gymnasium

    return gymnasium.make("CartPole-v1")


def cheetah() -> Any:
    """HalfCheetah of Gymnasium."""
    import gymnasium

    # MuJoCo warns of the model that comes with Gymnasium, each time.
    shown, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        return gymnasium.make("HalfCheetah-v5")
    finally:
        os.dup2(shown, 2)
        os.close(shown)
        os.close(nowhere)


def network(inputs: int = 4, outputs: int = 2) -> nn.Module:
    """The network of the comparisons: 64-64 with tanh."""
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )


class Actor(nn.Module):
    """What acts in HalfCheetah: torch is called for each frame."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network(17, 6)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.net(observation.float()))


def pace(side: Side, least: float) -> float:
    """Frames of ``side`` a second, over ``least`` seconds."""
    done, start = 0, time.perf_counter()
    while (past := time.perf_counter() - start) < least:
        done += side()
    return done / past


def ratio(own: Side, other: Side, least: float) -> float:
    """How many frames ``own`` makes while ``other`` makes one."""
    own(), other()
    return statistics.median(pace(own, least) / pace(other, least) for _ in range(REPEATS))


@contextmanager
def collecting(
    make: Callable[[], Any], workers: int, policy: Any = None, **options: Any
) -> Iterator[Side]:
    """Batches of so many processes."""
    collector = collector_of(make, workers, policy, **options)
    try:
        yield lambda: next(collector).numel()
    finally:
        collector.shutdown()


def collector_of(make: Callable[[], Any], workers: int, policy: Any = None, **options: Any) -> Any:
    from windrow.collectors import MultiSyncCollector

    options = {
        "frames_per_batch": SHARE * workers,
        "total_frames": -1,
        "placement": "processes",
        **options,
    }
    return MultiSyncCollector([make] * workers, policy, **options)


@contextmanager
def torchrl_collecting(workers: int) -> Iterator[Side]:
    """The same of TorchRL, with the same network."""
    from tensordict.nn import TensorDictModule
    from torchrl.collectors import MultiSyncCollector
    from torchrl.envs import GymEnv

    actor = TensorDictModule(network(), in_keys=["observation"], out_keys=["action"])
    collector = MultiSyncCollector(
        [lambda: GymEnv("CartPole-v1")] * workers,
        actor,
        frames_per_batch=SHARE * workers,
        total_frames=-1,
        cat_results=0,
    )
    batches = iter(collector)
    try:
        yield lambda: next(batches).numel()
    finally:
        collector.shutdown()


@contextmanager
def gymnasium_stepping(workers: int) -> Iterator[Side]:
    """As many frames of Gymnasium's processes, whose actions the network chooses here."""
    import gymnasium

    envs = gymnasium.vector.AsyncVectorEnv([cartpole] * workers)
    policy, observations = network(), envs.reset(seed=0)[0]

    def steps() -> int:
        nonlocal observations
        with torch.no_grad():
            for _ in range(SHARE):
                observations = envs.step(policy(torch.from_numpy(observations)).argmax(-1).numpy())[
                    0
                ]
        return SHARE * workers

    try:
        yield steps
    finally:
        envs.close()


class Push:
    """What acts in CartPole's bare loops."""

    def __call__(self, observation: Any) -> int:
        return int(observation[2] > 0)


class CalledActor(Actor):
    """What acts in HalfCheetah's bare loops."""

    def __call__(self, observation: Any) -> Any:
        return super().__call__(torch.from_numpy(observation)).numpy()


def bare_loop(pipe: Any, make: Callable[[], Any], new_policy: Callable[[], Any]) -> None:
    """In a process of its own: steps an environment with a policy that is called for each frame, as
    often as the pipe says.
    """
    torch.set_num_threads(1)
    env, policy = make(), new_policy()
    observation = env.reset(seed=0)[0]
    pipe.send(None)
    while frames := pipe.recv():
        with torch.no_grad():
            for _ in range(frames):
                observation, _, terminated, truncated, _ = env.step(policy(observation))
                if terminated or truncated:
                    observation = env.reset()[0]
        pipe.send(frames)


@contextmanager
def bare_loops(
    processes: int, make: Callable[[], Any], new_policy: Callable[[], Any]
) -> Iterator[Side]:
    """So many bare loops side by side."""
    spawn = multiprocessing.get_context("spawn")
    pipes = [spawn.Pipe() for _ in range(processes)]
    children = [
        spawn.Process(target=bare_loop, args=(theirs, make, new_policy)) for _, theirs in pipes
    ]
    for child in children:
        child.start()
    for own, _ in pipes:
        own.recv()

    def steps() -> int:
        for own, _ in pipes:
            own.send(SHARE)
        return sum(own.recv() for own, _ in pipes)

    try:
        yield steps
    finally:
        for own, _ in pipes:
            own.send(0)
        for child in children:
            child.join()


def beside(own: Any, other: Any, least: float) -> float:
    """The ratio of two sides, each a context."""
    with ExitStack() as stack:
        return ratio(stack.enter_context(own), stack.enter_context(other), least)


def speedup(least: float) -> float:
    """How many times the frames of one process two make, where two bare loops make twice those of
    one: the machine may lend less than two whole cores, and for moments only, so the four take
    turns often.
    """
    with ExitStack() as stack:
        own = [
            collecting(cartpole, workers, network(), policy_backend="native") for workers in (1, 2)
        ]
        bare = [bare_loops(processes, cartpole, Push) for processes in (1, 2)]
        sides = [stack.enter_context(side) for side in (*own, *bare)]
        for side in sides:
            side()
        ratios = []
        for _ in range(5 * REPEATS):
            one, two, bare_one, bare_two = (pace(side, least / 5) for side in sides)
            ratios.append(2 * (two / one) / (bare_two / bare_one))
        return statistics.median(ratios)


class SAC:
    """Updates of soft actor-critic on frames of HalfCheetah, written by hand."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer
        self._actor, self._critics, self._targets = network(17, 12), self._pair(), self._pair()
        self._targets.load_state_dict(self._critics.state_dict())
        self._actor_optim = torch.optim.Adam(self._actor.parameters(), 3e-4)
        self._critic_optim = torch.optim.Adam(self._critics.parameters(), 3e-4)

    @staticmethod
    def _pair() -> nn.ModuleList:
        return nn.ModuleList([network(23, 1), network(23, 1)])

    def _act(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, spread = self._actor(observation).chunk(2, -1)
        normal = torch.distributions.Normal(mean, nn.functional.softplus(spread) + 1e-3)
        drawn = normal.rsample()
        action = drawn.tanh()
        return action, (normal.log_prob(drawn) - (1 - action**2 + 1e-6).log()).sum(-1, keepdim=True)

    def update(self) -> int:
        """One update of actor, critics and targets."""
        frames = self._buffer.sample(256)
        observation, action = frames["observation"].float(), frames["action"].float()
        after, reward, over = (
            frames["next", "observation"].float(),
            frames["next", "reward"],
            frames["next", "terminated"],
        )
        with torch.no_grad():
            next_action, log_prob = self._act(after)
            value = (
                torch.minimum(
                    *(critic(torch.cat([after, next_action], -1)) for critic in self._targets)
                )
                - 0.2 * log_prob
            )
            target = reward + 0.99 * value * ~over
        loss = sum(
            (critic(torch.cat([observation, action], -1)) - target).square().mean()
            for critic in self._critics
        )
        self._step(self._critic_optim, loss)
        chosen, log_prob = self._act(observation)
        value = torch.minimum(
            *(critic(torch.cat([observation, chosen], -1)) for critic in self._critics)
        )
        self._step(self._actor_optim, (0.2 * log_prob - value).mean())
        with torch.no_grad():
            for slow, quick in zip(
                self._targets.parameters(), self._critics.parameters(), strict=True
            ):
                slow.lerp_(quick, 0.005)
        return 1

    @staticmethod
    def _step(optim: torch.optim.Optimizer, loss: Any) -> None:
        optim.zero_grad()
        loss.backward()
        optim.step()


def learner_beside_a_worker(least: float) -> float:
    """The pace of updates beside a started collector over their pace alone."""
    from windrow.data import LazyTensorStorage, ReplayBuffer

    buffer = ReplayBuffer(storage=LazyTensorStorage(100_000), batch_size=256)
    with collector_of(
        cheetah, 1, Actor(), policy_backend="torch", replay_buffer=buffer
    ) as collector:
        collector.start()
        learner = SAC(buffer)

        def alone() -> float:
            with collector.pause():
                return pace(learner.update, least)

        while len(buffer) < 5 * SHARE:
            time.sleep(0.01)
        alone()
        return statistics.median(pace(learner.update, least) / alone() for _ in range(REPEATS))


def median_of(measure: Callable[[], float]) -> float:
    """The median of a few times."""
    return statistics.median(measure() for _ in range(REPEATS))


def ready(
    make: Callable[[], Any], workers: int, policy: Any = None, **options: Any
) -> Callable[[], float]:
    """Seconds until so many workers are ready."""

    def once() -> float:
        begun = time.perf_counter()
        collector = collector_of(make, workers, policy, **options)
        took = time.perf_counter() - begun
        collector.shutdown()
        return took

    return lambda: median_of(once)


def shutdown() -> float:
    """Seconds that the end of eight workers takes."""

    def once() -> float:
        collector = collector_of(cartpole, 8)
        next(collector)
        begun = time.perf_counter()
        collector.shutdown()
        return time.perf_counter() - begun

    return median_of(once)


def resident(policy: Any = None, **options: Any) -> float:
    """MiB of memory of each of eight workers, what they share counted in parts."""
    collector = collector_of(cartpole, 8, policy, **options)
    try:
        next(collector)
        figures = collector.stats("per_worker")
        pids = [figures[f"worker_{worker}/pid"] for worker in range(8)]
        texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
        sizes = [re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE) for text in texts]
        return statistics.mean(int(size[1]) for size in sizes if size is not None) / 1024
    finally:
        collector.shutdown()


#: Name, measurement, target, and whether a value is to be at least or at most that.
Figure = tuple[str, Callable[[], float], float | None, str]


def figures(least: float) -> list[Figure]:
    """All of them."""
    native, called = {"policy_backend": "native"}, {"policy_backend": "torch"}
    halfcheetah: list[Figure] = [
        (
            "HalfCheetah, torch actor: 2 processes / 2 bare loops",
            lambda: beside(
                collecting(cheetah, 2, Actor(), **called),
                bare_loops(2, cheetah, CalledActor),
                least,
            ),
            0.85,
            ">=",
        ),
        # The third process needs a core of its own.
        (
            "SAC updates beside a worker / alone",
            lambda: learner_beside_a_worker(least),
            0.9 if CORES > 2 else None,
            ">=",
        ),
        ("ready: 8 HalfCheetahs, s", ready(cheetah, 8), 2.5, "<="),
    ]
    if importlib.util.find_spec("mujoco") is None:
        print("mujoco is not installed: HalfCheetah is left out")
        halfcheetah = []

    def own() -> Any:
        return collecting(cartpole, 2, network(), **native)

    return [
        (
            "CartPole, lowered network: 2 processes / 1, of bare loops' 2",
            lambda: speedup(least),
            1.8,
            ">=",
        ),
        (
            "CartPole: 2 processes / TorchRL's MultiSyncCollector",
            lambda: beside(own(), torchrl_collecting(2), least),
            30.0,
            ">=",
        ),
        (
            "CartPole: 2 processes / Gymnasium's AsyncVectorEnv",
            lambda: beside(own(), gymnasium_stepping(2), least),
            None,
            ">=",
        ),
        *halfcheetah,
        ("ready: 2 CartPoles, s", ready(cartpole, 2), 0.5, "<="),
        ("ready: 8 CartPoles, s", ready(cartpole, 8), 1.2, "<="),
        ("ready: 8 CartPoles with torch, s", ready(cartpole, 8, network(), **called), 4.0, "<="),
        ("resident: a worker without torch, MiB", resident, 35.0, "<="),
        ("resident: a worker with torch, MiB", lambda: resident(network(), **called), 80.0, "<="),
        ("shutdown: 8 workers, s", shutdown, 0.3, "<="),
    ]


def main() -> int:
    """Prints every figure; 1 when one falls short and ``--check`` was given."""
    parser = argparse.ArgumentParser(description="Workers in processes.")
    parser.add_argument("--check", action="store_true", help="fail when a figure falls short")
    parser.add_argument(
        "--seconds",
        type=float,
        default=1.0,
        help="how long each side of a ratio runs in each repeat; 1 unless given",
    )
    parser.add_argument("--only", default="", help="measure only figures whose names contain this")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    short, before = False, os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        # MuJoCo writes a file with its warnings where it runs.
        os.chdir(folder)
        for name, measure, target, sense in figures(arguments.seconds):
            if arguments.only not in name:
                continue
            value = measure()
            enough = target is None or (value >= target if sense == ">=" else value <= target)
            short |= not enough
            told = "-" if target is None else f"{sense} {target}"
            print(f"{name}  {value:.2f}  {told}  {'ok' if enough else 'short'}", flush=True)
        os.chdir(before)
    return int(short and arguments.check)


if __name__ == "__main__":
    sys.exit(main())
