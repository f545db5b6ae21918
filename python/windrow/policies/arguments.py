"""What a policy is called with: a TensorDict, or observations as its parameters name them, in the
arrays that it takes.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase

from windrow._keys import Key, path
from windrow._types import Array
from windrow.policies import recurrent
from windrow.policies.weights import original

#: Observations that wrappers add.
BOOKKEEPING = ("step_count", "is_init", "episode_reward")
#: An observation by its place among the inputs, or a dictionary of such.
Place = int | dict[str, "Place"]


def calls_with_tensordict(policy: Callable[..., Any], trust: bool = False) -> bool:
    """Whether ``policy`` maps a TensorDict to a TensorDict.

    Modules of tensordict do, and callables with exactly one parameter that is called ``tensordict``
    or ``td`` or annotated as a TensorDict; any other callable does if ``trust`` says so.

    Raises:
        TypeError: it has ``in_keys`` and ``out_keys``, but is no module of tensordict.
    """
    policy = original(policy)
    if trust or isinstance(policy, TensorDictModuleBase):
        return True
    if hasattr(policy, "in_keys") and hasattr(policy, "out_keys"):
        raise TypeError(
            f"{type(policy).__name__} has in_keys and out_keys, but is no tensordict.nn.TensorDictModuleBase: derive it from that "
            "class, or pass trust_policy=True if it takes a TensorDict"
        )
    parameters = _parameters(policy)
    if len(parameters) != 1:
        return False
    annotation = parameters[0].annotation
    is_annotated = inspect.isclass(annotation) and issubclass(annotation, TensorDictBase)
    return parameters[0].name in ("tensordict", "td") or is_annotated


def reads_init(policy: Callable[..., Any], trust: bool = False) -> bool:
    """Whether ``policy`` reads where episodes begin."""
    if not calls_with_tensordict(policy, trust):
        return any(parameter.name == recurrent.IS_INIT for parameter in _parameters(policy))
    if recurrent.IS_INIT in (recurrent.keys_of(policy, "in_keys") or ()):
        return True
    # Some modules say so in another way than by their keys.
    modules = policy.modules() if isinstance(policy, torch.nn.Module) else ()
    return any(getattr(module, "is_init_key", None) == recurrent.IS_INIT for module in modules)


def arguments_of(policy: Callable[..., Any], keys: Sequence[Key]) -> list[Place]:
    """What each parameter of ``policy`` takes: the observation, or the group of observations, of
    its name. A single parameter, or one such as ``*inputs``, takes the only observation whatever
    its name; of several observations, a single parameter takes a dictionary.

    Raises:
        TypeError: no observation has the name of a parameter.
    """
    places, names = _named(policy, keys)
    if places is not None:
        return places
    observed = [index for index, key in enumerate(keys) if key not in BOOKKEEPING]
    takes_one = len(names) == 1 or (
        not names and bool(_parameters(policy, inspect.Parameter.VAR_POSITIONAL))
    )
    if takes_one and len(observed) == 1:
        return [observed[0]]
    if len(names) == 1 and observed:
        return [tree((path(keys[index]), index) for index in observed)]
    known = list(dict.fromkeys([*keys, *(path(key)[0] for key in keys if isinstance(key, tuple))]))
    raise TypeError(
        f"expected a policy whose parameters are observations of the environment, {known}, a single parameter for a dictionary of them, or "
        f"a single TensorDict; got {names}. Wrap it in a TensorDictModule, or pass trust_policy=True if it takes a TensorDict all the same"
    )


def takes_dictionary(policy: Callable[..., Any]) -> bool:
    """Whether the single parameter of ``policy`` is annotated as a dictionary."""
    parameters = _parameters(policy)
    annotation = parameters[0].annotation if len(parameters) == 1 else None
    kind = typing.get_origin(annotation) or annotation
    return inspect.isclass(kind) and issubclass(kind, Mapping)


def _named(policy: Callable[..., Any], keys: Sequence[Key]) -> tuple[list[Place] | None, list[str]]:
    """What each parameter takes, where all have names of observations or groups of these; and their
    names.
    """
    required = [
        parameter.name
        for parameter in _parameters(policy)
        if parameter.default is inspect.Parameter.empty
    ]
    groups = tree((path(key), index) for index, key in enumerate(keys))
    is_named = bool(required) and all(name in groups for name in required)
    return [groups[name] for name in required] if is_named else None, required


def tree(leaves: Iterator[tuple[tuple[str, ...], int]]) -> dict[str, Place]:
    """The places of observations, in dictionaries where their names are nested."""
    found: dict[str, Place] = {}
    for names, index in leaves:
        inner = found
        for name in names[:-1]:
            below = inner.setdefault(name, {})
            assert isinstance(below, dict), "No observation is a group, too."
            inner = below
        inner[names[-1]] = index
    return found


def placed(place: Place, inputs: Sequence[Any]) -> object:
    """The argument for ``place``: an input, or a dictionary of inputs."""
    return (
        inputs[place]
        if isinstance(place, int)
        else {name: placed(inner, inputs) for name, inner in place.items()}
    )


def read_by(policy: Any, trust: bool, observed: Sequence[Key], info: Sequence[Key]) -> list[Key]:
    """The observations that ``policy`` gets. One that is called with tensors gets entries of
    ``info`` where it names them: it may take the only other observation under any name, or all
    others in a dictionary.
    """
    if calls_with_tensordict(policy, trust) or _named(policy, observed)[0] is not None:
        return list(observed)
    return [key for key in observed if key not in info] or list(observed)


def _parameters(policy: Callable[..., Any], *kinds: Any) -> list[inspect.Parameter]:
    """The parameters of ``policy`` of these kinds; positional ones unless given."""
    kinds = kinds or (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    policy = original(policy)
    function = policy.forward if isinstance(policy, torch.nn.Module) else policy
    if isinstance(function, torch.ScriptMethod):
        # It has no signature of Python's.
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = [argument.name for argument in function.schema.arguments[1:]]
        return [inspect.Parameter(name, kind) for name in names] if kind in kinds else []
    try:
        try:
            signature = inspect.signature(function, eval_str=True)
        except Exception:
            # Some annotations cannot be evaluated.
            signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the signature of the policy {policy!r} cannot be read: wrap it in a function"
        ) from error
    return [parameter for parameter in signature.parameters.values() if parameter.kind in kinds]


# Arrays

#: Makes of a tensor on the CPU what a policy takes.
Convert = Callable[[torch.Tensor], Any]


def to_numpy(tensor: torch.Tensor) -> Array:
    return tensor.numpy(force=True)


def _to_jax(tensor: torch.Tensor) -> object:
    import jax.numpy as jnp  # type: ignore[import-not-found, unused-ignore]

    return jnp.asarray(to_numpy(tensor))


def conversion(policy: Any) -> Convert | None:
    """How the observations become the arrays that ``policy`` is written for, as far as that is
    known: JAX's for a function that JAX has compiled, NumPy's or JAX's where a parameter is
    annotated so. None for tensors, and where nothing says what.
    """
    if isinstance(policy, torch.nn.Module):
        return None
    if type(policy).__module__.partition(".")[0] in ("jax", "jaxlib"):
        return _to_jax
    for parameter in _parameters(policy):
        for origin in _origins(parameter.annotation):
            if origin in ("numpy", "jax"):
                return to_numpy if origin == "numpy" else _to_jax
    return None


def _origins(annotation: Any) -> Iterator[str]:
    """The packages of an annotation and of what is in it, such as of ``dict[str, np.ndarray]``."""
    if isinstance(annotation, str):
        # It could not be evaluated.
        names = {"np": "numpy", "numpy": "numpy", "jax": "jax", "jnp": "jax"}
        yield names.get(annotation.partition(".")[0], "")
        return
    kind = typing.get_origin(annotation) or annotation
    yield str(getattr(kind, "__module__", "")).partition(".")[0]
    for inner in typing.get_args(annotation):
        yield from _origins(inner)
