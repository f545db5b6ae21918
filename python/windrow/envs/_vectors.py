"""What the engine has to know of a vector of Gymnasium's: when it resets environments, how it
resets some of them, and which seeds it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from windrow._lazy import gymnasium, numpy
from windrow._types import Array
from windrow._warnings import warn


def habits(vector: gymnasium.vector.VectorEnv[Any, Any, Any]) -> tuple[str, str]:
    """The autoreset mode of ``vector``, by Gymnasium's name, and how it resets some environments
    without the others: by a ``"mask"`` in the options, by their ``"numbers"``, or ``"never"``.

    Raises:
        ValueError: it steps some environments at a time.
    """
    inner, pool = vector.unwrapped, _pool(vector)
    # A vector that names no mode is taken to have Gymnasium's default.
    mode = vector.metadata.get("autoreset_mode") or "NextStep"
    mode = getattr(mode, "value", mode)
    at_once = (
        _config(pool).get("batch_size") if pool is not None else getattr(inner, "batch_size", None)
    )
    if isinstance(at_once, int) and 0 < at_once < vector.num_envs:
        raise ValueError(
            f"{type(inner).__name__} steps {at_once} of its {vector.num_envs} environments at a time, whichever come first: expected a "
            f"vector that steps all of them, batch_size={vector.num_envs}. AsyncCollector and MultiAsyncCollector take the first of several workers"
        )
    if type(inner).__name__ == "CartPoleVectorEnv" and type(inner).__module__.startswith(
        "gymnasium."
    ):
        inner.reset = partial(_reset_cartpoles, inner)  # type: ignore[method-assign]
        can_mask = True
    else:
        # Processes without shared memory still reset by themselves after that.
        forgets = _is_gymnasiums(inner) and getattr(inner, "shared_memory", True) is False
        can_mask = (
            mode == "Disabled"
            or (_is_gymnasiums(inner) and not forgets)
            or _reads_mask(type(inner).reset)
        )
        can_mask = can_mask and not (forgets and mode == "NextStep")
    while vector is not inner and can_mask:
        # It refuses every other mask.
        can_mask = type(vector).__name__ != "NormalizeObservation" or mode == "Disabled"
        vector = getattr(vector, "env", inner)
    return mode, "numbers" if pool is not None else "mask" if can_mask else "never"


def _pool(vector: gymnasium.vector.VectorEnv[Any, Any, Any]) -> object:
    """The EnvPool that ``vector`` is, or that is in it. Vectors of windrow have the method, too."""
    found = (one for one in (vector, vector.unwrapped) if hasattr(type(one), "async_reset"))
    return next((one for one in found if not hasattr(one, "_is_as_gymnasiums")), None)


def _config(pool: object) -> dict[str, Any]:
    return getattr(pool, "config", {})


def _is_gymnasiums(inner: object) -> bool:
    """Whether ``inner`` takes masks and seeds as Gymnasium's vectors of single environments do: it
    is one of these, or of windrow's.
    """
    return isinstance(
        inner, (gymnasium.vector.SyncVectorEnv, gymnasium.vector.AsyncVectorEnv)
    ) or getattr(inner, "_is_as_gymnasiums", False)


def _reads_mask(function: Callable[..., Any]) -> bool:
    """Whether the code of a ``reset`` names the option: nothing else tells whether a vector knows
    it.
    """
    code = getattr(function, "__code__", None)
    return code is not None and "reset_mask" in code.co_consts


def _reset_cartpoles(
    env: Any, *, seed: int | None = None, options: dict[str, Any] | None = None
) -> tuple[Array, dict[str, Any]]:
    """``reset`` of a ``CartPoleVectorEnv`` that knows the option ``reset_mask``, as Gymnasium's
    other vectors do. It draws what the vector's own next step would draw.
    """
    mask = (options or {}).get("reset_mask")
    if mask is None:
        return type(env).reset(env, seed=seed, options=options)
    gymnasium.vector.VectorEnv.reset(env, seed=seed)
    env.state[:, mask] = env.np_random.uniform(env.low, env.high, (4, int(mask.sum())))
    env.steps[mask] = 0
    env.prev_done[mask] = False
    return env.state.T.astype(numpy.float32), {}


class _Kept(dict[str, Any]):
    """Options that keep their mask when a vector takes it out: the wrappers around it look for it
    after that.
    """

    def pop(self, key: str, *default: object) -> object:
        return self["reset_mask"] if key == "reset_mask" else super().pop(key, *default)

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        # What is sent to the process of an environment, which has no use for it.
        return dict, ({name: value for name, value in self.items() if name != "reset_mask"},)


def options(vector: gymnasium.vector.VectorEnv[Any, Any, Any], mask: Array) -> dict[str, Any]:
    """The options of a ``reset`` of those environments that ``mask`` has."""
    return (dict if vector is vector.unwrapped else _Kept)(reset_mask=mask)


def seed(
    vector: gymnasium.vector.VectorEnv[Any, Any, Any], envs: list[int], seeds: list[int | None]
) -> int | list[int | None] | Array | None:
    """The argument ``seed`` of a ``reset`` of ``envs``: one number where these follow each other,
    which every vector takes. Other seeds are a list or an array for vectors that take one; the
    others derive all from the first. An EnvPool takes none, and a warning says so.
    """
    inner = vector.unwrapped
    first = next(seed for seed in seeds if seed is not None)
    follow = seeds == list(range(first, first + len(seeds)))
    if (pool := _pool(vector)) is not None:
        # What the engine itself draws, for environments that were made anew, does not matter.
        own = _config(pool).get("seed", first)
        if (follow and own != first) or len(set(seeds)) < len(seeds):
            warn(
                f"seed {first} has no effect: {type(pool).__name__} is seeded when it is made, with seed={own}, and not after that. "
                f"envpool.make(..., seed={first}) makes one with this seed"
            )
        return None
    if type(inner).__module__.startswith("ale_py"):
        # ALE seeds with 31 bits.
        return (
            first % 2**31
            if follow
            else numpy.array([-1 if seed is None else seed % 2**31 for seed in seeds])
        )
    if _is_gymnasiums(inner):
        given = dict(zip(envs, seeds, strict=True))
        return (
            first
            if follow and len(envs) == vector.num_envs
            else [given.get(env) for env in range(vector.num_envs)]
        )
    return first


def tell_of_cuts(id: str) -> None:
    """Says once what a vector costs that resets no environment without stepping the others."""
    warn(
        f"{id} resets an environment by its next step, which takes the others on: where one episode ends, those of the others are cut "
        "too (truncated), and the step in which it begins anew is in no batch. A vector with autoreset_mode SAME_STEP, or one whose "
        'reset takes options={"reset_mask": ...}, keeps them whole'
    )
