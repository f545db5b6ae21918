"""Environments of MuJoCo, with bare calls of its batches, EnvPool, mjbatch and Gymnasium's
environments beside: ``cargo xtask bench physics``.

Each line is ``name  value  target  ok|short``, as the benchmarks in Rust print it; a target of
``-`` is none. A ratio is how many frames windrow collects while the other steps one, with 2 threads
on both sides. They take turns, a call each, through the same steps of an episode, and the ratio is
the median over episodes. Both sides take actions of the same distribution, and begin episodes anew
after 1000 steps: what a step of MuJoCo costs depends on where the body is.

The package ``mujoco`` is not imported here: that has MuJoCo take the time of each of its stages, in
all threads of the process, and slows both sides. The package ``mjbatch`` needs a MuJoCo of its own,
so it runs in a process beside, from the folder of ``--mjbatch``:
``pip install --target FOLDER mjbatch``.
"""

from __future__ import annotations

import argparse
import ctypes
import glob
import importlib.util
import itertools
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict.nn import TensorDictModule
from torch import nn

import windrow
from processes import REPEATS, Side, pace
from windrow.collectors import Collector, MultiSyncCollector
from windrow.envs import DoubleToFloat, GymEnv, TransformedEnv

#: Environments on each side.
ENVS = 16
#: Steps of each of them in one call of a side: 2000 frames, as scripts of PPO collect at a time.
STEPS = 125
#: Steps of an episode, and of the actions that bare calls take in turn: a short cycle of actions
#: would lead to gaits of its own.
EPISODE = 8 * STEPS
#: Steps of MuJoCo in one of an environment, and the file of its model.
MODELS = {"HalfCheetah-v5": (5, "half_cheetah.xml"), "Humanoid-v5": (5, "humanoid.xml")}


class Config(ctypes.Structure):
    """``mjBatchConfig``"""

    _fields_ = [("nthread", ctypes.c_int), ("persistent", ctypes.c_bool)]


