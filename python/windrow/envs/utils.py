"""Helpers around environments, where TorchRL has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windrow import _fence, _needs
from windrow._codecs import own_codec
from windrow._keys import short
from windrow._lazy import tensordict as td, torch
from windrow._types import Env
from windrow._values import without_values
from windrow.envs._base import EnvBase, Wrapped
from windrow.envs._check import checked, played
from windrow.modules import RandomPolicy

if TYPE_CHECKING:
    from tensordict.nn import InteractionType as ExplorationType
    from tensordict.nn.probabilistic import (
        interaction_type as exploration_type,
        set_interaction_type as set_exploration_type,
    )

__all__ = [
    "ExplorationType",
    "RandomPolicy",
    "check_env",
    "check_env_specs",
    "exploration_type",
    "set_exploration_type",
]

OF_TENSORDICT = {
    "ExplorationType": "InteractionType",
    "exploration_type": "interaction_type",
    "set_exploration_type": "set_interaction_type",
}


def __getattr__(name: str) -> Any:
    # tensordict brings torch, which is imported only by those who use it.
    if name not in OF_TENSORDICT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _needs.torch(f"{__name__}.{name}")
    return getattr(td.nn.probabilistic, OF_TENSORDICT[name])


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
        for rollout in (checked(env, steps, seed), played(env, steps, seed))
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
    checked(_own(env), 100, seed or 0)


def _own(env: Env) -> EnvBase:
    return env if isinstance(env, EnvBase) else Wrapped(env)
