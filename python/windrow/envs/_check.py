"""Checks that an environment does what its specs promise."""

from __future__ import annotations

from windrow import _fence
from windrow._codecs import own_codec
from windrow._lazy import tensordict as td, torch
from windrow._types import Env
from windrow._values import parted, without_values
from windrow.envs._base import EnvBase
from windrow.envs._described import FLAGS
from windrow.envs._specs import path, short
from windrow.envs.transforms import Wrapped


def check_env(env: Env, *, steps: int = 100, seed: int = 0) -> None:
    """Plays an environment with random actions, and compares what comes with its specs and with
    itself.

    Observations have the names, shapes and element types of their specs and lie within; flags are
    True where they should be; and the same seed gives the same episode.

    Args:
        env: an environment of windrow, or anything that a collector takes.
        steps: steps of each of two rollouts.
        seed: their seed.

    Raises:
        AssertionError: what was expected and what came.
    """
    env = _own(env)
    first, second = (
        without_values(rollout, own_codec())
        for rollout in (_checked(env, steps, seed), _play(env, steps, seed))
    )
    for (names, _, values), (_, _, again) in zip(first[1], second[1], strict=True):
        assert values == again, (
            f"{short(names)!r} differs between two rollouts with seed {seed}: the environment does not keep its seed"
        )
    first, second = first[0], second[0]
    for key in first.keys(True, True):
        same = torch.equal(first.get(key), second.get(key)) or bool(first.get(key).isnan().any())
        assert same, (
            f"{key!r} differs between two rollouts with seed {seed}: the environment does not keep its seed"
        )


def _own(env: Env) -> EnvBase:
    return env if isinstance(env, EnvBase) else Wrapped(env)


def _checked(env: EnvBase, steps: int, seed: int) -> td.TensorDictBase:
    """A rollout, which is what the specs of ``env`` say."""
    played = _play(env, steps, seed)
    first, held = parted(played)
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
    return played


def check_env_specs(
    env: Env,
    return_contiguous: bool | None = None,
    check_dtype: bool = True,
    seed: int | None = None,
    tensordict: td.TensorDictBase | None = None,
    break_when_any_done: bool | str | None = None,
) -> None:
    """:func:`check_env` without its comparison of two rollouts, as TorchRL's function of this name.

    Args:
        env: an environment of windrow, or anything that a collector takes. TorchRL checks its own.
        return_contiguous: no effect: steps are stacked in memory of their own.
        check_dtype: no effect: element types are compared in any case.
        seed: of the rollout, 0 unless given.
        tensordict: no effect: the rollout begins with a reset.
        break_when_any_done: no effect: it goes on with the next episode.
    """
    if _fence.is_a(env, "EnvBase"):
        theirs = _fence.loaded("envs.utils")
        theirs.check_env_specs(
            env, return_contiguous, check_dtype, seed, tensordict, break_when_any_done
        )
        return
    _checked(_own(env), 100, seed or 0)


def _play(env: EnvBase, steps: int, seed: int) -> td.TensorDictBase:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        env.set_seed(seed)
        return env.rollout(steps, break_when_any_done=False)