def folder(package: str) -> str:
    """Where a package is, without importing it."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise SystemExit(f"{package} is not installed: pip install gymnasium mujoco")
    return os.path.dirname(found.origin)


def spaces(env_name: str) -> tuple[int, Any]:
    """Numbers in an observation, and the space of actions."""
    made = windrow.make_vec(env_name, 1, native=True)
    try:
        shape = made.single_observation_space.shape
        assert shape is not None
        return shape[0], made.single_action_space
    finally:
        made.close()


def drawn(space: Any) -> np.ndarray:
    """Random actions of all environments, for each step of an episode."""
    return np.random.default_rng(0).uniform(space.low, space.high, (EPISODE, ENVS, *space.shape))


class Bare:
    """Calls of MuJoCo's batches alone, by random actions, or by those of a batch that it
    follows.
    """

    def __init__(self, env_name: str, threads: int = 2) -> None:
        self.frame_skip, model = MODELS[env_name]
        self.has_forces = env_name.startswith("Humanoid")
        (file,) = glob.glob(os.path.join(folder("mujoco"), "libmujoco*.so*"))
        library = self.library = ctypes.CDLL(file)
        for name in (
            "mj_loadXML",
            "mj_makeData",
            "mjb_makeBatch",
            "mjb_state",
            "mjb_stateComponent",
            "mjb_output",
        ):
            getattr(library, name).restype = ctypes.c_void_p
        pointer, path = (
            ctypes.c_void_p,
            os.path.join(folder("gymnasium"), "envs", "mujoco", "assets", model),
        )
        self.model = pointer(library.mj_loadXML(path.encode(), None, None, 0))
        self.batch = pointer(
            library.mjb_makeBatch(self.model, ENVS, ctypes.byref(Config(threads, True)), None, 0)
        )
        #: mjSTATE_CTRL, mjSTATE_QPOS and mjSTATE_QVEL
        self.controls, self.positions, self.speeds = (
            self._component(1 << bit) for bit in (6, 1, 2)
        )
        #: ``[step, environment, action]``, and the observations before them.
        self.actions, self.first, self.steps = drawn(spaces(env_name)[1]), None, 0
        if self.has_forces:
            for field in ("xipos", "cinert", "cvel", "qfrc_actuator", "cfrc_ext"):
                library.mjb_output(self.batch, field.encode(), None, None)

    def _component(self, component: int) -> np.ndarray:
        """A part of all states."""
        size = ctypes.c_int()
        place = self.library.mjb_stateComponent(self.batch, component, ctypes.byref(size))
        width = self.library.mjb_nstate(self.batch)
        flat = np.ctypeslib.as_array(
            ctypes.cast(place, ctypes.POINTER(ctypes.c_double)), ((ENVS - 1) * width + size.value,)
        )
        return np.lib.stride_tricks.as_strided(flat, (ENVS, size.value), (8 * width, 8))

    def begin(self) -> None:
        """Begins an episode in each environment."""
        self.library.mjb_reset(self.batch, None, 0, None, 3)
        if self.first is not None:
            # All but how far it has come is observed.
            places = self.positions.shape[1] - 1
            self.positions[:, 1:], self.speeds[:] = self.first[:, :places], self.first[:, places:]

    def follow(self, batch: Any) -> None:
        """Has the next call take the actions of ``batch``, from the same places."""
        actions, first = batch["action"].transpose(0, 1), batch["observation"][:, 0]
        self.actions, self.first, self.steps = (
            np.ascontiguousarray(actions.numpy()),
            first.numpy().copy(),
            0,
        )

    def data(self) -> ctypes.c_void_p:
        """An ``mjData`` that has been stepped."""
        made = ctypes.c_void_p(self.library.mj_makeData(self.model))
        self.library.mj_step(self.model, made)
        return made

    def __call__(self) -> int:
        library = self.library
        for _ in range(STEPS):
            if self.steps % len(self.actions) == 0:
                self.begin()
            self.controls[:] = self.actions[self.steps % len(self.actions)]
            self.steps += 1
            library.mjb_step(self.batch, None, 0, self.frame_skip, 0)
            if self.has_forces:
                # It takes the model and the data, and leaves the other arguments.
                library.mjb_apply(self.batch, None, 0, library.mj_rnePostConstraint, None, 0)
                library.mjb_forward(self.batch, None, 0, 0)
                # Who has fallen costs more: it begins anew, as in the environment.
                fallen = np.flatnonzero(
                    (self.positions[:, 2] <= 1.0) | (self.positions[:, 2] >= 2.0)
                ).astype(np.int32)
                if len(fallen):
                    library.mjb_reset(
                        self.batch, fallen.ctypes.data_as(ctypes.c_void_p), len(fallen), None, 3
                    )
        return STEPS * ENVS


def collector_of(
    env_name: str, policy: Any, backend: str = "native", placement: Any = "threads"
) -> MultiSyncCollector:
    """2 workers; Gymnasium's environments in processes, as threads would take turns. A network acts
    in Rust, or this fails.
    """
    env = partial(
        GymEnv if policy is None else narrowed, env_name, num_envs=ENVS // 2, backend=backend
    )
    options: dict[str, Any] = {} if policy is None else {"policy_backend": "native"}
    return MultiSyncCollector(
        [env] * 2, policy, frames_per_batch=STEPS * ENVS, placement=placement, seed=0, **options
    )


class Collecting:
    """Batches of :func:`collector_of`."""

    def __init__(self, env_name: str, policy: Any = None, **options: Any) -> None:
        self.collector, self.has_policy = (
            collector_of(env_name, policy, **options),
            policy is not None,
        )

    def __call__(self) -> int:
        self.batch = next(self.collector)
        return int(self.batch.numel())


class Ratio(NamedTuple):
    """How many frames one side makes while another makes one, by the clock and by the time of the
    processor that this process took.
    """

    clock: float
    processor: float


def ratio(own: Side, other: Side, least: float) -> Ratio:
    """That of ``own`` and ``other``. Bare calls follow a policy, which leads to other places than
    random actions.
    """
    own(), other()
    found: list[np.ndarray] = []
    start = time.perf_counter()
    while len(found) < REPEATS or time.perf_counter() - start < 2 * REPEATS * least:
        took = np.zeros((2, 2))
        for side in (0, 1) * (EPISODE // STEPS):
            began = time.perf_counter(), time.process_time()
            frames = (own, other)[side]()
            took[side] += np.subtract((time.perf_counter(), time.process_time()), began) / frames
            if (
                side == 0
                and isinstance(own, Collecting)
                and own.has_policy
                and isinstance(other, Bare)
            ):
                other.follow(own.batch)
        found.append(took[1] / took[0])
    return Ratio(*np.median(found, 0).tolist())


def narrowed(env_name: str, **options: Any) -> TransformedEnv:
    """Environments whose observations are ``float32``, as networks are."""
    return TransformedEnv(GymEnv(env_name, **options), DoubleToFloat())


def in_envpool(env_name: str) -> Side:
    import envpool

    envs = envpool.make(env_name, env_type="gymnasium", num_envs=ENVS, num_threads=2)
    envs.reset()
    actions = itertools.cycle(drawn(envs.action_space))

    def step() -> int:
        for action in itertools.islice(actions, STEPS):
            envs.step(action)
        return STEPS * ENVS

    return step


def step_mjbatch(env_name: str) -> None:
    """Runs in a child process: makes one call each time it reads a line, then writes a line."""
    import mujoco
    from mjbatch import Batch

    frame_skip, file = MODELS[env_name]
    model = mujoco.MjModel.from_xml_path(
        os.path.join(folder("gymnasium"), "envs", "mujoco", "assets", file)
    )
    batch = Batch(model, ENVS, 2)
    places, controls = batch.bind("qpos"), batch.bind("ctrl")
    is_humanoid = env_name.startswith("Humanoid")
    for field in ("xipos", "cinert", "cvel", "qfrc_actuator", "cfrc_ext") if is_humanoid else ():
        batch.bind(field)
    low, high = model.actuator_ctrlrange.T
    actions = np.random.default_rng(0).uniform(low, high, (EPISODE, ENVS, model.nu))
    for call, _ in enumerate(sys.stdin):
        for step in range(call * STEPS, (call + 1) * STEPS):
            if step % EPISODE == 0:
                batch.reset()
            controls[:] = actions[step % EPISODE]
            batch.step(nstep=frame_skip)
            if is_humanoid and (fallen := (places[:, 2] <= 1.0) | (places[:, 2] >= 2.0)).any():
                batch.reset(fallen)
        print(flush=True)


@contextmanager
def in_mjbatch(env_name: str, packages: str) -> Iterator[Side]:
    command, paths = (
        [sys.executable, __file__, "--step-mjbatch", env_name],
        [packages, os.environ.get("PYTHONPATH", "")],
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        asked, answers = child.stdin, child.stdout

        def step() -> int:
            print(file=asked, flush=True)
            if not answers.readline():
                raise SystemExit(
                    f"the process with mjbatch ended: is it in {packages}, by `pip install --target {packages} mjbatch`?"
                )
            return STEPS * ENVS

        yield step
        asked.close()


def network(env_name: str, width: int) -> TensorDictModule:
    """A policy of two layers."""
    inputs, space = spaces(env_name)
    outputs = space.shape[0]
    layers = nn.Sequential(
        nn.Linear(inputs, width),
        nn.Tanh(),
        nn.Linear(width, width),
        nn.Tanh(),
        nn.Linear(width, outputs),
        nn.Tanh(),
    )
    return TensorDictModule(layers, in_keys=["observation"], out_keys=["action"])


def in_torch(policy: TensorDictModule, inputs: int) -> Side:
    """Evaluates the policy in torch, for as many rows as a worker has."""
    rows = torch.randn(ENVS // 2, inputs)

    def evaluate() -> int:
        with torch.no_grad():
            for _ in range(STEPS):
                policy.module(rows)
        return STEPS * ENVS // 2

    return evaluate


def kibibytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def memory(env_name: str, count: int = 512) -> tuple[float, float]:
    """KiB of an environment that has been stepped, and of an ``mjData``, which has."""
    bare = Bare(env_name)
    first = windrow.make_vec(env_name, 1, native=True)
    start = kibibytes()
    envs = windrow.make_vec(env_name, count, native=True)
    envs.reset(seed=0)
    envs.step(envs.action_space.sample())
    own = kibibytes() - start
    start = kibibytes()
    for _ in range(count):
        bare.data()
    data = kibibytes() - start
    first.close()
    envs.close()
    return own / count, data / count


def main() -> int:
    """Prints every figure; 1 when one falls short and ``--check`` was given."""
    parser = argparse.ArgumentParser(
        description="Environments of MuJoCo, with its batches, EnvPool and Gymnasium beside."
    )
    parser.add_argument("--check", action="store_true", help="fail when a figure falls short")
    parser.add_argument(
        "--seconds",
        type=float,
        default=1.0,
        help="how long each side of a figure runs in each repeat; 1 unless given",
    )
    parser.add_argument(
        "--mjbatch", metavar="FOLDER", help="where that package is, which is timed, too"
    )
    parser.add_argument("--step-mjbatch", choices=MODELS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step_mjbatch:
        step_mjbatch(arguments.step_mjbatch)
        return 0
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    short, least = False, arguments.seconds

    def show(name: str, value: float, target: float | None, at_most: bool = False) -> None:
        nonlocal short
        is_enough = target is None or (value <= target if at_most else value >= target)
        short |= not is_enough
        print(
            f"{name}  {value:.2f}  {'-' if target is None else f'{target:.2f}'}  {'ok' if is_enough else 'short'}",
            flush=True,
        )

    start = time.perf_counter()
    first = Collector(GymEnv("HalfCheetah-v5", num_envs=ENVS), frames_per_batch=ENVS * STEPS)
    next(first)
    show("first batch, s", time.perf_counter() - start, 0.3, at_most=True)
    for env_name in ("HalfCheetah-v5", "Humanoid-v5"):
        own, bare = Collecting(env_name), Bare(env_name)
        print(
            f"{env_name}: {1e6 / pace(own, least):.1f} µs a frame, bare {1e6 / pace(bare, least):.1f}"
        )
        found = ratio(own, bare, least)
        show(f"{env_name} / bare calls", found.clock, 0.97)
        show(f"{env_name} / bare calls, processor time", found.processor, None)
        used, data = memory(env_name)
        show(f"{env_name}, KiB an environment beyond an mjData", used - data, 64.0, at_most=True)
        if arguments.mjbatch:
            with in_mjbatch(env_name, arguments.mjbatch) as other:
                show(f"{env_name} / mjbatch's calls", ratio(own, other, least).clock, None)
    own, bare = Collecting("HalfCheetah-v5"), Bare("HalfCheetah-v5")
    try:
        show("HalfCheetah / EnvPool", ratio(own, in_envpool("HalfCheetah-v4"), least).clock, 1.2)
    except ImportError as error:
        print(f"EnvPool is not timed: {error}")
    others = Collecting("HalfCheetah-v5", backend="gymnasium", placement="processes")
    show("HalfCheetah / Gymnasium's", ratio(own, others, least).clock, 1.4)
    small, large = network("HalfCheetah-v5", 64), network("HalfCheetah-v5", 256)
    found = ratio(Collecting("HalfCheetah-v5", small), bare, least)
    show("HalfCheetah, 64-64 network / bare calls", found.clock, 0.92)
    show("HalfCheetah, 64-64 network / bare calls, processor time", found.processor, None)
    # Alone, it is as fast as the faster of two ways. A step of Pendulum costs next to nothing; each
    # of 2 threads would call torch.
    ways: list[tuple[Side, int]] = [
        (Collecting("Pendulum-v1", network("Pendulum-v1", 256)), 1),
        (in_torch(large, 17), 2),
    ]
    alone, threads = max(ways, key=lambda way: pace(way[0], least) * way[1])
    both = Collecting("HalfCheetah-v5", large)
    show(
        "HalfCheetah, 256-256 network / both alone",
        ratio(both, bare, least).clock + ratio(both, alone, least).clock / threads,
        0.85,
    )
    return int(short and arguments.check)


if __name__ == "__main__":
    # EnvPool's threads would otherwise outlive the last line.
    status = main()
    sys.stdout.flush()
    os._exit(status)
