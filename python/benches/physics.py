"""Environments of MuJoCo, with bare calls of its batches, EnvPool and Gymnasium's environments beside: ``cargo xtask bench physics``.

Each line is ``name  value  target  ok|short``, as the benchmarks in Rust print it; a target of ``-`` is none. A ratio is how many frames windrow
collects while the other steps one, with 2 threads on both sides: the median over alternating repeats.
"""

from __future__ import annotations

import argparse
import ctypes
import glob
import os
import statistics
import sys
import time
import warnings
from functools import partial
from typing import Any

import gymnasium
import mujoco
import numpy as np
import torch
from processes import REPEATS, Side, pace, ratio
from tensordict.nn import TensorDictModule
from torch import nn

import windrow
from windrow.collectors import Collector, MultiSyncCollector
from windrow.envs import GymEnv

#: Environments on each side.
ENVS = 16
#: Steps of each of them in one call of a side.
STEPS = 50


class Config(ctypes.Structure):
    """``mjBatchConfig``"""

    _fields_ = [("nthread", ctypes.c_int), ("persistent", ctypes.c_bool)]


class Bare:
    """Calls of MuJoCo's batches alone, by actions that were drawn before."""

    def __init__(self, env_name: str, threads: int = 2) -> None:
        made: Any = gymnasium.make(env_name).unwrapped
        self.frame_skip, self.has_forces = made.frame_skip, env_name.startswith("Humanoid")
        folder = os.path.dirname(mujoco.__file__)
        library = self.library = ctypes.CDLL(*glob.glob(os.path.join(folder, "libmujoco*.so*")))
        for name in ("mj_loadXML", "mj_makeData", "mjb_makeBatch", "mjb_state", "mjb_stateComponent", "mjb_output"):
            getattr(library, name).restype = ctypes.c_void_p
        pointer = ctypes.c_void_p
        self.model = pointer(library.mj_loadXML(made.fullpath.encode(), None, None, 0))
        self.batch = pointer(library.mjb_makeBatch(self.model, ENVS, ctypes.byref(Config(threads, True)), None, 0))
        #: mjSTATE_CTRL and mjSTATE_QPOS
        self.controls, self.positions = self._component(1 << 6), self._component(1 << 1)
        space = made.action_space
        self.actions = np.random.default_rng(0).uniform(space.low, space.high, (64, *self.controls.shape))
        if self.has_forces:
            for field in ("xipos", "cinert", "cvel", "qfrc_actuator", "cfrc_ext"):
                library.mjb_output(self.batch, field.encode(), None, None)

    def _component(self, component: int) -> np.ndarray:
        """A part of all states."""
        size = ctypes.c_int()
        place = self.library.mjb_stateComponent(self.batch, component, ctypes.byref(size))
        width = self.library.mjb_nstate(self.batch)
        flat = np.ctypeslib.as_array(ctypes.cast(place, ctypes.POINTER(ctypes.c_double)), ((ENVS - 1) * width + size.value,))
        return np.lib.stride_tricks.as_strided(flat, (ENVS, size.value), (8 * width, 8))

    def data(self) -> ctypes.c_void_p:
        """An ``mjData`` that has been stepped."""
        made = ctypes.c_void_p(self.library.mj_makeData(self.model))
        self.library.mj_step(self.model, made)
        return made

    def __call__(self) -> int:
        library = self.library
        for step in range(STEPS):
            self.controls[:] = self.actions[step]
            library.mjb_step(self.batch, None, 0, self.frame_skip, 0)
            if self.has_forces:
                # It takes the model and the data, and leaves the other arguments.
                library.mjb_apply(self.batch, None, 0, library.mj_rnePostConstraint, None, 0)
                library.mjb_forward(self.batch, None, 0, 0)
                # Who has fallen costs more: it begins anew, as in the environment.
                fallen = np.flatnonzero((self.positions[:, 2] <= 1.0) | (self.positions[:, 2] >= 2.0)).astype(np.int32)
                if len(fallen):
                    library.mjb_reset(self.batch, fallen.ctypes.data_as(ctypes.c_void_p), len(fallen), None, 3)
        return STEPS * ENVS


