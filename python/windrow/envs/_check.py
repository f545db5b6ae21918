"""Checks that an environment does what its specs promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windrow._keys import path
from windrow._lazy import tensordict as td, torch
from windrow._values import parted
from windrow.envs._described import FLAGS

if TYPE_CHECKING:
    from windrow.envs._base import EnvBase


def checked(env: EnvBase, steps: int, seed: int) -> td.TensorDictBase:
    """A rollout, which is what the specs of ``env`` say."""
    rollout = played(env, steps, seed)
    first, held = parted(rollout)
    entries = {one.names: one.values.shape for one in held}
    batch = tuple(env.batch_size)
    for name, level in (("root", first), ("next", first.get("next"))):
        for key, spec in env._specs_of("observation").leaves():
            if name == "next" and key in env._known().deltas:
                continue
            expected = (*batch, first.shape[-1], *spec._shape[len(batch) :])
            if spec.is_bytes:
                shape = entries.get((*(("next",) if name == "next" else ()), *path(key)))
                assert shape == expected, (
                    f"{name} {key!r}: expected values {expected}, got {shape or 'none'}"
                )
                continue
            value = level.get(key, None)
            assert value is not None, f"observation {key!r} is missing in the {name}"
            assert tuple(value.shape) == expected, (
                f"{name} {key!r}: expected shape {expected}, got {tuple(value.shape)}"
            )
            assert value.dtype == spec.dtype, (
                f"{name} {key!r}: expected {spec.dtype}, got {value.dtype}"
            )
            inside = value.movedim(len(batch), 0)
            assert all(spec.is_in(one) for one in inside), (
                f"{name} {key!r} leaves its spec {spec!r}"
            )
        for flag in FLAGS:
            value = level.get(flag)
            assert value.dtype == torch.bool, f"{name} {flag!r}: expected bool, got {value.dtype}"
    following = first.get("next")
    either = following.get("terminated") | following.get("truncated")
    assert bool((following.get("done") == either).all()), "done is not terminated or truncated"
    assert not bool(first.get("done").any()), "an episode was over before its first step"
    return rollout


def played(env: EnvBase, steps: int, seed: int) -> td.TensorDictBase:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        env.set_seed(seed)
        return env.rollout(steps, break_when_any_done=False)
