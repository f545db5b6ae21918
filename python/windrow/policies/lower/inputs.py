"""The observations that a policy reads, before it has been called."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from windrow._keys import Key, path
from windrow._windrow import EnvHandle
from windrow.envs._convert import of
from windrow.envs._described import Described, Facts
from windrow.envs._factory import InTurn, is_function
from windrow.envs._recipe import Recipe
from windrow.envs._registry import adapted
from windrow.envs._specs import Spec
from windrow.policies import recurrent
from windrow.policies.arguments import read_by, takes_dictionary
from windrow.policies.weights import source_of

if TYPE_CHECKING:
    from windrow.policies.choose import Conditions


class Leaf(NamedTuple):
    """An observation of one environment; its bounds, where they are known, in this shape or for all
    of it.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    low: torch.Tensor | None = None
    high: torch.Tensor | None = None


# What the policy reads


def observed_by(
    env: Any, policy: Callable[..., Any], conditions: Conditions
) -> list[tuple[dict[Key, Leaf], list[Key]]]:
    """The observations of an environment that ``policy`` gets, and the actions, with float32 in
    place of float64 second; none where that is not known yet.
    """
    if env is None or is_function(env):
        return []
    try:
        if not _has_specs(env):
            # An id, of Gymnasium, or of a library whose adapter makes one that has them.
            made = adapted(env)
            env = made if _has_specs(made) else _OfRecipe(of(env))
        observed, actions = _described(env)
        info = env._known().info if hasattr(env, "_known") else ()
        observed = {
            key: observed[key] for key in read_by(policy, conditions.trust, list(observed), info)
        }
    except Exception:
        # Said where it is made.
        return []
    single = {
        key: leaf._replace(dtype=torch.float32) if leaf.dtype == torch.float64 else leaf
        for key, leaf in observed.items()
    }
    return (
        [(observed, actions)]
        if all(leaf is single[key] for key, leaf in observed.items())
        else [(observed, actions), (single, actions)]
    )


class _OfRecipe(Described):
    """The environments of a recipe, of which nothing but their specs is used."""

    _device = None

    def __init__(self, recipe: Recipe) -> None:
        self._facts = Facts(EnvHandle(recipe))

    def _known(self) -> Facts:
        return self._facts


def _has_specs(env: Any) -> bool:
    # Asking windrow's own for one would import torchrl.
    return isinstance(env, Described) or hasattr(env, "full_action_spec_unbatched")


def _described(env: Any) -> tuple[dict[Key, Leaf], list[Key]]:
    """The observations of one environment, and the actions."""
    if isinstance(env, Described):
        parts = [dict(env._specs_of(part, ()).leaves()) for part in ("observation", "action")]
    else:
        specs = env.observation_spec_unbatched, env.full_action_spec_unbatched
        parts = [dict(spec.items(True, True)) for spec in specs]
    observed, actions = parts
    leaves = observed.items()
    return {key: _leaf(spec) for key, spec in leaves if isinstance(spec.dtype, torch.dtype)}, list(
        actions
    )


def _leaf(spec: Any) -> Leaf:
    """The observation that ``spec`` describes."""
    shape, dtype = tuple(spec.shape), spec.dtype
    space, count = getattr(spec, "space", None), getattr(spec, "n", None)
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    kind = spec._leaf.kind if isinstance(spec, Spec) else type(spec).__name__
    if kind in ("Categorical", "discrete") and isinstance(count, int):
        low, high = 0, count - 1
    elif kind in ("Binary", "OneHot", "MultiOneHot", "binary", "one_hot"):
        low, high = 0, 1
    if dtype.is_floating_point or low is None or high is None:
        return Leaf(shape, dtype)
    return Leaf(shape, dtype, torch.as_tensor(low), torch.as_tensor(high))


def asked_for(
    policy: Callable[..., Any], conditions: Conditions, env: object
) -> list[Iterator[tuple[dict[Key, Leaf], list[Key]]]]:
    """Where observations are looked for that nobody knows: a guess, and then the environment, which
    is made for that only where the policy cannot be called with a guess.
    """
    keys = _inputs(policy)
    # Groups of agents have dimensions of their own, which no layer tells.
    is_nested = any(isinstance(key, tuple) for key in keys) or takes_dictionary(policy)
    asked = [] if is_nested else [_guessed(policy)]
    asked.append(_made(env, policy, conditions))
    # A guess of one observation that it can be called with is right; of several, the sizes may be
    # others.
    return asked if len(keys) == 1 else [itertools.chain.from_iterable(asked)]


def _made(
    env: Any, policy: Callable[..., Any], conditions: Conditions
) -> Iterator[tuple[dict[Key, Leaf], list[Key]]]:
    """As :func:`observed_by`, of an environment that the function ``env`` makes for it."""
    if isinstance(env, InTurn):
        # Its next environment is that of a worker.
        env = env.makers[0]
    if not is_function(env):
        yield from observed_by(env, policy, conditions)
        return
    try:
        made = env()
    except Exception:
        # Said where the collector makes it.
        return
    try:
        yield from observed_by(made, policy, conditions)
    finally:
        with contextlib.suppress(Exception):
            made.close()


def _inputs(policy: Callable[..., Any]) -> list[Key]:
    """Names of the observations that ``policy`` reads, as far as it names them."""
    read = recurrent.keys_of(policy, "in_keys")
    if read is None:
        parameters = inspect.signature(getattr(policy, "forward", policy)).parameters.values()
        kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = [
            one.name
            for one in parameters
            if one.kind in kinds and one.default is inspect.Parameter.empty
        ]
        return list(names) if len(names) > 1 else ["observation"]
    written = {
        key for out in recurrent.keys_of(policy, "out_keys") or () for key in (out, path(out)[1:])
    }
    return [
        key
        for key in read
        if key not in written and path(key) not in written and key != recurrent.IS_INIT
    ]


def _guessed(policy: Callable[..., Any]) -> Iterator[tuple[dict[Key, Leaf], list[Key]]]:
    """Observations that ``policy`` may read, by the sizes of its layers: vectors of float32."""
    keys = _inputs(policy)
    choices = []
    for key in keys:
        parts = [
            part
            for part in source_of(policy).modules()  # type: ignore[union-attr]
            if key in (recurrent.keys_of(part, "in_keys") or ())
        ]
        # The innermost one.
        layers = (parts[-1] if parts else source_of(policy)).modules()  # type: ignore[union-attr]
        choices.append(list(dict.fromkeys(itertools.chain.from_iterable(map(_widths, layers))))[:6])
    for widths in itertools.islice(itertools.product(*choices), 16):
        yield {key: Leaf((width,), torch.float32) for key, width in zip(keys, widths)}, ["action"]


def _widths(layer: nn.Module) -> list[int]:
    names = ("in_features", "input_size", "num_features", "normalized_shape")
    found = [getattr(layer, name, None) for name in names]
    return [width if isinstance(width, int) else width[0] for width in found if width]
