"""What ``windrow bench`` measures: ways to collect, of windrow and of other libraries."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from windrow import _fence, collectors, envs
from windrow.envs._native import is_native

if TYPE_CHECKING:
    import gymnasium

    from windrow._types import Env

#: Steps of each environment in one call.
STEPS = 100


class Running(NamedTuple):
    """Something that collects: :attr:`step` returns how many frames it has collected, :attr:`close`
    ends it.
    """

    step: Callable[[], int]
    close: Callable[[], object]


class Side(NamedTuple):
    """One way to collect, and what starts it."""

    name: str
    start: Callable[[], Running]


class Peer(NamedTuple):
    """A library: its distribution, and the ways in which it collects with an id and a number of
    environments.
    """

    distribution: str
    sides: Callable[[str, int], list[Side]]


def own_sides(env: str, num_envs: int) -> list[Side]:
    """windrow's: native environments, if the id is that of one, and Gymnasium's."""
    gymnasium = partial(envs.GymEnv, env, backend="gymnasium")
    native = [Side("windrow, native", lambda: _collecting(collectors.Collector, env, num_envs))]
    return [
        *(native if is_native(env) else []),
        Side(
            "windrow, Gymnasium's environments",
            lambda: _collecting(collectors.Collector, gymnasium, num_envs),
        ),
        Side("windrow, Gymnasium's, in processes", lambda: _in_processes(gymnasium, num_envs)),
    ]


def _collecting(
    kind: Callable[..., collectors.BaseCollector], env: Env, num_envs: int, **arguments: Any
) -> Running:
    collector = kind(
        env,
        num_envs=num_envs if num_envs > 1 else None,
        frames_per_batch=num_envs * STEPS,
        **arguments,
    )
    return Running(lambda: int(next(collector).numel()), collector.shutdown)


def _in_processes(env: Env, num_envs: int) -> Running:
    collector = collectors.MultiSyncCollector(
        env, num_workers=num_envs, frames_per_batch=num_envs * STEPS, placement="processes"
    )
    return Running(lambda: int(next(collector).numel()), collector.shutdown)


def _stepping(
    env: gymnasium.vector.VectorEnv[Any, Any, Any], num_envs: int, draw: Callable[[], Any]
) -> Running:
    """A vector of environments, stepped with actions that were drawn beforehand."""
    env.reset()
    actions = [draw() for _ in range(STEPS)]

    def step() -> int:
        for action in actions:
            env.step(action)
        return STEPS * num_envs

    return Running(step, env.close)


def _gymnasium(env: str, num_envs: int) -> list[Side]:
    def start(mode: str) -> Running:
        import gymnasium

        made = gymnasium.make_vec(env, num_envs, vectorization_mode=mode)
        return _stepping(made, num_envs, made.action_space.sample)

    return [
        Side(f"Gymnasium, {name}", partial(start, mode))
        for mode, name in (("sync", "SyncVectorEnv"), ("async", "AsyncVectorEnv"))
    ]


def _of_library(env: str, num_envs: int) -> list[Side]:
    def start(several: bool) -> Running:
        theirs, rooms = (
            importlib.import_module(f"{_fence.LIBRARY}.{name}") for name in ("collectors", "envs")
        )
        make, frames = partial(rooms.GymEnv, env), num_envs * STEPS
        if several:
            collector = theirs.MultiSyncCollector(
                [make] * num_envs, None, frames_per_batch=frames, total_frames=-1
            )
        else:
            made = make() if num_envs == 1 else rooms.SerialEnv(num_envs, make)
            collector = theirs.Collector(made, None, frames_per_batch=frames, total_frames=-1)
        batches = iter(collector)
        return Running(lambda: int(next(batches).numel()), collector.shutdown)

    return [
        Side("TorchRL, Collector", partial(start, False)),
        Side("TorchRL, MultiSyncCollector", partial(start, True)),
    ]


def _envpool(env: str, num_envs: int) -> list[Side]:
    def start() -> Running:
        import envpool
        import numpy

        made: Any = envpool.make(env, env_type="gymnasium", num_envs=num_envs)
        return _stepping(
            made,
            num_envs,
            lambda: numpy.stack([made.action_space.sample() for _ in range(num_envs)]),
        )

    return [Side("EnvPool", start)]


def _sb3(env: str, num_envs: int) -> list[Side]:
    def start(name: str) -> Running:
        import gymnasium
        import numpy
        from stable_baselines3.common import vec_env

        made = getattr(vec_env, name)([partial(gymnasium.make, env)] * num_envs)
        return _stepping(
            made,
            num_envs,
            lambda: numpy.stack([made.action_space.sample() for _ in range(num_envs)]),
        )

    return [
        Side(f"Stable-Baselines3, {name}", partial(start, name))
        for name in ("DummyVecEnv", "SubprocVecEnv")
    ]


PEERS = {
    "gymnasium": Peer("gymnasium", _gymnasium),
    _fence.LIBRARY: Peer(_fence.LIBRARY, _of_library),
    "envpool": Peer("envpool", _envpool),
    "sb3": Peer("stable-baselines3", _sb3),
}