def collecting(env_name: str, policy: Any = None, backend: str = "native", placement: str = "threads") -> Side:
    """Collects with 2 workers; Gymnasium's environments in processes, as threads would take turns."""
    env = partial(GymEnv, env_name, num_envs=ENVS // 2, backend=backend)
    collector = MultiSyncCollector([env] * 2, policy, frames_per_batch=STEPS * ENVS, placement=placement, seed=0)
    return lambda: int(next(collector).numel())


def in_envpool(env_name: str) -> Side:
    import envpool

    envs = envpool.make(env_name, env_type="gymnasium", num_envs=ENVS, num_threads=2)
    envs.reset()
    space = envs.action_space
    actions = np.random.default_rng(0).uniform(space.low, space.high, (STEPS, ENVS, *space.shape))

    def step() -> int:
        for action in actions:
            envs.step(action)
        return STEPS * ENVS

    return step


def network(env_name: str, width: int) -> TensorDictModule:
    """A policy of two layers."""
    made = gymnasium.make(env_name)
    inputs, outputs = (space.shape[0] for space in (made.observation_space, made.action_space))  # type: ignore[index]
    layers = nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, outputs), nn.Tanh())
    return TensorDictModule(layers.double(), in_keys=["observation"], out_keys=["action"])


def alone(policy: TensorDictModule, inputs: int) -> Side:
    """Evaluates the policy for as many rows as a worker has."""
    rows = torch.randn(ENVS // 2, inputs, dtype=torch.float64)

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
    first.close(), envs.close()
    return own / count, data / count


def main() -> int:
    """Prints every figure; 1 when one falls short and ``--check`` was given."""
    parser = argparse.ArgumentParser(description="Environments of MuJoCo, with its batches, EnvPool and Gymnasium beside.")
    parser.add_argument("--check", action="store_true", help="fail when a figure falls short")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each side of a figure runs in each repeat; 1 unless given")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    short, least = False, arguments.seconds

    def show(name: str, value: float, target: float | None, at_most: bool = False) -> None:
        nonlocal short
        is_enough = target is None or (value <= target if at_most else value >= target)
        short |= not is_enough
        print(f"{name}  {value:.2f}  {'-' if target is None else f'{target:.2f}'}  {'ok' if is_enough else 'short'}", flush=True)

    start = time.perf_counter()
    first = Collector(GymEnv("HalfCheetah-v5", num_envs=ENVS), frames_per_batch=ENVS * STEPS)
    next(first)
    show("first batch, s", time.perf_counter() - start, 0.3, at_most=True)
    for env_name in ("HalfCheetah-v5", "Humanoid-v5"):
        own, bare = collecting(env_name), Bare(env_name)
        print(f"{env_name}: {1e6 / pace(own, least):.1f} µs a frame, bare {1e6 / pace(bare, least):.1f}")
        show(f"{env_name} / bare calls", ratio(own, bare, least), 0.97)
        used, data = memory(env_name)
        show(f"{env_name}, KiB an environment beyond an mjData", used - data, 64.0, at_most=True)
    own, bare = collecting("HalfCheetah-v5"), Bare("HalfCheetah-v5")
    try:
        show("HalfCheetah / EnvPool", ratio(own, in_envpool("HalfCheetah-v4"), least), 1.2)
    except ImportError as error:
        print(f"EnvPool is not timed: {error}")
    show("HalfCheetah / Gymnasium's", ratio(own, collecting("HalfCheetah-v5", None, "gymnasium", "processes"), least), 1.4)
    small, large = network("HalfCheetah-v5", 64), network("HalfCheetah-v5", 256)
    show("HalfCheetah, 64-64 network / bare calls", ratio(collecting("HalfCheetah-v5", small), bare, least), 0.92)
    both = collecting("HalfCheetah-v5", large)
    both()
    pairs = [(pace(both, least), 1 / (1 / pace(bare, least) + 0.5 / pace(alone(large, 17), least))) for _ in range(REPEATS)]
    show("HalfCheetah, 256-256 network / both alone", statistics.median(ours / theirs for ours, theirs in pairs), 0.85)
    return int(short and arguments.check)


if __name__ == "__main__":
    # EnvPool's threads would otherwise outlive the last line.
    status = main()
    sys.stdout.flush()
    os._exit(status)
